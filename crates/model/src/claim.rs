//! Who owns an address + port + protocol that several claim: the cluster that comes first in the key's view; within it
//! ClusterIP, then a policy's virtual address, then load-balancer address, then externalIP, then NodePort rows; within a
//! kind the older, then by namespace and name. The losers are known, never mixed in. A virtual address lies where an
//! administrator allows them (`virtual_ranges`): anybody who may write a Service could otherwise take it from all who use it.
//!
//! An address is one cluster's, on all ports: where a later one has a Service on another port of it, a dial would reach now
//! this cluster, now that. Who has a part in it is noted at the "known" key, with or without a row there.
//!
//! Policies stand above Services: LocalRedirectPolicy, BalancingPolicy, Service. Of each of the three one holds, and the
//! next is where a dial goes that the one above has nothing for: the chain of that key.

use crate::address::Address;
use crate::fact::Service;
use crate::hash::HashMap;
use crate::name::{OwnerName, SetName};
use crate::policy::PolicyKind;
use crate::row::{FrontendKey, Kind};
use std::cmp::Ordering;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub kind: Kind,
    /// Of its cluster in the view of the key.
    pub rank: u8,
    pub created: i64,
    pub service: OwnerName,
    /// `None`: the ClusterIP is known and has no such port; or, of another kind, somebody has a part in this address.
    pub set: Option<SetName>,
}

impl Claim {
    pub fn new(service: &Service, kind: Kind, set: SetName) -> Claim {
        Claim { kind, rank: 0, created: service.created, service: service.name.clone(), set: Some(set) }
    }

    pub fn closed(service: &Service) -> Claim {
        Claim { kind: Kind::ClusterIp, rank: 0, created: service.created, service: service.name.clone(), set: None }
    }

    /// That whoever claims this has a part in the address.
    pub fn part(&self) -> Claim {
        Claim { kind: Kind::ExternalIp, set: None, ..self.clone() }
    }

    fn is_part(&self) -> bool {
        self.set.is_none() && self.kind != Kind::ClusterIp
    }

    pub fn level(&self) -> Level {
        Level::of(&self.service)
    }

    fn order(&self, other: &Claim) -> Ordering {
        let key = |claim: &Claim| (claim.rank, standing_of(claim.kind), claim.level(), claim.created);
        key(self).cmp(&key(other)).then_with(|| (&self.service, &self.set).cmp(&(&other.service, &other.set)))
    }
}

fn standing_of(kind: Kind) -> u8 {
    match kind {
        Kind::ClusterIp => 0,
        Kind::Virtual => 1,
        Kind::LoadBalancer => 2,
        Kind::ExternalIp => 3,
        Kind::NodePort => 4,
    }
}

/// In the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Redirect,
    Balancing,
    Service,
}

impl Level {
    pub fn of(owner: &OwnerName) -> Level {
        match owner.policy_kind() {
            Some(PolicyKind::LocalRedirect) => Level::Redirect,
            Some(PolicyKind::Balancing) => Level::Balancing,
            None => Level::Service,
        }
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
    /// The Service whose ClusterIPs a policy takes: it holds only where that Service does.
    on: HashMap<OwnerName, OwnerName>,
}

impl Claims {
    pub fn winner(&self, key: &FrontendKey) -> Option<&Claim> {
        self.chain(key).next()
    }

    /// Of each level the one that holds; the first is the owner, each of the others what the one before it leads on to.
    pub fn chain(&self, key: &FrontendKey) -> impl Iterator<Item = &Claim> {
        let mut level = None;
        let mut is_next = move |claim: &Claim| level.replace(claim.level()).is_none_or(|last| last < claim.level());
        let standing = self.claimants(key).iter().filter(|claim| self.stands(key, claim));
        standing.filter(move |claim| is_next(claim))
    }

    /// Where a policy takes a Service's ClusterIPs: which one.
    pub fn set_service(&mut self, policy: &OwnerName, service: Option<OwnerName>) {
        match service {
            Some(service) => drop(self.on.insert(policy.clone(), service)),
            None => drop(self.on.remove(policy)),
        }
    }

    pub fn is_contested(&self) -> bool {
        self.contested > 0
    }

    /// Room for this many keys more.
    pub fn reserve(&mut self, keys: usize) {
        self.by_key.reserve(keys);
    }

