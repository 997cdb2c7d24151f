//! What all generators of random clusters share: the current objects of a cluster, and random choices.

use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::*;
use beeline_model::planner::Planner;
use beeline_model::policy::{Policy, PolicyName, PolicySlice};
use beeline_model::{Address, Name, ServiceName};
use fastrand::Rng;
use ipnet::IpNet;
use std::collections::BTreeMap;

pub fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::IpAddr>().expect("an address"))
}

pub fn net(text: &str) -> IpNet {
    text.parse().expect("a range")
}

/// The current objects of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub services: BTreeMap<ServiceName, Service>,
    pub slices: BTreeMap<SliceName, Slice>,
    pub nodes: BTreeMap<Name, Node>,
    pub pods: BTreeMap<PodName, Pod>,
    pub policies: BTreeMap<PolicyName, Policy>,
    pub policy_slices: BTreeMap<SliceName, PolicySlice>,
    /// The last known ranges of each ServiceCIDR object that were not empty. They are kept when the object is deleted.
    pub ranges: BTreeMap<Name, Box<[IpNet]>>,
    /// Cgroup ids by pod UID. They are no objects of the cluster, but found on the node.
    pub cgroups: BTreeMap<&'static str, u64>,
}

impl Objects {
    pub fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::Upsert(object) => self.upsert(object),
            Change::Delete(key) => self.delete(&key),
        }
    }

    fn upsert(&mut self, object: Object) {
        match object {
            Object::Service(service) => drop(self.services.insert(service.name.clone(), service)),
            Object::Slice(slice) => drop(self.slices.insert(slice.name.clone(), slice)),
            Object::Node(node) => drop(self.nodes.insert(node.name.clone(), node)),
            Object::Pod(pod) => drop(self.pods.insert(pod.name.clone(), pod)),
            Object::Policy(policy) => drop(self.policies.insert(policy.name.clone(), policy)),
            Object::PolicySlice(slice) => drop(self.policy_slices.insert(slice.name.clone(), slice)),
            Object::ServiceRange(range) if range.ranges.is_empty() => {}
            Object::ServiceRange(range) => drop(self.ranges.insert(range.name, range.ranges)),
            other => unreachable!("no generator makes such an object: {other:?}"),
        }
    }

    fn delete(&mut self, key: &ObjectKey) {
        match key {
            ObjectKey::Service(name) => drop(self.services.remove(name)),
            ObjectKey::Slice(name) => drop(self.slices.remove(name)),
            ObjectKey::Node { name, .. } => drop(self.nodes.remove(name)),
            ObjectKey::Pod(name) => drop(self.pods.remove(name)),
            ObjectKey::Policy(name) => drop(self.policies.remove(name)),
            ObjectKey::PolicySlice(name) => drop(self.policy_slices.remove(name)),
            ObjectKey::ServiceRange { .. } => {}
            ObjectKey::Namespace { .. } => unreachable!("no generator makes namespaces"),
        }
    }

    /// All objects of the cluster with this name, as a source would list them.
    pub fn upserts(&self, cluster: &str) -> Vec<Change> {
        let ranges = self.ranges.iter().map(|(name, ranges)| {
            let (cluster, name, ranges) = (cluster.into(), name.clone(), ranges.clone());
            Object::ServiceRange(ServiceRange { cluster, name, ranges })
        });
        let nodes = self.nodes.values().cloned().map(Object::Node);
        let services = self.services.values().cloned().map(Object::Service);
        let slices = self.slices.values().cloned().map(Object::Slice);
        let pods = self.pods.values().cloned().map(Object::Pod);
        let policies = self.policies.values().cloned().map(Object::Policy);
        let policy_slices = self.policy_slices.values().cloned().map(Object::PolicySlice);
        let objects = ranges.chain(nodes).chain(services).chain(slices).chain(pods).chain(policies);
        objects.chain(policy_slices).map(Change::Upsert).collect()
    }

    /// Applies all objects and cgroups to a new planner.
    pub fn apply_all(&self, cluster: &str, planner: &mut Planner) {
        self.upserts(cluster).into_iter().for_each(|change| _ = planner.apply(change));
        self.cgroups.iter().for_each(|(uid, id)| _ = planner.set_cgroup(uid, Some(*id)));
    }
}

/// Random choices.
pub trait Generator {
    fn rng(&mut self) -> &mut Rng;

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng().usize(..all.len())]
    }

    fn one_in(&mut self, n: u8) -> bool {
        self.rng().u8(..n) == 0
    }

    /// Up to `most` of the addresses, possibly with duplicates.
    fn addresses(&mut self, all: &[&str], most: usize) -> Vec<Address> {
        (0..self.rng().usize(..=most)).map(|_| address(self.pick(all))).collect()
    }
}
