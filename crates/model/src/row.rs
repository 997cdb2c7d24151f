//! The rows of the kernel tables, in types of this crate. `Rows` is what a dump of the kernel returns, what
//! `MemoryMaps` holds and what `Tables` mirrors. crates/datapath/src/wire.rs converts rows to the bytes of the BPF
//! maps.

use crate::address::{Address, Family};
use crate::hash::HashMap;
use crate::id_map::IdMap;
use crate::name::Protocol;
use crate::policy::Limit;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

pub type OwnerId = u32;
pub type SetId = u32;
pub type BackendId = u32;
/// The id of a policy's name, which all sets of the policy share.
pub type PolicyId = u32;

/// The number of the cluster that this host is a node of.
pub const HOME_CLUSTER: u32 = 0;
pub const INLINE_SLOTS: usize = 8;
/// The policy id of a Service's set, and of a policy's set that has neither a limit nor selected pods.
pub const NO_POLICY: PolicyId = 0;
pub const SET_NONE: SetId = 0;
pub const SET_CLOSED: SetId = 1;
pub const SET_FIRST: SetId = 2;
/// SO_PRIORITY of the sockets with which the agent dials its API servers. The programs leave such a dial alone at every
/// address that a Service or policy chose for itself. A priority that large changes no queue: queueing disciplines use the
/// low four bits, or compare the whole with the handle of a class.
pub const AGENT_SOCKET_PRIORITY: u32 = 0x0bee_0000;
/// Maximum number of slots of one set.
pub const MAX_SLOTS: usize = 0xffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FrontendKind {
    #[serde(rename = "clusterIP")]
    ClusterIp,
    LoadBalancer,
    #[serde(rename = "externalIP")]
    ExternalIp,
    Virtual,
    NodePort,
}

impl FrontendKind {
    pub const ALL: [FrontendKind; 5] = [
        FrontendKind::ClusterIp,
        FrontendKind::LoadBalancer,
        FrontendKind::ExternalIp,
        FrontendKind::Virtual,
        FrontendKind::NodePort,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// A dial of a socket on this host, or a packet of a pod.
    Inside,
    /// A packet from outside the cluster. Only frontends with externalTrafficPolicy Local have such a row; at all other
    /// frontends the row for `Inside` applies.
    Outside,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    pub address: Address,
    pub port: u16,
    /// `None`, with port 0, for the row that stands for all ports of a ClusterIP.
    pub protocol: Option<Protocol>,
    pub scope: Scope,
    pub view: u32,
}

impl FrontendKey {
    pub fn new(address: Address, port: u16, protocol: Protocol) -> FrontendKey {
        FrontendKey { address, port, protocol: Some(protocol), scope: Scope::Inside, view: 0 }
    }

    pub fn all_ports(address: Address) -> FrontendKey {
        FrontendKey { address, port: 0, protocol: None, scope: Scope::Inside, view: 0 }
    }

    pub fn is_node_port_row(&self) -> bool {
        self.address.is_any()
    }

    /// The keys that are looked up when this row is missing: all ports of the ClusterIP, and the NodePort wildcard.
    /// NodePort rows have the cluster number in place of a view, and only the home cluster has NodePort rows at single
    /// node addresses.
    pub fn fallbacks(&self) -> [FrontendKey; 2] {
        let all_ports = FrontendKey { port: 0, protocol: None, ..*self };
        [all_ports, FrontendKey { address: Address::any(self.address.family()), view: HOME_CLUSTER, ..*self }]
    }

    pub fn tier(&self) -> Tier {
        if self.protocol.is_none() || self.is_node_port_row() { Tier::Fallback } else { Tier::Exact }
    }
}

/// An exact row is looked up first. A fallback row is looked up only if the exact row is missing.
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
        if self.scope == Scope::Outside {
            f.write_str(" from outside")?;
        }
        if self.view != 0 { write!(f, " view {}", self.view) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendRow {
    pub set: SetId,
    pub kind: FrontendKind,
}

/// Where the backend ids of a set are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    Inline,
    Range(u32),
}

/// Readers load the span as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSpan {
    pub base: Base,
    pub count: u16,
    pub generation: u16,
}