    fn stands(&self, key: &FrontendKey, claim: &Claim) -> bool {
        if claim.is_part() {
            return false;
        }
        if self.contested == 0 && claim.level() == Level::Service {
            return true;
        }
        // Clusters are never mixed. What is at a policy's own address belongs to policies alone, or not to them at all.
        let first = self.claimants(key).first();
        let is_virtual = first.is_some_and(|first| first.kind == Kind::Virtual);
        match claim.kind {
            _ if first.is_some_and(|first| first.rank != claim.rank) => false,
            Kind::NodePort => !is_virtual && self.stands_at_nodes(key, claim),
            _ if self.is_anothers(key, claim) => false,
            Kind::Virtual => is_virtual,
            _ if is_virtual => false,
            _ => claim.level() == Level::Service || self.stands_on_service(key, claim),
        }
    }

    /// A nodePort has one owner on all nodes: rows at single nodes' addresses stand only for the owner of the wildcard.
    fn stands_at_nodes(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let [_, wildcard] = key.fallbacks();
        let owner = || self.by_key.get(&wildcard).map(|claimants| &claimants.winner().service);
        key.is_node_port_row() || owner() == Some(&claim.service)
    }

    /// A cluster that comes before has a part in the address, be it on another port.
    fn is_anothers(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let [known, _] = key.fallbacks();
        self.claimants(&known).first().is_some_and(|first| first.rank < claim.rank)
    }

    /// A policy has no part in an address that its Service lost to another. One that is left to the network is lost to
    /// nobody.
    fn stands_on_service(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let mut equals = self.claimants(key).iter().filter(|other| other.rank == claim.rank);
        let service = equals.find(|other| other.level() == Level::Service);
        service.is_none_or(|owner| self.on.get(&claim.service) == Some(&owner.service))
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

    /// Whose ClusterIP it is.
    pub fn cluster_ip_of(&self, known: &FrontendKey) -> Option<&Claim> {
        self.claimants(known).first().filter(|claim| !claim.is_part())
    }

    /// Whoever claims a key and has no part in it: the key, who holds it there, and who lost. Within a cluster "known" rows
    /// never conflict, and a policy above a Service is no conflict. Of a whole address that is another cluster's it is said
    /// once, at that key.
    pub fn conflicts(&self) -> impl Iterator<Item = (&FrontendKey, &Claim, &Claim)> {
        self.by_key.iter().flat_map(|(key, claimants)| self.losers(key, claimants.list()))
    }

    fn losers<'a>(&'a self, key: &'a FrontendKey, all: &'a [Claim]) -> Vec<(&'a FrontendKey, &'a Claim, &'a Claim)> {
        // Two owners of one nodePort meet at the wildcard; once is enough to say so.
        let repeated = all[0].kind == Kind::NodePort && !key.is_node_port_row();
        if all.len() < 2 || repeated {
            return Vec::new();
        }
        if key.protocol.is_none() {
            return all.iter().filter(|claim| claim.rank > all[0].rank).map(|claim| (key, &all[0], claim)).collect();
        }
        let holders: Vec<&Claim> = self.chain(key).collect();
        let lost = all.iter().filter(|claim| !holders.iter().any(|holder| holder.service == claim.service));
        let lost = lost.filter(|claim| !self.is_anothers(key, claim));
        let before = |claim: &Claim| {
            let equal = holders.iter().find(|holder| holder.level() == claim.level());
            equal.or(holders.first()).copied()
        };
        lost.filter_map(|claim| Some((key, before(claim)?, claim))).collect()
    }

    /// Rows at a node's address that stand before another service's nodePort there: whose they are, and the nodePort.
    pub fn hidden_node_ports(
        &self,
        is_node: impl Fn(&Address) -> bool,
    ) -> impl Iterator<Item = (&FrontendKey, &Claim, &Claim)> {
        let exact = self.by_key.keys().filter(move |key| key.protocol.is_some() && is_node(&key.address));
        exact.filter_map(|key| {
            let winner = self.chain(key).last().filter(|winner| winner.kind != Kind::NodePort)?;
            let [_, wildcard] = key.fallbacks();
            let hidden = self.by_key.get(&wildcard)?.winner();
            (hidden.service != winner.service).then_some((key, winner, hidden))
        })
    }
}
