//! Why each endpoint of a service port is in a set or out of it: the selection itself, asked for its reasons.

use beeline_model::fact::Policy;
use beeline_model::plan::away::node_port;
use beeline_model::plan::{Surroundings, candidates};
use beeline_model::planner::Planner;
use beeline_model::rules::StandPoint;
use beeline_model::select::{Candidate, Selection, Topology, select};
use beeline_model::stand::order::Bar;
use beeline_model::stand::way::Way;
use beeline_model::{Address, Family, PortName};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    pub service: String,
    pub cluster: String,
    /// What the cluster's place in the order means for its addresses; none where it is the only one.
    pub notes: Vec<String>,
    pub internal_policy: String,
    pub external_policy: String,
    pub families: Vec<ExplainedFamily>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedFamily {
    pub family: String,
    pub topology: String,
    pub endpoints: Vec<ExplainedEndpoint>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedEndpoint {
    pub address: String,
    pub port: u16,
    pub node: Option<String>,
    pub conditions: String,
    pub in_cluster_set: bool,
    pub in_local_set: bool,
    pub why: String,
    /// How it is reached from where this host stands; none on a node of the cluster.
    pub way: Option<String>,
}

pub fn explain(planner: &Planner, owner: &PortName) -> Option<Explained> {
    let service = planner.service(&owner.service)?;
    let port = service.ports.iter().find(|p| p.name == owner.port && p.protocol == owner.protocol)?;
    let around = planner.surroundings(owner.service.cluster())?;
    let ground = around.way();
    let tell = |c: &Candidate| {
        let hops = service.external == Policy::Cluster;
        tell_way(&ground.way(c, node_port(service, port)), node_port(service, port), hops)
    };
    let tell: Option<&Tell<'_>> = (ground.stand != StandPoint::Node).then_some(&tell);
    let families = Family::BOTH.into_iter().filter(|f| service.cluster_ip(*f).is_some());
    let families = families.map(|family| {
        let found = candidates(port, family, planner.slices_of(&owner.service), &around);
        family_of(family, &select(found, &around.place), tell)
    });
    Some(Explained {
        service: owner.service.to_string(),
        cluster: owner.service.cluster().into(),
        notes: service.cluster_ips.iter().flat_map(|address| notes(planner, &around, *address)).collect(),
        internal_policy: format!("{:?}", service.internal),
        external_policy: format!("{:?}", service.external),
        families: families.collect(),
    })
}

type Tell<'a> = dyn Fn(&Candidate) -> String + 'a;

fn tell_way(way: &Way, node_port: u16, hops: bool) -> String {
    match way {
        Way::Direct => "direct".into(),
        Way::Node { address, well } => {
            let at = std::net::SocketAddr::new(address.ip(), node_port);
            let hop = if hops { "; the node may hop again (external Cluster)" } else { "" };
            let ill = if *well { "" } else { "; the node is not ready, and left out while others are" };
            format!("by its node, {at}{hop}{ill}")
        }
        Way::Unreachable(why) => format!("unreachable: {why}"),
    }
}

/// View by view, who has this address instead.
fn notes(planner: &Planner, around: &Surroundings<'_>, address: Address) -> Vec<String> {
    let mut notes = Vec::new();
    for seat in &around.outlook.seats {
        let view = planner.order().view_name(seat.view).map_or_else(String::new, |name| format!("in view {name} "));
        match seat.bar(address) {
            None => {}
            Some(Bar::Owned { by, range }) => notes.push(format!("{view}{address} is cluster {by}'s, in {range}")),
            Some(Bar::Unknown(by)) => {
                notes.push(format!("{view}{address} waits: the service ranges of cluster {by} are unknown"))
            }
        }
    }
    notes
}

fn family_of(family: Family, selection: &Selection, tell: Option<&Tell<'_>>) -> ExplainedFamily {
    let topology = match selection.topology {
        Topology::None => "no endpoint is ready",
        Topology::All => "all: no hints, or one ready endpoint has none, or none names us",
        Topology::SameNode => "same node: every ready endpoint has node hints and one names this node",
        Topology::SameZone => "same zone: every ready endpoint has zone hints and one names our zone",
    };
    let endpoints = (0..selection.candidates.len()).map(|i| endpoint(i, selection, tell)).collect();
    ExplainedFamily { family: family.to_string(), topology: topology.into(), endpoints }
}

fn endpoint(index: usize, selection: &Selection, tell: Option<&Tell<'_>>) -> ExplainedEndpoint {
    let c = &selection.candidates[index];
    let (cluster, local) = (selection.cluster.contains(&index), selection.local.contains(&index));
    ExplainedEndpoint {
        address: c.address.to_string(),
        port: c.port,
        node: c.node.as_ref().map(|n| n.to_string()),
        conditions: conditions(c),
        in_cluster_set: cluster,
        in_local_set: local,
        why: why(c, cluster, local, selection),
        way: tell.map(|tell| tell(c)),
    }
}

fn conditions(c: &Candidate) -> String {
    let words = [(c.ready, "ready"), (c.serving, "serving"), (c.terminating, "terminating"), (c.local, "local")];
    let said: Vec<&str> = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    if said.is_empty() { "not ready".into() } else { said.join(", ") }
}

fn why(c: &Candidate, cluster: bool, local: bool, selection: &Selection) -> String {
    let any_ready = selection.candidates.iter().any(|c| c.ready);
    let text = match (cluster, local) {
        (true, true) => "in both sets",
        (true, false) if c.local => "in the cluster set; the local set has ready endpoints of its own",
        (true, false) => "in the cluster set; not on this node",
        (false, true) => "only in the local set: the topology keeps others for the cluster",
        (false, false) if c.ready => "ready, but the topology keeps others",
        (false, false) if c.terminating && c.serving && any_ready => "terminating: used only while nothing is ready",
        (false, false) if c.terminating => "terminating and no longer serving",
        (false, false) => "not ready",
    };
    let last_resort = (cluster || local) && !c.ready;
    if last_resort { format!("{text} (nothing is ready: it still serves on its way out)") } else { text.into() }
}
