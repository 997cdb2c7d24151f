//! The clusters, service ranges, views and reach of the planner, which may change while the agent runs.

use super::Planner;
use crate::address::Address;
use crate::change::{Change, ObjectKey};
use crate::cluster::ClusterRules;
use crate::cluster::order::{ClusterContext, ClusterOrder, RangeConflict, Ranges};
use crate::hash::HashSet;
use crate::name::{Name, ServiceName};
use crate::object::{Service, Slice};
use crate::reach::{PodGroup, Reach};
use crate::refusal::{Refusal, RefusalReason, RefusalSubject};
use crate::row::FrontendKey;
use crate::rules::HostRole;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

impl Planner {
    // ---- clusters ----

    /// Sets the clusters in the order of the configuration. `remove_cluster` drops the objects of a cluster.
    pub fn set_clusters(&mut self, clusters: Vec<ClusterRules>) -> bool {
        if self.rules.clusters == clusters {
            return false;
        }
        self.rules.clusters = clusters;
        self.order = self.new_order();
        self.ranges_changed = true;
        self.create_cluster_nodes();
        self.collect_prefixes();
        self.collect_reach_targets();
        self.mark_all();
        true
    }

    /// Sets the owners of the rows that the tables hold from before. While the ranges of an earlier cluster are
    /// unknown, a later cluster keeps these rows and gets no new ones.
    pub fn adopt(&mut self, held: impl Iterator<Item = (FrontendKey, ServiceName)>) {
        self.adopted.clear();
        for (key, owner) in held {
            let all_ports = FrontendKey { port: 0, protocol: None, ..key };
            self.adopted.entry(all_ports).or_insert_with(|| owner.clone());
            self.adopted.insert(key, owner);
        }
        self.ranges_changed = true;
    }

    /// Adopted rows in a range that an earlier cluster owns now. They are deleted even if no object of their own
    /// cluster was received yet.
    pub(super) fn unclaimed_adopted(&mut self, claimed: &HashSet<FrontendKey>) -> Vec<FrontendKey> {
        if !std::mem::take(&mut self.ranges_changed) {
            return Vec::new();
        }
        let is_owned = |key: &FrontendKey, owner: &ServiceName| {
            let view_ranks =
                self.order.get(owner.cluster()).into_iter().flat_map(|cluster_context| &cluster_context.view_ranks);
            let mut view_ranks = view_ranks.filter(|rank| rank.view == key.view);
            view_ranks.any(|rank| matches!(rank.conflict_at(key.address), Some(RangeConflict::Owned { .. })))
        };
        let left = self.adopted.iter().filter(|(key, owner)| !claimed.contains(*key) && is_owned(key, owner));
        left.map(|(key, _)| *key).collect()
    }

    /// The source of the cluster has sent all its objects.
    pub fn note_synced(&mut self, cluster: &Name) {
        self.note_data(cluster);
        self.nodes_dirty = true;
    }

    /// Drops all objects of a cluster, because it is no longer configured or another cluster has its name now.
    pub fn remove_cluster(&mut self, cluster: &Name) -> bool {
        for change in self.deletions_of_cluster(cluster) {
            self.apply(change);
        }
        self.dirty.extend(self.claimed.keys().filter(|name| name.cluster() == &**cluster).cloned());
        let state = self.cluster_nodes.remove(cluster);
        let known = state.is_some();
        self.mark_others_at(cluster, &state.map(|state| state.hosts).unwrap_or_default());
        self.reorder();
        self.create_cluster_nodes();
        known
    }

    fn deletions_of_cluster(&self, cluster: &Name) -> Vec<Change> {
        let here = |name: &&ServiceName| name.cluster() == &**cluster;
        let mut changes: Vec<Change> = self.policies.deletions_of_cluster(cluster);
        changes.extend(self.services.keys().filter(here).cloned().map(ObjectKey::Service).map(Change::Delete));
        changes.extend(
            self.slice_owner
                .keys()
                .filter(|name| name.cluster == *cluster)
                .cloned()
                .map(ObjectKey::Slice)
                .map(Change::Delete),
        );
        changes
    }

    /// The keys of all objects of a cluster.
    pub fn keys_of_cluster(&self, cluster: &Name) -> Vec<ObjectKey> {
        let mut keys: Vec<ObjectKey> = self.deletions_of_cluster(cluster).iter().map(Change::key).collect();
        if let Some(state) = self.cluster_nodes.get(cluster) {
            let node = |name: &Name| ObjectKey::Node { cluster: cluster.clone(), name: name.clone() };
            let range = |name: &Name| ObjectKey::ServiceRange { cluster: cluster.clone(), name: name.clone() };
            keys.extend(state.nodes.keys().map(node).chain(state.ranges.keys().map(range)));
        }
        keys
    }

