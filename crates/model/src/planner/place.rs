//! Where things stand: nodes, the pods of this one, and what follows from them for everybody's plan.

use super::Planner;
use super::site::{NodesChanged, Site};
use crate::address::{Address, Family};
use crate::fact::{AddressType, Node, Pod, PodName};
use crate::name::Name;
use crate::row::NodeRow;
use crate::rules::StandPoint;
use crate::stand::order::Outlook;
use std::collections::BTreeMap;

/// What of a node matters to Services. To those outside also how it is reached, and whether it is well.
type Place<'a> = (&'a [(AddressType, Address)], Option<&'a Name>, &'a [Address], Option<(&'a [Address], [bool; 3])>);

fn place(node: &Node, away: bool) -> Place<'_> {
    let outside = away.then_some((&*node.outside, [node.edge, node.ready, node.eligible]));
    (&node.addresses, node.zone.as_ref(), &node.entry, outside)
}

impl Planner {
    pub(super) fn apply_node(&mut self, node: Node) -> bool {
        let (cluster, name) = (node.cluster.clone(), node.name.clone());
        let nodes = &mut self.site_mut(&cluster).nodes;
        if nodes.get(&name) == Some(&node) {
            return false;
        }
        let before = nodes.insert(name.clone(), node.clone());
        self.compare_nodes(&cluster, &name, before.as_ref(), Some(&node))
    }

    pub(super) fn remove_node(&mut self, cluster: &Name, name: &Name) -> bool {
        let Some(before) = self.site_mut(cluster).nodes.remove(name) else { return false };
        self.compare_nodes(cluster, name, Some(&before), None)
    }

    fn is_own_node(&self, cluster: &str, name: &Name) -> bool {
        *name == self.rules.node_name && self.order.is_home(cluster)
    }

    /// Where it stands may matter to Services; its labels, its entry and whose its addresses are only to some policies.
    fn compare_nodes(&mut self, cluster: &Name, name: &Name, before: Option<&Node>, now: Option<&Node>) -> bool {
        let [labels_before, labels_now] = [before, now].map(|node| node.map(|node| &node.labels));
        self.dirty.extend(self.register.by_node(name).cloned());
        if self.is_own_node(cluster, name) && labels_before != labels_now {
            self.dirty.extend(self.register.choosy().cloned());
        }
        for node in [before, now].into_iter().flatten() {
            let addresses = node.addresses.iter().map(|(_, address)| address).chain(&node.entry);
            self.dirty.extend(addresses.flat_map(|address| self.register.at_address(address)).cloned());
        }
        let away = self.order.of(cluster).is_some_and(|outlook| outlook.stand != StandPoint::Node);
        let moved = before.map(|node| place(node, away)) != now.map(|node| place(node, away));
        if moved { self.node_changed(cluster, name) } else { true }
    }

    /// To Services only where it stands matters: an endpoint that names no node is local at a pod of ours.
    pub(super) fn apply_pod(&mut self, pod: Pod) -> bool {
        if !pod.node.as_ref().is_some_and(|node| self.is_own_node(&pod.name.cluster, node)) {
            return self.remove_pod(&pod.name);
        }
        let before = self.register.pods().get(&pod.name).map(|pod| pod.addresses.clone()).unwrap_or_default();
        let (moved, cluster) = (before != pod.addresses, pod.name.cluster.clone());
        let affected = self.register.apply_pod(pod);
        self.mark_affected(affected) && (!moved || self.pods_moved(&cluster))
    }

    pub(super) fn remove_pod(&mut self, name: &PodName) -> bool {
        let had_address = self.register.pods().get(name).is_some_and(|pod| !pod.addresses.is_empty());
        let affected = self.register.remove_pod(name);
        self.mark_affected(affected) && (!had_address || self.pods_moved(&name.cluster))
    }

    fn pods_moved(&mut self, cluster: &Name) -> bool {
        let own = self.rules.node_name.clone();
        let site = self.site_mut(cluster);
        site.change(NodesChanged::Others);
        site.moved.insert(own);
        self.nodes_dirty = true;
        true
    }

    /// What follows from it is derived once for any number of nodes.
    fn node_changed(&mut self, cluster: &Name, name: &Name) -> bool {
        let own = self.is_own_node(cluster, name);
        let site = self.site_mut(cluster);
        site.change(if own { NodesChanged::Own } else { NodesChanged::Others });
        site.moved.insert(name.clone());
        self.nodes_dirty = true;
        true
    }

