//! The objects of the churn check: two clusters with a Service at the same address, pods with rules, and Services that are
//! created and deleted.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use beeline_harness::ManifestDir;
use serde_json::{Value, json};

pub const CLUSTERS: [&str; 2] = ["home", "green"];
/// The server on the host outside, which dials reach that are not resolved.
pub const OUTSIDE: &str = "outside";
/// The address of the Service that both clusters have.
pub const WEB: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
pub const PORT: u16 = 80;
const BACKENDS: u8 = 6;

/// Backends that answer with one name, on a port of their own.
#[derive(Clone, Copy)]
pub struct Backends {
    pub name: &'static str,
    first: u8,
}

impl Backends {
    /// Of the Service of each cluster.
    pub const WEB: [Backends; 2] =
        [Backends { name: CLUSTERS[0], first: 100 }, Backends { name: CLUSTERS[1], first: 110 }];
    /// Of the Services that are created and deleted.
    pub const SHORT_LIVED: Backends = Backends { name: "short-lived", first: 120 };

    pub fn addresses(self) -> Vec<Ipv4Addr> {
        (self.first..self.first + BACKENDS).map(|last| Ipv4Addr::new(10, 244, 1, last)).collect()
    }

    pub fn port(self) -> u16 {
        8000 + u16::from(self.first)
    }

    pub fn sockets(self) -> impl Iterator<Item = SocketAddr> {
        self.addresses().into_iter().map(move |address| (address, self.port()).into())
    }

    /// A Service with TCP and UDP, and a slice with one to all of the backends, which depend on `turn`.
    pub fn service(self, name: &str, at: Ipv4Addr, turn: usize) -> String {
        let mut addresses = self.addresses();
        addresses.rotate_left(turn % usize::from(BACKENDS));
        addresses.truncate(1 + turn * 5 % usize::from(BACKENDS));
        let port = |name: &str, protocol: &str, port: u16| json!({ "name": name, "port": port, "protocol": protocol });
        let ports = |number: u16| json!([port("t", "TCP", number), port("u", "UDP", number)]);
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "test" },
            "spec": { "clusterIP": at, "ports": ports(PORT) },
        });
        let endpoint = |address: &Ipv4Addr| json!({ "addresses": [address], "conditions": { "ready": true } });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": name, "namespace": "test", "labels": { "kubernetes.io/service-name": name } },
            "addressType": "IPv4", "ports": ports(self.port()),
            "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
        });
        format!("{service}\n---\n{slice}\n")
    }
}

/// What a pod asks for by annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodRule {
    None,
    View(&'static str),
    Excluded,
}

impl PodRule {
    pub const ALL: [PodRule; 4] =
        [PodRule::View(CLUSTERS[1]), PodRule::Excluded, PodRule::None, PodRule::View(CLUSTERS[0])];

    /// The server that must answer a dial to the Service.
    pub fn answer(self) -> &'static str {
        match self {
            PodRule::None => CLUSTERS[0],
            PodRule::View(cluster) => cluster,
            PodRule::Excluded => OUTSIDE,
        }
    }

    fn annotations(self) -> Value {
        match self {
            PodRule::None => json!({}),
            PodRule::View(cluster) => json!({ "beeline.dev/view": cluster }),
            PodRule::Excluded => json!({ "beeline.dev/resolve": "off" }),
        }
    }
}

pub fn uid(number: usize) -> String {
    format!("0c9a3a3e-5b1f-4c3d-9a55-{number:012}")
}

/// One pod per rule, with the uids from `first` on.
pub fn pods(first: usize, rules: impl IntoIterator<Item = PodRule>) -> String {
    let pod = |(number, rule): (usize, PodRule)| {
        let name = format!("pod-{number}");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "test", "uid": uid(number), "annotations": rule.annotations() },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "app", "image": "none" }] },
            "status": { "phase": "Running" },
        });
        format!("{pod}\n---\n")
    };
    (first..).zip(rules).map(pod).collect()
}

/// The agent's configuration: both clusters have the same service range, and the first one has precedence.
pub fn config(directories: &[ManifestDir; 2], state: &Path) -> String {
    let cluster = |(name, directory): (&&str, &ManifestDir)| {
        let range = ["10.96.0.0/16"];
        json!({ "name": name, "manifests": directory.path(), "view": name, "serviceCIDRs": range })
    };
    let clusters: Vec<Value> = CLUSTERS.iter().zip(directories).map(cluster).collect();
    json!({ "node-name": "node-1", "clusters": clusters, "state-dir": state }).to_string()
}
