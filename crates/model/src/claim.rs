//! Decides who owns a frontend (address, port and protocol) that several Services or policies claim. The order: the
//! rank of the cluster in the key's view; then the kind, from ClusterIP over a policy's virtual address, load-balancer
//! address and externalIP to NodePort; then the older object; then namespace and name. The losers are refused; their
//! backends are never mixed in. A policy's virtual address takes precedence over load-balancer addresses and
//! externalIPs, because it is in a range that an administrator allows (`virtual_address_cidrs`): otherwise anyone who may
//! create a Service could take it over.
//!
//! An address belongs to one cluster on all its ports. If a later cluster could use another port of the same address, a
//! client would reach different clusters by port. An address claim at the all-ports key records which clusters use the
//! address.
//!
//! Policies take precedence over Services: LocalRedirectPolicy, BalancingPolicy, Service. At each of the three levels
//! at most one claim holds a key. A dial that one level has no backend for goes on to the next level; this is the chain
//! of the key.

use crate::address::Address;
use crate::hash::HashMap;
use crate::name::{ServiceName, SetName};
use crate::object::Service;
use crate::policy::PolicyKind;
use crate::row::{FrontendKey, FrontendKind};
use std::cmp::Ordering;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub kind: FrontendKind,
    /// The rank of the claiming cluster in the view of the key.
    pub rank: u8,
    pub created: i64,
    pub service: ServiceName,
    /// `None` for the ClusterIP of a Service (a port that the Service does not have is refused), and for an address
    /// claim.
    pub set: Option<SetName>,
}

impl Claim {
    pub fn new(service: &Service, kind: FrontendKind, set: SetName) -> Claim {
        Claim { kind, rank: 0, created: service.created, service: service.name.clone(), set: Some(set) }
    }

    pub fn closed(service: &Service) -> Claim {
        Claim {
            kind: FrontendKind::ClusterIp,
            rank: 0,
            created: service.created,
            service: service.name.clone(),
            set: None,
        }
    }

    /// Records that the owner of this claim uses the address, without claiming a row.
    pub fn to_address_claim(&self) -> Claim {
        Claim { kind: FrontendKind::ExternalIp, set: None, ..self.clone() }
    }

    fn is_address_claim(&self) -> bool {
        self.set.is_none() && self.kind != FrontendKind::ClusterIp
    }

    pub fn level(&self) -> Precedence {
        Precedence::of(&self.service)
    }

    fn order(&self, other: &Claim) -> Ordering {
        let key = |claim: &Claim| (claim.rank, kind_rank(claim.kind), claim.level(), claim.created);
        key(self).cmp(&key(other)).then_with(|| (&self.service, &self.set).cmp(&(&other.service, &other.set)))
    }
}

fn kind_rank(kind: FrontendKind) -> u8 {
    match kind {
        FrontendKind::ClusterIp => 0,
        FrontendKind::Virtual => 1,
        FrontendKind::LoadBalancer => 2,
        FrontendKind::ExternalIp => 3,
        FrontendKind::NodePort => 4,
    }
}

/// In order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    Redirect,
    Balancing,
    Service,
}

impl Precedence {
    pub fn of(owner: &ServiceName) -> Precedence {
        match owner.policy_kind() {
            Some(PolicyKind::LocalRedirect) => Precedence::Redirect,
            Some(PolicyKind::Balancing) => Precedence::Balancing,
            None => Precedence::Service,
        }
    }
}

/// Almost every key has a single claimant.
#[derive(Debug)]
enum Claimants {
    One(Claim),
    /// At least two claims, sorted, the winner first.
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
    /// The number of keys with several claimants. While it is 0, every claim wins.
    contested: usize,
    /// By policy: the Service whose ClusterIPs the policy takes over. The policy holds a frontend only where that
    /// Service holds it.
    services_of_policies: HashMap<ServiceName, ServiceName>,
}

impl Claims {
    pub fn winner(&self, key: &FrontendKey) -> Option<&Claim> {
        self.chain(key).next()
    }

    /// The claims that hold the key, at most one per level. The first is the owner; each of the others serves the dials
    /// that the one before it passes on.
    pub fn chain(&self, key: &FrontendKey) -> impl Iterator<Item = &Claim> {
        let mut level = None;
        let mut is_next = move |claim: &Claim| level.replace(claim.level()).is_none_or(|last| last < claim.level());
        let holding = self.claimants(key).iter().filter(|claim| self.holds(key, claim));
        holding.filter(move |claim| is_next(claim))
    }

    /// Sets the Service whose ClusterIPs a policy takes over.
    pub fn set_service(&mut self, policy: &ServiceName, service: Option<ServiceName>) {
        match service {
            Some(service) => drop(self.services_of_policies.insert(policy.clone(), service)),
            None => drop(self.services_of_policies.remove(policy)),
        }
    }

    pub fn is_contested(&self) -> bool {
        self.contested > 0
    }

    /// Reserves capacity for this many more keys.
    pub fn reserve(&mut self, keys: usize) {
        self.by_key.reserve(keys);
    }

