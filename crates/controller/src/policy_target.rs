//! An index of policies by what they match: a Service or an address, with its ports and protocols. The policies of an entry
//! are sorted by precedence, so finding the first one is cheap however many policies there are.

use beeline_model::name::Protocol;
use beeline_model::policy::{DialledPort, Matcher, Policy, PolicyKind, PolicyName};
use beeline_model::{Address, ServiceName};
use std::collections::{BTreeSet, HashMap};

/// What the frontend of a policy matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PolicyTarget {
    Service(ServiceName),
    Address(Address),
}

impl PolicyTarget {
    pub fn of(policy: &Policy) -> PolicyTarget {
        match &policy.matcher {
            Matcher::Service { name, .. } => {
                PolicyTarget::Service(ServiceName::new(&policy.name.cluster, &policy.name.namespace, name))
            }
            Matcher::Address { address, .. } => PolicyTarget::Address(*address),
        }
    }
}

/// One set of policies for a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TargetKey {
    /// All policies of the target.
    Any(PolicyTarget),
    /// The policies without a list of ports, which match all ports.
    AllPorts(PolicyTarget),
    /// The policies that list this port.
    Port(PolicyTarget, u16, Protocol),
}

/// Sort key of policies: the older policy has precedence, then the name decides.
pub type PolicyRank = (i64, PolicyName);

#[derive(Debug, Default)]
pub struct TargetIndex(HashMap<(TargetKey, PolicyKind), BTreeSet<PolicyRank>>);

impl TargetIndex {
    pub fn insert(&mut self, policy: &Policy) {
        for key in own_keys(policy) {
            self.0.entry((key, policy.name.kind)).or_default().insert(policy_rank(policy));
        }
    }

    pub fn remove(&mut self, policy: &Policy) {
        for key in own_keys(policy) {
            let key = (key, policy.name.kind);
            let Some(ranks) = self.0.get_mut(&key) else { continue };
            ranks.remove(&policy_rank(policy));
            if ranks.is_empty() {
                self.0.remove(&key);
            }
        }
    }

    /// The first other policy of a kind that matches some port that this policy matches.
    pub fn first_overlap(&self, policy: &Policy, kind: PolicyKind) -> Option<&PolicyRank> {
        let first = |key: TargetKey| self.0.get(&(key, kind))?.iter().find(|(_, name)| *name != policy.name);
        overlapping_keys(policy).into_iter().filter_map(first).min()
    }

    /// All policies of a target, of both kinds.
    pub fn policies_at(&self, target: &PolicyTarget) -> impl Iterator<Item = &PolicyName> {
        let key = TargetKey::Any(target.clone());
        let ranks = PolicyKind::BOTH.into_iter().filter_map(move |kind| self.0.get(&(key.clone(), kind)));
        ranks.flatten().map(|(_, name)| name)
    }
}

pub fn policy_rank(policy: &Policy) -> PolicyRank {
    (policy.created, policy.name.clone())
}

/// The ports that a policy lists; `None` means all ports of its Service.
pub fn listed_ports(policy: &Policy) -> Option<&[DialledPort]> {
    match &policy.matcher {
        Matcher::Service { ports, .. } => ports.as_deref(),
        Matcher::Address { ports, .. } => Some(ports),
    }
}

fn port_keys(policy: &Policy, target: &PolicyTarget) -> Option<Vec<TargetKey>> {
    let ports = listed_ports(policy)?.iter();
    Some(ports.map(|port| TargetKey::Port(target.clone(), port.port, port.protocol)).collect())
}

/// The keys under which a policy is stored.
fn own_keys(policy: &Policy) -> Vec<TargetKey> {
    let target = PolicyTarget::of(policy);
    let mut keys = port_keys(policy, &target).unwrap_or_else(|| vec![TargetKey::AllPorts(target.clone())]);
    keys.push(TargetKey::Any(target));
    keys
}

/// The keys under which policies with a common port are stored.
fn overlapping_keys(policy: &Policy) -> Vec<TargetKey> {
    let target = PolicyTarget::of(policy);
    match port_keys(policy, &target) {
        None => vec![TargetKey::Any(target)],
        Some(mut keys) => {
            keys.push(TargetKey::AllPorts(target));
            keys
        }
    }
}
