//! Which policy owns a port of a target. As in the agents, the oldest policy of a kind that claims the port owns it. A
//! policy that is not accepted by itself, for example because its Service has no such port, claims nothing.

use crate::policy_target::{PolicyRank, PolicyTarget, policy_rank};
use beeline_model::name::Protocol;
use beeline_model::policy::{Policy, PolicyKind, PolicyName};
use std::collections::{BTreeSet, HashMap};

pub type Port = (u16, Protocol);

/// A port of a target, where policies can conflict.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetPort {
    pub target: PolicyTarget,
    pub port: Port,
}

#[derive(Debug, Default)]
pub struct PortOwners {
    by_port: HashMap<(TargetPort, PolicyKind), BTreeSet<PolicyRank>>,
    by_policy: HashMap<PolicyName, (PolicyTarget, PolicyRank, Vec<Port>)>,
}

impl PortOwners {
    /// Updates the ports that a policy claims and returns the ports that changed their owner.
    pub fn set(&mut self, policy: &Policy, ports: Vec<Port>) -> Vec<TargetPort> {
        let entry = (PolicyTarget::of(policy), policy_rank(policy), ports);
        if self.by_policy.get(&policy.name) == Some(&entry) {
            return Vec::new();
        }
        let mut changed = self.remove(&policy.name);
        let (target, rank, ports) = &entry;
        for port in ports {
            let port = TargetPort { target: target.clone(), port: *port };
            let ranks = self.by_port.entry((port.clone(), policy.name.kind)).or_default();
            ranks.insert(rank.clone());
            changed.extend((ranks.first() == Some(rank)).then_some(port));
        }
        self.by_policy.insert(policy.name.clone(), entry);
        changed
    }

    /// Returns the ports that the policy owned.
    pub fn remove(&mut self, name: &PolicyName) -> Vec<TargetPort> {
        let Some((target, rank, ports)) = self.by_policy.remove(name) else { return Vec::new() };
        let port = |port| TargetPort { target: target.clone(), port };
        ports.into_iter().map(port).filter(|port| self.remove_rank(port, name.kind, &rank)).collect()
    }

    /// Returns whether the rank was the first, which is the owner.
    fn remove_rank(&mut self, port: &TargetPort, kind: PolicyKind, rank: &PolicyRank) -> bool {
        let key = (port.clone(), kind);
        let Some(ranks) = self.by_port.get_mut(&key) else { return false };
        let was_owner = ranks.first() == Some(rank);
        ranks.remove(rank);
        if ranks.is_empty() {
            self.by_port.remove(&key);
        }
        was_owner
    }

    /// Every port of a policy, with the policy of `kind` that owns it.
    pub fn owners<'a>(
        &'a self,
        name: &'a PolicyName,
        kind: PolicyKind,
    ) -> impl Iterator<Item = (Port, Option<&'a PolicyName>)> {
        self.by_policy.get(name).into_iter().flat_map(move |(target, _, ports)| {
            ports.iter().map(move |port| {
                let key = (TargetPort { target: target.clone(), port: *port }, kind);
                (*port, self.by_port.get(&key).and_then(BTreeSet::first).map(|(_, name)| name))
            })
        })
    }

    /// All policies for a port, of both kinds.
    pub fn policies_at(&self, port: &TargetPort) -> impl Iterator<Item = &PolicyName> {
        let ranks = PolicyKind::BOTH.into_iter().filter_map(move |kind| self.by_port.get(&(port.clone(), kind)));
        ranks.flatten().map(|(_, name)| name)
    }
    /// The oldest policy of a kind, other than `except`, that claims one of these ports, and that port.
    pub fn first_claim(
        &self,
        target: &PolicyTarget,
        ports: &[Port],
        kind: PolicyKind,
        except: &PolicyName,
    ) -> Option<(&PolicyRank, Port)> {
        let claims = ports.iter().filter_map(|port| {
            let ranks = self.by_port.get(&(TargetPort { target: target.clone(), port: *port }, kind))?;
            Some((ranks.iter().find(|(_, name)| name != except)?, *port))
        });
        claims.min_by_key(|(rank, _)| *rank)
    }
}
