//! Who owns an address + port + protocol that several claim: ClusterIP, then load-balancer address, then externalIP, then
//! a policy's virtual address, then NodePort rows; within a kind the older, then by namespace and name. The losers are
//! known, never mixed in.

use crate::address::Address;
use crate::fact::Service;
use crate::hash::HashMap;
use crate::name::{OwnerName, SetName};
use crate::row::{FrontendKey, Kind};
use std::cmp::Ordering;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub kind: Kind,
    pub created: i64,
    pub service: OwnerName,
    /// `None`: the ClusterIP is known and has no such port.
    pub set: Option<SetName>,
}

impl Claim {
    pub fn new(service: &Service, kind: Kind, set: SetName) -> Claim {
        Claim { kind, created: service.created, service: service.name.clone(), set: Some(set) }
    }

    pub fn closed(service: &Service) -> Claim {
        Claim { kind: Kind::ClusterIp, created: service.created, service: service.name.clone(), set: None }
    }

    fn order(&self, other: &Claim) -> Ordering {
        (self.kind, self.created, &self.service, &self.set).cmp(&(
            other.kind,
            other.created,
            &other.service,
            &other.set,
        ))
    }
}

/// Almost every key has one claimant.
#[derive(Debug)]
enum Claimants {
    One(Claim),
    /// Sorted, the winner first; at least two.
    Many(Vec<Claim>),
}

impl Claimants {
    fn winner(&self) -> &Claim {
        match self {
            Claimants::One(claim) => claim,
            Claimants::Many(claims) => &claims[0],
        }
    }

    fn list(&self) -> &[Claim] {
        match self {
            Claimants::One(claim) => std::slice::from_ref(claim),
            Claimants::Many(claims) => claims,
        }
    }
}

#[derive(Debug, Default)]
pub struct Claims {
    by_key: HashMap<FrontendKey, Claimants>,
    /// Keys with several claimants. While there are none, every claim wins.
    contested: usize,
}

impl Claims {
    pub fn winner(&self, key: &FrontendKey) -> Option<&Claim> {
        let claimants = self.by_key.get(key)?;
        if self.contested == 0 {
            return Some(claimants.winner());
        }
        claimants.list().iter().find(|claim| self.stands(key, claim))
    }

    pub fn is_contested(&self) -> bool {
        self.contested > 0
    }

    /// Room for this many keys more.
    pub fn reserve(&mut self, keys: usize) {
        self.by_key.reserve(keys);
    }

    /// A nodePort has one owner on all nodes: rows at single nodes' addresses stand only for the owner of the wildcard.
    fn stands(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let [_, wildcard] = key.fallbacks();
        let owner = || self.by_key.get(&wildcard).map(|claimants| &claimants.winner().service);
        claim.kind != Kind::NodePort || key.is_node_port_row() || owner() == Some(&claim.service)
    }

    /// Who claims a key, the owner first.
    pub fn claimants(&self, key: &FrontendKey) -> &[Claim] {
        self.by_key.get(key).map_or(&[], Claimants::list)
    }

    pub fn keys(&self) -> impl Iterator<Item = &FrontendKey> {
        self.by_key.keys()
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub fn add(&mut self, key: FrontendKey, claim: Claim) {
        let Some(old) = self.by_key.insert(key, Claimants::One(claim)) else { return };
        let mut claims = self.take(&key, old);
        claims.sort_by(Claim::order);
        claims.dedup();
        self.put(key, claims);
    }

    /// Takes back all that this service claims of the key.
    pub fn remove(&mut self, key: &FrontendKey, service: &OwnerName) {
        let Some(old) = self.by_key.remove(key) else { return };
        let mut claims = self.take(key, old);
        claims.retain(|claim| claim.service != *service);
        self.put(*key, claims);
    }

    /// What was there, and what stands there now.
    fn take(&mut self, key: &FrontendKey, old: Claimants) -> Vec<Claim> {
        self.contested -= usize::from(matches!(old, Claimants::Many(_)));
        let now = self.by_key.remove(key);
        old.list().iter().chain(now.iter().flat_map(Claimants::list)).cloned().collect()
    }

    fn put(&mut self, key: FrontendKey, mut claims: Vec<Claim>) {
        let claimants = match claims.len() {
            0 => return,
            1 => Claimants::One(claims.remove(0)),
            _ => {
                self.contested += 1;
                Claimants::Many(claims)
            }
        };
        self.by_key.insert(key, claimants);
    }

    /// Every key that is claimed by more than one service: the winner, and who lost. "Known" rows never conflict.
    pub fn conflicts(&self) -> impl Iterator<Item = (&FrontendKey, &Claim, &[Claim])> {
        self.by_key.iter().filter_map(|(key, claimants)| {
            let (winner, losers) = claimants.list().split_first()?;
            // Two owners of one nodePort meet at the wildcard; once is enough to say so.
            let repeated = winner.kind == Kind::NodePort && !key.is_node_port_row();
            let real = key.protocol.is_some() && !repeated && losers.iter().any(|l| l.service != winner.service);
            real.then_some((key, winner, losers))
        })
    }

    /// Rows at a node's address that stand before another service's nodePort there: whose they are, and the nodePort.
    pub fn hidden_node_ports(
        &self,
        is_node: impl Fn(&Address) -> bool,
    ) -> impl Iterator<Item = (&FrontendKey, &Claim, &Claim)> {
        self.by_key.iter().filter_map(move |(key, claimants)| {
            let winner = claimants.winner();
            if key.protocol.is_none() || winner.kind == Kind::NodePort || !is_node(&key.address) {
                return None;
            }
            let [_, wildcard] = key.fallbacks();
            let hidden = self.by_key.get(&wildcard)?.winner();
            (hidden.service != winner.service).then_some((key, winner, hidden))
        })
    }
}
