//! Why each endpoint of a service port is in a set or out of it: the selection itself, asked for its reasons.

use beeline_model::plan::candidates;
use beeline_model::planner::Planner;
use beeline_model::select::{Candidate, Selection, Topology, select};
use beeline_model::{Family, PortName};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    pub service: String,
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
}

pub fn explain(planner: &Planner, owner: &PortName) -> Option<Explained> {
    let service = planner.service(&owner.service)?;
    let port = service.ports.iter().find(|p| p.name == owner.port && p.protocol == owner.protocol)?;
    let around = planner.surroundings();
    let families = Family::BOTH.into_iter().filter(|f| service.cluster_ip(*f).is_some());
    let families = families.map(|family| {
        let found = candidates(port, family, planner.slices_of(&owner.service), &around);
        family_of(family, &select(found, &around.place))
    });
    Some(Explained {
        service: owner.service.to_string(),
        internal_policy: format!("{:?}", service.internal),
        external_policy: format!("{:?}", service.external),
        families: families.collect(),
    })
}

fn family_of(family: Family, selection: &Selection) -> ExplainedFamily {
    let topology = match selection.topology {
        Topology::None => "no endpoint is ready",
        Topology::All => "all: no hints, or one ready endpoint has none, or none names us",
        Topology::SameNode => "same node: every ready endpoint has node hints and one names this node",
        Topology::SameZone => "same zone: every ready endpoint has zone hints and one names our zone",
    };
    let endpoints = (0..selection.candidates.len()).map(|i| endpoint(i, selection)).collect();
    ExplainedFamily { family: family.to_string(), topology: topology.into(), endpoints }
}

fn endpoint(index: usize, selection: &Selection) -> ExplainedEndpoint {
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
