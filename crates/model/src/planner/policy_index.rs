//! The policies of the planner, with the indexes that tell which policies must be planned again after a change.
//!
//! The indexes: Service to the policies on it, namespace to the LocalRedirectPolicies that may select its pods, address
//! to the policies that claim it or have it as a fixed backend, node to the policies that dial pods through it, and the
//! policies with a nodeLabelSelector.

use crate::address::Address;
use crate::change::{Change, ObjectKey};
use crate::hash::HashMap;
use crate::name::{Name, ServiceName};
use crate::object::{Pod, PodName, SliceName};
use crate::policy::{Matcher, Policy, PolicyName, PolicySlice, RedirectMode, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

/// The Services and policies to plan again. `None` if nothing changed.
pub(super) type Affected = Option<Vec<ServiceName>>;

#[derive(Debug)]
struct Index<K>(HashMap<K, BTreeSet<ServiceName>>);

impl<K> Default for Index<K> {
    fn default() -> Index<K> {
        Index(HashMap::default())
    }
}

impl<K: Hash + Eq> Index<K> {
    fn add(&mut self, key: K, owner: &ServiceName) {
        self.0.entry(key).or_default().insert(owner.clone());
    }

    fn remove(&mut self, key: &K, owner: &ServiceName) {
        let Some(owners) = self.0.get_mut(key) else { return };
        owners.remove(owner);
        if owners.is_empty() {
            self.0.remove(key);
        }
    }

    fn of<'a>(&'a self, key: &K) -> impl Iterator<Item = &'a ServiceName> + use<'a, K> {
        self.0.get(key).into_iter().flatten()
    }

    fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }
}

#[derive(Debug, Default)]
pub(super) struct PolicyIndex {
    policies: HashMap<ServiceName, Policy>,
    /// Sorted by name.
    slices: HashMap<ServiceName, Vec<PolicySlice>>,
    slice_owner: HashMap<SliceName, ServiceName>,
    /// The pods of this node.
    pods: BTreeMap<PodName, Pod>,
    /// Cgroup ids by pod UID.
    cgroups: HashMap<Box<str>, u64>,
    on_service: Index<ServiceName>,
    /// By cluster and namespace.
    redirects: Index<(Name, Name)>,
    at_address: Index<Address>,
    /// By address of an addressEndpoint.
    by_backend: Index<Address>,
    by_node: Index<Name>,
    nodes_of: HashMap<ServiceName, BTreeSet<Name>>,
    with_node_selector: BTreeSet<ServiceName>,
}

/// The Service whose ClusterIPs a policy takes over.
pub(super) fn service_of(policy: &Policy) -> Option<ServiceName> {
    match &policy.matcher {
        Matcher::Service { name, .. } => Some(ServiceName::new(&policy.name.cluster, &policy.name.namespace, name)),
        Matcher::Address { .. } => None,
    }
}

fn selects(policy: &Policy, pod: &Pod) -> bool {
    matches!(&policy.target, Target::LocalPods { selector, .. } if selector.matches(&pod.labels))
}

impl PolicyIndex {
    // ---- policies ----

    pub fn apply(&mut self, policy: Policy) -> Affected {
        let owner = ServiceName::of_policy(&policy.name);
        if self.policies.get(&owner) == Some(&policy) {
            return None;
        }
        let mut affected = self.users_of_virtual_address(&owner);
        self.unindex(&owner);
        self.index(&owner, &policy);
        self.policies.insert(owner.clone(), policy);
        self.follow_nodes_of(&owner);
        affected.extend(self.users_of_virtual_address(&owner));
        affected.push(owner);
        Some(affected)
    }

    pub fn remove(&mut self, name: &PolicyName) -> Affected {
        let owner = ServiceName::of_policy(name);
        let mut affected = self.users_of_virtual_address(&owner);
        self.unindex(&owner).then_some(())?;
        self.follow_nodes_of(&owner);
        affected.push(owner);
        Some(affected)
    }

    /// The policies that have the virtual address of this policy as a backend, which makes them invalid.
    fn users_of_virtual_address(&self, owner: &ServiceName) -> Vec<ServiceName> {
        match self.policies.get(owner).map(|policy| &policy.matcher) {
            Some(Matcher::Address { address, .. }) => self.by_backend.of(address).cloned().collect(),
            Some(Matcher::Service { .. }) | None => Vec::new(),
        }
    }

