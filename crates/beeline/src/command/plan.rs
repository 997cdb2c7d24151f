//! `beeline plan`: what a node would do with the objects of a folder, or with those that an API server has now, without
//! touching the kernel.

use super::services::kind_name;
use super::{NotFound, WRONG};
use crate::args::Plan;
use crate::live::Live;
use crate::options::{Options, PIN_DIR};
use crate::print;
use beeline_agent::Origin;
use beeline_cluster::{Folder, Server, Snapshot};
use beeline_model::PortName;
use beeline_model::diff::reconcile;
use beeline_model::fact::Refusal;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::op::Memory;
use beeline_model::planner::Planner;
use beeline_model::planner::state::PolicyState;
use beeline_model::publish::{Publisher, Unknown};
use beeline_model::row::{Rows, SetRow, Sizes, WhenEmpty};
use beeline_model::rules::EmptyLocal;
use beeline_model::table::Tables;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::ExitCode;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct Frontend {
    view: u32,
    address: String,
    port: u16,
    protocol: String,
    kind: &'static str,
    service: String,
    backends: Vec<String>,
    when_empty: &'static str,
    /// Who is asked when this one has none, in turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    then: Vec<String>,
}

struct Planned {
    frontends: Vec<Frontend>,
    policies: Vec<PolicyState>,
    refusals: Vec<Refusal>,
}

pub fn run(plan: Plan) -> anyhow::Result<ExitCode> {
    let options = plan.options.load()?;
    let Planned { frontends, policies, refusals } = compute(&options)?;
    if plan.diff {
        return diff(&options, &frontends);
    }
    print::show(plan.output, &frontends, || table(&frontends) + &policy_lines(&policies))?;
    for refusal in &refusals {
        eprintln!("refused: {}: {} ({})", refusal.subject, refusal.message, refusal.reason);
    }
    Ok(ExitCode::SUCCESS)
}

fn compute(options: &Options) -> anyhow::Result<Planned> {
    let rules = options.rules()?;
    let snapshot = match options.origin()? {
        Origin::Folder { path, claim } => Folder::new(path, LOCAL_CLUSTER, claim).load()?,
        Origin::Server(server) => list(*server)?,
    };
    let mut refusals = snapshot.refusals.clone();
    let empty_local = rules.empty_local;
    let mut planner = Planner::new(rules);
    // In a folder nobody publishes: as an agent without a controller does it.
    let mut publisher = Publisher::new(Unknown::Plain);
    for fact in snapshot.into_facts() {
        publisher.apply(&fact);
        planner.apply(fact);
    }
    publisher.take().into_iter().for_each(|fact| _ = planner.apply(fact));
    let delta = planner.take_all();
    refusals.extend(planner.refusals());
    let sizes = Sizes::for_services(2_000_000);
    let (mut tables, mut memory) = (Tables::new(sizes), Memory::new(sizes));
    reconcile(&mut tables, &mut memory, &delta, true);
    let policies = planner.policies();
    Ok(Planned { frontends: frontends(&memory.rows, empty_local), policies, refusals })
}

/// A folder may do without Nodes; an API server knows the node, or it is a wrong name.
fn list(server: Server) -> anyhow::Result<Snapshot> {
    let (node, access) = (server.node.clone(), server.access.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let snapshot = runtime.block_on(server.load())?;
    if !snapshot.nodes.keys().any(|(_, name)| **name == *node) {
        let text = format!("the API server {access} has no Node {node}: --node-name is one of `kubectl get nodes`");
        return Err(NotFound(text).into());
    }
    Ok(snapshot)
}

fn frontends(rows: &Rows, empty_local: EmptyLocal) -> Vec<Frontend> {
    let mut all = Vec::new();
    for (key, row) in &rows.frontends {
        let (Some(protocol), Some(set)) = (key.protocol, rows.sets.get(row.set)) else { continue };
        let mut backends: Vec<_> = rows.members(set).iter().filter_map(|id| rows.backends.get(*id)).collect();
        backends.sort_by_key(|b| (b.address, b.port));
        all.push(Frontend {
            view: key.view,
            address: key.address.to_string(),
            port: key.port,
            protocol: protocol.to_string(),
            kind: kind_name(row.kind),
            service: owner_text(rows, set),
            backends: backends.iter().map(|b| std::net::SocketAddr::new(b.address.ip(), b.port).to_string()).collect(),
            then: below(rows, set),
            when_empty: match (set.header.next, set.when_empty(), empty_local) {
                (next, ..) if next != 0 => "next",
                (_, WhenEmpty::Fail, EmptyLocal::Drop) => "untouched",
                _ => "refuse",
            },
        });
    }
    all.sort();
    all
}

fn owner_text(rows: &Rows, set: &SetRow) -> String {
    let name = rows.names.get(set.owner).and_then(|n| PortName::from_text(&n.text));
    name.map(|n| n.service.to_string()).unwrap_or_default()
}

fn below(rows: &Rows, set: &SetRow) -> Vec<String> {
    let sets = std::iter::successors(rows.sets.get(set.header.next), |set| rows.sets.get(set.header.next));
    sets.map(|set| owner_text(rows, set)).collect()
}

fn policy_lines(states: &[PolicyState]) -> String {
    let Ok(Value::Array(states)) = serde_json::to_value(states) else { return String::new() };
    if states.is_empty() { String::new() } else { format!("\n{}", super::policies::table(&states)) }
}

fn line(f: &Frontend) -> String {
    let at = if f.address.contains(':') { format!("[{}]", f.address) } else { f.address.clone() };
    let backends = if f.backends.is_empty() { format!("none ({})", f.when_empty) } else { f.backends.join(" ") };
    format!("{at}:{}/{} {} {} -> {backends}", f.port, f.protocol, f.kind, f.service)
}

fn table(planned: &[Frontend]) -> String {
    let cells = |f: &Frontend| {
        let at = if f.address.contains(':') { format!("[{}]", f.address) } else { f.address.clone() };
        let backends = if f.backends.is_empty() { format!("none ({})", f.when_empty) } else { f.backends.join(" ") };
        let then = f.then.iter().map(|owner| format!(", then {owner}")).collect::<String>();
        vec![f.service.clone(), f.kind.into(), format!("{at}:{}/{}", f.port, f.protocol), backends + &then]
    };
    print::table(&["SERVICE", "KIND", "DIALLED", "BECOMES"], &planned.iter().map(cells).collect::<Vec<_>>())
}

/// Against the live tables; exit code 4 where they differ.
fn diff(options: &Options, planned: &[Frontend]) -> anyhow::Result<ExitCode> {
    let pin_dir = options.pin_dir.clone().unwrap_or_else(|| PIN_DIR.into());
    let live = Live::open(&pin_dir)?;
    let empty_local = options.rules()?.empty_local;
    let have: BTreeSet<String> = frontends(&live.rows, empty_local).iter().map(line).collect();
    let want: BTreeSet<String> = planned.iter().map(line).collect();
    have.difference(&want).for_each(|l| println!("- {l}"));
    want.difference(&have).for_each(|l| println!("+ {l}"));
    if have == want {
        println!("the live tables are what these objects say ({} frontends)", want.len());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(WRONG))
}
