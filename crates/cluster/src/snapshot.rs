//! All facts of a source at one moment, and what changed between two of them.

use beeline_model::fact::{Fact, NamedService, Namespace, Node, Pod, PodName, Refusal, Service, Slice, SliceName};
use beeline_model::policy::{Policy, PolicyName, PolicySlice};
use beeline_model::{Name, OwnerName};
use ipnet::IpNet;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub services: BTreeMap<OwnerName, Service>,
    /// What has only a name; of a service and of a slice there is one or the other.
    pub named_services: BTreeMap<OwnerName, NamedService>,
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
    pub service_ranges: BTreeMap<(Name, Name), Box<[IpNet]>>,
    pub refusals: Vec<Refusal>,
}

impl Snapshot {
    pub fn apply(&mut self, fact: Fact) {
        match fact {
            Fact::Service(service) => {
                self.named_services.remove(&service.name);
                self.services.insert(service.name.clone(), service);
            }
            Fact::NamedService(named) => {
                self.services.remove(&named.name);
                self.named_services.insert(named.name.clone(), named);
            }
            Fact::ServiceGone(name) => drop((self.services.remove(&name), self.named_services.remove(&name))),
            Fact::Slice(slice) => {
                self.named_slices.remove(&slice.name);
                self.slices.insert(slice.name.clone(), slice);
            }
            Fact::NamedSlice(slice) => {
                self.slices.remove(&slice.name);
                self.named_slices.insert(slice.name.clone(), slice);
            }
            Fact::SliceGone(name) => drop((self.slices.remove(&name), self.named_slices.remove(&name))),
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
            Fact::ServiceRange { cluster, name, ranges } => drop(self.service_ranges.insert((cluster, name), ranges)),
            Fact::ServiceRangeGone { cluster, name } => drop(self.service_ranges.remove(&(cluster, name))),
        }
    }

    /// Every object, as if all were new.
    pub fn into_facts(self) -> Vec<Fact> {
        self.facts().collect()
    }

    /// The same, one after the other.
    pub fn facts(&self) -> impl Iterator<Item = Fact> + '_ {
        let services = self.services.values().cloned().map(Fact::Service);
        let services = services.chain(self.named_services.values().cloned().map(Fact::NamedService));
        let slices = self.slices.values().cloned().map(Fact::Slice);
        let slices = slices.chain(self.named_slices.values().cloned().map(Fact::NamedSlice));
        let nodes = self.nodes.values().cloned().map(Fact::Node);
        let pods = self.pods.values().cloned().map(Fact::Pod);
        let namespaces = self.namespaces.values().cloned().map(Fact::Namespace);
        let policies = self.policies.values().cloned().map(Fact::Policy);
        let published = self.policy_slices.values().cloned().map(Fact::PolicySlice);
        let ranges = self.service_ranges.iter().map(|((cluster, name), ranges)| Fact::ServiceRange {
            cluster: cluster.clone(),
            name: name.clone(),
            ranges: ranges.clone(),
        });
        let objects = services.chain(slices).chain(nodes).chain(pods).chain(namespaces).chain(policies);
        objects.chain(published).chain(ranges)
    }
}

/// Only real differences. What is new or other comes first and what is gone last, so that an object that moved (a slice
/// under a new name) is never missing in between.
pub fn diff(old: &Snapshot, new: &Snapshot) -> Vec<Fact> {
    let mut facts = Vec::new();
    facts.extend(changed(&old.services, &new.services).cloned().map(Fact::Service));
    facts.extend(changed(&old.named_services, &new.named_services).cloned().map(Fact::NamedService));
    facts.extend(changed(&old.slices, &new.slices).cloned().map(Fact::Slice));
    facts.extend(changed(&old.named_slices, &new.named_slices).cloned().map(Fact::NamedSlice));
    facts.extend(changed(&old.nodes, &new.nodes).cloned().map(Fact::Node));
    facts.extend(changed(&old.pods, &new.pods).cloned().map(Fact::Pod));
    facts.extend(changed(&old.namespaces, &new.namespaces).cloned().map(Fact::Namespace));
    facts.extend(changed(&old.policies, &new.policies).cloned().map(Fact::Policy));
    facts.extend(changed(&old.policy_slices, &new.policy_slices).cloned().map(Fact::PolicySlice));
    let other = new.service_ranges.iter().filter(|(name, ranges)| old.service_ranges.get(*name) != Some(*ranges));
    facts.extend(other.map(|((cluster, name), ranges)| Fact::ServiceRange {
        cluster: cluster.clone(),
        name: name.clone(),
        ranges: ranges.clone(),
    }));
    facts.extend(gone(&old.policy_slices, &new.policy_slices).cloned().map(Fact::PolicySliceGone));
    facts.extend(gone(&old.policies, &new.policies).cloned().map(Fact::PolicyGone));
    // One that has only a name now, or no longer only that, is there.
    let slices = gone(&old.slices, &new.slices).filter(|name| !new.named_slices.contains_key(name));
    let named = gone(&old.named_slices, &new.named_slices).filter(|name| !new.slices.contains_key(name));
    facts.extend(slices.chain(named).cloned().map(Fact::SliceGone));
    let services = gone(&old.services, &new.services).filter(|name| !new.named_services.contains_key(name));
    let named = gone(&old.named_services, &new.named_services).filter(|name| !new.services.contains_key(name));
    facts.extend(services.chain(named).cloned().map(Fact::ServiceGone));
    let node = |(cluster, name): (Name, Name)| Fact::NodeGone { cluster, name };
    facts.extend(gone(&old.nodes, &new.nodes).cloned().map(node));
    facts.extend(gone(&old.pods, &new.pods).cloned().map(Fact::PodGone));
    let namespace = |(cluster, name): (Name, Name)| Fact::NamespaceGone { cluster, name };
    facts.extend(gone(&old.namespaces, &new.namespaces).cloned().map(namespace));
    let range = |(cluster, name): (Name, Name)| Fact::ServiceRangeGone { cluster, name };
    facts.extend(gone(&old.service_ranges, &new.service_ranges).cloned().map(range));
    facts
}

fn changed<'a, K: Ord, V: PartialEq>(old: &BTreeMap<K, V>, new: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a V> {
    new.iter().filter(|(key, value)| old.get(key) != Some(value)).map(|(_, value)| value)
}

fn gone<'a, K: Ord, V>(old: &'a BTreeMap<K, V>, new: &BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
    old.keys().filter(|key| !new.contains_key(key))
}
