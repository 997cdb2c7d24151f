//! A second opinion on stand-points: from the objects straight to what one dial may become, by the letter of the rules. It
//! is slow and simple on purpose, and shares nothing with the planner but the types of the facts.

use super::world::{Cluster, HOST, World};
use crate::support::answer::Answer;
use beeline_model::event::{Action, Reason};
use beeline_model::fact::{AddressType, Endpoint, Node, Policy, Service, ServicePort};
use beeline_model::reach::{Found, Group};
use beeline_model::resolve::Dial;
use beeline_model::rules::{EmptyLocal, LocalPolicy, StandPoint};
use beeline_model::stand::{ClusterRules, Pods};
use beeline_model::{Address, Family, Name, Protocol};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

pub type Weights = BTreeMap<(Address, u16), usize>;

/// What is dialled instead of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    ByNode { at: Address, good: bool },
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    ClusterIp,
    Balancer,
    External,
}

/// One cluster, seen from here.
struct Seen<'a> {
    world: &'a World,
    rules: &'a ClusterRules,
    stand: StandPoint,
    nodes: &'a BTreeMap<Name, Node>,
}

type Endpoints = Vec<((Address, u16), Endpoint)>;

pub struct Naive<'a> {
    pub world: &'a World,
    /// The cluster that this dial's view has first; `None`: the configuration's order.
    pub first: Option<Name>,
    /// What is waited for is not: who had an address before an earlier cluster's ranges became unknown keeps it.
    pub patient: bool,
}

fn answer(action: Action, reason: Reason) -> (Answer, Weights) {
    (Answer { action, reason, backends: BTreeSet::new() }, Weights::new())
}

fn untouched() -> (Answer, Weights) {
    answer(Action::Untouched, Reason::None)
}

fn resolved(weights: Weights) -> (Answer, Weights) {
    let backends = weights.keys().copied().collect();
    (Answer { action: Action::Resolved, reason: Reason::None, backends }, weights)
}

fn special(address: Address) -> bool {
    address.is_loopback() || address.is_link_local()
}

impl<'a> Naive<'a> {
    pub fn answer(&self, dial: &Dial) -> (Answer, Weights) {
        let Some(cluster) = self.whose(dial.address) else { return self.node_port(dial) };
        let seen = self.seen(cluster);
        let mut claims: Vec<(By, &Service, &ServicePort)> = Vec::new();
        for service in self.services(&cluster.name) {
            for port in service.ports.iter().filter(|p| (p.port, p.protocol) == (dial.port, dial.protocol)) {
                claims.extend(seen.kinds(service, port, dial.address).into_iter().map(|by| (by, service, port)));
            }
        }
        claims.sort_by_key(|(by, service, _)| (*by, service.created, service.name.clone()));
        match claims.first() {
            Some((by, service, port)) => seen.serve(*by, service, port, dial.address.family()),
            None if self.is_known(cluster, dial.address) => answer(Action::Refused, Reason::NoPort),
            None => self.node_port(dial),
        }
    }

