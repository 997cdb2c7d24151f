//! The agent's part of `explain`: why each endpoint of a service port is in a set or not, as the selection itself decides
//! it, and which Services have an address that is not programmed.

use beeline_api::{EndpointExplanation, FamilyExplanation, PendingAddress, ServiceExplanation};
use beeline_model::cluster::order::RangeConflict;
use beeline_model::cluster::path::EndpointPath;
use beeline_model::object::{Pod, Service, TrafficPolicy};
use beeline_model::plan::remote::node_port;
use beeline_model::plan::{PlanContext, candidates};
use beeline_model::planner::Planner;
use beeline_model::rules::HostRole;
use beeline_model::select::{Candidate, Selection, Topology, select};
use beeline_model::{Address, Family, PortName};
use std::collections::HashMap;

/// `None`: there is no such service port.
pub fn explain(planner: &Planner, owner: &PortName) -> Option<ServiceExplanation> {
    let service = planner.service(&owner.service)?;
    let port = service.ports.iter().find(|p| p.name == owner.port && p.protocol == owner.protocol)?;
    let context = planner.plan_context(owner.service.cluster())?;
    let paths = context.path_context();
    let path_of = |candidate: &Candidate| {
        (paths.host_role != HostRole::Node).then(|| paths.path(candidate, node_port(service, port)))
    };
    let endpoints = Endpoints {
        pods: pods_by_address(planner, owner.service.cluster()),
        path_of: &path_of,
        node_port: node_port(service, port),
        may_forward: service.external == TrafficPolicy::Cluster,
    };
    let families = Family::BOTH.into_iter().filter(|family| service.cluster_ip(*family).is_some());
    let families = families.map(|family| {
        let found = candidates(port, family, planner.slices_of(&owner.service), &context);
        endpoints.explain_family(family, &select(found, &context.location))
    });
    Some(ServiceExplanation {
        service: owner.service.to_string(),
        cluster: owner.service.cluster().into(),
        notes: service.cluster_ips.iter().flat_map(|address| conflicts(planner, &context, *address)).collect(),
        internal_policy: format!("{:?}", service.internal),
        external_policy: format!("{:?}", service.external),
        families: families.collect(),
    })
}

/// The pods that the agent knows: those of its own node, with manifests all.
fn pods_by_address<'a>(planner: &'a Planner, cluster: &str) -> HashMap<Address, &'a Pod> {
    let pods = planner.pods().filter(|pod| &*pod.name.cluster == cluster);
    pods.flat_map(|pod| pod.addresses.iter().map(move |address| (*address, pod))).collect()
}

struct Endpoints<'a> {
    pods: HashMap<Address, &'a Pod>,
    path_of: &'a dyn Fn(&Candidate) -> Option<EndpointPath>,
    node_port: u16,
    /// externalTrafficPolicy Cluster: the node that answers a nodePort may forward to another node.
    may_forward: bool,
}

impl Endpoints<'_> {
    fn explain_family(&self, family: Family, selection: &Selection) -> FamilyExplanation {
        let topology = match selection.topology {
            Topology::None => "none: no endpoint is ready",
            Topology::All => "all endpoints: no complete hints for this node or zone",
            Topology::SameNode => "same node: every ready endpoint has node hints and one names this node",
            Topology::SameZone => "same zone: every ready endpoint has zone hints and one names this zone",
        };
        let endpoints = (0..selection.candidates.len()).map(|index| self.explain_endpoint(index, selection)).collect();
        FamilyExplanation { family: family.to_string(), topology: topology.into(), endpoints }
    }

    fn explain_endpoint(&self, index: usize, selection: &Selection) -> EndpointExplanation {
        let candidate = &selection.candidates[index];
        let (cluster, local) = (selection.cluster.contains(&index), selection.local.contains(&index));
        let pod = self.pods.get(&candidate.address);
        let path = (self.path_of)(candidate);
        EndpointExplanation {
            address: candidate.address.to_string(),
            port: candidate.port,
            pod: pod.map(|pod| format!("{}/{}", pod.name.namespace, pod.name.name)),
            node: candidate.node.as_ref().map(|node| node.to_string()),
            conditions: conditions(candidate),
            in_cluster_set: cluster,
            in_local_set: local,
            why: why(candidate, cluster, local, selection),
            unreachable: matches!(path, Some(EndpointPath::Unreachable(_))),
            path: path.map(|path| self.path_text(&path)),
        }
    }

    fn path_text(&self, path: &EndpointPath) -> String {
        match path {
            EndpointPath::Direct => "direct".into(),
            EndpointPath::Node { address, healthy } => {
                let at = std::net::SocketAddr::new(address.ip(), self.node_port);
                let forward =
                    if self.may_forward { "; the node may forward it (externalTrafficPolicy Cluster)" } else { "" };
                let not_ready = if *healthy { "" } else { "; the node is not ready: used only if no other node is" };
                format!("by its node, {at}{forward}{not_ready}")
            }
            EndpointPath::Unreachable(reason) => format!("unreachable: {reason}"),
        }
    }
}

