//! Where this host stands, as it changes while running: clusters, ranges, reach and views.

use super::Planner;
use crate::address::Address;
use crate::fact::{Fact, Refusal, Service, Slice};
use crate::hash::HashSet;
use crate::name::{Name, OwnerName};
use crate::reach::{Group, Reach};
use crate::row::FrontendKey;
use crate::rules::StandPoint;
use crate::stand::ClusterRules;
use crate::stand::order::{Bar, Order, Outlook, Ranges};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

impl Planner {
    // ---- clusters ----

    /// In the order of the configuration: clusters may come, change and go (`forget` drops what is known of one).
    pub fn set_clusters(&mut self, clusters: Vec<ClusterRules>) -> bool {
        if self.rules.clusters == clusters {
            return false;
        }
        self.rules.clusters = clusters;
        self.order = self.new_order();
        self.ranges_moved = true;
        self.make_sites();
        self.collect_prefixes();
        self.collect_questions();
        self.mark_all();
        true
    }

    /// What the tables hold from before. While nobody knows an earlier cluster's ranges, a later one gets nothing new, and
    /// keeps what it has.
    pub fn adopt(&mut self, held: impl Iterator<Item = (FrontendKey, OwnerName)>) {
        self.adopted.clear();
        for (key, owner) in held {
            let known = FrontendKey { port: 0, protocol: None, ..key };
            self.adopted.entry(known).or_insert_with(|| owner.clone());
            self.adopted.insert(key, owner);
        }
        self.ranges_moved = true;
    }

    /// Rows of an earlier plan inside a range that somebody before owns now: whoever they are of need not be heard for them
    /// to go.
    pub(super) fn evicted(&mut self, claimed: &HashSet<FrontendKey>) -> Vec<FrontendKey> {
        if !std::mem::take(&mut self.ranges_moved) {
            return Vec::new();
        }
        let is_owned = |key: &FrontendKey, owner: &OwnerName| {
            let seats = self.order.of(owner.cluster()).into_iter().flat_map(|outlook| &outlook.seats);
            let mut seats = seats.filter(|seat| seat.view == key.view);
            seats.any(|seat| matches!(seat.bar(key.address), Some(Bar::Owned { .. })))
        };
        let left = self.adopted.iter().filter(|(key, owner)| !claimed.contains(*key) && is_owned(key, owner));
        left.map(|(key, _)| *key).collect()
    }

    /// Its source has told everything, be it nothing.
    pub fn note_synced(&mut self, cluster: &Name) {
        self.hear_of(cluster);
        self.nodes_dirty = true;
    }

    /// Drops all facts of a cluster: it is no longer configured, or another one stands behind its name.
    pub fn forget(&mut self, cluster: &Name) -> bool {
        for fact in self.gone_with(cluster) {
            self.apply(fact);
        }
        self.dirty.extend(self.claimed.keys().filter(|name| name.cluster() == &**cluster).cloned());
        let site = self.sites.remove(cluster);
        let known = site.is_some();
        self.mark_others_at(cluster, &site.map(|site| site.hosts).unwrap_or_default());
        self.reorder();
        self.make_sites();
        known
    }

    fn gone_with(&self, cluster: &Name) -> Vec<Fact> {
        let here = |name: &&OwnerName| name.cluster() == &**cluster;
        let mut facts: Vec<Fact> = self.register.gone_with(cluster);
        facts.extend(self.services.keys().filter(here).cloned().map(Fact::ServiceGone));
        facts.extend(self.slice_owner.keys().filter(|name| name.cluster == *cluster).cloned().map(Fact::SliceGone));
        facts
    }

