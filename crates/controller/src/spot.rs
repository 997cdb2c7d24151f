//! Where policies are in each other's way: by address or Service, port and protocol, in the order in which they go before
//! each other. Whoever asks who goes first looks at a few ends of sets, however many policies there are.

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
pub enum Place {
    /// Every one.
    Any(Spot),
    /// Those that are for all ports.
    All(Spot),
    /// Those that name it.
    Port(Spot, u16, Protocol),
}

impl Place {
    /// Whose verdict hangs on who is first here.
    fn readers(&self) -> Place {
        match self {
            Place::Any(spot) => Place::All(spot.clone()),
            Place::All(spot) => Place::Any(spot.clone()),
            Place::Port(..) => self.clone(),
        }
    }
}

/// The older, then by name.
type Rank = (i64, PolicyName);

#[derive(Debug, Default)]
pub struct Spots(HashMap<(Place, PolicyKind), BTreeSet<Rank>>);

impl Spots {
    /// Says where others may have another one before them now.
    pub fn insert(&mut self, policy: &Policy) -> Vec<Place> {
        let rank = rank(policy);
        let put = |place: Place| {
            let ranks = self.0.entry((place.clone(), policy.name.kind)).or_default();
            ranks.insert(rank.clone());
            (ranks.first() == Some(&rank)).then(|| place.readers())
        };
        places(policy).into_iter().filter_map(put).collect()
    }

    pub fn remove(&mut self, policy: &Policy) -> Vec<Place> {
        let rank = rank(policy);
        places(policy).into_iter().filter_map(|place| self.take(place, policy.name.kind, &rank)).collect()
    }

    fn take(&mut self, place: Place, kind: PolicyKind, rank: &Rank) -> Option<Place> {
        let key = (place, kind);
        let ranks = self.0.get_mut(&key)?;
        let was_first = ranks.first() == Some(rank);
        ranks.remove(rank);
        if ranks.is_empty() {
            self.0.remove(&key);
        }
        was_first.then(|| key.0.readers())
    }

    /// The first other policy of a kind that is for something that this one is for.
    pub fn rival(&self, policy: &Policy, kind: PolicyKind) -> Option<&PolicyName> {
        let first = |place: Place| self.0.get(&(place, kind))?.iter().find(|(_, name)| *name != policy.name);
        rivals(policy).into_iter().filter_map(first).min().map(|(_, name)| name)
    }

    pub fn members(&self, place: &Place) -> impl Iterator<Item = &PolicyName> {
        let ranks = PolicyKind::BOTH.into_iter().filter_map(move |kind| self.0.get(&(place.clone(), kind)));
        ranks.flatten().map(|(_, name)| name)
    }
}

fn rank(policy: &Policy) -> Rank {
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
