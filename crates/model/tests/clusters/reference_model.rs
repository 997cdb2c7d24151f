//! A reference model of several clusters: computes the result of a dial directly from the objects and the rules. It is
//! slow and simple on purpose, and shares only the object types with the planner.

use super::random_clusters::{HOST, RandomClusters};
use crate::support::dial_result::DialResult;
use crate::support::objects::Objects;
use crate::support::reference::{self, Endpoints, primary_address};
use beeline_model::cluster::{ClusterRules, PodAccess};
use beeline_model::event::{Action, Reason};
use beeline_model::object::{Endpoint, Node, Service, ServicePort, TrafficPolicy};
use beeline_model::reach::{PodGroup, Reachability};
use beeline_model::resolve::Dial;
use beeline_model::rules::{HostRole, LocalTrafficPolicy, NoLocalEndpointAction};
use beeline_model::{Address, Family, Name, Protocol};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

pub type Weights = BTreeMap<(Address, u16), usize>;

/// The path to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Direct,
    ByNode { at: Address, good: bool },
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressKind {
    ClusterIp,
    Balancer,
    External,
}

/// One cluster as seen from this host.
struct ClusterModel<'a> {
    random: &'a RandomClusters,
    rules: &'a ClusterRules,
    host_role: HostRole,
    nodes: &'a BTreeMap<Name, Node>,
}

pub struct ReferenceModel<'a> {
    pub random: &'a RandomClusters,
    /// The first cluster of the view of the dial. `None` is the order of the configuration.
    pub first: Option<Name>,
    /// Unknown ranges of earlier clusters exclude nothing: a Service keeps the addresses that it had before the ranges
    /// became unknown.
    pub assume_known: bool,
}

fn result(action: Action, reason: Reason) -> (DialResult, Weights) {
    (DialResult { action, reason, backends: BTreeSet::new() }, Weights::new())
}

fn untouched() -> (DialResult, Weights) {
    result(Action::Untouched, Reason::None)
}

fn resolved(weights: Weights) -> (DialResult, Weights) {
    let backends = weights.keys().copied().collect();
    (DialResult { action: Action::Resolved, reason: Reason::None, backends }, weights)
}

fn special(address: Address) -> bool {
    address.is_loopback() || address.is_link_local()
}

impl<'a> ReferenceModel<'a> {
    pub fn resolve(&self, dial: &Dial) -> (DialResult, Weights) {
        let Some(cluster) = self.cluster_at(dial.address) else { return self.node_port(dial) };
        let model = self.cluster_model(cluster);
        let mut claims: Vec<(AddressKind, &Service, &ServicePort)> = Vec::new();
        for service in self.services(&cluster.name) {
            for port in service.ports.iter().filter(|p| (p.port, p.protocol) == (dial.port, dial.protocol)) {
                claims.extend(model.kinds(service, port, dial.address).into_iter().map(|kind| (kind, service, port)));
            }
        }
        claims.sort_by_key(|(kind, service, _)| (*kind, service.created, service.name.clone()));
        match claims.first() {
            Some((kind, service, port)) => model.resolve_service(*kind, service, port, dial.address.family()),
            None if self.is_cluster_ip(cluster, dial.address) => result(Action::Refused, Reason::NoPort),
            None => self.node_port(dial),
        }
    }

