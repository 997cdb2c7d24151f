//! Which policies may choose a pod: by its namespace and one of its labels, so that a pod's change asks few of ten
//! thousand policies.

use crate::fact::Pod;
use crate::hash::HashMap;
use crate::name::Name;
use crate::policy::{Policy, PolicyName, Target};
use crate::selector::{Demand, Selector};
use std::collections::BTreeSet;

/// The namespace (`None`: any) and a label that a pod must have (`None`: nothing that an index could use).
type Key = (Option<Name>, Option<(Name, Name)>);

#[derive(Debug, Default)]
pub struct Scopes(HashMap<Key, BTreeSet<PolicyName>>);

impl Scopes {
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

    /// All that could choose it; whether they do is still to be asked.
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

/// By which pods are chosen: their own labels, and those of their namespaces (`None`: the policy's own).
pub fn selectors(target: &Target) -> Option<(&Selector, Option<&Selector>)> {
    match target {
        Target::LocalPods { selector, .. } => Some((selector, None)),
        Target::Pods { selector, namespaces, .. } => Some((selector, namespaces.as_ref())),
        Target::Addresses { .. } => None,
    }
}

/// The first requirement that names values will do; the rest is asked of the few that it leaves.
fn labels(selector: &Selector) -> Vec<Option<(Name, Name)>> {
    let named = selector.0.iter().find_map(|requirement| match &requirement.demand {
        Demand::In(values) => Some((&requirement.key, values)),
        _ => None,
    });
    match named {
        Some((key, values)) => values.iter().map(|value| Some((key.clone(), value.clone()))).collect(),
        None => vec![None],
    }
}
