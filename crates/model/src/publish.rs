//! Computes the slices that publish the pods of BalancingPolicies: policies, pods and namespaces in, `PolicySlice`s
//! out. Synchronous state of one cluster without a client. The controller writes the slices to the API server; an agent
//! without a controller passes them to its own planner.
//!
//! The cost is proportional to the change. A changed pod is checked against the policies that may select it (by
//! namespace and label) and those that already hold it; a changed namespace against the policies with a
//! namespaceSelector; a changed policy against the pods of its namespaces.

mod node;
mod pod_backend;
mod policy_lookup;
mod slice_packer;

use crate::address::Family;
use crate::change::{Change, ObjectKey};
use crate::hash::HashMap;
use crate::name::Name;
use crate::object::{Endpoint, Namespace, Object, Pod, PodName, SliceName};
use crate::policy::{Policy, PolicyName, PolicySlice, Target};
use crate::selector::Labels;
pub use node::{NodeAddress, NodeEndpoint, NodePublisher, NodeSlice};
pub use pod_backend::PodProblem;
use pod_backend::{SliceGroup, pod_backend};
use policy_lookup::{PolicyLookup, selectors};
pub use slice_packer::MAX_ENDPOINTS_PER_SLICE;
use slice_packer::SlicePacker;
use std::collections::{BTreeMap, BTreeSet};

/// The label that every namespace has.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// How a namespace that was not received is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownNamespace {
    /// An API server will send it soon. Until then no namespaceSelector matches it.
    Pending,
    /// A folder of manifests may leave it out. It has only the label of its name.
    Unlabelled,
}

#[derive(Debug)]
struct Entry {
    policy: Policy,
    slices: SlicePacker<SliceGroup, (PodName, Family), Endpoint>,
    /// The pods that are published. The pods of a LocalRedirectPolicy are only counted.
    published_pods: BTreeSet<PodName>,
    skipped: BTreeMap<PodName, PodProblem>,
    /// The numbers of the slices in which an earlier process published these endpoints.
    earlier_slices: HashMap<(crate::address::Address, Family), u32>,
}

/// An existing slice and the number in its name.
type Numbered = (u32, PolicySlice);

#[derive(Debug)]
pub struct Publisher {
    unknown_namespace: UnknownNamespace,
    policies: HashMap<PolicyName, Entry>,
    /// Ready pods only, because other pods are never published.
    pods: HashMap<PodName, Pod>,
    by_namespace: HashMap<Name, BTreeSet<PodName>>,
    namespaces: HashMap<Name, Labels>,
    scopes: PolicyLookup,
    /// Policies with a namespaceSelector.
    with_namespace_selector: BTreeSet<PolicyName>,
    /// The policies that hold a pod or skip it.
    holders: HashMap<PodName, BTreeSet<PolicyName>>,
    /// Slices of an earlier process, by policy and UID. Dropped after the first `take_changes`.
    adopted: HashMap<(PolicyName, Box<str>), Vec<Numbered>>,
    dirty: BTreeSet<PolicyName>,
    deleted: BTreeSet<SliceName>,
    /// The slices that were returned by `take_changes` and still exist.
    returned_slices: BTreeSet<SliceName>,
}

impl Publisher {
    pub fn new(unknown_namespace: UnknownNamespace) -> Publisher {
        Publisher {
            unknown_namespace,
            policies: HashMap::default(),
            pods: HashMap::default(),
            by_namespace: HashMap::default(),
            namespaces: HashMap::default(),
            scopes: PolicyLookup::default(),
            with_namespace_selector: BTreeSet::new(),
            holders: HashMap::default(),
            adopted: HashMap::default(),
            dirty: BTreeSet::new(),
            deleted: BTreeSet::new(),
            returned_slices: BTreeSet::new(),
        }
    }