    /// The owner of an address: the first cluster in the order of the view that has a Service there, on any port.
    fn cluster_at(&self, address: Address) -> Option<&'a ClusterRules> {
        let claims = |cluster: &&ClusterRules| {
            let model = self.cluster_model(cluster);
            let names = |service: &Service| service.ports.iter().any(|p| !model.kinds(service, p, address).is_empty());
            let any = self.services(&cluster.name).any(names) || self.is_cluster_ip(cluster, address);
            any && self.may_use(&cluster.name, address)
        };
        self.order().into_iter().find(claims)
    }

    fn order(&self) -> Vec<&'a ClusterRules> {
        let all = &self.random.rules.clusters;
        let first = all.iter().filter(|cluster| Some(&cluster.name) == self.first.as_ref());
        first.chain(all.iter().filter(|cluster| Some(&cluster.name) != self.first.as_ref())).collect()
    }

    fn services(&self, cluster: &Name) -> impl Iterator<Item = &'a Service> {
        self.random.objects.get(cluster).into_iter().flat_map(|objects| objects.services.values())
    }

    fn cluster_model(&self, rules: &'a ClusterRules) -> ClusterModel<'a> {
        static NO_NODES: BTreeMap<Name, Node> = BTreeMap::new();
        // This host can only be a node of the first configured cluster.
        let home = rules.name == self.random.rules.clusters[0].name;
        let host_role = if home { self.random.rules.host_role } else { HostRole::Outside };
        let nodes = self.random.objects.get(&rules.name).map_or(&NO_NODES, |objects| &objects.nodes);
        ClusterModel { random: self.random, rules, host_role, nodes }
    }

    /// The configured ranges, or else those of the cluster's objects.
    fn ranges(&self, cluster: &ClusterRules) -> Option<Vec<IpNet>> {
        ranges_of(self.random, cluster)
    }

    /// A cluster may not use the addresses of earlier clusters' nodes, nor of the pods on this host.
    fn may_use(&self, name: &Name, address: Address) -> bool {
        let mut earlier = self.order().into_iter().take_while(|cluster| cluster.name != *name);
        let taken = earlier.any(|cluster| self.cluster_model(cluster).node_at(address).is_some());
        !taken && self.is_outside_ranges(name, address)
    }

    /// The address is in no range of an earlier cluster, and all those ranges are known.
    fn is_outside_ranges(&self, name: &Name, address: Address) -> bool {
        let earlier = self.order().into_iter().take_while(|cluster| cluster.name != *name);
        let free = |ranges: Vec<IpNet>| !ranges.iter().any(|range| range.contains(&address.ip()));
        earlier.into_iter().all(|cluster| self.ranges(cluster).map_or(self.assume_known, free))
    }

    pub fn waits(&self) -> bool {
        self.order().into_iter().any(|cluster| self.ranges(cluster).is_none())
    }

    fn is_cluster_ip(&self, cluster: &'a ClusterRules, address: Address) -> bool {
        let model = self.cluster_model(cluster);
        let known = |service: &Service| {
            service.cluster_ips.contains(&address)
                && model.may_program(address)
                && !service.ports.iter().any(|port| model.is_left_to_a_route(service, port, address))
        };
        self.services(&cluster.name).any(known)
    }

    // ---- rule 9 ----

    fn node_port(&self, dial: &Dial) -> (DialResult, Weights) {
        let family = dial.address.family();
        let Some(cluster) = self.cluster_of_node_at(dial.address) else { return untouched() };
        let model = self.cluster_model(cluster);
        for service in self.services(&cluster.name) {
            let has = service.has_node_ports && service.cluster_ip(family).is_some();
            let same = |p: &&ServicePort| (p.node_port, p.protocol) == (dial.port, dial.protocol);
            for port in service.ports.iter().filter(same).filter(|_| has) {
                let set = model.cluster_set(service, port, family);
                let direct = |(_, endpoint): (&(Address, u16), &Endpoint)| model.path(endpoint, port) == Path::Direct;
                let local = service.external == TrafficPolicy::Local || model.is_strict(service);
                if !local && !set.is_empty() && set.iter().all(direct) {
                    return resolved(model.weigh(&set, port));
                }
            }
        }
        untouched()
    }

    /// The cluster whose NodePorts are served at the address, which is the primary address of a node. Of two clusters
    /// the first has it. The address may not be a Service address of an earlier cluster in any view, nor, for a remote
    /// cluster, this host's own.
    fn cluster_of_node_at(&self, address: Address) -> Option<&'a ClusterRules> {
        let rules = &self.random.rules;
        let of = |cluster: &&ClusterRules| {
            let model = self.cluster_model(cluster);
            let home = model.is_home();
            let own = rules.own_addresses.contains(&address);
            if home && own_primary(&model, address) {
                return true;
            }
            let mine = |node: &Node| home && node.addresses.iter().any(|(_, a)| *a == address) && &*node.name == HOST;
            let primary = |node: &&Node| primary_address(node, address.family()) == Some(address);
            let taken = own && home || model.nodes.values().any(mine);
            let mut others = model.nodes.values().filter(|node| !home || &*node.name != HOST);
            let free = self.views().into_iter().all(|first| {
                ReferenceModel { random: self.random, assume_known: self.assume_known || first.is_some(), first }
                    .is_outside_ranges(&cluster.name, address)
            });
            let allowed = home || !special(address) && !own;
            others.any(|node| primary(&node)) && !taken && allowed && free
        };
        rules.clusters.iter().find(of)
    }

    /// The views in use, by their first cluster.
    fn views(&self) -> Vec<Option<Name>> {
        self.random.rules.clusters.iter().enumerate().fold(vec![None], |mut all, (i, cluster)| {
            let requested = self.random.views.iter().any(|view| *view == cluster.name);
            if requested || i > 0 && cluster.view.is_some() {
                all.push(Some(cluster.name.clone()));
            }
            all
        })
    }
}

