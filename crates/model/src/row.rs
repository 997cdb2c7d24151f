//! Rows: the exact image of the agent's tables, in our types. `Rows` is what a dump of the kernel gives, what the memory
//! map holds, and what the tables mirror; crates/datapath/src/wire.rs turns rows into the kernel's bytes.

use crate::address::{Address, Family};
use crate::by_id::ById;
use crate::hash::HashMap;
use crate::name::Protocol;
use crate::policy::Limit;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

pub type OwnerId = u32;
pub type SetId = u32;
pub type BackendId = u32;
/// A policy's number: the id of its name, which all its sets share.
pub type PolicyId = u32;

/// The number of the cluster that this host is a node of.
pub const HOME_CLUSTER: u32 = 0;
pub const INLINE_SLOTS: usize = 8;
/// No policy: a Service's own set, or one of a policy that asks nothing of a dial.
pub const NO_POLICY: PolicyId = 0;
pub const SET_NONE: SetId = 0;
pub const SET_CLOSED: SetId = 1;
pub const SET_FIRST: SetId = 2;
/// One set holds at most this many slots.
pub const MAX_SLOTS: usize = 0xffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    #[serde(rename = "clusterIP")]
    ClusterIp,
    LoadBalancer,
    #[serde(rename = "externalIP")]
    ExternalIp,
    Virtual,
    NodePort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    Inside,
    Outside,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    pub address: Address,
    pub port: u16,
    /// `None` with port 0: "this ClusterIP is known", whatever the port.
    pub protocol: Option<Protocol>,
    pub scope: Scope,
    pub view: u32,
}

impl FrontendKey {
    pub fn new(address: Address, port: u16, protocol: Protocol) -> FrontendKey {
        FrontendKey { address, port, protocol: Some(protocol), scope: Scope::Inside, view: 0 }
    }

    pub fn known(address: Address) -> FrontendKey {
        FrontendKey { address, port: 0, protocol: None, scope: Scope::Inside, view: 0 }
    }

    pub fn is_node_port_row(&self) -> bool {
        self.address.is_any()
    }

    /// What is looked at when this row is missing. NodePort rows stand under their cluster's number instead of a view, and
    /// only our own cluster has rows at single nodes' addresses.
    pub fn fallbacks(&self) -> [FrontendKey; 2] {
        let known = FrontendKey { port: 0, protocol: None, ..*self };
        [known, FrontendKey { address: Address::any(self.address.family()), view: HOME_CLUSTER, ..*self }]
    }

    pub fn tier(&self) -> Tier {
        if self.protocol.is_none() || self.is_node_port_row() { Tier::Fallback } else { Tier::Exact }
    }
}

/// An exact row is looked at first, whatever it falls back to only when that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Exact,
    Fallback,
}

impl std::fmt::Debug for FrontendKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.protocol, self.address.ip()) {
            (None, ip) => write!(f, "{ip} any port"),
            (Some(protocol), std::net::IpAddr::V4(ip)) => write!(f, "{ip}:{}/{protocol}", self.port),
            (Some(protocol), std::net::IpAddr::V6(ip)) => write!(f, "[{ip}]:{}/{protocol}", self.port),
        }?;
        if self.view != 0 { write!(f, " view {}", self.view) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendRow {
    pub set: SetId,
    pub kind: Kind,
}

/// Where a set's backend ids stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    Inline,
    Range(u32),
}

/// Loaded by readers as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub base: Base,
    pub count: u16,
    pub generation: u16,
}

/// A backend's state and a set's role speak the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Cluster = 1,
    Local = 2,
    Node = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    Service,
    Balancing,
    Redirect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenEmpty {
    /// No endpoint anywhere.
    Refuse,
    /// Others exist, but not in this set, or not for this dialler: `--empty-local` decides.
    Fail,
}

/// What of a set changes in place, each field by a store of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub next: SetId,
    pub affinity: u32,
    pub policy: PolicyId,
    /// A pick costs a token of the policy's bucket.
    pub limited: bool,
    /// A pod that the policy selects goes to the next set.
    pub self_next: bool,
    pub when_empty: WhenEmpty,
    pub restricted: bool,
    /// As a NodePort it holds for our own addresses only; others' get what `when_empty` says.
    pub own_node: bool,
}

