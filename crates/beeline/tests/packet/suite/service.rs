//! The Services of the packet tests. A Service has a number, from which all of its addresses and its nodePort follow.

use super::manifest::{EndpointSpec, ManifestFile};
use beeline_harness::TestHost;
use beeline_harness::packet::{FrontendRange, IpFamily, PacketNetwork};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// The port of every Service.
pub const PORT: u16 = 80;
/// A port that no Service has.
pub const CLOSED_PORT: u16 = 81;
/// The port of the echo servers.
pub const TARGET_PORT: u16 = 8080;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    Cluster,
    Local,
}

/// An address of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialled {
    NodePort,
    LoadBalancer,
    ExternalIp,
    ClusterIp,
}

impl Dialled {
    pub const ALL: [Dialled; 4] = [Dialled::NodePort, Dialled::LoadBalancer, Dialled::ExternalIp, Dialled::ClusterIp];
    pub const EXTERNAL: [Dialled; 3] = [Dialled::NodePort, Dialled::LoadBalancer, Dialled::ExternalIp];

    /// Parses the words of the tables.
    pub fn parse(text: &str) -> Option<Dialled> {
        match text {
            "node-port" => Some(Dialled::NodePort),
            "load-balancer" => Some(Dialled::LoadBalancer),
            "external-ip" => Some(Dialled::ExternalIp),
            "cluster-ip" => Some(Dialled::ClusterIp),
            _ => None,
        }
    }
}

/// A dual-stack Service with a nodePort, a load-balancer address and an externalIP, TCP and UDP.
#[derive(Clone, Debug)]
pub struct PacketService {
    pub name: String,
    /// Last part of the addresses: 10.96.0.N, 198.51.100.N, 203.0.113.N; the nodePort is 30000 + N.
    pub number: u8,
    pub policy: TrafficPolicy,
    /// Further fields of the spec.
    pub more: Value,
    pub endpoints: Vec<EndpointSpec>,
    /// The port of the endpoints.
    pub target_port: u16,
}

impl PacketService {
    pub fn new(name: &str, number: u8, policy: TrafficPolicy) -> PacketService {
        let (more, endpoints) = (json!({}), Vec::new());
        PacketService { name: name.to_owned(), number, policy, more, endpoints, target_port: TARGET_PORT }
    }

    /// Adds a ready endpoint.
    pub fn with(self, host: &TestHost, node: &str) -> PacketService {
        self.with_conditions(host, node, json!({ "ready": true, "serving": true, "terminating": false }))
    }

    pub fn with_terminating(self, host: &TestHost, node: &str) -> PacketService {
        self.with_conditions(host, node, json!({ "ready": false, "serving": true, "terminating": true }))
    }

    pub fn with_unready(self, host: &TestHost, node: &str) -> PacketService {
        self.with_conditions(host, node, json!({ "ready": false, "serving": false, "terminating": false }))
    }

    fn with_conditions(mut self, host: &TestHost, node: &str, conditions: Value) -> PacketService {
        self.endpoints.push(EndpointSpec::of(host, node).with_conditions(conditions));
        self
    }

    pub fn without_endpoints(&self) -> PacketService {
        PacketService { endpoints: Vec::new(), ..self.clone() }
    }

    /// Sets further fields of the spec.
    pub fn with_spec(self, more: Value) -> PacketService {
        PacketService { more, ..self }
    }

    pub fn with_target_port(self, target_port: u16) -> PacketService {
        PacketService { target_port, ..self }
    }

    pub fn node_port(&self) -> u16 {
        30_000 + u16::from(self.number)
    }

    /// The address and port of a frontend.
    pub fn address(&self, dialled: Dialled, family: IpFamily, network: &PacketNetwork) -> SocketAddr {
        let range = match dialled {
            Dialled::NodePort => {
                let node = network.cluster.node();
                return (family.of(node.v4, node.v6), self.node_port()).into();
            }
            Dialled::LoadBalancer => FrontendRange::LoadBalancer,
            Dialled::ExternalIp => FrontendRange::ExternalIp,
            Dialled::ClusterIp => FrontendRange::ClusterIp,
        };
        let (v4, v6) = range.address(self.number);
        (family.of(v4, v6), PORT).into()
    }

    /// The Service and its EndpointSlices.
    pub fn manifest(&self) -> ManifestFile {
        let texts = |range: FrontendRange| {
            let (v4, v6) = range.address(self.number);
            [v4.to_string(), v6.to_string()]
        };
        let (balancers, external) = (texts(FrontendRange::LoadBalancer), texts(FrontendRange::ExternalIp));
        let policy = format!("{:?}", self.policy);
        let spec = json!({
            "ipFamilyPolicy": "RequireDualStack",
            "internalTrafficPolicy": policy,
            "externalTrafficPolicy": policy,
        });
        ManifestFile::service(&self.name, self.number)
            .with_spec(spec)
            .with_external(self.node_port(), &[&balancers[0], &balancers[1]], &[&external[0], &external[1]])
            .with_spec(self.more.clone())
            .with_endpoints(self.target_port, &self.endpoints)
    }
}
