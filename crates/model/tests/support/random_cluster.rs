//! A random cluster, small on purpose: few names, addresses and ports, so that conflicts and moves are frequent. A seed
//! always gives the same cluster.

#[path = "random_policy.rs"]
mod policy;

pub use super::objects::{Generator, Objects, address};

use beeline_model::change::{Change, ObjectKey};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::*;
use beeline_model::planner::Planner;
use beeline_model::resolve::Dial;
use beeline_model::rules::*;
use beeline_model::{Address, Family, Name, Protocol, ServiceName};
use fastrand::Rng;
use ipnet::IpNet;
pub use policy::CGROUPS;
use policy::{MORE_RANGES, VIRTUAL};

pub const OWN_NODE: &str = "n1";
/// n4 never has a Node object.
const NODES: [&str; 4] = [OWN_NODE, "n2", "n3", "n4"];
const ZONES: [&str; 2] = ["east", "west"];
const SERVICES: [(&str, &str); 5] = [("a", "web"), ("a", "dns"), ("b", "web"), ("b", "api"), ("c", "db")];
const SLICES: [&str; 7] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6"];
/// Names and protocols of ports. A slice may have the name or the protocol of a service port without the other.
const PAIRS: [(&str, Protocol); 6] = [
    ("", Protocol::Tcp),
    ("http", Protocol::Tcp),
    ("dns", Protocol::Udp),
    ("dns", Protocol::Tcp),
    ("http", Protocol::Udp),
    ("", Protocol::Sctp),
];
/// Service ports and nodePorts share two numbers.
const PORTS: [u16; 4] = [80, 53, 30001, 30002];
const NODE_PORTS: [u16; 4] = [0, 30001, 30002, 80];
const TARGETS: [u16; 3] = [8080, 8081, 53];

const CLUSTER_V4: [&str; 4] = ["10.96.0.1", "10.96.0.2", "10.96.0.3", "10.97.0.4"];
const CLUSTER_V6: [&str; 3] = ["fd00:96::1", "fd00:96::2", "fd00:97::3"];
/// Include a ClusterIP and the address of another node.
const BALANCER: [&str; 5] = ["192.0.2.1", "192.0.2.2", "10.96.0.2", "172.18.0.3", "fd00:2::1"];
/// Include a load-balancer address, a ClusterIP and the address of this node.
const EXTERNAL: [&str; 6] = ["198.51.100.1", "192.0.2.1", "10.96.0.3", "172.18.0.2", "fd00:51::1", "fd00:2::1"];
const PODS_V4: [&str; 8] =
    ["10.244.1.5", "10.244.1.6", "10.244.2.5", "10.244.2.6", "10.244.3.5", "10.244.9.9", "172.18.0.2", "172.18.0.3"];
const PODS_V6: [&str; 4] = ["fd00:244:1::5", "fd00:244:2::5", "fd00:244:3::5", "fd00:18::3"];
const RANGES: [&str; 4] = ["10.244.1.0/24", "172.18.0.0/16", "10.0.0.0/8", "fd00:244::/32"];
const SOURCES: [&str; 4] = ["10.244.1.9", "172.18.0.2", "198.18.0.1", "fd00:244::9"];

pub struct RandomCluster {
    pub rng: Rng,
    pub objects: Objects,
    pub rules: Rules,
}

impl Generator for RandomCluster {
    fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}

impl RandomCluster {
    pub fn new(seed: u64) -> RandomCluster {
        let mut rng = Rng::with_seed(seed);
        let rules = random_rules(&mut rng);
        let objects = Objects { cgroups: CGROUPS.into_iter().collect(), ..Objects::default() };
        RandomCluster { rng, objects, rules }
    }

    /// Creates Services, slices, nodes and policies.
    pub fn populate(&mut self, planner: &mut Planner) {
        self.objects.apply_all(LOCAL_CLUSTER, planner);
        for kind in [0, 0, 0, 0, 0, 0, 17, 17, 17, 8, 8, 8, 8, 8, 8, 8, 8] {
            planner.apply(self.change_of(kind));
        }
        for _ in 0..20 {
            self.step_policies(planner);
        }
    }

