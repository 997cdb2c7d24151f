//! Nodes' addresses as slices, so that agents need not watch Nodes: one endpoint a node and address, in slices by kind
//! and family.

use super::pack::Pack;
use crate::address::{Address, Family};
use crate::fact::{AddressType, Fact, Node};
use crate::hash::HashMap;
use crate::name::Name;
use std::collections::BTreeSet;

/// Which of a node's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeAddress {
    Internal,
    External,
    /// Of its entry.
    Entry,
}

impl NodeAddress {
    pub const ALL: [NodeAddress; 3] = [NodeAddress::Internal, NodeAddress::External, NodeAddress::Entry];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEndpoint {
    pub node: Name,
    pub address: Address,
    pub zone: Option<Name>,
    pub ready: bool,
    pub eligible: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSlice {
    pub name: Name,
    pub kind: NodeAddress,
    pub family: Family,
    pub endpoints: Box<[NodeEndpoint]>,
}

type Place = (Name, NodeAddress, Family);

/// A node has few addresses of a kind; one that shows hundreds must not fill a slice.
const ADDRESSES: usize = 8;
const PREFIX: &str = "beeline-nodes-";

#[derive(Debug, Default)]
pub struct NodePublisher {
    nodes: BTreeSet<Name>,
    slices: Pack<(NodeAddress, Family), Place, Vec<NodeEndpoint>>,
    earlier: HashMap<Place, u32>,
}

impl NodePublisher {
    /// What an earlier run published, told before everything else: who stands in a slice stays in it.
    pub fn adopt(&mut self, slice: &NodeSlice) {
        let Some(number) = slice.name.strip_prefix(PREFIX).and_then(|number| number.parse().ok()) else { return };
        for endpoint in &slice.endpoints {
            self.earlier.insert((endpoint.node.clone(), slice.kind, slice.family), number);
        }
    }

    pub fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::Node(node) => self.put(node),
            Fact::NodeGone { name, .. } => self.remove(name),
            _ => {}
        }
    }

    fn put(&mut self, node: &Node) {
        self.nodes.insert(node.name.clone());
        for kind in NodeAddress::ALL {
            for family in Family::BOTH {
                let place = (node.name.clone(), kind, family);
                let endpoints: Vec<NodeEndpoint> = endpoints(node, kind, family).collect();
                if endpoints.is_empty() {
                    self.slices.remove(&place);
                } else {
                    let earlier = self.earlier.get(&place).copied();
                    self.slices.put(place, &(kind, family), endpoints, earlier);
                }
            }
        }
    }

    fn remove(&mut self, name: &Name) {
        self.nodes.remove(name);
        for kind in NodeAddress::ALL {
            Family::BOTH.iter().for_each(|family| self.slices.remove(&(name.clone(), kind, *family)));
        }
    }

    /// Names of the slices that are other than when last asked.
    pub fn take_changed(&mut self) -> Vec<Name> {
        self.slices.take_changed().into_iter().map(name).collect()
    }

    /// All slices, as they should be now.
    pub fn slices(&self) -> impl Iterator<Item = NodeSlice> {
        self.slices.numbers().filter_map(|number| self.slice(number))
    }

    fn slice(&self, number: u32) -> Option<NodeSlice> {
        let bin = self.slices.bin(number)?;
        let endpoints = bin.members.values().flatten().cloned().collect();
        Some(NodeSlice { name: name(number), kind: bin.group.0, family: bin.group.1, endpoints })
    }

    /// `None`: there is to be no slice of that name.
    pub fn slice_named(&self, name: &str) -> Option<NodeSlice> {
        self.slice(name.strip_prefix(PREFIX)?.parse().ok()?)
    }
}

fn name(number: u32) -> Name {
    format!("{PREFIX}{number}").into()
}

/// An API server takes no slice with an address that only means something on one host.
fn endpoints(node: &Node, kind: NodeAddress, family: Family) -> impl Iterator<Item = NodeEndpoint> {
    let typed = |wanted: AddressType| node.addresses.iter().filter(move |(is, _)| *is == wanted).map(|(_, a)| *a);
    let addresses: Vec<Address> = match kind {
        NodeAddress::Internal => typed(AddressType::Internal).collect(),
        NodeAddress::External => typed(AddressType::External).collect(),
        NodeAddress::Entry => node.entry.to_vec(),
    };
    let plain = |a: &Address| !a.is_any() && !a.is_loopback() && !a.is_link_local() && !a.ip().is_multicast();
    let fit = addresses.into_iter().filter(move |address| address.family() == family && plain(address));
    fit.take(ADDRESSES).map(|address| NodeEndpoint {
        node: node.name.clone(),
        address,
        zone: node.zone.clone(),
        ready: node.ready,
        eligible: node.eligible,
    })
}