/// An edge node's primary address is that of its Node object, or, without one, its first address.
fn own_primary(model: &ClusterModel<'_>, address: Address) -> bool {
    let family = address.family();
    let first = || model.random.rules.own_addresses.iter().copied().find(|a| a.family() == family);
    model.nodes.get(HOST).map_or_else(first, |node| primary_address(node, family)) == Some(address)
}

impl ClusterModel<'_> {
    // ---- which addresses ----

    /// This host is a node of the cluster.
    fn is_home(&self) -> bool {
        self.host_role != HostRole::Outside
    }

    /// Rule 10.
    fn may_program(&self, address: Address) -> bool {
        self.is_home() || !special(address) && !self.random.rules.own_addresses.contains(&address)
    }

    fn kinds(&self, service: &Service, port: &ServicePort, at: Address) -> Vec<AddressKind> {
        let family = at.family();
        if service.cluster_ip(family).is_none() || !self.may_program(at) {
            return Vec::new();
        }
        let mut kinds = Vec::new();
        if service.cluster_ips.contains(&at) && !self.is_left_to_a_route(service, port, at) {
            kinds.push(AddressKind::ClusterIp);
        }
        let reachable = !self.weigh(&self.cluster_set(service, port, family), port).is_empty();
        if !self.is_protected(service, at) && (reachable || self.is_strict(service) || self.host_role == HostRole::Node)
        {
            let held = service.load_balancer_ips.contains(&at) && self.source_ranges_hold(service, family);
            kinds.extend(held.then_some(AddressKind::Balancer));
            kinds.extend(service.external_ips.contains(&at).then_some(AddressKind::External));
        }
        kinds
    }

    /// An address of the cluster itself, which no external or load-balancer address may take: one of its service ranges,
    /// of a pod on this host, or (in the only cluster) of another Service.
    fn is_protected(&self, service: &Service, at: Address) -> bool {
        let objects = &self.random.objects[&self.rules.name];
        let in_range =
            ranges_of(self.random, self.rules).is_some_and(|all| all.iter().any(|range| range.contains(&at.ip())));
        let is_closed = |other: &&Service| {
            let mut ports = other.ports.iter().filter(|port| port.protocol.has_hook());
            other.cluster_ips.contains(&at) && !ports.any(|port| self.is_left_to_a_route(other, port, at))
        };
        let is_only = self.random.rules.clusters.len() == 1;
        let is_cluster_ip = is_only && self.may_program(at) && objects.services.values().any(|other| is_closed(&other));
        !service.cluster_ips.contains(&at) && (in_range || is_cluster_ip || self.is_local_pod(objects, at))
    }

    fn is_local_pod(&self, objects: &Objects, at: Address) -> bool {
        let own_node = objects.nodes.get(HOST);
        let is_own = self.random.rules.own_addresses.contains(&at)
            || own_node
                .is_some_and(|node| node.addresses.iter().any(|(_, own)| *own == at) || node.entry.contains(&at));
        let mut pods = objects.pods.values().filter(|pod| pod.node.as_deref() == Some(HOST));
        self.is_home() && !is_own && pods.any(|pod| pod.addresses.contains(&at))
    }

    /// Rule 8.
    fn source_ranges_hold(&self, service: &Service, family: Family) -> bool {
        if self.host_role == HostRole::Node {
            return true;
        }
        let mut ranges = service.source_ranges.iter().filter(|range| Family::of(range.addr()) == family).peekable();
        let own: Vec<Address> =
            self.random.rules.own_addresses.iter().copied().filter(|a| a.family() == family).collect();
        let ranges: Vec<&IpNet> = if ranges.peek().is_none() { return true } else { ranges.collect() };
        !own.is_empty() && own.iter().all(|a| ranges.iter().any(|range| range.contains(&a.ip())))
    }

    /// Rule 6.
    fn is_left_to_a_route(&self, service: &Service, port: &ServicePort, at: Address) -> bool {
        let set = self.cluster_set(service, port, at.family());
        let routed = self.random.reach.routed.iter().any(|range| range.contains(&at.ip()));
        let local = service.internal == TrafficPolicy::Local || self.is_strict(service);
        routed && self.host_role != HostRole::Node && !local && !set.is_empty() && self.weigh(&set, port).is_empty()
    }

    // ---- what a dial gets ----

    fn resolve_service(
        &self,
        kind: AddressKind,
        service: &Service,
        port: &ServicePort,
        family: Family,
    ) -> (DialResult, Weights) {
        let restricted = service.source_ranges.iter().any(|range| Family::of(range.addr()) == family);
        if self.host_role == HostRole::Node && kind == AddressKind::Balancer && restricted {
            // These dials have no source address.
            return result(Action::Untouched, Reason::SourceUnknown);
        }
        let local =
            self.is_strict(service) || kind == AddressKind::ClusterIp && service.internal == TrafficPolicy::Local;
        let set = if local { self.local_set(service, port, family) } else { self.cluster_set(service, port, family) };
        let weights = self.weigh(&set, port);
        let may = |e: &Endpoint| e.ready || e.serving && e.terminating;
        let any = self.endpoints(service, port, family).iter().any(|(_, e)| may(e));
        match (weights.is_empty(), local && any, self.random.rules.no_local_endpoint_action) {
            (false, ..) => resolved(weights),
            (true, true, NoLocalEndpointAction::Refuse) => result(Action::Refused, Reason::NoLocal),
            (true, true, NoLocalEndpointAction::Drop) => result(Action::Untouched, Reason::NoLocal),
            (true, false, _) => result(Action::Refused, Reason::NoEndpoint),
        }
    }

    fn is_strict(&self, service: &Service) -> bool {
        self.random.rules.local_traffic_policy == LocalTrafficPolicy::Strict
            && (service.internal == TrafficPolicy::Local || reference::is_external_local(service))
    }

    /// Rules 2, 4 and 5.
    fn weigh(&self, set: &Endpoints, port: &ServicePort) -> Weights {
        let (mut good, mut bad) = (Weights::new(), Weights::new());
        for (at, endpoint) in set {
            match self.path(endpoint, port) {
                Path::Direct => *good.entry(*at).or_default() += 1,
                Path::ByNode { at, good: true } => *good.entry((at, port.node_port)).or_default() += 1,
                Path::ByNode { at, good: false } => *bad.entry((at, port.node_port)).or_default() += 1,
                Path::None => {}
            }
        }
        if good.is_empty() { bad } else { good }
    }

    // ---- rules 1 to 3, and 11 ----

    fn path(&self, endpoint: &Endpoint, port: &ServicePort) -> Path {
        let address = endpoint.address;
        let node = endpoint.node.as_ref().and_then(|name| self.nodes.get(name));
        let configured = self.rules.pod_access == PodAccess::Direct
            || self.rules.direct.iter().any(|net| net.contains(&address.ip()));
        match self.host_role {
            HostRole::Node => return Path::Direct,
            HostRole::Edge => return self.path_from_edge(endpoint, port, configured),
            HostRole::Outside => {}
        }
        let nodes_own = self.nodes.values().any(|node| node.addresses.iter().any(|(_, a)| *a == address));
        let found = match self.rules.pod_access {
            PodAccess::Auto if self.is_prefix_shared(endpoint) => Reachability::Node,
            PodAccess::Auto => {
                let group = PodGroup::of(self.rules.name.clone(), endpoint.node.clone(), address);
                self.random.reach.found.get(&group).copied().unwrap_or(Reachability::Unknown)
            }
            _ => Reachability::Node,
        };
        match found {
            _ if !self.may_program(address) => Path::None,
            _ if nodes_own || configured => Path::Direct,
            Reachability::Direct => Path::Direct,
            Reachability::Unknown if port.node_port == 0 || endpoint.node.is_none() => Path::Direct,
            _ => self.by_node(node, port, address.family()),
        }
    }

    /// Rule 1 applies here too: configured ranges are direct. A node's own address is direct if there is no nodePort to
    /// use instead.
    fn path_from_edge(&self, endpoint: &Endpoint, port: &ServicePort, configured: bool) -> Path {
        let node = endpoint.node.as_ref().and_then(|name| self.nodes.get(name));
        let by_node = self.by_node(node, port, endpoint.address.family());
        match by_node {
            _ if endpoint.node.as_deref() == Some(HOST) || configured || endpoint.node.is_none() => Path::Direct,
            _ if node.is_some_and(|node| node.edge) => Path::None,
            Path::None if self.node_at(endpoint.address).is_some() => Path::Direct,
            path => path,
        }
    }

    /// Another cluster whose pods may be dialled has pods in the same prefix. An endpoint without a node is not a pod.
    fn is_prefix_shared(&self, endpoint: &Endpoint) -> bool {
        let prefix = |address| PodGroup::of("".into(), None, address).prefix;
        let shared: BTreeSet<IpNet> = self
            .others()
            .flat_map(|other| {
                let theirs: BTreeSet<IpNet> =
                    pods_of(self.random, other, endpoint.address.family()).map(prefix).collect();
                pods_of(self.random, &self.random.objects[&self.rules.name], endpoint.address.family())
                    .map(prefix)
                    .filter(move |at| theirs.contains(at))
            })
            .collect();
        !shared.is_empty() && (endpoint.node.is_some() || shared.contains(&prefix(endpoint.address)))
    }

    fn others(&self) -> impl Iterator<Item = &Objects> {
        let clusters = self.random.rules.clusters.iter().enumerate();
        let inside = self.random.rules.host_role != HostRole::Outside;
        let counts =
            move |(place, rules): &(usize, &ClusterRules)| rules.pod_access != PodAccess::Node || *place == 0 && inside;
        let others = clusters.filter(counts).filter(|(_, rules)| rules.name != self.rules.name);
        others.filter_map(|(_, rules)| self.random.objects.get(&rules.name))
    }

    fn by_node(&self, node: Option<&Node>, port: &ServicePort, family: Family) -> Path {
        let Some(node) = node.filter(|_| port.node_port != 0) else { return Path::None };
        let fits = |a: &Address| a.family() == family && !special(*a) && self.may_program(*a);
        let mut candidates: Vec<Address> = node.outside.to_vec();
        for kind in &self.rules.node_address_types {
            candidates.extend(node.addresses.iter().filter(|(k, _)| k == kind).map(|(_, a)| *a));
        }
        match candidates.into_iter().find(fits) {
            Some(at) => Path::ByNode { at, good: node.ready && node.eligible },
            None => Path::None,
        }
    }

    // ---- endpoints ----

    fn endpoints(&self, service: &Service, port: &ServicePort, family: Family) -> Endpoints {
        let objects = &self.random.objects[&self.rules.name];
        reference::endpoints(objects, service, port, family, |address| self.node_at(address))
    }

    fn node_at(&self, address: Address) -> Option<Name> {
        let has = |node: &&Node| node.addresses.iter().any(|(_, a)| *a == address);
        if self.is_home() {
            let ours = self.nodes.get(HOST).filter(|node| has(node)).is_some();
            let pods = self.random.objects.get(&self.rules.name).into_iter().flat_map(|objects| objects.pods.values());
            let mut here = pods.filter(|pod| pod.node.as_deref() == Some(HOST));
            let pods_own = here.any(|pod| pod.addresses.contains(&address));
            if ours || pods_own || self.random.rules.own_addresses.contains(&address) {
                return Some(HOST.into());
            }
        }
        self.nodes.values().find(has).map(|node| node.name.clone())
    }

    fn cluster_set(&self, service: &Service, port: &ServicePort, family: Family) -> Endpoints {
        let all = self.endpoints(service, port, family);
        let home = self.is_home();
        let own_zone = self.nodes.get(HOST).filter(|_| home).and_then(|node| node.zone.clone());
        let zone = self.rules.zone.clone().or(own_zone);
        reference::cluster_endpoints(&all, home.then_some(HOST), zone.as_ref())
    }

    fn local_set(&self, service: &Service, port: &ServicePort, family: Family) -> Endpoints {
        if !self.is_home() {
            return Endpoints::new();
        }
        reference::local_endpoints(&self.endpoints(service, port, family), HOST)
    }
}

