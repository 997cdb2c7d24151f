//! The cluster's objects in types of this crate, with only the fields that decide something. Every source (an API
//! server, an edge cache, a folder of manifests) produces the same types.

use crate::address::{Address, Family};
use crate::change::ObjectKey;
use crate::name::{Name, Protocol, ServiceName};
use crate::policy::{Policy, PolicySlice};
use crate::selector::Labels;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum TrafficPolicy {
    #[default]
    Cluster,
    Local,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    pub name: Name,
    pub protocol: Protocol,
    pub port: u16,
    /// 0 means no nodePort.
    pub node_port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub name: ServiceName,
    /// Seconds since the epoch. When two Services claim one address, the older Service wins.
    pub created: i64,
    /// At most one per family.
    pub cluster_ips: Box<[Address]>,
    pub load_balancer_ips: Box<[Address]>,
    pub external_ips: Box<[Address]>,
    /// The clients that may dial the load-balancer addresses. An empty list allows every client. Prefixes are
    /// truncated, and a /0 range is never listed.
    pub source_ranges: Box<[IpNet]>,
    /// True for the types NodePort and LoadBalancer. Other types have no nodePorts, whatever their ports say.
    pub has_node_ports: bool,
    pub internal: TrafficPolicy,
    pub external: TrafficPolicy,
    /// ClientIP affinity, in seconds.
    pub affinity: Option<u32>,
    /// 0 means no healthCheckNodePort.
    pub health_check_node_port: u16,
    pub ports: Box<[ServicePort]>,
}

impl Service {
    /// A Service with the given name, without addresses and ports, and default values for everything else.
    pub fn named(name: ServiceName) -> Service {
        Service {
            name,
            created: 0,
            cluster_ips: [].into(),
            load_balancer_ips: [].into(),
            external_ips: [].into(),
            source_ranges: [].into(),
            has_node_ports: false,
            internal: TrafficPolicy::Cluster,
            external: TrafficPolicy::Cluster,
            affinity: None,
            health_check_node_port: 0,
            ports: [].into(),
        }
    }

    pub fn cluster_ip(&self, family: Family) -> Option<Address> {
        self.cluster_ips.iter().copied().find(|a| a.family() == family)
    }

    /// True if externalTrafficPolicy Local applies: the type is NodePort or LoadBalancer, or the Service has
    /// externalIPs. A load-balancer status that an earlier type left behind does not count.
    pub fn external_local(&self) -> bool {
        self.external == TrafficPolicy::Local && (self.has_node_ports || !self.external_ips.is_empty())
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

impl Endpoint {
    /// An endpoint that is ready, without a node.
    pub fn ready(address: Address) -> Endpoint {
        Endpoint { address, ready: true, serving: true, terminating: false, node: None, hints: None }
    }
}

/// The name of an EndpointSlice, which differs from the name of its Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceName {
    pub cluster: Name,
    pub namespace: Name,
    pub name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub name: SliceName,
    pub service: ServiceName,
    pub family: Family,
    pub ports: Box<[SlicePort]>,
    pub endpoints: Box<[Endpoint]>,
    /// The hostnames of the endpoints. Set only where DNS names are served. One pointer per slice is smaller than one
    /// per endpoint.
    pub hostnames: Option<Box<Hostnames>>,
}

/// Hostnames by the index of the endpoint in its slice.
pub type Hostnames = BTreeMap<usize, Name>;

impl Slice {
    pub fn hostname(&self, endpoint: usize) -> Option<&Name> {
        self.hostnames.as_ref()?.get(&endpoint)
    }
}

/// What the DNS name of a Service resolves to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Published {
    /// The Service's own addresses, at most one per family.
    Addresses(Box<[Address]>),
    /// The addresses of the endpoints. With `unready`, endpoints that are not ready are included.
    Headless { unready: bool },
    /// Another DNS name.
    Alias(Box<str>),
}

/// A Service that has a DNS name but no frontend: headless, ExternalName, or served by another proxy. It exists only
/// where DNS names are served. It replaces a `Service` of the same name and is deleted by the same key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedService {
    pub name: ServiceName,
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
    /// False if the Node is being deleted, or is tainted for removal by the cluster autoscaler.
    pub eligible: bool,
    /// The Node's Ready condition.
    pub ready: bool,
    /// The labels that `nodeLabelSelector` is matched against. Filled for this host's own Node only.
    pub labels: Labels,
    /// The addresses of the node's proxy (`redirectMode: nodeProxy`), at most one per family.
    pub entry: Box<[Address]>,
    /// The addresses at which hosts outside the cluster reach the node, from an annotation; at most one per family.
    pub outside: Box<[Address]>,
    /// True for an edge node. No service proxy runs there.
    pub edge: bool,
    /// The ranges from which the node's pods get their addresses, `spec.podCIDRs`.
    #[serde(default)]
    pub pod_ranges: Box<[IpNet]>,
}

