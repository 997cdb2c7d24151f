//! Which policy holds which port: as agents decide it, of each kind the oldest that means something there. One that names a
//! port which its Service does not have means nothing, and is in nobody's way.

use crate::spot::{Rank, Spot, rank};
use beeline_model::fact::{Service, ServicePort};
use beeline_model::name::Protocol;
use beeline_model::policy::{Matcher, Policy, PolicyKind, PolicyName};
use std::collections::{BTreeSet, HashMap};

pub type Port = (u16, Protocol);

/// Where policies meet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub spot: Spot,
    pub port: Port,
}

#[derive(Debug, Default)]
pub struct Claims {
    by_target: HashMap<(Target, PolicyKind), BTreeSet<Rank>>,
    by_policy: HashMap<PolicyName, (Spot, Rank, Vec<Port>)>,
}

impl Claims {
    /// Says where another one holds it now.
    pub fn set(&mut self, policy: &Policy, service: Option<&Service>) -> Vec<Target> {
        let now = (Spot::of(policy), rank(policy), ports(policy, service));
        if self.by_policy.get(&policy.name) == Some(&now) {
            return Vec::new();
        }
        let mut changed = self.remove(&policy.name);
        let (spot, rank, ports) = &now;
        for port in ports {
            let target = Target { spot: spot.clone(), port: *port };
            let ranks = self.by_target.entry((target.clone(), policy.name.kind)).or_default();
            ranks.insert(rank.clone());
            changed.extend((ranks.first() == Some(rank)).then_some(target));
        }
        self.by_policy.insert(policy.name.clone(), now);
        changed
    }

    pub fn remove(&mut self, name: &PolicyName) -> Vec<Target> {
        let Some((spot, rank, ports)) = self.by_policy.remove(name) else { return Vec::new() };
        let target = |port| Target { spot: spot.clone(), port };
        ports.into_iter().map(target).filter(|target| self.take(target, name.kind, &rank)).collect()
    }

    fn take(&mut self, target: &Target, kind: PolicyKind, rank: &Rank) -> bool {
        let key = (target.clone(), kind);
        let Some(ranks) = self.by_target.get_mut(&key) else { return false };
        let was_first = ranks.first() == Some(rank);
        ranks.remove(rank);
        if ranks.is_empty() {
            self.by_target.remove(&key);
        }
        was_first
    }

    /// Every port that it is for, with whoever holds it in a kind.
    pub fn holders<'a>(
        &'a self,
        name: &'a PolicyName,
        kind: PolicyKind,
    ) -> impl Iterator<Item = (Port, Option<&'a PolicyName>)> {
        self.by_policy.get(name).into_iter().flat_map(move |(spot, _, ports)| {
            ports.iter().map(move |port| {
                let key = (Target { spot: spot.clone(), port: *port }, kind);
                (*port, self.by_target.get(&key).and_then(BTreeSet::first).map(|(_, name)| name))
            })
        })
    }

    /// Of both kinds.
    pub fn members(&self, target: &Target) -> impl Iterator<Item = &PolicyName> {
        let ranks = PolicyKind::BOTH.into_iter().filter_map(move |kind| self.by_target.get(&(target.clone(), kind)));
        ranks.flatten().map(|(_, name)| name)
    }
}

fn ports(policy: &Policy, service: Option<&Service>) -> Vec<Port> {
    match &policy.matcher {
        Matcher::Address { ports, .. } => ports.iter().map(|port| (port.port, port.protocol)).collect(),
        Matcher::Service { ports: Some(ports), .. } => {
            let ports: Vec<Port> = ports.iter().map(|port| (port.port, port.protocol)).collect();
            let has = |wanted: &Port| service.is_some_and(|service| has_port(service, *wanted));
            if ports.iter().all(has) { ports } else { Vec::new() }
        }
        Matcher::Service { ports: None, .. } => {
            let all = service.into_iter().flat_map(|service| service.ports.iter());
            let single = service.is_some_and(|service| service.ports.len() == 1) && policy.target.ports().len() == 1;
            let ours = all.filter(|port| single || is_paired(policy, port));
            ours.map(|port| (port.port, port.protocol)).collect()
        }
    }
}

pub fn has_port(service: &Service, wanted: Port) -> bool {
    service.ports.iter().any(|port| (port.port, port.protocol) == wanted)
}

/// A port of the Service that the policy has no backend port for stays the Service's.
fn is_paired(policy: &Policy, port: &ServicePort) -> bool {
    policy.target.ports().iter().any(|backend| (&backend.name, backend.protocol) == (&port.name, port.protocol))
}