/// The groups whose paths must be probed, with the endpoints to probe.
fn ranges_of(random: &RandomClusters, cluster: &ClusterRules) -> Option<Vec<IpNet>> {
    let objects = random.objects.get(&cluster.name).map(|objects| objects.ranges.values().flatten().copied());
    let listed = cluster.service_ranges.clone().filter(|ranges| !ranges.is_empty());
    listed.or_else(|| objects.map(Iterator::collect)).filter(|ranges: &Vec<IpNet>| !ranges.is_empty())
}

pub fn reach_targets(random: &RandomClusters) -> Vec<(PodGroup, Vec<(Address, u16)>)> {
    let reference = ReferenceModel { random, first: None, assume_known: false };
    let mut groups: BTreeMap<PodGroup, BTreeSet<(Address, u16)>> = BTreeMap::new();
    for (name, objects) in &random.objects {
        let Some(rules) = random.rules.clusters.iter().find(|rules| rules.name == *name) else { continue };
        let model = reference.cluster_model(rules);
        let slices = objects.slices.values().filter(|slice| objects.services.contains_key(&slice.service));
        for (slice, e) in slices.flat_map(|slice| slice.endpoints.iter().map(move |e| (slice, e))) {
            if !(e.ready || e.serving) || !model.is_probed(e) {
                continue;
            }
            let probes = groups.entry(PodGroup::of(name.clone(), e.node.clone(), e.address)).or_default();
            let ports = slice.ports.iter().filter(|port| e.ready && port.protocol == Protocol::Tcp);
            probes.extend(ports.map(|port| (e.address, port.port)));
        }
    }
    groups.into_iter().map(|(group, probes)| (group, probes.into_iter().take(3).collect())).collect()
}

