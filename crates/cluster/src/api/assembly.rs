//! Nodes, put together from the slices that the controller publishes: a node's addresses stand in several.

use beeline_model::Name;
use beeline_model::fact::{AddressType, Fact, Node, SliceName};
use beeline_model::publish::{NodeAddress, NodeEndpoint, NodeSlice};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Assembly {
    cluster: Name,
    /// Read from its own Node object, which knows more.
    own: Name,
    slices: BTreeMap<SliceName, NodeSlice>,
    by_node: BTreeMap<Name, BTreeSet<SliceName>>,
}

impl Assembly {
    pub(crate) fn new(cluster: Name, own: Name) -> Assembly {
        Assembly { cluster, own, slices: BTreeMap::new(), by_node: BTreeMap::new() }
    }

    /// The nodes that are others now. `None`: the slice is gone.
    pub(crate) fn put(&mut self, name: &SliceName, slice: Option<NodeSlice>) -> Vec<Fact> {
        let before = match slice {
            Some(slice) => self.slices.insert(name.clone(), slice),
            None => self.slices.remove(name),
        };
        let after = self.slices.get(name);
        if before.as_ref() == after {
            return Vec::new();
        }
        let of = |slice: Option<&NodeSlice>| -> BTreeMap<Name, Vec<NodeEndpoint>> {
            let mut all: BTreeMap<Name, Vec<NodeEndpoint>> = BTreeMap::new();
            for endpoint in slice.into_iter().flat_map(|slice| slice.endpoints.iter()) {
                all.entry(endpoint.node.clone()).or_default().push(endpoint.clone());
            }
            all
        };
        let (old, new) = (of(before.as_ref()), of(after));
        let names: BTreeSet<Name> = old.keys().chain(new.keys()).cloned().collect();
        for node in &names {
            let slices = self.by_node.entry(node.clone()).or_default();
            if new.contains_key(node) {
                slices.insert(name.clone())
            } else {
                slices.remove(name)
            };
        }
        let changed = names.into_iter().filter(|node| old.get(node) != new.get(node) && *node != self.own);
        changed.collect::<Vec<_>>().into_iter().map(|node| self.node(&node)).collect()
    }

    fn node(&mut self, name: &Name) -> Fact {
        if self.by_node.get(name).is_none_or(BTreeSet::is_empty) {
            self.by_node.remove(name);
            return Fact::NodeGone { cluster: self.cluster.clone(), name: name.clone() };
        }
        let mut node = Node::named(&self.cluster, name);
        let mut entry = Vec::new();
        let slices = self.by_node[name].iter().filter_map(|slice| self.slices.get(slice));
        for (kind, endpoint) in slices.flat_map(|slice| slice.endpoints.iter().map(|e| (slice.kind, e))) {
            if endpoint.node != *name {
                continue;
            }
            match kind {
                NodeAddress::Internal => node.addresses.push((AddressType::Internal, endpoint.address)),
                NodeAddress::External => node.addresses.push((AddressType::External, endpoint.address)),
                NodeAddress::Entry => entry.push(endpoint.address),
            }
            // Slices are written one after the other: who is leaving in one of them is leaving.
            node.ready &= endpoint.ready;
            node.eligible &= endpoint.eligible;
            node.zone = node.zone.take().or_else(|| endpoint.zone.clone());
        }
        node.entry = entry.into();
        Fact::Node(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::Family;

    fn slice(kind: NodeAddress, endpoints: &[(&str, &str, bool)]) -> NodeSlice {
        let endpoint = |(node, ip, ready): &(&str, &str, bool)| NodeEndpoint {
            node: (*node).into(),
            address: beeline_model::address::parse_ip(ip).unwrap().into(),
            zone: None,
            ready: *ready,
            eligible: true,
        };
        NodeSlice { name: "x".into(), kind, family: Family::V4, endpoints: endpoints.iter().map(endpoint).collect() }
    }

    fn name(text: &str) -> SliceName {
        SliceName { cluster: "local".into(), namespace: "kube-system".into(), name: text.into() }
    }

    #[test]
    fn a_node_is_all_that_its_slices_say() {
        let mut nodes = Assembly::new("local".into(), "own".into());
        let both = slice(NodeAddress::Internal, &[("a", "172.31.0.1", true), ("own", "172.31.0.9", true)]);
        assert_eq!(nodes.put(&name("0"), Some(both.clone())).len(), 1, "our own is read elsewhere");
        assert!(nodes.put(&name("0"), Some(both)).is_empty(), "nothing new");
        let facts = nodes.put(&name("1"), Some(slice(NodeAddress::Entry, &[("a", "10.9.0.1", false)])));
        let [Fact::Node(node)] = &facts[..] else { panic!("{facts:?}") };
        assert_eq!((node.addresses.len(), node.entry.len(), node.ready), (1, 1, false));
        assert!(matches!(&nodes.put(&name("0"), None)[..], [Fact::Node(node)] if node.addresses.is_empty()));
        assert!(matches!(&nodes.put(&name("1"), None)[..], [Fact::NodeGone { .. }]));
    }
}
