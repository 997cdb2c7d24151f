//! How pods of remote clusters can be reached (`podAccess: auto`), as routes and probes found out. An input of the
//! planner; the agent collects it.

use crate::address::{Address, Family};
use crate::name::Name;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// How the pods of one group are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reachability {
    Direct,
    Node,
    #[default]
    Unknown,
}

/// Pods that are reached in the same way: the pods of one node in one /24 (IPv6: /64).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodGroup {
    pub cluster: Name,
    pub node: Option<Name>,
    pub prefix: IpNet,
}

impl PodGroup {
    pub fn of(cluster: Name, node: Option<Name>, address: Address) -> PodGroup {
        PodGroup { cluster, node, prefix: prefix(address) }
    }
}

pub(crate) fn prefix(address: Address) -> IpNet {
    match address.ip() {
        IpAddr::V4(ip) => IpNet::V4(Ipv4Net::new_assert(ip, 24).trunc()),
        IpAddr::V6(ip) => IpNet::V6(Ipv6Net::new_assert(ip, 64).trunc()),
    }
}

/// By cluster and family: the prefixes in which another cluster also has pods, and that other cluster.
pub type SharedPrefixes = BTreeMap<(Name, Family), BTreeMap<IpNet, Name>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub found: BTreeMap<PodGroup, Reachability>,
    /// Destinations of routes, more specific than the default route, that lead to service addresses (announced by BGP,
    /// for example).
    pub routed: Vec<IpNet>,
    /// Computed by the planner, which knows all clusters.
    pub shared: SharedPrefixes,
}

impl Reach {
    pub fn of(&self, group: &PodGroup) -> Reachability {
        if self.is_shared(group) { Reachability::Node } else { self.found.get(group).copied().unwrap_or_default() }
    }

    /// Whether a pod of another cluster may have one of these addresses. Two clusters that share one prefix most likely
    /// share a whole range, so all their pods are affected. An endpoint without a node is not a pod.
    pub fn is_shared(&self, group: &PodGroup) -> bool {
        let family = Family::of(group.prefix.addr());
        let shared = self.shared.get(&(group.cluster.clone(), family));
        shared.is_some_and(|prefixes| group.node.is_some() || prefixes.contains_key(&group.prefix))
    }

    /// Whether a route of this host leads to the service address.
    pub fn is_routed(&self, address: Address) -> bool {
        self.routed.iter().any(|net| Family::of(net.addr()) == address.family() && net.contains(&address.ip()))
    }
}
