//! Finds clusters whose pods have addresses in the same range, as two default installations of K3s have. A route to
//! such an address, or an answer from it, does not say which cluster's pod it is, so `podAccess: auto` ignores both.

use super::Planner;
use crate::address::{Address, Family};
use crate::cluster::PodAccess;
use crate::name::Name;
use crate::object::{Endpoint, Slice};
use crate::reach::{SharedPrefixes, prefix};
use crate::refusal::{Refusal, RefusalReason, RefusalSubject};
use ipnet::IpNet;
use std::collections::BTreeMap;

type AddressCounts = BTreeMap<Address, usize>;

/// The addresses of the clusters' pods. Maintained only if there are several clusters.
#[derive(Debug, Default)]
pub(super) struct PodPrefixes {
    /// By /24 (IPv6: /64) and cluster: the addresses, and how many slices list each of them.
    pods: BTreeMap<IpNet, BTreeMap<Name, AddressCounts>>,
    pub changed: bool,
}

impl PodPrefixes {
    pub fn replace(&mut self, before: Option<&Slice>, now: Option<&Slice>) {
        now.into_iter().for_each(|slice| self.add(slice));
        before.into_iter().for_each(|slice| self.remove(slice));
        self.changed = true;
    }

    fn add(&mut self, slice: &Slice) {
        for address in pods_of(slice) {
            let clusters = self.pods.entry(prefix(address)).or_default();
            *clusters.entry(slice.name.cluster.clone()).or_default().entry(address).or_default() += 1;
        }
    }

    fn remove(&mut self, slice: &Slice) {
        for address in pods_of(slice) {
            self.remove_one(&slice.name.cluster, address);
        }
    }

    fn remove_one(&mut self, cluster: &Name, address: Address) -> Option<()> {
        let prefix = prefix(address);
        let clusters = self.pods.get_mut(&prefix)?;
        let pods = clusters.get_mut(cluster)?;
        let count = pods.get_mut(&address)?;
        *count -= 1;
        if *count == 0 {
            pods.remove(&address);
        }
        if pods.is_empty() {
            clusters.remove(cluster);
        }
        if clusters.is_empty() {
            self.pods.remove(&prefix);
        }
        Some(())
    }

    fn contested(&self) -> impl Iterator<Item = (&IpNet, &BTreeMap<Name, AddressCounts>)> {
        self.pods.iter().filter(|(_, clusters)| clusters.len() > 1)
    }
}

/// An endpoint without a node is not a pod: it may be an API server or a database outside the cluster.
fn pods_of(slice: &Slice) -> impl Iterator<Item = Address> {
    let is_pod = |e: &&Endpoint| e.node.is_some() && !e.address.is_loopback() && !e.address.is_link_local();
    slice.endpoints.iter().filter(is_pod).map(|endpoint| endpoint.address)
}

impl Planner {
    pub(super) fn has_several_clusters(&self) -> bool {
        self.order.clusters().len() > 1
    }

    /// Called when the clusters of the configuration changed.
    pub(super) fn collect_prefixes(&mut self) {
        self.pod_prefixes = PodPrefixes { changed: true, ..PodPrefixes::default() };
        if self.has_several_clusters() {
            self.slices.values().flatten().for_each(|slice| self.pod_prefixes.add(slice));
        }
    }

    /// Called before anything is planned.
    pub(super) fn follow_prefixes(&mut self) {
        if !std::mem::take(&mut self.pod_prefixes.changed) {
            return;
        }
        let shared = self.shared_prefixes();
        let before = std::mem::replace(&mut self.reach.shared, shared);
        let differs = |name: &&Name| {
            let of = |all: &SharedPrefixes, family| all.get(&((*name).clone(), family)).cloned();
            [Family::V4, Family::V6].into_iter().any(|family| of(&before, family) != of(&self.reach.shared, family))
        };
        let names = self.order.clusters().iter().map(|cluster_context| &cluster_context.rules.name);
        let changed: Vec<Name> = names.filter(differs).cloned().collect();
        changed.iter().for_each(|name| self.mark_cluster(name));
    }

    fn shared_prefixes(&self) -> SharedPrefixes {
        let mut shared = SharedPrefixes::new();
        for (prefix, clusters) in self.pod_prefixes.contested() {
            let has_pods = |(name, pods): &(&Name, &AddressCounts)| pods.keys().any(|pod| !self.is_node(name, pod));
            let present: Vec<&Name> = clusters.iter().filter(has_pods).map(|(name, _)| name).collect();
            for name in present.iter().filter(|name| self.pod_access(name) == Some(PodAccess::Auto)) {
                let mut others =
                    present.iter().filter(|other| other.as_ref() != name.as_ref() && self.dials_pods(other));
                if let Some(other) = others.next() {
                    let key = ((*name).clone(), Family::of(prefix.addr()));
                    shared.entry(key).or_default().insert(*prefix, (*other).clone());
                }
            }
        }
        shared
    }

    fn is_node(&self, cluster: &Name, address: &Address) -> bool {
        if self.rules.own_addresses.contains(address) {
            return true;
        }
        let Some(state) = self.cluster_nodes.get(cluster) else { return false };
        let node = state.hosts.get(address).and_then(|name| state.nodes.get(name));
        node.is_some_and(|node| node.addresses.iter().any(|(_, own)| own == address))
    }

    /// `None` if this host is a node of the cluster.
    fn pod_access(&self, cluster: &str) -> Option<PodAccess> {
        self.order
            .get(cluster)
            .filter(|cluster_context| cluster_context.is_remote())
            .map(|cluster_context| cluster_context.rules.pod_access)
    }

    /// Whether this host may dial the cluster's pods at their own addresses. A cluster with `podAccess: node` leaves
    /// the addresses to the others.
    fn dials_pods(&self, cluster: &str) -> bool {
        self.pod_access(cluster) != Some(PodAccess::Node)
    }

    /// One refusal per cluster and family, because the cause and the remedy are the same for every prefix.
    pub(super) fn shared_refusals(&self) -> impl Iterator<Item = Refusal> {
        self.reach.shared.iter().filter_map(|((cluster, _), prefixes)| {
            let (prefix, other) = prefixes.iter().next()?;
            let message = format!(
                "its pods and those of cluster {other} have addresses in {prefix}, and a route or a probe does not show whose pod \
                 answers: the pods are reached through the nodePorts of their nodes. Set podAccess: direct for the cluster \
                 whose pods this network routes to, and podAccess: node for the other cluster"
            );
            Some(Refusal { subject: RefusalSubject::Cluster(cluster.clone()), reason: RefusalReason::PodsShared, message })
        })
    }
}
