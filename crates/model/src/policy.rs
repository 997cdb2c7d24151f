//! LocalRedirectPolicy and BalancingPolicy objects. A LocalRedirectPolicy redirects dials to pods on the client's own
//! node; a BalancingPolicy to selected pods, host ports, node proxies or fixed addresses.

use crate::address::{Address, Family};
use crate::hash::stable_hash;
use crate::name::{LOCAL_CLUSTER, Name, Protocol};
use crate::object::{Endpoint, SliceName, SlicePort};
use crate::selector::Selector;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Ordered by precedence. Both kinds take precedence over Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PolicyKind {
    LocalRedirect,
    Balancing,
}

impl PolicyKind {
    pub const BOTH: [PolicyKind; 2] = [PolicyKind::LocalRedirect, PolicyKind::Balancing];

    pub fn from_text(text: &str) -> Option<PolicyKind> {
        PolicyKind::BOTH.into_iter().find(|kind| kind.as_str() == text)
    }

    /// The kind as Kubernetes names it.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyKind::LocalRedirect => "LocalRedirectPolicy",
            PolicyKind::Balancing => "BalancingPolicy",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyName {
    pub kind: PolicyKind,
    pub cluster: Name,
    pub namespace: Name,
    pub name: Name,
}

impl PolicyName {
    /// `BalancingPolicy shop/api`, without the cluster.
    pub fn title(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if &*self.cluster != LOCAL_CLUSTER {
            write!(f, "{}:", self.cluster)?;
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A port of the policy's frontend. Its name pairs it with a backend port; a single pair of ports needs no names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialledPort {
    pub name: Name,
    pub port: u16,
    pub protocol: Protocol,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Matcher {
    /// The ClusterIPs of a Service in the policy's namespace. `ports: None` selects all ports of the Service by name.
    Service { name: Name, ports: Option<Box<[DialledPort]>> },
    /// A virtual address.
    Address { address: Address, ports: Box<[DialledPort]> },
}

impl Matcher {
    /// Identifies what the policy matches (`PortName::matched`): a hash of the Service or address, and of the port.
    pub fn fingerprint(&self, dialled: &DialledPort) -> u32 {
        let text = match self {
            Matcher::Service { name, .. } => format!("{name}/{}", dialled.port),
            Matcher::Address { address, .. } => format!("{address}/{}", dialled.port),
        };
        let hash = stable_hash(text.bytes());
        (hash ^ (hash >> 32)) as u32
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortChoice {
    Number(u16),
    /// The name of a container port, which is looked up in each pod.
    Name(Name),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendPort {
    pub name: Name,
    pub port: PortChoice,
    pub protocol: Protocol,
}

/// What is dialled to reach a selected pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RedirectMode {
    PodEndpoint,
    HostPort,
    NodeProxy,
}

impl RedirectMode {
    pub const ALL: [RedirectMode; 3] = [RedirectMode::PodEndpoint, RedirectMode::HostPort, RedirectMode::NodeProxy];

    /// The value of the policy's `redirectMode` field.
    pub fn as_str(self) -> &'static str {
        match self {
            RedirectMode::PodEndpoint => "podEndpoint",
            RedirectMode::HostPort => "hostPort",
            RedirectMode::NodeProxy => "nodeProxy",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// Ready pods on the client's node, in the policy's namespace. LocalRedirectPolicy only.
    LocalPods { selector: Selector, ports: Box<[BackendPort]> },
    /// Ready pods on any node. `namespaces: None` selects from the policy's own namespace.
    Pods { selector: Selector, namespaces: Option<Selector>, mode: RedirectMode, ports: Box<[BackendPort]> },
    /// Fixed addresses, which may be outside the cluster. Their ports are always numbers.
    Addresses { addresses: Box<[Address]>, ports: Box<[BackendPort]> },
}

/// A token bucket per policy and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub connects_per_second: u32,
    pub burst: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub name: PolicyName,
    /// Policy slices count only if their owner has this UID. A policy that was deleted and created again is a different
    /// policy.
    pub uid: Box<str>,
    /// Seconds since the epoch. When two policies of one kind claim an address and port, the older policy wins.
    pub created: i64,
    pub generation: i64,
    pub matcher: Matcher,
    pub target: Target,
    /// The nodes on which the policy applies. `None` means all nodes.
    pub nodes: Option<Selector>,
    /// `enableOutCluster`: whether the policy applies on hosts outside the cluster.
    pub out_cluster: bool,
    pub limit: Option<Limit>,
}

impl Policy {
    /// The pod selector of a LocalRedirectPolicy.
    pub fn local_selector(&self) -> Option<&Selector> {
        match &self.target {
            Target::LocalPods { selector, .. } => Some(selector),
            Target::Pods { .. } | Target::Addresses { .. } => None,
        }
    }

    /// The shape of the policy's slices, if a controller publishes the policy's pods.
    pub fn shape(&self) -> Option<PolicyShape> {
        let Target::Pods { mode, ports, .. } = &self.target else { return None };
        let port = |port: &BackendPort| match &port.port {
            PortChoice::Number(number) => format!("\n{} {} {number}", port.name, port.protocol),
            PortChoice::Name(name) => format!("\n{} {} {name:?}", port.name, port.protocol),
        };
        let text: String = ports.iter().map(port).collect();
        Some(PolicyShape { mode: *mode, ports: stable_hash(text.bytes()) })
    }
}

/// What policy slices were built for: the redirect mode and a hash of the backend ports. A change of the mode or the
/// ports needs new slices; a change of the selector does not.
///
/// The agent and the controller may be different versions, so the text form must never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyShape {
    pub mode: RedirectMode,
    pub ports: u64,
}

impl fmt::Display for PolicyShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.mode.as_str(), self.ports)
    }
}

impl PolicyShape {
    pub fn from_text(text: &str) -> Option<PolicyShape> {
        let (mode, ports) = text.split_once('-')?;
        let mode = RedirectMode::ALL.into_iter().find(|known| known.as_str() == mode)?;
        Some(PolicyShape { mode, ports: u64::from_str_radix(ports, 16).ok()? })
    }
}

/// The backends of a BalancingPolicy with `Target::Pods`, published by the controller or computed by the agent. The
/// addresses are those of the pods; the planner replaces them by node addresses for `HostPort` and `NodeProxy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySlice {
    pub name: SliceName,
    pub policy: PolicyName,
    /// The UID of the policy that owns the slice.
    pub uid: Box<str>,
    /// The shape of the policy when the slice was built. A slice without a shape is ignored.
    pub shape: Option<PolicyShape>,
    pub family: Family,
    /// Named after the backend ports of the policy.
    pub ports: Box<[SlicePort]>,
    pub endpoints: Box<[Endpoint]>,
}