/// The bits of a backend's roles. A backend has the roles of all sets that contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Cluster = 1,
    Local = 2,
    Node = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    Service,
    Balancing,
    Redirect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenEmpty {
    /// The service has no endpoint at all: refuse.
    Refuse,
    /// Endpoints exist, but not in this set or not for this client: `--no-local-endpoint-action` decides.
    Fail,
}

/// The fields of a set that change in place, each by a single write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetHeader {
    pub next: SetId,
    pub affinity: u32,
    pub policy: PolicyId,
    /// Every pick takes a token from the policy's bucket.
    pub limited: bool,
    /// A dial from a pod that the policy selects skips this set.
    pub self_next: bool,
    pub when_empty: WhenEmpty,
    pub restricted: bool,
    /// As a NodePort, the set serves only this node's own addresses. Dials to other nodes' addresses get `when_empty`.
    pub own_node: bool,
}

impl Default for SetHeader {
    /// The header of a set without any special behaviour.
    fn default() -> SetHeader {
        SetHeader {
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
    pub span: SlotSpan,
    pub owner: OwnerId,
    pub family: Family,
    pub role: Role,
    /// The name id of the node, if the role is `Role::Node`.
    pub node: u32,
    pub rule: Rule,
    pub header: SetHeader,
    pub inline: [BackendId; INLINE_SLOTS],
}

impl SetRow {
    /// What an empty set does with a dial that may use it. A cluster set is empty only if the service has no endpoint.
    pub fn when_empty(&self) -> WhenEmpty {
        if self.role == Role::Cluster { WhenEmpty::Refuse } else { self.header.when_empty }
    }
}

/// The generation distinguishes a recycled backend id from the one that a socket record refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendState {
    pub generation: u32,
    /// The roles of all sets that contain the backend. 0 means that the backend is not in use.
    pub roles: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendRow {
    pub address: Address,
    pub port: u16,
    pub node: u32,
    pub owner: OwnerId,
    /// The packet path finds UDP backends by their address, see `backend_index` in bpf/abi.h.
    pub udp: bool,
    pub state: BackendState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRow {
    pub cluster: u16,
    pub own: bool,
    /// The row applies only to clients in the host's network namespace.
    pub loopback: bool,
    /// The row applies to 127.0.0.1 only. Otherwise the row of 127.0.0.1 applies to all of 127.0.0.0/8.
    pub exact_loopback: bool,
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

/// Two bits of the port filter: which kinds of frontends use the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PortBits {
    pub frontend: bool,
    pub node_port: bool,
}

/// The capacity of each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// Capacity for this many service ports with a few backends each.
    pub fn for_services(services: u32) -> Sizes {
        Sizes {
            frontends: services * 4,
            sets: services * 2 + SET_FIRST,
            // A set of more than eight backends has its own range of slots, rounded up to a power of two.
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
    pub sets: IdMap<SetRow>,
    /// The values of slots that no set uses are undefined.
    pub slots: Vec<BackendId>,
    pub backends: IdMap<BackendRow>,
    pub nodes: BTreeMap<Address, NodeRow>,
    pub sources: BTreeSet<(OwnerId, IpNet)>,
    pub buckets: BTreeMap<PolicyId, Limit>,
    /// The cgroup ids of the pods that a policy selects.
    pub selected: BTreeSet<(PolicyId, u64)>,
    pub names: IdMap<NameRow>,
    pub ports: HashMap<(Protocol, u16), PortBits>,
    pub ranges_v4: [u64; 4],
    pub ranges_v6: [u64; 4],
}

impl Rows {
    /// The sets that a dial can reach: those of frontends, and those linked below them.
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

    /// The source ranges of an owner.
    pub fn sources_of(&self, owner: OwnerId) -> impl Iterator<Item = IpNet> {
        let lowest = IpNet::from(ipnet::Ipv4Net::default());
        self.sources.range((owner, lowest)..).take_while(move |(of, _)| *of == owner).map(|(_, net)| *net)
    }

    /// The cgroup ids of the pods that a policy selects.
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