    /// An address is the first cluster's that has a Service there, on any port; in the order of the view.
    fn whose(&self, address: Address) -> Option<&'a ClusterRules> {
        let claims = |cluster: &&ClusterRules| {
            let seen = self.seen(cluster);
            let names = |service: &Service| service.ports.iter().any(|p| !seen.kinds(service, p, address).is_empty());
            let any = self.services(&cluster.name).any(names) || self.is_known(cluster, address);
            any && self.may_have(&cluster.name, address)
        };
        self.order().into_iter().find(claims)
    }

    fn order(&self) -> Vec<&'a ClusterRules> {
        let all = &self.world.rules.clusters;
        let first = all.iter().filter(|cluster| Some(&cluster.name) == self.first.as_ref());
        first.chain(all.iter().filter(|cluster| Some(&cluster.name) != self.first.as_ref())).collect()
    }

    fn services(&self, cluster: &Name) -> impl Iterator<Item = &'a Service> {
        self.world.facts.get(cluster).into_iter().flat_map(|facts| facts.services.values())
    }

    fn seen(&self, rules: &'a ClusterRules) -> Seen<'a> {
        static NOBODY: BTreeMap<Name, Node> = BTreeMap::new();
        // Of one cluster at most this host is a part: the first of the configuration.
        let home = rules.name == self.world.rules.clusters[0].name;
        let stand = if home { self.world.rules.stand_point } else { StandPoint::Outside };
        let nodes = self.world.facts.get(&rules.name).map_or(&NOBODY, |facts| &facts.nodes);
        Seen { world: self.world, rules, stand, nodes }
    }

    /// Ranges come from the configuration, else from the cluster's objects.
    fn ranges(&self, cluster: &ClusterRules) -> Option<Vec<IpNet>> {
        let objects = self.world.facts.get(&cluster.name).map(|facts| facts.ranges.values().flatten().copied());
        let listed = cluster.service_ranges.clone().filter(|ranges| !ranges.is_empty());
        listed.or_else(|| objects.map(Iterator::collect)).filter(|ranges: &Vec<IpNet>| !ranges.is_empty())
    }

    /// Nor at a node of an earlier cluster, or at a pod on ours.
    fn may_have(&self, name: &Name, address: Address) -> bool {
        let mut earlier = self.order().into_iter().take_while(|cluster| cluster.name != *name);
        let taken = earlier.any(|cluster| self.seen(cluster).node_at(address).is_some());
        !taken && self.is_outside_ranges(name, address)
    }

    /// Never inside an earlier cluster's range, nor anywhere while that is unknown.
    fn is_outside_ranges(&self, name: &Name, address: Address) -> bool {
        let earlier = self.order().into_iter().take_while(|cluster| cluster.name != *name);
        let free = |ranges: Vec<IpNet>| !ranges.iter().any(|range| range.contains(&address.ip()));
        earlier.into_iter().all(|cluster| self.ranges(cluster).map_or(self.patient, free))
    }

    pub fn waits(&self) -> bool {
        self.order().into_iter().any(|cluster| self.ranges(cluster).is_none())
    }

    fn is_known(&self, cluster: &'a ClusterRules, address: Address) -> bool {
        let seen = self.seen(cluster);
        let known = |service: &Service| {
            service.cluster_ips.contains(&address)
                && seen.may_program(address)
                && !service.ports.iter().any(|port| seen.is_left_to_a_route(service, port, address))
        };
        self.services(&cluster.name).any(known)
    }

    // ---- rule 9 ----

    fn node_port(&self, dial: &Dial) -> (Answer, Weights) {
        let family = dial.address.family();
        let Some(cluster) = self.whose_node(dial.address) else { return untouched() };
        let seen = self.seen(cluster);
        for service in self.services(&cluster.name) {
            let has = service.has_node_ports && service.cluster_ip(family).is_some();
            let same = |p: &&ServicePort| (p.node_port, p.protocol) == (dial.port, dial.protocol);
            for port in service.ports.iter().filter(same).filter(|_| has) {
                let set = seen.cluster_set(service, port, family);
                let direct = |(_, endpoint): &((Address, u16), Endpoint)| seen.way(endpoint, port) == Way::Direct;
                let local = service.external == Policy::Local || seen.is_strict(service);
                if !local && !set.is_empty() && set.iter().all(direct) {
                    return resolved(seen.weigh(&set, port));
                }
            }
        }
        untouched()
    }

    /// NodePorts answer at a node's primary address. Of two clusters that name one the first has it; none has one that may
    /// be another's Service in some view, and a remote one none of this host's own.
    fn whose_node(&self, address: Address) -> Option<&'a ClusterRules> {
        let rules = &self.world.rules;
        let of = |cluster: &&ClusterRules| {
            let seen = self.seen(cluster);
            let home = seen.is_home();
            let own = rules.own_addresses.contains(&address);
            if home && own_primary(&seen, address) {
                return true;
            }
            let mine = |node: &Node| home && node.addresses.iter().any(|(_, a)| *a == address) && &*node.name == HOST;
            let primary = |node: &&Node| primary_of(node, address.family()) == Some(address);
            let taken = own && home || seen.nodes.values().any(mine);
            let mut others = seen.nodes.values().filter(|node| !home || &*node.name != HOST);
            let free = self.views().into_iter().all(|first| {
                Naive { world: self.world, patient: self.patient || first.is_some(), first }
                    .is_outside_ranges(&cluster.name, address)
            });
            let allowed = home || !special(address) && !own;
            others.any(|node| primary(&node)) && !taken && allowed && free
        };
        rules.clusters.iter().find(of)
    }

    /// Those in use, by the clusters that they have first.
    fn views(&self) -> Vec<Option<Name>> {
        self.world.rules.clusters.iter().enumerate().fold(vec![None], |mut all, (i, cluster)| {
            let asked = self.world.views.iter().any(|view| *view == cluster.name);
            if asked || i > 0 && cluster.view.is_some() {
                all.push(Some(cluster.name.clone()));
            }
            all
        })
    }
}

