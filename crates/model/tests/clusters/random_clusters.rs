//! One to three small random clusters whose ranges, nodes and pods collide, and a host that is outside all of them, or
//! an edge node or a node of the first one. Includes what the host found out about the paths to the pods.

use crate::support::objects::{Generator, Objects, address, net};
use beeline_model::change::{Change, ObjectKey};
use beeline_model::cluster::{ClusterRules, PodAccess};
use beeline_model::diff::SyncScope;
use beeline_model::object::*;
use beeline_model::planner::Planner;
use beeline_model::reach::{PodGroup, Reach, Reachability};
use beeline_model::rules::*;
use beeline_model::{Address, Family, Name, Protocol, ServiceName};
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
/// Include ClusterIPs, this host's own address, and addresses that no remote cluster may use.
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
/// Addresses of pods on this host.
const OWN_PODS: [&str; 4] = ["10.42.1.5", "10.42.1.6", "10.42.2.5", "fd00:42:1::5"];
const RANGES: [&str; 4] = ["10.43.0.0/16", "10.44.0.0/16", "10.44.0.0/24", "fd00:43::/64"];
const PREFIXES: [&str; 4] = ["10.42.1.0/24", "10.42.2.0/24", "fd00:42:1::/64", "fd00:42:2::/64"];
const SOURCES: [&str; 3] = ["192.168.7.0/24", "192.168.0.0/16", "fd00:7::/64"];

#[derive(Debug)]
pub struct RandomClusters {
    pub rng: Rng,
    pub rules: Rules,
    pub reach: Reach,
    pub views: BTreeSet<Name>,
    pub objects: BTreeMap<Name, Objects>,
}

impl Generator for RandomClusters {
    fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}

impl RandomClusters {
    pub fn new(seed: u64) -> RandomClusters {
        let mut rng = Rng::with_seed(seed);
        let mut rules = Rules::for_node(HOST);
        rules.host_role = match rng.u8(..8) {
            0 | 1 => HostRole::Edge,
            2 => HostRole::Node,
            _ => HostRole::Outside,
        };
        rules.local_traffic_policy =
            if rng.u8(..6) == 0 { LocalTrafficPolicy::Strict } else { LocalTrafficPolicy::Kubernetes };
        rules.no_local_endpoint_action =
            if rng.u8(..4) == 0 { NoLocalEndpointAction::Drop } else { NoLocalEndpointAction::Refuse };
        rules.own_addresses = vec![address("192.168.7.2"), address("fd00:7::2")];
        rules.external_ips = ExternalIps::On;
        let mut random =
            RandomClusters { rng, rules, reach: Reach::default(), views: BTreeSet::new(), objects: BTreeMap::new() };
        let count = random.rng.usize(1..=CLUSTERS.len());
        random.rules.clusters = CLUSTERS[..count].iter().map(|name| random.cluster_rules(name)).collect();
        random
    }

    fn ranges(&mut self) -> Vec<IpNet> {
        (0..self.rng.usize(..3)).map(|_| net(self.pick(&RANGES))).collect()
    }

    fn cluster_rules(&mut self, name: &str) -> ClusterRules {
        let mut rules = ClusterRules::for_role(name, self.rules.host_role);
        rules.pod_access = self.pick(&[PodAccess::Direct, PodAccess::Node, PodAccess::Auto, PodAccess::Auto]);
        rules.direct = if self.one_in(4) { vec![net(self.pick(&PREFIXES))] } else { Vec::new() };
        rules.zone = self.one_in(3).then(|| self.pick(&ZONES).into());
        rules.service_ranges = self.one_in(3).then(|| self.ranges());
        rules.view = self.one_in(6).then(|| format!("view-{name}").into());
        if self.one_in(3) {
            rules.node_address_types.reverse();
        }
        rules
    }

    /// Applies everything to a new planner.
    pub fn apply_all(&self, planner: &mut Planner) {
        self.apply_host_state(planner);
        self.objects.keys().for_each(|name| self.apply_cluster(name, planner));
    }

