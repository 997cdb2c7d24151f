//! The state of the cluster as the controller knows it, and the writes that follow from it: plain synchronous state
//! behind one lock. The tasks of the controller apply changes to it and take the next write from it.

mod slice_write;

pub use slice_write::SliceWrite;

use crate::address_owner::AddressOwners;
use crate::backend_address::BackendAddresses;
use crate::observed_status::ObservedStatuses;
use crate::pending_changes::PendingChanges;
use crate::policy_slices::PolicySlices;
use crate::policy_target::{PolicyTarget, TargetIndex};
use crate::port_owner::{PortOwners, TargetPort};
use crate::rollout::RolloutTracker;
use crate::settings::{ControllerSettings, Overlap};
use crate::write_queue::{Priority, WriteQueue};
use beeline_model::change::{Change, ObjectKey};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::{Object, Service};
use beeline_model::policy::{Policy, PolicyName, RedirectMode, Target};
use beeline_model::publish::{NodePublisher, NodeSlice, Publisher, UnknownNamespace};
use beeline_model::{Name, ServiceName};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of changes that are applied under one lock, so that other tasks do not wait long for it.
const CHUNK: usize = 256;
/// Minimum time between two writes of one slice. A first change is written at once.
pub(crate) const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// The cluster in the names of all objects.
pub const CLUSTER: &str = LOCAL_CLUSTER;

/// The state, shared by the controller's tasks.
#[derive(Clone)]
pub struct SharedState(Arc<Mutex<ClusterState>>);

impl SharedState {
    pub fn new(settings: &ControllerSettings) -> SharedState {
        SharedState(Arc::new(Mutex::new(ClusterState::new(settings))))
    }

    pub fn with<T>(&self, work: impl FnOnce(&mut ClusterState) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub struct ClusterState {
    pub(crate) virtual_address_cidrs: Vec<IpNet>,
    pub(crate) overlap: Overlap,
    pending: PendingChanges,
    /// Every object has been listed and applied once.
    pub synced: bool,
    /// The error of the watch, if it fails.
    pub error: Option<String>,
    pub(crate) policies: BTreeMap<PolicyName, Policy>,
    pub(crate) services: HashMap<ServiceName, Service>,
    pub(crate) targets: TargetIndex,
    pub(crate) port_owners: PortOwners,
    pub(crate) address_owners: AddressOwners,
    backend_addresses: BackendAddresses,
    /// Targets and ports whose policies must be evaluated again after this batch.
    changed_targets: HashSet<PolicyTarget>,
    changed_ports: HashSet<TargetPort>,
    pub(crate) publisher: Publisher,
    pub(crate) nodes: NodePublisher,
    slices: PolicySlices,
    /// Whether this replica writes. A replica that does not write keeps no queue, and enqueues everything when it
    /// becomes the leader.
    leading: bool,
    dirty_nodes: BTreeSet<Name>,
    pub(crate) dirty_statuses: BTreeSet<PolicyName>,
    pub rollout: RolloutTracker,
    /// The nodes' reports have been listed, or cannot be listed. Before that, no status is written: every policy would be
    /// reported as not programmed after a restart of the controller.
    pub reports_listed: bool,
    pub observed_statuses: ObservedStatuses,
}

/// Numbers for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    pub policies: usize,
    pub slices: usize,
    pub nodes: usize,
    pub unwritten_slices: usize,
    pub failing_slices: usize,
}

impl ClusterState {
    pub fn new(settings: &ControllerSettings) -> ClusterState {
        ClusterState::with_rules(settings.virtual_address_cidrs.clone(), settings.overlap)
    }

