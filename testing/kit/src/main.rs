//! The command line of the kit. What it does is in the library.
#![forbid(unsafe_code)]

mod args;

use std::{io::Write, os::unix::process::CommandExt, process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use clap::Parser;

use args::{Args, Command, Deed};
use kit::{
    Cluster, More, Place, Wish, addon, agent, cache::Cache, cluster, e2e::Run, first, node, progress::quick, storm,
};

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kit: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Build { only_helm: true, .. } => kit::build_helm(&Cache::open()?),
        Command::Build { e2e, helm, edge, .. } => kit::build(&Cache::open()?, &More { tests: e2e, helm, edge }),
        Command::Up { proxy, nodes, zones, no_beeline, binary, no_addon } => {
            let agent = if no_beeline { None } else { Some(agent::binary(binary.as_deref())?) };
            up(&Wish { nodes, proxy: proxy.mode(), zones, agent, addon: !no_addon })
        }
        Command::Down => quick("down", kit::down),
        Command::Status => status(),
        Command::Kubectl { words } => Err(Cluster::find()?.kubectl_command()?.args(words).exec().into()),
        Command::Node { node, entry } => Err(Place::Node(node).exec(&entry.part, entry.detach, &entry.words)),
        Command::Host { host, entry } => Err(Place::Host(host).exec(&entry.part, entry.detach, &entry.words)),
        Command::Control { entry } => Err(Place::Control.exec(&entry.part, entry.detach, &entry.words)),
        Command::Start { part } => Cluster::find()?.start_part(&part),
        Command::Stop { part } => Cluster::find()?.part(&part)?.stop(),
        Command::Restart { part } => Cluster::find()?.restart_part(&part),
        Command::Image { name, binary, with } => Cluster::find()?.add_image(&name, &binary, &with),
        Command::Proxy { mode } => Cluster::find()?.set_proxy(mode.mode()),
        Command::Agent { node, deed, binary, extra } => match deed {
            Deed::Start => agent::start(node, &agent::binary(binary.as_deref())?, &extra),
            Deed::Stop => agent::part(node)?.stop(),
            Deed::Kill => agent::part(node)?.kill(),
        },
        Command::Storm { times, targets } => {
            println!("{}", serde_json::to_string(&storm::run(&targets, times))?);
            Ok(())
        }
        Command::E2e { name, focus, skip, processes, limit } => {
            specs(&Run { name, focus, skip, processes, limit: Duration::from_secs(limit) })
        }
        Command::Dial { target } => storm::tell_each(target),
        Command::Addon => addon::run(),
        Command::First { node, inside: false } => node::exec_first(node),
        Command::First { node, inside: true } => first::run(node),
    }
}

fn up(wish: &Wish) -> Result<()> {
    let cluster = quick("all", || Cluster::up(wish))?;
    cluster::explain(&cluster);
    Ok(())
}

fn status() -> Result<()> {
    let cluster = Cluster::find()?;
    let mut table = String::new();
    for title in cluster.parts() {
        let part = cluster.part(&title)?;
        let state = if part.running()? { "runs" } else { "-" };
        table += &format!("{title:<26} {state:<5} {}\n", part.log().display());
    }
    let _ = std::io::stdout().write_all(table.as_bytes()); // The reader may have seen enough.
    Ok(())
}

/// Succeeds if specs ran and none of them failed.
fn specs(run: &Run) -> Result<()> {
    let ran = run.start(&Cluster::find()?)?;
    let count = |state: &str| ran.iter().filter(|spec| spec.state == state).count();
    let (passed, skipped) = (count("passed"), count("skipped"));
    let failed = ran.len() - passed - skipped;
    ensure!(failed == 0 && passed > 0, "{passed} specs passed, {failed} did not");
    Ok(())
}
