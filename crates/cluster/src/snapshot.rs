//! All objects of a source at one time, and the changes between two snapshots.

use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{
    NamedService, Namespace, Node, Object, Pod, PodName, Service, ServiceRange, Slice, SliceName,
};
use beeline_model::policy::{Policy, PolicyName, PolicySlice};
use beeline_model::refusal::Refusal;
use beeline_model::{Name, ServiceName};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub services: BTreeMap<ServiceName, Service>,
    /// Services that only DNS needs. A name is in `services` or in `named_services`, never in both; the same holds for
    /// slices.
    pub named_services: BTreeMap<ServiceName, NamedService>,
    pub slices: BTreeMap<SliceName, Slice>,
    pub named_slices: BTreeMap<SliceName, Slice>,
    /// By cluster and name.
    pub nodes: BTreeMap<(Name, Name), Node>,
    pub pods: BTreeMap<PodName, Pod>,
    /// By cluster and name.
    pub namespaces: BTreeMap<(Name, Name), Namespace>,
    pub policies: BTreeMap<PolicyName, Policy>,
    pub policy_slices: BTreeMap<SliceName, PolicySlice>,
    /// ServiceCIDR objects by cluster and name.
    pub service_ranges: BTreeMap<(Name, Name), ServiceRange>,
    pub refusals: Vec<Refusal>,
}

impl Snapshot {
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Upsert(object) => self.insert(object),
            Change::Delete(key) => self.remove(&key),
        }
    }

    fn insert(&mut self, object: Object) {
        match object {
            Object::Service(service) => {
                self.named_services.remove(&service.name);
                self.services.insert(service.name.clone(), service);
            }
            Object::NamedService(named) => {
                self.services.remove(&named.name);
                self.named_services.insert(named.name.clone(), named);
            }
            Object::Slice(slice) => {
                self.named_slices.remove(&slice.name);
                self.slices.insert(slice.name.clone(), slice);
            }
            Object::NamedSlice(slice) => {
                self.slices.remove(&slice.name);
                self.named_slices.insert(slice.name.clone(), slice);
            }
            Object::Node(node) => drop(self.nodes.insert((node.cluster.clone(), node.name.clone()), node)),
            Object::Pod(pod) => drop(self.pods.insert(pod.name.clone(), pod)),
            Object::Namespace(one) => drop(self.namespaces.insert((one.cluster.clone(), one.name.clone()), one)),
            Object::Policy(policy) => drop(self.policies.insert(policy.name.clone(), policy)),
            Object::PolicySlice(slice) => drop(self.policy_slices.insert(slice.name.clone(), slice)),
            Object::ServiceRange(range) => {
                self.service_ranges.insert((range.cluster.clone(), range.name.clone()), range);
            }
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        match key {
            ObjectKey::Service(name) => drop((self.services.remove(name), self.named_services.remove(name))),
            ObjectKey::Slice(name) => drop((self.slices.remove(name), self.named_slices.remove(name))),
            ObjectKey::Node { cluster, name } => drop(self.nodes.remove(&(cluster.clone(), name.clone()))),
            ObjectKey::Pod(name) => drop(self.pods.remove(name)),
            ObjectKey::Namespace { cluster, name } => drop(self.namespaces.remove(&(cluster.clone(), name.clone()))),
            ObjectKey::Policy(name) => drop(self.policies.remove(name)),
            ObjectKey::PolicySlice(name) => drop(self.policy_slices.remove(name)),
            ObjectKey::ServiceRange { cluster, name } => {
                self.service_ranges.remove(&(cluster.clone(), name.clone()));
            }
        }
    }

    /// Upserts of all objects.
    pub fn into_changes(self) -> Vec<Change> {
        self.changes().collect()
    }

    /// Upserts of all objects.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.objects().map(Change::Upsert)
    }

    pub fn objects(&self) -> impl Iterator<Item = Object> + '_ {
        let services = self.services.values().cloned().map(Object::Service);
        let services = services.chain(self.named_services.values().cloned().map(Object::NamedService));
        let slices = self.slices.values().cloned().map(Object::Slice);
        let slices = slices.chain(self.named_slices.values().cloned().map(Object::NamedSlice));
        let nodes = self.nodes.values().cloned().map(Object::Node);
        let pods = self.pods.values().cloned().map(Object::Pod);
        let namespaces = self.namespaces.values().cloned().map(Object::Namespace);
        let policies = self.policies.values().cloned().map(Object::Policy);
        let published = self.policy_slices.values().cloned().map(Object::PolicySlice);
        let ranges = self.service_ranges.values().cloned().map(Object::ServiceRange);
        let objects = services.chain(slices).chain(nodes).chain(pods).chain(namespaces).chain(policies);
        objects.chain(published).chain(ranges)
    }
}

