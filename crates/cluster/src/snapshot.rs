//! All facts of a source at one moment, and what changed between two of them.

use beeline_model::fact::{Fact, Namespace, Node, Pod, PodName, Refusal, Service, Slice, SliceName};
use beeline_model::policy::{Policy, PolicyName, PolicySlice};
use beeline_model::{Name, OwnerName};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub services: BTreeMap<OwnerName, Service>,
    pub slices: BTreeMap<SliceName, Slice>,
    /// By cluster and name.
    pub nodes: BTreeMap<(Name, Name), Node>,
    pub pods: BTreeMap<PodName, Pod>,
    /// By cluster and name.
    pub namespaces: BTreeMap<(Name, Name), Namespace>,
    pub policies: BTreeMap<PolicyName, Policy>,
    pub policy_slices: BTreeMap<SliceName, PolicySlice>,
    pub refusals: Vec<Refusal>,
}

impl Snapshot {
    pub fn apply(&mut self, fact: Fact) {
        match fact {
            Fact::Service(service) => drop(self.services.insert(service.name.clone(), service)),
            Fact::ServiceGone(name) => drop(self.services.remove(&name)),
            Fact::Slice(slice) => drop(self.slices.insert(slice.name.clone(), slice)),
            Fact::SliceGone(name) => drop(self.slices.remove(&name)),
            Fact::Node(node) => drop(self.nodes.insert((node.cluster.clone(), node.name.clone()), node)),
            Fact::NodeGone { cluster, name } => drop(self.nodes.remove(&(cluster, name))),
            Fact::Pod(pod) => drop(self.pods.insert(pod.name.clone(), pod)),
            Fact::PodGone(name) => drop(self.pods.remove(&name)),
            Fact::Namespace(one) => drop(self.namespaces.insert((one.cluster.clone(), one.name.clone()), one)),
            Fact::NamespaceGone { cluster, name } => drop(self.namespaces.remove(&(cluster, name))),
            Fact::Policy(policy) => drop(self.policies.insert(policy.name.clone(), policy)),
            Fact::PolicyGone(name) => drop(self.policies.remove(&name)),
            Fact::PolicySlice(slice) => drop(self.policy_slices.insert(slice.name.clone(), slice)),
            Fact::PolicySliceGone(name) => drop(self.policy_slices.remove(&name)),
        }
    }

    /// Every object, as if all were new.
    pub fn into_facts(self) -> Vec<Fact> {
        let services = self.services.into_values().map(Fact::Service);
        let slices = self.slices.into_values().map(Fact::Slice);
        let nodes = self.nodes.into_values().map(Fact::Node);
        let pods = self.pods.into_values().map(Fact::Pod);
        let namespaces = self.namespaces.into_values().map(Fact::Namespace);
        let policies = self.policies.into_values().map(Fact::Policy);
        let published = self.policy_slices.into_values().map(Fact::PolicySlice);
        services.chain(slices).chain(nodes).chain(pods).chain(namespaces).chain(policies).chain(published).collect()
    }
}

/// Only real differences. What is new or other comes first and what is gone last, so that an object that moved (a slice
/// under a new name) is never missing in between.
pub fn diff(old: &Snapshot, new: &Snapshot) -> Vec<Fact> {
    let mut facts = Vec::new();
    facts.extend(changed(&old.services, &new.services).cloned().map(Fact::Service));
    facts.extend(changed(&old.slices, &new.slices).cloned().map(Fact::Slice));
    facts.extend(changed(&old.nodes, &new.nodes).cloned().map(Fact::Node));
    facts.extend(changed(&old.pods, &new.pods).cloned().map(Fact::Pod));
    facts.extend(changed(&old.namespaces, &new.namespaces).cloned().map(Fact::Namespace));
    facts.extend(changed(&old.policies, &new.policies).cloned().map(Fact::Policy));
    facts.extend(changed(&old.policy_slices, &new.policy_slices).cloned().map(Fact::PolicySlice));
    facts.extend(gone(&old.policy_slices, &new.policy_slices).cloned().map(Fact::PolicySliceGone));
    facts.extend(gone(&old.policies, &new.policies).cloned().map(Fact::PolicyGone));
    facts.extend(gone(&old.slices, &new.slices).cloned().map(Fact::SliceGone));
    facts.extend(gone(&old.services, &new.services).cloned().map(Fact::ServiceGone));
    let node = |(cluster, name): (Name, Name)| Fact::NodeGone { cluster, name };
    facts.extend(gone(&old.nodes, &new.nodes).cloned().map(node));
    facts.extend(gone(&old.pods, &new.pods).cloned().map(Fact::PodGone));
    let namespace = |(cluster, name): (Name, Name)| Fact::NamespaceGone { cluster, name };
    facts.extend(gone(&old.namespaces, &new.namespaces).cloned().map(namespace));
    facts
}

fn changed<'a, K: Ord, V: PartialEq>(old: &BTreeMap<K, V>, new: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a V> {
    new.iter().filter(|(key, value)| old.get(key) != Some(value)).map(|(_, value)| value)
}

fn gone<'a, K: Ord, V>(old: &'a BTreeMap<K, V>, new: &BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
    old.keys().filter(|key| !new.contains_key(key))
}
