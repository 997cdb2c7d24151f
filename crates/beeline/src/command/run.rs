//! `beeline run --view NAME -- CMD`: runs a command whose connections prefer the cluster of a view. The agent creates a
//! cgroup with that view and removes it when it is empty. This process enters the cgroup and executes the command in
//! its place, so that the exit code is that of the command.

use crate::args::RunArgs;
use crate::print;
use anyhow::{Context, anyhow, bail};
use beeline_api::AgentClient;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The exit codes of a shell for a command that cannot be executed and for one that is not found.
const CANNOT_EXECUTE: u8 = 126;
const COMMAND_NOT_FOUND: u8 = 127;

pub fn run(run: &RunArgs) -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("permission denied: only root can enter the cgroup of a view (sudo beeline run ...)");
    }
    let cgroup = AgentClient::new(&run.socket).create_view_cgroup(&run.view)?;
    enter(&cgroup)?;
    let (program, args) = run.command.split_first().ok_or_else(|| anyhow!("no command to run"))?;
    // exec() returns only if it fails.
    let error = Command::new(program).args(args).exec();
    print::err(format_args!("beeline: {program}: {error}"));
    Ok(ExitCode::from(if error.kind() == ErrorKind::NotFound { COMMAND_NOT_FOUND } else { CANNOT_EXECUTE }))
}

fn enter(cgroup: &Path) -> anyhow::Result<()> {
    std::fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string()).with_context(|| {
        format!("cannot enter cgroup {}; run this command in the cgroup namespace of the agent", cgroup.display())
    })
}
