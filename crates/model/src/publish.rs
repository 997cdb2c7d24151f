//! What a BalancingPolicy's pods are published as: policies, pods and namespaces in, PolicySlices out. Plain synchronous
//! state of one cluster, no client in sight: the controller writes the slices to the API server, an agent without a
//! controller gives them to its own planner.
//!
//! Cost follows the change. A pod's change asks the policies that could choose it (by namespace and label) and those that
//! hold it; a namespace's the policies with a namespaceSelector; a policy's the pods of its namespaces.

mod choose;
mod node;
mod pack;
mod scope;

use crate::address::Family;
use crate::fact::{Endpoint, Fact, Namespace, Pod, PodName, SliceName};
use crate::hash::HashMap;
use crate::name::Name;
use crate::policy::{Policy, PolicyName, PolicySlice, Target};
use crate::selector::Labels;
pub use choose::LeftOut;
use choose::{Group, choose};
pub use node::{NodeAddress, NodeEndpoint, NodePublisher, NodeSlice};
use pack::Pack;
pub use pack::ROOM;
use scope::{Scopes, selectors};
use std::collections::{BTreeMap, BTreeSet};

/// The label that every namespace has.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// What an unknown namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Not heard of yet (an API server tells of it soon): no namespaceSelector holds for it.
    Waits,
    /// Without labels of its own (a folder may leave it out).
    Plain,
}

#[derive(Debug)]
struct Entry {
    policy: Policy,
    slices: Pack<Group, (PodName, Family), Endpoint>,
    /// Pods that are published, or would be: a LocalRedirectPolicy's are only counted.
    chosen: BTreeSet<PodName>,
    left_out: BTreeMap<PodName, LeftOut>,
    /// Numbers of the slices in which an earlier run of ours left these endpoints.
    earlier: HashMap<(crate::address::Address, Family), u32>,
}

/// A slice that was there before, and the number in its name.
type Numbered = (u32, PolicySlice);

#[derive(Debug)]
pub struct Publisher {
    unknown: Unknown,
    policies: HashMap<PolicyName, Entry>,
    /// Ready ones only: nobody else is ever chosen.
    pods: HashMap<PodName, Pod>,
    by_namespace: HashMap<Name, BTreeSet<PodName>>,
    namespaces: HashMap<Name, Labels>,
    scopes: Scopes,
    /// Policies with a namespaceSelector.
    wide: BTreeSet<PolicyName>,
    /// Who holds a pod, or has left it out.
    holders: HashMap<PodName, BTreeSet<PolicyName>>,
    /// By policy and uid; forgotten with the first answer.
    adopted: HashMap<(PolicyName, Box<str>), Vec<Numbered>>,
    dirty: BTreeSet<PolicyName>,
    gone: BTreeSet<SliceName>,
    /// Slices that whoever asks knows of.
    told: BTreeSet<SliceName>,
}

impl Publisher {
    pub fn new(unknown: Unknown) -> Publisher {
        Publisher {
            unknown,
            policies: HashMap::default(),
            pods: HashMap::default(),
            by_namespace: HashMap::default(),
            namespaces: HashMap::default(),
            scopes: Scopes::default(),
            wide: BTreeSet::new(),
            holders: HashMap::default(),
            adopted: HashMap::default(),
            dirty: BTreeSet::new(),
            gone: BTreeSet::new(),
            told: BTreeSet::new(),
        }
    }

    /// What an earlier run published, told before everything else: who stands in a slice stays in it.
    pub fn adopt(&mut self, slice: &PolicySlice) {
        let prefix = slice_prefix(&slice.policy.name, &slice.uid);
        let number = slice.name.name.strip_prefix(&*prefix).and_then(|number| number.parse().ok());
        if let Some(number) = number {
            let key = (slice.policy.clone(), slice.uid.clone());
            self.adopted.entry(key).or_default().push((number, slice.clone()));
        }
    }

