//! `beeline explain`: what one dial would become and why, from the live tables, by the resolver that the tests use.

use super::NotFound;
use super::services::{backends_of, kind_name, role_name};
use crate::args::{Explain, View};
use crate::live::Live;
use crate::print;
use crate::views;
use anyhow::{Context, anyhow};
use beeline_agent::explain::Explained;
use beeline_agent::status::{About, Request};
use beeline_datapath::cgroup;
use beeline_datapath::control::{CgroupRule, monotonic};
use beeline_datapath::level::Levels;
use beeline_model::address::parse_ip;
use beeline_model::bucket::Level;
use beeline_model::event::{Action, Reason};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::policy::Limit;
use beeline_model::resolve::{Dial, LINKS, Verdict, resolve, resolve_with};
use beeline_model::row::{FrontendKey, Kind, PolicyId, Rule, SET_CLOSED, SET_NONE, SetId, SetRow};
use beeline_model::rules::EmptyLocal;
use beeline_model::{Address, PortName, Protocol};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    dialled: String,
    from: Option<String>,
    /// Where it is not everybody's.
    view: Option<String>,
    /// Whose service it is.
    cluster: Option<String>,
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
    /// What is left in the limit's bucket.
    tokens: Option<u64>,
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
    let agent = Agent::ask(&explain.view);
    let from = explain.from.as_deref().map(|from| place(from, &live, &agent, &mut dial)).transpose()?;
    if from.is_none() {
        dial.host = true;
    }
    if let Some(name) = &explain.seen {
        dial.view = agent.view_number(&explain.view, name)?;
    }
    let answer = match from {
        Some(Place { untouched: Some(why), text }) => opted_out(explain, text, why),
        other => judge(explain, &live, &agent, &dial, other.map(|p| p.text))?,
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

/// What only a running agent knows.
struct Agent {
    /// The cgroup that it serves.
    cgroup: Option<PathBuf>,
    empty_local: EmptyLocal,
    /// `None`: no agent answers.
    views: Option<BTreeMap<u32, String>>,
}

impl Agent {
    fn ask(view: &View) -> Agent {
        let answer = beeline_agent::ask(&view.place.socket, &Request::Status).and_then(Result::ok);
        let (views, status) = (answer.as_ref().map(views::of), answer.unwrap_or_default());
        let drops = status["kernel"]["emptyLocal"] == "drop";
        Agent {
            cgroup: status["kernel"]["cgroup"].as_str().map(PathBuf::from),
            empty_local: if drops { EmptyLocal::Drop } else { EmptyLocal::Refuse },
            views,
        }
    }

    fn view_number(&self, view: &View, name: &str) -> anyhow::Result<u32> {
        let socket = view.place.socket.display();
        let all = self.views.as_ref();
        let all = all.ok_or_else(|| anyhow!("no agent answers at {socket}: only it knows of views (--socket)"))?;
        let known: Vec<&str> = all.values().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let found = all.iter().find(|(_, known)| *known == name).map(|(number, _)| *number);
        found.ok_or_else(|| anyhow!("there is no view {name}: known are {known}"))
    }

    /// Its number, where nobody knows its name.
    fn view_name(&self, number: u32) -> Option<String> {
        (number != 0).then(|| views::shown(self.views.as_ref().unwrap_or(&BTreeMap::new()), number))
    }
}

struct Place {
    /// Why nothing is done for it, where that is so.
    untouched: Option<String>,
    text: String,
}

/// Where the dialler stands: its network namespace and its cgroup.
fn place(from: &str, live: &Live, agent: &Agent, dial: &mut Dial) -> anyhow::Result<Place> {
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
    let rules = live.control()?.rules();
    let above = path.ancestors().filter_map(|p| cgroup::id(p).ok());
    dial.cgroups = above.collect();
    // From the dialler upwards: the first view is the one that holds.
    let found: Vec<CgroupRule> = dial.cgroups.iter().filter_map(|id| rules.get(id)).copied().collect();
    let opted_out = "this process is below a cgroup that is left alone (--untouched-cgroup, or its pod asks for that, or for a \
                     view that there is not: `beeline status`)";
    let opted_out = found.iter().any(|rule| rule.untouched).then(|| opted_out.to_owned());
    dial.view = found.first().map_or(0, |rule| rule.view);
    cgroup::id(&path).with_context(|| format!("--from {from}"))?;
    // By id: in a container the agent and we may see the same cgroup at different paths.
    let is_beside = |served: &&PathBuf| cgroup::id(served).is_ok_and(|id| !dial.cgroups.contains(&id));
    let beside = agent.cgroup.as_ref().filter(is_beside);
    let beside = beside.map(|served| format!("this process is not below {}, which the agent serves", served.display()));
    Ok(Place { untouched: beside.or(opted_out), text })
}

/// Whose an address is, also where its Service does not have the port.
fn holder(live: &Live, at: (Address, u32)) -> Option<String> {
    live.holders().find(|(held, _)| *held == at).map(|(_, cluster)| cluster)
}

/// What is there instead.
fn closed_port(live: &Live, at: &FrontendKey) -> Option<String> {
    let here = live.rows.frontends.iter().filter(|(key, _)| (key.address, key.view) == (at.address, at.view));
    let mut ports: Vec<(String, u16, Protocol)> = here
        .filter_map(|(key, row)| {
            let owner = live.port_name(live.rows.sets.get(row.set)?.owner)?;
            Some((format!("{}/{}", owner.service.namespace(), owner.service.name()), key.port, key.protocol?))
        })
        .collect();
    ports.sort();
    let service = ports.first()?.0.clone();
    let all: Vec<String> = ports.iter().map(|(_, port, protocol)| format!("{port}/{protocol}")).collect();
    Some(format!("this is the ClusterIP of {service}, which has {} and no such port", all.join(", ")))
}

fn opted_out(explain: &Explain, from: String, because: String) -> Answer {
    Answer {
        dialled: explain.dial.clone(),
        from: Some(from),
        view: None,
        cluster: None,
        verdict: Action::Untouched,
        because,
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

fn judge(explain: &Explain, live: &Live, agent: &Agent, dial: &Dial, from: Option<String>) -> anyhow::Result<Answer> {
    let dial = &Dial { now: monotonic(), ..dial.clone() };
    let levels = levels(live, &resolve(&live.rows, dial, agent.empty_local))?;
    let mut buckets = levels.iter().map(|(policy, level)| (*policy, *level)).collect();
    let verdict = resolve_with(&live.rows, dial, agent.empty_local, &mut buckets);
    let set = verdict.path.last().and_then(|id| live.rows.sets.get(*id));
    let owner = set.and_then(|s| live.port_name(s.owner));
    let endpoints = owner.as_ref().and_then(|owner| reasons(&explain.view, owner.to_text()));
    if verdict.found.is_none() && explain.view.output == crate::args::Output::Table && dial.port == 0 {
        return Err(NotFound("port 0 is nobody's".into()).into());
    }
    let none = verdict.action != Action::Resolved && verdict.reason == Reason::NoEndpoint;
    let closed = verdict.found.as_ref().filter(|_| verdict.reason == Reason::NoPort);
    let closed = closed.and_then(|found| closed_port(live, &found.key));
    let astray = endpoints.as_ref().filter(|_| none).and_then(|explained| unreachable(dial, explained));
    Ok(Answer {
        dialled: explain.dial.clone(),
        from,
        view: agent.view_name(dial.view),
        cluster: match &owner {
            Some(owner) => Some(owner.service.cluster().to_owned()),
            None => verdict.found.as_ref().and_then(|found| holder(live, (found.key.address, found.key.view))),
        },
        verdict: verdict.action,
        because: astray.or(closed).unwrap_or_else(|| because(&verdict, dial)),
        frontend: verdict.found.as_ref().map(|f| format!("{:?}", FrontendKey { view: 0, ..f.key })),
        kind: verdict.found.as_ref().map(|f| kind_name(f.kind)),
        order: order(live, &verdict, dial, &levels),
        passed_over: passed_over(&explain.view, live, &verdict, dial),
        service: owner.map(|o| o.to_string()),
        rule: set.map(|s| s.rule),
        set: set.map(|s| role_name(s.role).to_owned()),
        affinity_seconds: set.map_or(0, |s| s.header.affinity),
        backends: set.filter(|_| verdict.action == Action::Resolved).map(|s| backends_of(live, s)).unwrap_or_default(),
        endpoints,
    })
}

/// What the buckets on the way hold in the kernel.
fn levels(live: &Live, verdict: &Verdict) -> anyhow::Result<BTreeMap<PolicyId, Level>> {
    let limited = chain(live, verdict).filter(|set| set.header.limited).map(|set| set.header.policy);
    let levels = Levels::new(&live.maps)?;
    limited.map(|policy| anyhow::Ok((policy, levels.of(policy)?))).collect()
}

/// From the frontend's own set down the links, further than this dial came.
fn order(live: &Live, verdict: &Verdict, dial: &Dial, levels: &BTreeMap<PolicyId, Level>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut id = verdict.found.as_ref().map_or(SET_NONE, |found| found.set);
    // Rows of a kernel that somebody else may have written to: never round in circles.
    while let Some(set) = live.rows.sets.get(id).filter(|_| steps.len() < LINKS) {
        let limit = live.rows.buckets.get(&set.header.policy).copied().filter(|_| set.header.limited);
        let backends = live.rows.members(set).len();
        let level = levels.get(&set.header.policy).copied().unwrap_or_default();
        let tokens = limit.map(|limit| level.tokens_at(dial.now, limit));
        let outcome = outcome(live, verdict, dial, id, set);
        steps.push(Step { owner: live.owner_text(set.owner), rule: set.rule, backends, limit, tokens, outcome });
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

/// Not accepted, not for this node, not the older one of its kind, or about something else of this Service.
fn passed_over(view: &View, live: &Live, verdict: &Verdict, dial: &Dial) -> Vec<PassedOver> {
    let owners: Vec<PortName> = chain(live, verdict).filter_map(|set| live.port_name(set.owner)).collect();
    let owner = owners.iter().find(|owner| owner.service.policy_kind().is_none()).map(PortName::to_text);
    let about = About { address: Some(dial.address.to_string()), owner, name: None };
    let Ok(mut states) = super::policies::ask(view, about) else { return Vec::new() };
    states.retain(|state| !owners.iter().any(|owner| owner.service.to_string() == super::policies::name(state)));
    let passed =
        |state: &Value| PassedOver { policy: super::policies::name(state), why: why_passed(state, verdict, dial) };
    states.iter().map(passed).collect()
}

fn why_passed(state: &Value, verdict: &Verdict, dial: &Dial) -> String {
    let closed = verdict.path.last() == Some(&SET_CLOSED);
    let dialled = Value::from(format!("{}/{}", dial.port, dial.protocol));
    // Without ports it is about those that the Service has, and a closed one is not among them.
    let its_port = state["ports"].as_array().map_or(!closed, |ports| ports.contains(&dialled));
    match verdict.found.as_ref().map(|found| found.kind) {
        Some(Kind::NodePort | Kind::LoadBalancer | Kind::ExternalIp) => "it is about ClusterIPs only".into(),
        _ if !its_port => "it is about other ports".into(),
        _ => super::policies::why_not(state),
    }
}

fn chain<'a>(live: &'a Live, verdict: &Verdict) -> impl Iterator<Item = &'a SetRow> {
    let first = verdict.found.as_ref().and_then(|found| live.rows.sets.get(found.set));
    std::iter::successors(first, |set| live.rows.sets.get(set.header.next))
}

fn reasons(view: &View, owner: String) -> Option<Explained> {
    let answer = beeline_agent::ask(&view.place.socket, &Request::Explain { owner })?.ok()?;
    serde_json::from_value(answer).ok()
}

/// Endpoints are ready, and from where this host stands nothing leads to them.
fn unreachable(dial: &Dial, explained: &Explained) -> Option<String> {
    let family = dial.address.family().to_string();
    let its = explained.families.iter().filter(|one| one.family == family).flat_map(|one| &one.endpoints);
    its.filter(|one| one.in_cluster_set).filter_map(|one| one.way.clone()).find(|way| way.starts_with("unreachable"))
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
    lines.extend(a.view.clone().map(|view| ("view", view)));
    lines.extend(a.cluster.clone().filter(|name| name != LOCAL_CLUSTER).map(|cluster| ("cluster", cluster)));
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
        let row = |step: &Step| {
            let left = step.tokens.map_or_else(String::new, |tokens| format!(", {tokens} left"));
            let limit = |limit: &Limit| format!("{}/s, burst {}{left}", limit.connects_per_second, limit.burst);
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
    explained.notes.iter().for_each(|note| text.push_str(&format!("order      {note}\n")));
    for family in &explained.families {
        text.push_str(&format!("\n{} endpoints; topology {}\n", family.family, family.topology));
        let yes = |is: bool| if is { "yes" } else { "-" }.to_owned();
        let rows: Vec<Vec<String>> = family
            .endpoints
            .iter()
            .map(|e| {
                let at = format!("{} {}", e.address, e.port);
                let node = print::dash(e.node.as_ref());
                let why = e.way.as_ref().map_or_else(|| e.why.clone(), |way| format!("{}; {way}", e.why));
                vec![at, node, e.conditions.clone(), yes(e.in_cluster_set), yes(e.in_local_set), why]
            })
            .collect();
        text.push_str(&print::table(&["ENDPOINT", "NODE", "CONDITIONS", "CLUSTER SET", "LOCAL SET", "WHY"], &rows));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::row::{FrontendKey, Rows};
    use serde_json::json;

    /// A dial that met a frontend of this kind; `set`: where it ended.
    fn verdict(kind: Kind, set: SetId) -> (Verdict, Dial) {
        let dial = parse("10.96.0.10:80/TCP").unwrap();
        let key = FrontendKey::new(dial.address, dial.port, dial.protocol);
        let found = beeline_model::resolve::Found { key, set, kind, foreign: false };
        let nothing = resolve(&Rows::default(), &dial, EmptyLocal::Refuse);
        (Verdict { found: Some(found), path: vec![set], ..nothing }, dial)
    }

    #[test]
    fn a_policy_without_a_part_says_why() {
        let state = |ports: Value, refused: Value| {
            json!({ "kind": "Balancing", "namespace": "a", "name": "b", "standing": "here", "ports": ports,
                    "refused": refused, "frontends": [] })
        };
        let why = |kind, set, ports, refused| {
            let (verdict, dial) = verdict(kind, set);
            why_passed(&state(ports, refused), &verdict, &dial)
        };
        let missing = json!({ "message": "Service a/web has no port 80/TCP" });
        assert_eq!(why(Kind::ClusterIp, 7, json!(["443/TCP"]), Value::Null), "it is about other ports");
        assert_eq!(why(Kind::NodePort, 7, Value::Null, Value::Null), "it is about ClusterIPs only");
        assert_eq!(why(Kind::LoadBalancer, 7, Value::Null, Value::Null), "it is about ClusterIPs only");
        assert_eq!(why(Kind::ClusterIp, SET_CLOSED, Value::Null, Value::Null), "it is about other ports");
        let closed = why(Kind::ClusterIp, SET_CLOSED, json!(["80/TCP"]), missing);
        assert_eq!(closed, "not accepted: Service a/web has no port 80/TCP");
    }
    #[test]
    fn endpoints_that_nothing_leads_to_are_not_called_missing() {
        let endpoint = |address: &str, chosen: bool, way: Value| {
            json!({ "address": address, "port": 80, "node": null, "conditions": "", "inClusterSet": chosen,
                    "inLocalSet": false, "why": "", "way": way })
        };
        let said = |endpoints: Value, dial: &str| {
            let families = json!([{ "family": "IPv4", "topology": "", "endpoints": endpoints }]);
            let explained = json!({ "service": "", "cluster": "", "notes": [], "internalPolicy": "",
                                    "externalPolicy": "", "families": families });
            unreachable(&parse(dial).unwrap(), &serde_json::from_value(explained).unwrap())
        };
        let lost = "unreachable: no nodePort and pods not routed";
        let ready = endpoint("10.244.1.2", true, json!(lost));
        assert_eq!(said(json!([ready]), "10.96.0.10:80/TCP").as_deref(), Some(lost));
        assert_eq!(said(json!([ready]), "[fd00::1]:80/TCP"), None, "of the other family there is none");
        let unready = endpoint("10.244.1.2", false, json!(lost));
        assert_eq!(said(json!([unready]), "10.96.0.10:80/TCP"), None);
        assert_eq!(said(json!([endpoint("10.244.1.2", true, Value::Null)]), "10.96.0.10:80/TCP"), None, "on a Node");
    }
}
