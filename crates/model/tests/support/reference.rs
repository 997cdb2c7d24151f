//! Rules that the reference models share: which endpoints of a service port count, and the primary address of a node.

use super::objects::Objects;
use beeline_model::object::{AddressType, Endpoint, Node, Service, ServicePort, TrafficPolicy};
use beeline_model::{Address, Family, Name};
use std::collections::BTreeMap;

/// The endpoints of one service port and family, by address and port.
pub type Endpoints = BTreeMap<(Address, u16), Endpoint>;

pub fn primary_address(node: &Node, family: Family) -> Option<Address> {
    let of = |kind| node.addresses.iter().find(|(k, a)| *k == kind && a.family() == family).map(|(_, a)| *a);
    of(AddressType::Internal).or_else(|| of(AddressType::External))
}

/// Whether externalTrafficPolicy Local applies to an address of the service.
pub fn is_external_local(service: &Service) -> bool {
    service.external == TrafficPolicy::Local && (service.has_node_ports || !service.external_ips.is_empty())
}

/// All endpoints with their nodes: the node that the endpoint names, or else the node that has its address.
pub fn endpoints(
    objects: &Objects,
    service: &Service,
    port: &ServicePort,
    family: Family,
    node_at: impl Fn(Address) -> Option<Name>,
) -> Endpoints {
    let mut found: BTreeMap<(Address, u16), Vec<Endpoint>> = BTreeMap::new();
    for slice in objects.slices.values().filter(|s| s.service == service.name && s.family == family) {
        for number in slice.ports.iter().filter(|p| (&p.name, p.protocol) == (&port.name, port.protocol)) {
            for endpoint in &slice.endpoints {
                let node = endpoint.node.clone().or_else(|| node_at(endpoint.address));
                let endpoint = Endpoint { node, ..endpoint.clone() };
                found.entry((endpoint.address, number.port)).or_default().push(endpoint);
            }
        }
    }
    found.into_iter().map(|(at, all)| (at, merge(all))).collect()
}

/// Merges endpoints with the same address and port. Precedence: not terminating, ready, serving. Among equals the first
/// slice counts, and the node is that of the first one that has a node.
fn merge(all: Vec<Endpoint>) -> Endpoint {
    let rank = |e: &Endpoint| (!e.terminating, e.ready, e.serving);
    let highest = all.iter().map(rank).max().expect("at least one endpoint");
    let mut equals = all.into_iter().filter(|e| rank(e) == highest);
    let mut merged = equals.next().expect("the best endpoint");
    merged.node = merged.node.or_else(|| equals.find_map(|e| e.node));
    merged
}

/// The endpoints for a dial with the traffic policy Cluster: the ready ones, limited by topology hints for this node or
/// zone, or else those that terminate and still serve.
pub fn cluster_endpoints(all: &Endpoints, node: Option<&str>, zone: Option<&Name>) -> Endpoints {
    let ready: Vec<&Endpoint> = all.values().filter(|e| e.ready).collect();
    let zones = |e: &Endpoint| e.hints.as_ref().map(|hints| hints.zones.to_vec()).unwrap_or_default();
    let nodes = |e: &Endpoint| e.hints.as_ref().map(|hints| hints.nodes.to_vec()).unwrap_or_default();
    let on_node = |e: &Endpoint| nodes(e).iter().any(|hint| Some(&**hint) == node);
    let in_zone = |e: &Endpoint| zone.is_some_and(|zone| zones(e).contains(zone));
    let by_node = ready.iter().all(|e| !nodes(e).is_empty()) && ready.iter().any(|e| on_node(e));
    let by_zone = ready.iter().all(|e| !zones(e).is_empty()) && ready.iter().any(|e| in_zone(e));
    let is_hinted = |e: &Endpoint| if by_node { on_node(e) } else { !by_zone || in_zone(e) };
    let counts = |e: &Endpoint| if ready.is_empty() { e.serving && e.terminating } else { e.ready && is_hinted(e) };
    select(all, counts)
}

/// The endpoints for a dial with the traffic policy Local: the ready ones on the node, or else those on the node that
/// terminate and still serve.
pub fn local_endpoints(all: &Endpoints, node: &str) -> Endpoints {
    let local = select(all, |e| e.node.as_deref() == Some(node));
    let any_ready = local.values().any(|e| e.ready);
    select(&local, |e| if any_ready { e.ready } else { e.serving && e.terminating })
}

fn select(all: &Endpoints, counts: impl Fn(&Endpoint) -> bool) -> Endpoints {
    all.iter().filter(|(_, e)| counts(e)).map(|(at, e)| (*at, e.clone())).collect()
}
