//! An index of the policies that may select a pod, by namespace and one label, so that a changed pod is checked against
//! few of ten thousand policies.

use crate::hash::HashMap;
use crate::name::Name;
use crate::object::Pod;
use crate::policy::{Policy, PolicyName, Target};
use crate::selector::{LabelOperator, Selector};
use std::collections::BTreeSet;

/// The namespace (`None` for any) and one label that the pod must have (`None` if no label can be used).
type Key = (Option<Name>, Option<(Name, Name)>);

#[derive(Debug, Default)]
pub struct PolicyLookup(HashMap<Key, BTreeSet<PolicyName>>);

impl PolicyLookup {
    pub fn insert(&mut self, policy: &Policy) {
        for key in keys(policy) {
            self.0.entry(key).or_default().insert(policy.name.clone());
        }
    }

    pub fn remove(&mut self, policy: &Policy) {
        for key in keys(policy) {
            if let Some(names) = self.0.get_mut(&key) {
                names.remove(&policy.name);
                if names.is_empty() {
                    self.0.remove(&key);
                }
            }
        }
    }

    /// All policies that may select the pod. Their selectors still have to be evaluated.
    pub fn of_pod(&self, pod: &Pod) -> BTreeSet<PolicyName> {
        let mut found = BTreeSet::new();
        for namespace in [Some(pod.name.namespace.clone()), None] {
            let labels = pod.labels.iter().map(|(key, value)| Some((key.clone(), value.clone())));
            for label in labels.chain([None]) {
                found.extend(self.0.get(&(namespace.clone(), label)).into_iter().flatten().cloned());
            }
        }
        found
    }
}

fn keys(policy: &Policy) -> Vec<Key> {
    let Some((selector, namespaces)) = selectors(&policy.target) else { return Vec::new() };
    let namespace = namespaces.is_none().then(|| policy.name.namespace.clone());
    labels(selector).into_iter().map(|label| (namespace.clone(), label)).collect()
}

/// The pod selector and the namespace selector of a target. `None` for the namespace selector means the policy's own
/// namespace.
pub fn selectors(target: &Target) -> Option<(&Selector, Option<&Selector>)> {
    match target {
        Target::LocalPods { selector, .. } => Some((selector, None)),
        Target::Pods { selector, namespaces, .. } => Some((selector, namespaces.as_ref())),
        Target::Addresses { .. } => None,
    }
}

/// Uses the first requirement that lists values. The other requirements are evaluated for the few policies that remain.
fn labels(selector: &Selector) -> Vec<Option<(Name, Name)>> {
    let named = selector.0.iter().find_map(|requirement| match &requirement.operator {
        LabelOperator::In(values) => Some((&requirement.key, values)),
        _ => None,
    });
    match named {
        Some((key, values)) => values.iter().map(|value| Some((key.clone(), value.clone()))).collect(),
        None => vec![None],
    }
}