fn primary_of(node: &Node, family: Family) -> Option<Address> {
    let of = |kind| node.addresses.iter().find(|(k, a)| *k == kind && a.family() == family).map(|(_, a)| *a);
    of(AddressType::Internal).or_else(|| of(AddressType::External))
}

/// At the edge this host is a Node: its primary address is the Node's, or, with no Node, its first.
fn own_primary(seen: &Seen<'_>, address: Address) -> bool {
    let family = address.family();
    let first = || seen.world.rules.own_addresses.iter().copied().find(|a| a.family() == family);
    seen.nodes.get(HOST).map_or_else(first, |node| primary_of(node, family)) == Some(address)
}

impl Seen<'_> {
    // ---- which addresses ----

    /// This host is a part of it.
    fn is_home(&self) -> bool {
        self.stand != StandPoint::Outside
    }

    /// Rule 10.
    fn may_program(&self, address: Address) -> bool {
        self.is_home() || !special(address) && !self.world.rules.own_addresses.contains(&address)
    }

    fn kinds(&self, service: &Service, port: &ServicePort, at: Address) -> Vec<By> {
        let family = at.family();
        if service.cluster_ip(family).is_none() || !self.may_program(at) {
            return Vec::new();
        }
        let mut kinds = Vec::new();
        if service.cluster_ips.contains(&at) && !self.is_left_to_a_route(service, port, at) {
            kinds.push(By::ClusterIp);
        }
        let reachable = !self.weigh(&self.cluster_set(service, port, family), port).is_empty();
        if reachable || self.is_strict(service) || self.stand == StandPoint::Node {
            let held = service.load_balancer_ips.contains(&at) && self.source_ranges_hold(service, family);
            kinds.extend(held.then_some(By::Balancer));
            kinds.extend(service.external_ips.contains(&at).then_some(By::External));
        }
        kinds
    }

    /// Rule 8.
    fn source_ranges_hold(&self, service: &Service, family: Family) -> bool {
        if self.stand == StandPoint::Node {
            return true;
        }
        let mut ranges = service.source_ranges.iter().filter(|range| Family::of(range.addr()) == family).peekable();
        let own: Vec<Address> =
            self.world.rules.own_addresses.iter().copied().filter(|a| a.family() == family).collect();
        let ranges: Vec<&IpNet> = if ranges.peek().is_none() { return true } else { ranges.collect() };
        !own.is_empty() && own.iter().all(|a| ranges.iter().any(|range| range.contains(&a.ip())))
    }

    /// Rule 6.
    fn is_left_to_a_route(&self, service: &Service, port: &ServicePort, at: Address) -> bool {
        let set = self.cluster_set(service, port, at.family());
        let routed = self.world.reach.routed.iter().any(|range| range.contains(&at.ip()));
        let local = service.internal == Policy::Local || self.is_strict(service);
        routed && self.stand != StandPoint::Node && !local && !set.is_empty() && self.weigh(&set, port).is_empty()
    }

    // ---- what a dial gets ----

    fn serve(&self, by: By, service: &Service, port: &ServicePort, family: Family) -> (Answer, Weights) {
        let restricted = service.source_ranges.iter().any(|range| Family::of(range.addr()) == family);
        if self.stand == StandPoint::Node && by == By::Balancer && restricted {
            // No dial here says where it comes from.
            return answer(Action::Untouched, Reason::SourceUnknown);
        }
        let local = self.is_strict(service) || by == By::ClusterIp && service.internal == Policy::Local;
        let set = if local { self.local_set(service, port, family) } else { self.cluster_set(service, port, family) };
        let weights = self.weigh(&set, port);
        let may = |e: &Endpoint| e.ready || e.serving && e.terminating;
        let any = self.endpoints(service, port, family).iter().any(|(_, e)| may(e));
        match (weights.is_empty(), local && any, self.world.rules.empty_local) {
            (false, ..) => resolved(weights),
            (true, true, EmptyLocal::Refuse) => answer(Action::Refused, Reason::NoLocal),
            (true, true, EmptyLocal::Drop) => answer(Action::Untouched, Reason::NoLocal),
            (true, false, _) => answer(Action::Refused, Reason::NoEndpoint),
        }
    }

    fn is_strict(&self, service: &Service) -> bool {
        let external =
            service.external == Policy::Local && (service.has_node_ports || !service.external_ips.is_empty());
        self.world.rules.local_policy == LocalPolicy::Strict && (service.internal == Policy::Local || external)
    }

    /// Rules 2, 4 and 5.
    fn weigh(&self, set: &Endpoints, port: &ServicePort) -> Weights {
        let (mut good, mut bad) = (Weights::new(), Weights::new());
        for (at, endpoint) in set {
            match self.way(endpoint, port) {
                Way::Direct => *good.entry(*at).or_default() += 1,
                Way::ByNode { at, good: true } => *good.entry((at, port.node_port)).or_default() += 1,
                Way::ByNode { at, good: false } => *bad.entry((at, port.node_port)).or_default() += 1,
                Way::None => {}
            }
        }
        if good.is_empty() { bad } else { good }
    }

    // ---- rules 1 to 3, and 11 ----

    fn way(&self, endpoint: &Endpoint, port: &ServicePort) -> Way {
        let address = endpoint.address;
        let node = endpoint.node.as_ref().and_then(|name| self.nodes.get(name));
        let said = self.rules.pods == Pods::Direct || self.rules.direct.iter().any(|net| net.contains(&address.ip()));
        match self.stand {
            StandPoint::Node => return Way::Direct,
            StandPoint::Edge => return self.way_from_edge(endpoint, port, said),
            StandPoint::Outside => {}
        }
        let nodes_own = self.nodes.values().any(|node| node.addresses.iter().any(|(_, a)| *a == address));
        let found = match self.rules.pods {
            Pods::Auto if self.may_be_anothers(endpoint) => Found::Node,
            Pods::Auto => {
                let group = Group::of(self.rules.name.clone(), endpoint.node.clone(), address);
                self.world.reach.found.get(&group).copied().unwrap_or(Found::Unknown)
            }
            _ => Found::Node,
        };
        match found {
            _ if !self.may_program(address) => Way::None,
            _ if nodes_own || said => Way::Direct,
            Found::Direct => Way::Direct,
            Found::Unknown if port.node_port == 0 || endpoint.node.is_none() => Way::Direct,
            _ => self.by_node(node, port, address.family()),
        }
    }

    /// Rule 1 holds here too: what is said to be routed is direct. A node's own address is, where there is no nodePort that
    /// could stand in for it.
    fn way_from_edge(&self, endpoint: &Endpoint, port: &ServicePort, said: bool) -> Way {
        let node = endpoint.node.as_ref().and_then(|name| self.nodes.get(name));
        let by_node = self.by_node(node, port, endpoint.address.family());
        match by_node {
            _ if endpoint.node.as_deref() == Some(HOST) || said || endpoint.node.is_none() => Way::Direct,
            _ if node.is_some_and(|node| node.edge) => Way::None,
            Way::None if self.node_at(endpoint.address).is_some() => Way::Direct,
            way => way,
        }
    }

    /// Another cluster, whose pods we may dial as well, has pods where this one has some. What names no node is no pod.
    fn may_be_anothers(&self, endpoint: &Endpoint) -> bool {
        let prefix = |address| Group::of("".into(), None, address).prefix;
        let shared: BTreeSet<IpNet> = self
            .others()
            .flat_map(|other| {
                let theirs: BTreeSet<IpNet> =
                    pods_of(self.world, other, endpoint.address.family()).map(prefix).collect();
                pods_of(self.world, &self.world.facts[&self.rules.name], endpoint.address.family())
                    .map(prefix)
                    .filter(move |at| theirs.contains(at))
            })
            .collect();
        !shared.is_empty() && (endpoint.node.is_some() || shared.contains(&prefix(endpoint.address)))
    }

    fn others(&self) -> impl Iterator<Item = &Cluster> {
        let clusters = self.world.rules.clusters.iter().enumerate();
        let inside = self.world.rules.stand_point != StandPoint::Outside;
        let counts = move |(place, rules): &(usize, &ClusterRules)| rules.pods != Pods::Node || *place == 0 && inside;
        let others = clusters.filter(counts).filter(|(_, rules)| rules.name != self.rules.name);
        others.filter_map(|(_, rules)| self.world.facts.get(&rules.name))
    }

    fn by_node(&self, node: Option<&Node>, port: &ServicePort, family: Family) -> Way {
        let Some(node) = node.filter(|_| port.node_port != 0) else { return Way::None };
        let fits = |a: &Address| a.family() == family && !special(*a) && self.may_program(*a);
        let mut candidates: Vec<Address> = node.outside.to_vec();
        for kind in &self.rules.node_address_types {
            candidates.extend(node.addresses.iter().filter(|(k, _)| k == kind).map(|(_, a)| *a));
        }
        match candidates.into_iter().find(fits) {
            Some(at) => Way::ByNode { at, good: node.ready && node.eligible },
            None => Way::None,
        }
    }

    // ---- endpoints ----

    /// With the node that each stands on: as it says, else whose address it has.
    fn endpoints(&self, service: &Service, port: &ServicePort, family: Family) -> Endpoints {
        let facts = &self.world.facts[&self.rules.name];
        let mut found: BTreeMap<(Address, u16), Vec<Endpoint>> = BTreeMap::new();
        for slice in facts.slices.values().filter(|s| s.service == service.name && s.family == family) {
            for number in slice.ports.iter().filter(|p| (&p.name, p.protocol) == (&port.name, port.protocol)) {
                for endpoint in &slice.endpoints {
                    let node = endpoint.node.clone().or_else(|| self.node_at(endpoint.address));
                    let endpoint = Endpoint { node, ..endpoint.clone() };
                    found.entry((endpoint.address, number.port)).or_default().push(endpoint);
                }
            }
        }
        found.into_iter().map(|(at, all)| (at, best(all))).collect()
    }

    fn node_at(&self, address: Address) -> Option<Name> {
        let has = |node: &&Node| node.addresses.iter().any(|(_, a)| *a == address);
        if self.is_home() {
            let ours = self.nodes.get(HOST).filter(|node| has(node)).is_some();
            let pods = self.world.facts.get(&self.rules.name).into_iter().flat_map(|facts| facts.pods.values());
            let mut here = pods.filter(|pod| pod.node.as_deref() == Some(HOST));
            let pods_own = here.any(|pod| pod.addresses.contains(&address));
            if ours || pods_own || self.world.rules.own_addresses.contains(&address) {
                return Some(HOST.into());
            }
        }
        self.nodes.values().find(has).map(|node| node.name.clone())
    }

    fn cluster_set(&self, service: &Service, port: &ServicePort, family: Family) -> Endpoints {
        let all = self.endpoints(service, port, family);
        let ready: Vec<&Endpoint> = all.iter().map(|(_, e)| e).filter(|e| e.ready).collect();
        let home = self.is_home();
        let own_zone = self.nodes.get(HOST).filter(|_| home).and_then(|node| node.zone.clone());
        let zone = self.rules.zone.clone().or(own_zone);
        let zones = |e: &Endpoint| e.hints.as_ref().map(|hints| hints.zones.to_vec()).unwrap_or_default();
        let nodes = |e: &Endpoint| e.hints.as_ref().map(|hints| hints.nodes.to_vec()).unwrap_or_default();
        let on_node = |e: &Endpoint| home && nodes(e).iter().any(|node| &**node == HOST);
        let in_zone = |e: &Endpoint| zone.as_ref().is_some_and(|zone| zones(e).contains(zone));
        let by_node = ready.iter().all(|e| !nodes(e).is_empty()) && ready.iter().any(|e| on_node(e));
        let by_zone = ready.iter().all(|e| !zones(e).is_empty()) && ready.iter().any(|e| in_zone(e));
        let keep = |e: &Endpoint| if by_node { on_node(e) } else { !by_zone || in_zone(e) };
        let none_ready = ready.is_empty();
        let chosen = |e: &Endpoint| if none_ready { e.serving && e.terminating } else { e.ready && keep(e) };
        all.into_iter().filter(|(_, e)| chosen(e)).collect()
    }

    fn local_set(&self, service: &Service, port: &ServicePort, family: Family) -> Endpoints {
        let here = |e: &Endpoint| self.is_home() && e.node.as_deref() == Some(HOST);
        let all: Endpoints = self.endpoints(service, port, family).into_iter().filter(|(_, e)| here(e)).collect();
        let any_ready = all.iter().any(|(_, e)| e.ready);
        let chosen = |e: &Endpoint| if any_ready { e.ready } else { e.serving && e.terminating };
        all.into_iter().filter(|(_, e)| chosen(e)).collect()
    }
}

