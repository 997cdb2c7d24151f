//! An index of policies by the addresses of their addressEndpoint. Such a policy must be evaluated again when one of the
//! addresses becomes a frontend, or stops being one.

use beeline_model::Address;
use beeline_model::policy::{Policy, PolicyName, Target};
use std::collections::{BTreeSet, HashMap};

#[derive(Debug, Default)]
pub struct BackendAddresses(HashMap<Address, BTreeSet<PolicyName>>);

impl BackendAddresses {
    pub fn insert(&mut self, policy: &Policy) {
        for address in addresses(policy) {
            self.0.entry(*address).or_default().insert(policy.name.clone());
        }
    }

    pub fn remove(&mut self, policy: &Policy) {
        for address in addresses(policy) {
            let Some(names) = self.0.get_mut(address) else { continue };
            names.remove(&policy.name);
            if names.is_empty() {
                self.0.remove(address);
            }
        }
    }

    pub fn policies_with(&self, address: Address) -> impl Iterator<Item = &PolicyName> {
        self.0.get(&address).into_iter().flatten()
    }
}

fn addresses(policy: &Policy) -> &[Address] {
    match &policy.target {
        Target::Addresses { addresses, .. } => addresses,
        Target::Pods { .. } | Target::LocalPods { .. } => &[],
    }
}
