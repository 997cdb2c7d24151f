//! `beeline plan`: what a node would do with the objects of a folder, or with those that an API server has now, without
//! touching the kernel.

use super::services::kind_name;
use super::{NotFound, WRONG};
use crate::args::Plan;
use crate::live::Live;
use crate::options::{Options, PIN_DIR};
use crate::print;
use anyhow::Context;
use beeline_agent::{Cluster, Controller, Origin};
use beeline_cluster::{Folder, Server, Snapshot};
use beeline_model::diff::reconcile;
use beeline_model::fact::Refusal;
use beeline_model::op::Memory;
use beeline_model::planner::Planner;
use beeline_model::planner::state::PolicyState;
use beeline_model::policy::Limit;
use beeline_model::publish::{Publisher, Unknown};
use beeline_model::row::{Kind, Rows, SetRow, Sizes, WhenEmpty};
use beeline_model::rules::EmptyLocal;
use beeline_model::table::Tables;
use beeline_model::{Name, PortName};
use serde::Serialize;
use serde_json::Value;
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
    /// Who is asked when this one has none, in turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    then: Vec<Link>,
}

/// One set of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Link {
    owner: String,
    backends: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit>,
}

/// What the views are called that the rows know by number.
type Views = BTreeMap<u32, Name>;

struct Planned {
    frontends: Vec<Frontend>,
    views: Views,
    policies: Vec<PolicyState>,
    refusals: Vec<Refusal>,
}

pub fn run(plan: Plan) -> anyhow::Result<ExitCode> {
    let options = plan.options.load()?;
    let Planned { frontends, views, policies, refusals } = compute(&options)?;
    if plan.diff {
        return diff(&options, &frontends, &views);
    }
    print::show(plan.output, &frontends, || table(&frontends, &views) + &policy_lines(&policies))?;
    for refusal in &refusals {
        eprintln!("refused: {}: {} ({})", refusal.subject, refusal.message, refusal.reason);
    }
    Ok(ExitCode::SUCCESS)
}

fn compute(options: &Options) -> anyhow::Result<Planned> {
    let rules = options.rules()?;
    let mut snapshot = Snapshot::default();
    let mut refusals = Vec::new();
    let clusters = options.listing()?.clusters;
    for cluster in &clusters {
        let read = load(cluster).with_context(|| format!("cluster {}", cluster.rules.name))?;
        refusals.extend(read.refusals.clone());
        read.into_facts().into_iter().for_each(|fact| snapshot.apply(fact));
    }
    let empty_local = rules.empty_local;
    let mut planner = Planner::new(rules);
    let names: BTreeSet<Name> = clusters.iter().filter_map(|cluster| cluster.rules.view.clone()).collect();
    planner.set_views(names.clone());
    feed(&mut planner, snapshot, publisher(options, &clusters)?);
    let delta = planner.take_all();
    refusals.extend(planner.refusals());
    let sizes = Sizes::for_services(2_000_000);
    let (mut tables, mut memory) = (Tables::new(sizes), Memory::new(sizes));
    reconcile(&mut tables, &mut memory, &delta, true);
    let policies = planner.policies();
    let views = names.into_iter().filter_map(|name| Some((planner.view(&name)?, name))).collect();
    Ok(Planned { frontends: frontends(&memory.rows, empty_local), views, policies, refusals })
}

fn load(cluster: &Cluster) -> anyhow::Result<Snapshot> {
    match cluster.origin.clone() {
        Origin::Folder { path, claim } => Ok(Folder::new(path, &cluster.rules.name, claim).load()?),
        Origin::Server(server) => list(*server),
        Origin::Edge(edge) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(edge.load())?)
        }
    }
}

/// As the agent does it: what a controller published is taken as it is.
fn publisher(options: &Options, clusters: &[Cluster]) -> anyhow::Result<Option<Publisher>> {
    let folders = clusters.iter().all(|cluster| matches!(cluster.origin, Origin::Folder { .. }));
    let unknown = if folders { Unknown::Plain } else { Unknown::Waits };
    Ok((options.controller()? == Controller::None).then(|| Publisher::new(unknown)))
}

