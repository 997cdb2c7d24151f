//! Several clusters at once: in which order they own addresses, and in which order a process sees them.
//!
//! View 0 is the order of the configuration. The view of another cluster has that one first and the others as they were.
//! In every view, a cluster has no part in the service ranges of those before it, whether these are there or not: where a
//! database was deleted, nobody may meet a stranger's. While the range of one is unknown, it might be anywhere.
//!
//! Numbers stand in pinned tables and in the rules of cgroups, so they follow from names alone: another order, or one
//! cluster less, gives no number to somebody else.

use super::ClusterRules;
use crate::address::Address;
use crate::name::{LOCAL_CLUSTER, Name};
use crate::row::FrontendKey;
use crate::rules::StandPoint;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

/// What clusters say themselves; those that are missing said nothing yet.
pub type Ranges = BTreeMap<Name, Vec<IpNet>>;

/// A cluster's place in one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    pub view: u32,
    /// Of those that claim an address in this view, the lower one has it.
    pub rank: u8,
    /// Ranges that others own here.
    before: Vec<(Name, IpNet)>,
    /// One before it whose ranges nobody knows.
    unknown: Option<Name>,
}

/// Why a cluster has no part in an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bar {
    Owned { by: Name, range: IpNet },
    Unknown(Name),
}

impl Seat {
    pub fn bar(&self, address: Address) -> Option<Bar> {
        let owner = self.before.iter().find(|(_, range)| range.contains(&address.ip()));
        let owned = owner.map(|(by, range)| Bar::Owned { by: by.clone(), range: *range });
        owned.or_else(|| self.unknown.clone().map(Bar::Unknown))
    }
}

/// How one cluster looks from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    pub rules: ClusterRules,
    pub stand: StandPoint,
    /// As the node table holds it, and NodePort rows in place of a view.
    pub number: u16,
    /// Its service ranges; none: nobody knows them yet.
    pub ranges: Vec<IpNet>,
    /// One for each view in use; view 0 first.
    pub seats: Vec<Seat>,
}

impl Outlook {
    /// One that we are no part of.
    pub fn is_remote(&self) -> bool {
        self.stand == StandPoint::Outside
    }

    /// Rows stand as a plan has them: there is one view, nobody before it, and no number.
    pub fn is_plain(&self) -> bool {
        self.number == 0 && matches!(&self.seats[..], [seat] if seat.before.is_empty() && seat.unknown.is_none())
    }

    /// Whether its node may be known at this address. The node table has no views: nobody who comes before it in one may own
    /// the address, but it waits only for those before it in the configuration.
    pub fn may_have_node(&self, address: Address) -> bool {
        let owned = |seat: &Seat| matches!(seat.bar(address), Some(Bar::Owned { .. }));
        !self.seats.iter().any(owned) && self.seats[0].bar(address).is_none()
    }

    /// In the order of the configuration, for ranges that nobody knows.
    pub fn waits_first(&self) -> bool {
        self.seats[0].unknown.is_some()
    }

    pub fn waits(&self) -> bool {
        self.seats.iter().any(|seat| seat.unknown.is_some())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    outlooks: Vec<Outlook>,
    /// Nobody listed clusters: all facts are of one.
    unlisted: bool,
}

impl Order {
    /// `stand` holds for the first cluster: of the others this host is no part.
    pub fn new(stand: StandPoint, clusters: &[ClusterRules], ranges: &Ranges, views: &BTreeSet<Name>) -> Order {
        let unlisted = clusters.is_empty();
        let clusters = if unlisted { vec![ClusterRules::standing(LOCAL_CLUSTER, stand)] } else { clusters.to_vec() };
        let numbers = numbers(stand, &clusters);
        let firsts = firsts(&clusters, views);
        let seats =
            |at: usize| firsts.iter().map(|(view, first)| seat(&clusters, ranges, (*view, *first), at)).collect();
        let outlook = |(at, rules): (usize, &ClusterRules)| Outlook {
            rules: rules.clone(),
            stand: if at == 0 { stand } else { StandPoint::Outside },
            number: numbers[at],
            ranges: known(rules, ranges).unwrap_or_default(),
            seats: seats(at),
        };
        Order { outlooks: clusters.iter().enumerate().map(outlook).collect(), unlisted }
    }

    pub fn outlooks(&self) -> &[Outlook] {
        &self.outlooks
    }

    /// `None`: the configuration does not name it.
    pub fn of(&self, cluster: &str) -> Option<&Outlook> {
        let called = |outlook: &&Outlook| self.unlisted || &*outlook.rules.name == cluster;
        self.outlooks.iter().find(called)
    }

    /// The one that this host is a part of, where it is of any.
    pub fn home(&self) -> Option<&Outlook> {
        self.outlooks.first().filter(|outlook| !outlook.is_remote())
    }

    pub fn is_home(&self, cluster: &str) -> bool {
        self.home().is_some_and(|home| self.unlisted || &*home.rules.name == cluster)
    }

    /// The number of a view in use, by its name or its cluster's.
    pub fn view(&self, name: &str) -> Option<u32> {
        let at = called(self.outlooks.iter().map(|outlook| &outlook.rules), name)?;
        let view = view_number(&self.outlooks[at].rules.name);
        self.outlooks[at].seats.iter().any(|seat| seat.view == view).then_some(view)
    }

    /// As people are told what is dialled: a view by its name, and a NodePort without its cluster's number.
    pub fn dialled(&self, key: &FrontendKey) -> String {
        let plain = FrontendKey { view: 0, ..*key };
        match self.view_name(key.view).filter(|_| !key.is_node_port_row()) {
            Some(view) => format!("{plain:?} in view {view}"),
            None => format!("{plain:?}"),
        }
    }

