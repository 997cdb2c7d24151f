//! The path to an endpoint from a host without the pod network: the endpoint's own address, the NodePort of its node,
//! or none.

use super::{ClusterRules, PodAccess};
use crate::address::{Address, Family};
use crate::name::Name;
use crate::object::Node;
use crate::reach::{PodGroup, Reach, Reachability};
use crate::rules::HostRole;
use crate::select::Candidate;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointPath {
    Direct,
    /// Through this address of the endpoint's node. `healthy` is false if that node is not ready or is being removed.
    Node {
        address: Address,
        healthy: bool,
    },
    Unreachable(UnreachableReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum UnreachableReason {
    NoNodePort,
    Shared,
    NoNode,
    NodeUnknown,
    NodeWithoutAddress,
    OtherEdge,
    OwnAddress,
}

impl fmt::Display for UnreachableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnreachableReason::NoNodePort => "no nodePort and pods not routed",
            UnreachableReason::Shared => "no nodePort, and another cluster's pods have the same addresses",
            UnreachableReason::NoNode => {
                "pods are not routed, and the endpoint names no node whose nodePort could be used"
            }
            UnreachableReason::NodeUnknown => "pods are not routed, and their node is not known",
            UnreachableReason::NodeWithoutAddress => {
                "pods are not routed, and their node has no usable address of this family"
            }
            UnreachableReason::OtherEdge => "on another edge node, where no service proxy runs",
            UnreachableReason::OwnAddress => {
                "a loopback, link-local or own address of this host cannot be a backend of a remote cluster"
            }
        })
    }
}

/// What the path to an endpoint depends on.
pub struct PathContext<'a> {
    pub host_role: HostRole,
    pub cluster: &'a ClusterRules,
    pub nodes: &'a BTreeMap<Name, Node>,
    /// The node of each known address. On a host outside the cluster, node addresses only.
    pub hosts: &'a BTreeMap<Address, Name>,
    pub reach: &'a Reach,
    /// The addresses of this host.
    pub own: &'a [Address],
}

impl PathContext<'_> {
    /// `node_port` is the nodePort of the service port; 0 means none.
    pub fn path(&self, c: &Candidate, node_port: u16) -> EndpointPath {
        match self.host_role {
            HostRole::Node => EndpointPath::Direct,
            HostRole::Outside => self.path_from_outside(c, node_port),
            HostRole::Edge => self.path_from_edge(c, node_port),
        }
    }

    /// Whether the endpoint's own address may answer although new dials are not sent there: it may be reachable while
    /// that is still being probed.
    pub fn may_answer(&self, c: &Candidate, node_port: u16) -> bool {
        let may_be_direct = || self.needs_probe(c.address) && self.found(c) == Reachability::Unknown;
        self.path(c, node_port) == EndpointPath::Direct || may_be_direct()
    }

    /// Whether the address means this host. A cluster that this host is outside of may use such an address neither as a
    /// frontend nor as a backend, whatever its objects say.
    pub fn is_own_address(&self, address: Address) -> bool {
        self.host_role == HostRole::Outside && (address.is_special() || self.own.contains(&address))
    }

    fn path_from_outside(&self, c: &Candidate, node_port: u16) -> EndpointPath {
        if self.is_own_address(c.address) {
            return EndpointPath::Unreachable(UnreachableReason::OwnAddress);
        }
        if self.hosts.contains_key(&c.address) || self.is_configured_direct(c.address) {
            return EndpointPath::Direct;
        }
        match self.found(c) {
            Reachability::Direct => EndpointPath::Direct,
            Reachability::Unknown if node_port == 0 || c.node.is_none() => EndpointPath::Direct,
            Reachability::Unknown | Reachability::Node => self.by_node(c, node_port),
        }
    }

    /// On an edge node, its own pods are reached directly and the pods of the cloud through their nodes, unless
    /// configured otherwise. A node's own address may be reachable where pods are not, so it is used if there is no
    /// other path.
    fn path_from_edge(&self, c: &Candidate, node_port: u16) -> EndpointPath {
        if c.local || c.node.is_none() || self.is_configured_direct(c.address) {
            return EndpointPath::Direct;
        }
        if c.node.as_ref().and_then(|name| self.nodes.get(name)).is_some_and(|node| node.edge) {
            return EndpointPath::Unreachable(UnreachableReason::OtherEdge);
        }
        match self.by_node(c, node_port) {
            EndpointPath::Unreachable(_) if self.hosts.contains_key(&c.address) => EndpointPath::Direct,
            path => path,
        }
    }

    fn is_configured_direct(&self, address: Address) -> bool {
        self.cluster.pod_access == PodAccess::Direct
            || self.cluster.direct.iter().any(|net| net.contains(&address.ip()))
    }

    fn found(&self, c: &Candidate) -> Reachability {
        match self.cluster.pod_access {
            PodAccess::Direct => Reachability::Direct,
            PodAccess::Node => Reachability::Node,
            PodAccess::Auto => self.reach.of(&self.group(c)),
        }
    }

    fn group(&self, c: &Candidate) -> PodGroup {
        PodGroup::of(self.cluster.name.clone(), c.node.clone(), c.address)
    }

    /// Whether routes or probes must find out how the address is reached.
    pub fn needs_probe(&self, address: Address) -> bool {
        self.is_auto()
            && !self.hosts.contains_key(&address)
            && !self.is_configured_direct(address)
            && !self.is_own_address(address)
    }

    fn is_auto(&self) -> bool {
        self.host_role == HostRole::Outside && self.cluster.pod_access == PodAccess::Auto
    }

    fn by_node(&self, c: &Candidate, node_port: u16) -> EndpointPath {
        let Some(name) = c.node.as_ref() else { return EndpointPath::Unreachable(UnreachableReason::NoNode) };
        if node_port == 0 {
            let shared = self.cluster.pod_access == PodAccess::Auto && self.reach.is_shared(&self.group(c));
            return EndpointPath::Unreachable(if shared {
                UnreachableReason::Shared
            } else {
                UnreachableReason::NoNodePort
            });
        }
        let Some(node) = self.nodes.get(name) else { return EndpointPath::Unreachable(UnreachableReason::NodeUnknown) };
        match self.node_address(node, c.address.family()) {
            Some(address) => EndpointPath::Node { address, healthy: node.ready && node.eligible },
            None => EndpointPath::Unreachable(UnreachableReason::NodeWithoutAddress),
        }
    }

    /// The address at which this host dials a node: from the node's annotation, or else by the order of address types.
    pub fn node_address(&self, node: &Node, family: Family) -> Option<Address> {
        let fits =
            |a: &Address| a.family() == family && !a.is_loopback() && !a.is_link_local() && !self.is_own_address(*a);
        let annotated = node.outside.iter().copied().find(fits);
        let types = self.cluster.node_address_types.iter();
        let of_type = |kind| node.addresses.iter().find(|(k, a)| *k == kind && fits(a)).map(|(_, a)| *a);
        annotated.or_else(|| types.copied().find_map(of_type))
    }
}
