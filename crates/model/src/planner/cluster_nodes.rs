//! The nodes and service ranges of one cluster, and what the planner derives from them for every plan.

use super::{PendingCluster, Planner};
use crate::address::Address;
use crate::cluster::order::ClusterContext;
use crate::name::Name;
use crate::object::{Node, Pod, PodName};
use crate::rules::Rules;
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
pub(super) struct ClusterNodes {
    pub nodes: BTreeMap<Name, Node>,
    /// By the name of the ServiceCIDR object.
    pub ranges: BTreeMap<Name, Box<[IpNet]>>,
    /// The last ranges that were not empty.
    pub last_ranges: Vec<IpNet>,
    /// Derived from `nodes`, because every plan needs it: the node of each address, and the addresses at which other
    /// nodes serve NodePorts.
    pub hosts: BTreeMap<Address, Name>,
    pub others: Vec<(Name, Vec<Address>)>,
    /// The pod ranges of all nodes.
    pub pod_ranges: Vec<IpNet>,
    /// What changed since `hosts` and `others` were derived.
    pub changed: NodesChanged,
    pub moved: BTreeSet<Name>,
    /// At least one object of the cluster was received.
    pub has_data: bool,
}

impl ClusterNodes {
    pub fn change(&mut self, change: NodesChanged) {
        self.changed = self.changed.max(change);
    }

    /// This host's own addresses are its own even if another Node lists them, because nodes behind one NAT list the
    /// same address.
    pub fn derive_inside(&self, cluster: &Name, rules: &Rules, pods: &BTreeMap<PodName, Pod>) -> Derived {
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

    /// Outside the cluster, no node is this host, and no node serves NodePorts at this host's addresses.
    pub fn derive_outside(&self, rules: &Rules) -> Derived {
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
    /// Creates an entry for every configured cluster, even if no object of it was received.
    pub(super) fn create_cluster_nodes(&mut self) {
        for cluster_context in self.order.clusters() {
            self.cluster_nodes.entry(cluster_context.rules.name.clone()).or_default();
        }
        self.derive_all_clusters();
    }

    pub(super) fn cluster_nodes_mut(&mut self, cluster: &Name) -> &mut ClusterNodes {
        self.cluster_nodes.entry(cluster.clone()).or_default()
    }

    /// Records that an object of the cluster was received.
    pub(super) fn note_data(&mut self, cluster: &str) {
        if let Some(state) = self.cluster_nodes.get_mut(cluster) {
            // Addresses that were kept for this cluster may go to other clusters now.
            if !std::mem::replace(&mut state.has_data, true) && self.has_several_clusters() {
                self.nodes_dirty = true;
                self.mark_all();
            }
            return;
        }
        let cluster = Name::from(cluster);
        self.cluster_nodes.insert(cluster.clone(), ClusterNodes { has_data: true, ..ClusterNodes::default() });
        self.derive_all_clusters();
    }

    /// Whether at least one object of the cluster was received.
    pub(super) fn has_data(&self, cluster: &str) -> bool {
        self.cluster_nodes.get(cluster).is_some_and(|state| state.has_data)
    }

    /// Configured clusters of which no object was received.
    pub(super) fn pending_clusters(&self) -> Vec<PendingCluster> {
        let configured = self.order.clusters().iter().filter(|_| !self.rules.clusters.is_empty());
        let pending = configured.filter(|cluster_context| !self.has_data(&cluster_context.rules.name));
        pending.map(|cluster_context| self.pending_cluster(cluster_context)).collect()
    }

    fn pending_cluster(&self, cluster_context: &ClusterContext) -> PendingCluster {
        let after = |other: &&ClusterContext| other.view_ranks[0].rank > cluster_context.view_ranks[0].rank;
        PendingCluster {
            cluster: cluster_context.rules.name.clone(),
            number: cluster_context.number,
            ranks: cluster_context.view_ranks.iter().map(|rank| (rank.view, rank.rank)).collect(),
            later: self.order.clusters().iter().filter(after).map(|other| other.number).collect(),
        }
    }
}