    /// Adds a slice that an earlier process published. Must be called before any change is applied. The endpoints keep
    /// their slices.
    pub fn adopt(&mut self, slice: &PolicySlice) {
        let prefix = slice_prefix(&slice.policy.name, &slice.uid);
        let number = slice.name.name.strip_prefix(&*prefix).and_then(|number| number.parse().ok());
        if let Some(number) = number {
            let key = (slice.policy.clone(), slice.uid.clone());
            self.adopted.entry(key).or_default().push((number, slice.clone()));
        }
    }

    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Upsert(Object::Policy(policy)) => self.apply_policy(policy),
            Change::Delete(ObjectKey::Policy(name)) => self.remove_policy(name),
            Change::Upsert(Object::Pod(pod)) if pod.ready && !pod.addresses.is_empty() => self.apply_pod(pod),
            Change::Upsert(Object::Pod(pod)) => self.remove_pod(&pod.name),
            Change::Delete(ObjectKey::Pod(name)) => self.remove_pod(name),
            Change::Upsert(Object::Namespace(namespace)) => self.apply_namespace(namespace),
            Change::Delete(ObjectKey::Namespace { name, .. }) => self.remove_namespace(name),
            _ => {}
        }
    }

    /// The changes since the last call: first the slices that are new or modified, then the deleted ones.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.adopted = HashMap::default();
        let (mut changes, mut deleted) = (Vec::new(), std::mem::take(&mut self.deleted));
        for name in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.policies.get_mut(&name) else { continue };
            entry.earlier_slices = HashMap::default();
            for number in entry.slices.take_changed() {
                let name = slice_name(&entry.policy, number);
                match entry.slice(number) {
                    // Without UIDs, a policy that was deleted and created again has slices of the same names.
                    Some(slice) => {
                        deleted.remove(&name);
                        self.returned_slices.insert(name);
                        changes.push(Change::Upsert(Object::PolicySlice(slice)));
                    }
                    None => drop(deleted.insert(name)),
                }
            }
        }
        changes.extend(
            deleted
                .into_iter()
                .filter(|name| self.returned_slices.remove(name))
                .map(ObjectKey::PolicySlice)
                .map(Change::Delete),
        );
        changes
    }

    /// All slices in their current state.
    pub fn slices(&self) -> impl Iterator<Item = PolicySlice> {
        self.policies.values().flat_map(Entry::all)
    }

    /// The slices of one policy in their current state.
    pub fn slices_of(&self, policy: &PolicyName) -> impl Iterator<Item = PolicySlice> {
        self.policies.get(policy).into_iter().flat_map(Entry::all)
    }

    /// The number of backends of a policy in the family that has most: ready selected pods that the redirect mode can
    /// reach, or fixed addresses. `families` are those of the frontend. `is_reachable` tells whether the node of a published
    /// pod has the address that the redirect mode needs. Agents count in the same way (`plan::policy::backend_count`).
    pub fn backends(
        &self,
        policy: &PolicyName,
        families: &[Family],
        is_reachable: impl Fn(&Endpoint, Family) -> bool,
    ) -> usize {
        let Some(entry) = self.policies.get(policy) else { return 0 };
        let count = |family: Family| match &entry.policy.target {
            Target::Addresses { addresses, .. } => addresses.iter().filter(|a| a.family() == family).count(),
            Target::LocalPods { .. } => {
                let pods = entry.published_pods.iter().filter_map(|name| self.pods.get(name));
                pods.filter(|pod| pod.addresses.iter().any(|address| address.family() == family)).count()
            }
            Target::Pods { .. } => entry.endpoints(family).filter(|endpoint| is_reachable(endpoint, family)).count(),
        };
        families.iter().map(|family| count(*family)).max().unwrap_or(0)
    }

    /// Ready selected pods that the redirect mode cannot reach.
    pub fn skipped(&self, policy: &PolicyName) -> impl Iterator<Item = (&PodName, &PodProblem)> {
        self.policies.get(policy).into_iter().flat_map(|entry| entry.skipped.iter())
    }

    /// Policies whose backends may have changed since the last `take_changes`.
    pub fn dirty(&self) -> impl Iterator<Item = &PolicyName> {
        self.dirty.iter()
    }

    fn apply_policy(&mut self, policy: &Policy) {
        if self.policies.get(&policy.name).is_some_and(|entry| entry.policy == *policy) {
            return;
        }
        let same = |entry: &Entry| entry.policy.uid == policy.uid;
        let kept = self.policies.get(&policy.name).is_some_and(same);
        let held = self.unindex_policy(&policy.name, kept);
        self.scopes.insert(policy);
        if matches!(&policy.target, Target::Pods { namespaces: Some(_), .. }) {
            self.with_namespace_selector.insert(policy.name.clone());
        }
        if !kept {
            let adopted = self.adopted.remove(&(policy.name.clone(), policy.uid.clone())).unwrap_or_default();
            self.policies.insert(policy.name.clone(), Entry::new(policy.clone(), adopted));
        } else if let Some(entry) = self.policies.get_mut(&policy.name) {
            entry.policy = policy.clone();
        }
        self.dirty.insert(policy.name.clone());
        for pod in self.candidates(policy).into_iter().chain(held).collect::<BTreeSet<_>>() {
            self.update(&policy.name, &pod);
        }
    }

    fn remove_policy(&mut self, name: &PolicyName) {
        self.unindex_policy(name, false);
    }

    /// Removes the policy from the indexes and returns the pods that it held. With `keep`, its slices stay and are
    /// updated later.
    fn unindex_policy(&mut self, name: &PolicyName, keep: bool) -> BTreeSet<PodName> {
        let Some(entry) = self.policies.get_mut(name) else { return BTreeSet::new() };
        self.scopes.remove(&entry.policy);
        self.with_namespace_selector.remove(name);
        let held: BTreeSet<PodName> = entry.published_pods.iter().chain(entry.skipped.keys()).cloned().collect();
        if !keep {
            // Includes the slices that were removed since the last `take_changes`.
            let numbers: Vec<u32> = entry.slices.take_changed().into_iter().chain(entry.slices.numbers()).collect();
            self.deleted.extend(numbers.into_iter().map(|number| slice_name(&entry.policy, number)));
            self.policies.remove(name);
            held.iter().for_each(|pod| self.release(name, pod));
        }
        held
    }

    fn candidates(&self, policy: &Policy) -> Vec<PodName> {
        let Some((selector, namespaces)) = selectors(&policy.target) else { return Vec::new() };
        let all = match namespaces {
            None => self.by_namespace.get_key_value(&policy.name.namespace).into_iter().collect::<Vec<_>>(),
            Some(_) => self.by_namespace.iter().collect(),
        };
        let pods = all.into_iter().flat_map(|(_, pods)| pods);
        pods.filter(|pod| self.pods.get(*pod).is_some_and(|pod| selector.matches(&pod.labels))).cloned().collect()
    }

    fn apply_pod(&mut self, pod: &Pod) {
        if self.pods.get(&pod.name).is_some_and(|known| is_same(known, pod)) {
            return;
        }
        let lean = Pod { containers: [].into(), ..pod.clone() };
        self.by_namespace.entry(pod.name.namespace.clone()).or_default().insert(pod.name.clone());
        self.pods.insert(pod.name.clone(), lean);
        self.update_pod(&pod.name);
    }

    fn remove_pod(&mut self, name: &PodName) {
        if self.pods.remove(name).is_none() {
            return;
        }
        if let Some(pods) = self.by_namespace.get_mut(&name.namespace) {
            pods.remove(name);
            if pods.is_empty() {
                self.by_namespace.remove(&name.namespace);
            }
        }
        self.update_pod(name);
    }

    fn update_pod(&mut self, name: &PodName) {
        let mut affected = self.holders.get(name).cloned().unwrap_or_default();
        affected.extend(self.pods.get(name).map(|pod| self.scopes.of_pod(pod)).unwrap_or_default());
        affected.iter().for_each(|policy| self.update(policy, name));
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &Name> {
        self.namespaces.keys()
    }

    fn apply_namespace(&mut self, namespace: &Namespace) {
        if self.namespaces.get(&namespace.name) != Some(&namespace.labels) {
            self.namespaces.insert(namespace.name.clone(), namespace.labels.clone());
            self.update_namespace(&namespace.name);
        }
    }

    fn remove_namespace(&mut self, name: &Name) {
        if self.namespaces.remove(name).is_some() {
            self.update_namespace(name);
        }
    }

    fn update_namespace(&mut self, name: &Name) {
        let pods: Vec<PodName> = self.by_namespace.get(name).into_iter().flatten().cloned().collect();
        for policy in self.with_namespace_selector.clone() {
            pods.iter().for_each(|pod| self.update(&policy, pod));
        }
    }

    fn selects(&self, policy: &Policy, pod: &Pod) -> bool {
        let Some((selector, namespaces)) = selectors(&policy.target) else { return false };
        let namespace = &pod.name.namespace;
        let inside = match namespaces {
            None => *namespace == policy.name.namespace,
            Some(wanted) => self.namespace_labels(namespace).is_some_and(|labels| wanted.matches(&labels)),
        };
        inside && selector.matches(&pod.labels)
    }

    fn namespace_labels(&self, name: &Name) -> Option<Labels> {
        let known = self.namespaces.get(name).cloned();
        let mut labels =
            known.or_else(|| (self.unknown_namespace == UnknownNamespace::Unlabelled).then(Labels::new))?;
        labels.insert(NAMESPACE_NAME.into(), name.clone());
        Some(labels)
    }

    /// Updates what one policy publishes of one pod.
    fn update(&mut self, policy: &PolicyName, pod: &PodName) {
        let Some(entry) = self.policies.get(policy) else { return };
        let known = self.pods.get(pod).filter(|pod| self.selects(&entry.policy, pod));
        let backend = known.map(|known| pod_backend(&entry.policy, known));
        let Some(entry) = self.policies.get_mut(policy) else { return };
        if !entry.set_backend(pod, backend) {
            return;
        }
        let holds = entry.published_pods.contains(pod) || entry.skipped.contains_key(pod);
        self.dirty.insert(policy.clone());
        if holds {
            self.holders.entry(pod.clone()).or_default().insert(policy.clone());
        } else {
            self.release(policy, pod);
        }
    }

    fn release(&mut self, policy: &PolicyName, pod: &PodName) {
        if let Some(holders) = self.holders.get_mut(pod) {
            holders.remove(policy);
            if holders.is_empty() {
                self.holders.remove(pod);
            }
        }
    }
}

