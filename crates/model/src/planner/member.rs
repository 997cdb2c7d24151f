//! Pods of this node that redirects select: whoever looks for their cgroups asks here, and keeps no copy.

use super::Planner;
use crate::fact::{Pod, PodName};
use crate::name::OwnerName;
use crate::policy::{Policy, PolicyName};
use crate::selector::Selector;

impl Planner {
    pub fn pod(&self, name: &PodName) -> Option<&Pod> {
        self.register.pods().get(name)
    }

    /// Its cgroup is needed. A manifest written by hand has no UID, no kubelet and no cgroup; a pod that has ended has no
    /// address.
    pub fn needs_cgroup(&self, pod: &Pod) -> bool {
        let here = pod.node.as_ref() == Some(&self.rules.node_name) && self.order.is_home(&pod.name.cluster);
        here && !pod.uid.is_empty() && !pod.addresses.is_empty() && self.register.is_selected(pod)
    }

    pub fn pods_with_need(&self) -> impl Iterator<Item = &Pod> {
        self.register.pods().values().filter(|pod| self.needs_cgroup(pod))
    }

    /// Of a redirect.
    pub fn selector_of(&self, name: &PolicyName) -> Option<&Selector> {
        self.register.policy(&OwnerName::of_policy(name)).and_then(Policy::local_selector)
    }
}
