//! One cluster beside its Services and policies: nodes, ranges, and what follows from them for every plan.

use super::{Planner, Unheard};
use crate::address::Address;
use crate::fact::{Node, Pod, PodName};
use crate::name::Name;
use crate::rules::Rules;
use crate::stand::order::Outlook;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodesChanged {
    #[default]
    No,
    Others,
    Own,
}

type Derived = (BTreeMap<Address, Name>, Vec<(Name, Vec<Address>)>);

#[derive(Debug, Default)]
pub(super) struct Site {
    pub nodes: BTreeMap<Name, Node>,
    /// By the names of ServiceCIDR objects.
    pub ranges: BTreeMap<Name, Box<[IpNet]>>,
    /// What they said when they last said anything.
    pub last_ranges: Vec<IpNet>,
    /// Derived, kept because every plan asks: whose address is whose, and where other nodes' NodePorts answer.
    pub hosts: BTreeMap<Address, Name>,
    pub others: Vec<(Name, Vec<Address>)>,
    /// Since they were derived.
    pub changed: NodesChanged,
    pub moved: BTreeSet<Name>,
    /// Its source has said something.
    pub heard: bool,
}

impl Site {
    pub fn change(&mut self, change: NodesChanged) {
        self.changed = self.changed.max(change);
    }

    /// An address of ours is ours, whatever another Node says (nodes behind one NAT show one address).
    pub fn seen_from_inside(&self, cluster: &Name, rules: &Rules, pods: &BTreeMap<PodName, Pod>) -> Derived {
        let own_name = &rules.node_name;
        let own_node = self.nodes.get(own_name);
        let own_status = own_node.into_iter().flat_map(|n| n.addresses.iter().map(|(_, a)| *a));
        let own: BTreeSet<Address> = rules.own_addresses.iter().copied().chain(own_status).collect();
        let mut hosts: BTreeMap<Address, Name> = own.iter().map(|a| (*a, own_name.clone())).collect();
        let entries = own_node.into_iter().flat_map(|node| node.entry.iter());
        let pods = pods.values().filter(|pod| pod.name.cluster == *cluster);
        for address in pods.flat_map(|pod| pod.addresses.iter()).chain(entries) {
            hosts.entry(*address).or_insert_with(|| own_name.clone());
        }
        let mut others = Vec::new();
        for node in self.nodes.values().filter(|n| n.name != *own_name) {
            for address in node.addresses.iter().map(|(_, address)| address).chain(&node.entry) {
                hosts.entry(*address).or_insert_with(|| node.name.clone());
            }
            let mut at = rules.node_port_addresses_of(node);
            at.retain(|address| !own.contains(address));
            others.push((node.name.clone(), at));
        }
        (hosts, others)
    }

    /// No node is ours, and no NodePort of theirs answers at this host's addresses.
    pub fn seen_from_outside(&self, rules: &Rules) -> Derived {
        let (mut hosts, mut others) = (BTreeMap::new(), Vec::new());
        let is_own = |a: &Address| a.is_loopback() || a.is_link_local() || rules.own_addresses.contains(a);
        for node in self.nodes.values() {
            for (_, address) in &node.addresses {
                hosts.entry(*address).or_insert_with(|| node.name.clone());
            }
            let mut at = rules.node_port_addresses_of(node);
            at.retain(|address| !is_own(address));
            others.push((node.name.clone(), at));
        }
        (hosts, others)
    }
}

impl Planner {
    /// Of every cluster that is configured, whether anything is known of it or not.
    pub(super) fn make_sites(&mut self) {
        for outlook in self.order.outlooks() {
            self.sites.entry(outlook.rules.name.clone()).or_default();
        }
        self.derive_sites();
    }

    pub(super) fn site_mut(&mut self, cluster: &Name) -> &mut Site {
        self.sites.entry(cluster.clone()).or_default()
    }

    pub(super) fn hear_of(&mut self, cluster: &str) {
        if let Some(site) = self.sites.get_mut(cluster) {
            // What was kept for it may be another's, now that it speaks for itself.
            if !std::mem::replace(&mut site.heard, true) && self.is_several() {
                self.mark_all();
            }
            return;
        }
        let cluster = Name::from(cluster);
        self.sites.insert(cluster.clone(), Site { heard: true, ..Site::default() });
        self.derive_sites();
    }

    /// Configured, and nothing is known of them.
    pub(super) fn unheard(&self) -> Vec<Unheard> {
        let silent = |name: &Name| self.sites.get(name).is_none_or(|site| !site.heard);
        let outlooks = self.order.outlooks().iter().filter(|_| !self.rules.clusters.is_empty());
        let unheard = outlooks.filter(|outlook| silent(&outlook.rules.name));
        unheard.map(|outlook| self.silence(outlook)).collect()
    }

    fn silence(&self, outlook: &Outlook) -> Unheard {
        let after = |other: &&Outlook| other.seats[0].rank > outlook.seats[0].rank;
        Unheard {
            cluster: outlook.rules.name.clone(),
            number: outlook.number,
            ranks: outlook.seats.iter().map(|seat| (seat.view, seat.rank)).collect(),
            later: self.order.outlooks().iter().filter(after).map(|other| other.number).collect(),
        }
    }
}
