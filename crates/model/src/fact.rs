//! Facts: what the cluster says, in our types. Only fields that decide something; sources (a folder of manifests, an API
//! server) produce them and nothing downstream knows which source it was.

use crate::address::{Address, Family};
use crate::name::{Name, OwnerName, Protocol};
use crate::policy::{self, PolicyName, PolicySlice};
use crate::selector::Labels;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Policy {
    #[default]
    Cluster,
    Local,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    pub name: Name,
    pub protocol: Protocol,
    pub port: u16,
    /// 0: none.
    pub node_port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub name: OwnerName,
    /// Seconds since the epoch; the older claimant of an address wins.
    pub created: i64,
    /// At most one a family.
    pub cluster_ips: Box<[Address]>,
    pub load_balancer_ips: Box<[Address]>,
    pub external_ips: Box<[Address]>,
    /// Who may dial the load-balancer addresses; empty: everybody. Trimmed; a /0 of a family has been dropped.
    pub source_ranges: Box<[IpNet]>,
    /// NodePort or LoadBalancer: nodePorts count.
    pub has_node_ports: bool,
    pub internal: Policy,
    pub external: Policy,
    /// ClientIP affinity, in seconds.
    pub affinity: Option<u32>,
    /// 0: none.
    pub health_check_node_port: u16,
    pub ports: Box<[ServicePort]>,
}

impl Service {
    pub fn cluster_ip(&self, family: Family) -> Option<Address> {
        self.cluster_ips.iter().copied().find(|a| a.family() == family)
    }

    /// External Local counts only where there is something external to be local about: type NodePort or LoadBalancer, or
    /// externalIPs. A status that was left behind by another type is none.
    pub fn external_local(&self) -> bool {
        self.external == Policy::Local && (self.has_node_ports || !self.external_ips.is_empty())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlicePort {
    pub name: Name,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    pub zones: Box<[Name]>,
    pub nodes: Box<[Name]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub address: Address,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub node: Option<Name>,
    pub hints: Option<Box<Hints>>,
}

/// The namespace and name of an EndpointSlice, which is not that of its Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceName {
    pub cluster: Name,
    pub namespace: Name,
    pub name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub name: SliceName,
    pub service: OwnerName,
    pub family: Family,
    pub ports: Box<[SlicePort]>,
    pub endpoints: Box<[Endpoint]>,
    /// Those that the endpoints have, where names are answered. A pointer a slice, not one an endpoint.
    pub hostnames: Option<Box<Hostnames>>,
}

/// By the endpoint's place in its slice.
pub type Hostnames = BTreeMap<usize, Name>;

impl Slice {
    pub fn hostname(&self, endpoint: usize) -> Option<&Name> {
        self.hostnames.as_ref()?.get(&endpoint)
    }
}

/// What a Service's name leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Published {
    /// Its own addresses, at most one a family.
    Addresses(Box<[Address]>),
    /// Its endpoints; `unready`: also those that are not ready.
    Headless { unready: bool },
    /// Another name.
    Alias(Box<str>),
}

/// A Service that has a name and nothing to be dialled: headless, ExternalName, another proxy's. Told only where names
/// are answered, in the place of a `Service` of this name, and taken back by `ServiceGone`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedService {
    pub name: OwnerName,
    pub published: Published,
    pub ports: Box<[ServicePort]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressType {
    Internal,
    External,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub cluster: Name,
    pub name: Name,
    pub addresses: Vec<(AddressType, Address)>,
    pub zone: Option<Name>,
    /// False: being deleted, or tainted for removal by the cluster autoscaler.
    pub eligible: bool,
    /// Its condition Ready.
    pub ready: bool,
    /// What `nodeLabelSelector` is asked of. Known of our own node only.
    pub labels: Labels,
    /// Where its entry is (`redirectMode: nodeProxy`), at most one a family.
    pub entry: Box<[Address]>,
    /// Where hosts outside the cluster reach it, as an administrator says; at most one a family.
    pub outside: Box<[Address]>,
    /// An edge node: nothing proxies there.
    pub edge: bool,
}

