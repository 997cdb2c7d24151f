//! `beeline explain`: how a dial is resolved and why, from the live tables, by the resolver that the tests compare with the
//! kernel's. A running agent adds why each endpoint is in a set or not.

mod client;
mod destination;
mod reason;
mod text;

use super::policies::why_empty;
use super::services::{kind_name, role_name};
use super::{NotFound, usage};
use crate::args::{ExplainArgs, OutputFormat};
use crate::live_tables::{LiveTables, pin_dir};
use crate::print;
use crate::views::ViewNames;
use anyhow::anyhow;
use beeline_api::{AgentClient, AgentStatus, ClientError, PolicyQuery, PolicyReport, ServiceExplanation};
use beeline_datapath::bucket::BucketLevels;
use beeline_datapath::control::monotonic;
use beeline_datapath::suspension::SuspensionMap;
use beeline_model::Address;
use beeline_model::PortName;
use beeline_model::bucket::BucketLevel;
use beeline_model::event::{Action, Reason};
use beeline_model::policy::Limit;
use beeline_model::resolve::{Dial, Verdict, resolve, resolve_with};
use beeline_model::resolve_packet::{PacketAction, PacketVerdict, is_masqueraded, resolve_packet};
use beeline_model::row::{
    BackendRow, FrontendKey, FrontendKind, OwnerId, PolicyId, Rule, SET_CLOSED, SET_NONE, SetId, SetRow,
};
use beeline_model::rules::NoLocalEndpointAction;
use client::{ExplainClient, PacketClient};
use destination::Destination;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::ExitCode;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DialExplanation {
    dialled: String,
    from: Option<String>,
    /// The name of the client's view. `None`: the client has no view.
    view: Option<String>,
    /// The cluster of the service.
    cluster: Option<String>,
    verdict: Action,
    because: String,
    /// `--from ADDRESS`: what happens to the packet. `None` for a dial of a process.
    packet: Option<String>,
    frontend: Option<String>,
    kind: Option<&'static str>,
    service: Option<String>,
    rule: Option<Rule>,
    set: Option<String>,
    affinity_seconds: u32,
    backends: Vec<String>,
    /// The sets of the frontend, in the order in which they are tried.
    order: Vec<SetStep>,
    /// Policies for this address or Service that are not used for this dial. Empty without an agent.
    skipped_policies: Vec<SkippedPolicy>,
    /// `None` without an agent.
    endpoints: Option<ServiceExplanation>,
}

impl DialExplanation {
    /// The explanation of a dial that is left unchanged before any table is read.
    fn untouched(dialled: &str, from: Option<String>, because: String) -> DialExplanation {
        DialExplanation {
            dialled: dialled.to_owned(),
            from,
            view: None,
            cluster: None,
            verdict: Action::Untouched,
            because,
            packet: None,
            frontend: None,
            kind: None,
            service: None,
            rule: None,
            set: None,
            affinity_seconds: 0,
            backends: Vec::new(),
            order: Vec::new(),
            skipped_policies: Vec::new(),
            endpoints: None,
        }
    }
}

/// One set of the order: redirect, balancing, service.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SetStep {
    owner: String,
    rule: Rule,
    backends: usize,
    limit: Option<Limit>,
    /// Tokens left in the bucket of the limit.
    tokens: Option<u64>,
    outcome: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SkippedPolicy {
    policy: String,
    why: String,
}

pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let destination: Destination = args.dial.parse().map_err(usage)?;
    let agent = Agent::new(args);
    let source = args.from.as_deref().and_then(|from| from.parse::<IpAddr>().ok());
    let process = args.from.as_deref().filter(|_| source.is_none());
    let location = process.map(|from| client::locate(from, &agent.client)).transpose()?;
    let tables = LiveTables::open(&pin_dir(&args.query.paths, agent.status.as_ref().ok()))?;
    let mut client = match (source, location) {
        (Some(source), _) => ExplainClient::packet(source.into(), &tables)?,
        (None, Some(location)) => ExplainClient::new(location, &tables, &agent)?,
        (None, None) => ExplainClient::host(),
    };
    if let Some(name) = &args.view {
        client.view = agent.view_number(name)?;
    }
    let explainer = Explainer { tables: &tables, agent: &agent, client: &client };
    let dials = destination.dials(&tables, client.view, &agent.views)?;
    let explanations: Vec<DialExplanation> =
        dials.iter().map(|(text, dial)| explainer.explain(text, dial)).collect::<anyhow::Result<_>>()?;
    write(args.query.output, &explanations)?;
    Ok(ExitCode::SUCCESS)
}

/// A service with several ports has several explanations, which are a list in JSON and YAML.
fn write(output: OutputFormat, explanations: &[DialExplanation]) -> anyhow::Result<()> {
    let table = || explanations.iter().map(text::explanation).collect::<Vec<_>>().join("\n");
    match explanations {
        [one] => print::write(output, one, table),
        several => print::write(output, &several, table),
    }
}

/// What only a running agent knows.
struct Agent {
    client: AgentClient,
    status: Result<AgentStatus, ClientError>,
    views: ViewNames,
}

impl Agent {
    fn new(args: &ExplainArgs) -> Agent {
        let client = AgentClient::new(&args.query.paths.socket);
        let status = client.status();
        let views = status.as_ref().map(ViewNames::new).unwrap_or_default();
        Agent { client, status, views }
    }

    fn no_local_endpoint_action(&self) -> NoLocalEndpointAction {
        self.status.as_ref().map(|status| status.kernel.no_local_endpoint_action).unwrap_or_default()
    }

    fn view_number(&self, name: &str) -> anyhow::Result<u32> {
        if let Err(error) = &self.status {
            return Err(anyhow!("--view {name}: only the agent knows the names of views: {error}"));
        }
        let known: Vec<&str> = self.views.names().collect();
        let known = if known.is_empty() { "the agent has none".to_owned() } else { known.join(", ") };
        self.views.number(name).ok_or_else(|| anyhow!("--view {name}: there is no such view; views: {known}"))
    }
}

struct Explainer<'a> {
    tables: &'a LiveTables,
    agent: &'a Agent,
    client: &'a ExplainClient,
}

