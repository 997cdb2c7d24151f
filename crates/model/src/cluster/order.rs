//! The order of several clusters: which cluster owns an address, and in which order a process sees the clusters.
//!
//! View 0 has the order of the configuration. The view of another cluster has that cluster first and the others in the
//! order of the configuration. In every view, a cluster may not use the service ranges of the clusters before it, even
//! while those are unreachable or a Service was deleted there: otherwise a client would reach a different service of
//! another cluster. While the ranges of a cluster are unknown, every address may belong to it.
//!
//! View and cluster numbers are stored in pinned tables and in the view rules of cgroups. They are computed from names
//! alone, so reordering or removing clusters never gives a number to another cluster.

use super::ClusterRules;
use crate::address::Address;
use crate::name::{LOCAL_CLUSTER, Name};
use crate::row::FrontendKey;
use crate::rules::HostRole;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

/// Service ranges that clusters report. A cluster that has not reported any is missing.
pub type Ranges = BTreeMap<Name, Vec<IpNet>>;

/// The rank of a cluster in one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewRank {
    pub view: u32,
    /// The cluster with the lowest rank that claims an address owns it.
    pub rank: u8,
    /// Ranges of the clusters with a lower rank.
    before: Vec<(Name, IpNet)>,
    /// A cluster with a lower rank whose ranges are unknown.
    unknown: Option<Name>,
}

/// Why a cluster may not use an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RangeConflict {
    Owned { by: Name, range: IpNet },
    Unknown(Name),
}

impl ViewRank {
    pub fn conflict_at(&self, address: Address) -> Option<RangeConflict> {
        let owner = self.before.iter().find(|(_, range)| range.contains(&address.ip()));
        let owned = owner.map(|(by, range)| RangeConflict::Owned { by: by.clone(), range: *range });
        owned.or_else(|| self.unknown.clone().map(RangeConflict::Unknown))
    }
}

/// One cluster as seen from this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterContext {
    pub rules: ClusterRules,
    pub host_role: HostRole,
    /// The cluster number in the node table. NodePort rows have it in place of a view number.
    pub number: u16,
    /// The service ranges of the cluster. Empty while they are unknown.
    pub ranges: Vec<IpNet>,
    /// One for each view in use, view 0 first.
    pub view_ranks: Vec<ViewRank>,
}

impl ClusterContext {
    /// Whether this host is outside the cluster.
    pub fn is_remote(&self) -> bool {
        self.host_role == HostRole::Outside
    }

    /// Whether the rows are exactly those of the plan: there is one view, no cluster before this one, and no cluster
    /// number.
    pub fn is_plain(&self) -> bool {
        self.number == 0 && matches!(&self.view_ranks[..], [rank] if rank.before.is_empty() && rank.unknown.is_none())
    }

    /// Whether a node of the cluster may be programmed at this address. The node table has no views, so no cluster with
    /// a lower rank in any view may own the address. Unknown ranges count only in view 0.
    pub fn may_have_node(&self, address: Address) -> bool {
        let owned = |rank: &ViewRank| matches!(rank.conflict_at(address), Some(RangeConflict::Owned { .. }));
        !self.view_ranks.iter().any(owned) && self.view_ranks[0].conflict_at(address).is_none()
    }

    /// Whether the ranges of a cluster before this one are unknown in view 0.
    pub fn waits_in_default_view(&self) -> bool {
        self.view_ranks[0].unknown.is_some()
    }