impl ClusterModel<'_> {
    fn is_probed(&self, endpoint: &Endpoint) -> bool {
        let address = endpoint.address;
        let configured = self.rules.direct.iter().any(|net| net.contains(&address.ip()));
        !self.is_home()
            && self.rules.pod_access == PodAccess::Auto
            && !configured
            && self.may_program(address)
            && self.node_at(address).is_none()
            && !self.is_prefix_shared(endpoint)
    }
}

/// Dials to all addresses and ports that the clusters may use.
pub fn dials() -> Vec<Dial> {
    use super::random_clusters::{CLUSTER_V4, CLUSTER_V6, NODE_ADDRESSES, OUTER};
    use crate::support::objects::address;
    let mut all: Vec<&str> = Vec::new();
    for group in [&CLUSTER_V4[..], &CLUSTER_V6, &OUTER, &NODE_ADDRESSES, &["10.43.0.77", "10.42.1.5", "8.8.8.8"]] {
        all.extend(group);
    }
    all.sort_unstable();
    all.dedup();
    let mut dials = Vec::new();
    for at in all {
        for port in [80, 53, 30_001, 30_002, 30_003, 9] {
            dials.extend([Protocol::Tcp, Protocol::Udp].map(|protocol| Dial::to(address(at), port, protocol)));
        }
    }
    dials
}

fn pods_of(random: &RandomClusters, objects: &Objects, family: Family) -> impl Iterator<Item = Address> {
    let nodes_own =
        |address: Address| objects.nodes.values().any(|node| node.addresses.iter().any(|(_, own)| *own == address));
    let endpoints = objects.slices.values().flat_map(|slice| &slice.endpoints).filter(|e| e.node.is_some());
    let addresses = endpoints.map(|endpoint| endpoint.address).filter(move |address| address.family() == family);
    let is_own = |address: &Address| random.rules.own_addresses.contains(address);
    addresses.filter(move |address| !special(*address) && !nodes_own(*address) && !is_own(address))
}
