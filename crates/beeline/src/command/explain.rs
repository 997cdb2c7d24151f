//! `beeline explain`: what one dial would become and why, from the live tables, by the resolver that the tests use.

use super::NotFound;
use super::services::{backends_of, kind_name, role_name};
use crate::args::{Explain, View};
use crate::live::Live;
use crate::print;
use anyhow::{Context, anyhow};
use beeline_agent::explain::Explained;
use beeline_agent::status::Request;
use beeline_datapath::cgroup;
use beeline_model::address::parse_ip;
use beeline_model::event::{Action, Reason};
use beeline_model::resolve::{Dial, Verdict, resolve};
use beeline_model::row::{Rule, SET_CLOSED};
use beeline_model::rules::EmptyLocal;
use beeline_model::{Address, Protocol};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    dialled: String,
    from: Option<String>,
    verdict: Action,
    because: String,
    frontend: Option<String>,
    kind: Option<&'static str>,
    service: Option<String>,
    rule: Option<Rule>,
    set: Option<String>,
    affinity_seconds: u32,
    backends: Vec<String>,
    /// From the agent; absent where none runs.
    endpoints: Option<Explained>,
}

pub fn run(explain: &Explain) -> anyhow::Result<ExitCode> {
    let mut dial = parse(&explain.dial)?;
    let live = Live::open(&explain.view.place.pin_dir)?;
    let from = explain.from.as_deref().map(|from| place(from, &live, &mut dial)).transpose()?;
    if from.is_none() {
        dial.host = true;
    }
    let answer = match from {
        Some(Place { untouched: true, text }) => opted_out(explain, text),
        other => judge(explain, &live, &dial, other.map(|p| p.text))?,
    };
    print::show(explain.view.output, &answer, || text(&answer))?;
    Ok(ExitCode::SUCCESS)
}

fn parse(text: &str) -> anyhow::Result<Dial> {
    let wrong = || anyhow!("{text:?} is not ADDRESS:PORT/PROTOCOL, such as 10.96.0.10:53/UDP or [fd00::1]:80/TCP");
    let (target, protocol) = text.rsplit_once('/').unwrap_or((text, "TCP"));
    let (address, port) = target.rsplit_once(':').ok_or_else(wrong)?;
    let address = address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(address);
    let protocol: Protocol = protocol.parse().map_err(|e| anyhow!("{e}"))?;
    let port = port.parse().map_err(|_| wrong())?;
    Ok(Dial::to(Address::from(parse_ip(address).map_err(|_| wrong())?), port, protocol))
}

struct Place {
    untouched: bool,
    text: String,
}

/// Where the dialler stands: its network namespace and its cgroup.
fn place(from: &str, live: &Live, dial: &mut Dial) -> anyhow::Result<Place> {
    let (path, text) = match from.parse::<u32>() {
        Ok(pid) => {
            let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
            let own = namespace(&pid.to_string());
            anyhow::ensure!(own.is_some(), "--from {pid}: there is no process {pid}");
            dial.host = own == namespace("1");
            (
                cgroup::of_process(pid)?,
                format!("process {pid}{}", if dial.host { ", on the host" } else { ", in a namespace of its own" }),
            )
        }
        Err(_) => (PathBuf::from(from), format!("cgroup {from}")),
    };
    let exempt = live.control()?.untouched();
    let above = path.ancestors().filter_map(|p| cgroup::id(p).ok());
    let untouched = !exempt.is_empty() && above.into_iter().any(|id| exempt.contains(&id));
    cgroup::id(&path).with_context(|| format!("--from {from}"))?;
    Ok(Place { untouched, text })
}

fn opted_out(explain: &Explain, from: String) -> Answer {
    Answer {
        dialled: explain.dial.clone(),
        from: Some(from),
        verdict: Action::Untouched,
        because: "this process is below a cgroup that is left alone (--untouched-cgroup)".into(),
        frontend: None,
        kind: None,
        service: None,
        rule: None,
        set: None,
        affinity_seconds: 0,
        backends: Vec::new(),
        endpoints: None,
    }
}

