//! One cluster's source as the main loop sees it: how much of the cluster is known, which of its changes wait for the end
//! of the first list, its refusals, and its error.

use crate::key_tracker::KeyTracker;
use crate::plan_refusals::log_refusal_changes;
use crate::settings::ClusterSettings;
use beeline_cluster::ChangeBatch;
use beeline_model::Name;
use beeline_model::change::{Change, ObjectKey, ObjectKind};
use beeline_model::cluster::ClusterRules;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::{Object, ServiceRange};
use beeline_model::refusal::Refusal;
use beeline_model::rules::HostRole;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// How much of a cluster is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Nothing is known, so nothing is programmed.
    Pending,
    /// A snapshot is served until the source has delivered a list.
    Snapshot { taken_at: SystemTime },
    /// The source has delivered a list, but a part of the cluster could not be read. Rows in the kernel that are not in
    /// the plan stay: an earlier agent may have read them from the part that is unreadable now.
    Partial,
    /// The source has delivered a complete list.
    Complete,
}

impl Readiness {
    /// Whether the objects that are known can be served.
    pub fn is_synced(self) -> bool {
        self != Readiness::Pending
    }

    pub fn is_complete(self) -> bool {
        self == Readiness::Complete
    }

    /// When the snapshot that is served was taken.
    pub fn snapshot_time(self) -> Option<SystemTime> {
        if let Readiness::Snapshot { taken_at } = self { Some(taken_at) } else { None }
    }
}

/// The first list of the current source.
enum ListState {
    /// Changes wait until the list is finished. Only the last change of each object is kept, because the list may never
    /// finish.
    InProgress {
        waiting: BTreeMap<ObjectKey, Change>,
    },
    Done,
}

pub struct ClusterSource {
    pub rules: ClusterRules,
    pub kind: &'static str,
    /// The server that is read now, or the folder.
    pub name: String,
    /// Why the source cannot be read now.
    pub error: Option<String>,
    pub readiness: Readiness,
    /// When the cluster became synced.
    pub synced_since: Option<SystemTime>,
    pub refusals: Arc<[Refusal]>,
    /// The ranges of its ServiceCIDR objects.
    pub ranges: BTreeMap<Name, Box<[IpNet]>>,
    list: ListState,
    /// `None` where no other source can take over, and no snapshot is used. Then it is set only while the source lists
    /// everything again after a restart.
    keys: Option<KeyTracker>,
    may_be_replaced: bool,
}

/// The effect of one batch.
pub struct AppliedBatch {
    /// The changes to apply now.
    pub changes: Vec<Change>,
    /// The batch ended the first list of the current source, or was the first complete one.
    pub first: bool,
}

impl ClusterSource {
    pub fn new(cluster: &ClusterSettings, role: HostRole) -> ClusterSource {
        let (kind, name) = cluster.source.title();
        let may_be_replaced = role != HostRole::Node || *cluster.rules.name != *LOCAL_CLUSTER;
        ClusterSource {
            rules: cluster.rules.clone(),
            kind,
            name,
            error: None,
            readiness: Readiness::Pending,
            synced_since: None,
            refusals: Arc::default(),
            ranges: BTreeMap::new(),
            list: ListState::InProgress { waiting: BTreeMap::new() },
            keys: may_be_replaced.then(KeyTracker::default),
            may_be_replaced,
        }
    }

    /// `None` means that the objects are not counted.
    pub fn object_count(&self) -> Option<usize> {
        self.keys.as_ref().map(KeyTracker::len)
    }

    fn is_listing(&self) -> bool {
        matches!(self.list, ListState::InProgress { .. })
    }

    pub fn apply(&mut self, mut batch: ChangeBatch) -> AppliedBatch {
        if batch.from_cache && self.readiness.snapshot_time().is_some() {
            // The snapshot is preferred to an edge cache: it was read from the cluster itself and knows deletions.
            (batch.synced, batch.complete) = (false, false);
        }
        let first = batch.synced && self.is_listing() || batch.complete && !self.readiness.is_complete();
        self.set_refusals(batch.refusals);
        self.set_error(batch.error);
        self.name = batch.server.unwrap_or_else(|| std::mem::take(&mut self.name));
        if batch.synced {
            let complete = batch.complete || self.readiness.is_complete();
            self.set_readiness(if complete { Readiness::Complete } else { Readiness::Partial });
        }
        let mut changes = self.release(batch.changes, batch.synced);
        changes.iter().for_each(|change| self.record(change));
        if batch.complete {
            changes.extend(self.finish_relist());
        }
        AppliedBatch { changes, first }
    }