/// The changes between two snapshots. Upserts come first and deletions last, so that an object that moved (a slice with
/// a new name) is never missing in between.
pub fn diff(old: &Snapshot, new: &Snapshot) -> Vec<Change> {
    changed_objects(old, new).map(Change::Upsert).chain(deleted_keys(old, new).map(Change::Delete)).collect()
}

fn changed_objects(old: &Snapshot, new: &Snapshot) -> impl Iterator<Item = Object> {
    let services = changed(&old.services, &new.services).cloned().map(Object::Service);
    let named_services = changed(&old.named_services, &new.named_services).cloned().map(Object::NamedService);
    let slices = changed(&old.slices, &new.slices).cloned().map(Object::Slice);
    let named_slices = changed(&old.named_slices, &new.named_slices).cloned().map(Object::NamedSlice);
    let nodes = changed(&old.nodes, &new.nodes).cloned().map(Object::Node);
    let pods = changed(&old.pods, &new.pods).cloned().map(Object::Pod);
    let namespaces = changed(&old.namespaces, &new.namespaces).cloned().map(Object::Namespace);
    let policies = changed(&old.policies, &new.policies).cloned().map(Object::Policy);
    let published = changed(&old.policy_slices, &new.policy_slices).cloned().map(Object::PolicySlice);
    let ranges = changed(&old.service_ranges, &new.service_ranges).cloned().map(Object::ServiceRange);
    let endpoints = services.chain(named_services).chain(slices).chain(named_slices).chain(nodes).chain(pods);
    endpoints.chain(namespaces).chain(policies).chain(published).chain(ranges)
}

fn deleted_keys(old: &Snapshot, new: &Snapshot) -> impl Iterator<Item = ObjectKey> {
    let published = deleted(&old.policy_slices, &new.policy_slices).cloned().map(ObjectKey::PolicySlice);
    let policies = deleted(&old.policies, &new.policies).cloned().map(ObjectKey::Policy);
    // A Service or slice that changed between the two maps is not deleted.
    let slices = deleted(&old.slices, &new.slices).filter(|name| !new.named_slices.contains_key(name));
    let named_slices = deleted(&old.named_slices, &new.named_slices).filter(|name| !new.slices.contains_key(name));
    let slices = slices.chain(named_slices).cloned().map(ObjectKey::Slice);
    let services = deleted(&old.services, &new.services).filter(|name| !new.named_services.contains_key(name));
    let named = deleted(&old.named_services, &new.named_services).filter(|name| !new.services.contains_key(name));
    let services = services.chain(named).cloned().map(ObjectKey::Service);
    let node = |(cluster, name): (Name, Name)| ObjectKey::Node { cluster, name };
    let nodes = deleted(&old.nodes, &new.nodes).cloned().map(node);
    let pods = deleted(&old.pods, &new.pods).cloned().map(ObjectKey::Pod);
    let namespace = |(cluster, name): (Name, Name)| ObjectKey::Namespace { cluster, name };
    let namespaces = deleted(&old.namespaces, &new.namespaces).cloned().map(namespace);
    let range = |(cluster, name): (Name, Name)| ObjectKey::ServiceRange { cluster, name };
    let ranges = deleted(&old.service_ranges, &new.service_ranges).cloned().map(range);
    published.chain(policies).chain(slices).chain(services).chain(nodes).chain(pods).chain(namespaces).chain(ranges)
}

fn changed<'a, K: Ord, V: PartialEq>(old: &BTreeMap<K, V>, new: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a V> {
    new.iter().filter(|(key, value)| old.get(key) != Some(value)).map(|(_, value)| value)
}

fn deleted<'a, K: Ord, V>(old: &'a BTreeMap<K, V>, new: &BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
    old.keys().filter(|key| !new.contains_key(key))
}