fn judge(explain: &Explain, live: &Live, dial: &Dial, from: Option<String>) -> anyhow::Result<Answer> {
    let verdict = resolve(&live.rows, dial, EmptyLocal::Refuse);
    let set = verdict.path.last().and_then(|id| live.rows.sets.get(*id));
    let owner = set.and_then(|s| live.port_name(s.owner));
    let endpoints = owner.as_ref().and_then(|owner| reasons(&explain.view, owner.to_text()));
    if verdict.found.is_none() && explain.view.output == crate::args::Output::Table && dial.port == 0 {
        return Err(NotFound("port 0 is nobody's".into()).into());
    }
    Ok(Answer {
        dialled: explain.dial.clone(),
        from,
        verdict: verdict.action,
        because: because(&verdict, dial),
        frontend: verdict.found.as_ref().map(|f| format!("{:?}", f.key)),
        kind: verdict.found.as_ref().map(|f| kind_name(f.kind)),
        service: owner.map(|o| o.to_string()),
        rule: set.map(|s| s.rule),
        set: set.map(|s| role_name(s.role).to_owned()),
        affinity_seconds: set.map_or(0, |s| s.header.affinity),
        backends: set.filter(|_| verdict.action == Action::Resolved).map(|s| backends_of(live, s)).unwrap_or_default(),
        endpoints,
    })
}

fn reasons(view: &View, owner: String) -> Option<Explained> {
    let answer = beeline_agent::ask(&view.place.socket, &Request::Explain { owner })?.ok()?;
    serde_json::from_value(answer).ok()
}

fn because(verdict: &Verdict, dial: &Dial) -> String {
    let known = verdict.path.last() == Some(&SET_CLOSED);
    match (verdict.action, verdict.reason) {
        (Action::Resolved, _) => "one of the backends below, at random; a client with affinity keeps its own".into(),
        (_, Reason::NoPort) if known => "this ClusterIP is known, and its Service has no such port".into(),
        (_, Reason::NoEndpoint) => {
            "the service has no endpoint that is ready, or that still serves while it terminates".into()
        }
        (_, Reason::NoLocal) => {
            "a Local policy holds, and no endpoint is on the node in question (--empty-local)".into()
        }
        (_, Reason::SourceDenied) => "the dialler's address is outside loadBalancerSourceRanges".into(),
        (_, Reason::SourceUnknown) => {
            "loadBalancerSourceRanges hold, and where the dialler stands is not known: left to the packet path".into()
        }
        _ if !dial.protocol.has_hook() => "sockets of this protocol have no hook: the packet path's".into(),
        _ => "no frontend has this address, port and protocol: it is not a service".into(),
    }
}

fn text(a: &Answer) -> String {
    let verdict = match a.verdict {
        Action::Resolved => "resolved",
        Action::Refused => "refused (ECONNREFUSED)",
        Action::Untouched => "untouched",
    };
    let mut lines = vec![("dialled", a.dialled.clone()), ("verdict", format!("{verdict}: {}", a.because))];
    lines.extend(a.from.clone().map(|from| ("from", from)));
    if let (Some(frontend), Some(kind)) = (&a.frontend, a.kind) {
        lines.push(("frontend", format!("{frontend}, {kind}")));
    }
    lines.extend(a.service.clone().map(|s| ("service", s)));
    if let Some(set) = &a.set {
        let affinity =
            if a.affinity_seconds > 0 { format!("; affinity {} s", a.affinity_seconds) } else { String::new() };
        lines.push(("set", format!("{set}, {} backends{affinity}", a.backends.len())));
    }
    let mut text: String = lines.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect();
    text.extend(a.backends.iter().map(|b| format!("{:<10} -> {b}\n", "")));
    match (&a.endpoints, &a.service) {
        (Some(explained), _) => text.push_str(&endpoints(explained)),
        (None, Some(_)) => text.push_str("\nno agent runs: why each endpoint is in or out is not known\n"),
        _ => {}
    }
    text
}

fn endpoints(explained: &Explained) -> String {
    let mut text =
        format!("\npolicies   internal {}, external {}\n", explained.internal_policy, explained.external_policy);
    for family in &explained.families {
        text.push_str(&format!("\n{} endpoints; topology {}\n", family.family, family.topology));
        let yes = |is: bool| if is { "yes" } else { "-" }.to_owned();
        let rows: Vec<Vec<String>> = family
            .endpoints
            .iter()
            .map(|e| {
                let at = format!("{} {}", e.address, e.port);
                let node = print::dash(e.node.as_ref());
                vec![at, node, e.conditions.clone(), yes(e.in_cluster_set), yes(e.in_local_set), e.why.clone()]
            })
            .collect();
        text.push_str(&print::table(&["ENDPOINT", "NODE", "CONDITIONS", "CLUSTER SET", "LOCAL SET", "WHY"], &rows));
    }
    text
}
