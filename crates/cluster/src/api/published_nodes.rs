//! Assembles Nodes from the slices that the controller publishes. The addresses of one node are in several slices.

use beeline_model::Name;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{AddressType, Node, Object, SliceName};
use beeline_model::publish::{NodeAddress, NodeEndpoint, NodeSlice};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct PublishedNodes {
    cluster: Name,
    /// The node of this agent. It is read from its Node object, which has more fields.
    own_node: Name,
    slices: BTreeMap<SliceName, NodeSlice>,
    by_node: BTreeMap<Name, BTreeSet<SliceName>>,
}

impl PublishedNodes {
    pub(crate) fn new(cluster: Name, own_node: Name) -> PublishedNodes {
        PublishedNodes { cluster, own_node, slices: BTreeMap::new(), by_node: BTreeMap::new() }
    }

    /// Sets a slice, or removes it if it is `None`. Returns the changes of Nodes.
    pub(crate) fn set(&mut self, name: &SliceName, slice: Option<NodeSlice>) -> Vec<Change> {
        let before = match slice {
            Some(slice) => self.slices.insert(name.clone(), slice),
            None => self.slices.remove(name),
        };
        let after = self.slices.get(name);
        if before.as_ref() == after {
            return Vec::new();
        }
        let by_node = |slice: Option<&NodeSlice>| -> BTreeMap<Name, Vec<NodeEndpoint>> {
            let mut all: BTreeMap<Name, Vec<NodeEndpoint>> = BTreeMap::new();
            for endpoint in slice.into_iter().flat_map(|slice| slice.endpoints.iter()) {
                all.entry(endpoint.node.clone()).or_default().push(endpoint.clone());
            }
            all
        };
        let (old, new) = (by_node(before.as_ref()), by_node(after));
        let names: BTreeSet<Name> = old.keys().chain(new.keys()).cloned().collect();
        for node in &names {
            let slices = self.by_node.entry(node.clone()).or_default();
            if new.contains_key(node) {
                slices.insert(name.clone())
            } else {
                slices.remove(name)
            };
        }
        let changed = names.into_iter().filter(|node| old.get(node) != new.get(node) && *node != self.own_node);
        changed.collect::<Vec<_>>().into_iter().map(|node| self.change_of(&node)).collect()
    }

    fn change_of(&mut self, name: &Name) -> Change {
        if self.by_node.get(name).is_none_or(BTreeSet::is_empty) {
            self.by_node.remove(name);
            return Change::Delete(ObjectKey::Node { cluster: self.cluster.clone(), name: name.clone() });
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
            // Slices are written one after the other, so a node that is leaving may be marked in one of them only.
            node.ready &= endpoint.ready;
            node.eligible &= endpoint.eligible;
            node.zone = node.zone.take().or_else(|| endpoint.zone.clone());
        }
        node.entry = entry.into();
        Change::Upsert(Object::Node(node))
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
    fn a_node_is_assembled_from_all_its_slices() {
        let mut nodes = PublishedNodes::new("local".into(), "own".into());
        let both = slice(NodeAddress::Internal, &[("a", "172.31.0.1", true), ("own", "172.31.0.9", true)]);
        assert_eq!(nodes.set(&name("0"), Some(both.clone())).len(), 1, "the own node is not assembled from slices");
        assert!(nodes.set(&name("0"), Some(both)).is_empty(), "nothing changed");
        let changes = nodes.set(&name("1"), Some(slice(NodeAddress::Entry, &[("a", "10.9.0.1", false)])));
        let [Change::Upsert(Object::Node(node))] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((node.addresses.len(), node.entry.len(), node.ready), (1, 1, false));
        assert!(
            matches!(&nodes.set(&name("0"), None)[..], [Change::Upsert(Object::Node(node))] if node.addresses.is_empty())
        );
        assert!(matches!(&nodes.set(&name("1"), None)[..], [Change::Delete(ObjectKey::Node { .. })]));
    }
}