    /// What a view is called.
    pub fn view_name(&self, view: u32) -> Option<&Name> {
        let is_it = |outlook: &&Outlook| view != 0 && view_number(&outlook.rules.name) == view;
        let outlook = self.outlooks.iter().find(is_it)?;
        Some(outlook.rules.view.as_ref().unwrap_or(&outlook.rules.name))
    }
}

fn called<'a>(clusters: impl Iterator<Item = &'a ClusterRules> + Clone, name: &str) -> Option<usize> {
    let by_view = clusters.clone().position(|cluster| cluster.view.as_deref() == Some(name));
    by_view.or_else(|| clusters.clone().position(|cluster| &*cluster.name == name))
}

/// The views in use, and which cluster is first in each. That of the first cluster is what view 0 is, until the order
/// changes: who asked for it keeps a number of its own, and is made rows only then.
fn firsts(clusters: &[ClusterRules], views: &BTreeSet<Name>) -> BTreeMap<u32, usize> {
    let configured = clusters.iter().skip(1).filter_map(|cluster| cluster.view.as_ref());
    let asked = views.iter().chain(configured).filter_map(|name| called(clusters.iter(), name));
    let named = asked.map(|at| (view_number(&clusters[at].name), at));
    named.chain([(0, 0)]).collect()
}

fn seat(clusters: &[ClusterRules], ranges: &Ranges, (view, first): (u32, usize), at: usize) -> Seat {
    let earlier: Vec<&ClusterRules> = match at == first {
        true => Vec::new(),
        false => clusters.iter().enumerate().filter(|(i, _)| *i == first || *i < at).map(|(_, c)| c).collect(),
    };
    let before = earlier.iter().flat_map(|cluster| {
        let owned = known(cluster, ranges).unwrap_or_default();
        owned.into_iter().map(|range| (cluster.name.clone(), range))
    });
    let unknown = earlier.iter().find(|cluster| known(cluster, ranges).is_none());
    Seat {
        view,
        rank: u8::try_from(earlier.len()).unwrap_or(u8::MAX),
        before: before.collect(),
        unknown: unknown.map(|cluster| cluster.name.clone()),
    }
}

/// As it was configured, else as it says itself.
fn known(cluster: &ClusterRules, ranges: &Ranges) -> Option<Vec<IpNet>> {
    let configured = cluster.service_ranges.clone().filter(|ranges| !ranges.is_empty());
    configured.or_else(|| ranges.get(&cluster.name).cloned())
}

/// FNV-1a: the same in every build.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn view_number(name: &str) -> u32 {
    hash(name).max(1)
}

/// 0 is the cluster that we are a node of, and the one without a name. Two whose names happen to give one number: the later
/// one in the order takes the next.
fn numbers(stand: StandPoint, clusters: &[ClusterRules]) -> Vec<u16> {
    let mut taken: Vec<u16> = Vec::with_capacity(clusters.len());
    for (at, cluster) in clusters.iter().enumerate() {
        let home = at == 0 && stand != StandPoint::Outside || &*cluster.name == LOCAL_CLUSTER;
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

    fn order(clusters: &[ClusterRules], views: &[&str]) -> Order {
        let views = views.iter().map(|view| Name::from(*view)).collect();
        Order::new(StandPoint::Outside, clusters, &Ranges::new(), &views)
    }

    #[test]
    fn ranges_are_owned_in_the_order_of_each_view() {
        let clusters = [cluster("a", Some("10.43.0.0/16")), cluster("b", Some("10.43.0.0/16"))];
        let order = order(&clusters, &["b"]);
        let (a, b) = (order.of("a").unwrap(), order.of("b").unwrap());
        let at = address("10.43.0.10");
        assert_eq!(a.seats[0].bar(at), None);
        assert!(matches!(b.seats[0].bar(at), Some(Bar::Owned { by, .. }) if &*by == "a"));
        assert_eq!((b.seats[1].view, b.seats[1].bar(at)), (order.view("b").unwrap(), None));
        assert!(matches!(a.seats[1].bar(at), Some(Bar::Owned { by, .. }) if &*by == "b"));
        assert_eq!((order.view("a"), order.view("c"), b.seats[0].bar(address("10.44.0.1"))), (None, None, None));
        assert_eq!(order.view_name(b.seats[1].view).map(|name| &**name), Some("b"));
    }

    #[test]
    fn an_unknown_range_may_be_anywhere() {
        let order = order(&[cluster("a", None), cluster("b", Some("10.43.0.0/16"))], &[]);
        assert_eq!(order.of("b").unwrap().seats[0].bar(address("10.43.0.1")), Some(Bar::Unknown("a".into())));
        assert_eq!(order.of("a").unwrap().seats[0].bar(address("10.43.0.1")), None);
        assert_eq!(order.view("b"), None, "nobody asked for it");
    }

    #[test]
    fn numbers_follow_from_names() {
        let [a, b, c] = ["a", "b", "c"].map(|name| cluster(name, None));
        let (all, fewer) = (order(&[a.clone(), b, c.clone()], &["c"]), order(&[a, c], &["c"]));
        assert_eq!(all.of("c").unwrap().number, fewer.of("c").unwrap().number);
        assert_eq!(all.view("c"), fewer.view("c"));
        assert!(all.outlooks().iter().all(|outlook| outlook.number != 0));
        assert_eq!(order(&[], &[]).of("any").unwrap().number, 0);
        let home = Order::new(StandPoint::Node, &[cluster("x", None)], &Ranges::new(), &BTreeSet::new());
        assert_eq!(home.home().unwrap().number, 0);
    }
}
