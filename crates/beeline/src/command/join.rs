//! `beeline join`: with a code from `beeline grant` this host becomes one of the cluster's. Everything is checked before
//! anything is written, and what is written can be written again.

use crate::args::Join;
use crate::joined::{self, CONFIGURATION, Joined};
use crate::options::{ClusterOptions, Options};
use crate::systemd::Systemd;
use anyhow::{Context, bail};
use beeline_agent::reach::{Answer, SILENCE, knock};
use beeline_agent::status::Request;
use beeline_join::{Code, Contact, Credential, HostName};
use beeline_model::name::LOCAL_CLUSTER;
use serde_json::Value;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A first sync of a large cluster over a slow line.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(join: &Join) -> anyhow::Result<ExitCode> {
    let code = Code::decode(&code_text(&join.code)?)?;
    choose(&Joined::open(&join.root)?, &code, join.name.as_deref())?;
    let systemd = Systemd { root: &join.root };
    systemd.check()?;
    let contact = super::block_on(async { Ok(Contact::make(&code, jiff::Timestamp::now(), answers).await?) })?;
    let (joined, name, files) = take_in(join, &code, &contact)?;
    let verb = if joined.configuration.cluster(&name).is_some() { "rejoined" } else { "joined" };
    println!("{verb} {name} as {}/{}", code.token.namespace, code.token.account);
    say(&contact, &files);
    start(join, &systemd, &joined.configuration.options, &name)?;
    Ok(ExitCode::SUCCESS)
}

/// As the agent knocks: what it will find is what is said here.
async fn answers(at: SocketAddr) -> bool {
    matches!(knock(at, SILENCE).await, Answer::Connected | Answer::Reset)
}

/// `-`: from standard input, where neither the list of processes nor the shell's history shows it.
fn code_text(code: &str) -> anyhow::Result<String> {
    if code != "-" {
        return Ok(code.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("the code from standard input")?;
    Ok(text)
}

/// The name that the cluster gets here. A cluster is known by its UID: the same one again keeps its name, and another one
/// never takes it over.
fn choose(joined: &Joined, code: &Code, asked: Option<&str>) -> anyhow::Result<String> {
    let uid = |cluster: &ClusterOptions| joined.credential(cluster).map(|credential| credential.mark.uid);
    let same = joined.configuration.clusters().iter().find(|cluster| uid(cluster).as_deref() == Some(&code.uid));
    if let Some(ClusterOptions { name, .. }) = same {
        return match asked.filter(|asked| asked != name) {
            None => Ok(name.clone()),
            Some(other) => bail!(
                "this cluster is joined already, as {name}: leave --name {other} out, or `beeline leave {name}` first"
            ),
        };
    }
    let name = asked.unwrap_or(&code.cluster);
    check_name(name)?;
    match joined.configuration.cluster(name) {
        // Its kubeconfig is lost: joining again is what mends it.
        Some(cluster) if joined.is_ours(cluster) && uid(cluster).is_none() => {}
        Some(_) => bail!(
            "{name} is another cluster here: give this one another name (--name), or `beeline leave {name}` first"
        ),
        None => {}
    }
    Ok(name.to_owned())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if HostName::tidy(name).as_deref() != Some(name) {
        bail!("--name {name}: small letters, digits and '-', at most 63");
    }
    if name == LOCAL_CLUSTER {
        bail!("{name} is what a Node's own cluster is called: give this one another name (--name)");
    }
    Ok(())
}

/// Everything that is written. The network was asked for a while: what the configuration says is looked at again, and
/// nobody else changes it meanwhile.
fn take_in(join: &Join, code: &Code, contact: &Contact) -> anyhow::Result<(Joined, String, Vec<PathBuf>)> {
    joined::make_room(&join.root)?;
    let _turn = joined::turn(&join.root)?;
    let joined = Joined::open(&join.root)?;
    let name = choose(&joined, code, join.name.as_deref())?;
    let files = write(&joined, &name, code, contact, &Systemd { root: &join.root })?;
    Ok((joined, name, files))
}

/// The configuration last: what it names is there when a running agent reads it.
fn write(
    joined: &Joined,
    name: &str,
    code: &Code,
    contact: &Contact,
    systemd: &Systemd,
) -> anyhow::Result<Vec<PathBuf>> {
    let new = match joined.configuration.cluster(name) {
        Some(_) => None,
        None => Some(joined.configuration.with(name, &joined.kubeconfig_named(name))?),
    };
    let units = systemd.install(&joined.configuration.options)?;
    let kubeconfig = joined.kubeconfig(name);
    Credential::write(&kubeconfig, name, code, &contact.token)?;
    new.map_or(Ok(()), |configuration| joined.save(&configuration))?;
    Ok([kubeconfig, joined.file()].into_iter().chain(units).collect())
}

fn say(contact: &Contact, files: &[PathBuf]) {
    for path in files {
        println!("  file            {}", path.display());
    }
    println!("  API server      {}", contact.server);
    println!("  cluster         {} services, {} nodes", contact.services.count, contact.nodes.count);
    println!("  pods            {}", contact.pods);
    let until = contact.token.expires;
    println!("  token           valid until {until:.0}, renewed at half its life while the agent runs");
}

fn start(join: &Join, systemd: &Systemd, options: &Options, name: &str) -> anyhow::Result<()> {
    if join.no_start || join.root != Path::new("/") {
        println!("not started, as asked: systemctl enable --now beeline");
        return Ok(());
    }
    if !systemd.is_running() {
        println!("no systemd runs here: start the agent with `beeline agent --config {CONFIGURATION}`");
        return Ok(());
    }
    systemd.start()?;
    let status = wait(&join.socket.clone().unwrap_or_else(|| options.socket()), name)?;
    let count = |path: &str| status.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    println!(
        "serving: {} services with {} backends; `beeline services` lists them, `beeline status` tells how it stands",
        count("/counts/services"),
        count("/counts/backends")
    );
    Ok(())
}

/// Until the agent has programmed what the cluster says.
fn wait(socket: &Path, name: &str) -> anyhow::Result<Value> {
    let (start, mut last) = (Instant::now(), "it does not answer".to_owned());
    while start.elapsed() < PATIENCE {
        if let Some(Ok(status)) = beeline_agent::ask(socket, &Request::Status) {
            match unready(&status, name) {
                None => return Ok(status),
                Some(why) => last = why,
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bail!("the agent was started and is not ready after {} s: {last}: see `journalctl -u beeline`", PATIENCE.as_secs())
}

/// What is still missing.
fn unready(status: &Value, name: &str) -> Option<String> {
    if status["stand"] != "outside" {
        return Some(format!("another agent answers, that of the node {}", status["node"]));
    }
    let Some(cluster) = super::cluster_of(status, name) else { return Some(format!("it does not follow {name} yet")) };
    match cluster["error"].as_str() {
        Some(error) => Some(error.to_owned()),
        None => (cluster["synced"] != true).then(|| "it has not read everything yet".to_owned()),
    }
}
