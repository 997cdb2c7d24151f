//! What was found out about the way to pods (`pods: auto`): by routes, and by probes where only a default route leads
//! there. An input of the planner: who finds out, and how, is somebody else's.

use crate::address::{Address, Family};
use crate::name::Name;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// How pods of one group are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Found {
    Direct,
    Node,
    #[default]
    Unknown,
}

/// Pods that stand or fall together: those of one node in one /24 (/64).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Group {
    pub cluster: Name,
    pub node: Option<Name>,
    pub prefix: IpNet,
}

impl Group {
    pub fn of(cluster: Name, node: Option<Name>, address: Address) -> Group {
        Group { cluster, node, prefix: prefix(address) }
    }
}

pub(crate) fn prefix(address: Address) -> IpNet {
    match address.ip() {
        IpAddr::V4(ip) => IpNet::V4(Ipv4Net::new_assert(ip, 24).trunc()),
        IpAddr::V6(ip) => IpNet::V6(Ipv6Net::new_assert(ip, 64).trunc()),
    }
}

/// Of a cluster and family, the prefixes in which another cluster, this one for example, has pods as well.
pub type Shared = BTreeMap<(Name, Family), BTreeMap<IpNet, Name>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub found: BTreeMap<Group, Found>,
    /// Destinations of routes more specific than the default route that lead to service addresses (announced by BGP, say).
    pub routed: Vec<IpNet>,
    /// The planner's own: it sees all clusters.
    pub shared: Shared,
}

impl Reach {
    pub fn of(&self, group: &Group) -> Found {
        if self.is_shared(group) { Found::Node } else { self.found.get(group).copied().unwrap_or_default() }
    }

    /// Whether somebody else's pod may be at these addresses. Where two clusters have one prefix in common they have a whole
    /// range in common, most likely: all pods of theirs are doubtful then. What names no node is no pod.
    pub fn is_shared(&self, group: &Group) -> bool {
        let family = Family::of(group.prefix.addr());
        let shared = self.shared.get(&(group.cluster.clone(), family));
        shared.is_some_and(|prefixes| group.node.is_some() || prefixes.contains_key(&group.prefix))
    }

    /// Whether the network itself knows a way to this service address.
    pub fn is_routed(&self, address: Address) -> bool {
        self.routed.iter().any(|net| Family::of(net.addr()) == address.family() && net.contains(&address.ip()))
    }
}