    fn index(&mut self, owner: &ServiceName, policy: &Policy) {
        if let Some(service) = service_of(policy) {
            self.on_service.add(service, owner);
        }
        if let Matcher::Address { address, .. } = policy.matcher {
            self.at_address.add(address, owner);
        }
        match &policy.target {
            Target::LocalPods { .. } => {
                self.redirects.add((policy.name.cluster.clone(), policy.name.namespace.clone()), owner);
            }
            Target::Addresses { addresses, .. } => {
                addresses.iter().for_each(|address| self.by_backend.add(*address, owner));
            }
            Target::Pods { .. } => {}
        }
        if policy.nodes.is_some() {
            self.with_node_selector.insert(owner.clone());
        }
    }

    /// Returns whether the policy was known.
    fn unindex(&mut self, owner: &ServiceName) -> bool {
        let Some(policy) = self.policies.remove(owner) else { return false };
        if let Some(service) = service_of(&policy) {
            self.on_service.remove(&service, owner);
        }
        if let Matcher::Address { address, .. } = policy.matcher {
            self.at_address.remove(&address, owner);
        }
        if let Target::Addresses { addresses, .. } = &policy.target {
            addresses.iter().for_each(|address| self.by_backend.remove(address, owner));
        }
        self.redirects.remove(&(policy.name.cluster, policy.name.namespace), owner);
        self.with_node_selector.remove(owner);
        true
    }

    // ---- slices ----

    pub fn apply_slice(&mut self, slice: PolicySlice) -> Affected {
        let (name, owner) = (slice.name.clone(), ServiceName::of_policy(&slice.policy));
        // A slice may move to another policy.
        let moved = self.slice_owner.get(&name).is_some_and(|before| *before != owner);
        let mut affected = if moved { self.remove_slice(&name).unwrap_or_default() } else { Vec::new() };
        let all = self.slices.entry(owner.clone()).or_default();
        match all.binary_search_by(|have| have.name.cmp(&name)) {
            Ok(at) if all[at] == slice => return None,
            Ok(at) => all[at] = slice,
            Err(at) => {
                all.insert(at, slice);
                self.slice_owner.insert(name, owner.clone());
            }
        }
        self.follow_nodes_of(&owner);
        affected.push(owner);
        Some(affected)
    }

    pub fn remove_slice(&mut self, name: &SliceName) -> Affected {
        let owner = self.slice_owner.remove(name)?;
        if let Some(all) = self.slices.get_mut(&owner) {
            all.retain(|slice| slice.name != *name);
            if all.is_empty() {
                self.slices.remove(&owner);
            }
        }
        self.follow_nodes_of(&owner);
        Some(vec![owner])
    }

    /// Updates the index of nodes through which the policy's pods are dialled.
    fn follow_nodes_of(&mut self, owner: &ServiceName) {
        let by_node = |slice: &&PolicySlice| slice.shape.is_some_and(|shape| shape.mode != RedirectMode::PodEndpoint);
        let slices = self.policies.get(owner).and_then(|_| self.slices.get(owner));
        let endpoints = slices.into_iter().flatten().filter(by_node).flat_map(|slice| slice.endpoints.iter());
        let now: BTreeSet<Name> = endpoints.filter_map(|endpoint| endpoint.node.clone()).collect();
        let before = match now.is_empty() {
            true => self.nodes_of.remove(owner),
            false => self.nodes_of.insert(owner.clone(), now.clone()),
        };
        let before = before.unwrap_or_default();
        before.difference(&now).for_each(|node| self.by_node.remove(node, owner));
        now.difference(&before).for_each(|node| self.by_node.add(node.clone(), owner));
    }

    // ---- pods of this node ----

    pub fn apply_pod(&mut self, pod: Pod) -> Affected {
        if self.pods.get(&pod.name) == Some(&pod) {
            return None;
        }
        let before = self.pods.insert(pod.name.clone(), pod.clone());
        Some(self.affected_by(before.iter().chain([&pod])))
    }