impl Node {
    /// Of which nothing else is known.
    pub fn named(cluster: &str, name: &str) -> Node {
        Node {
            cluster: cluster.into(),
            name: name.into(),
            addresses: Vec::new(),
            zone: None,
            eligible: true,
            ready: true,
            labels: Labels::new(),
            entry: [].into(),
            outside: [].into(),
            edge: false,
        }
    }

    /// What kube-proxy calls the node's IPs: the internal addresses, or, with none, the external ones; first of a family.
    pub fn primary(&self, family: Family) -> Option<Address> {
        let first = |kind| self.addresses.iter().find(|(k, a)| *k == kind && a.family() == family);
        first(AddressType::Internal).or_else(|| first(AddressType::External)).map(|(_, a)| *a)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodName {
    pub cluster: Name,
    pub namespace: Name,
    pub name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    pub name: Name,
    /// As its cgroup is named, without the runtime's name.
    pub id: Box<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerPort {
    pub name: Name,
    pub protocol: Protocol,
    pub port: u16,
    /// 0: none. With hostNetwork it is the port itself.
    pub host_port: u16,
}

/// A pod: of this node, or of any where nobody publishes what policies select.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    pub name: PodName,
    /// As its cgroup is named.
    pub uid: Box<str>,
    pub node: Option<Name>,
    /// None once it has ended.
    pub addresses: Box<[Address]>,
    pub containers: Box<[Container]>,
    /// Its processes keep the addresses that they dial.
    pub untouched: bool,
    /// The view that its processes ask for.
    pub view: Option<Name>,
    pub labels: Labels,
    /// Its condition Ready, and neither ended nor being deleted.
    pub ready: bool,
    /// Of all containers that may listen: init containers that go on running included.
    pub ports: Box<[ContainerPort]>,
}

/// A namespace, where `namespaceSelector` is to be answered here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    pub cluster: Name,
    pub name: Name,
    pub labels: Labels,
}

/// One change of the facts. `None`/absence is said by the delete variants, so that a name is never guessed from a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    Service(Service),
    NamedService(NamedService),
    ServiceGone(OwnerName),
    Slice(Slice),
    /// One that no proxy reads (it says that it is a headless Service's); in the place of a `Slice` of this name.
    NamedSlice(Slice),
    SliceGone(SliceName),
    Node(Node),
    NodeGone {
        cluster: Name,
        name: Name,
    },
    Pod(Pod),
    PodGone(PodName),
    Namespace(Namespace),
    NamespaceGone {
        cluster: Name,
        name: Name,
    },
    Policy(policy::Policy),
    PolicyGone(PolicyName),
    PolicySlice(PolicySlice),
    PolicySliceGone(SliceName),
    /// What one ServiceCIDR object says: ranges that the cluster gives ClusterIPs from.
    ServiceRange {
        cluster: Name,
        name: Name,
        ranges: Box<[IpNet]>,
    },
    ServiceRangeGone {
        cluster: Name,
        name: Name,
    },
}

impl Fact {
    /// Where it comes from.
    pub fn cluster(&self) -> &str {
        match self {
            Fact::Service(service) => service.name.cluster(),
            Fact::NamedService(named) => named.name.cluster(),
            Fact::ServiceGone(name) => name.cluster(),
            Fact::Slice(slice) | Fact::NamedSlice(slice) => &slice.name.cluster,
            Fact::SliceGone(name) | Fact::PolicySliceGone(name) => &name.cluster,
            Fact::Node(node) => &node.cluster,
            Fact::Pod(pod) => &pod.name.cluster,
            Fact::PodGone(name) => &name.cluster,
            Fact::Namespace(namespace) => &namespace.cluster,
            Fact::Policy(policy) => &policy.name.cluster,
            Fact::PolicyGone(name) => &name.cluster,
            Fact::PolicySlice(slice) => &slice.name.cluster,
            Fact::NodeGone { cluster, .. }
            | Fact::NamespaceGone { cluster, .. }
            | Fact::ServiceRange { cluster, .. }
            | Fact::ServiceRangeGone { cluster, .. } => cluster,
        }
    }
}

/// Why an object, or a part of one, is not served: said once in the log, counted, and shown by `status`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Refusal {
    /// `Service default/web`, `file web.yaml document 2`, ...
    pub subject: String,
    /// A short word for metrics.
    pub reason: &'static str,
    pub message: String,
}