    /// Applies one random change, here and to the planner.
    pub fn step(&mut self, planner: &mut Planner) {
        if self.one_in(3) {
            return self.step_policies(planner);
        }
        let kind = self.rng.u8(0..20);
        planner.apply(self.change_of(kind));
    }

    fn step_policies(&mut self, planner: &mut Planner) {
        if self.one_in(8) {
            let (uid, id) = self.pick(&CGROUPS);
            let found = (!self.one_in(3)).then_some(id);
            planner.set_cgroup(uid, found);
            match found {
                Some(id) => drop(self.objects.cgroups.insert(uid, id)),
                None => drop(self.objects.cgroups.remove(uid)),
            }
            return;
        }
        let change = self.policy_change();
        self.objects.apply(&change);
        planner.apply(change);
    }

    fn change_of(&mut self, kind: u8) -> Change {
        let change = match kind {
            0..7 => Change::Upsert(Object::Service(self.service())),
            7 => Change::Delete(ObjectKey::Service(self.service_name())),
            8..16 => Change::Upsert(Object::Slice(self.slice())),
            16 => Change::Delete(ObjectKey::Slice(self.slice_name())),
            17..19 => Change::Upsert(Object::Node(self.node())),
            _ => Change::Delete(ObjectKey::Node { cluster: LOCAL_CLUSTER.into(), name: self.pick(&NODES[..3]).into() }),
        };
        self.objects.apply(&change);
        change
    }

    fn service_name(&mut self) -> ServiceName {
        let (namespace, name) = self.pick(&SERVICES);
        ServiceName::local(namespace, name)
    }

    fn slice_name(&mut self) -> SliceName {
        SliceName { cluster: LOCAL_CLUSTER.into(), namespace: "a".into(), name: self.pick(&SLICES).into() }
    }

    /// A dial to the address of some Service or policy.
    pub fn aimed_dial(&mut self) -> Option<Dial> {
        if self.one_in(2) {
            return self.policy_dial();
        }
        let services: Vec<&Service> = self.objects.services.values().collect();
        let service = (*services.get(self.rng.usize(..services.len().max(1)))?).clone();
        let port = service.ports.get(self.rng.usize(..service.ports.len()))?;
        let mut at: Vec<(Address, u16)> = Vec::new();
        for addresses in [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips] {
            at.extend(addresses.iter().map(|a| (*a, port.port)));
        }
        let nodes = ["172.18.0.2", "172.18.0.3", "172.18.0.4", "203.0.113.3", "fd00:18::3", "127.0.0.1", "::1"];
        if at.is_empty() || self.one_in(3) {
            at = nodes.iter().map(|a| (address(a), port.node_port)).collect();
        }
        let (to, number) = self.pick(&at);
        let sources: Vec<Address> = SOURCES.map(address).into_iter().filter(|s| s.family() == to.family()).collect();
        let source = (!self.one_in(4)).then(|| self.pick(&sources));
        let cgroups = if self.one_in(2) { vec![self.pick(&CGROUPS).1] } else { Vec::new() };
        Some(Dial { source, cgroups, host: self.rng.bool(), ..Dial::to(to, number, port.protocol) })
    }

    fn traffic_policy(&mut self) -> TrafficPolicy {
        if self.one_in(3) { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
    }

    fn service(&mut self) -> Service {
        let mut cluster_ips = Vec::new();
        if !self.one_in(6) {
            cluster_ips.push(address(self.pick(&CLUSTER_V4)));
        }
        if self.one_in(2) {
            cluster_ips.push(address(self.pick(&CLUSTER_V6)));
        }
        let with_balancer = self.one_in(2);
        let source_ranges = if self.one_in(3) { self.ranges() } else { Vec::new() };
        Service {
            name: self.service_name(),
            created: self.rng.i64(0..3),
            cluster_ips: cluster_ips.into(),
            load_balancer_ips: if with_balancer { self.addresses(&BALANCER, 3) } else { Vec::new() }.into(),
            external_ips: if self.one_in(2) { self.addresses(&EXTERNAL, 3) } else { Vec::new() }.into(),
            source_ranges: source_ranges.into(),
            has_node_ports: with_balancer || self.one_in(2),
            internal: self.traffic_policy(),
            external: self.traffic_policy(),
            affinity: self.one_in(4).then_some(10_800),
            health_check_node_port: 0,
            ports: self.service_ports().into(),
        }
    }

    fn ranges(&mut self) -> Vec<IpNet> {
        (0..self.rng.usize(1..3)).map(|_| self.pick(&RANGES).parse().expect("a range")).collect()
    }

    /// The API accepts no two ports of one name and protocol, of one number and protocol, or of one nodePort and
    /// protocol in a Service.
    fn service_ports(&mut self) -> Vec<ServicePort> {
        let mut ports: Vec<ServicePort> = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            let (name, protocol) = self.pick(&PAIRS);
            let (port, node_port) = (self.pick(&PORTS), self.pick(&NODE_PORTS));
            let clashes = |p: &ServicePort| {
                let same_number = p.port == port || (node_port != 0 && p.node_port == node_port);
                p.protocol == protocol && (same_number || &*p.name == name)
            };
            if !ports.iter().any(clashes) {
                ports.push(ServicePort { name: name.into(), protocol, port, node_port });
            }
        }
        ports
    }

