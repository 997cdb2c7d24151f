//! What policies ask for, whether they get it or not: by address or Service, port and protocol, in the order in which they go
//! before each other. Whoever asks who goes first looks at a few ends of sets, however many policies there are.

use beeline_model::name::Protocol;
use beeline_model::policy::{DialledPort, Matcher, Policy, PolicyKind, PolicyName};
use beeline_model::{Address, OwnerName};
use std::collections::{BTreeSet, HashMap};

/// What a policy's frontend is put on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Spot {
    Service(OwnerName),
    Address(Address),
}

impl Spot {
    pub fn of(policy: &Policy) -> Spot {
        match &policy.matcher {
            Matcher::Service { name, .. } => {
                Spot::Service(OwnerName::new(&policy.name.cluster, &policy.name.namespace, name))
            }
            Matcher::Address { address, .. } => Spot::Address(*address),
        }
    }
}

/// A set of policies at a spot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// Every one.
    Any(Spot),
    /// Those that are for all ports.
    All(Spot),
    /// Those that name it.
    Port(Spot, u16, Protocol),
}

/// The older, then by name.
pub type Rank = (i64, PolicyName);

#[derive(Debug, Default)]
pub struct Spots(HashMap<(Place, PolicyKind), BTreeSet<Rank>>);

impl Spots {
    pub fn insert(&mut self, policy: &Policy) {
        for place in places(policy) {
            self.0.entry((place, policy.name.kind)).or_default().insert(rank(policy));
        }
    }

    pub fn remove(&mut self, policy: &Policy) {
        for place in places(policy) {
            let key = (place, policy.name.kind);
            let Some(ranks) = self.0.get_mut(&key) else { continue };
            ranks.remove(&rank(policy));
            if ranks.is_empty() {
                self.0.remove(&key);
            }
        }
    }

    /// The first other policy of a kind that is for something that this one is for.
    pub fn rival(&self, policy: &Policy, kind: PolicyKind) -> Option<&PolicyName> {
        let first = |place: Place| self.0.get(&(place, kind))?.iter().find(|(_, name)| *name != policy.name);
        rivals(policy).into_iter().filter_map(first).min().map(|(_, name)| name)
    }

    /// Whoever is put there, on whichever port.
    pub fn members(&self, spot: &Spot) -> impl Iterator<Item = &PolicyName> {
        let place = Place::Any(spot.clone());
        let ranks = PolicyKind::BOTH.into_iter().filter_map(move |kind| self.0.get(&(place.clone(), kind)));
        ranks.flatten().map(|(_, name)| name)
    }
}

pub fn rank(policy: &Policy) -> Rank {
    (policy.created, policy.name.clone())
}

/// `None` of a Service's ports means all of them.
pub fn ports(policy: &Policy) -> Option<&[DialledPort]> {
    match &policy.matcher {
        Matcher::Service { ports, .. } => ports.as_deref(),
        Matcher::Address { ports, .. } => Some(ports),
    }
}

fn at_ports(policy: &Policy, spot: &Spot) -> Option<Vec<Place>> {
    Some(ports(policy)?.iter().map(|port| Place::Port(spot.clone(), port.port, port.protocol)).collect())
}

fn places(policy: &Policy) -> Vec<Place> {
    let spot = Spot::of(policy);
    let mut places = at_ports(policy, &spot).unwrap_or_else(|| vec![Place::All(spot.clone())]);
    places.push(Place::Any(spot));
    places
}

fn rivals(policy: &Policy) -> Vec<Place> {
    let spot = Spot::of(policy);
    match at_ports(policy, &spot) {
        None => vec![Place::Any(spot)],
        Some(mut places) => {
            places.push(Place::All(spot));
            places
        }
    }
}