impl Default for Header {
    /// Of a set that nothing special is asked of.
    fn default() -> Header {
        Header {
            next: SET_NONE,
            affinity: 0,
            policy: NO_POLICY,
            limited: false,
            self_next: false,
            when_empty: WhenEmpty::Refuse,
            restricted: false,
            own_node: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetRow {
    pub span: Span,
    pub owner: OwnerId,
    pub family: Family,
    pub role: Role,
    /// `Role::Node`: the name id of that node.
    pub node: u32,
    pub rule: Rule,
    pub header: Header,
    pub inline: [BackendId; INLINE_SLOTS],
}

impl SetRow {
    /// What a dial gets that may use this set and finds it empty; a cluster set is empty only where there is none at all.
    pub fn when_empty(&self) -> WhenEmpty {
        if self.role == Role::Cluster { WhenEmpty::Refuse } else { self.header.when_empty }
    }
}

/// A generation tells a recycled id from the one that a record remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub generation: u32,
    /// OR of the roles of the sets that it is in; 0: not in use.
    pub roles: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendRow {
    pub address: Address,
    pub port: u16,
    pub node: u32,
    pub owner: OwnerId,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRow {
    pub cluster: u16,
    pub own: bool,
    /// Only for diallers in the host's own network namespace.
    pub loopback: bool,
    /// 127.0.0.1 itself; without this its row speaks for all of 127.0.0.0/8.
    pub alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    ServicePort,
    Node,
    Policy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRow {
    pub kind: NameKind,
    /// Shared by all ports of a service.
    pub number: u32,
    pub text: String,
}

/// Which kinds of frontends use a port: two bits of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PortBits {
    pub frontend: bool,
    pub node_port: bool,
}

/// How many rows each table can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sizes {
    pub frontends: u32,
    pub sets: u32,
    pub slots: u32,
    pub backends: u32,
    pub nodes: u32,
    pub sources: u32,
    pub names: u32,
    pub members: u32,
    pub affinity: u32,
}

impl Sizes {
    /// Room for this many service ports with a few backends each.
    pub fn for_services(services: u32) -> Sizes {
        Sizes {
            frontends: services * 4,
            sets: services * 2 + SET_FIRST,
            // A set of nine backends and more has a stretch of its own, rounded up.
            slots: services * 16,
            backends: services * 8,
            nodes: 16_384,
            sources: 16_384,
            names: services + 8_192,
            members: services + 16_384,
            affinity: 65_536,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub frontends: HashMap<FrontendKey, FrontendRow>,
    pub sets: ById<SetRow>,
    /// Slots that no set uses may hold anything.
    pub slots: Vec<BackendId>,
    pub backends: ById<BackendRow>,
    pub nodes: BTreeMap<Address, NodeRow>,
    pub sources: BTreeSet<(OwnerId, IpNet)>,
    pub buckets: BTreeMap<PolicyId, Limit>,
    /// Pods that a policy selects, by the id of their cgroup.
    pub selected: BTreeSet<(PolicyId, u64)>,
    pub names: ById<NameRow>,
    pub ports: HashMap<(Protocol, u16), PortBits>,
    pub ranges_v4: [u64; 4],
    pub ranges_v6: [u64; 4],
}

impl Rows {
    /// The sets that a dial can come to: those of frontends, and those linked below them.
    pub fn reachable_sets(&self) -> BTreeSet<SetId> {
        let mut reached = BTreeSet::new();
        for row in self.frontends.values() {
            let mut id = row.set;
            while let Some(set) = self.sets.get(id).filter(|_| !reached.contains(&id)) {
                reached.insert(id);
                id = set.header.next;
            }
        }
        reached
    }

    /// The ranges that may dial what belongs to this owner.
    pub fn sources_of(&self, owner: OwnerId) -> impl Iterator<Item = IpNet> {
        let lowest = IpNet::from(ipnet::Ipv4Net::default());
        self.sources.range((owner, lowest)..).take_while(move |(of, _)| *of == owner).map(|(_, net)| *net)
    }

    /// The cgroups of the pods that this policy selects.
    pub fn selected_by(&self, policy: PolicyId) -> impl Iterator<Item = u64> {
        self.selected.range((policy, 0)..=(policy, u64::MAX)).map(|(_, cgroup)| *cgroup)
    }

    pub fn members<'a>(&'a self, set: &'a SetRow) -> &'a [BackendId] {
        let count = usize::from(set.span.count);
        match set.span.base {
            Base::Inline => &set.inline[..count.min(INLINE_SLOTS)],
            Base::Range(base) => self.slots.get(base as usize..base as usize + count).unwrap_or(&[]),
        }
    }
}
