//! Random stand-points: one to three small clusters whose ranges, nodes and pods collide, a host that stands outside them,
//! at the edge of the first or in it, and what it found out about the way to their pods.

use beeline_model::diff::Whole;
use beeline_model::fact::*;
use beeline_model::planner::Planner;
use beeline_model::reach::{Found, Group, Reach};
use beeline_model::rules::*;
use beeline_model::stand::{ClusterRules, Pods};
use beeline_model::{Address, Family, Name, OwnerName, Protocol};
use fastrand::Rng;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

pub const HOST: &str = "e1";
pub const CLUSTERS: [&str; 3] = ["a", "b", "c"];
const NODES: [&str; 4] = [HOST, "n2", "n3", "n4"];
const SERVICES: [&str; 3] = ["db", "dns", "web"];
const SLICES: [&str; 6] = ["s0", "s1", "s2", "s3", "s4", "s5"];
const ZONES: [&str; 2] = ["east", "west"];
pub const CLUSTER_V4: [&str; 5] = ["10.43.0.1", "10.43.0.2", "10.44.0.1", "10.45.0.1", "192.168.7.2"];
pub const CLUSTER_V6: [&str; 2] = ["fd00:43::1", "fd00:44::1"];
/// Among them ClusterIPs, this host's own address, and what no remote cluster may have.
pub const OUTER: [&str; 8] = [
    "203.0.113.50",
    "203.0.113.51",
    "10.43.0.2",
    "192.168.7.2",
    "169.254.1.1",
    "fd00:99::1",
    "10.44.0.9",
    NODE_AND_BALANCER,
];
pub const NODE_AND_BALANCER: &str = "172.31.0.2";
pub const NODE_ADDRESSES: [&str; 8] = [
    NODE_AND_BALANCER,
    "172.31.0.3",
    "203.0.113.2",
    "203.0.113.3",
    "10.44.0.7",
    "192.168.7.2",
    "fd00:31::2",
    "fd00:31::3",
];
const PODS: [&str; 11] = [
    "192.168.7.2",
    "10.42.1.5",
    "10.42.1.6",
    "10.42.2.5",
    "10.42.2.6",
    "172.31.0.3",
    "127.0.0.1",
    "169.254.3.3",
    "fd00:42:1::5",
    "fd00:42:2::5",
    "fd00:31::3",
];
/// Of our own node.
const OWN_PODS: [&str; 4] = ["10.42.1.5", "10.42.1.6", "10.42.2.5", "fd00:42:1::5"];
const RANGES: [&str; 4] = ["10.43.0.0/16", "10.44.0.0/16", "10.44.0.0/24", "fd00:43::/64"];
const PREFIXES: [&str; 4] = ["10.42.1.0/24", "10.42.2.0/24", "fd00:42:1::/64", "fd00:42:2::/64"];
const SOURCES: [&str; 3] = ["192.168.7.0/24", "192.168.0.0/16", "fd00:7::/64"];

pub fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::IpAddr>().expect("an address"))
}

pub fn net(text: &str) -> IpNet {
    text.parse().expect("a range")
}

/// What one cluster says.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub services: BTreeMap<OwnerName, Service>,
    pub slices: BTreeMap<SliceName, Slice>,
    pub nodes: BTreeMap<Name, Node>,
    pub pods: BTreeMap<PodName, Pod>,
    pub ranges: BTreeMap<Name, Box<[IpNet]>>,
}