impl Entry {
    fn new(policy: Policy, adopted: Vec<(u32, PolicySlice)>) -> Entry {
        let slices = adopted.iter().flat_map(|(number, slice)| {
            slice.endpoints.iter().map(|endpoint| ((endpoint.address, slice.family), *number))
        });
        let earlier_slices = slices.collect();
        Entry {
            policy,
            slices: SlicePacker::default(),
            published_pods: BTreeSet::new(),
            skipped: BTreeMap::new(),
            earlier_slices,
        }
    }

    /// Returns whether anything may have changed.
    fn set_backend(&mut self, pod: &PodName, backend: Option<Result<Vec<(SliceGroup, Endpoint)>, PodProblem>>) -> bool {
        let endpoints = match backend {
            None => {
                let held = self.skipped.remove(pod).is_some() | self.published_pods.remove(pod);
                self.remove_other_families(pod, &[]);
                return held;
            }
            Some(Err(why)) => {
                self.published_pods.remove(pod);
                self.skipped.insert(pod.clone(), why);
                self.remove_other_families(pod, &[]);
                return true;
            }
            Some(Ok(endpoints)) => endpoints,
        };
        self.skipped.remove(pod);
        self.published_pods.insert(pod.clone());
        if matches!(self.policy.target, Target::Pods { .. }) {
            self.remove_other_families(pod, &endpoints);
            for (group, endpoint) in endpoints {
                let earlier = self.earlier_slices.get(&(endpoint.address, group.family)).copied();
                self.slices.insert((pod.clone(), group.family), &group, endpoint, earlier);
            }
        }
        true
    }

