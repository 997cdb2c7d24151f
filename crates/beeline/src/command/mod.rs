//! The subcommands, one file each.

mod agent;
mod backends;
mod cleanup;
pub mod controller;
mod crds;
mod dns;
mod doctor;
mod dump;
mod explain;
mod grant;
mod join;
mod leave;
mod man;
mod monitor;
mod plan;
mod policies;
mod run;
mod serve;
mod services;
mod status;

use crate::args::{Args, Command, DnsCommand};
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
        Command::Run(run) => run::run(&run),
        Command::Dump(dump) => dump::run(&dump),
        Command::Monitor(monitor) => monitor::run(&monitor),
        Command::Events(events) => monitor::set_level(&events),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Dns(DnsCommand::Route(route)) => dns::route(&route),
        Command::Cleanup(cleanup) => cleanup::run(&cleanup),
        Command::Crds => crds::run(),
        Command::Grant(grant) => grant::run(&grant),
        Command::Revoke(administer) => grant::revoke(&administer),
        Command::Join(join) => join::run(&join),
        Command::Leave(leave) => leave::run(&leave),
        Command::Man { dir } => man::run(&dir),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "beeline", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What the agent says of one cluster.
fn cluster_of<'a>(status: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
    status["clusters"].as_array()?.iter().find(|cluster| cluster["name"] == name)
}

/// For commands that ask an API server a few things and are done.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