    /// Sets the ranges of one ServiceCIDR object. `None` if it was deleted.
    pub(super) fn set_range(&mut self, cluster: &Name, name: Name, ranges: Option<Box<[IpNet]>>) -> bool {
        let known = &mut self.cluster_nodes_mut(cluster).ranges;
        let before = known.get(&name).cloned();
        if before == ranges {
            return false;
        }
        match ranges {
            Some(ranges) => drop(known.insert(name, ranges)),
            None => drop(known.remove(&name)),
        }
        let now: Vec<IpNet> = known.values().flatten().copied().collect();
        if !now.is_empty() {
            self.cluster_nodes_mut(cluster).last_ranges = now;
        }
        self.reorder();
        true
    }

    /// The last known ranges of each cluster. They are kept after the last ServiceCIDR object is deleted, because other
    /// clusters could otherwise take the range.
    fn ranges(&self) -> Ranges {
        let known = self.cluster_nodes.iter().map(|(name, state)| (name.clone(), state.last_ranges.clone()));
        known.filter(|(_, ranges)| !ranges.is_empty()).collect()
    }

    fn new_order(&self) -> ClusterOrder {
        ClusterOrder::new(self.rules.host_role, &self.rules.clusters, &self.ranges(), &self.views)
    }

    fn reorder(&mut self) -> bool {
        let order = self.new_order();
        if self.order == order {
            return false;
        }
        self.order = order;
        self.ranges_changed = true;
        if !self.order.clusters().iter().any(ClusterContext::waits_in_any_view) && self.pending_clusters().is_empty() {
            self.adopted.clear();
        }
        self.nodes_dirty = true;
        self.mark_all();
        true
    }

    // ---- views ----

    /// Sets the views in use, by their names or the names of their clusters.
    pub fn set_views(&mut self, views: BTreeSet<Name>) -> bool {
        if self.views == views {
            return false;
        }
        self.views = views;
        self.reorder()
    }

    /// The number of a view in use, as the view rules of cgroups contain it.
    pub fn view(&self, name: &Name) -> Option<u32> {
        self.order.view(name)
    }

    pub fn order(&self) -> &ClusterOrder {
        &self.order
    }

    // ---- reach ----

    /// Includes the prefixes that several clusters share.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Returns whether any path changed.
    pub fn set_reach(&mut self, reach: Reach) -> bool {
        let reach = Reach { shared: self.reach.shared.clone(), ..reach };
        if self.reach == reach {
            return false;
        }
        let before = std::mem::replace(&mut self.reach, reach);
        let rerouted = self.mark_rerouted(&before);
        let changed = |group: &&PodGroup| before.of(group) != self.reach.of(group);
        let groups: BTreeSet<PodGroup> =
            before.found.keys().chain(self.reach.found.keys()).filter(changed).cloned().collect();
        self.mark_groups(&groups);
        rerouted || !groups.is_empty()
    }

    /// Marks the owners of endpoints in these groups. The node is not compared, because a slice may leave it out.
    fn mark_groups(&mut self, groups: &BTreeSet<PodGroup>) {
        let clusters: BTreeSet<&str> = groups.iter().map(|group| &*group.cluster).collect();
        let prefixes: BTreeSet<IpNet> = groups.iter().map(|group| group.prefix).collect();
        let inside = |address: Address| prefixes.contains(&PodGroup::of("".into(), None, address).prefix);
        let mut found: Vec<ServiceName> = Vec::new();
        for (owner, slices) in self.slices.iter().filter(|(owner, _)| clusters.contains(self.cluster_name_of(owner))) {
            if slices.iter().flat_map(|slice| &slice.endpoints).any(|endpoint| inside(endpoint.address)) {
                found.push(owner.clone());
            }
        }
        found.extend(self.policies.owners().filter(|owner| clusters.contains(self.cluster_name_of(owner))).cloned());
        self.dirty.extend(found);
    }

    fn cluster_name_of(&self, owner: &ServiceName) -> &str {
        self.order.get(owner.cluster()).map_or("", |cluster_context| &cluster_context.rules.name)
    }

