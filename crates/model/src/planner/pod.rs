//! The pods of this node that LocalRedirectPolicies select. The agent finds their cgroups.

use super::Planner;
use crate::name::ServiceName;
use crate::object::{Pod, PodName};
use crate::policy::{Policy, PolicyName};
use crate::selector::Selector;

impl Planner {
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.policies.pods().values()
    }

    pub fn pod(&self, name: &PodName) -> Option<&Pod> {
        self.policies.pods().get(name)
    }

    /// Whether the cgroup of the pod is needed. A pod of a manifest has no UID and no cgroup; a pod that has ended has
    /// no address.
    pub fn needs_cgroup(&self, pod: &Pod) -> bool {
        let here = pod.node.as_ref() == Some(&self.rules.node_name) && self.order.is_home(&pod.name.cluster);
        here && !pod.uid.is_empty() && !pod.addresses.is_empty() && self.policies.is_selected(pod)
    }

    pub fn pods_needing_cgroup(&self) -> impl Iterator<Item = &Pod> {
        self.policies.pods().values().filter(|pod| self.needs_cgroup(pod))
    }

    /// The names of all policies, as owners of sets.
    pub fn policy_owners(&self) -> impl Iterator<Item = &ServiceName> {
        self.policies.owners()
    }

    pub fn policy(&self, owner: &ServiceName) -> Option<&Policy> {
        self.policies.policy(owner)
    }

    /// The pod selector of a LocalRedirectPolicy.
    pub fn selector_of(&self, name: &PolicyName) -> Option<&Selector> {
        self.policies.policy(&ServiceName::of_policy(name)).and_then(Policy::local_selector)
    }
}