    pub(crate) fn with_rules(virtual_address_cidrs: Vec<IpNet>, overlap: Overlap) -> ClusterState {
        ClusterState {
            address_owners: AddressOwners::new(virtual_address_cidrs.clone()),
            virtual_address_cidrs,
            overlap,
            pending: PendingChanges::default(),
            synced: false,
            error: None,
            policies: BTreeMap::new(),
            services: HashMap::new(),
            targets: TargetIndex::default(),
            port_owners: PortOwners::default(),
            backend_addresses: BackendAddresses::default(),
            changed_targets: HashSet::new(),
            changed_ports: HashSet::new(),
            publisher: Publisher::new(UnknownNamespace::Pending),
            nodes: NodePublisher::default(),
            slices: PolicySlices::default(),
            leading: false,
            dirty_nodes: BTreeSet::new(),
            dirty_statuses: BTreeSet::new(),
            rollout: RolloutTracker::default(),
            reports_listed: false,
            observed_statuses: ObservedStatuses::default(),
        }
    }

    /// Takes over the node slices of an earlier run. Must be called before the first change.
    pub fn adopt_nodes(&mut self, slices: &[NodeSlice]) {
        slices.iter().for_each(|slice| self.nodes.adopt(slice));
    }

    /// Adds changes to be applied by `advance`. Nothing may be written before the list is `complete`: with only a part
    /// of the pods, published slices would be emptied. See [`PendingChanges::push`].
    pub fn push(&mut self, changes: Vec<Change>, listed: bool, complete: bool) {
        self.pending.push(changes, listed, complete);
    }

    /// Applies some pending changes and returns whether there are more. The caller releases the lock in between.
    pub fn advance(&mut self) -> bool {
        if !self.pending.is_listed() {
            return false;
        }
        for _ in 0..CHUNK {
            let Some(change) = self.pending.pop() else { break };
            self.apply(change);
        }
        if !self.pending.is_empty() {
            return true;
        }
        self.finish_batch();
        self.synced |= self.pending.is_complete();
        false
    }

    /// Nothing may be written from a batch that is only partly applied.
    pub fn is_current(&self) -> bool {
        self.synced && self.pending.is_empty()
    }

    fn apply(&mut self, change: Change) {
        let addresses = self.address_owners.apply(&change);
        self.rollout.apply(&change, Instant::now());
        self.publisher.apply(&change);
        self.nodes.apply(&change);
        match change {
            Change::Upsert(Object::Policy(policy)) => self.upsert_policy(policy),
            Change::Delete(ObjectKey::Policy(name)) => self.remove_policy(&name),
            Change::Upsert(Object::Service(service)) => {
                let name = service.name.clone();
                self.services.insert(name.clone(), service);
                self.on_target_change(PolicyTarget::Service(name));
            }
            Change::Delete(ObjectKey::Service(name)) => {
                self.services.remove(&name);
                self.on_target_change(PolicyTarget::Service(name));
            }
            Change::Upsert(Object::PolicySlice(slice)) => {
                let name = slice.name.clone();
                self.publisher.adopt(&slice);
                self.slices.set_existing(slice);
                self.enqueue_if_different(&name);
            }
            Change::Delete(ObjectKey::PolicySlice(name)) => {
                self.slices.remove_existing(&name);
                self.enqueue_if_different(&name);
            }
            _ => {}
        }
        addresses.into_iter().for_each(|address| self.on_target_change(PolicyTarget::Address(address)));
    }

    fn upsert_policy(&mut self, policy: Policy) {
        let before = self.policies.get(&policy.name);
        if before == Some(&policy) {
            return;
        }
        if before.is_some_and(|before| before.matcher == policy.matcher && before.created == policy.created) {
            before.into_iter().for_each(|before| self.backend_addresses.remove(before));
        } else {
            self.remove_policy(&policy.name);
            self.targets.insert(&policy);
        }
        self.backend_addresses.insert(&policy);
        self.mark_policy_dirty(&policy.name);
        let (name, target) = (policy.name.clone(), PolicyTarget::of(&policy));
        self.policies.insert(name.clone(), policy);
        self.update_port_owners(&name);
        self.on_frontend_change(&target);
    }

    fn remove_policy(&mut self, name: &PolicyName) {
        let Some(policy) = self.policies.remove(name) else { return };
        self.targets.remove(&policy);
        self.backend_addresses.remove(&policy);
        self.changed_ports.extend(self.port_owners.remove(name));
        self.mark_policy_dirty(name);
        self.on_frontend_change(&PolicyTarget::of(&policy));
    }