    pub fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::Policy(policy) => self.apply_policy(policy),
            Fact::PolicyGone(name) => self.remove_policy(name),
            Fact::Pod(pod) if pod.ready && !pod.addresses.is_empty() => self.apply_pod(pod),
            Fact::Pod(pod) => self.remove_pod(&pod.name),
            Fact::PodGone(name) => self.remove_pod(name),
            Fact::Namespace(namespace) => self.apply_namespace(namespace),
            Fact::NamespaceGone { name, .. } => self.remove_namespace(name),
            _ => {}
        }
    }

    /// What differs since it was last asked, as facts: slices that are new or other first, those that are gone last.
    pub fn take(&mut self) -> Vec<Fact> {
        self.adopted = HashMap::default();
        let (mut facts, mut gone) = (Vec::new(), std::mem::take(&mut self.gone));
        for name in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.policies.get_mut(&name) else { continue };
            entry.earlier = HashMap::default();
            for number in entry.slices.take_changed() {
                let name = slice_name(&entry.policy, number);
                match entry.slice(number) {
                    // Where uids are not, a policy that was made again has slices of the same names.
                    Some(slice) => {
                        gone.remove(&name);
                        self.told.insert(name);
                        facts.push(Fact::PolicySlice(slice));
                    }
                    None => drop(gone.insert(name)),
                }
            }
        }
        facts.extend(gone.into_iter().filter(|name| self.told.remove(name)).map(Fact::PolicySliceGone));
        facts
    }

    /// All slices, as they should be now.
    pub fn slices(&self) -> impl Iterator<Item = PolicySlice> {
        self.policies.values().flat_map(Entry::all)
    }

    /// The slices of one policy.
    pub fn slices_of(&self, policy: &PolicyName) -> impl Iterator<Item = PolicySlice> {
        self.policies.get(policy).into_iter().flat_map(Entry::all)
    }

    /// How many backends a policy has: ready pods that it selects and that can be reached as it asks, or its addresses.
    pub fn backends(&self, policy: &PolicyName) -> usize {
        self.policies.get(policy).map_or(0, |entry| match &entry.policy.target {
            Target::Addresses { addresses, .. } => addresses.len(),
            Target::LocalPods { .. } | Target::Pods { .. } => entry.chosen.len(),
        })
    }

    /// Pods that it selects and that are ready, but cannot be reached as it asks.
    pub fn left_out(&self, policy: &PolicyName) -> impl Iterator<Item = (&PodName, &LeftOut)> {
        self.policies.get(policy).into_iter().flat_map(|entry| entry.left_out.iter())
    }

    /// Policies whose backends may have changed since `take` was last called.
    pub fn dirty(&self) -> impl Iterator<Item = &PolicyName> {
        self.dirty.iter()
    }

    fn apply_policy(&mut self, policy: &Policy) {
        if self.policies.get(&policy.name).is_some_and(|entry| entry.policy == *policy) {
            return;
        }
        let same = |entry: &Entry| entry.policy.uid == policy.uid;
        let kept = self.policies.get(&policy.name).is_some_and(same);
        let held = self.withdraw(&policy.name, kept);
        self.scopes.insert(policy);
        if matches!(&policy.target, Target::Pods { namespaces: Some(_), .. }) {
            self.wide.insert(policy.name.clone());
        }
        if !kept {
            let adopted = self.adopted.remove(&(policy.name.clone(), policy.uid.clone())).unwrap_or_default();
            self.policies.insert(policy.name.clone(), Entry::new(policy.clone(), adopted));
        } else if let Some(entry) = self.policies.get_mut(&policy.name) {
            entry.policy = policy.clone();
        }
        self.dirty.insert(policy.name.clone());
        for pod in self.candidates(policy).into_iter().chain(held).collect::<BTreeSet<_>>() {
            self.consider(&policy.name, &pod);
        }
    }

    fn remove_policy(&mut self, name: &PolicyName) {
        self.withdraw(name, false);
    }

    /// Takes it out of the indexes; what it held. `keep`: its slices stay, to be changed where they differ.
    fn withdraw(&mut self, name: &PolicyName, keep: bool) -> BTreeSet<PodName> {
        let Some(entry) = self.policies.get_mut(name) else { return BTreeSet::new() };
        self.scopes.remove(&entry.policy);
        self.wide.remove(name);
        let held: BTreeSet<PodName> = entry.chosen.iter().chain(entry.left_out.keys()).cloned().collect();
        if !keep {
            // Also those that went since it was last asked.
            let numbers: Vec<u32> = entry.slices.take_changed().into_iter().chain(entry.slices.numbers()).collect();
            self.gone.extend(numbers.into_iter().map(|number| slice_name(&entry.policy, number)));
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
        self.consider_pod(&pod.name);
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
        self.consider_pod(name);
    }

    fn consider_pod(&mut self, name: &PodName) {
        let mut asked = self.holders.get(name).cloned().unwrap_or_default();
        asked.extend(self.pods.get(name).map(|pod| self.scopes.of_pod(pod)).unwrap_or_default());
        asked.iter().for_each(|policy| self.consider(policy, name));
    }

    fn apply_namespace(&mut self, namespace: &Namespace) {
        if self.namespaces.get(&namespace.name) != Some(&namespace.labels) {
            self.namespaces.insert(namespace.name.clone(), namespace.labels.clone());
            self.consider_namespace(&namespace.name);
        }
    }

    fn remove_namespace(&mut self, name: &Name) {
        if self.namespaces.remove(name).is_some() {
            self.consider_namespace(name);
        }
    }

    fn consider_namespace(&mut self, name: &Name) {
        let pods: Vec<PodName> = self.by_namespace.get(name).into_iter().flatten().cloned().collect();
        for policy in self.wide.clone() {
            pods.iter().for_each(|pod| self.consider(&policy, pod));
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
        let mut labels = known.or_else(|| (self.unknown == Unknown::Plain).then(Labels::new))?;
        labels.insert(NAMESPACE_NAME.into(), name.clone());
        Some(labels)
    }

    /// Brings what is published of one pod by one policy up to date.
    fn consider(&mut self, policy: &PolicyName, pod: &PodName) {
        let Some(entry) = self.policies.get(policy) else { return };
        let known = self.pods.get(pod).filter(|pod| self.selects(&entry.policy, pod));
        let choice = known.map(|known| choose(&entry.policy, known));
        let Some(entry) = self.policies.get_mut(policy) else { return };
        if !entry.settle(pod, choice) {
            return;
        }
        let holds = entry.chosen.contains(pod) || entry.left_out.contains_key(pod);
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
        let places = adopted.iter().flat_map(|(number, slice)| {
            slice.endpoints.iter().map(|endpoint| ((endpoint.address, slice.family), *number))
        });
        let earlier = places.collect();
        Entry { policy, slices: Pack::default(), chosen: BTreeSet::new(), left_out: BTreeMap::new(), earlier }
    }

    /// Says whether anything may have changed.
    fn settle(&mut self, pod: &PodName, choice: Option<Result<Vec<(Group, Endpoint)>, LeftOut>>) -> bool {
        let endpoints = match choice {
            None => {
                let held = self.left_out.remove(pod).is_some() | self.chosen.remove(pod);
                self.keep(pod, &[]);
                return held;
            }
            Some(Err(why)) => {
                self.chosen.remove(pod);
                self.left_out.insert(pod.clone(), why);
                self.keep(pod, &[]);
                return true;
            }
            Some(Ok(endpoints)) => endpoints,
        };
        self.left_out.remove(pod);
        self.chosen.insert(pod.clone());
        if matches!(self.policy.target, Target::Pods { .. }) {
            self.keep(pod, &endpoints);
            for (group, endpoint) in endpoints {
                let earlier = self.earlier.get(&(endpoint.address, group.family)).copied();
                self.slices.put((pod.clone(), group.family), &group, endpoint, earlier);
            }
        }
        true
    }

    /// Families that it is not published in any more.
    fn keep(&mut self, pod: &PodName, endpoints: &[(Group, Endpoint)]) {
        for family in Family::BOTH {
            if !endpoints.iter().any(|(group, _)| group.family == family) {
                self.slices.remove(&(pod.clone(), family));
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = PolicySlice> {
        self.slices.numbers().filter_map(|number| self.slice(number))
    }

    fn slice(&self, number: u32) -> Option<PolicySlice> {
        let bin = self.slices.bin(number)?;
        Some(PolicySlice {
            name: slice_name(&self.policy, number),
            policy: self.policy.name.clone(),
            uid: self.policy.uid.clone(),
            shape: bin.group.shape,
            family: bin.group.family,
            ports: bin.group.ports.clone(),
            endpoints: bin.members.values().cloned().collect(),
        })
    }
}

/// As far as it matters here.
fn is_same(a: &Pod, b: &Pod) -> bool {
    a.addresses == b.addresses && a.node == b.node && a.labels == b.labels && a.ports == b.ports
}

/// A policy that is made again under its name has slices of other names: whoever removes those of the first (a garbage
/// collector) does not meet those of the second.
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