impl Node {
    /// A Node with the given name and default values for everything else.
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
            pod_ranges: [].into(),
        }
    }

    /// The node's primary address of a family, as kube-proxy defines it: the first internal address, or the first
    /// external address if the node has no internal one.
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
    /// The id in the name of the container's cgroup, without the runtime's prefix.
    pub id: Box<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerPort {
    pub name: Name,
    pub protocol: Protocol,
    pub port: u16,
    /// 0 means no hostPort. With hostNetwork it equals `port`.
    pub host_port: u16,
}

/// The key of a pod's annotation and of a namespace's label. The value "off" excludes pods from service resolution.
pub const RESOLVE_KEY: &str = "beeline.dev/resolve";

/// What decides whether the pod's processes are excluded from service resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodExclusion {
    /// The label of the pod's namespace.
    #[default]
    Namespace,
    /// The pod is never excluded: its annotation says "on", it is a static pod, or it has ended.
    Never,
    /// The pod's annotation says "off".
    Annotation,
    /// The pod has a sidecar proxy of a service mesh, which must see the dialled addresses.
    Sidecar,
}

/// A pod. Agents know only the pods of their own node, unless no controller publishes the backends of policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    pub name: PodName,
    /// The UID in the name of the pod's cgroup.
    pub uid: Box<str>,
    pub node: Option<Name>,
    /// Empty once the pod has ended.
    pub addresses: Box<[Address]>,
    pub containers: Box<[Container]>,
    #[serde(default)]
    pub exclusion: PodExclusion,
    /// The view that the pod's annotation asks for.
    pub view: Option<Name>,
    pub labels: Labels,
    /// The pod's Ready condition is true, and the pod has neither ended nor is it being deleted.
    pub ready: bool,
    /// The ports of all containers that may listen, including restartable init containers.
    pub ports: Box<[ContainerPort]>,
}

/// A namespace. Known only where `namespaceSelector` is evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    pub cluster: Name,
    pub name: Name,
    pub labels: Labels,
}

/// The ranges of one ServiceCIDR object: the cluster allocates ClusterIPs from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRange {
    pub cluster: Name,
    pub name: Name,
    pub ranges: Box<[IpNet]>,
}

/// One object of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Object {
    Service(Service),
    /// Replaces a `Service` of the same name and is replaced by one.
    NamedService(NamedService),
    Slice(Slice),
    /// A slice of a headless Service, which only DNS needs. It replaces a `Slice` of the same name and is replaced by
    /// one.
    NamedSlice(Slice),
    Node(Node),
    Pod(Pod),
    Namespace(Namespace),
    Policy(Policy),
    PolicySlice(PolicySlice),
    ServiceRange(ServiceRange),
}

impl Object {
    pub fn key(&self) -> ObjectKey {
        match self {
            Object::Service(service) => ObjectKey::Service(service.name.clone()),
            Object::NamedService(service) => ObjectKey::Service(service.name.clone()),
            Object::Slice(slice) | Object::NamedSlice(slice) => ObjectKey::Slice(slice.name.clone()),
            Object::Node(node) => ObjectKey::Node { cluster: node.cluster.clone(), name: node.name.clone() },
            Object::Pod(pod) => ObjectKey::Pod(pod.name.clone()),
            Object::Namespace(namespace) => {
                ObjectKey::Namespace { cluster: namespace.cluster.clone(), name: namespace.name.clone() }
            }
            Object::Policy(policy) => ObjectKey::Policy(policy.name.clone()),
            Object::PolicySlice(slice) => ObjectKey::PolicySlice(slice.name.clone()),
            Object::ServiceRange(range) => {
                ObjectKey::ServiceRange { cluster: range.cluster.clone(), name: range.name.clone() }
            }
        }
    }

    /// The cluster that the object belongs to.
    pub fn cluster(&self) -> &str {
        match self {
            Object::Service(service) => service.name.cluster(),
            Object::NamedService(service) => service.name.cluster(),
            Object::Slice(slice) | Object::NamedSlice(slice) => &slice.name.cluster,
            Object::Node(node) => &node.cluster,
            Object::Pod(pod) => &pod.name.cluster,
            Object::Namespace(namespace) => &namespace.cluster,
            Object::Policy(policy) => &policy.name.cluster,
            Object::PolicySlice(slice) => &slice.name.cluster,
            Object::ServiceRange(range) => &range.cluster,
        }
    }
}