    /// Whether an address is a frontend may have changed.
    fn on_frontend_change(&mut self, target: &PolicyTarget) {
        let PolicyTarget::Address(address) = target else { return };
        let names: Vec<PolicyName> = self.backend_addresses.policies_with(*address).cloned().collect();
        for name in names {
            self.update_port_owners(&name);
            self.mark_policy_dirty(&name);
        }
    }

    fn update_port_owners(&mut self, name: &PolicyName) {
        let Some(policy) = self.policies.get(name) else { return };
        let ports = self.claimed_ports(policy);
        self.changed_ports.extend(self.port_owners.set(policy, ports));
    }

    /// What policies match has changed: a Service, or the owner of an address.
    fn on_target_change(&mut self, target: PolicyTarget) {
        let names: Vec<PolicyName> = self.targets.policies_at(&target).cloned().collect();
        names.iter().for_each(|name| self.update_port_owners(name));
        self.on_frontend_change(&target);
        self.changed_targets.insert(target);
    }

    /// Called after the last change of a batch: marks what must be written.
    fn finish_batch(&mut self) {
        if self.leading {
            self.dirty_statuses.extend(self.publisher.dirty().cloned());
        }
        for change in self.publisher.take_changes() {
            match change {
                Change::Upsert(Object::PolicySlice(slice)) => {
                    let name = slice.name.clone();
                    self.slices.set_wanted(slice);
                    self.enqueue_slice(name, Priority::High);
                }
                Change::Delete(ObjectKey::PolicySlice(name)) => {
                    self.slices.remove_wanted(&name);
                    self.enqueue_slice(name, Priority::Low);
                }
                _ => {}
            }
        }
        let targets = std::mem::take(&mut self.changed_targets);
        let ports = std::mem::take(&mut self.changed_ports);
        let names = targets.iter().flat_map(|target| self.targets.policies_at(target));
        let names = names.chain(ports.iter().flat_map(|port| self.port_owners.policies_at(port)));
        let names: HashSet<PolicyName> = names.cloned().collect();
        names.iter().for_each(|name| self.mark_policy_dirty(name));
        let changed_nodes = self.nodes.take_changed();
        if self.leading && !changed_nodes.is_empty() {
            self.dirty_nodes.extend(changed_nodes);
            let leads_to_nodes = |policy: &&Policy| {
                matches!(policy.target, Target::Pods { mode: RedirectMode::HostPort | RedirectMode::NodeProxy, .. })
            };
            let names = self.policies.values().filter(leads_to_nodes).map(|policy| policy.name.clone());
            self.dirty_statuses.extend(names);
        }
    }

    /// The status of a policy and its slices must be compared again.
    fn mark_policy_dirty(&mut self, name: &PolicyName) {
        if self.leading {
            self.dirty_statuses.insert(name.clone());
            self.slices.enqueue_policy(name);
        }
    }

    pub fn mark_status_dirty(&mut self, name: PolicyName) {
        if self.leading {
            self.dirty_statuses.insert(name);
        }
    }

    pub fn mark_all_statuses_dirty(&mut self) {
        self.dirty_statuses.extend(self.policies.keys().cloned());
    }

    /// This replica becomes the leader: everything is compared.
    pub fn start_leading(&mut self) {
        self.leading = true;
        self.slices.enqueue_all();
        self.dirty_nodes.extend(self.nodes.slices().map(|slice| slice.name));
        self.mark_all_statuses_dirty();
    }

    pub fn stop_leading(&mut self) {
        self.leading = false;
        self.slices.queue = WriteQueue::default();
        self.dirty_nodes.clear();
        self.dirty_statuses.clear();
    }

    pub fn policy(&self, name: &PolicyName) -> Option<&Policy> {
        self.policies.get(name)
    }

    pub fn counts(&self) -> StateCounts {
        let (waiting, failing_slices) = self.slices.queue.len();
        StateCounts {
            policies: self.policies.len(),
            slices: self.slices.wanted_count(),
            nodes: self.rollout.node_count(),
            unwritten_slices: waiting + self.dirty_nodes.len(),
            failing_slices,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