    /// Our own node's zone and addresses matter to every service, another node's only to some.
    pub(super) fn follow_nodes(&mut self) {
        let changed = |(name, site): (&Name, &Site)| (site.changed != NodesChanged::No).then(|| name.clone());
        let names: Vec<Name> = self.sites.iter().filter_map(changed).collect();
        for cluster in names {
            self.follow_site(&cluster);
        }
    }

    fn follow_site(&mut self, cluster: &Name) {
        let site = self.site_mut(cluster);
        let changed = std::mem::replace(&mut site.changed, NodesChanged::No);
        let (moved, hosts) = (std::mem::take(&mut site.moved), std::mem::take(&mut site.hosts));
        self.derive_site(cluster);
        self.mark_others_at(cluster, &hosts);
        let near = self.order.of(cluster).is_none_or(|outlook| outlook.stand == StandPoint::Node);
        match changed {
            NodesChanged::Own => self.mark_cluster(cluster),
            _ if near => self.mark_by_nodes(cluster),
            _ => self.mark_moved(cluster, &moved, &hosts),
        }
    }

    fn mark_by_nodes(&mut self, cluster: &str) {
        self.dirty.extend(self.by_nodes.iter().filter(|name| name.cluster() == cluster).cloned());
    }

    pub(super) fn derive_sites(&mut self) {
        for cluster in self.sites.keys().cloned().collect::<Vec<_>>() {
            self.derive_site(&cluster);
        }
    }

    fn derive_site(&mut self, cluster: &Name) {
        self.nodes_dirty = true;
        let Some(site) = self.sites.get(cluster) else { return };
        let derived = match self.order.of(cluster) {
            Some(outlook) if outlook.is_remote() => site.seen_from_outside(&self.rules),
            _ => site.seen_from_inside(cluster, &self.rules, self.register.pods()),
        };
        let site = self.site_mut(cluster);
        (site.hosts, site.others) = derived;
        self.prefixes.changed = true;
    }

    /// Outside any cluster there is none.
    pub fn own_node(&self) -> Option<&Node> {
        let home = self.order.home()?;
        let site = self.sites.get(&home.rules.name).filter(|site| site.nodes.contains_key(&self.rules.node_name));
        let any = || self.sites.values().find_map(|site| site.nodes.get(&self.rules.node_name));
        match site {
            Some(site) => site.nodes.get(&self.rules.node_name),
            None if self.rules.clusters.is_empty() => any(),
            None => None,
        }
    }

    pub(super) fn node_rows(&self) -> BTreeMap<Address, NodeRow> {
        let row = |cluster, own, loopback| NodeRow { cluster, own, loopback, alone: false };
        let mut rows = BTreeMap::new();
        // Of two clusters that name one address, the one that comes first has it.
        for (outlook, site) in self.outlooks().rev() {
            let addresses = site.others.iter().flat_map(|(_, addresses)| addresses);
            for address in addresses.filter(|address| outlook.may_have_node(**address)) {
                rows.insert(*address, row(outlook.number, false, false));
            }
        }
        if self.order.home().is_none() {
            return rows;
        }
        for address in self.rules.own_node_port_addresses(self.own_node()) {
            rows.insert(address, row(0, true, false));
        }
        for family in Family::BOTH.into_iter().filter(|family| self.rules.localhost_node_ports(*family)) {
            let alone = family == Family::V4 && !self.rules.is_loopback_block_served();
            rows.insert(Address::loopback(family), NodeRow { alone, ..row(0, true, true) });
        }
        rows
    }

    /// In the order of the configuration.
    fn outlooks(&self) -> impl DoubleEndedIterator<Item = (&Outlook, &Site)> {
        let listed = !self.rules.clusters.is_empty();
        let named = self.order.outlooks().iter().filter(move |_| listed);
        let named = named.filter_map(|outlook| Some((outlook, self.sites.get(&outlook.rules.name)?)));
        let only = self.order.outlooks().iter().filter(move |_| !listed);
        let all = only.flat_map(|outlook| self.sites.values().map(move |site| (outlook, site)));
        named.chain(all)
    }
}
