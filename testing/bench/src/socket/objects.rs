//! Objects of the measured cluster: Services with three backends each, at consecutive addresses.
//!
//! Services and pods use different ports, so that the port of a dial shows whether a frontend uses it.

use std::net::Ipv4Addr;

use beeline_model::{
    Address, Family, Name, Protocol, ServiceName,
    change::Change,
    name::LOCAL_CLUSTER,
    object::{Endpoint, Object, Service, ServicePort, Slice, SliceName, SlicePort},
};

pub const BACKENDS: u32 = 3;
/// Port of all Services.
pub const SERVICE_PORT: u16 = 80;
/// Port of all pods, which no frontend uses.
pub const POD_PORT: u16 = 8080;
pub const FIRST_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 0);
pub const FIRST_POD: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
/// Range of all pods.
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

/// Creates objects that share their names, as objects from an API server do.
struct ObjectFactory {
    cluster: Name,
    namespace: Name,
    port: Name,
    nodes: Vec<Name>,
}

impl ObjectFactory {
    fn new() -> Self {
        let nodes = (0..16).map(|node| if node == 0 { NODE.into() } else { format!("node-{node}").into() }).collect();
        Self { cluster: LOCAL_CLUSTER.into(), namespace: "bench".into(), port: "main".into(), nodes }
    }

    fn service(&self, number: u32, protocol: Protocol) -> Service {
        let port = ServicePort { name: self.port.clone(), protocol, port: SERVICE_PORT, node_port: 0 };
        Service {
            cluster_ips: [address(service_address(number))].into(),
            ports: [port].into(),
            ..Service::named(name(number))
        }
    }

    fn endpoint(&self, pod: u32) -> Endpoint {
        Endpoint {
            node: Some(self.nodes[pod as usize % self.nodes.len()].clone()),
            ..Endpoint::ready(address(pod_address(pod)))
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

pub fn name(service: u32) -> ServiceName {
    ServiceName::local("bench", &format!("service-{service}"))
}

fn address(ip: Ipv4Addr) -> Address {
    Address::from(std::net::IpAddr::from(ip))
}

/// Services with one port of this protocol and three backends each.
pub fn changes(services: u32, protocol: Protocol) -> Vec<Change> {
    let factory = ObjectFactory::new();
    let of_service = |service: u32| {
        let pods = service * BACKENDS..(service + 1) * BACKENDS;
        [
            Change::Upsert(Object::Service(factory.service(service, protocol))),
            Change::Upsert(Object::Slice(factory.slice(service, 0, protocol, pods))),
        ]
    };
    (0..services).flat_map(of_service).collect()
}

/// One Service with many endpoints in several slices.
pub fn large_service(number: u32, first_pod: u32, endpoints: u32) -> Vec<Change> {
    let factory = ObjectFactory::new();
    let mut changes = vec![Change::Upsert(Object::Service(factory.service(number, Protocol::Tcp)))];
    for (index, start) in (0..endpoints).step_by(SLICE as usize).enumerate() {
        let pods = first_pod + start..first_pod + endpoints.min(start + SLICE);
        changes.push(Change::Upsert(Object::Slice(factory.slice(number, index as u32, Protocol::Tcp, pods))));
    }
    changes
}

/// The first slice of that Service with one endpoint replaced by another pod.
pub fn changed_slice(number: u32, first_pod: u32, endpoints: u32, other: u32) -> Change {
    let pods = first_pod..first_pod + endpoints.min(SLICE) - 1;
    Change::Upsert(Object::Slice(ObjectFactory::new().slice(number, 0, Protocol::Tcp, pods.chain([other]))))
}