    pub fn remove_pod(&mut self, name: &PodName) -> Affected {
        let pod = self.pods.remove(name)?;
        Some(self.affected_by([&pod].into_iter()))
    }

    pub fn pods(&self) -> &BTreeMap<PodName, Pod> {
        &self.pods
    }

    pub fn set_cgroup(&mut self, uid: &str, cgroup: Option<u64>) -> Affected {
        let before = match cgroup {
            Some(id) => self.cgroups.insert(uid.into(), id),
            None => self.cgroups.remove(uid),
        };
        if before == cgroup {
            return None;
        }
        Some(self.affected_by(self.pods.values().filter(|pod| *pod.uid == *uid)))
    }

    pub fn cgroups(&self) -> &HashMap<Box<str>, u64> {
        &self.cgroups
    }

    /// The LocalRedirectPolicies that select one of these pods, and the policies that claim one of their addresses.
    fn affected_by<'a>(&self, pods: impl Iterator<Item = &'a Pod>) -> Vec<ServiceName> {
        let mut found = BTreeSet::new();
        for pod in pods {
            let namespace = (pod.name.cluster.clone(), pod.name.namespace.clone());
            let candidates = self.redirects.of(&namespace);
            found
                .extend(candidates.filter(|owner| self.policies.get(owner).is_some_and(|policy| selects(policy, pod))));
            found.extend(pod.addresses.iter().flat_map(|address| self.at_address.of(address)));
        }
        found.into_iter().cloned().collect()
    }

    /// Whether a LocalRedirectPolicy of the pod's namespace selects it.
    pub fn is_selected(&self, pod: &Pod) -> bool {
        let namespace = (pod.name.cluster.clone(), pod.name.namespace.clone());
        let mut policies = self.redirects.of(&namespace).filter_map(|owner| self.policies.get(owner));
        policies.any(|policy| selects(policy, pod))
    }

    /// The changes that delete all policies, slices and pods of a cluster.
    pub fn deletions_of_cluster(&self, cluster: &Name) -> Vec<Change> {
        let policies = self.policies.values().filter(|policy| policy.name.cluster == *cluster);
        let mut changes: Vec<Change> =
            policies.map(|policy| Change::Delete(ObjectKey::Policy(policy.name.clone()))).collect();
        let slices = self.slice_owner.keys().filter(|name| name.cluster == *cluster);
        changes.extend(slices.cloned().map(ObjectKey::PolicySlice).map(Change::Delete));
        let pods = self.pods.keys().filter(|name| name.cluster == *cluster);
        changes.extend(pods.cloned().map(ObjectKey::Pod).map(Change::Delete));
        changes
    }

    // ---- queries ----

    pub fn policy(&self, owner: &ServiceName) -> Option<&Policy> {
        self.policies.get(owner)
    }

    pub fn owners(&self) -> impl Iterator<Item = &ServiceName> {
        self.policies.keys()
    }

    pub fn slices_of(&self, owner: &ServiceName) -> &[PolicySlice] {
        self.slices.get(owner).map_or(&[], Vec::as_slice)
    }

    pub fn slice(&self, name: &SliceName) -> Option<&PolicySlice> {
        let all = self.slices_of(self.slice_owner.get(name)?);
        all.iter().find(|slice| slice.name == *name)
    }

    pub fn slices(&self) -> impl Iterator<Item = &PolicySlice> {
        self.slices.values().flatten()
    }

    pub fn on_service(&self, service: &ServiceName) -> impl Iterator<Item = &ServiceName> {
        self.on_service.of(service)
    }

    /// The virtual addresses of all policies.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.at_address.keys()
    }

    pub fn at_address(&self, address: &Address) -> impl Iterator<Item = &ServiceName> {
        self.at_address.of(address)
    }

    /// The policies that have this address as a fixed backend.
    pub fn by_backend(&self, address: &Address) -> impl Iterator<Item = &ServiceName> {
        self.by_backend.of(address)
    }

    pub fn by_node(&self, node: &Name) -> impl Iterator<Item = &ServiceName> {
        self.by_node.of(node)
    }

    pub fn with_node_selector(&self) -> impl Iterator<Item = &ServiceName> {
        self.with_node_selector.iter()
    }
}