    fn slice(&mut self) -> Slice {
        let family = if self.one_in(3) { Family::V6 } else { Family::V4 };
        let count = if self.one_in(8) { self.rng.usize(7..40) } else { self.rng.usize(0..4) };
        Slice {
            name: self.slice_name(),
            service: self.service_name(),
            family,
            ports: self.slice_ports().into(),
            endpoints: (0..count).map(|_| self.endpoint(family, count)).collect(),
            hostnames: None,
        }
    }

    /// Some ports that the Service has and some that it does not have.
    fn slice_ports(&mut self) -> Vec<SlicePort> {
        let mut ports = Vec::new();
        for (name, protocol) in PAIRS {
            if !self.one_in(5) {
                ports.push(SlicePort { name: name.into(), protocol, port: self.pick(&TARGETS) });
            }
        }
        ports
    }

    fn endpoint(&mut self, family: Family, count: usize) -> Endpoint {
        let address = match family {
            _ if count > 6 => self.large_set_address(family),
            Family::V4 => address(self.pick(&PODS_V4)),
            Family::V6 => address(self.pick(&PODS_V6)),
        };
        let (ready, serving, terminating) = match self.rng.u8(..8) {
            0 => (false, false, false),
            1 => (false, true, true),
            2 => (false, false, true),
            3 => (true, true, true),
            4 => (false, true, false),
            _ => (true, true, false),
        };
        Endpoint { address, ready, serving, terminating, node: self.node_of(address), hints: self.hints() }
    }

    /// Addresses for large sets, which do not fit into the set row.
    fn large_set_address(&mut self, family: Family) -> Address {
        let last = self.rng.u8(1..40);
        match family {
            Family::V4 => Address::from(std::net::IpAddr::from([10, 244, 1 + last % 3, 100 + last])),
            Family::V6 => address(&format!("fd00:244:{}::1:{last}", 1 + last % 3)),
        }
    }

    /// A pod is usually on one node. Sometimes the endpoint names no node, and sometimes the pod moves.
    fn node_of(&mut self, address: Address) -> Option<Name> {
        match self.rng.u8(..8) {
            0 => None,
            1 => Some(self.pick(&NODES).into()),
            _ => Some(
                NODES[usize::from(address.0[13].wrapping_add(address.0[5]).wrapping_add(address.0[14])) % 4].into(),
            ),
        }
    }

    fn hints(&mut self) -> Option<Box<Hints>> {
        if self.one_in(4) {
            return None;
        }
        let zones = if self.one_in(4) { vec![] } else { vec![self.pick(&ZONES).into()] };
        let nodes = if self.one_in(2) { vec![] } else { vec![self.pick(&NODES).into()] };
        Some(Box::new(Hints { zones: zones.into(), nodes: nodes.into() }))
    }