/// What has to be asked about the way to pods, and of whom.
pub fn groups(world: &World) -> Vec<(Group, Vec<(Address, u16)>)> {
    let naive = Naive { world, first: None, patient: false };
    let mut groups: BTreeMap<Group, BTreeSet<(Address, u16)>> = BTreeMap::new();
    for (name, facts) in &world.facts {
        let Some(rules) = world.rules.clusters.iter().find(|rules| rules.name == *name) else { continue };
        let seen = naive.seen(rules);
        let slices = facts.slices.values().filter(|slice| facts.services.contains_key(&slice.service));
        for (slice, e) in slices.flat_map(|slice| slice.endpoints.iter().map(move |e| (slice, e))) {
            if !(e.ready || e.serving) || !seen.is_asked(e) {
                continue;
            }
            let probes = groups.entry(Group::of(name.clone(), e.node.clone(), e.address)).or_default();
            let ports = slice.ports.iter().filter(|port| e.ready && port.protocol == Protocol::Tcp);
            probes.extend(ports.map(|port| (e.address, port.port)));
        }
    }
    groups.into_iter().map(|(group, probes)| (group, probes.into_iter().take(3).collect())).collect()
}

impl Seen<'_> {
    fn is_asked(&self, endpoint: &Endpoint) -> bool {
        let address = endpoint.address;
        let said = self.rules.direct.iter().any(|net| net.contains(&address.ip()));
        !self.is_home()
            && self.rules.pods == Pods::Auto
            && !said
            && self.may_program(address)
            && self.node_at(address).is_none()
            && !self.may_be_anothers(endpoint)
    }
}

