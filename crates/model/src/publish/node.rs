//! Publishes node addresses as slices, so that agents need not watch Nodes: one endpoint per node and address, in
//! slices by address kind and family.

use super::slice_packer::SlicePacker;
use crate::address::{Address, Family};
use crate::change::{Change, ObjectKey};
use crate::hash::HashMap;
use crate::name::Name;
use crate::object::{AddressType, Node, Object};
use std::collections::BTreeSet;

/// The kinds of node addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeAddress {
    Internal,
    External,
    /// The address of the node's proxy (`redirectMode: nodeProxy`).
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

type SliceMember = (Name, NodeAddress, Family);

/// Maximum number of published addresses per node and kind, so that one node cannot fill a slice.
const MAX_ADDRESSES: usize = 8;
const PREFIX: &str = "beeline-nodes-";

#[derive(Debug, Default)]
pub struct NodePublisher {
    nodes: BTreeSet<Name>,
    slices: SlicePacker<(NodeAddress, Family), SliceMember, Vec<NodeEndpoint>>,
    earlier_slices: HashMap<SliceMember, u32>,
}

impl NodePublisher {
    /// Adds a slice that an earlier process published. Must be called before any change is applied. The endpoints keep
    /// their slices.
    pub fn adopt(&mut self, slice: &NodeSlice) {
        let Some(number) = slice.name.strip_prefix(PREFIX).and_then(|number| number.parse().ok()) else { return };
        for endpoint in &slice.endpoints {
            self.earlier_slices.insert((endpoint.node.clone(), slice.kind, slice.family), number);
        }
    }

    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Upsert(Object::Node(node)) => self.insert(node),
            Change::Delete(ObjectKey::Node { name, .. }) => self.remove(name),
            _ => {}
        }
    }

    fn insert(&mut self, node: &Node) {
        self.nodes.insert(node.name.clone());
        for kind in NodeAddress::ALL {
            for family in Family::BOTH {
                let member = (node.name.clone(), kind, family);
                let endpoints: Vec<NodeEndpoint> = endpoints(node, kind, family).collect();
                if endpoints.is_empty() {
                    self.slices.remove(&member);
                } else {
                    let earlier = self.earlier_slices.get(&member).copied();
                    self.slices.insert(member, &(kind, family), endpoints, earlier);
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

    /// The names of the slices that changed since the last call.
    pub fn take_changed(&mut self) -> Vec<Name> {
        self.slices.take_changed().into_iter().map(name).collect()
    }

    /// All slices in their current state.
    pub fn slices(&self) -> impl Iterator<Item = NodeSlice> {
        self.slices.numbers().filter_map(|number| self.slice(number))
    }

    fn slice(&self, number: u32) -> Option<NodeSlice> {
        let packed = self.slices.get(number)?;
        let endpoints = packed.members.values().flatten().cloned().collect();
        Some(NodeSlice { name: name(number), kind: packed.group.0, family: packed.group.1, endpoints })
    }

    /// Whether an address of this kind and family is published for the node.
    pub fn has_address(&self, node: &Name, kind: NodeAddress, family: Family) -> bool {
        self.slices.contains(&(node.clone(), kind, family))
    }

    /// `None` if there should be no slice of that name.
    pub fn slice_named(&self, name: &str) -> Option<NodeSlice> {
        self.slice(name.strip_prefix(PREFIX)?.parse().ok()?)
    }
}

fn name(number: u32) -> Name {
    format!("{PREFIX}{number}").into()
}

/// The API server rejects slices with unspecified, loopback, link-local or multicast addresses.
fn endpoints(node: &Node, kind: NodeAddress, family: Family) -> impl Iterator<Item = NodeEndpoint> {
    let typed = |wanted: AddressType| node.addresses.iter().filter(move |(is, _)| *is == wanted).map(|(_, a)| *a);
    let addresses: Vec<Address> = match kind {
        NodeAddress::Internal => typed(AddressType::Internal).collect(),
        NodeAddress::External => typed(AddressType::External).collect(),
        NodeAddress::Entry => node.entry.to_vec(),
    };
    let plain = |a: &Address| !a.is_any() && !a.is_loopback() && !a.is_link_local() && !a.ip().is_multicast();
    let fit = addresses.into_iter().filter(move |address| address.family() == family && plain(address));
    fit.take(MAX_ADDRESSES).map(|address| NodeEndpoint {
        node: node.name.clone(),
        address,
        zone: node.zone.clone(),
        ready: node.ready,
        eligible: node.eligible,
    })
}
