//! Decides which Services and policies get rows in the kernel's tables when not all of them fit.
//!
//! Rows are shared by max-min fairness: every cluster gets an equal share of each table, and inside a cluster every
//! namespace. What one does not need goes to the others. `default/kubernetes` and the namespace kube-system come first in
//! their cluster. So one namespace that asks for more than its share loses rows, and nobody else does. Inside a namespace
//! what is programmed stays, then the older object comes first.
//!
//! The decision depends on the objects and on what is programmed, not on the order in which objects arrive. While
//! everything fits, a change costs a few additions. When something does not fit, the Services of the namespaces that
//! exceed their share are sorted again; a change inside such a namespace is refused without that.

mod rows;
mod share;

pub use rows::{TableRows, TableTotals};

use crate::diff::size_option;
use crate::hash::{HashMap, HashSet};
use crate::name::ServiceName;
use crate::refusal::{Refusal, RefusalReason};
use crate::row::Sizes;
use rows::TABLE_NAMES;
use share::{ClusterShares, level};
use std::collections::BTreeMap;

/// The part of each table that is kept free: a change writes new rows before it deletes old ones, and ranges of slots
/// become fragmented.
const FREE_PART: u64 = 16;
/// When a namespace within its share needs room, namespaces that exceed theirs give up this part of the table at once, so
/// that the next such change finds room.
const SLACK_PART: u64 = 64;

#[derive(Debug, Default)]
pub struct CapacityTracker {
    /// `None`: everything fits.
    limits: Option<TableTotals>,
    rows: HashMap<ServiceName, TableRows>,
    clusters: BTreeMap<Box<str>, ClusterShares>,
    /// Of all owners, and of those that are not refused.
    total: TableTotals,
    used: TableTotals,
    /// The table that has no room, by its index.
    refused: HashMap<ServiceName, usize>,
    /// Owners that the tables contained when the agent started. They count as programmed until everything was planned.
    programmed: HashSet<ServiceName>,
    /// Owners that were added since the last decision.
    added: HashSet<ServiceName>,
    /// Owners that were added or grew while there was no room.
    overflowing: Vec<ServiceName>,
    /// Something that is refused may fit now.
    is_stale: bool,
}

impl CapacityTracker {
    pub fn set_limits(&mut self, sizes: &Sizes) {
        let usable = |limit: u64| limit - limit / FREE_PART;
        self.limits = Some(TableTotals::of_sizes(sizes).map(usable));
        self.is_stale = true;
    }

    /// Whether the tables have sizes.
    pub fn is_limited(&self) -> bool {
        self.limits.is_some()
    }

    /// Sets the owners of the rows that the tables hold from before.
    pub fn set_programmed(&mut self, owners: impl Iterator<Item = ServiceName>) {
        self.programmed = owners.collect();
    }

    /// Sets the number of rows that an owner needs; `None` if it does not exist.
    pub fn set(&mut self, name: &ServiceName, rows: Option<TableRows>) {
        if self.limits.is_none() {
            return;
        }
        let before = match rows {
            Some(rows) => self.rows.insert(name.clone(), rows),
            None => self.rows.remove(name),
        };
        if before == rows {
            return;
        }
        let (old, new) = (before.unwrap_or_default(), rows.unwrap_or_default());
        self.total.change(old, new);
        self.clusters.entry(name.cluster().into()).or_default().change(name, old, new);
        if self.refused.contains_key(name) {
            self.is_stale = true;
            if rows.is_none() {
                self.refused.remove(name);
            }
            return;
        }
        if before.is_none() {
            self.added.insert(name.clone());
        }
        self.used.change(old, new);
        if !new.exceeds(&old) {
            self.is_stale |= !self.refused.is_empty();
        } else if let Some(table) = self.full_table() {
            self.overflow(name, before, new, table);
        }
    }

    /// The first table that has fewer rows than are used.
    fn full_table(&self) -> Option<usize> {
        self.used.first_above(self.limits.as_ref()?)
    }

    /// A new owner in a namespace that exceeds its share is refused at once, which costs nothing. All other cases need a
    /// decision.
    fn overflow(&mut self, name: &ServiceName, before: Option<TableRows>, rows: TableRows, table: usize) {
        let is_new = before.is_none() && !self.programmed.contains(name);
        let exceeds = self.clusters.get(name.cluster()).is_some_and(|shares| shares.exceeds_level(name));
        if is_new && exceeds && !self.refused.is_empty() {
            self.used.change(rows, TableRows::default());
            self.added.remove(name);
            self.refused.insert(name.clone(), table);
            self.is_stale = true;
        } else {
            self.overflowing.push(name.clone());
        }
    }

