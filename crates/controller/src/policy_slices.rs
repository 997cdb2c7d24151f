//! The EndpointSlices that carry the backends of policies: those that should exist, those that exist, and the queue of
//! slices to compare and write.

use crate::write_queue::{Priority, WriteQueue};
use beeline_model::object::SliceName;
use beeline_model::policy::{PolicyName, PolicySlice};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Debug, Default)]
pub struct PolicySlices {
    /// The slices that should exist, if their policy is accepted.
    wanted: BTreeMap<SliceName, PolicySlice>,
    /// The slices on the API server, as far as the watch has delivered them.
    existing: BTreeMap<SliceName, PolicySlice>,
    wanted_by_policy: HashMap<PolicyName, BTreeSet<SliceName>>,
    pub queue: WriteQueue<SliceName>,
}

impl PolicySlices {
    pub fn set_wanted(&mut self, slice: PolicySlice) {
        let name = slice.name.clone();
        self.wanted_by_policy.entry(slice.policy.clone()).or_default().insert(name.clone());
        self.wanted.insert(name, slice);
    }

    pub fn remove_wanted(&mut self, name: &SliceName) {
        let Some(slice) = self.wanted.remove(name) else { return };
        let Some(names) = self.wanted_by_policy.get_mut(&slice.policy) else { return };
        names.remove(name);
        if names.is_empty() {
            self.wanted_by_policy.remove(&slice.policy);
        }
    }

    pub fn set_existing(&mut self, slice: PolicySlice) {
        self.existing.insert(slice.name.clone(), slice);
    }

    pub fn remove_existing(&mut self, name: &SliceName) {
        self.existing.remove(name);
    }

    pub fn wanted(&self, name: &SliceName) -> Option<&PolicySlice> {
        self.wanted.get(name)
    }

    pub fn existing(&self, name: &SliceName) -> Option<&PolicySlice> {
        self.existing.get(name)
    }

    pub fn wanted_count(&self) -> usize {
        self.wanted.len()
    }

    /// Enqueues the wanted slices of a policy.
    pub fn enqueue_policy(&mut self, policy: &PolicyName) {
        for name in self.wanted_by_policy.get(policy).into_iter().flatten() {
            self.queue.push(name.clone(), Priority::High);
        }
    }

    /// Enqueues every slice that exists or should exist.
    pub fn enqueue_all(&mut self) {
        let names = self.wanted.keys().chain(self.existing.keys());
        names.for_each(|name| self.queue.push(name.clone(), Priority::High));
    }
}