    pub fn waits_in_any_view(&self) -> bool {
        self.view_ranks.iter().any(|rank| rank.unknown.is_some())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOrder {
    clusters: Vec<ClusterContext>,
    /// No clusters are configured: all objects belong to one cluster.
    unlisted: bool,
}

impl ClusterOrder {
    /// `host_role` applies to the first cluster. This host is outside all other clusters.
    pub fn new(
        host_role: HostRole,
        clusters: &[ClusterRules],
        ranges: &Ranges,
        views: &BTreeSet<Name>,
    ) -> ClusterOrder {
        let unlisted = clusters.is_empty();
        let clusters =
            if unlisted { vec![ClusterRules::for_role(LOCAL_CLUSTER, host_role)] } else { clusters.to_vec() };
        let numbers = numbers(host_role, &clusters);
        let first_clusters = first_clusters(&clusters, views);
        let view_ranks = |at: usize| {
            first_clusters.iter().map(|(view, first)| view_rank(&clusters, ranges, (*view, *first), at)).collect()
        };
        let cluster = |(at, rules): (usize, &ClusterRules)| ClusterContext {
            rules: rules.clone(),
            host_role: if at == 0 { host_role } else { HostRole::Outside },
            number: numbers[at],
            ranges: service_ranges(rules, ranges).unwrap_or_default(),
            view_ranks: view_ranks(at),
        };
        ClusterOrder { clusters: clusters.iter().enumerate().map(cluster).collect(), unlisted }
    }

    pub fn clusters(&self) -> &[ClusterContext] {
        &self.clusters
    }

    /// `None` if the cluster is not configured.
    pub fn get(&self, name: &str) -> Option<&ClusterContext> {
        self.clusters.iter().find(|cluster| self.unlisted || &*cluster.rules.name == name)
    }

    /// The cluster that this host is a node of, if any.
    pub fn home(&self) -> Option<&ClusterContext> {
        self.clusters.first().filter(|cluster| !cluster.is_remote())
    }

    pub fn is_home(&self, name: &str) -> bool {
        self.home().is_some_and(|home| self.unlisted || &*home.rules.name == name)
    }

    /// The number of a view in use, by the name of the view or of its cluster.
    pub fn view(&self, name: &str) -> Option<u32> {
        let at = position_named(self.clusters.iter().map(|cluster| &cluster.rules), name)?;
        let view = view_number(&self.clusters[at].rules.name);
        self.clusters[at].view_ranks.iter().any(|rank| rank.view == view).then_some(view)
    }

    /// The frontend as messages show it: with the name of the view, and without the cluster number of a NodePort row.
    pub fn dialled(&self, key: &FrontendKey) -> String {
        let plain = FrontendKey { view: 0, ..*key };
        match self.view_name(key.view).filter(|_| !key.is_node_port_row()) {
            Some(view) => format!("{plain:?} in view {view}"),
            None => format!("{plain:?}"),
        }
    }

    /// The name of a view.
    pub fn view_name(&self, view: u32) -> Option<&Name> {
        let is_it = |cluster: &&ClusterContext| view != 0 && view_number(&cluster.rules.name) == view;
        let cluster = self.clusters.iter().find(is_it)?;
        Some(cluster.rules.view.as_ref().unwrap_or(&cluster.rules.name))
    }
}

fn position_named<'a>(clusters: impl Iterator<Item = &'a ClusterRules> + Clone, name: &str) -> Option<usize> {
    let by_view = clusters.clone().position(|cluster| cluster.view.as_deref() == Some(name));
    by_view.or_else(|| clusters.clone().position(|cluster| &*cluster.name == name))
}

/// The views in use, and the first cluster of each. The view of the first cluster equals view 0 until the order
/// changes, so it keeps its own number and gets rows only then.
fn first_clusters(clusters: &[ClusterRules], views: &BTreeSet<Name>) -> BTreeMap<u32, usize> {
    let configured = clusters.iter().skip(1).filter_map(|cluster| cluster.view.as_ref());
    let requested = views.iter().chain(configured).filter_map(|name| position_named(clusters.iter(), name));
    let named = requested.map(|at| (view_number(&clusters[at].name), at));
    named.chain([(0, 0)]).collect()
}

fn view_rank(clusters: &[ClusterRules], ranges: &Ranges, (view, first): (u32, usize), at: usize) -> ViewRank {
    let earlier: Vec<&ClusterRules> = match at == first {
        true => Vec::new(),
        false => clusters.iter().enumerate().filter(|(i, _)| *i == first || *i < at).map(|(_, c)| c).collect(),
    };
    let before = earlier.iter().flat_map(|cluster| {
        let owned = service_ranges(cluster, ranges).unwrap_or_default();
        owned.into_iter().map(|range| (cluster.name.clone(), range))
    });
    let unknown = earlier.iter().find(|cluster| service_ranges(cluster, ranges).is_none());
    ViewRank {
        view,
        rank: u8::try_from(earlier.len()).unwrap_or(u8::MAX),
        before: before.collect(),
        unknown: unknown.map(|cluster| cluster.name.clone()),
    }
}

/// The configured ranges, or else the ranges that the cluster reports.
fn service_ranges(cluster: &ClusterRules, ranges: &Ranges) -> Option<Vec<IpNet>> {
    let configured = cluster.service_ranges.clone().filter(|ranges| !ranges.is_empty());
    configured.or_else(|| ranges.get(&cluster.name).cloned())
}

/// FNV-1a: the same in every build.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// 0 is the default view, and the largest number marks excluded cgroups in the kernel.
fn view_number(name: &str) -> u32 {
    hash(name).clamp(1, u32::MAX - 1)
}

/// 0 is the cluster that this host is a node of, and the cluster without a name. If two names hash to one number, the
/// later cluster gets the next number.
fn numbers(host_role: HostRole, clusters: &[ClusterRules]) -> Vec<u16> {
    let mut taken: Vec<u16> = Vec::with_capacity(clusters.len());
    for (at, cluster) in clusters.iter().enumerate() {
        let home = at == 0 && host_role != HostRole::Outside || &*cluster.name == LOCAL_CLUSTER;
        let mut number = if home { 0 } else { (hash(&cluster.name) % 0xffff) as u16 + 1 };
        while taken.contains(&number) {
            number = number.wrapping_add(1);
        }
        taken.push(number);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::parse_ip;

    fn address(text: &str) -> Address {
        Address::from(parse_ip(text).unwrap())
    }

    fn cluster(name: &str, range: Option<&str>) -> ClusterRules {
        let service_ranges = range.map(|range| vec![range.parse().unwrap()]);
        ClusterRules { service_ranges, ..ClusterRules::named(name) }
    }

    fn order(clusters: &[ClusterRules], views: &[&str]) -> ClusterOrder {
        let views = views.iter().map(|view| Name::from(*view)).collect();
        ClusterOrder::new(HostRole::Outside, clusters, &Ranges::new(), &views)
    }

    #[test]
    fn ranges_are_owned_in_the_order_of_each_view() {
        let clusters = [cluster("a", Some("10.43.0.0/16")), cluster("b", Some("10.43.0.0/16"))];
        let order = order(&clusters, &["b"]);
        let (a, b) = (order.get("a").unwrap(), order.get("b").unwrap());
        let at = address("10.43.0.10");
        assert_eq!(a.view_ranks[0].conflict_at(at), None);
        assert!(matches!(b.view_ranks[0].conflict_at(at), Some(RangeConflict::Owned { by, .. }) if &*by == "a"));
        assert_eq!((b.view_ranks[1].view, b.view_ranks[1].conflict_at(at)), (order.view("b").unwrap(), None));
        assert!(matches!(a.view_ranks[1].conflict_at(at), Some(RangeConflict::Owned { by, .. }) if &*by == "b"));
        assert_eq!(
            (order.view("a"), order.view("c"), b.view_ranks[0].conflict_at(address("10.44.0.1"))),
            (None, None, None)
        );
        assert_eq!(order.view_name(b.view_ranks[1].view).map(|name| &**name), Some("b"));
    }

    #[test]
    fn an_unknown_range_excludes_every_address() {
        let order = order(&[cluster("a", None), cluster("b", Some("10.43.0.0/16"))], &[]);
        assert_eq!(
            order.get("b").unwrap().view_ranks[0].conflict_at(address("10.43.0.1")),
            Some(RangeConflict::Unknown("a".into()))
        );
        assert_eq!(order.get("a").unwrap().view_ranks[0].conflict_at(address("10.43.0.1")), None);
        assert_eq!(order.view("b"), None, "the view is not in use");
    }

    #[test]
    fn cluster_and_view_numbers_depend_on_names_only() {
        let [a, b, c] = ["a", "b", "c"].map(|name| cluster(name, None));
        let (all, fewer) = (order(&[a.clone(), b, c.clone()], &["c"]), order(&[a, c], &["c"]));
        assert_eq!(all.get("c").unwrap().number, fewer.get("c").unwrap().number);
        assert_eq!(all.view("c"), fewer.view("c"));
        assert!(all.clusters().iter().all(|cluster| cluster.number != 0));
        assert_eq!(order(&[], &[]).get("any").unwrap().number, 0);
        let home = ClusterOrder::new(HostRole::Node, &[cluster("x", None)], &Ranges::new(), &BTreeSet::new());
        assert_eq!(home.home().unwrap().number, 0);
    }
}