    /// Whether a later decision may admit something that is refused.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    pub fn is_refused(&self, name: &ServiceName) -> bool {
        self.refused.contains_key(name)
    }

    /// Decides again if something does not fit, or, with `review`, if something that is refused may fit now. Returns the
    /// owners that are refused now and were not, or the other way round.
    pub fn decide(&mut self, review: bool, created: impl Fn(&ServiceName) -> i64) -> HashSet<ServiceName> {
        let is_due = !self.overflowing.is_empty() || review && self.is_stale;
        let changed = match &self.limits {
            Some(limits) if is_due => {
                let limits = *limits;
                let refused = if self.total.first_above(&limits).is_none() {
                    HashMap::default()
                } else {
                    self.refuse(&limits, created)
                };
                self.replace_refused(refused)
            }
            _ => HashSet::default(),
        };
        if is_due {
            self.overflowing.clear();
            self.is_stale = false;
        }
        self.added.clear();
        changed
    }

    /// Everything was planned: from now on what is not refused is programmed.
    pub fn finish_start(&mut self) {
        self.programmed = HashSet::default();
    }

    fn replace_refused(&mut self, refused: HashMap<ServiceName, usize>) -> HashSet<ServiceName> {
        let before = std::mem::replace(&mut self.refused, refused);
        let mut changed = HashSet::default();
        for name in before.keys().filter(|name| !self.refused.contains_key(*name)) {
            self.used.change(TableRows::default(), self.rows[name]);
            changed.insert(name.clone());
        }
        for name in self.refused.keys().filter(|name| !before.contains_key(*name)) {
            self.used.change(self.rows[name], TableRows::default());
            changed.insert(name.clone());
        }
        changed
    }

    /// The owners that get no rows.
    fn refuse(&mut self, limits: &TableTotals, created: impl Fn(&ServiceName) -> i64) -> HashMap<ServiceName, usize> {
        self.set_levels(limits);
        let exceeds =
            |name: &ServiceName| self.clusters.get(name.cluster()).is_some_and(|shares| shares.exceeds_level(name));
        let needs_slack = self.overflowing.iter().any(|name| !exceeds(name));
        let fill = if needs_slack { limits.map(|limit| limit - limit / SLACK_PART) } else { *limits };
        let mut used = TableTotals::default();
        let mut contenders: Vec<(&ServiceName, TableRows)> = Vec::new();
        for (name, rows) in &self.rows {
            if exceeds(name) { contenders.push((name, *rows)) } else { used.change(TableRows::default(), *rows) }
        }
        let is_programmed = |name: &ServiceName| {
            self.programmed.contains(name) || !self.added.contains(name) && !self.refused.contains_key(name)
        };
        contenders.sort_by_cached_key(|(name, _)| (!is_programmed(name), created(name), (*name).clone()));
        // First what fits into the share of its namespace, then what fits into the rest: the first of every namespace
        // before the second of any.
        let mut in_share: HashMap<(&str, &str), TableTotals> = HashMap::default();
        let mut waiting: Vec<(usize, &ServiceName, TableRows)> = Vec::new();
        let mut ranks: HashMap<(&str, &str), usize> = HashMap::default();
        for (name, rows) in contenders {
            let share = self.clusters[name.cluster()].share_of(name);
            let key = share::key(name);
            let taken = in_share.entry(key).or_default();
            if taken.plus(rows).first_above(share).is_none() && used.plus(rows).first_above(&fill).is_none() {
                *taken = taken.plus(rows);
                used = used.plus(rows);
            } else {
                let rank = ranks.entry(key).or_default();
                waiting.push((*rank, name, rows));
                *rank += 1;
            }
        }
        waiting.sort_by_key(|(rank, ..)| *rank);
        let mut refused = HashMap::default();
        for (_, name, rows) in waiting {
            match used.plus(rows).first_above(&fill) {
                None => used = used.plus(rows),
                Some(table) => drop(refused.insert(name.clone(), table)),
            }
        }
        refused
    }

    /// Computes the share of every cluster and namespace.
    fn set_levels(&mut self, limits: &TableTotals) {
        let totals: Vec<TableTotals> = self.clusters.values().map(ClusterShares::total).collect();
        let cluster_level =
            TableTotals::from_fn(|table| level(totals.iter().map(|total| total.0[table]), limits.0[table]));
        for shares in self.clusters.values_mut() {
            shares.set_level(&cluster_level);
        }
    }

    pub fn refusals(&self) -> impl Iterator<Item = Refusal> {
        self.refused.iter().map(|(name, table)| refusal(name, *table))
    }

    pub fn refusal(&self, name: &ServiceName) -> Option<Refusal> {
        self.refused.get(name).map(|table| refusal(name, *table))
    }
}

fn refusal(name: &ServiceName, table: usize) -> Refusal {
    let (table, namespace) = (TABLE_NAMES[table], name.namespace());
    let message = format!(
        "the {table} table is full, and namespace {namespace} uses its share of it: remove Services, ports or addresses of \
         this namespace, or increase {} and restart",
        size_option(table)
    );
    Refusal::new(name, RefusalReason::TableFull, message)
}
