//! The subcommands, one file each.

mod agent;
mod backends;
mod cleanup;
pub mod controller;
mod crds;
mod doctor;
mod dump;
mod explain;
mod monitor;
mod plan;
mod policies;
mod serve;
mod services;
mod status;

use crate::args::{Args, Command};
use clap::CommandFactory;
use std::process::ExitCode;

/// Nothing was found that the question was about.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotFound(pub String);

/// 1: failed; 3: nothing found.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<NotFound>() { 3 } else { 1 }
}

/// Something is wrong, and it has been said.
pub const WRONG: u8 = 4;

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    beeline_datapath::program::quiet_libbpf();
    match args.command {
        Command::Agent(options) => agent::run(*options),
        Command::Controller(options) => controller::run(*options),
        Command::Status(view) => status::run(&view),
        Command::Services(view) => services::run(&view),
        Command::Backends(view) => backends::run(&view),
        Command::Policies(policies) => policies::run(&policies),
        Command::Explain(explain) => explain::run(&explain),
        Command::Plan(plan) => plan::run(*plan),
        Command::Dump(dump) => dump::run(&dump),
        Command::Monitor(monitor) => monitor::run(&monitor),
        Command::Events(events) => monitor::set_level(&events),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Cleanup(cleanup) => cleanup::run(&cleanup),
        Command::Crds => crds::run(),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "beeline", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}
