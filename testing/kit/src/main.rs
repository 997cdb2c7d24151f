//! Command line of the kit. The library does the work.
#![forbid(unsafe_code)]

mod args;

use std::{io::Write, os::unix::process::CommandExt, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use args::{AgentAction, HostAction, KitArgs, KitCommand, RouteOption, RunOptions};
use kit::{
    BeelineInstall, BuildOptions, ClusterConfig, Location, TestCluster, addon, agent, cache::Cache, cluster,
    e2e::SpecRun, host, init, load, node, progress::timed,
};

fn main() -> ExitCode {
    match run(KitArgs::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kit: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: KitCommand) -> Result<()> {
    match command {
        KitCommand::Build { only_helm: true, .. } => kit::build_helm(&Cache::open()?),
        KitCommand::Build { e2e, helm, edge, .. } => {
            kit::build(&Cache::open()?, &BuildOptions { tests: e2e, helm, edge })
        }
        KitCommand::Up { proxy, nodes, zones, no_beeline, chart, binary, no_addon } => {
            let beeline = match no_beeline {
                true => None,
                false => Some(BeelineInstall { binary: agent::binary(binary.as_deref())?, chart }),
            };
            up(&ClusterConfig { nodes, proxy: proxy.mode(), zones, beeline, addon: !no_addon })
        }
        KitCommand::Down => timed("down", kit::down),
        KitCommand::Status => status(),
        KitCommand::Kubectl { arguments } => Err(TestCluster::find()?.kubectl_command()?.args(arguments).exec().into()),
        KitCommand::Node { node, run } => Err(exec(Location::Node(node), &run)),
        KitCommand::Host { action: Some(action), .. } => change_host(action),
        KitCommand::Host { host, run, .. } => {
            let (host, run) = host.zip(run).context("name a host and a command: `kit host h1 -- COMMAND`")?;
            Err(exec(Location::Host(host), &run))
        }
        KitCommand::Control { run } => Err(exec(Location::ControlPlane, &run)),
        KitCommand::Start { component } => TestCluster::find()?.start_component(&component),
        KitCommand::Stop { component } => TestCluster::find()?.component(&component)?.stop(),
        KitCommand::Restart { component } => TestCluster::find()?.restart_component(&component),
        KitCommand::Image { name, binary, with } => TestCluster::find()?.add_image(&name, &binary, &with),
        KitCommand::Proxy { mode } => TestCluster::find()?.set_proxy(mode.mode()),
        KitCommand::Agent { node, action, binary, extra } => match action {
            AgentAction::Start => agent::start(node, &agent::binary(binary.as_deref())?, &extra),
            AgentAction::Stop => agent::component(node)?.stop(),
            AgentAction::Kill => agent::component(node)?.kill(),
        },
        KitCommand::Load { times, targets } => {
            println!("{}", serde_json::to_string(&load::run(&targets, times))?);
            Ok(())
        }
        KitCommand::E2e { name, focus, skip, processes, limit } => {
            run_specs(&SpecRun { name, focus, skip, processes, limit: Duration::from_secs(limit) })
        }
        KitCommand::Dial { target } => load::print_each(target),
        KitCommand::Addon => addon::run(),
        KitCommand::Init { node, inside: false } => node::exec_init(node),
        KitCommand::Init { node, inside: true } => init::run(node),
    }
}

fn exec(location: Location, run: &RunOptions) -> anyhow::Error {
    location.exec(&run.component, run.detach, &run.arguments)
}

fn up(config: &ClusterConfig) -> Result<()> {
    let cluster = timed("cluster", || TestCluster::up(config))?;
    cluster::print_usage(&cluster, config.beeline.as_ref());
    Ok(())
}

fn change_host(action: HostAction) -> Result<()> {
    match action {
        HostAction::Add { host, route } => {
            let route = match route {
                RouteOption::Static => host::HostRoute::Static,
                RouteOption::Isolated => host::HostRoute::Isolated,
            };
            host::add(host, route)
        }
        HostAction::Remove { host } => host::remove(host),
    }
}

fn status() -> Result<()> {
    let cluster = TestCluster::find()?;
    let mut table = String::new();
    for title in cluster.components() {
        let component = cluster.component(&title)?;
        let state = if component.running()? { "running" } else { "-" };
        table += &format!("{title:<26} {state:<8} {}\n", component.log().display());
    }
    let _ = std::io::stdout().write_all(table.as_bytes()); // The reader may have closed the pipe.
    Ok(())
}

/// Succeeds if at least one spec passed and none failed.
fn run_specs(run: &SpecRun) -> Result<()> {
    let specs = run.start(&TestCluster::find()?)?;
    let count = |state: &str| specs.iter().filter(|spec| spec.state == state).count();
    let (passed, skipped) = (count("passed"), count("skipped"));
    let failed = specs.len() - passed - skipped;
    ensure!(failed == 0 && passed > 0, "{passed} specs passed, {failed} failed");
    Ok(())
}
