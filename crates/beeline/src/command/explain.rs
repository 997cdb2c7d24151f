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
use beeline_model::policy::Limit;
use beeline_model::resolve::{Dial, Verdict, resolve};
use beeline_model::row::{Rule, SET_CLOSED, SET_NONE, SetId, SetRow};
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
    /// Who was asked in turn, and who would have been next.
    order: Vec<Step>,
    /// Policies about this address that have no part in it, from the agent.
    passed_over: Vec<PassedOver>,
    /// From the agent; absent where none runs.
    endpoints: Option<Explained>,
}

/// One set in the order: redirect, balancing, service.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    owner: String,
    rule: Rule,
    backends: usize,
    limit: Option<Limit>,
    outcome: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PassedOver {
    policy: String,
    why: String,
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
    dial.cgroups = above.collect();
    let untouched = !exempt.is_empty() && dial.cgroups.iter().any(|id| exempt.contains(id));
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
        order: Vec::new(),
        passed_over: Vec::new(),
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
        order: order(live, &verdict, dial),
        passed_over: passed_over(&explain.view, live, &verdict, dial),
        service: owner.map(|o| o.to_string()),
        rule: set.map(|s| s.rule),
        set: set.map(|s| role_name(s.role).to_owned()),
        affinity_seconds: set.map_or(0, |s| s.header.affinity),
        backends: set.filter(|_| verdict.action == Action::Resolved).map(|s| backends_of(live, s)).unwrap_or_default(),
        endpoints,
    })
}

/// From the frontend's own set down the links, further than this dial came.
fn order(live: &Live, verdict: &Verdict, dial: &Dial) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut id = verdict.found.as_ref().map_or(SET_NONE, |found| found.set);
    while let Some(set) = live.rows.sets.get(id) {
        let limit = live.rows.buckets.get(&set.header.policy).copied().filter(|_| set.header.limited);
        let backends = live.rows.members(set).len();
        let outcome = outcome(live, verdict, dial, id, set);
        steps.push(Step { owner: live.owner_text(set.owner), rule: set.rule, backends, limit, outcome });
        id = set.header.next;
    }
    steps
}

fn outcome(live: &Live, verdict: &Verdict, dial: &Dial, id: SetId, set: &SetRow) -> String {
    let itself = |cgroup: &u64| live.rows.selected.contains(&(set.header.policy, *cgroup));
    let last = verdict.path.last() == Some(&id);
    match verdict.action {
        _ if !verdict.path.contains(&id) => "not asked".into(),
        Action::Resolved if last => "one of its backends is picked".into(),
        _ if set.header.self_next && dial.cgroups.iter().any(itself) => {
            "passed over: the dialler is a pod that it selects".into()
        }
        _ if verdict.limited == Some(id) => "passed over: over its limit".into(),
        _ if last => "it decides: see the verdict".into(),
        _ => "passed over: it has no backend now".into(),
    }
}

/// Not accepted, not for this node, or not the older one of its kind.
fn passed_over(view: &View, live: &Live, verdict: &Verdict, dial: &Dial) -> Vec<PassedOver> {
    let Ok(states) = super::policies::ask(view) else { return Vec::new() };
    let owners: Vec<_> = chain(live, verdict).filter_map(|set| live.port_name(set.owner)).map(|n| n.service).collect();
    let service = owners.iter().find(|owner| owner.policy_kind().is_none()).map(|owner| format!("Service {owner}"));
    let mut found = Vec::new();
    for state in &states {
        let target = state["target"].as_str().unwrap_or_default();
        let policy = super::policies::name(state);
        let about = target == dial.address.to_string() || service.as_deref() == Some(target);
        if about && !owners.iter().any(|owner| owner.to_string() == policy) {
            let why = super::policies::why_not(state);
            found.push(PassedOver { policy, why });
        }
    }
    found
}

fn chain<'a>(live: &'a Live, verdict: &Verdict) -> impl Iterator<Item = &'a SetRow> {
    let first = verdict.found.as_ref().and_then(|found| live.rows.sets.get(found.set));
    std::iter::successors(first, |set| live.rows.sets.get(set.header.next))
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
        (_, Reason::SelfDial) => {
            "the dialler is a pod that the policy selects, and nothing comes after the policy".into()
        }
        (_, Reason::Limited) => "over the policy's limit, and nothing comes after the policy".into(),
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
    text.push_str(&in_order(a));
    match (&a.endpoints, &a.service) {
        (Some(explained), _) => text.push_str(&endpoints(explained)),
        (None, Some(_)) if a.rule == Some(Rule::Service) => {
            text.push_str("\nno agent runs: why each endpoint is in or out is not known\n")
        }
        _ => {}
    }
    text
}

fn in_order(a: &Answer) -> String {
    let mut text = String::new();
    if a.order.iter().any(|step| step.rule != Rule::Service) {
        let limit = |limit: &Limit| format!("{}/s, burst {}", limit.connects_per_second, limit.burst);
        let row = |step: &Step| {
            let limit = print::dash(step.limit.as_ref().map(limit));
            vec![step.owner.clone(), step.backends.to_string(), limit, step.outcome.clone()]
        };
        let rows: Vec<Vec<String>> = a.order.iter().map(row).collect();
        text = format!("\n{}", print::table(&["ASKED IN TURN", "BACKENDS", "LIMIT", "OUTCOME"], &rows));
    }
    let passed = a.passed_over.iter().map(|p| format!("has no part: {}: {}\n", p.policy, p.why));
    text.extend(passed);
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
