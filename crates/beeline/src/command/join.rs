//! `beeline join`: with a code from `beeline grant`, configures this host as a client of a cluster and starts the
//! agent. Everything is checked before anything is written, and the command may be repeated.

use super::usage;
use crate::args::JoinArgs;
use crate::joined::{self, CONFIGURATION, JoinedHost};
use crate::options::{ClusterOptions, Options};
use crate::print;
use crate::systemd::Systemd;
use anyhow::{Context, bail};
use beeline_agent::reach::{PROBE_TIMEOUT, ProbeResult, probe};
use beeline_api::{AgentClient, AgentStatus};
use beeline_join::{Credential, HostName, JoinCode, Preflight};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::rules::HostRole;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Long enough for the first list of a large cluster over a slow line.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

pub fn run(join: &JoinArgs) -> anyhow::Result<ExitCode> {
    let code = JoinCode::decode(&code_text(&join.code)?).map_err(usage)?;
    choose_name(&JoinedHost::open(&join.root)?, &code, join.name.as_deref())?;
    let systemd = Systemd { root: &join.root };
    systemd.check()?;
    let preflight = super::block_on(async { Ok(Preflight::run(&code, jiff::Timestamp::now(), answers).await?) })?;
    let (host, name, files) = write_all(join, &code, &preflight)?;
    let verb = if host.configuration.cluster(&name).is_some() { "rejoined" } else { "joined" };
    print::out(format_args!("{verb} {name} as {}/{}", code.token.namespace, code.token.account));
    print_result(&preflight, &files);
    start(join, &systemd, &host.configuration.options, &name)?;
    Ok(ExitCode::SUCCESS)
}

/// Probes as the agent does, so that the printed result is the one that the agent will have.
async fn answers(address: SocketAddr) -> bool {
    matches!(probe(address, PROBE_TIMEOUT).await, ProbeResult::Connected | ProbeResult::Reset)
}

/// `-` reads the code from standard input, where neither the list of processes nor the history of the shell shows it.
fn code_text(code: &str) -> anyhow::Result<String> {
    if code != "-" {
        return Ok(code.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the code from standard input")?;
    Ok(text)
}

/// The name of the cluster on this host. A cluster is identified by its UID: joining it again keeps its name, and
/// another cluster cannot take that name.
fn choose_name(host: &JoinedHost, code: &JoinCode, given: Option<&str>) -> anyhow::Result<String> {
    let uid = |cluster: &ClusterOptions| host.credential(cluster).map(|credential| credential.extension.uid);
    let same = host.configuration.clusters().iter().find(|cluster| uid(cluster).as_deref() == Some(&code.uid));
    if let Some(ClusterOptions { name, .. }) = same {
        return match given.filter(|given| given != name) {
            None => Ok(name.clone()),
            Some(other) => bail!(
                "this host has joined the cluster already, as {name}: omit --name {other}, or run `beeline leave {name}` \
                 first"
            ),
        };
    }
    let name = given.unwrap_or(&code.cluster);
    check_name(name).map_err(usage)?;
    match host.configuration.cluster(name) {
        // The kubeconfig of the cluster is lost. Joining again writes it anew.
        Some(cluster) if host.is_joined(cluster) && uid(cluster).is_none() => {}
        Some(_) => bail!(
            "another cluster has the name {name} on this host: give this one another (--name), or run `beeline leave \
             {name}` first"
        ),
        None => {}
    }
    Ok(name.to_owned())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if HostName::sanitize(name).as_deref() != Some(name) {
        bail!("--name {name}: expected lower-case letters, digits and '-', at most 63 characters");
    }
    if name == LOCAL_CLUSTER {
        bail!("the name {name} is reserved for a Node's own cluster: give another one (--name)");
    }
    Ok(())
}

/// Writes all files under the lock of the configuration. The preflight took a while, so the configuration is read
/// again.
fn write_all(
    join: &JoinArgs,
    code: &JoinCode,
    preflight: &Preflight,
) -> anyhow::Result<(JoinedHost, String, Vec<PathBuf>)> {
    joined::create_configuration_dir(&join.root)?;
    let _lock = joined::lock_configuration(&join.root)?;
    let host = JoinedHost::open(&join.root)?;
    let name = choose_name(&host, code, join.name.as_deref())?;
    let files = write(&host, &name, code, preflight, &Systemd { root: &join.root })?;
    Ok((host, name, files))
}

/// The configuration is written last: when a running agent reads it, the files that it names exist.
fn write(
    host: &JoinedHost,
    name: &str,
    code: &JoinCode,
    preflight: &Preflight,
    systemd: &Systemd,
) -> anyhow::Result<Vec<PathBuf>> {
    let new = match host.configuration.cluster(name) {
        Some(_) => None,
        None => Some(host.configuration.with(name, &host.configured_kubeconfig(name))?),
    };
    let units = systemd.install(&host.configuration.options)?;
    let kubeconfig = host.kubeconfig(name);
    Credential::write(&kubeconfig, name, code, &preflight.token)?;
    new.map_or(Ok(()), |configuration| host.save(&configuration))?;
    Ok([kubeconfig, host.configuration_path()].into_iter().chain(units).collect())
}

fn print_result(preflight: &Preflight, files: &[PathBuf]) {
    for path in files {
        print::out(format_args!("  file            {}", path.display()));
    }
    print::out(format_args!("  API server      {}", preflight.server));
    print::out(format_args!(
        "  cluster         {} services, {} nodes",
        preflight.services.count, preflight.nodes.count
    ));
    print::out(format_args!("  pods            {}", preflight.pods));
    let expires = preflight.token.expires;
    print::out(format_args!("  token           valid until {expires:.0}; the agent renews it at half of its lifetime"));
}

fn start(join: &JoinArgs, systemd: &Systemd, options: &Options, name: &str) -> anyhow::Result<()> {
    if join.no_start || join.root != Path::new("/") {
        print::out("not started; to start the agent: systemctl enable --now beeline");
        return Ok(());
    }
    if !systemd.is_running() {
        print::out(format_args!(
            "systemd is not running; start the agent with `beeline agent --config {CONFIGURATION}`"
        ));
        return Ok(());
    }
    systemd.start()?;
    let status = wait_until_ready(&join.socket.clone().unwrap_or_else(|| options.socket()), name)?;
    print::out(format_args!(
        "serving {} services with {} backends; see `beeline services` and `beeline status`",
        status.counts.services, status.counts.backends
    ));
    Ok(())
}

/// Waits until the agent has programmed the objects of the cluster.
fn wait_until_ready(socket: &Path, name: &str) -> anyhow::Result<AgentStatus> {
    let (start, mut last) = (Instant::now(), "it does not answer".to_owned());
    while start.elapsed() < READY_TIMEOUT {
        if let Ok(status) = AgentClient::new(socket).status() {
            match not_ready_reason(&status, name) {
                None => return Ok(status),
                Some(reason) => last = reason,
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bail!(
        "the agent was started, but is not ready after {} s: {last}; see `journalctl -u beeline`",
        READY_TIMEOUT.as_secs()
    )
}

fn not_ready_reason(status: &AgentStatus, name: &str) -> Option<String> {
    if status.host_role != HostRole::Outside {
        return Some(format!("the agent of node {} answers instead", status.node));
    }
    let Some(cluster) = status.cluster(name) else { return Some(format!("it does not watch cluster {name} yet")) };
    match &cluster.error {
        Some(error) => Some(error.clone()),
        None => (!cluster.synced).then(|| format!("it has not read all objects of cluster {name} yet")),
    }
}
