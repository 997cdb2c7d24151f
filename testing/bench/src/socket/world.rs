//! The cluster that is measured: services of three backends each, at addresses that count up, and what facts say of it.
//!
//! Every service answers at one port and leads to another, so that the port of a dial alone tells whether some frontend
//! uses it.

use std::net::Ipv4Addr;

use beeline_model::{
    Address, Family, Name, OwnerName, Protocol,
    fact::{Endpoint, Fact, Policy, Service, ServicePort, Slice, SliceName, SlicePort},
    name::LOCAL_CLUSTER,
};

pub const BACKENDS: u32 = 3;
/// What services are dialled at.
pub const SERVICE_PORT: u16 = 80;
/// What pods serve at; no frontend has it.
pub const POD_PORT: u16 = 8080;
pub const FIRST_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 0);
pub const FIRST_POD: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
/// All pods.
pub const PODS: &str = "10.128.0.0/9";
pub const NODE: &str = "bench";
/// Kubernetes puts at most this many endpoints into a slice.
const SLICE: u32 = 100;

pub fn service_address(service: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_SERVICE.to_bits() + service)
}

pub fn pod_address(pod: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_POD.to_bits() + pod)
}

/// Words that a hundred thousand facts share, as a source of facts shares them.
struct Words {
    cluster: Name,
    namespace: Name,
    port: Name,
    nodes: Vec<Name>,
}

impl Words {
    fn new() -> Self {
        let nodes = (0..16).map(|node| if node == 0 { NODE.into() } else { format!("node-{node}").into() }).collect();
        Self { cluster: LOCAL_CLUSTER.into(), namespace: "bench".into(), port: "main".into(), nodes }
    }

    fn service(&self, number: u32, protocol: Protocol) -> Service {
        let port = ServicePort { name: self.port.clone(), protocol, port: SERVICE_PORT, node_port: 0 };
        Service {
            name: name(number),
            created: 0,
            cluster_ips: [address(service_address(number))].into(),
            load_balancer_ips: [].into(),
            external_ips: [].into(),
            source_ranges: [].into(),
            has_node_ports: false,
            internal: Policy::Cluster,
            external: Policy::Cluster,
            affinity: None,
            health_check_node_port: 0,
            ports: [port].into(),
        }
    }

    fn endpoint(&self, pod: u32) -> Endpoint {
        Endpoint {
            address: address(pod_address(pod)),
            ready: true,
            serving: true,
            terminating: false,
            node: Some(self.nodes[pod as usize % self.nodes.len()].clone()),
            hints: None,
        }
    }

    fn slice(&self, service: u32, number: u32, protocol: Protocol, pods: impl Iterator<Item = u32>) -> Slice {
        let text = format!("service-{service}-{number}");
        Slice {
            name: SliceName {
                cluster: self.cluster.clone(),
                namespace: self.namespace.clone(),
                name: text.as_str().into(),
            },
            service: name(service),
            family: Family::V4,
            ports: [SlicePort { name: self.port.clone(), protocol, port: POD_PORT }].into(),
            endpoints: pods.map(|pod| self.endpoint(pod)).collect(),
            hostnames: None,
        }
    }
}

pub fn name(service: u32) -> OwnerName {
    OwnerName::local("bench", &format!("service-{service}"))
}

fn address(ip: Ipv4Addr) -> Address {
    Address::from(std::net::IpAddr::from(ip))
}

/// So many services, each with a port of this protocol and three backends of its own.
pub fn facts(services: u32, protocol: Protocol) -> Vec<Fact> {
    let words = Words::new();
    let of = |service: u32| {
        let pods = service * BACKENDS..(service + 1) * BACKENDS;
        [Fact::Service(words.service(service, protocol)), Fact::Slice(words.slice(service, 0, protocol, pods))]
    };
    (0..services).flat_map(of).collect()
}

/// One service with many endpoints, in slices.
pub fn large_service(number: u32, first_pod: u32, endpoints: u32) -> Vec<Fact> {
    let words = Words::new();
    let mut facts = vec![Fact::Service(words.service(number, Protocol::Tcp))];
    for (index, start) in (0..endpoints).step_by(SLICE as usize).enumerate() {
        let pods = first_pod + start..first_pod + endpoints.min(start + SLICE);
        facts.push(Fact::Slice(words.slice(number, index as u32, Protocol::Tcp, pods)));
    }
    facts
}

/// The first slice of that service, with one endpoint exchanged for another pod.
pub fn changed_slice(number: u32, first_pod: u32, endpoints: u32, other: u32) -> Fact {
    let pods = first_pod..first_pod + endpoints.min(SLICE) - 1;
    Fact::Slice(Words::new().slice(number, 0, Protocol::Tcp, pods.chain([other])))
}
