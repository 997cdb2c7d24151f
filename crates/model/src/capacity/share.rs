//! Max-min fair shares.

use super::rows::{TableRows, TableTotals};
use crate::hash::HashMap;
use crate::name::ServiceName;

const FIRST_NAMESPACE: &str = "kube-system";
const FIRST_SERVICE: (&str, &str) = ("default", "kubernetes");

/// Stands for the owners that come first in their cluster. No namespace has an empty name.
const FIRST: &str = "";

/// The name of the share that an owner's rows count for.
fn share_name(owner: &ServiceName) -> &str {
    let is_first = owner.namespace() == FIRST_NAMESPACE || (owner.namespace(), owner.name()) == FIRST_SERVICE;
    if is_first { FIRST } else { owner.namespace() }
}

/// The cluster and the share that an owner's rows count for.
pub(super) fn key(owner: &ServiceName) -> (&str, &str) {
    (owner.cluster(), share_name(owner))
}

/// The largest level at which the capacity suffices if everyone gets what it asks for, but at most the level.
pub(super) fn level(wanted: impl Iterator<Item = u64>, capacity: u64) -> u64 {
    let mut wanted: Vec<u64> = wanted.collect();
    wanted.sort_unstable();
    let mut rest = capacity;
    for (position, rows) in wanted.iter().enumerate() {
        let share = rest / (wanted.len() - position) as u64;
        if *rows > share {
            return share;
        }
        rest -= rows;
    }
    u64::MAX
}

/// What the namespaces of one cluster ask for, and what they get.
#[derive(Debug)]
pub(super) struct ClusterShares {
    wanted: HashMap<Box<str>, TableTotals>,
    /// The share of the owners that come first, and of every namespace.
    first: TableTotals,
    level: TableTotals,
}

impl Default for ClusterShares {
    fn default() -> ClusterShares {
        let all = TableTotals::from_fn(|_| u64::MAX);
        ClusterShares { wanted: HashMap::default(), first: all, level: all }
    }
}

impl ClusterShares {
    pub fn change(&mut self, owner: &ServiceName, before: TableRows, now: TableRows) {
        let share = share_name(owner);
        match self.wanted.get_mut(share) {
            Some(wanted) => wanted.change(before, now),
            None => drop(self.wanted.insert(share.into(), TableTotals::default().plus(now))),
        }
        if self.wanted.get(share) == Some(&TableTotals::default()) {
            self.wanted.remove(share);
        }
    }

    pub fn total(&self) -> TableTotals {
        TableTotals::from_fn(|table| self.wanted.values().map(|wanted| wanted.0[table]).sum())
    }

    /// The owners that come first get what they ask for, the namespaces share the rest.
    pub fn set_level(&mut self, cluster_level: &TableTotals) {
        self.first = *cluster_level;
        let namespaces = || self.wanted.iter().filter(|(name, _)| ***name != *FIRST).map(|(_, wanted)| wanted);
        let first = self.wanted.get(FIRST).copied().unwrap_or_default();
        let total = self.total();
        self.level = TableTotals::from_fn(|table| {
            let capacity = cluster_level.0[table].min(total.0[table]).saturating_sub(first.0[table]);
            level(namespaces().map(|wanted| wanted.0[table]), capacity)
        });
    }

    pub fn share_of(&self, owner: &ServiceName) -> &TableTotals {
        if share_name(owner) == FIRST { &self.first } else { &self.level }
    }

    /// Whether the owner's namespace asks for more than its share.
    pub fn exceeds_level(&self, owner: &ServiceName) -> bool {
        let wanted = self.wanted.get(share_name(owner));
        wanted.is_some_and(|wanted| wanted.first_above(self.share_of(owner)).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_divides_what_the_small_ones_leave() {
        let level = |wanted: &[u64], capacity| level(wanted.iter().copied(), capacity);
        assert_eq!(level(&[1, 2, 3], 6), u64::MAX, "everything fits");
        assert_eq!(level(&[1000, 2, 3], 30), 25);
        assert_eq!(level(&[1000, 1000, 10], 30), 10);
        assert_eq!(level(&[5, 5], 0), 0);
        assert_eq!(level(&[], 0), u64::MAX);
    }
}
