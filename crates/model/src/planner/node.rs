//! Nodes and the pods of this node, and what depends on them in every plan.

use super::Planner;
use super::cluster_nodes::{ClusterNodes, NodesChanged};
use super::protected::aggregate;
use crate::address::{Address, Family};
use crate::cluster::order::ClusterContext;
use crate::name::Name;
use crate::object::{AddressType, Node, Pod, PodName};
use crate::row::NodeRow;
use crate::rules::HostRole;
use ipnet::IpNet;
use std::collections::BTreeMap;

/// The fields of a node that matter to Services. Without the pod network also how the node is reached and whether it is
/// ready.
type NodeFields<'a> =
    (&'a [(AddressType, Address)], Option<&'a Name>, &'a [Address], &'a [IpNet], Option<(&'a [Address], [bool; 3])>);

fn node_fields(node: &Node, no_pod_network: bool) -> NodeFields<'_> {
    let reachability = no_pod_network.then_some((&*node.outside, [node.edge, node.ready, node.eligible]));
    (&node.addresses, node.zone.as_ref(), &node.entry, &node.pod_ranges, reachability)
}

impl Planner {
    pub(super) fn apply_node(&mut self, node: Node) -> bool {
        let (cluster, name) = (node.cluster.clone(), node.name.clone());
        let nodes = &mut self.cluster_nodes_mut(&cluster).nodes;
        if nodes.get(&name) == Some(&node) {
            return false;
        }
        let before = nodes.insert(name.clone(), node.clone());
        self.compare_nodes(&cluster, &name, before.as_ref(), Some(&node))
    }

    pub(super) fn remove_node(&mut self, cluster: &Name, name: &Name) -> bool {
        let Some(before) = self.cluster_nodes_mut(cluster).nodes.remove(name) else { return false };
        self.compare_nodes(cluster, name, Some(&before), None)
    }

    fn is_own_node(&self, cluster: &str, name: &Name) -> bool {
        *name == self.rules.node_name && self.order.is_home(cluster)
    }

    /// Marks what depends on a changed node: its location may matter to Services, its labels, proxy address and
    /// addresses only to some policies.
    fn compare_nodes(&mut self, cluster: &Name, name: &Name, before: Option<&Node>, now: Option<&Node>) -> bool {
        let [labels_before, labels_now] = [before, now].map(|node| node.map(|node| &node.labels));
        self.dirty.extend(self.policies.by_node(name).cloned());
        if self.is_own_node(cluster, name) && labels_before != labels_now {
            self.dirty.extend(self.policies.with_node_selector().cloned());
        }
        for node in [before, now].into_iter().flatten() {
            let addresses = node.addresses.iter().map(|(_, address)| address).chain(&node.entry);
            self.dirty.extend(addresses.flat_map(|address| self.policies.at_address(address)).cloned());
        }
        let no_pod_network =
            self.order.get(cluster).is_some_and(|cluster_context| cluster_context.host_role != HostRole::Node);
        let moved =
            before.map(|node| node_fields(node, no_pod_network)) != now.map(|node| node_fields(node, no_pod_network));
        if moved { self.node_changed(cluster, name) } else { true }
    }

    /// To Services only the address of a pod matters: an endpoint that names no node is local if a pod of this node has
    /// its address.
    pub(super) fn apply_pod(&mut self, pod: Pod) -> bool {
        if !pod.node.as_ref().is_some_and(|node| self.is_own_node(&pod.name.cluster, node)) {
            return self.remove_pod(&pod.name);
        }
        let before = self.policies.pods().get(&pod.name).map(|pod| pod.addresses.clone()).unwrap_or_default();
        let (moved, cluster) = (before != pod.addresses, pod.name.cluster.clone());
        let affected = self.policies.apply_pod(pod);
        self.mark_affected(affected) && (!moved || self.mark_pods_moved(&cluster))
    }

    pub(super) fn remove_pod(&mut self, name: &PodName) -> bool {
        let had_address = self.policies.pods().get(name).is_some_and(|pod| !pod.addresses.is_empty());
        let affected = self.policies.remove_pod(name);
        self.mark_affected(affected) && (!had_address || self.mark_pods_moved(&name.cluster))
    }

    fn mark_pods_moved(&mut self, cluster: &Name) -> bool {
        let own = self.rules.node_name.clone();
        let state = self.cluster_nodes_mut(cluster);
        state.change(NodesChanged::Others);
        state.moved.insert(own);
        self.nodes_dirty = true;
        true
    }

    /// The derived state is computed once for any number of changed nodes.
    fn node_changed(&mut self, cluster: &Name, name: &Name) -> bool {
        let own = self.is_own_node(cluster, name);
        let state = self.cluster_nodes_mut(cluster);
        state.change(if own { NodesChanged::Own } else { NodesChanged::Others });
        state.moved.insert(name.clone());
        self.nodes_dirty = true;
        true
    }

    /// The zone and addresses of this node matter to every Service, those of another node only to some.
    pub(super) fn follow_nodes(&mut self) {
        let changed = |(name, state): (&Name, &ClusterNodes)| (state.changed != NodesChanged::No).then(|| name.clone());
        let names: Vec<Name> = self.cluster_nodes.iter().filter_map(changed).collect();
        for cluster in names {
            self.follow_cluster(&cluster);
        }
    }

    fn follow_cluster(&mut self, cluster: &Name) {
        let state = self.cluster_nodes_mut(cluster);
        let changed = std::mem::replace(&mut state.changed, NodesChanged::No);
        let (moved, hosts) = (std::mem::take(&mut state.moved), std::mem::take(&mut state.hosts));
        self.derive_cluster(cluster);
        self.mark_others_at(cluster, &hosts);
        self.mark_claimants_of_pods(cluster, &hosts);
        let has_pod_network =
            self.order.get(cluster).is_none_or(|cluster_context| cluster_context.host_role == HostRole::Node);
        match changed {
            NodesChanged::Own => self.mark_cluster(cluster),
            _ if has_pod_network => self.mark_by_nodes(cluster),
            _ => self.mark_moved(cluster, &moved, &hosts),
        }
    }

    /// Marks the claimants of addresses that became, or no longer are, those of this host's pods.
    fn mark_claimants_of_pods(&mut self, cluster: &Name, before: &BTreeMap<Address, Name>) {
        let Some(state) = self.cluster_nodes.get_mut(cluster) else { return };
        let now = std::mem::take(&mut state.hosts);
        self.mark_claimants_if(|address| before.get(address) != now.get(address));
        self.cluster_nodes_mut(cluster).hosts = now;
    }

    fn mark_by_nodes(&mut self, cluster: &str) {
        self.dirty.extend(self.by_nodes.iter().filter(|name| name.cluster() == cluster).cloned());
    }

    pub(super) fn derive_all_clusters(&mut self) {
        for cluster in self.cluster_nodes.keys().cloned().collect::<Vec<_>>() {
            self.derive_cluster(&cluster);
        }
    }

    fn derive_cluster(&mut self, cluster: &Name) {
        self.nodes_dirty = true;
        let Some(state) = self.cluster_nodes.get(cluster) else { return };
        let derived = match self.order.get(cluster) {
            Some(cluster_context) if cluster_context.is_remote() => state.derive_outside(&self.rules),
            _ => state.derive_inside(cluster, &self.rules, self.policies.pods()),
        };
        let pod_ranges = aggregate(state.nodes.values().flat_map(|node| node.pod_ranges.iter().copied()));
        let state = self.cluster_nodes_mut(cluster);
        (state.hosts, state.others) = derived;
        let ranges_before = std::mem::replace(&mut state.pod_ranges, pod_ranges);
        let ranges_changed = ranges_before != state.pod_ranges;
        self.pod_prefixes.changed = true;
        if ranges_changed {
            self.mark_claimants_if(|_| true);
        }
    }

    /// `None` outside any cluster.
    pub fn own_node(&self) -> Option<&Node> {
        let home = self.order.home()?;
        let state =
            self.cluster_nodes.get(&home.rules.name).filter(|state| state.nodes.contains_key(&self.rules.node_name));
        let any = || self.cluster_nodes.values().find_map(|state| state.nodes.get(&self.rules.node_name));
        match state {
            Some(state) => state.nodes.get(&self.rules.node_name),
            None if self.rules.clusters.is_empty() => any(),
            None => None,
        }
    }

    pub(super) fn node_rows(&self) -> BTreeMap<Address, NodeRow> {
        let row = |cluster, own, loopback| NodeRow { cluster, own, loopback, exact_loopback: false };
        let mut rows = BTreeMap::new();
        // If two clusters list one node address, the earlier cluster has it.
        for (cluster_context, state) in self.clusters().rev() {
            let addresses = state.others.iter().flat_map(|(_, addresses)| addresses);
            for address in addresses.filter(|address| cluster_context.may_have_node(**address)) {
                rows.insert(*address, row(cluster_context.number, false, false));
            }
        }
        let Some(home) = self.order.home() else { return rows };
        // Which addresses are this node's depends on its Node object. Until the home cluster is received, the tables keep
        // the rows that they have.
        if self.has_several_clusters() && !self.has_data(&home.rules.name) {
            return rows;
        }
        for address in self.rules.own_node_port_addresses(self.own_node()) {
            rows.insert(address, row(0, true, false));
        }
        for family in Family::BOTH.into_iter().filter(|family| self.rules.localhost_node_ports(*family)) {
            let exact_loopback = family == Family::V4 && !self.rules.is_loopback_block_served();
            rows.insert(Address::loopback(family), NodeRow { exact_loopback, ..row(0, true, true) });
        }
        rows
    }

    /// In the order of the configuration.
    fn clusters(&self) -> impl DoubleEndedIterator<Item = (&ClusterContext, &ClusterNodes)> {
        let listed = !self.rules.clusters.is_empty();
        let named = self.order.clusters().iter().filter(move |_| listed);
        let named = named.filter_map(|cluster_context| {
            Some((cluster_context, self.cluster_nodes.get(&cluster_context.rules.name)?))
        });
        let only = self.order.clusters().iter().filter(move |_| !listed);
        let all =
            only.flat_map(|cluster_context| self.cluster_nodes.values().map(move |state| (cluster_context, state)));
        named.chain(all)
    }
}
