//! Names: what a thing is called, everywhere (facts, plan, tables, metrics, CLI). Shared, so that a hundred thousand
//! services do not hold the same words many times.

use crate::address::Family;
use crate::policy::{PolicyKind, PolicyName};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

pub type Name = Arc<str>;

/// The cluster of a source that names none.
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

    /// Whether a socket hook can see it; SCTP is the packet path's.
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
pub struct BadProtocol(pub String);

impl FromStr for Protocol {
    type Err = BadProtocol;

    fn from_str(text: &str) -> Result<Protocol, BadProtocol> {
        match text.to_ascii_uppercase().as_str() {
            "TCP" => Ok(Protocol::Tcp),
            "UDP" => Ok(Protocol::Udp),
            "SCTP" => Ok(Protocol::Sctp),
            _ => Err(BadProtocol(text.to_owned())),
        }
    }
}

/// Who claims addresses and owns sets: a Service, or a policy that goes before one; with cluster, namespace and name. One
/// pointer: clones are cheap. Everything is found by it, so it knows its hash, and two of them are mostly told apart or
/// found equal by one look.
#[derive(Clone)]
pub struct OwnerName(Arc<FullName>);

struct FullName {
    hash: u64,
    /// `None`: a Service.
    policy: Option<PolicyKind>,
    /// The three after each other.
    text: Box<str>,
    /// Where the first and the second end.
    ends: [u32; 2],
}

impl OwnerName {
    /// Of a Service.
    pub fn new(cluster: &str, namespace: &str, name: &str) -> OwnerName {
        OwnerName::of(None, cluster, namespace, name)
    }

    pub fn of_policy(policy: &PolicyName) -> OwnerName {
        OwnerName::of(Some(policy.kind), &policy.cluster, &policy.namespace, &policy.name)
    }

    fn of(policy: Option<PolicyKind>, cluster: &str, namespace: &str, name: &str) -> OwnerName {
        let text: Box<str> = [cluster, namespace, name].concat().into();
        let ends = [cluster.len() as u32, (cluster.len() + namespace.len()) as u32];
        let mut hasher = DefaultHasher::new();
        (policy, cluster, namespace, name).hash(&mut hasher);
        OwnerName(Arc::new(FullName { hash: hasher.finish(), policy, text, ends }))
    }

    pub fn local(namespace: &str, name: &str) -> OwnerName {
        OwnerName::new(LOCAL_CLUSTER, namespace, name)
    }

    /// `None`: it is a Service.
    pub fn policy_kind(&self) -> Option<PolicyKind> {
        self.0.policy
    }

    pub fn policy(&self) -> Option<PolicyName> {
        let [cluster, namespace, name] = [self.cluster(), self.namespace(), self.name()].map(Into::into);
        self.0.policy.map(|kind| PolicyName { kind, cluster, namespace, name })
    }

    /// As a policy's number is kept in the kernel's name table, beside the texts of its ports.
    pub fn to_text(&self) -> String {
        let kind = self.policy_kind().map_or_else(String::new, |kind| format!("{kind}/"));
        format!("{kind}{}/{}/{}", self.cluster(), self.namespace(), self.name())
    }

    /// Of a policy.
    pub fn policy_from_text(text: &str) -> Option<OwnerName> {
        let parts: Vec<&str> = text.split('/').collect();
        let [kind, cluster, namespace, name] = *parts else { return None };
        Some(OwnerName::of(Some(PolicyKind::from_text(kind)?), cluster, namespace, name))
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

    /// As refusals name it.
    pub fn subject(&self) -> String {
        if self.0.policy.is_some() { self.to_string() } else { format!("Service {self}") }
    }

    /// For comparing: bytes stand in the order of their text, and need no look at where characters end.
    fn parts(&self) -> [&[u8]; 3] {
        let (text, [first, second]) = (self.0.text.as_bytes(), self.0.ends.map(|end| end as usize));
        [&text[..first], &text[first..second], &text[second..]]
    }
}

impl PartialEq for OwnerName {
    fn eq(&self, other: &OwnerName) -> bool {
        let (a, b) = (&*self.0, &*other.0);
        Arc::ptr_eq(&self.0, &other.0)
            || a.hash == b.hash && a.policy == b.policy && a.ends == b.ends && a.text == b.text
    }
}

impl Eq for OwnerName {}

impl Ord for OwnerName {
    fn cmp(&self, other: &OwnerName) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ordering::Equal;
        }
        self.0.policy.cmp(&other.0.policy).then_with(|| self.parts().cmp(&other.parts()))
    }
}

