//! The writes of EndpointSlices: which policy slice or node slice must be written next, and the result of a write.

use super::{ClusterState, WRITE_INTERVAL};
use crate::write_queue::Priority;
use beeline_model::Name;
use beeline_model::object::SliceName;
use beeline_model::policy::{PolicyName, PolicySlice};
use beeline_model::publish::NodeSlice;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The next step for the slice writer.
#[derive(Debug)]
pub enum SliceWrite {
    /// Write the slice, or delete it if there is none.
    Write(SliceName, Option<Box<PolicySlice>>),
    /// The slice that was next needs no write. There may be more slices.
    Unchanged,
    Idle,
}

impl ClusterState {
    pub(super) fn enqueue_slice(&mut self, name: SliceName, priority: Priority) {
        if self.leading {
            self.slices.queue.push(name, priority);
        }
    }

    pub(super) fn enqueue_if_different(&mut self, name: &SliceName) {
        let wanted = self.accepted_slice(name);
        if wanted != self.slices.existing(name) {
            let priority = write_priority(wanted.is_some());
            self.enqueue_slice(name.clone(), priority);
        }
    }

    /// The slice that should exist; `None` unless its policy is accepted. Agents do not use slices of other policies,
    /// and publishing them would let anyone who may write policies fill the cluster with slices.
    fn accepted_slice(&self, name: &SliceName) -> Option<&PolicySlice> {
        let slice = self.slices.wanted(name)?;
        let policy = self.policies.get(&slice.policy)?;
        self.evaluate(policy).is_ok().then_some(slice)
    }

    /// The next slice of a priority. Writes have high priority and deletions low priority, so that a pod that moves
    /// between slices is never in none.
    pub fn next_slice(&mut self, priority: Priority, now: Instant) -> SliceWrite {
        if !self.is_current() {
            return SliceWrite::Idle;
        }
        let Some(name) = self.slices.queue.pop(priority, now) else { return SliceWrite::Idle };
        let wanted = self.accepted_slice(&name);
        if wanted == self.slices.existing(&name) {
            self.slices.queue.finish_unchanged(&name);
            return SliceWrite::Unchanged;
        }
        if wanted.is_none() && priority == Priority::High {
            self.slices.queue.requeue(name, Priority::Low);
            return SliceWrite::Unchanged;
        }
        let wanted = wanted.cloned().map(Box::new);
        SliceWrite::Write(name, wanted)
    }

    /// The policy and UID of an existing slice, if this replica does not know that policy.
    pub fn unknown_owner(&self, name: &SliceName) -> Option<(PolicyName, Box<str>)> {
        let slice = self.slices.existing(name)?;
        let known = self.policies.get(&slice.policy).is_some_and(|policy| policy.uid == slice.uid);
        (!known).then(|| (slice.policy.clone(), slice.uid.clone()))
    }

    /// The write was not attempted.
    pub fn requeue_slice(&mut self, name: SliceName, is_write: bool) {
        self.slices.queue.requeue(name, write_priority(is_write));
    }

    /// The write failed and is retried later. Other slices do not wait for it.
    pub fn retry_slice(&mut self, name: SliceName, is_write: bool, max_backoff: Duration) {
        self.slices.queue.retry_later(name, write_priority(is_write), Instant::now(), max_backoff);
    }

    /// The write can never succeed.
    pub fn drop_slice(&mut self, name: &SliceName) {
        self.slices.queue.finish_unchanged(name);
    }

    /// Records a successful write. The watch delivers the same a little later; until then nothing is written twice.
    pub fn record_slice_write(&mut self, name: SliceName, slice: Option<PolicySlice>) {
        match slice {
            Some(slice) => self.slices.set_existing(slice),
            None => self.slices.remove_existing(&name),
        }
        self.enqueue_if_different(&name);
        self.slices.queue.finish(name, Instant::now() + WRITE_INTERVAL);
    }

    pub fn take_dirty_nodes(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.dirty_nodes)
    }

    pub fn mark_node_slice_dirty(&mut self, name: Name) {
        self.dirty_nodes.insert(name);
    }

    pub fn node_slice(&self, name: &str) -> Option<NodeSlice> {
        self.nodes.slice_named(name)
    }
}

fn write_priority(is_write: bool) -> Priority {
    if is_write { Priority::High } else { Priority::Low }
}