impl Explainer<'_> {
    fn explain(&self, dialled: &str, dial: &Dial) -> anyhow::Result<DialExplanation> {
        let from = self.client.text.clone();
        if let Some(because) = self.client.excluded.clone() {
            return Ok(DialExplanation::untouched(dialled, from, because));
        }
        // An agent of an older version has no such map.
        let suspended = SuspensionMap::new(&self.tables.maps).map(|map| map.suspended()).unwrap_or_default();
        let dial = &Dial { now: monotonic(), suspended, ..self.client.dial(dial) };
        let levels = self.bucket_levels(&resolve(&self.tables.rows, dial, self.agent.no_local_endpoint_action()))?;
        let mut buckets = levels.iter().map(|(policy, level)| (*policy, *level)).collect();
        let packet = self
            .client
            .packet
            .map(|client| (client, resolve_packet(&self.tables.rows, dial, client.origin, &mut buckets)));
        let verdict = match &packet {
            Some((_, packet)) => packet.verdict.clone(),
            None => resolve_with(&self.tables.rows, dial, self.agent.no_local_endpoint_action(), &mut buckets),
        };
        if verdict.found.is_none() && dial.port == 0 {
            return Err(NotFound("port 0 is not a destination port".into()).into());
        }
        let policies = self.policies(&verdict, dial);
        let set = verdict.path.last().and_then(|id| self.tables.rows.sets.get(*id));
        let owner = set.and_then(|set| self.tables.port_name(set.owner));
        let endpoints = owner.as_ref().and_then(|owner| self.agent.client.explain(owner.to_text()).ok().flatten());
        let is_resolved = verdict.action == Action::Resolved;
        Ok(DialExplanation {
            dialled: dialled.to_owned(),
            from,
            view: self.agent.views.label(dial.view),
            packet: packet.map(|(client, packet)| self.packet(client, &packet)),
            cluster: match &owner {
                Some(owner) => Some(owner.service.cluster().to_owned()),
                None => verdict.found.as_ref().and_then(|f| self.tables.cluster_at(f.key.address, f.key.view)),
            },
            verdict: verdict.action,
            because: self.because(&verdict, dial, endpoints.as_ref(), &policies),
            frontend: verdict.found.as_ref().map(|f| format!("{:?}", FrontendKey { view: 0, ..f.key })),
            kind: verdict.found.as_ref().map(|f| kind_name(f.kind)),
            order: self.order(&verdict, dial, &levels, &policies),
            skipped_policies: self.skipped_policies(&verdict, dial, &policies),
            service: owner.map(|owner| owner.to_string()),
            rule: set.map(|set| set.rule),
            set: set.map(|set| role_name(set.role).to_owned()),
            affinity_seconds: set.map_or(0, |set| set.header.affinity),
            backends: set.filter(|_| is_resolved).map(|set| self.tables.backends_of(set)).unwrap_or_default(),
            endpoints,
        })
    }

    /// What happens to a packet.
    fn packet(&self, client: PacketClient, packet: &PacketVerdict) -> String {
        let status = self.agent.status.as_ref().ok();
        if status.is_some_and(|status| status.packet_path.is_none()) {
            return "the packet path is off (--packet-path): kube-proxy or nothing serves this packet".into();
        }
        let own = |address: Address| status.is_some_and(|status| status.node_addresses.contains(&address.to_string()));
        let rows = packet.verdict.backends.iter().filter_map(|id| self.tables.rows.backends.get(*id));
        let masqueraded = |row: &BackendRow| {
            let backend = (row.address, own(row.address));
            is_masqueraded(packet, (client.source, client.origin), client.rules, backend)
        };
        let replaced = rows.clone().filter(|row| masqueraded(row)).count();
        match packet.action {
            PacketAction::Pass => "not translated".into(),
            PacketAction::Drop => "dropped: the client gets no answer".into(),
            PacketAction::Reject => "rejected: the client sees a refused connection".into(),
            PacketAction::Translate if replaced == 0 => format!("translated; the backend sees {}", client.source),
            PacketAction::Translate if replaced == rows.count() => {
                "translated; the backend sees the node's address".into()
            }
            PacketAction::Translate => {
                format!(
                    "translated; the backend sees {}, or the node's address, depending on the backend",
                    client.source
                )
            }
        }
    }

    fn because(
        &self,
        verdict: &Verdict,
        dial: &Dial,
        endpoints: Option<&ServiceExplanation>,
        policies: &[PolicyReport],
    ) -> String {
        let no_endpoint = verdict.action != Action::Resolved && verdict.reason == Reason::NoEndpoint;
        let unreachable = endpoints.filter(|_| no_endpoint).and_then(|endpoints| reason::unreachable(dial, endpoints));
        let closed = verdict.found.as_ref().filter(|_| verdict.reason == Reason::NoPort);
        let closed = closed.and_then(|found| reason::closed_port(self.tables, &found.key));
        let unknown = || verdict.found.is_none().then(|| self.not_a_frontend(dial)).flatten();
        let affinity =
            verdict.path.last().and_then(|id| self.tables.rows.sets.get(*id)).map_or(0, |s| s.header.affinity);
        let owner = verdict.path.last().and_then(|id| self.tables.rows.sets.get(*id)).map(|set| set.owner);
        let policy = owner.filter(|_| no_endpoint).and_then(|owner| self.report_of(owner, policies));
        let policy = policy.map(|report| format!("{} has no backend: {}", report.title(), why_empty(report)));
        let explained = unreachable.or(closed).or(policy).or_else(unknown);
        explained.unwrap_or_else(|| reason::because(verdict, dial, affinity))
    }

    /// The policies for the dialled address or its Service. Empty without an agent.
    fn policies(&self, verdict: &Verdict, dial: &Dial) -> Vec<PolicyReport> {
        let owners = self.chain(verdict).filter_map(|set| self.tables.port_name(set.owner));
        let owner = owners.filter(|owner| owner.service.policy_kind().is_none()).map(|owner| owner.to_text()).next();
        let query = PolicyQuery { address: Some(dial.address.ip()), owner, name: None };
        self.agent.client.policies(query).unwrap_or_default()
    }

    /// The report of the policy that owns a set.
    fn report_of<'r>(&self, owner: OwnerId, policies: &'r [PolicyReport]) -> Option<&'r PolicyReport> {
        let owner = self.tables.port_name(owner)?;
        policies.iter().find(|report| owner.service.to_string() == report.title())
    }

    /// Why an address that looks like a service's has no frontend.
    fn not_a_frontend(&self, dial: &Dial) -> Option<String> {
        let pending = self.agent.client.explain_address(dial.address.ip()).unwrap_or_default();
        let view = self.agent.views.label(dial.view);
        let pending = pending.iter().find(|pending| pending.view == view).map(reason::pending);
        pending.or_else(|| reason::not_a_node_port(self.tables, dial))
    }

    fn chain(&self, verdict: &Verdict) -> impl Iterator<Item = &SetRow> {
        self.tables.chain(verdict.found.as_ref().map_or(SET_NONE, |found| found.set))
    }

    /// The kernel's token buckets of the limits in the chain.
    fn bucket_levels(&self, verdict: &Verdict) -> anyhow::Result<BTreeMap<PolicyId, BucketLevel>> {
        let limited = self.chain(verdict).filter(|set| set.header.limited).map(|set| set.header.policy);
        let levels = BucketLevels::new(&self.tables.maps)?;
        limited.map(|policy| anyhow::Ok((policy, levels.of(policy)?))).collect()
    }

    /// The whole chain, also the sets that this dial does not reach.
    fn order(
        &self,
        verdict: &Verdict,
        dial: &Dial,
        levels: &BTreeMap<PolicyId, BucketLevel>,
        policies: &[PolicyReport],
    ) -> Vec<SetStep> {
        let mut id = verdict.found.as_ref().map_or(SET_NONE, |found| found.set);
        let mut steps = Vec::new();
        for set in self.chain(verdict) {
            let limit = self.tables.rows.buckets.get(&set.header.policy).copied().filter(|_| set.header.limited);
            let level = levels.get(&set.header.policy).copied().unwrap_or_default();
            steps.push(SetStep {
                owner: self.tables.owner_text(set.owner),
                rule: set.rule,
                backends: self.tables.rows.members(set).len(),
                limit,
                tokens: limit.map(|limit| level.tokens_at(dial.now, limit)),
                outcome: self.outcome(verdict, dial, id, set, self.report_of(set.owner, policies)),
            });
            id = set.header.next;
        }
        steps
    }

    fn outcome(
        &self,
        verdict: &Verdict,
        dial: &Dial,
        id: SetId,
        set: &SetRow,
        policy: Option<&PolicyReport>,
    ) -> String {
        let is_member = |cgroup: &u64| self.tables.rows.selected.contains(&(set.header.policy, *cgroup));
        let decides = verdict.path.last() == Some(&id);
        match verdict.action {
            _ if !verdict.path.contains(&id) => "not reached".into(),
            Action::Resolved if decides => "one of its backends is picked".into(),
            _ if set.header.self_next && dial.cgroups.iter().any(is_member) => {
                "skipped: the client is a pod that the policy selects".into()
            }
            _ if verdict.limited == Some(id) => "skipped: over its limit".into(),
            _ if self.is_suspended(dial, set) => "skipped: its backend refuses connections".into(),
            _ if decides => "decides: see the verdict".into(),
            _ => match policy {
                Some(report) => format!("skipped: no backend: {}", why_empty(report)),
                None => "skipped: no backend".into(),
            },
        }
    }

    fn is_suspended(&self, dial: &Dial, set: &SetRow) -> bool {
        let backends = self.tables.rows.members(set).iter().filter_map(|id| self.tables.rows.backends.get(*id));
        let mut backends = backends.map(|row| (row.address, row.port)).peekable();
        set.rule == Rule::Redirect && backends.peek().is_some() && backends.all(|at| dial.suspended.contains(&at))
    }

    fn skipped_policies(&self, verdict: &Verdict, dial: &Dial, policies: &[PolicyReport]) -> Vec<SkippedPolicy> {
        let owners: Vec<PortName> = self.chain(verdict).filter_map(|set| self.tables.port_name(set.owner)).collect();
        let is_in_chain =
            |report: &&PolicyReport| owners.iter().any(|owner| owner.service.to_string() == report.title());
        let skipped =
            |report: &PolicyReport| SkippedPolicy { policy: report.title(), why: why_skipped(report, verdict, dial) };
        policies.iter().filter(|report| !is_in_chain(report)).map(skipped).collect()
    }
}

