//! API objects of the measured cluster: services with ten endpoints each, at consecutive addresses. All pods answer
//! with their address.
//!
//! The first service has one ready and nine unready endpoints, so that every dial to it shows whether the ready
//! endpoint has been replaced.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde_json::{Value, json};

pub const ENDPOINTS: u32 = 10;
pub const SERVICE_PORT: u16 = 80;
pub const POD_PORT: u16 = 8080;
/// Service range, and the first address that the bench uses. The API server uses the first address of the range.
pub const SERVICES: &str = "10.96.0.0/12";
const FIRST_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 0);
/// Range of all pods, and of the server pods.
pub const CLUSTER: &str = "10.128.0.0/9";
pub const PODS: &str = "10.128.0.0/10";
const FIRST_POD: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
/// Number of the first replacement pod.
pub const SPARE_PODS: u32 = 2_000_000;
/// Number of the first service that is created during a measurement.
const NEW: u32 = 150_000;

/// Number of the service whose endpoint changes.
pub const CHANGING: u32 = 0;
pub const NODE: &str = "bench";
/// Numbers of nodes and zones of the pods.
const NODES: u32 = 16;
const ZONES: u32 = 3;

pub const SERVICE_PATH: &str = "/api/v1/namespaces/default/services";
pub const SLICE_PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
pub const NODE_PATH: &str = "/api/v1/nodes";

pub fn service_address(service: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from_bits(FIRST_SERVICE.to_bits() + service), SERVICE_PORT)
}

pub fn pod_address(pod: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from_bits(FIRST_POD.to_bits() + pod), POD_PORT)
}

/// Number of a service that is created during a measurement.
pub fn new_service(number: u32) -> u32 {
    NEW + number
}

pub fn name(service: u32) -> String {
    format!("service-{service}")
}

pub fn service(service: u32) -> Value {
    json!({
        "metadata": {"name": name(service), "labels": {"app": name(service)}},
        "spec": {
            "clusterIP": service_address(service).ip(),
            "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": POD_PORT}],
        },
    })
}

fn pods(service: u32) -> impl Iterator<Item = u32> {
    service * ENDPOINTS..(service + 1) * ENDPOINTS
}

/// The EndpointSlice of a service.
pub fn slice(service: u32) -> Value {
    let endpoints: Vec<Value> = match service {
        CHANGING => changing_endpoints(0),
        _ => pods(service).map(|pod| endpoint(pod, true)).collect(),
    };
    json!({
        "metadata": {"name": name(service), "labels": {
            "kubernetes.io/service-name": name(service),
            "endpointslice.kubernetes.io/managed-by": "beeline-bench",
        }},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": POD_PORT, "protocol": "TCP"}],
    })
}

/// The ten endpoints of the changing service, of which `ready` is the ready one.
pub fn changing_endpoints(ready: u32) -> Vec<Value> {
    let others = pods(CHANGING).skip(1).map(|pod| endpoint(pod, false));
    [endpoint(ready, true)].into_iter().chain(others).collect()
}

fn endpoint(pod: u32, ready: bool) -> Value {
    json!({
        "addresses": [pod_address(pod).ip()],
        "conditions": {"ready": ready, "serving": ready, "terminating": false},
        "nodeName": format!("node-{}", pod % NODES),
        "zone": format!("zone-{}", pod % ZONES),
        "targetRef": {
            "kind": "Pod", "namespace": "default", "name": format!("pod-{pod}"),
            "uid": format!("00000000-0000-4000-8000-{pod:012}"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_ten_pods_of_its_own() {
        let addresses = |service| {
            let slice = slice(service);
            let endpoints = slice["endpoints"].as_array().unwrap().clone();
            endpoints.iter().map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(addresses(CHANGING).len(), 10);
        assert_eq!(addresses(1)[0], "10.128.0.10");
        assert_eq!(addresses(2)[0], "10.128.0.20");
    }

    #[test]
    fn one_endpoint_of_the_changing_service_is_ready() {
        let endpoints = changing_endpoints(SPARE_PODS);
        let ready: Vec<_> = endpoints.iter().filter(|endpoint| endpoint["conditions"]["ready"] == true).collect();
        assert_eq!((endpoints.len(), ready.len()), (10, 1));
        assert_eq!(ready[0]["addresses"][0], pod_address(SPARE_PODS).ip().to_string());
    }

    #[test]
    fn addresses_are_inside_their_ranges() {
        let inside = |address: SocketAddrV4, first: [u8; 4], bits: u32| {
            let mask = u32::MAX << (32 - bits);
            address.ip().to_bits() & mask == Ipv4Addr::from(first).to_bits()
        };
        assert!(inside(service_address(new_service(10_000)), [10, 96, 0, 0], 12));
        assert!(inside(pod_address(SPARE_PODS + 1_000_000), [10, 128, 0, 0], 10));
        assert!(new_service(10_000) * ENDPOINTS < SPARE_PODS);
    }
}
