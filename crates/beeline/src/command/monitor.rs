//! `beeline monitor` and `beeline events`: the agent's event stream.

use crate::args::{Events, Monitor, Output, VerdictName};
use crate::live::Live;
use anyhow::{Context, anyhow, bail};
use beeline_agent::status::Request;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

fn no_agent(socket: &Path) -> anyhow::Error {
    anyhow!("no agent listens at {}: start one, or name its --socket", socket.display())
}

pub fn set_level(events: &Events) -> anyhow::Result<ExitCode> {
    let answer = ask_level(&events.place.socket, &events.level)?;
    println!("events: {}", answer["events"].as_str().unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

fn ask_level(socket: &Path, level: &str) -> anyhow::Result<Value> {
    let request = Request::SetEvents { level: level.to_owned() };
    let answer = beeline_agent::ask(socket, &request).ok_or_else(|| no_agent(socket))??;
    if let Some(error) = answer["error"].as_str() {
        bail!("{error}");
    }
    Ok(answer)
}

pub fn run(monitor: &Monitor) -> anyhow::Result<ExitCode> {
    let socket = &monitor.view.place.socket;
    let wanted_cgroup = monitor.cgroup.as_deref().map(cgroup_id).transpose()?;
    let mut names = Names::new(&monitor.view.place.pin_dir)?;
    let mut stream = UnixStream::connect(socket).map_err(|_| no_agent(socket))?;
    writeln!(stream, "{}", serde_json::to_string(&Request::Monitor)?)?;
    if let Some(level) = &monitor.events {
        ask_level(socket, level)?;
    }
    let mut left = monitor.count.unwrap_or(usize::MAX);
    for line in BufReader::new(stream).lines() {
        let mut event: Value = serde_json::from_str(&line?)?;
        names.name(&mut event)?;
        if !wanted(monitor, wanted_cgroup, &event) {
            continue;
        }
        let text = if monitor.view.output == Output::Table { readable(&event) } else { event.to_string() };
        if writeln!(std::io::stdout(), "{text}").is_err() {
            break;
        }
        left -= 1;
        if left == 0 {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn cgroup_id(text: &str) -> anyhow::Result<u64> {
    match text.parse() {
        Ok(id) => Ok(id),
        Err(_) => beeline_datapath::cgroup::id(Path::new(text)).with_context(|| format!("--cgroup {text}")),
    }
}

/// The kernel tells an id; the name table the name.
struct Names {
    pin_dir: std::path::PathBuf,
    /// By owner: its cluster, and what it is called.
    known: HashMap<u64, (String, String)>,
    /// By address and view: whose cluster it is. A port that nobody has is refused without an owner.
    held: HashMap<(IpAddr, u32), String>,
}

impl Names {
    fn new(pin_dir: &Path) -> anyhow::Result<Names> {
        let mut names = Names { pin_dir: pin_dir.to_owned(), known: HashMap::new(), held: HashMap::new() };
        names.refresh()?;
        Ok(names)
    }

    fn refresh(&mut self) -> anyhow::Result<()> {
        let live = Live::open(&self.pin_dir)?;
        let name = |id| (live.cluster(id).unwrap_or_default(), live.owner_text(id));
        self.known = live.rows.names.ids().map(|id| (u64::from(id), name(id))).collect();
        self.held = live.holders().map(|((address, view), cluster)| ((address.ip(), view), cluster)).collect();
        Ok(())
    }

    fn name(&mut self, event: &mut Value) -> anyhow::Result<()> {
        let Some(owner) = event["owner"].as_u64().filter(|id| *id != 0) else { return self.name_closed(event) };
        let limited = event["limited"].as_u64().filter(|id| *id != 0).unwrap_or(owner);
        if !self.known.contains_key(&owner) || !self.known.contains_key(&limited) {
            self.refresh()?;
        }
        event["service"] = self.text(owner).into();
        event["cluster"] = self.known.get(&owner).map(|(cluster, _)| cluster.clone()).into();
        if let Some(limited) = event["limited"].as_u64().filter(|id| *id != 0) {
            event["limitedBy"] = self.text(limited).into();
        }
        Ok(())
    }

    /// Nobody has the port; whose address it is, is known.
    fn name_closed(&mut self, event: &mut Value) -> anyhow::Result<()> {
        let address = event["dialled"].as_str().and_then(|text| text.parse().ok());
        let (Some(address), Some(view), "refused") =
            (address, event["view"].as_u64(), event["action"].as_str().unwrap_or_default())
        else {
            return Ok(());
        };
        let at = (address, view as u32);
        if !self.held.contains_key(&at) {
            self.refresh()?;
        }
        event["cluster"] = self.held.get(&at).cloned().into();
        Ok(())
    }

    fn text(&self, owner: u64) -> String {
        self.known.get(&owner).map_or_else(|| format!("#{owner}"), |(_, text)| text.clone())
    }
}

fn wanted(monitor: &Monitor, cgroup: Option<u64>, event: &Value) -> bool {
    let verdict = |name| match name {
        VerdictName::Resolved => "resolved",
        VerdictName::Refused => "refused",
        VerdictName::Untouched => "untouched",
    };
    let service = event["service"].as_str().unwrap_or_default();
    let prefix = format!("{}:", event["cluster"].as_str().unwrap_or_default());
    let inside = service.strip_prefix(&prefix).unwrap_or(service);
    let begins = |text: &str, wanted: &str| {
        text.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    };
    // CLUSTER:NS/NAME, or NS/NAME of any cluster.
    let is_of = |wanted: &str| begins(service, wanted) || begins(inside, wanted);
    monitor.service.as_deref().is_none_or(is_of)
        && cgroup.is_none_or(|id| event["cgroup"].as_u64() == Some(id))
        && monitor.verdict.is_none_or(|v| event["action"].as_str() == Some(verdict(v)))
}

fn readable(event: &Value) -> String {
    if let Some(lost) = event["lost"].as_u64() {
        return format!("... {lost} events were not shown: this terminal is too slow");
    }
    let word = |name: &str| event[name].as_str().unwrap_or("-").to_owned();
    let time = event["time"].as_u64().unwrap_or(0);
    let time = jiff::Timestamp::from_nanosecond(i128::from(time)).map(|t| t.to_string()).unwrap_or_default();
    let chosen = match &event["chosen"] {
        Value::Array(pair) if pair.len() == 2 => format!("{} {}", pair[0].as_str().unwrap_or("-"), pair[1]),
        _ => word("reason"),
    };
    let (pid, process) = (&event["pid"], word("process"));
    let place = match event["pod"].as_str() {
        Some(pod) => format!(
            "{}/{pod}{}",
            word("namespace"),
            event["container"].as_str().map_or(String::new(), |c| format!("/{c}"))
        ),
        None => format!("cgroup {}", event["cgroup"]),
    };
    let dialled = format!("{} {}/{}", word("dialled"), event["dialledPort"], word("protocol"));
    let kept = if event["affinity"].as_bool() == Some(true) { " (affinity)" } else { "" };
    let limit = event["limitedBy"].as_str().map_or(String::new(), |policy| format!(" (over the limit of {policy})"));
    format!(
        "{time} {process}[{pid}] {place}: {dialled} {} {} -> {} {chosen}{kept}{limit}",
        word("kind"),
        word("service"),
        word("action")
    )
}