    /// Marks the Services to whose ClusterIP a route was added or removed. Returns whether there are any.
    fn mark_rerouted(&mut self, before: &Reach) -> bool {
        if before.routed == self.reach.routed {
            return false;
        }
        let changed = |address: &Address| before.is_routed(*address) != self.reach.is_routed(*address);
        let has_no_pod_network = |name: &ServiceName| {
            self.order.get(name.cluster()).is_some_and(|cluster_context| cluster_context.host_role != HostRole::Node)
        };
        let services = self.services.values().filter(|service| service.cluster_ips.iter().any(changed));
        let marked: Vec<ServiceName> =
            services.map(|service| service.name.clone()).filter(has_no_pod_network).collect();
        let any = !marked.is_empty();
        self.dirty.extend(marked);
        any
    }

    pub(super) fn mark_cluster(&mut self, cluster: &str) {
        let names = self.services.keys().chain(self.policies.owners());
        let here = names.filter(|name| name.cluster() == cluster).cloned();
        self.dirty.extend(here.collect::<Vec<_>>());
    }

    /// Marks the claims of other clusters to addresses that were added to or removed from the hosts of this cluster.
    /// Only an earlier cluster may use the address of a host.
    pub(super) fn mark_others_at(&mut self, cluster: &str, before: &BTreeMap<Address, Name>) {
        if !self.has_several_clusters() {
            return;
        }
        let none = BTreeMap::new();
        let now = self.cluster_nodes.get(cluster).map_or(&none, |state| &state.hosts);
        let changed: HashSet<&Address> =
            before.keys().chain(now.keys()).filter(|address| before.get(address) != now.get(address)).collect();
        if changed.is_empty() {
            return;
        }
        let mut found: Vec<ServiceName> = Vec::new();
        let claims = |s: &Service| {
            let mut all = [&s.cluster_ips, &s.load_balancer_ips, &s.external_ips].into_iter().flatten();
            all.any(|address| changed.contains(address))
        };
        for service in self.services.values().filter(|s| s.name.cluster() != cluster && claims(s)) {
            found.push(service.name.clone());
            found.extend(self.policies.on_service(&service.name).cloned());
        }
        found.extend(changed.into_iter().flat_map(|address| self.policies.at_address(address)).cloned());
        self.dirty.extend(found);
    }

    /// Marks the Services with an endpoint on one of these nodes, or at an address that one of them has or had.
    pub(super) fn mark_moved(&mut self, cluster: &Name, moved: &BTreeSet<Name>, before: &BTreeMap<Address, Name>) {
        let Some(state) = self.cluster_nodes.get(cluster) else { return };
        let nodes_at = |address: &Address| before.get(address).into_iter().chain(state.hosts.get(address));
        let has_endpoint = |slice: &Slice| {
            let mut nodes = slice.endpoints.iter().flat_map(|e| e.node.iter().chain(nodes_at(&e.address)));
            nodes.any(|node| moved.contains(node))
        };
        let here = self.slices.iter().filter(|(owner, _)| owner.cluster() == &**cluster);
        let found = here.filter(|(_, slices)| slices.iter().any(has_endpoint)).map(|(owner, _)| owner.clone());
        let found: Vec<ServiceName> = found.collect();
        let policies = self.policies.owners().filter(|owner| owner.cluster() == &**cluster).cloned();
        self.dirty.extend(policies.chain(found).collect::<Vec<_>>());
    }

    // ---- refusals ----

    /// One refusal per cluster, because two clusters with the same range conflict in all their Services.
    pub(super) fn range_refusals(&self) -> Vec<Refusal> {
        let mut counts: BTreeMap<(&str, &RangeConflict), usize> = BTreeMap::new();
        for (owner, conflict) in &self.withheld {
            *counts.entry((owner.cluster(), conflict)).or_default() += 1;
        }
        counts.into_iter().map(|((cluster, conflict), count)| self.range_refusal(cluster, conflict, count)).collect()
    }

    fn range_refusal(&self, cluster: &str, conflict: &RangeConflict, count: usize) -> Refusal {
        let (reason, message) = match conflict {
            RangeConflict::Owned { by, range } => {
                let instead = match self.order.view(cluster).filter(|view| *view != 0) {
                    Some(_) => "they are served in its view only",
                    None => "set a view for it to use them",
                };
                let text =
                    format!("{count} Services or policies are in {range}, which belongs to cluster {by}: {instead}");
                (RefusalReason::RangeOwned, text)
            }
            RangeConflict::Unknown(by) => {
                let text = format!(
                    "{count} Services or policies wait until the service ranges of the earlier cluster {by} are known: set \
                     serviceCIDRs of {by}"
                );
                (RefusalReason::RangeUnknown, text)
            }
        };
        Refusal { subject: RefusalSubject::Cluster(cluster.into()), reason, message }
    }
}