#[derive(Debug)]
pub struct World {
    pub rng: Rng,
    pub rules: Rules,
    pub reach: Reach,
    pub views: BTreeSet<Name>,
    pub facts: BTreeMap<Name, Cluster>,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let mut rules = Rules::for_node(HOST);
        rules.stand_point = match rng.u8(..8) {
            0 | 1 => StandPoint::Edge,
            2 => StandPoint::Node,
            _ => StandPoint::Outside,
        };
        rules.local_policy = if rng.u8(..6) == 0 { LocalPolicy::Strict } else { LocalPolicy::Kubernetes };
        rules.empty_local = if rng.u8(..4) == 0 { EmptyLocal::Drop } else { EmptyLocal::Refuse };
        rules.own_addresses = vec![address("192.168.7.2"), address("fd00:7::2")];
        let mut world = World { rng, rules, reach: Reach::default(), views: BTreeSet::new(), facts: BTreeMap::new() };
        let count = world.rng.usize(1..=CLUSTERS.len());
        world.rules.clusters = CLUSTERS[..count].iter().map(|name| world.cluster_rules(name)).collect();
        world
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.usize(..all.len())]
    }

    fn one_in(&mut self, n: u8) -> bool {
        self.rng.u8(..n) == 0
    }

    fn some(&mut self, all: &[&str], most: usize) -> Vec<Address> {
        (0..self.rng.usize(..=most)).map(|_| address(self.pick(all))).collect()
    }

    fn ranges(&mut self) -> Vec<IpNet> {
        (0..self.rng.usize(..3)).map(|_| net(self.pick(&RANGES))).collect()
    }

    fn cluster_rules(&mut self, name: &str) -> ClusterRules {
        let mut rules = ClusterRules::standing(name, self.rules.stand_point);
        rules.pods = self.pick(&[Pods::Direct, Pods::Node, Pods::Auto, Pods::Auto]);
        rules.direct = if self.one_in(4) { vec![net(self.pick(&PREFIXES))] } else { Vec::new() };
        rules.zone = self.one_in(3).then(|| self.pick(&ZONES).into());
        rules.service_ranges = self.one_in(3).then(|| self.ranges());
        rules.view = self.one_in(6).then(|| format!("view-{name}").into());
        if self.one_in(3) {
            rules.node_address_types.reverse();
        }
        rules
    }

    /// Everything, as somebody would hear it who knows nothing yet.
    pub fn tell(&self, planner: &mut Planner) {
        self.tell_ground(planner);
        self.facts.keys().for_each(|name| self.tell_cluster(name, planner));
    }

    /// What no cluster says.
    pub fn tell_ground(&self, planner: &mut Planner) {
        planner.set_reach(self.reach.clone());
        planner.set_views(self.views.clone());
    }

    pub fn tell_cluster(&self, name: &Name, planner: &mut Planner) {
        let Some(cluster) = self.facts.get(name) else { return };
        for (range, ranges) in &cluster.ranges {
            let (cluster, name, ranges) = (name.clone(), range.clone(), ranges.clone());
            planner.apply(Fact::ServiceRange { cluster, name, ranges });
        }
        cluster.nodes.values().for_each(|node| _ = planner.apply(Fact::Node(node.clone())));
        cluster.services.values().for_each(|service| _ = planner.apply(Fact::Service(service.clone())));
        cluster.slices.values().for_each(|slice| _ = planner.apply(Fact::Slice(slice.clone())));
        cluster.pods.values().for_each(|pod| _ = planner.apply(Fact::Pod(pod.clone())));
    }

    pub fn whole(&mut self) -> Whole {
        let all: BTreeSet<Name> = self.rules.clusters.iter().map(|cluster| cluster.name.clone()).collect();
        if self.one_in(2) { Whole::Everything } else { Whole::Clusters(all) }
    }

    // ---- changes ----

    /// Clusters that have been there for a while: each with its range, nodes, Services and pods.
    pub fn populate(&mut self, planner: &mut Planner) {
        for name in self.rules.clusters.iter().map(|cluster| cluster.name.clone()).collect::<Vec<_>>() {
            let range = Fact::ServiceRange {
                cluster: name.clone(),
                name: "kubernetes".into(),
                ranges: [net(self.pick(&RANGES))].into(),
            };
            let mut facts = vec![range];
            facts.extend((0..5).map(|_| Fact::Node(self.node(name.clone()))));
            facts
                .extend(SERVICES.map(|service| Fact::Service(self.service(OwnerName::new(&name, "default", service)))));
            facts.extend((0..8).map(|_| self.fact(&name, 8)));
            for fact in facts {
                self.note(&name, fact.clone());
                planner.apply(fact);
            }
        }
        (0..6).for_each(|_| self.step(planner));
    }

    pub fn step(&mut self, planner: &mut Planner) {
        match self.rng.u8(..16) {
            0 => self.change_reach(planner),
            1 => self.change_views(planner),
            2 => self.change_clusters(planner),
            3 => {
                let more = self.one_in(2).then(|| address("192.168.8.2"));
                self.rules.own_addresses =
                    [address("192.168.7.2"), address("fd00:7::2")].into_iter().chain(more).collect();
                planner.set_own_addresses(self.rules.own_addresses.clone());
            }
            kind => {
                let names: Vec<Name> = self.rules.clusters.iter().map(|cluster| cluster.name.clone()).collect();
                let cluster = names[self.rng.usize(..names.len())].clone();
                let fact = self.fact(&cluster, kind);
                self.note(&cluster, fact.clone());
                planner.apply(fact);
            }
        }
    }

    fn change_reach(&mut self, planner: &mut Planner) {
        for _ in 0..3 {
            let cluster = self.pick(&CLUSTERS).into();
            let node = (!self.one_in(5)).then(|| self.pick(&NODES).into());
            let group = Group { cluster, node, prefix: net(self.pick(&PREFIXES)) };
            let found = self.pick(&[Found::Direct, Found::Node, Found::Unknown]);
            self.reach.found.insert(group, found);
        }
        self.reach.routed = if self.one_in(3) { vec![net("10.43.0.0/16")] } else { Vec::new() };
        planner.set_reach(self.reach.clone());
    }

    fn change_views(&mut self, planner: &mut Planner) {
        self.views = (0..self.rng.usize(..3)).map(|_| self.pick(&CLUSTERS).into()).collect();
        planner.set_views(self.views.clone());
    }

    /// One changes, goes or comes, or two change places.
    fn change_clusters(&mut self, planner: &mut Planner) {
        let mut clusters = self.rules.clusters.clone();
        let at = self.rng.usize(..clusters.len());
        // What a nodePort of its own means on a node is told elsewhere: its cluster has none here, and stays.
        let stays = at == 0 && self.rules.stand_point == StandPoint::Node;
        let absent = CLUSTERS.into_iter().find(|name| !clusters.iter().any(|cluster| &*cluster.name == *name));
        match (self.rng.u8(..4), absent) {
            (0, Some(name)) => clusters.push(self.cluster_rules(name)),
            (1, _) if clusters.len() > 1 && !stays => drop(clusters.remove(at)),
            (2, _) if self.rules.stand_point != StandPoint::Node => clusters.swap(0, at),
            _ => clusters[at] = self.cluster_rules(&clusters[at].name.clone()),
        }
        let gone = |name: &Name| !clusters.iter().any(|cluster| cluster.name == *name);
        let left: Vec<Name> = self.facts.keys().filter(|name| gone(name)).cloned().collect();
        for name in left {
            self.facts.remove(&name);
            planner.forget(&name);
        }
        self.rules.clusters.clone_from(&clusters);
        planner.set_clusters(clusters);
        // Of another cluster that we are part of now, its source tells our pods.
        let home = self.facts.get(&self.rules.clusters[0].name).into_iter();
        home.flat_map(|facts| facts.pods.values()).for_each(|pod| _ = planner.apply(Fact::Pod(pod.clone())));
    }

    fn note(&mut self, cluster: &Name, fact: Fact) {
        let known = self.facts.entry(cluster.clone()).or_default();
        match fact {
            Fact::Service(service) => drop(known.services.insert(service.name.clone(), service)),
            Fact::ServiceGone(name) => drop(known.services.remove(&name)),
            Fact::Slice(slice) => drop(known.slices.insert(slice.name.clone(), slice)),
            Fact::SliceGone(name) => drop(known.slices.remove(&name)),
            Fact::Node(node) => drop(known.nodes.insert(node.name.clone(), node)),
            Fact::NodeGone { name, .. } => drop(known.nodes.remove(&name)),
            Fact::Pod(pod) => drop(known.pods.insert(pod.name.clone(), pod)),
            Fact::PodGone(name) => drop(known.pods.remove(&name)),
            // What was known last holds: nothing is forgotten.
            Fact::ServiceRangeGone { .. } => {}
            Fact::ServiceRange { ranges, .. } if ranges.is_empty() => {}
            Fact::ServiceRange { name, ranges, .. } => drop(known.ranges.insert(name, ranges)),
            other => unreachable!("this world makes none: {other:?}"),
        }
    }

    fn fact(&mut self, cluster: &Name, kind: u8) -> Fact {
        let (cluster, range) = (cluster.clone(), Name::from("kubernetes"));
        let service = OwnerName::new(&cluster, "default", self.pick(&SERVICES));
        let slice =
            SliceName { cluster: cluster.clone(), namespace: "default".into(), name: self.pick(&SLICES).into() };
        match kind {
            4..7 => Fact::Service(self.service(service)),
            7 if self.one_in(2) => Fact::ServiceGone(service),
            7..11 => Fact::Slice(self.slice(slice, service)),
            11 if self.one_in(3) => Fact::SliceGone(slice),
            11..14 => Fact::Node(self.node(cluster)),
            14 if self.one_in(2) => Fact::NodeGone { cluster, name: self.pick(&NODES).into() },
            14 if self.one_in(2) => self.pod(cluster),
            14 => Fact::ServiceRange { cluster, name: range, ranges: self.ranges().into() },
            _ => Fact::ServiceRangeGone { cluster, name: range },
        }
    }

    /// On our node, by its name, or on another.
    fn pod(&mut self, cluster: Name) -> Fact {
        let name = PodName { cluster, namespace: "default".into(), name: self.pick(&SERVICES).into() };
        if self.one_in(4) {
            return Fact::PodGone(name);
        }
        Fact::Pod(Pod {
            name,
            uid: "".into(),
            node: Some(self.pick(&[HOST, HOST, HOST, "n2"]).into()),
            addresses: self.some(&OWN_PODS, 2).into(),
            containers: [].into(),
            untouched: false,
            view: None,
            labels: Default::default(),
            ready: true,
            ports: [].into(),
        })
    }

    fn policy(&mut self) -> Policy {
        if self.one_in(4) { Policy::Local } else { Policy::Cluster }
    }

    fn service(&mut self, name: OwnerName) -> Service {
        let mut cluster_ips = vec![address(self.pick(&CLUSTER_V4))];
        if self.one_in(2) {
            cluster_ips.push(address(self.pick(&CLUSTER_V6)));
        }
        // The API gives a nodePort to one Service of a cluster.
        let number = 30_001 + SERVICES.iter().position(|service| *service == name.name()).unwrap_or(0) as u16;
        let at_home = self.rules.stand_point == StandPoint::Node && name.cluster() == CLUSTERS[0];
        let has_node_ports = self.one_in(2) && !at_home;
        let port = |name: &str, protocol, port| ServicePort {
            name: name.into(),
            protocol,
            port,
            node_port: if has_node_ports { number } else { 0 },
        };
        Service {
            created: self.rng.i64(..3),
            cluster_ips: cluster_ips.into(),
            load_balancer_ips: self.some(&OUTER, 2).into(),
            external_ips: self.some(&OUTER, 1).into(),
            source_ranges: if self.one_in(3) { [net(self.pick(&SOURCES))].into() } else { [].into() },
            has_node_ports,
            internal: self.policy(),
            external: self.policy(),
            affinity: None,
            health_check_node_port: 0,
            ports: [port("main", Protocol::Tcp, 80), port("dns", Protocol::Udp, 53)].into(),
            name,
        }
    }

    fn slice(&mut self, name: SliceName, service: OwnerName) -> Slice {
        let family = if self.one_in(3) { Family::V6 } else { Family::V4 };
        let port = |name: &str, protocol, port| SlicePort { name: name.into(), protocol, port };
        let mut ports = vec![port("main", Protocol::Tcp, 8080)];
        if !self.one_in(4) {
            ports.push(port("dns", Protocol::Udp, 5353));
        }
        let pods: Vec<Address> = PODS.map(address).into_iter().filter(|a| a.family() == family).collect();
        let endpoints = (0..self.rng.usize(1..6)).map(|_| self.endpoint(&pods)).collect();
        Slice { name, service, family, ports: ports.into(), endpoints, hostnames: None }
    }

    fn endpoint(&mut self, pods: &[Address]) -> Endpoint {
        let (ready, serving, terminating) = match self.rng.u8(..5) {
            0 => (false, true, true),
            1 => (false, false, false),
            _ => (true, true, false),
        };
        let hinted = self.one_in(3);
        let hints = Hints { zones: [self.pick(&ZONES).into()].into(), nodes: [self.pick(&NODES).into()].into() };
        Endpoint {
            address: self.pick(pods),
            ready,
            serving,
            terminating,
            node: (!self.one_in(6)).then(|| self.pick(&NODES).into()),
            hints: hinted.then(|| Box::new(hints)),
        }
    }

    fn node(&mut self, cluster: Name) -> Node {
        let mut addresses = Vec::new();
        for at in self.some(&NODE_ADDRESSES, 3) {
            addresses.push((self.pick(&[AddressType::Internal, AddressType::External]), at));
        }
        let zone = self.one_in(2).then(|| self.pick(&ZONES).into());
        let outside = if self.one_in(5) { [address("198.18.0.9")].into() } else { [].into() };
        let (eligible, ready, edge) = (!self.one_in(6), !self.one_in(4), self.one_in(4));
        Node { addresses, zone, outside, eligible, ready, edge, ..Node::named(&cluster, self.pick(&NODES)) }
    }
}
