//! `beeline run --view NAME -- CMD`: a command whose dials see another cluster first. The agent makes a cgroup with that
//! view and removes it once it is empty; we enter it and become the command, so its exit code is ours.

use crate::args::Run;
use anyhow::{Context, anyhow, bail};
use beeline_agent::status::Request;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// As shells have it: found and not to be run, not found.
const CANNOT: (u8, u8) = (126, 127);

pub fn run(run: &Run) -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("beeline run enters a cgroup of the agent's: run it as root (sudo beeline run ...)");
    }
    let cgroup = room(run)?;
    enter(Path::new(&cgroup))?;
    let (program, args) = run.command.split_first().ok_or_else(|| anyhow!("what is to be run? ... -- CMD"))?;
    // Comes back only if there is no such command.
    let error = Command::new(program).args(args).exec();
    eprintln!("beeline: {program}: {error}");
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    Ok(ExitCode::from(if missing { CANNOT.1 } else { CANNOT.0 }))
}

fn room(run: &Run) -> anyhow::Result<String> {
    let socket = &run.socket;
    let answer = beeline_agent::ask(socket, &Request::Run { view: run.view.clone() });
    let answer = answer.ok_or_else(|| {
        anyhow!("no agent answers at {}: views are its own; is it running? (--socket)", socket.display())
    })??;
    if let Some(error) = answer["error"].as_str() {
        bail!("{error}");
    }
    let cgroup = answer["cgroup"].as_str().map(str::to_owned);
    cgroup.ok_or_else(|| anyhow!("the agent does not know the question: {answer}; is it older than this beeline?"))
}

fn enter(cgroup: &Path) -> anyhow::Result<()> {
    let file = cgroup.join("cgroup.procs");
    std::fs::write(&file, std::process::id().to_string()).with_context(|| {
        format!("cannot enter {}; does the agent see another cgroup2 than this shell (a container)?", cgroup.display())
    })
}