impl PartialOrd for OwnerName {
    fn partial_cmp(&self, other: &OwnerName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for OwnerName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Display for OwnerName {
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

impl fmt::Debug for OwnerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for OwnerName {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not the name of a Service or policy: [KIND ][CLUSTER:]NAMESPACE/NAME")]
pub struct BadOwnerName(pub String);

impl FromStr for OwnerName {
    type Err = BadOwnerName;

    /// As it is shown.
    fn from_str(text: &str) -> Result<OwnerName, BadOwnerName> {
        let bad = || BadOwnerName(text.to_owned());
        let (kind, rest) = match text.split_once(' ') {
            Some((kind, rest)) => (Some(PolicyKind::from_text(kind).ok_or_else(bad)?), rest),
            None => (None, text),
        };
        let (cluster, rest) = rest.split_once(':').unwrap_or((LOCAL_CLUSTER, rest));
        let (namespace, name) = rest.split_once('/').ok_or_else(bad)?;
        Ok(OwnerName::of(kind, cluster, namespace, name))
    }
}

impl<'de> Deserialize<'de> for OwnerName {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<OwnerName, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A service port: TCP, UDP and SCTP on one number are three of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    pub service: OwnerName,
    pub port: Name,
    pub protocol: Protocol,
    /// Of a policy: a mark of what it matches (0 of a Service). A policy that turns to another Service or address gets sets
    /// of its own for it: who dials the old one meets the old backends until its frontends are gone, never the new ones.
    pub matched: u32,
}

impl PortName {
    pub fn new(service: OwnerName, port: Name, protocol: Protocol) -> PortName {
        PortName { service, port, protocol, matched: 0 }
    }

    /// As kept in the kernel's name table; `/` occurs in none of the parts. A policy's kind stands before them, the mark of
    /// what it matches after them.
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
        let service = OwnerName::of(policy, cluster, namespace, name);
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

/// Which of a service port's endpoints a set holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetRole {
    Cluster,
    /// On this node.
    Local,
    /// On another node, by its name: what that node's own NodePort would serve under external Local.
    Node(Name),
}

/// Whom a set answers. Part of its name, so that a frontend turns from one to the other in one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Audience {
    Everyone,
    /// Diallers inside loadBalancerSourceRanges.
    Sources,
    /// As a NodePort, dials to this node's own addresses: another node's stand for that node's set (external Local).
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
        let [a, b] = [OwnerName::local("a", "x"), OwnerName::local("a-b", "x")];
        assert!(a < b && a != b && a == OwnerName::local("a", "x"));
        assert_ne!(OwnerName::local("a", "bc"), OwnerName::local("ab", "c"));
        assert_eq!((b.cluster(), b.namespace(), b.name()), (LOCAL_CLUSTER, "a-b", "x"));
        let elsewhere = OwnerName::new("shop", "a", "x");
        assert_eq!((elsewhere.to_string().parse(), a.to_string().parse()), (Ok(elsewhere), Ok(a)));
        assert!(["x", "Nobody a/x"].iter().all(|bad| bad.parse::<OwnerName>().is_err()));
    }

    #[test]
    fn a_policy_is_no_service_of_the_same_name() {
        let [cluster, namespace, name]: [Name; 3] = [LOCAL_CLUSTER.into(), "a".into(), "x".into()];
        let policy = PolicyName { kind: PolicyKind::Balancing, cluster, namespace, name };
        let owner = OwnerName::of_policy(&policy);
        assert_ne!(owner, OwnerName::local("a", "x"));
        assert_eq!(owner.policy(), Some(policy));
        assert_eq!(OwnerName::policy_from_text(&owner.to_text()), Some(owner.clone()));
        assert_eq!(PortName::from_text(&owner.to_text()), None, "its ports are other rows");
        assert_eq!(owner.to_string().parse(), Ok(owner.clone()));
        let port = PortName { matched: 0xbee, ..PortName::new(owner, "dns".into(), Protocol::Udp) };
        assert_eq!(port.to_text(), "BalancingPolicy/local/a/x/dns/UDP/bee");
        assert_eq!(PortName::from_text(&port.to_text()), Some(port));
    }
}
