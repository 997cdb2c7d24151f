//! The way to an endpoint from where no pod network is: its own address, its node's NodePort, or none.

use super::{ClusterRules, Pods};
use crate::address::{Address, Family};
use crate::fact::Node;
use crate::name::Name;
use crate::reach::{Found, Group, Reach};
use crate::rules::StandPoint;
use crate::select::Candidate;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    Direct,
    /// By this address of its node. Not `well`: that node is not ready, or on its way out.
    Node {
        address: Address,
        well: bool,
    },
    Unreachable(Why),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    NoNodePort,
    Shared,
    NoNode,
    NodeUnknown,
    NodeWithoutAddress,
    OtherEdge,
    OwnAddress,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::NoNodePort => "no nodePort and pods not routed",
            Why::Shared => "no nodePort, and another cluster's pods have the same addresses",
            Why::NoNode => "pods not routed, and the endpoint names no node whose nodePort could serve",
            Why::NodeUnknown => "pods not routed, and their node is not known here",
            Why::NodeWithoutAddress => "pods not routed, and their node has no address of this family for us",
            Why::OtherEdge => "on another edge node, where nothing proxies",
            Why::OwnAddress => {
                "a remote cluster may not lead to this host itself: its own, loopback or link-local addresses"
            }
        })
    }
}

/// What the way of an endpoint depends on.
pub struct Ground<'a> {
    pub stand: StandPoint,
    pub cluster: &'a ClusterRules,
    pub nodes: &'a BTreeMap<Name, Node>,
    /// Whose address is whose. Outside: the nodes' alone.
    pub hosts: &'a BTreeMap<Address, Name>,
    pub reach: &'a Reach,
    /// This host's.
    pub own: &'a [Address],
}

impl Ground<'_> {
    /// `node_port`: of the service port that it serves; 0: none.
    pub fn way(&self, c: &Candidate, node_port: u16) -> Way {
        match self.stand {
            StandPoint::Node => Way::Direct,
            StandPoint::Outside => self.seen_outside(c, node_port),
            StandPoint::Edge => self.seen_at_edge(c, node_port),
        }
    }

    /// Whether its own address may answer, though nobody new is sent there: a way that is being found out may be there.
    pub fn may_answer(&self, c: &Candidate, node_port: u16) -> bool {
        let is_open = || self.is_open(c.address) && self.found(c) == Found::Unknown;
        self.way(c, node_port) == Way::Direct || is_open()
    }

    /// Whatever its objects say, a cluster that this host is no part of has no part in this host: neither as what is dialled
    /// nor as what is dialled instead.
    pub fn is_ours(&self, address: Address) -> bool {
        self.stand == StandPoint::Outside && (address.is_special() || self.own.contains(&address))
    }

    fn seen_outside(&self, c: &Candidate, node_port: u16) -> Way {
        if self.is_ours(c.address) {
            return Way::Unreachable(Why::OwnAddress);
        }
        if self.hosts.contains_key(&c.address) || self.is_said_direct(c.address) {
            return Way::Direct;
        }
        match self.found(c) {
            Found::Direct => Way::Direct,
            Found::Unknown if node_port == 0 || c.node.is_none() => Way::Direct,
            Found::Unknown | Found::Node => self.by_node(c, node_port),
        }
    }

    /// Its own pods are next door; the cloud's only through their nodes, unless an administrator knows better. A node's
    /// own address may be reached where no pod is: it is tried where there is nothing else.
    fn seen_at_edge(&self, c: &Candidate, node_port: u16) -> Way {
        if c.local || c.node.is_none() || self.is_said_direct(c.address) {
            return Way::Direct;
        }
        if c.node.as_ref().and_then(|name| self.nodes.get(name)).is_some_and(|node| node.edge) {
            return Way::Unreachable(Why::OtherEdge);
        }
        match self.by_node(c, node_port) {
            Way::Unreachable(_) if self.hosts.contains_key(&c.address) => Way::Direct,
            way => way,
        }
    }

    fn is_said_direct(&self, address: Address) -> bool {
        self.cluster.pods == Pods::Direct || self.cluster.direct.iter().any(|net| net.contains(&address.ip()))
    }

    fn found(&self, c: &Candidate) -> Found {
        match self.cluster.pods {
            Pods::Direct => Found::Direct,
            Pods::Node => Found::Node,
            Pods::Auto => self.reach.of(&self.group(c)),
        }
    }

    fn group(&self, c: &Candidate) -> Group {
        Group::of(self.cluster.name.clone(), c.node.clone(), c.address)
    }

    /// Whether the way to an address has to be found out. Those that several clusters have are asked by nobody.
    pub fn is_open(&self, address: Address) -> bool {
        self.asks() && !self.hosts.contains_key(&address) && !self.is_said_direct(address) && !self.is_ours(address)
    }

    fn asks(&self) -> bool {
        self.stand == StandPoint::Outside && self.cluster.pods == Pods::Auto
    }

    fn by_node(&self, c: &Candidate, node_port: u16) -> Way {
        let Some(name) = c.node.as_ref() else { return Way::Unreachable(Why::NoNode) };
        if node_port == 0 {
            let shared = self.cluster.pods == Pods::Auto && self.reach.is_shared(&self.group(c));
            return Way::Unreachable(if shared { Why::Shared } else { Why::NoNodePort });
        }
        let Some(node) = self.nodes.get(name) else { return Way::Unreachable(Why::NodeUnknown) };
        match self.node_address(node, c.address.family()) {
            Some(address) => Way::Node { address, well: node.ready && node.eligible },
            None => Way::Unreachable(Why::NodeWithoutAddress),
        }
    }

    /// Where a node is dialled from here: as its administrator says, else by the order of types.
    pub fn node_address(&self, node: &Node, family: Family) -> Option<Address> {
        let fits = |a: &Address| a.family() == family && !a.is_loopback() && !a.is_link_local() && !self.is_ours(*a);
        let said = node.outside.iter().copied().find(fits);
        let types = self.cluster.node_address_types.iter();
        let of_type = |kind| node.addresses.iter().find(|(k, a)| *k == kind && fits(a)).map(|(_, a)| *a);
        said.or_else(|| types.copied().find_map(of_type))
    }
}