    fn holds(&self, key: &FrontendKey, claim: &Claim) -> bool {
        if claim.is_address_claim() {
            return false;
        }
        if self.contested == 0 && claim.level() == Precedence::Service {
            return true;
        }
        // Claims of different clusters are never mixed. The frontend of a virtual address is held either by policies
        // only or by no policy.
        let first = self.claimants(key).first();
        let is_virtual = first.is_some_and(|first| first.kind == FrontendKind::Virtual);
        match claim.kind {
            _ if first.is_some_and(|first| first.rank != claim.rank) => false,
            FrontendKind::NodePort => !is_virtual && self.holds_node_port(key, claim),
            _ if self.is_of_earlier_cluster(key, claim) => false,
            FrontendKind::Virtual => is_virtual,
            _ if is_virtual => false,
            _ => claim.level() == Precedence::Service || self.holds_with_service(key, claim),
        }
    }

    /// A nodePort has one owner on all nodes: rows at single node addresses hold only for the owner of the wildcard
    /// row.
    fn holds_node_port(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let [_, wildcard] = key.fallbacks();
        let owner = || self.by_key.get(&wildcard).map(|claimants| &claimants.winner().service);
        key.is_node_port_row() || owner() == Some(&claim.service)
    }

    /// A cluster with a lower rank uses the address, possibly on another port.
    fn is_of_earlier_cluster(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let [all_ports, _] = key.fallbacks();
        self.claimants(&all_ports).first().is_some_and(|first| first.rank < claim.rank)
    }

    /// A policy does not hold an address that its Service lost to another Service. An address that the Service leaves
    /// to the network is not lost.
    fn holds_with_service(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let mut equals = self.claimants(key).iter().filter(|other| other.rank == claim.rank);
        let service = equals.find(|other| other.level() == Precedence::Service);
        service.is_none_or(|owner| self.services_of_policies.get(&claim.service) == Some(&owner.service))
    }

    /// All claims of a key, the owner first.
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
        let mut claims = self.take_claims(&key, old);
        claims.sort_by(Claim::order);
        claims.dedup();
        self.set_claims(key, claims);
    }

    /// Removes all claims of this Service or policy to the key.
    pub fn remove(&mut self, key: &FrontendKey, service: &ServiceName) {
        let Some(old) = self.by_key.remove(key) else { return };
        let mut claims = self.take_claims(key, old);
        claims.retain(|claim| claim.service != *service);
        self.set_claims(*key, claims);
    }

    /// The previous claims and the claim that was just inserted.
    fn take_claims(&mut self, key: &FrontendKey, old: Claimants) -> Vec<Claim> {
        self.contested -= usize::from(matches!(old, Claimants::Many(_)));
        let now = self.by_key.remove(key);
        old.list().iter().chain(now.iter().flat_map(Claimants::list)).cloned().collect()
    }

    fn set_claims(&mut self, key: FrontendKey, mut claims: Vec<Claim>) {
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

    /// The Service whose ClusterIP this is.
    pub fn cluster_ip_of(&self, all_ports: &FrontendKey) -> Option<&Claim> {
        self.claimants(all_ports).first().filter(|claim| !claim.is_address_claim())
    }

    /// All conflicts, as the key, the holder and the loser. Within a cluster, all-ports rows never conflict, and a
    /// policy that takes precedence over a Service is not a conflict. An address that belongs to another cluster is
    /// reported once, at its all-ports key.
    pub fn conflicts(&self) -> impl Iterator<Item = (&FrontendKey, &Claim, &Claim)> {
        self.by_key.iter().flat_map(|(key, claimants)| self.losers(key, claimants.list()))
    }

    fn losers<'a>(&'a self, key: &'a FrontendKey, all: &'a [Claim]) -> Vec<(&'a FrontendKey, &'a Claim, &'a Claim)> {
        // Two owners of one nodePort are reported once, at the wildcard row.
        let repeated = all[0].kind == FrontendKind::NodePort && !key.is_node_port_row();
        if all.len() < 2 || repeated {
            return Vec::new();
        }
        if key.protocol.is_none() {
            return all.iter().filter(|claim| claim.rank > all[0].rank).map(|claim| (key, &all[0], claim)).collect();
        }
        let holders: Vec<&Claim> = self.chain(key).collect();
        let lost = all.iter().filter(|claim| !holders.iter().any(|holder| holder.service == claim.service));
        let lost = lost.filter(|claim| !self.is_of_earlier_cluster(key, claim));
        let before = |claim: &Claim| {
            let equal = holders.iter().find(|holder| holder.level() == claim.level());
            equal.or(holders.first()).copied()
        };
        lost.filter_map(|claim| Some((key, before(claim)?, claim))).collect()
    }

    /// Frontends at a node's address that hide the nodePort of another service: the key, its holder and the hidden
    /// claim.
    pub fn hidden_node_ports(
        &self,
        is_node: impl Fn(&Address) -> bool,
    ) -> impl Iterator<Item = (&FrontendKey, &Claim, &Claim)> {
        let exact = self.by_key.keys().filter(move |key| key.protocol.is_some() && is_node(&key.address));
        exact.filter_map(|key| {
            let winner = self.chain(key).last().filter(|winner| winner.kind != FrontendKind::NodePort)?;
            let [_, wildcard] = key.fallbacks();
            let hidden = self.by_key.get(&wildcard)?.winner();
            (hidden.service != winner.service).then_some((key, winner, hidden))
        })
    }
}
