//! The `beeline` binary: the agent, the controller and the commands that inspect them.
#![forbid(unsafe_code)]

mod args;
mod command;
#[cfg(feature = "outside")]
mod configuration;
#[cfg(feature = "outside")]
mod joined;
mod live_tables;
mod options;
mod print;
#[cfg(feature = "outside")]
mod systemd;
mod views;

use beeline_datapath::namespace_opener;
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The agent starts this binary again: for its self-test, inside a cgroup below that of the agent, and to enter network
    // namespaces.
    match std::env::args().nth(1).as_deref() {
        Some("__self-test-dial") => return exit_code_of(beeline_agent::self_test_dial().map_err(Into::into)),
        Some(namespace_opener::ARGUMENT) => return exit_code_of(namespace_opener::serve().map_err(Into::into)),
        _ => {}
    }
    let args = args::Args::parse();
    match command::run(args) {
        Ok(code) => code,
        Err(error) => {
            print::err(format_args!("beeline: {}", error_text(&error)));
            ExitCode::from(command::exit_code(&error))
        }
    }
}

/// For the processes that the agent starts.
fn exit_code_of(result: anyhow::Result<()>) -> ExitCode {
    result.map_or_else(
        |error| {
            print::err(format_args!("beeline: {}", error_text(&error)));
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// The chain of causes in one line. Some libraries repeat the text of the source in their own, so a cause that has been
/// printed already is skipped.
fn error_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn a_cause_is_printed_once() {
        let repeated = anyhow!("connection refused").context("cannot connect: connection refused");
        assert_eq!(error_text(&repeated), "cannot connect: connection refused");
        let plain = Err::<(), _>(anyhow!("no such file")).context("--config /x").unwrap_err();
        assert_eq!(error_text(&plain), "--config /x: no such file");
    }
}