    /// Applies what does not come from a cluster: reach and views.
    pub fn apply_host_state(&self, planner: &mut Planner) {
        planner.set_reach(self.reach.clone());
        planner.set_views(self.views.clone());
    }

    pub fn apply_cluster(&self, name: &Name, planner: &mut Planner) {
        self.objects.get(name).into_iter().for_each(|objects| objects.apply_all(name, planner));
    }

    pub fn full_scope(&mut self) -> SyncScope {
        let all: BTreeSet<Name> = self.rules.clusters.iter().map(|cluster| cluster.name.clone()).collect();
        if self.one_in(2) { SyncScope::All } else { SyncScope::Clusters(all) }
    }

    // ---- changes ----

    /// Creates the range, nodes, Services and slices of each cluster.
    pub fn populate(&mut self, planner: &mut Planner) {
        for name in self.rules.clusters.iter().map(|cluster| cluster.name.clone()).collect::<Vec<_>>() {
            let range = Change::Upsert(Object::ServiceRange(ServiceRange {
                cluster: name.clone(),
                name: "kubernetes".into(),
                ranges: [net(self.pick(&RANGES))].into(),
            }));
            let mut changes = vec![range];
            changes.extend((0..5).map(|_| Change::Upsert(Object::Node(self.node(name.clone())))));
            changes.extend(SERVICES.map(|service| {
                Change::Upsert(Object::Service(self.service(ServiceName::new(&name, "default", service))))
            }));
            changes.extend((0..8).map(|_| self.change(&name, 8)));
            for change in changes {
                self.record(&name, &change);
                planner.apply(change);
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
                let change = self.change(&cluster, kind);
                self.record(&cluster, &change);
                planner.apply(change);
            }
        }
    }

    fn change_reach(&mut self, planner: &mut Planner) {
        for _ in 0..3 {
            let cluster = self.pick(&CLUSTERS).into();
            let node = (!self.one_in(5)).then(|| self.pick(&NODES).into());
            let group = PodGroup { cluster, node, prefix: net(self.pick(&PREFIXES)) };
            let found = self.pick(&[Reachability::Direct, Reachability::Node, Reachability::Unknown]);
            self.reach.found.insert(group, found);
        }
        self.reach.routed = if self.one_in(3) { vec![net("10.43.0.0/16")] } else { Vec::new() };
        planner.set_reach(self.reach.clone());
    }

    fn change_views(&mut self, planner: &mut Planner) {
        self.views = (0..self.rng.usize(..3)).map(|_| self.pick(&CLUSTERS).into()).collect();
        planner.set_views(self.views.clone());
    }

    /// Changes, removes or adds a cluster, or swaps two clusters.
    fn change_clusters(&mut self, planner: &mut Planner) {
        let mut clusters = self.rules.clusters.clone();
        let at = self.rng.usize(..clusters.len());
        // The reference model does not cover nodePorts of the home cluster of a node, so that cluster stays and has
        // none.
        let stays = at == 0 && self.rules.host_role == HostRole::Node;
        let absent = CLUSTERS.into_iter().find(|name| !clusters.iter().any(|cluster| &*cluster.name == *name));
        match (self.rng.u8(..4), absent) {
            (0, Some(name)) => clusters.push(self.cluster_rules(name)),
            (1, _) if clusters.len() > 1 && !stays => drop(clusters.remove(at)),
            (2, _) if self.rules.host_role != HostRole::Node => clusters.swap(0, at),
            _ => clusters[at] = self.cluster_rules(&clusters[at].name.clone()),
        }
        let gone = |name: &Name| !clusters.iter().any(|cluster| cluster.name == *name);
        let left: Vec<Name> = self.objects.keys().filter(|name| gone(name)).cloned().collect();
        for name in left {
            self.objects.remove(&name);
            planner.remove_cluster(&name);
        }
        self.rules.clusters.clone_from(&clusters);
        planner.set_clusters(clusters);
        // If another cluster is the home cluster now, its source lists the pods of this host.
        let home = self.objects.get(&self.rules.clusters[0].name).into_iter();
        home.flat_map(|objects| objects.pods.values())
            .for_each(|pod| _ = planner.apply(Change::Upsert(Object::Pod(pod.clone()))));
    }

