//! Names of services, policies, service ports and sets. Names are shared pointers, so that 100,000 services do not hold
//! many copies of the same words.

use crate::address::Family;
use crate::policy::{PolicyKind, PolicyName};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

pub type Name = Arc<str>;

/// The name of a cluster whose source is configured without a name.
pub const LOCAL_CLUSTER: &str = "local";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    pub fn from_number(number: u8) -> Option<Protocol> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.number() == number)
    }

    /// Whether a socket hook can resolve the protocol. SCTP cannot be resolved at the socket.
    pub fn has_hook(self) -> bool {
        self != Protocol::Sctp
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        })
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a protocol: TCP, UDP or SCTP")]
pub struct ParseProtocolError(pub String);

impl FromStr for Protocol {
    type Err = ParseProtocolError;

    fn from_str(text: &str) -> Result<Protocol, ParseProtocolError> {
        match text.to_ascii_uppercase().as_str() {
            "TCP" => Ok(Protocol::Tcp),
            "UDP" => Ok(Protocol::Udp),
            "SCTP" => Ok(Protocol::Sctp),
            _ => Err(ParseProtocolError(text.to_owned())),
        }
    }
}

/// The cluster, namespace and name of a Service, or of a policy that takes precedence over one: the owner of frontends
/// and sets. A clone copies one pointer. Because most lookups use this key, its hash is computed once, and comparing
/// two names usually compares only pointers or hashes.
#[derive(Clone)]
pub struct ServiceName(Arc<FullName>);

struct FullName {
    hash: u64,
    /// `None` for a Service.
    policy: Option<PolicyKind>,
    /// Cluster, namespace and name, concatenated.
    text: Box<str>,
    /// The end of the cluster and the end of the namespace in `text`.
    ends: [u32; 2],
}

impl ServiceName {
    /// The name of a Service.
    pub fn new(cluster: &str, namespace: &str, name: &str) -> ServiceName {
        ServiceName::of(None, cluster, namespace, name)
    }

    pub fn of_policy(policy: &PolicyName) -> ServiceName {
        ServiceName::of(Some(policy.kind), &policy.cluster, &policy.namespace, &policy.name)
    }

    fn of(policy: Option<PolicyKind>, cluster: &str, namespace: &str, name: &str) -> ServiceName {
        let text: Box<str> = [cluster, namespace, name].concat().into();
        let ends = [cluster.len() as u32, (cluster.len() + namespace.len()) as u32];
        let mut hasher = DefaultHasher::new();
        (policy, cluster, namespace, name).hash(&mut hasher);
        ServiceName(Arc::new(FullName { hash: hasher.finish(), policy, text, ends }))
    }

    pub fn local(namespace: &str, name: &str) -> ServiceName {
        ServiceName::new(LOCAL_CLUSTER, namespace, name)
    }

    /// `None` for a Service.
    pub fn policy_kind(&self) -> Option<PolicyKind> {
        self.0.policy
    }

    pub fn policy(&self) -> Option<PolicyName> {
        let [cluster, namespace, name] = [self.cluster(), self.namespace(), self.name()].map(Into::into);
        self.0.policy.map(|kind| PolicyName { kind, cluster, namespace, name })
    }

    /// The text form in the kernel's name table.
    pub fn to_text(&self) -> String {
        let kind = self.policy_kind().map_or_else(String::new, |kind| format!("{kind}/"));
        format!("{kind}{}/{}/{}", self.cluster(), self.namespace(), self.name())
    }

    /// Parses the text form of a policy's name.
    pub fn policy_from_text(text: &str) -> Option<ServiceName> {
        let parts: Vec<&str> = text.split('/').collect();
        let [kind, cluster, namespace, name] = *parts else { return None };
        Some(ServiceName::of(Some(PolicyKind::from_text(kind)?), cluster, namespace, name))
    }

    pub fn cluster(&self) -> &str {
        &self.0.text[..self.0.ends[0] as usize]
    }

    pub fn namespace(&self) -> &str {
        &self.0.text[self.0.ends[0] as usize..self.0.ends[1] as usize]
    }

    pub fn name(&self) -> &str {
        &self.0.text[self.0.ends[1] as usize..]
    }

    /// The name as refusals and messages show it.
    pub fn subject(&self) -> String {
        if self.0.policy.is_some() { self.to_string() } else { format!("Service {self}") }
    }

    /// The parts as bytes, for comparing: bytes sort as their text does, and slicing them needs no check of character
    /// boundaries.
    fn parts(&self) -> [&[u8]; 3] {
        let (text, [first, second]) = (self.0.text.as_bytes(), self.0.ends.map(|end| end as usize));
        [&text[..first], &text[first..second], &text[second..]]
    }
}

impl PartialEq for ServiceName {
    fn eq(&self, other: &ServiceName) -> bool {
        let (a, b) = (&*self.0, &*other.0);
        Arc::ptr_eq(&self.0, &other.0)
            || a.hash == b.hash && a.policy == b.policy && a.ends == b.ends && a.text == b.text
    }
}

impl Eq for ServiceName {}

impl Ord for ServiceName {
    fn cmp(&self, other: &ServiceName) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ordering::Equal;
        }
        self.0.policy.cmp(&other.0.policy).then_with(|| self.parts().cmp(&other.parts()))
    }
}