/// For each view in which another cluster has the address: which one, and why.
fn conflicts(planner: &Planner, context: &PlanContext<'_>, address: Address) -> Vec<String> {
    let text = |(view, conflict): (u32, RangeConflict)| {
        let view = planner.order().view_name(view).map_or_else(String::new, |name| format!("in view {name} "));
        match conflict {
            RangeConflict::Owned { by, range } => format!("{view}{address} belongs to cluster {by}, range {range}"),
            RangeConflict::Unknown(by) => {
                format!("{view}{address} waits: the service ranges of cluster {by} are not known")
            }
        }
    };
    conflicts_by_view(context, address).map(text).collect()
}

fn conflicts_by_view(context: &PlanContext<'_>, address: Address) -> impl Iterator<Item = (u32, RangeConflict)> {
    context.cluster.view_ranks.iter().filter_map(move |rank| Some((rank.view, rank.conflict_at(address)?)))
}

/// The Services that have this address and are not programmed in some view, because the service ranges of a cluster with
/// higher precedence are not known.
pub fn pending_addresses(planner: &Planner, address: Address) -> Vec<PendingAddress> {
    let has_address = |service: &&Service| {
        [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips]
            .into_iter()
            .flatten()
            .any(|a| *a == address)
    };
    let pending = |service: &Service| {
        let context = planner.plan_context(service.name.cluster());
        let conflicts: Vec<_> = context.iter().flat_map(|context| conflicts_by_view(context, address)).collect();
        let service = service.name.clone();
        conflicts.into_iter().filter_map(move |(view, conflict)| match conflict {
            RangeConflict::Owned { .. } => None,
            RangeConflict::Unknown(by) => Some(PendingAddress {
                service: service.to_string(),
                cluster: service.cluster().to_owned(),
                view: planner.order().view_name(view).map(ToString::to_string),
                waits_for: format!("the service ranges of cluster {by}, which are not known: set its serviceCIDRs"),
            }),
        })
    };
    planner.services().filter(has_address).flat_map(pending).collect()
}

fn conditions(c: &Candidate) -> String {
    let words = [(c.ready, "ready"), (c.serving, "serving"), (c.terminating, "terminating"), (c.local, "local")];
    let set: Vec<&str> = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    if set.is_empty() { "not ready".into() } else { set.join(", ") }
}

fn why(c: &Candidate, cluster: bool, local: bool, selection: &Selection) -> String {
    let any_ready = selection.candidates.iter().any(|c| c.ready);
    let text = match (cluster, local) {
        (false, true) if !c.ready => {
            return "in the local set only: no local endpoint is ready, and this one still serves while terminating; the \
                    cluster set has ready endpoints"
                .into();
        }
        (true, true) => "in both sets",
        (true, false) if c.local => "in the cluster set; the local set has ready endpoints",
        (true, false) => "not on this node",
        (false, true) => "in the local set only: topology hints exclude it from the cluster set",
        (false, false) if c.ready => "ready, but excluded by topology hints",
        (false, false) if c.terminating && c.serving && any_ready => "terminating: used only while none is ready",
        (false, false) if c.terminating => "terminating and not serving",
        (false, false) => "not ready",
    };
    if cluster && !c.ready {
        format!("{text} (none is ready, and it still serves while terminating)")
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::select::NodeLocation;

    #[test]
    fn a_terminating_local_endpoint_beside_a_ready_remote_one_is_explained_without_hints() {
        let endpoint = |address: &str, ready: bool, local: bool| Candidate {
            address: Address::from(address.parse::<std::net::IpAddr>().unwrap()),
            port: 8080,
            ready,
            serving: true,
            terminating: !ready,
            local,
            node: None,
            hints: None,
        };
        let found = vec![endpoint("10.244.1.1", false, true), endpoint("10.244.2.1", true, false)];
        let selection = select(found, &NodeLocation { node: "n1".into(), zone: None });
        assert_eq!((&selection.cluster, &selection.local), (&vec![1], &vec![0]));
        assert_eq!(
            why(&selection.candidates[0], false, true, &selection),
            "in the local set only: no local endpoint is ready, and this one still serves while terminating; the cluster \
             set has ready endpoints"
        );
        assert_eq!(why(&selection.candidates[1], true, false, &selection), "not on this node");
    }
}