    /// What one ServiceCIDR object says; `None`: it is gone.
    pub(super) fn set_range(&mut self, cluster: &Name, name: Name, ranges: Option<Box<[IpNet]>>) -> bool {
        let known = &mut self.site_mut(cluster).ranges;
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
            self.site_mut(cluster).last_ranges = now;
        }
        self.reorder();
        true
    }

    /// Of each cluster what its objects say, or said last: a range that nobody names any more, others might take. The
    /// configuration goes before.
    fn ranges(&self) -> Ranges {
        let known = self.sites.iter().map(|(name, site)| (name.clone(), site.last_ranges.clone()));
        known.filter(|(_, ranges)| !ranges.is_empty()).collect()
    }

    fn new_order(&self) -> Order {
        Order::new(self.rules.stand_point, &self.rules.clusters, &self.ranges(), &self.views)
    }

    fn reorder(&mut self) -> bool {
        let order = self.new_order();
        if self.order == order {
            return false;
        }
        self.order = order;
        self.ranges_moved = true;
        if !self.order.outlooks().iter().any(Outlook::waits) && self.unheard().is_empty() {
            self.adopted.clear();
        }
        self.nodes_dirty = true;
        self.mark_all();
        true
    }

    // ---- views ----

    /// Views in use, by the names that the configuration gives them or by their clusters'.
    pub fn set_views(&mut self, views: BTreeSet<Name>) -> bool {
        if self.views == views {
            return false;
        }
        self.views = views;
        self.reorder()
    }

    /// The number of a view that is in use, as rules of cgroups hold it.
    pub fn view(&self, name: &Name) -> Option<u32> {
        self.order.view(name)
    }

    pub fn order(&self) -> &Order {
        &self.order
    }

    // ---- reach ----

    /// With what follows from several clusters' pods at the same addresses.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Says whether anything is reached in another way now.
    pub fn set_reach(&mut self, reach: Reach) -> bool {
        let reach = Reach { shared: self.reach.shared.clone(), ..reach };
        if self.reach == reach {
            return false;
        }
        let before = std::mem::replace(&mut self.reach, reach);
        let rerouted = self.mark_rerouted(&before);
        let flipped = |group: &&Group| before.of(group) != self.reach.of(group);
        let groups: BTreeSet<Group> =
            before.found.keys().chain(self.reach.found.keys()).filter(flipped).cloned().collect();
        self.mark_groups(&groups);
        rerouted || !groups.is_empty()
    }

    /// Whoever has an endpoint in one of them. Whose node it is, a slice need not say.
    fn mark_groups(&mut self, groups: &BTreeSet<Group>) {
        let clusters: BTreeSet<&str> = groups.iter().map(|group| &*group.cluster).collect();
        let prefixes: BTreeSet<IpNet> = groups.iter().map(|group| group.prefix).collect();
        let inside = |address: Address| prefixes.contains(&Group::of("".into(), None, address).prefix);
        let mut found: Vec<OwnerName> = Vec::new();
        for (owner, slices) in self.slices.iter().filter(|(owner, _)| clusters.contains(self.known_as(owner))) {
            if slices.iter().flat_map(|slice| &slice.endpoints).any(|endpoint| inside(endpoint.address)) {
                found.push(owner.clone());
            }
        }
        found.extend(self.register.owners().filter(|owner| clusters.contains(self.known_as(owner))).cloned());
        self.dirty.extend(found);
    }

    fn known_as(&self, owner: &OwnerName) -> &str {
        self.order.of(owner.cluster()).map_or("", |outlook| &outlook.rules.name)
    }

    /// Whose ClusterIP a route leads to now, or no longer. Says whether there are any.
    fn mark_rerouted(&mut self, before: &Reach) -> bool {
        if before.routed == self.reach.routed {
            return false;
        }
        let flips = |address: &Address| before.is_routed(*address) != self.reach.is_routed(*address);
        let is_away =
            |name: &OwnerName| self.order.of(name.cluster()).is_some_and(|outlook| outlook.stand != StandPoint::Node);
        let services = self.services.values().filter(|service| service.cluster_ips.iter().any(flips));
        let marked: Vec<OwnerName> = services.map(|service| service.name.clone()).filter(is_away).collect();
        let any = !marked.is_empty();
        self.dirty.extend(marked);
        any
    }

    pub(super) fn mark_cluster(&mut self, cluster: &str) {
        let names = self.services.keys().chain(self.register.owners());
        let here = names.filter(|name| name.cluster() == cluster).cloned();
        self.dirty.extend(here.collect::<Vec<_>>());
    }

    /// Whoever claims an address that became, or is no longer, a host's of this cluster: only those before may have it.
    pub(super) fn mark_others_at(&mut self, cluster: &str, before: &BTreeMap<Address, Name>) {
        if !self.is_several() {
            return;
        }
        let none = BTreeMap::new();
        let now = self.sites.get(cluster).map_or(&none, |site| &site.hosts);
        let changed: HashSet<&Address> =
            before.keys().chain(now.keys()).filter(|address| before.get(address) != now.get(address)).collect();
        if changed.is_empty() {
            return;
        }
        let mut found: Vec<OwnerName> = Vec::new();
        let claims = |s: &Service| {
            let mut all = [&s.cluster_ips, &s.load_balancer_ips, &s.external_ips].into_iter().flatten();
            all.any(|address| changed.contains(address))
        };
        for service in self.services.values().filter(|s| s.name.cluster() != cluster && claims(s)) {
            found.push(service.name.clone());
            found.extend(self.register.on_service(&service.name).cloned());
        }
        found.extend(changed.into_iter().flat_map(|address| self.register.at_address(address)).cloned());
        self.dirty.extend(found);
    }

    /// Whoever has an endpoint on one of these nodes, or at an address that is or was theirs.
    pub(super) fn mark_moved(&mut self, cluster: &Name, moved: &BTreeSet<Name>, before: &BTreeMap<Address, Name>) {
        let Some(site) = self.sites.get(cluster) else { return };
        let stood = |address: &Address| before.get(address).into_iter().chain(site.hosts.get(address));
        let concerned = |slice: &Slice| {
            let mut nodes = slice.endpoints.iter().flat_map(|e| e.node.iter().chain(stood(&e.address)));
            nodes.any(|node| moved.contains(node))
        };
        let here = self.slices.iter().filter(|(owner, _)| owner.cluster() == &**cluster);
        let found = here.filter(|(_, slices)| slices.iter().any(concerned)).map(|(owner, _)| owner.clone());
        let found: Vec<OwnerName> = found.collect();
        let policies = self.register.owners().filter(|owner| owner.cluster() == &**cluster).cloned();
        self.dirty.extend(policies.chain(found).collect::<Vec<_>>());
    }

    // ---- what is said ----

    /// A cluster at a time: where two have the same range, it is all of one's Services.
    pub(super) fn range_refusals(&self) -> Vec<Refusal> {
        let mut counts: BTreeMap<(&str, &Bar), usize> = BTreeMap::new();
        for (owner, bar) in &self.withheld {
            *counts.entry((owner.cluster(), bar)).or_default() += 1;
        }
        counts.into_iter().map(|((cluster, bar), count)| self.range_refusal(cluster, bar, count)).collect()
    }

    fn range_refusal(&self, cluster: &str, bar: &Bar, count: usize) -> Refusal {
        let (reason, message) = match bar {
            Bar::Owned { by, range } => {
                let instead = match self.order.view(cluster).filter(|view| *view != 0) {
                    Some(_) => "they are seen in its view only",
                    None => "give it a view to see them",
                };
                let text = format!("{count} Services or policies lie in {range}, which is cluster {by}'s: {instead}");
                ("rangeOwned", text)
            }
            Bar::Unknown(by) => {
                let text = format!(
                    "{count} Services or policies wait until the service ranges of cluster {by}, which comes before, are \
                     known: set its serviceCIDRs"
                );
                ("rangeUnknown", text)
            }
        };
        Refusal { subject: format!("cluster {cluster}"), reason, message }
    }
}
