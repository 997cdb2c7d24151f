//! `beeline leave`: undoes `join`. What served a cluster stops serving it; with the last one, hooks and unit go too.

use super::NotFound;
use crate::args::Leave;
use crate::joined::{self, Joined};
use crate::options::{ClusterOptions, Options};
use crate::systemd::Systemd;
use anyhow::bail;
use beeline_agent::status::Request;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// An agent looks at its file more often than once a second.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(leave: &Leave) -> anyhow::Result<ExitCode> {
    let _turn = joined::turn(&leave.root)?;
    let joined = Joined::open(&leave.root)?;
    let name = choose(&joined, leave.cluster.as_deref())?;
    let revoke = revoke(&joined, name);
    if joined.configuration.cluster(name).is_some() {
        take_out(leave, &joined, name)?;
    }
    let forgotten = joined.forget(name)?;
    println!("left {name}");
    for path in forgotten {
        println!("  removed  {}", path.display());
    }
    println!("the cluster still knows this host until an administrator runs `{revoke}`");
    Ok(ExitCode::SUCCESS)
}

/// Out of the configuration. Whatever ends us between two of these steps, `leave NAME` goes on from there.
fn take_out(leave: &Leave, joined: &Joined, name: &str) -> anyhow::Result<()> {
    let configuration = joined.configuration.without(name)?;
    let last = configuration.clusters().is_empty();
    if last {
        end(leave, &joined.configuration.options)?;
    }
    joined.forget_token(name)?;
    joined.save(&configuration)?;
    if !last {
        wait(leave, &joined.configuration.options, name);
    }
    Ok(())
}

fn revoke(joined: &Joined, name: &str) -> String {
    let credential = joined.configuration.cluster(name).and_then(|cluster| joined.credential(cluster));
    let token = credential.and_then(|credential| credential.token().ok());
    token.map_or_else(|| "beeline revoke HOST".into(), |token| beeline_join::command("revoke", &token))
}

fn choose<'a>(joined: &'a Joined, asked: Option<&'a str>) -> anyhow::Result<&'a str> {
    let clusters = joined.configuration.clusters();
    let names: Vec<&str> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let known =
        if names.is_empty() { "it has joined none".to_owned() } else { format!("it has joined {}", names.join(", ")) };
    match (asked, clusters) {
        (None, [one]) if joined.is_ours(one) => Ok(&one.name),
        (None, [ClusterOptions { name, .. }]) => {
            bail!("{name} was written into the configuration by hand: `beeline leave {name}` takes it out nevertheless")
        }
        (None, []) => Err(NotFound("this host has joined no cluster".into()).into()),
        (None, _) => bail!("leave which cluster? {known}"),
        (Some(name), _) if names.contains(&name) || joined.is_left(name) => Ok(name),
        (Some(name), _) => Err(NotFound(format!("this host has not joined {name}: {known}")).into()),
    }
}

/// With the last cluster. The agent ends before its configuration does: it would start again without one. Nobody is then
/// left who would keep the tables true, or answer names.
fn end(leave: &Leave, options: &Options) -> anyhow::Result<()> {
    let systemd = Systemd { root: &leave.root };
    for file in systemd.remove()? {
        println!("  removed  {}", file.display());
    }
    if let Some(routes) = super::dns::take_back(&leave.root.join(super::dns::FOLDER))? {
        systemd.reread_names()?;
        println!("  removed  {}", routes.display());
    }
    if leave.root != Path::new("/") {
        return Ok(());
    }
    let removed = beeline_datapath::program::cleanup(&pin_dir(leave, options))?;
    super::cleanup::remove_rooms(Some(options));
    println!("  detached {} hooks, removed {} maps", removed.links.len(), removed.maps);
    Ok(())
}

/// Where the agent of this configuration has its pins.
fn pin_dir(leave: &Leave, options: &Options) -> PathBuf {
    leave.pin_dir.clone().unwrap_or_else(|| options.pin_dir())
}

/// And its socket.
fn socket(leave: &Leave, options: &Options) -> PathBuf {
    leave.socket.clone().unwrap_or_else(|| options.socket())
}

/// Until a running agent has let go of the cluster: it would write its folder anew.
fn wait(leave: &Leave, options: &Options, name: &str) {
    let (start, socket) = (Instant::now(), socket(leave, options));
    let follows = || match beeline_agent::ask(&socket, &Request::Status) {
        Some(Ok(status)) => super::cluster_of(&status, name).is_some(),
        _ => false,
    };
    while leave.root == Path::new("/") && start.elapsed() < PATIENCE && follows() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    #[test]
    fn the_agents_places_are_those_of_its_configuration() {
        let leave = |more: &[&str]| {
            let args = Args::parse_from([&["beeline", "leave"], more].concat());
            let Command::Leave(leave) = args.command else { panic!("{args:?}") };
            leave
        };
        let options = Options::parse("pin-dir: /sys/fs/bpf/b\nsocket: /run/b.sock").unwrap();
        let places = |leave: &Leave, options: &Options| (pin_dir(leave, options), socket(leave, options));
        assert_eq!(places(&leave(&[]), &options), ("/sys/fs/bpf/b".into(), "/run/b.sock".into()));
        let usual = ("/sys/fs/bpf/beeline".into(), "/run/beeline/agent.sock".into());
        assert_eq!(places(&leave(&[]), &Options::default()), usual);
        let said = leave(&["--pin-dir", "/x", "--socket", "/y"]);
        assert_eq!(places(&said, &options), ("/x".into(), "/y".into()));
    }
}
