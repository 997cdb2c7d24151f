//! Clusters whose pods have addresses in the same range, as two K3s have by default. A route to such an address, and an
//! answer from it, say that somebody is there, not whose pod it is: `auto` believes neither then.

use super::Planner;
use crate::address::{Address, Family};
use crate::fact::{Endpoint, Refusal, Slice};
use crate::name::Name;
use crate::reach::{Shared, prefix};
use crate::stand::Pods;
use ipnet::IpNet;
use std::collections::BTreeMap;

type Pod = BTreeMap<Address, usize>;

/// Whose pods are where. Kept only while there are several clusters.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    /// Of each /24 (/64) and cluster the addresses, and how often a slice names each.
    pods: BTreeMap<IpNet, BTreeMap<Name, Pod>>,
    pub changed: bool,
}

impl Prefixes {
    pub fn exchange(&mut self, before: Option<&Slice>, now: Option<&Slice>) {
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

    fn contested(&self) -> impl Iterator<Item = (&IpNet, &BTreeMap<Name, Pod>)> {
        self.pods.iter().filter(|(_, clusters)| clusters.len() > 1)
    }
}

/// What names no node is no pod: an API server beside its cluster, or a database.
fn pods_of(slice: &Slice) -> impl Iterator<Item = Address> {
    let is_pod = |e: &&Endpoint| e.node.is_some() && !e.address.is_loopback() && !e.address.is_link_local();
    slice.endpoints.iter().filter(is_pod).map(|endpoint| endpoint.address)
}

impl Planner {
    pub(super) fn is_several(&self) -> bool {
        self.order.outlooks().len() > 1
    }

    /// Clusters came or went.
    pub(super) fn collect_prefixes(&mut self) {
        self.prefixes = Prefixes { changed: true, ..Prefixes::default() };
        if self.is_several() {
            self.slices.values().flatten().for_each(|slice| self.prefixes.add(slice));
        }
    }

    /// Before anything is planned.
    pub(super) fn follow_prefixes(&mut self) {
        if !std::mem::take(&mut self.prefixes.changed) {
            return;
        }
        let shared = self.shared();
        let before = std::mem::replace(&mut self.reach.shared, shared);
        let differs = |name: &&Name| {
            let of = |all: &Shared, family| all.get(&((*name).clone(), family)).cloned();
            [Family::V4, Family::V6].into_iter().any(|family| of(&before, family) != of(&self.reach.shared, family))
        };
        let names = self.order.outlooks().iter().map(|outlook| &outlook.rules.name);
        let changed: Vec<Name> = names.filter(differs).cloned().collect();
        changed.iter().for_each(|name| self.mark_cluster(name));
    }

    fn shared(&self) -> Shared {
        let mut shared = Shared::new();
        for (prefix, clusters) in self.prefixes.contested() {
            let has_pods = |(name, pods): &(&Name, &Pod)| pods.keys().any(|pod| !self.is_node(name, pod));
            let present: Vec<&Name> = clusters.iter().filter(has_pods).map(|(name, _)| name).collect();
            for name in present.iter().filter(|name| self.pods_of(name) == Some(Pods::Auto)) {
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
        let Some(site) = self.sites.get(cluster) else { return false };
        let node = site.hosts.get(address).and_then(|name| site.nodes.get(name));
        node.is_some_and(|node| node.addresses.iter().any(|(_, own)| own == address))
    }

    /// `None`: we are inside of it.
    fn pods_of(&self, cluster: &str) -> Option<Pods> {
        self.order.of(cluster).filter(|outlook| outlook.is_remote()).map(|outlook| outlook.rules.pods)
    }

    /// By their own addresses, or possibly so. Whoever says `node` leaves the addresses to the others.
    fn dials_pods(&self, cluster: &str) -> bool {
        self.pods_of(cluster) != Some(Pods::Node)
    }

    /// One a cluster: what it means and what to do is the same for every prefix.
    pub(super) fn shared_refusals(&self) -> impl Iterator<Item = Refusal> {
        self.reach.shared.iter().filter_map(|((cluster, _), prefixes)| {
            let (prefix, other) = prefixes.iter().next()?;
            let message = format!(
                "its pods and those of cluster {other} have addresses in {prefix}, and a route or an answer does not say whose \
                 pod it is: they are reached by their nodes' nodePorts. Set pods: direct where this network leads to these \
                 pods, and pods: node at the other cluster"
            );
            Some(Refusal { subject: format!("cluster {cluster}"), reason: "podsShared", message })
        })
    }
}
