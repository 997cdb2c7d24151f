//! `beeline plan`: what an agent would program for the objects of a directory, or for those that an API server has now.
//! The kernel is not changed.

use super::services::kind_name;
use super::{CHECK_FAILED, NotFound, usage};
use crate::args::PlanArgs;
use crate::live_tables::LiveTables;
use crate::options::Options;
use crate::print;
use anyhow::Context;
use beeline_agent::{ClusterSettings, ControllerMode, SourceSettings};
use beeline_api::PolicyReport;
use beeline_cluster::{ApiServerSource, FolderSource, Snapshot};
use beeline_model::diff::reconcile;
use beeline_model::node_port::NodePortAddresses;
use beeline_model::op::MemoryMaps;
use beeline_model::planner::Planner;
use beeline_model::planner::policy_state::PolicyState;
use beeline_model::policy::Limit;
use beeline_model::publish::{Publisher, UnknownNamespace};
use beeline_model::refusal::Refusal;
use beeline_model::row::{FrontendKind, Rows, SetRow, Sizes, WhenEmpty};
use beeline_model::rules::{HostRole, NoLocalEndpointAction};
use beeline_model::table::Tables;
use beeline_model::{Name, PortName};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Frontend {
    view: u32,
    address: String,
    port: u16,
    protocol: String,
    kind: &'static str,
    service: String,
    backends: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit>,
    when_empty: &'static str,
    /// The node addresses to which a NodePort row without an address of its own applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    node_addresses: Vec<String>,
    /// Addresses of other nodes at which the nodePort refuses: externalTrafficPolicy Local, and no endpoint there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refusing_node_addresses: Vec<String>,
    /// The same addresses where `--no-local-endpoint-action` leaves the dial unchanged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    untouched_node_addresses: Vec<String>,
    /// The sets that are used, in order, when this one has no backend.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    then: Vec<BackendSet>,
}

/// The backends of one owner, a policy or a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct BackendSet {
    owner: String,
    backends: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit>,
}

/// The names of views by their number in the rows.
type ViewNames = BTreeMap<u32, Name>;

struct PlanResult {
    frontends: Vec<Frontend>,
    views: ViewNames,
    policies: Vec<PolicyState>,
    refusals: Vec<Refusal>,
}

pub fn run(plan: PlanArgs) -> anyhow::Result<ExitCode> {
    let options = plan.options.load().map_err(usage)?;
    let PlanResult { frontends, views, policies, refusals } = compute(&options)?;
    if plan.diff {
        return diff(&options, &frontends, &views);
    }
    print::write(plan.output, &frontends, || table(&frontends, &views) + &policy_lines(&policies))?;
    for refusal in &refusals {
        let text = format!("refused: {}: {} ({})", refusal.subject, refusal.message, refusal.reason);
        print::err(print::escape(&text));
    }
    Ok(ExitCode::SUCCESS)
}

fn compute(options: &Options) -> anyhow::Result<PlanResult> {
    let rules = options.rules().map_err(usage)?;
    let mut snapshot = Snapshot::default();
    let mut refusals = Vec::new();
    let clusters = options.cluster_list().map_err(usage)?.clusters;
    for cluster in &clusters {
        let loaded = load(cluster).with_context(|| format!("cannot read cluster {}", cluster.rules.name))?;
        refusals.extend(loaded.refusals.clone());
        loaded.into_changes().into_iter().for_each(|change| snapshot.apply(change));
    }
    let (no_local_endpoint_action, is_node, node_name) =
        (rules.no_local_endpoint_action, rules.host_role == HostRole::Node, rules.node_name.clone());
    let mut planner = Planner::new(rules);
    let names: BTreeSet<Name> = clusters.iter().filter_map(|cluster| cluster.rules.view.clone()).collect();
    planner.set_views(names.clone());
    apply_all(&mut planner, snapshot, publisher(options, &clusters));
    let delta = planner.take_full_delta();
    refusals.extend(planner.refusals());
    // As in the agent: manifests without Nodes are complete, but with Nodes the own one is expected.
    if is_node && planner.nodes().next().is_some() && planner.own_node().is_none() {
        refusals.push(Refusal::node_not_found(node_name));
    }
    let sizes = Sizes::for_services(2_000_000);
    let (mut tables, mut memory) = (Tables::new(sizes), MemoryMaps::new(sizes));
    reconcile(&mut tables, &mut memory, &delta, true);
    let policies = planner.policies();
    let views = names.into_iter().filter_map(|name| Some((planner.view(&name)?, name))).collect();
    Ok(PlanResult { frontends: frontends(&memory.rows, no_local_endpoint_action), views, policies, refusals })
}

fn load(cluster: &ClusterSettings) -> anyhow::Result<Snapshot> {
    match cluster.source.clone() {
        SourceSettings::Folder { path, service_filter } => {
            Ok(FolderSource::new(path, &cluster.rules.name, service_filter).load()?)
        }
        SourceSettings::Server(server) => list(*server),
        #[cfg(feature = "outside")]
        SourceSettings::Edge(edge) => super::block_on(async { Ok(edge.load().await?) }),
    }
}