    fn node(&mut self) -> Node {
        let at = self.rng.usize(..3);
        let mut addresses = Vec::new();
        if !self.one_in(8) {
            addresses.push((AddressType::Internal, address(&format!("172.18.0.{}", at + 2))));
        }
        if self.one_in(2) {
            addresses.push((AddressType::Internal, address(&format!("fd00:18::{}", at + 2))));
        }
        if self.one_in(2) {
            addresses.push((AddressType::External, address(&format!("203.0.113.{}", at + 2))));
        }
        // Nodes behind one NAT list the same address. The address of this node stays its own.
        if at == 1 && self.one_in(4) {
            addresses.push((AddressType::External, address("172.18.0.2")));
        }
        self.rng.shuffle(&mut addresses);
        let zone = (!self.one_in(3)).then(|| self.pick(&ZONES).into());
        let (labels, entry) = (self.labels(), self.entry());
        Node { addresses, zone, labels, entry, ..Node::named(LOCAL_CLUSTER, NODES[at]) }
    }
}

fn random_rules(rng: &mut Rng) -> Rules {
    let mut rules = Rules::for_node(OWN_NODE);
    let range = |text: &str| NodePortAddress::Range(text.parse().expect("a range"));
    rules.local_traffic_policy =
        if rng.u8(..4) == 0 { LocalTrafficPolicy::Strict } else { LocalTrafficPolicy::Kubernetes };
    rules.no_local_endpoint_action =
        if rng.u8(..4) == 0 { NoLocalEndpointAction::Drop } else { NoLocalEndpointAction::Refuse };
    rules.external_ips = match rng.u8(..8) {
        0 => ExternalIps::Off,
        1 => ExternalIps::Within(vec!["198.51.100.0/24".parse().expect("a range")]),
        _ => ExternalIps::On,
    };
    rules.node_port_addresses = match rng.u8(..8) {
        0 => vec![NodePortAddress::All],
        1 => vec![NodePortAddress::Localhost],
        2 => vec![NodePortAddress::Primary, NodePortAddress::Localhost],
        3 => vec![range("203.0.113.0/24")],
        4 => vec![range("127.0.0.0/8"), range("fd00:18::/64")],
        5 => vec![range("127.0.0.1/32"), range("fd00:18::/64")],
        _ => vec![NodePortAddress::Primary],
    };
    rules.own_addresses = match rng.u8(..3) {
        0 => vec![],
        1 => vec![address("172.18.0.2")],
        _ => vec![address("172.18.0.2"), address("fd00:18::2"), address("10.244.1.1")],
    };
    if rng.bool() {
        rules.virtual_address_cidrs.extend(MORE_RANGES.map(|net| net.parse::<IpNet>().expect("a range")));
    }
    rules
}

/// Dials to all addresses and ports that these clusters may use.
pub fn dials() -> Vec<Dial> {
    let nodes = ["172.18.0.2", "172.18.0.3", "172.18.0.4", "203.0.113.2", "203.0.113.3", "fd00:18::2", "fd00:18::3"];
    let special = ["127.0.0.1", "127.0.0.9", "::1", "0.0.0.0", "::", "10.244.1.5", "10.96.0.200", "8.8.8.8"];
    let mut addresses: Vec<&str> = Vec::new();
    for group in [&CLUSTER_V4[..], &CLUSTER_V6, &BALANCER, &EXTERNAL, &nodes, &special, &VIRTUAL] {
        addresses.extend(group);
    }
    addresses.sort_unstable();
    addresses.dedup();
    let mut dials = Vec::new();
    for at in addresses {
        for port in [80, 53, 30001, 30002, 9] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                dials.push(Dial { host: port != 53, ..Dial::to(address(at), port, protocol) });
            }
        }
        dials.push(Dial::to(address(at), 30001, Protocol::Tcp));
        dials.push(Dial::to(address(at), 80, Protocol::Sctp));
        for (_, cgroup) in CGROUPS.into_iter().take(3) {
            dials.push(Dial { cgroups: vec![cgroup], ..Dial::to(address(at), 80, Protocol::Tcp) });
            dials.push(Dial { cgroups: vec![cgroup], ..Dial::to(address(at), 53, Protocol::Udp) });
        }
        let own_family = |source: &Address| source.family() == address(at).family();
        for source in SOURCES.map(address).into_iter().filter(own_family).map(Some) {
            dials.push(Dial { source, ..Dial::to(address(at), 80, Protocol::Tcp) });
            dials.push(Dial { source, ..Dial::to(address(at), 30001, Protocol::Udp) });
        }
    }
    dials
}