/// Live wins over terminating, then ready, then serving; of equals the first, and the first that knows the node says it.
fn best(all: Vec<Endpoint>) -> Endpoint {
    let rank = |e: &Endpoint| (!e.terminating, e.ready, e.serving);
    let highest = all.iter().map(rank).max().expect("at least one");
    let mut equals = all.into_iter().filter(|e| rank(e) == highest);
    let mut kept = equals.next().expect("the best one");
    kept.node = kept.node.or_else(|| equals.find_map(|e| e.node));
    kept
}

/// Everything worth dialling.
pub fn dials() -> Vec<Dial> {
    use super::world::{CLUSTER_V4, CLUSTER_V6, NODE_ADDRESSES, OUTER, address};
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

fn pods_of(world: &World, cluster: &Cluster, family: Family) -> impl Iterator<Item = Address> {
    let nodes_own =
        |address: Address| cluster.nodes.values().any(|node| node.addresses.iter().any(|(_, own)| *own == address));
    let endpoints = cluster.slices.values().flat_map(|slice| &slice.endpoints).filter(|e| e.node.is_some());
    let addresses = endpoints.map(|endpoint| endpoint.address).filter(move |address| address.family() == family);
    let is_own = |address: &Address| world.rules.own_addresses.contains(address);
    addresses.filter(move |address| !special(*address) && !nodes_own(*address) && !is_own(address))
}