/// As in the agent: a publisher is needed only where no controller publishes the backends of policies.
fn publisher(options: &Options, clusters: &[ClusterSettings]) -> Option<Publisher> {
    let folders = clusters.iter().all(|cluster| matches!(cluster.source, SourceSettings::Folder { .. }));
    let unknown = if folders { UnknownNamespace::Unlabelled } else { UnknownNamespace::Pending };
    (options.controller() == ControllerMode::None).then(|| Publisher::new(unknown))
}

fn apply_all(planner: &mut Planner, snapshot: Snapshot, mut publisher: Option<Publisher>) {
    for change in snapshot.into_changes() {
        publisher.iter_mut().for_each(|publisher| publisher.apply(&change));
        planner.apply(change);
    }
    if let Some(mut publisher) = publisher {
        planner.set_self_publishing();
        publisher.take_changes().into_iter().for_each(|change| _ = planner.apply(change));
    }
    // On a node the kubelet creates the cgroup of each pod. For a plan any number will do.
    let pods: Vec<Box<str>> = planner.pods_needing_cgroup().map(|pod| pod.uid.clone()).collect();
    (1..).zip(pods).for_each(|(number, uid)| _ = planner.set_cgroup(&uid, Some(number)));
}

/// A directory may have no Node objects, but an API server must have that of this node; otherwise the name is wrong.
fn list(server: ApiServerSource) -> anyhow::Result<Snapshot> {
    let (node, access) = (server.node.clone(), server.access.to_string());
    let snapshot = super::block_on(async { Ok(server.load().await?) })?;
    if !node.is_empty() && !snapshot.nodes.keys().any(|(_, name)| **name == *node) {
        let text = format!("the API server {access} has no Node {node}: set --node-name to one of `kubectl get nodes`");
        return Err(NotFound(text).into());
    }
    Ok(snapshot)
}

fn frontends(rows: &Rows, no_local_endpoint_action: NoLocalEndpointAction) -> Vec<Frontend> {
    let mut all = Vec::new();
    for (key, row) in &rows.frontends {
        let (Some(protocol), Some(set)) = (key.protocol, rows.sets.get(row.set)) else { continue };
        let BackendSet { owner, backends, limit } = backend_set(rows, set);
        let node_port = NodePortAddresses::of(rows, key, no_local_endpoint_action).unwrap_or_default();
        all.push(Frontend {
            view: key.view,
            address: key.address.to_string(),
            port: key.port,
            protocol: protocol.to_string(),
            kind: kind_name(row.kind),
            service: owner,
            backends,
            limit,
            node_addresses: node_port.served,
            refusing_node_addresses: node_port.refused,
            untouched_node_addresses: node_port.untouched,
            then: next_sets(rows, set),
            when_empty: match (set.header.next, set.when_empty(), no_local_endpoint_action) {
                (next, ..) if next != 0 => "next",
                (_, WhenEmpty::Fail, NoLocalEndpointAction::Drop) => "untouched",
                _ => "refuse",
            },
        });
    }
    all.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
    all
}

fn sort_key(f: &Frontend) -> (u32, &str, u16, &str, &str, &str) {
    (f.view, &f.address, f.port, &f.protocol, f.kind, &f.service)
}

fn backend_set(rows: &Rows, set: &SetRow) -> BackendSet {
    let mut backends: Vec<_> = rows.members(set).iter().filter_map(|id| rows.backends.get(*id)).collect();
    backends.sort_by_key(|b| (b.address, b.port));
    BackendSet {
        owner: owner_text(rows, set),
        backends: backends.iter().map(|b| std::net::SocketAddr::new(b.address.ip(), b.port).to_string()).collect(),
        limit: rows.buckets.get(&set.header.policy).copied().filter(|_| set.header.limited),
    }
}

fn owner_text(rows: &Rows, set: &SetRow) -> String {
    let name = rows.names.get(set.owner).and_then(|n| PortName::from_text(&n.text));
    name.map(|n| n.service.to_string()).unwrap_or_default()
}

fn next_sets(rows: &Rows, set: &SetRow) -> Vec<BackendSet> {
    let sets = std::iter::successors(rows.sets.get(set.header.next), |set| rows.sets.get(set.header.next));
    sets.map(|set| backend_set(rows, set)).collect()
}

fn policy_lines(states: &[PolicyState]) -> String {
    let reports: Vec<PolicyReport> = states.iter().map(|state| PolicyReport::new(state, None, &[])).collect();
    if reports.is_empty() { String::new() } else { format!("\n{}", super::policies::table(&reports)) }
}

/// The view in which a frontend is visible; `None` if it is visible in all. A NodePort is visible in all views, and its
/// number is that of its cluster.
fn view_name(f: &Frontend, views: &ViewNames) -> Option<String> {
    let named = || views.get(&f.view).map_or_else(|| f.view.to_string(), ToString::to_string);
    (f.view != 0 && f.kind != kind_name(FrontendKind::NodePort)).then(named)
}

