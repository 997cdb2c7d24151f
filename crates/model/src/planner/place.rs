//! Where things stand: nodes, the pods of this one, and what follows from them for everybody's plan.

use super::{NodesChanged, Planner};
use crate::address::{Address, Family};
use crate::fact::{AddressType, Node, Pod, PodName};
use crate::name::Name;
use crate::row::NodeRow;
use std::collections::{BTreeMap, BTreeSet};

impl Planner {
    pub(super) fn apply_node(&mut self, node: Node) -> bool {
        if self.nodes.get(&node.name) == Some(&node) {
            return false;
        }
        let before = self.nodes.insert(node.name.clone(), node.clone());
        self.compare_nodes(&node.name, before.as_ref(), Some(&node))
    }

    pub(super) fn remove_node(&mut self, name: &Name) -> bool {
        let Some(before) = self.nodes.remove(name) else { return false };
        self.compare_nodes(name, Some(&before), None)
    }

    /// Where it stands may matter to Services; its labels, its entry and whose its addresses are only to some policies.
    fn compare_nodes(&mut self, name: &Name, before: Option<&Node>, now: Option<&Node>) -> bool {
        let [labels_before, labels_now] = [before, now].map(|node| node.map(|node| &node.labels));
        self.dirty.extend(self.register.by_node(name).cloned());
        if *name == self.rules.node_name && labels_before != labels_now {
            self.dirty.extend(self.register.choosy().cloned());
        }
        for node in [before, now].into_iter().flatten() {
            let addresses = node.addresses.iter().map(|(_, address)| address).chain(&node.entry);
            self.dirty.extend(addresses.flat_map(|address| self.register.at_address(address)).cloned());
        }
        fn place(node: &Node) -> (&[(AddressType, Address)], Option<&Name>, &[Address]) {
            (&node.addresses, node.zone.as_ref(), &node.entry)
        }
        let moved = before.map(place) != now.map(place);
        if moved { self.node_changed(name) } else { true }
    }

    /// To Services only where it stands matters: an endpoint that names no node is local at a pod of ours.
    pub(super) fn apply_pod(&mut self, pod: Pod) -> bool {
        if pod.node.as_ref() != Some(&self.rules.node_name) {
            return self.remove_pod(&pod.name);
        }
        let before = self.register.pods().get(&pod.name).map(|pod| pod.addresses.clone()).unwrap_or_default();
        let moved = before != pod.addresses;
        let affected = self.register.apply_pod(pod);
        self.mark_affected(affected) && (!moved || self.pods_moved())
    }

    pub(super) fn remove_pod(&mut self, name: &PodName) -> bool {
        let had_address = self.register.pods().get(name).is_some_and(|pod| !pod.addresses.is_empty());
        let affected = self.register.remove_pod(name);
        self.mark_affected(affected) && (!had_address || self.pods_moved())
    }

    fn pods_moved(&mut self) -> bool {
        self.nodes_changed = self.nodes_changed.max(NodesChanged::Others);
        self.nodes_dirty = true;
        true
    }

    /// What follows from it is derived once for any number of nodes.
    fn node_changed(&mut self, name: &Name) -> bool {
        let own = *name == self.rules.node_name;
        self.nodes_changed = self.nodes_changed.max(if own { NodesChanged::Own } else { NodesChanged::Others });
        self.nodes_dirty = true;
        true
    }

    /// Our own node's zone and addresses matter to every service, another node's only to some.
    pub(super) fn follow_nodes(&mut self) {
        let changed = std::mem::replace(&mut self.nodes_changed, NodesChanged::No);
        match changed {
            NodesChanged::No => return,
            NodesChanged::Others => self.dirty.extend(self.by_nodes.iter().cloned()),
            NodesChanged::Own => self.mark_all(),
        }
        self.derive_nodes();
    }

    /// An address of ours is ours, whatever another Node says (nodes behind one NAT show one address).
    pub(super) fn derive_nodes(&mut self) {
        self.nodes_dirty = true;
        let own_name = &self.rules.node_name;
        let own_status = self.own_node().into_iter().flat_map(|n| n.addresses.iter().map(|(_, a)| *a));
        let own: BTreeSet<Address> = self.rules.own_addresses.iter().copied().chain(own_status).collect();
        let mut hosts: BTreeMap<Address, Name> = own.iter().map(|a| (*a, own_name.clone())).collect();
        let entries = self.own_node().into_iter().flat_map(|node| node.entry.iter());
        for address in self.register.pods().values().flat_map(|pod| pod.addresses.iter()).chain(entries) {
            hosts.entry(*address).or_insert_with(|| own_name.clone());
        }
        let mut others = Vec::new();
        for node in self.nodes.values().filter(|n| n.name != *own_name) {
            for address in node.addresses.iter().map(|(_, address)| address).chain(&node.entry) {
                hosts.entry(*address).or_insert_with(|| node.name.clone());
            }
            let mut at = self.rules.node_port_addresses_of(node);
            at.retain(|address| !own.contains(address));
            others.push((node.name.clone(), at));
        }
        (self.hosts, self.others) = (hosts, others);
    }

    pub fn own_node(&self) -> Option<&Node> {
        self.nodes.get(&self.rules.node_name)
    }

    pub(super) fn node_rows(&self) -> BTreeMap<Address, NodeRow> {
        let row = |own, loopback| NodeRow { cluster: 0, own, loopback, alone: false };
        let mut rows = BTreeMap::new();
        for address in self.others.iter().flat_map(|(_, addresses)| addresses) {
            rows.insert(*address, row(false, false));
        }
        for address in self.rules.own_node_port_addresses(self.own_node()) {
            rows.insert(address, row(true, false));
        }
        for family in Family::BOTH.into_iter().filter(|family| self.rules.localhost_node_ports(*family)) {
            let alone = family == Family::V4 && !self.rules.is_loopback_block_served();
            rows.insert(Address::loopback(family), NodeRow { alone, ..row(true, true) });
        }
        rows
    }
}
