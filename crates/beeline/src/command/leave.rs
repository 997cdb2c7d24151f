//! `beeline leave`: undoes `beeline join` for one cluster. With the last cluster, the hooks and the systemd unit are
//! removed as well.

use super::{NotFound, usage};
use crate::args::LeaveArgs;
use crate::joined::{self, JoinedHost};
use crate::options::{ClusterOptions, Options};
use crate::print;
use crate::systemd::Systemd;
use anyhow::{Context, anyhow};
use beeline_api::AgentClient;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// An agent checks its configuration file more often than once a second.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(leave: &LeaveArgs) -> anyhow::Result<ExitCode> {
    let _lock = joined::lock_configuration(&leave.root)?;
    let host = JoinedHost::open(&leave.root)?;
    let name = choose(&host, leave.cluster.as_deref())?;
    let revoke = revoke_command(&host, name);
    if host.configuration.cluster(name).is_some() {
        remove_from_configuration(leave, &host, name, &revoke)?;
    }
    let removed = host.remove_cluster(name)?;
    print::out(format_args!("left {name}"));
    for path in removed {
        print::out(format_args!("  removed  {}", path.display()));
    }
    print::out(format_args!("the account of this host exists until an administrator runs `{revoke}`"));
    Ok(ExitCode::SUCCESS)
}

/// The token is removed first, so that no later error leaves it behind. If this is interrupted between two steps, `leave
/// NAME` continues from there.
fn remove_from_configuration(leave: &LeaveArgs, host: &JoinedHost, name: &str, revoke: &str) -> anyhow::Result<()> {
    let configuration = host.configuration.without(name)?;
    let is_last = configuration.clusters().is_empty();
    host.remove_token(name)?;
    if is_last {
        // The next `leave` cannot read the host's name from the token any more, so the command is printed here.
        let context = || format!("run `beeline leave {name}` again when this is solved, and `{revoke}` at the cluster");
        stop_agent(leave, &host.configuration.options).with_context(context)?;
    }
    host.save(&configuration)?;
    if !is_last {
        wait_for_reload(leave, &host.configuration.options, name);
    }
    Ok(())
}

fn revoke_command(host: &JoinedHost, name: &str) -> String {
    let credential = host.configuration.cluster(name).and_then(|cluster| host.credential(cluster));
    let token = credential.and_then(|credential| credential.token().ok());
    token.map_or_else(|| "beeline revoke HOST".into(), |token| beeline_join::admin_command("revoke", &token))
}

fn choose<'a>(host: &'a JoinedHost, given: Option<&'a str>) -> anyhow::Result<&'a str> {
    let clusters = host.configuration.clusters();
    let names: Vec<&str> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let joined =
        if names.is_empty() { "it has joined none".to_owned() } else { format!("it has joined {}", names.join(", ")) };
    match (given, clusters) {
        (None, [one]) if host.is_joined(one) => Ok(&one.name),
        (None, [ClusterOptions { name, .. }]) => Err(usage(anyhow!(
            "{name} was added to the configuration by hand: `beeline leave {name}` removes it nevertheless"
        ))),
        (None, []) => Err(NotFound("this host has joined no cluster".into()).into()),
        (None, _) => Err(usage(anyhow!("name the cluster to leave; this host has joined {}", names.join(", ")))),
        (Some(name), _) if names.contains(&name) || host.has_leftovers(name) => Ok(name),
        (Some(name), _) => Err(NotFound(format!("this host has not joined {name}: {joined}")).into()),
    }
}

/// With the last cluster: stops the agent before its configuration is removed, since it would restart without one.
/// Without an agent the tables would become stale and no names would be answered, so hooks and DNS routes are removed
/// too.
fn stop_agent(leave: &LeaveArgs, options: &Options) -> anyhow::Result<()> {
    let systemd = Systemd { root: &leave.root };
    for file in systemd.remove()? {
        print::out(format_args!("  removed  {}", file.display()));
    }
    if let Some(routes) = super::dns::remove_route(&leave.root.join(super::dns::RESOLVED_DIR))? {
        systemd.reload_resolved()?;
        print::out(format_args!("  removed  {}", routes.display()));
    }
    if leave.root != Path::new("/") {
        return Ok(());
    }
    let removed = beeline_datapath::program::cleanup(&pin_dir(leave, options))?;
    super::cleanup::remove_view_cgroups(Some(options));
    print::out(format_args!("  detached {} hooks, removed {} maps", removed.links.len(), removed.maps));
    Ok(())
}

fn pin_dir(leave: &LeaveArgs, options: &Options) -> PathBuf {
    leave.pin_dir.clone().unwrap_or_else(|| options.pin_dir())
}

fn socket(leave: &LeaveArgs, options: &Options) -> PathBuf {
    leave.socket.clone().unwrap_or_else(|| options.socket())
}

/// Waits until a running agent has dropped the cluster. Before that it would write the files of the cluster again.
fn wait_for_reload(leave: &LeaveArgs, options: &Options, name: &str) {
    let (start, socket) = (Instant::now(), socket(leave, options));
    let watches = || AgentClient::new(&socket).status().is_ok_and(|status| status.cluster(name).is_some());
    while leave.root == Path::new("/") && start.elapsed() < RELOAD_TIMEOUT && watches() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    #[test]
    fn the_paths_of_the_agent_come_from_its_configuration() {
        let leave = |more: &[&str]| {
            let args = Args::parse_from([&["beeline", "leave"], more].concat());
            let Command::Leave(leave) = args.command else { panic!("{args:?}") };
            leave
        };
        let options = Options::parse("pin-dir: /sys/fs/bpf/b\nsocket: /run/b.sock").unwrap();
        let paths = |leave: &LeaveArgs, options: &Options| (pin_dir(leave, options), socket(leave, options));
        assert_eq!(paths(&leave(&[]), &options), ("/sys/fs/bpf/b".into(), "/run/b.sock".into()));
        let defaults = ("/sys/fs/bpf/beeline".into(), "/run/beeline/agent.sock".into());
        assert_eq!(paths(&leave(&[]), &Options::default()), defaults);
        let given = leave(&["--pin-dir", "/x", "--socket", "/y"]);
        assert_eq!(paths(&given, &options), ("/x".into(), "/y".into()));
    }
}