fn line(f: &Frontend, views: &ViewNames) -> String {
    let at = if f.address.contains(':') { format!("[{}]", f.address) } else { f.address.clone() };
    let backends = if f.backends.is_empty() { format!("none ({})", f.when_empty) } else { f.backends.join(" ") };
    let limit = limit_text(f.limit);
    let view = view_name(f, views).map_or_else(String::new, |view| format!(" in view {view}"));
    let mut text = format!("{at}:{}/{}{view} {} {} -> {backends}{limit}", f.port, f.protocol, f.kind, f.service);
    for BackendSet { owner, backends, limit } in &f.then {
        let backends = if backends.is_empty() { "none".into() } else { backends.join(" ") };
        text.push_str(&format!(", then {owner} -> {backends}{}", limit_text(*limit)));
    }
    text
}

fn limit_text(limit: Option<Limit>) -> String {
    limit.map_or_else(String::new, |limit| format!(" (at most {}/s, burst {})", limit.connects_per_second, limit.burst))
}

fn table(planned: &[Frontend], views: &ViewNames) -> String {
    let has_views = planned.iter().any(|f| view_name(f, views).is_some());
    let cells = |f: &Frontend| {
        let at = if f.address.contains(':') { format!("[{}]", f.address) } else { f.address.clone() };
        let backends = if f.backends.is_empty() { format!("none ({})", f.when_empty) } else { f.backends.join(" ") };
        let then = f.then.iter().map(|set| format!(", then {}", set.owner)).collect::<String>();
        let mut cells = vec![f.service.clone(), f.kind.into(), format!("{at}:{}/{}", f.port, f.protocol)];
        cells.extend(has_views.then(|| print::or_dash(view_name(f, views))));
        cells.push(backends + &then);
        cells
    };
    let mut header = vec!["SERVICE", "KIND", "FRONTEND"];
    header.extend(has_views.then_some("VIEW"));
    header.push("BACKENDS");
    print::table(&header, &planned.iter().map(cells).collect::<Vec<_>>())
}

/// Prints the differences between the plan and the tables in the kernel.
fn diff(options: &Options, planned: &[Frontend], views: &ViewNames) -> anyhow::Result<ExitCode> {
    let live = LiveTables::open(&options.pin_dir())?;
    let no_local_endpoint_action = options.rules()?.no_local_endpoint_action;
    let have: BTreeSet<String> =
        frontends(&live.rows, no_local_endpoint_action).iter().map(|f| line(f, views)).collect();
    let want: BTreeSet<String> = planned.iter().map(|f| line(f, views)).collect();
    have.difference(&want).for_each(|line| print::out(print::escape(&format!("- {line}"))));
    want.difference(&have).for_each(|line| print::out(print::escape(&format!("+ {line}"))));
    if have == want {
        print::out(format_args!("the kernel tables match the plan ({} frontends)", want.len()));
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(CHECK_FAILED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_changes_the_line_of_a_frontend() {
        let backend_set = |backends: &[&str], limit| BackendSet {
            owner: "default/web".into(),
            backends: backends.iter().map(|b| b.to_string()).collect(),
            limit,
        };
        let frontend = |view, limit, then: Vec<BackendSet>| Frontend {
            view,
            address: "10.96.0.10".into(),
            port: 80,
            protocol: "TCP".into(),
            kind: "clusterIP",
            service: "LocalRedirectPolicy default/web".into(),
            backends: vec!["10.244.1.5:80".into()],
            limit,
            when_empty: "next",
            node_addresses: Vec::new(),
            refusing_node_addresses: Vec::new(),
            untouched_node_addresses: Vec::new(),
            then,
        };
        let views = ViewNames::from([(7, "green".into())]);
        let limit = Some(Limit { connects_per_second: 5, burst: 10 });
        let all = [
            line(&frontend(0, None, vec![]), &views),
            line(&frontend(0, limit, vec![]), &views),
            line(&frontend(0, None, vec![backend_set(&["10.244.2.5:80"], None)]), &views),
            line(&frontend(0, None, vec![backend_set(&["10.244.2.6:80"], None)]), &views),
            line(&frontend(0, None, vec![backend_set(&["10.244.2.6:80"], limit)]), &views),
            line(&frontend(7, None, vec![]), &views),
            line(&frontend(8, None, vec![]), &views),
        ];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
        assert_eq!(
            all[4],
            "10.96.0.10:80/TCP clusterIP LocalRedirectPolicy default/web -> 10.244.1.5:80, then default/web -> \
             10.244.2.6:80 (at most 5/s, burst 10)"
        );
        assert!(all[5].starts_with("10.96.0.10:80/TCP in view green clusterIP ") && all[6].contains(" in view 8 "));
        let with_views = table(&[frontend(0, None, vec![]), frontend(7, None, vec![])], &views);
        assert!(with_views.contains("VIEW") && with_views.lines().nth(2).unwrap().contains(" green "), "{with_views}");
        assert!(!table(&[frontend(0, None, vec![])], &views).contains("VIEW"));
    }
}