    /// Removes the pod from the families in which it is no longer published.
    fn remove_other_families(&mut self, pod: &PodName, endpoints: &[(SliceGroup, Endpoint)]) {
        for family in Family::BOTH {
            if !endpoints.iter().any(|(group, _)| group.family == family) {
                self.slices.remove(&(pod.clone(), family));
            }
        }
    }

    fn endpoints(&self, family: Family) -> impl Iterator<Item = &Endpoint> {
        let slices = self.slices.numbers().filter_map(|number| self.slices.get(number));
        slices.filter(move |slice| slice.group.family == family).flat_map(|slice| slice.members.values())
    }

    fn all(&self) -> impl Iterator<Item = PolicySlice> {
        self.slices.numbers().filter_map(|number| self.slice(number))
    }

    fn slice(&self, number: u32) -> Option<PolicySlice> {
        let packed = self.slices.get(number)?;
        Some(PolicySlice {
            name: slice_name(&self.policy, number),
            policy: self.policy.name.clone(),
            uid: self.policy.uid.clone(),
            shape: packed.group.shape,
            family: packed.group.family,
            ports: packed.group.ports.clone(),
            endpoints: packed.members.values().cloned().collect(),
        })
    }
}

/// Compares only the fields that matter here.
fn is_same(a: &Pod, b: &Pod) -> bool {
    a.addresses == b.addresses && a.node == b.node && a.labels == b.labels && a.ports == b.ports
}

/// A policy that is deleted and created again has slices of other names. The garbage collector, which deletes the old
/// slices, therefore never deletes the new ones.
fn slice_prefix(policy: &str, uid: &str) -> String {
    let tag: String = uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    if tag.is_empty() { format!("{policy}-") } else { format!("{policy}-{}-", tag.to_ascii_lowercase()) }
}

fn slice_name(policy: &Policy, number: u32) -> SliceName {
    SliceName {
        cluster: policy.name.cluster.clone(),
        namespace: policy.name.namespace.clone(),
        name: format!("{}{number}", slice_prefix(&policy.name.name, &policy.uid)).into(),
    }
}