    /// Adds the objects of a snapshot. Returns those to apply, or `None` if the source has already delivered a list.
    pub fn apply_snapshot(&mut self, objects: Vec<Object>, taken_at: SystemTime) -> Option<Vec<Change>> {
        if !self.is_listing() {
            return None;
        }
        let changes = objects.into_iter().map(Change::Upsert).collect();
        let changes = self.keys.as_mut()?.add_snapshot(changes);
        changes.iter().for_each(|change| self.record_range(change));
        self.set_readiness(Readiness::Snapshot { taken_at });
        Some(changes)
    }

    /// Another source takes over. The last known state stays in effect until the new source has delivered a list.
    pub fn replace(&mut self, cluster: &ClusterSettings) {
        (self.kind, self.name) = cluster.source.title();
        self.list = ListState::InProgress { waiting: BTreeMap::new() };
        self.keys.iter_mut().for_each(KeyTracker::start_relist);
    }

    /// The source starts again and does not remember what it delivered. The last known state stays in effect until it has
    /// listed everything; then the objects that it did not list are deleted. `known`: the keys of the objects.
    pub fn restart(&mut self, known: impl FnOnce() -> Vec<ObjectKey>) {
        self.list = ListState::InProgress { waiting: BTreeMap::new() };
        self.keys.get_or_insert_with(|| KeyTracker::of(known())).start_relist();
    }

    /// The cluster was removed from the configuration. Returns a deletion for every object.
    pub fn delete_all(self) -> Vec<Change> {
        self.keys.map(KeyTracker::delete_all).unwrap_or_default()
    }

    fn set_readiness(&mut self, readiness: Readiness) {
        self.readiness = readiness;
        self.synced_since.get_or_insert_with(SystemTime::now);
    }

    /// Returns the changes that need not wait any more. Service ranges never wait, because they decide which cluster has
    /// an address, and the other clusters wait for that.
    fn release(&mut self, changes: Vec<Change>, synced: bool) -> Vec<Change> {
        let waiting = match &mut self.list {
            ListState::InProgress { waiting } if synced => std::mem::take(waiting),
            ListState::InProgress { .. } => {
                let is_range = |change: &Change| change.key().kind() == ObjectKind::ServiceRange;
                let (ranges, rest): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(is_range);
                rest.into_iter().for_each(|change| self.hold_back(change));
                return ranges;
            }
            ListState::Done => return changes,
        };
        self.list = ListState::Done;
        waiting.into_values().chain(changes).collect()
    }

    /// A deletion waits only if the object is served now.
    fn hold_back(&mut self, change: Change) {
        let ListState::InProgress { waiting } = &mut self.list else { return };
        let key = change.key();
        let is_served = |key| self.keys.as_ref().is_some_and(|keys| keys.contains(key));
        if matches!(change, Change::Upsert(_)) || is_served(&key) {
            waiting.insert(key, change);
        } else {
            waiting.remove(&key);
        }
    }

    fn record(&mut self, change: &Change) {
        self.record_range(change);
        self.keys.iter_mut().for_each(|keys| keys.record(change));
    }

    fn record_range(&mut self, change: &Change) {
        match change {
            Change::Upsert(Object::ServiceRange(ServiceRange { name, ranges, .. })) => {
                self.ranges.insert(name.clone(), ranges.clone());
            }
            Change::Delete(ObjectKey::ServiceRange { name, .. }) => drop(self.ranges.remove(name)),
            _ => {}
        }
    }

    fn finish_relist(&mut self) -> Vec<Change> {
        let deletions = self.keys.as_mut().map(KeyTracker::finish_relist).unwrap_or_default();
        deletions.iter().for_each(|change| self.record_range(change));
        self.keys = self.keys.take().filter(|_| self.may_be_replaced);
        deletions
    }

    fn set_refusals(&mut self, refusals: Arc<[Refusal]>) {
        if !Arc::ptr_eq(&self.refusals, &refusals) {
            let cluster = Some(&*self.rules.name).filter(|name| *name != LOCAL_CLUSTER);
            log_refusal_changes(cluster, &self.refusals, &refusals);
            self.refusals = refusals;
        }
    }

    /// Logs an error when it begins, becomes another one or ends, not with every retry.
    fn set_error(&mut self, error: Option<String>) {
        let cluster = &self.rules.name;
        match (&self.error, &error) {
            (before, Some(now)) if before.as_ref() != Some(now) => {
                tracing::warn!(%cluster, error = now, "cannot read the source; the last known state stays in effect");
            }
            (Some(_), None) => tracing::info!(%cluster, "the source can be read again"),
            _ => {}
        }
        self.error = error;
    }

    #[cfg(test)]
    pub fn waiting_count(&self) -> usize {
        match &self.list {
            ListState::InProgress { waiting } => waiting.len(),
            ListState::Done => 0,
        }
    }
}