fn why_skipped(report: &PolicyReport, verdict: &Verdict, dial: &Dial) -> String {
    let is_closed = verdict.path.last() == Some(&SET_CLOSED);
    let dialled = format!("{}/{}", dial.port, dial.protocol);
    // A policy without ports applies to those that its Service has; a closed port is not one of them.
    let is_its_port = report.ports.as_ref().map_or(!is_closed, |ports| ports.contains(&dialled));
    match verdict.found.as_ref().map(|found| found.kind) {
        Some(FrontendKind::NodePort | FrontendKind::LoadBalancer | FrontendKind::ExternalIp) => {
            "it applies to ClusterIPs only".into()
        }
        _ if !is_its_port => "it applies to other ports".into(),
        _ => super::policies::why_unused(report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::policies::tests::{refusal, report};
    use beeline_model::resolve::FrontendMatch;
    use beeline_model::row::Rows;
    use beeline_model::{Address, Protocol};

    #[test]
    fn a_policy_that_is_not_used_is_listed_with_its_reason() {
        let dial = Dial::to(Address::from("10.96.0.10".parse::<std::net::IpAddr>().unwrap()), 80, Protocol::Tcp);
        let why = |kind, set, ports: Option<&[&str]>, refused: Option<&str>| {
            let key = FrontendKey::new(dial.address, dial.port, dial.protocol);
            let found = FrontendMatch { key, set, kind, foreign: false };
            let nothing = resolve(&Rows::default(), &dial, NoLocalEndpointAction::Refuse);
            let verdict = Verdict { found: Some(found), path: vec![set], ..nothing };
            let ports = ports.map(|ports| ports.iter().map(ToString::to_string).collect());
            why_skipped(&PolicyReport { ports, refused: refused.map(refusal), ..report() }, &verdict, &dial)
        };
        assert_eq!(why(FrontendKind::ClusterIp, 7, Some(&["443/TCP"]), None), "it applies to other ports");
        assert_eq!(why(FrontendKind::NodePort, 7, None, None), "it applies to ClusterIPs only");
        assert_eq!(why(FrontendKind::LoadBalancer, 7, None, None), "it applies to ClusterIPs only");
        assert_eq!(why(FrontendKind::ClusterIp, SET_CLOSED, None, None), "it applies to other ports");
        let missing = Some("Service a/web has no port 80/TCP");
        let closed = why(FrontendKind::ClusterIp, SET_CLOSED, Some(&["80/TCP"]), missing);
        assert_eq!(closed, "not accepted: Service a/web has no port 80/TCP");
    }
}