fn feed(planner: &mut Planner, snapshot: Snapshot, mut publisher: Option<Publisher>) {
    for fact in snapshot.into_facts() {
        publisher.iter_mut().for_each(|publisher| publisher.apply(&fact));
        planner.apply(fact);
    }
    if let Some(mut publisher) = publisher {
        planner.publish_ourselves();
        publisher.take().into_iter().for_each(|fact| _ = planner.apply(fact));
    }
    // A node's kubelet makes each its cgroup; which one does not matter to a plan.
    let pods: Vec<Box<str>> = planner.pods_with_need().map(|pod| pod.uid.clone()).collect();
    (1..).zip(pods).for_each(|(number, uid)| _ = planner.set_cgroup(&uid, Some(number)));
}

/// A folder may do without Nodes; an API server knows the node, or it is a wrong name.
fn list(server: Server) -> anyhow::Result<Snapshot> {
    let (node, access) = (server.node.clone(), server.access.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let snapshot = runtime.block_on(server.load())?;
    if !node.is_empty() && !snapshot.nodes.keys().any(|(_, name)| **name == *node) {
        let text = format!("the API server {access} has no Node {node}: --node-name is one of `kubectl get nodes`");
        return Err(NotFound(text).into());
    }
    Ok(snapshot)
}

fn frontends(rows: &Rows, empty_local: EmptyLocal) -> Vec<Frontend> {
    let mut all = Vec::new();
    for (key, row) in &rows.frontends {
        let (Some(protocol), Some(set)) = (key.protocol, rows.sets.get(row.set)) else { continue };
        let Link { owner, backends, limit } = link(rows, set);
        all.push(Frontend {
            view: key.view,
            address: key.address.to_string(),
            port: key.port,
            protocol: protocol.to_string(),
            kind: kind_name(row.kind),
            service: owner,
            backends,
            limit,
            then: below(rows, set),
            when_empty: match (set.header.next, set.when_empty(), empty_local) {
                (next, ..) if next != 0 => "next",
                (_, WhenEmpty::Fail, EmptyLocal::Drop) => "untouched",
                _ => "refuse",
            },
        });
    }
    all.sort_by(|a, b| order(a).cmp(&order(b)));
    all
}

fn order(f: &Frontend) -> (u32, &str, u16, &str, &str, &str) {
    (f.view, &f.address, f.port, &f.protocol, f.kind, &f.service)
}

fn link(rows: &Rows, set: &SetRow) -> Link {
    let mut backends: Vec<_> = rows.members(set).iter().filter_map(|id| rows.backends.get(*id)).collect();
    backends.sort_by_key(|b| (b.address, b.port));
    Link {
        owner: owner_text(rows, set),
        backends: backends.iter().map(|b| std::net::SocketAddr::new(b.address.ip(), b.port).to_string()).collect(),
        limit: rows.buckets.get(&set.header.policy).copied().filter(|_| set.header.limited),
    }
}

fn owner_text(rows: &Rows, set: &SetRow) -> String {
    let name = rows.names.get(set.owner).and_then(|n| PortName::from_text(&n.text));
    name.map(|n| n.service.to_string()).unwrap_or_default()
}

fn below(rows: &Rows, set: &SetRow) -> Vec<Link> {
    let sets = std::iter::successors(rows.sets.get(set.header.next), |set| rows.sets.get(set.header.next));
    sets.map(|set| link(rows, set)).collect()
}

fn policy_lines(states: &[PolicyState]) -> String {
    let Ok(Value::Array(states)) = serde_json::to_value(states) else { return String::new() };
    if states.is_empty() { String::new() } else { format!("\n{}", super::policies::table(&states)) }
}

/// The view in which it is seen; none: in everybody's. A NodePort is in all of them, and its number is its cluster's.
fn view_of(f: &Frontend, views: &Views) -> Option<String> {
    let named = || views.get(&f.view).map_or_else(|| f.view.to_string(), ToString::to_string);
    (f.view != 0 && f.kind != kind_name(Kind::NodePort)).then(named)
}

fn line(f: &Frontend, views: &Views) -> String {
    let at = if f.address.contains(':') { format!("[{}]", f.address) } else { f.address.clone() };
    let backends = if f.backends.is_empty() { format!("none ({})", f.when_empty) } else { f.backends.join(" ") };
    let limit = limit_text(f.limit);
    let view = view_of(f, views).map_or_else(String::new, |view| format!(" in view {view}"));
    let mut text = format!("{at}:{}/{}{view} {} {} -> {backends}{limit}", f.port, f.protocol, f.kind, f.service);
    for Link { owner, backends, limit } in &f.then {
        let backends = if backends.is_empty() { "none".into() } else { backends.join(" ") };
        text.push_str(&format!(", then {owner} -> {backends}{}", limit_text(*limit)));
    }
    text
}

fn limit_text(limit: Option<Limit>) -> String {
    limit.map_or_else(String::new, |limit| format!(" (at most {}/s, burst {})", limit.connects_per_second, limit.burst))
}

fn table(planned: &[Frontend], views: &Views) -> String {
    let viewed = planned.iter().any(|f| view_of(f, views).is_some());
    let cells = |f: &Frontend| {
        let at = if f.address.contains(':') { format!("[{}]", f.address) } else { f.address.clone() };
        let backends = if f.backends.is_empty() { format!("none ({})", f.when_empty) } else { f.backends.join(" ") };
        let then = f.then.iter().map(|link| format!(", then {}", link.owner)).collect::<String>();
        let mut cells = vec![f.service.clone(), f.kind.into(), format!("{at}:{}/{}", f.port, f.protocol)];
        cells.extend(viewed.then(|| print::dash(view_of(f, views))));
        cells.push(backends + &then);
        cells
    };
    let mut header = vec!["SERVICE", "KIND", "DIALLED"];
    header.extend(viewed.then_some("VIEW"));
    header.push("BECOMES");
    print::table(&header, &planned.iter().map(cells).collect::<Vec<_>>())
}

/// Against the live tables; exit code 4 where they differ.
fn diff(options: &Options, planned: &[Frontend], views: &Views) -> anyhow::Result<ExitCode> {
    let pin_dir = options.pin_dir.clone().unwrap_or_else(|| PIN_DIR.into());
    let live = Live::open(&pin_dir)?;
    let empty_local = options.rules()?.empty_local;
    let have: BTreeSet<String> = frontends(&live.rows, empty_local).iter().map(|f| line(f, views)).collect();
    let want: BTreeSet<String> = planned.iter().map(|f| line(f, views)).collect();
    have.difference(&want).for_each(|l| println!("- {l}"));
    want.difference(&have).for_each(|l| println!("+ {l}"));
    if have == want {
        println!("the live tables are what these objects say ({} frontends)", want.len());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(WRONG))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_below_the_first_set_is_a_difference() {
        let link = |backends: &[&str], limit| Link {
            owner: "default/web".into(),
            backends: backends.iter().map(|b| b.to_string()).collect(),
            limit,
        };
        let frontend = |view, limit, then: Vec<Link>| Frontend {
            view,
            address: "10.96.0.10".into(),
            port: 80,
            protocol: "TCP".into(),
            kind: "clusterIP",
            service: "LocalRedirectPolicy default/web".into(),
            backends: vec!["10.244.1.5:80".into()],
            limit,
            when_empty: "next",
            then,
        };
        let views = Views::from([(7, "green".into())]);
        let limit = Some(Limit { connects_per_second: 5, burst: 10 });
        let all = [
            line(&frontend(0, None, vec![]), &views),
            line(&frontend(0, limit, vec![]), &views),
            line(&frontend(0, None, vec![link(&["10.244.2.5:80"], None)]), &views),
            line(&frontend(0, None, vec![link(&["10.244.2.6:80"], None)]), &views),
            line(&frontend(0, None, vec![link(&["10.244.2.6:80"], limit)]), &views),
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
        let seen = table(&[frontend(0, None, vec![]), frontend(7, None, vec![])], &views);
        assert!(seen.contains("VIEW") && seen.lines().nth(2).unwrap().contains(" green "), "{seen}");
        assert!(!table(&[frontend(0, None, vec![])], &views).contains("VIEW"));
    }
}
