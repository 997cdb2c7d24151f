//! The subcommands, one file each, and their exit codes.

mod agent;
mod backends;
mod cleanup;
pub mod controller;
mod crds;
#[cfg(feature = "outside")]
mod dns;
mod doctor;
mod dump;
mod explain;
#[cfg(feature = "outside")]
mod grant;
#[cfg(feature = "outside")]
mod join;
#[cfg(feature = "outside")]
mod leave;
mod man;
mod monitor;
mod plan;
mod policies;
mod run;
mod serve;
mod services;
mod status;

#[cfg(feature = "outside")]
use crate::args::DnsCommand;
use crate::args::{Args, Command};
use clap::CommandFactory;
use std::process::ExitCode;

/// The object that the command asked for does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotFound(pub String);

/// The command line or the configuration file is wrong. clap reports the errors that it finds itself with the same exit
/// code.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UsageError(anyhow::Error);

/// For `map_err`: marks an error as wrong usage.
pub fn usage(error: impl Into<anyhow::Error>) -> anyhow::Error {
    UsageError(error.into()).into()
}

const FAILURE: u8 = 1;
const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
/// A check failed, and the command has printed what is wrong.
pub const CHECK_FAILED: u8 = 4;

pub fn exit_code(error: &anyhow::Error) -> u8 {
    match error {
        error if error.is::<NotFound>() => NOT_FOUND,
        error if error.is::<UsageError>() => USAGE,
        _ => FAILURE,
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    beeline_datapath::program::redirect_libbpf_log();
    match args.command {
        Command::Agent(options) => agent::run(*options),
        Command::Controller(options) => controller::run(*options),
        Command::Status(view) => status::run(&view),
        Command::Services(view) => services::run(&view),
        Command::Backends(view) => backends::run(&view),
        Command::Policies(policies) => policies::run(&policies),
        Command::Explain(explain) => explain::run(&explain),
        Command::Plan(plan) => plan::run(*plan),
        Command::Run(run) => run::run(&run),
        Command::Dump(dump) => dump::run(&dump),
        Command::Monitor(monitor) => monitor::run(&monitor),
        Command::Events(events) => monitor::set_level(&events),
        Command::Doctor(doctor) => doctor::run(&doctor),
        #[cfg(feature = "outside")]
        Command::Dns(DnsCommand::Route(route)) => dns::route(&route),
        Command::Cleanup(cleanup) => cleanup::run(&cleanup),
        Command::Crds => crds::run(),
        #[cfg(feature = "outside")]
        Command::Grant(grant) => grant::run(&grant),
        #[cfg(feature = "outside")]
        Command::Revoke(account) => grant::revoke(&account),
        #[cfg(feature = "outside")]
        Command::Join(join) => join::run(&join),
        #[cfg(feature = "outside")]
        Command::Leave(leave) => leave::run(&leave),
        #[cfg(not(feature = "outside"))]
        Command::Other(words) => Err(usage(other(words.first().map_or("", String::as_str)))),
        Command::Man { dir } => man::run(&dir),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "beeline", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The error of a command that is not in this binary.
#[cfg(not(feature = "outside"))]
fn other(command: &str) -> anyhow::Error {
    match command {
        "dns" | "grant" | "join" | "leave" | "revoke" => {
            crate::options::feature::left_out(&format!("beeline {command}"))
        }
        unknown => anyhow::anyhow!("unknown command {unknown}; `beeline --help` lists the commands"),
    }
}

/// Runs a future to its end on this thread.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn exit_codes_survive_added_context() {
        let code = |error: anyhow::Error| exit_code(&Err::<(), _>(error).context("agent").unwrap_err());
        assert_eq!(code(anyhow!("broken")), 1);
        assert_eq!(code(usage(anyhow!("--sync-period 5"))), 2);
        assert_eq!(code(NotFound("no policy x".into()).into()), 3);
    }
}
