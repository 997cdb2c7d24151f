//! Beeline: Kubernetes services resolved where the application dials. One binary: the agent and the tools that look at it.
#![forbid(unsafe_code)]

mod args;
mod command;
mod configuration;
mod joined;
mod live;
mod options;
mod print;
mod systemd;
mod views;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The agent's self-test runs us again, below its cgroup.
    if std::env::args().nth(1).as_deref() == Some("__self-test-dial") {
        return beeline_agent::self_test_dial().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let args = args::Args::parse();
    match command::run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("beeline: {error:#}");
            ExitCode::from(command::exit_code(&error))
        }
    }
}