    fn record(&mut self, cluster: &Name, change: &Change) {
        self.objects.entry(cluster.clone()).or_default().apply(change);
    }

    fn change(&mut self, cluster: &Name, kind: u8) -> Change {
        let (cluster, range) = (cluster.clone(), Name::from("kubernetes"));
        let service = ServiceName::new(&cluster, "default", self.pick(&SERVICES));
        let slice =
            SliceName { cluster: cluster.clone(), namespace: "default".into(), name: self.pick(&SLICES).into() };
        match kind {
            4..7 => Change::Upsert(Object::Service(self.service(service))),
            7 if self.one_in(2) => Change::Delete(ObjectKey::Service(service)),
            7..11 => Change::Upsert(Object::Slice(self.slice(slice, service))),
            11 if self.one_in(3) => Change::Delete(ObjectKey::Slice(slice)),
            11..14 => Change::Upsert(Object::Node(self.node(cluster))),
            14 if self.one_in(2) => Change::Delete(ObjectKey::Node { cluster, name: self.pick(&NODES).into() }),
            14 if self.one_in(2) => self.pod(cluster),
            14 => Change::Upsert(Object::ServiceRange(ServiceRange {
                cluster,
                name: range,
                ranges: self.ranges().into(),
            })),
            _ => Change::Delete(ObjectKey::ServiceRange { cluster, name: range }),
        }
    }

    /// A pod on this host or on another node.
    fn pod(&mut self, cluster: Name) -> Change {
        let name = PodName { cluster, namespace: "default".into(), name: self.pick(&SERVICES).into() };
        if self.one_in(4) {
            return Change::Delete(ObjectKey::Pod(name));
        }
        Change::Upsert(Object::Pod(Pod {
            name,
            uid: "".into(),
            node: Some(self.pick(&[HOST, HOST, HOST, "n2"]).into()),
            addresses: self.addresses(&OWN_PODS, 2).into(),
            containers: [].into(),
            exclusion: Default::default(),
            view: None,
            labels: Default::default(),
            ready: true,
            ports: [].into(),
        }))
    }

    fn traffic_policy(&mut self) -> TrafficPolicy {
        if self.one_in(4) { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
    }

    fn service(&mut self, name: ServiceName) -> Service {
        let mut cluster_ips = vec![address(self.pick(&CLUSTER_V4))];
        if self.one_in(2) {
            cluster_ips.push(address(self.pick(&CLUSTER_V6)));
        }
        // The API server assigns a nodePort to one Service of a cluster only.
        let number = 30_001 + SERVICES.iter().position(|service| *service == name.name()).unwrap_or(0) as u16;
        let at_home = self.rules.host_role == HostRole::Node && name.cluster() == CLUSTERS[0];
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
            load_balancer_ips: self.addresses(&OUTER, 2).into(),
            external_ips: self.addresses(&OUTER, 1).into(),
            source_ranges: if self.one_in(3) { [net(self.pick(&SOURCES))].into() } else { [].into() },
            has_node_ports,
            internal: self.traffic_policy(),
            external: self.traffic_policy(),
            affinity: None,
            health_check_node_port: 0,
            ports: [port("main", Protocol::Tcp, 80), port("dns", Protocol::Udp, 53)].into(),
            name,
        }
    }

    fn slice(&mut self, name: SliceName, service: ServiceName) -> Slice {
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
        for at in self.addresses(&NODE_ADDRESSES, 3) {
            addresses.push((self.pick(&[AddressType::Internal, AddressType::External]), at));
        }
        let zone = self.one_in(2).then(|| self.pick(&ZONES).into());
        let outside = if self.one_in(5) { [address("198.18.0.9")].into() } else { [].into() };
        let (eligible, ready, edge) = (!self.one_in(6), !self.one_in(4), self.one_in(4));
        Node { addresses, zone, outside, eligible, ready, edge, ..Node::named(&cluster, self.pick(&NODES)) }
    }
}
