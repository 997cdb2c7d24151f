//! Policies as facts: what changes where a dialled address leads. A LocalRedirectPolicy sends it to pods on the dialler's
//! own node, a BalancingPolicy to chosen pods, host ports, node entries or outside addresses.

use crate::address::{Address, Family};
use crate::fact::{Endpoint, SliceName, SlicePort};
use crate::hash::lasting;
use crate::name::{LOCAL_CLUSTER, Name, Protocol};
use crate::selector::Selector;
use serde::{Deserialize, Serialize};
use std::fmt;

/// In the order in which they go before each other; Services come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PolicyKind {
    LocalRedirect,
    Balancing,
}

impl PolicyKind {
    pub const BOTH: [PolicyKind; 2] = [PolicyKind::LocalRedirect, PolicyKind::Balancing];

    pub fn from_text(text: &str) -> Option<PolicyKind> {
        PolicyKind::BOTH.into_iter().find(|kind| kind.to_string() == text)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyKind::LocalRedirect => "LocalRedirectPolicy",
            PolicyKind::Balancing => "BalancingPolicy",
        })
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyName {
    pub kind: PolicyKind,
    pub cluster: Name,
    pub namespace: Name,
    pub name: Name,
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

/// A port that is dialled. Its name pairs it with a backend's; a single pair needs none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialledPort {
    pub name: Name,
    pub port: u16,
    pub protocol: Protocol,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Matcher {
    /// The ClusterIPs of a Service in the policy's own namespace. No ports: all that the Service has, by their names.
    Service { name: Name, ports: Option<Box<[DialledPort]>> },
    /// A virtual address.
    Address { address: Address, ports: Box<[DialledPort]> },
}

impl Matcher {
    /// Tells what is matched now from what was matched before (`PortName::matched`): the Service or address, and the port.
    pub fn mark(&self, dialled: &DialledPort) -> u32 {
        let text = match self {
            Matcher::Service { name, .. } => format!("{name}/{}", dialled.port),
            Matcher::Address { address, .. } => format!("{address}/{}", dialled.port),
        };
        let hash = lasting(text.bytes());
        (hash ^ (hash >> 32)) as u32
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortChoice {
    Number(u16),
    /// A container port's name, looked up pod by pod.
    Name(Name),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendPort {
    pub name: Name,
    pub port: PortChoice,
    pub protocol: Protocol,
}

/// What stands in for a pod that is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RedirectMode {
    PodEndpoint,
    HostPort,
    NodeProxy,
}

impl RedirectMode {
    pub const ALL: [RedirectMode; 3] = [RedirectMode::PodEndpoint, RedirectMode::HostPort, RedirectMode::NodeProxy];

    /// As the policy calls it.
    pub fn word(self) -> &'static str {
        match self {
            RedirectMode::PodEndpoint => "podEndpoint",
            RedirectMode::HostPort => "hostPort",
            RedirectMode::NodeProxy => "nodeProxy",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// Ready pods on the dialler's node, of the policy's namespace. LocalRedirectPolicy only.
    LocalPods { selector: Selector, ports: Box<[BackendPort]> },
    /// Ready pods on any node. `namespaces: None`: the policy's own.
    Pods { selector: Selector, namespaces: Option<Selector>, mode: RedirectMode, ports: Box<[BackendPort]> },
    /// Any address, also outside the cluster; its ports are numbers.
    Addresses { addresses: Box<[Address]>, ports: Box<[BackendPort]> },
}

/// A token bucket, one for each policy and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub connects_per_second: u32,
    pub burst: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub name: PolicyName,
    /// Slices count only if they are owned by it: a policy that is made again under its name is another one.
    pub uid: Box<str>,
    /// Seconds since the epoch; of two for one address and port the older one wins.
    pub created: i64,
    pub generation: i64,
    pub matcher: Matcher,
    pub target: Target,
    /// On which nodes it holds; `None`: all.
    pub nodes: Option<Selector>,
    /// Whether it exists for hosts outside the cluster.
    pub out_cluster: bool,
    pub limit: Option<Limit>,
}

impl Policy {
    /// Of a redirect: the pods of a node.
    pub fn local_selector(&self) -> Option<&Selector> {
        match &self.target {
            Target::LocalPods { selector, .. } => Some(selector),
            Target::Pods { .. } | Target::Addresses { .. } => None,
        }
    }

    /// Of one whose pods are published.
    pub fn shape(&self) -> Option<Shape> {
        let Target::Pods { mode, ports, .. } = &self.target else { return None };
        let port = |port: &BackendPort| match &port.port {
            PortChoice::Number(number) => format!("\n{} {} {number}", port.name, port.protocol),
            PortChoice::Name(name) => format!("\n{} {} {name:?}", port.name, port.protocol),
        };
        let text: String = ports.iter().map(port).collect();
        Some(Shape { mode: *mode, ports: lasting(text.bytes()) })
    }
}

/// What slices of backends were made for: a mode, and a mark of the backend's ports. Another selector needs no new slices to be
/// understood, another mode or port does.
///
/// Agent and controller may be of different builds: its text is never to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    pub mode: RedirectMode,
    pub ports: u64,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.mode.word(), self.ports)
    }
}

impl Shape {
    pub fn from_text(text: &str) -> Option<Shape> {
        let (mode, ports) = text.split_once('-')?;
        let mode = RedirectMode::ALL.into_iter().find(|known| known.word() == mode)?;
        Some(Shape { mode, ports: u64::from_str_radix(ports, 16).ok()? })
    }
}

/// Backends of a BalancingPolicy's `Pods`, as the controller publishes them (or the agent works them out for itself).
/// Addresses are the pods'; for `HostPort` and `NodeProxy` whoever plans puts the node's in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySlice {
    pub name: SliceName,
    pub policy: PolicyName,
    /// Of the policy that owns it.
    pub uid: Box<str>,
    /// Of that policy when this was made; `None`: nobody knows, and nobody reads it.
    pub shape: Option<Shape>,
    pub family: Family,
    /// By the name of the backend's port, which is the dialled port's.
    pub ports: Box<[SlicePort]>,
    pub endpoints: Box<[Endpoint]>,
}