impl PartialOrd for ServiceName {
    fn partial_cmp(&self, other: &ServiceName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for ServiceName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kind) = self.0.policy {
            write!(f, "{kind} ")?;
        }
        if self.cluster() != LOCAL_CLUSTER {
            write!(f, "{}:", self.cluster())?;
        }
        write!(f, "{}/{}", self.namespace(), self.name())
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ServiceName {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not the name of a Service or policy: [KIND ][CLUSTER:]NAMESPACE/NAME")]
pub struct ParseServiceNameError(pub String);

impl FromStr for ServiceName {
    type Err = ParseServiceNameError;

    /// Parses the displayed form.
    fn from_str(text: &str) -> Result<ServiceName, ParseServiceNameError> {
        let bad = || ParseServiceNameError(text.to_owned());
        let (kind, rest) = match text.split_once(' ') {
            Some((kind, rest)) => (Some(PolicyKind::from_text(kind).ok_or_else(bad)?), rest),
            None => (None, text),
        };
        let (cluster, rest) = rest.split_once(':').unwrap_or((LOCAL_CLUSTER, rest));
        let (namespace, name) = rest.split_once('/').ok_or_else(bad)?;
        Ok(ServiceName::of(kind, cluster, namespace, name))
    }
}

impl<'de> Deserialize<'de> for ServiceName {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<ServiceName, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A service port. TCP, UDP and SCTP ports of one number are three service ports.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    pub service: ServiceName,
    pub port: Name,
    pub protocol: Protocol,
    /// For a policy, a hash of what it matches; 0 for a Service. A policy that changes to another Service or address
    /// gets new sets, so that dials to the old address use the old backends until the old frontends are deleted.
    pub matched: u32,
}

impl PortName {
    pub fn new(service: ServiceName, port: Name, protocol: Protocol) -> PortName {
        PortName { service, port, protocol, matched: 0 }
    }

    /// The text form in the kernel's name table. No part contains `/`. For a policy the kind comes first and `matched`
    /// last.
    pub fn to_text(&self) -> String {
        let text = format!("{}/{}/{}", self.service.to_text(), self.port, self.protocol);
        if self.service.policy_kind().is_some() { format!("{text}/{:x}", self.matched) } else { text }
    }

    pub fn from_text(text: &str) -> Option<PortName> {
        let parts: Vec<&str> = text.split('/').collect();
        let (policy, parts, matched) = match *parts {
            [kind, .., matched] if parts.len() == 7 => {
                (Some(PolicyKind::from_text(kind)?), &parts[1..6], u32::from_str_radix(matched, 16).ok()?)
            }
            _ => (None, &parts[..], 0),
        };
        let [cluster, namespace, name, port, protocol] = *parts else { return None };
        let service = ServiceName::of(policy, cluster, namespace, name);
        Some(PortName { matched, ..PortName::new(service, port.into(), protocol.parse().ok()?) })
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.port {
            "" => write!(f, "{}/{}", self.service, self.protocol),
            port => write!(f, "{}:{port}/{}", self.service, self.protocol),
        }
    }
}

impl fmt::Debug for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PortName {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// Which endpoints of a service port a set contains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetRole {
    Cluster,
    /// Endpoints on this node.
    Local,
    /// Endpoints on another node: the set that the NodePort of that node serves under externalTrafficPolicy Local.
    Node(Name),
}

/// The dials that a set serves. The audience is part of the set's name, so that a frontend changes its audience with a
/// single write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Audience {
    Everyone,
    /// Clients inside loadBalancerSourceRanges.
    Sources,
    /// For NodePorts, dials to this node's own addresses. Under externalTrafficPolicy Local the addresses of another
    /// node lead to the set of that node.
    OwnNode,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetName {
    pub owner: PortName,
    pub family: Family,
    pub role: SetRole,
    pub audience: Audience,
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.owner, self.family)?;
        match &self.role {
            SetRole::Cluster => f.write_str("cluster")?,
            SetRole::Local => f.write_str("local")?,
            SetRole::Node(node) => write!(f, "node={node}")?,
        }
        f.write_str(match self.audience {
            Audience::Everyone => "",
            Audience::Sources => " restricted",
            Audience::OwnNode => " own node",
        })
    }
}

impl fmt::Debug for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_ordered_by_their_parts() {
        let [a, b] = [ServiceName::local("a", "x"), ServiceName::local("a-b", "x")];
        assert!(a < b && a != b && a == ServiceName::local("a", "x"));
        assert_ne!(ServiceName::local("a", "bc"), ServiceName::local("ab", "c"));
        assert_eq!((b.cluster(), b.namespace(), b.name()), (LOCAL_CLUSTER, "a-b", "x"));
        let elsewhere = ServiceName::new("shop", "a", "x");
        assert_eq!((elsewhere.to_string().parse(), a.to_string().parse()), (Ok(elsewhere), Ok(a)));
        assert!(["x", "Unknown a/x"].iter().all(|bad| bad.parse::<ServiceName>().is_err()));
    }

    #[test]
    fn a_policy_and_a_service_of_the_same_name_differ() {
        let [cluster, namespace, name]: [Name; 3] = [LOCAL_CLUSTER.into(), "a".into(), "x".into()];
        let policy = PolicyName { kind: PolicyKind::Balancing, cluster, namespace, name };
        let owner = ServiceName::of_policy(&policy);
        assert_ne!(owner, ServiceName::local("a", "x"));
        assert_eq!(owner.policy(), Some(policy));
        assert_eq!(ServiceName::policy_from_text(&owner.to_text()), Some(owner.clone()));
        assert_eq!(PortName::from_text(&owner.to_text()), None, "a policy name is not a port name");
        assert_eq!(owner.to_string().parse(), Ok(owner.clone()));
        let port = PortName { matched: 0xbee, ..PortName::new(owner, "dns".into(), Protocol::Udp) };
        assert_eq!(port.to_text(), "BalancingPolicy/local/a/x/dns/UDP/bee");
        assert_eq!(PortName::from_text(&port.to_text()), Some(port));
    }
}
