//! From what is marked to what changed: plans are made again, claims are exchanged, and whoever wins, inherits or leads on
//! to another set now is part of the delta.

use super::register::service_of;
use super::{Delta, Planner};
use crate::address::Address;
use crate::claim::Claim;
use crate::fact::Slice;
use crate::hash::HashSet;
use crate::name::{Name, OwnerName};
use crate::plan::policy::{Ground, plan_policy};
use crate::plan::{ServicePlan, Surroundings, plan_service};
use crate::policy::{Matcher, Policy};
use crate::row::FrontendKey;
use crate::rules::StandPoint;
use crate::select::Place;
use crate::stand::order::Bar;
use crate::stand::spread::{Beside, Neighbour, spread};

impl Planner {
    pub(super) fn plan_again(&mut self, names: HashSet<OwnerName>) -> Delta {
        let mut delta = Delta::default();
        let mut keys: HashSet<FrontendKey> = HashSet::default();
        let contested = self.claims.is_contested();
        // Services first: whether a virtual address is free depends on what they claim.
        let (services, mut policies): (HashSet<OwnerName>, HashSet<OwnerName>) =
            names.into_iter().partition(|name| name.policy_kind().is_none());
        policies.extend(self.policies_beside(&services));
        for names in [services, policies] {
            let planned = self.plan_all(names);
            self.claim_all(&planned, &mut keys);
            delta.services.extend(planned);
        }
        self.add_node_rows(&mut keys);
        self.add_other_ports(&mut keys);
        if contested || self.claims.is_contested() {
            self.settle_contests(&mut delta, &keys);
        }
        let winner = |key: FrontendKey| (key, self.claims.winner(&key).cloned());
        if self.claims.is_contested() {
            delta.below = keys.iter().filter_map(|key| Some((*key, self.below(key)?))).collect();
        }
        delta.frontends = keys.iter().copied().map(winner).collect();
        delta.frontends.extend(self.evicted(&keys).into_iter().map(|key| (key, None)));
        if std::mem::take(&mut self.nodes_dirty) {
            delta.nodes = Some(self.node_rows());
        }
        delta.unheard = self.unheard();
        let waiting = self.order.outlooks().iter().filter(|outlook| outlook.waits_first());
        delta.waiting = waiting.map(|outlook| outlook.number).collect();
        delta
    }

    fn below(&self, key: &FrontendKey) -> Option<Vec<Claim>> {
        let claims: Vec<Claim> = self.claims.chain(key).skip(1).cloned().collect();
        (!claims.is_empty()).then_some(claims)
    }

    fn plan_all(&self, names: HashSet<OwnerName>) -> Vec<(OwnerName, Option<ServicePlan>)> {
        let mut names: Vec<OwnerName> = names.into_iter().collect();
        names.sort_unstable();
        // Sorted, so those of one cluster come one after the other.
        let mut around: Option<(&str, Option<Surroundings<'_>>)> = None;
        let mut plans = Vec::with_capacity(names.len());
        for name in &names {
            let cluster = name.cluster();
            let (_, near) = match around.take() {
                Some(known) if known.0 == cluster => around.insert(known),
                _ => around.insert((cluster, self.surroundings(cluster))),
            };
            plans.push(near.as_ref().and_then(|near| self.plan(name, near)));
        }
        names.into_iter().zip(plans).collect()
    }

    /// Who inherits a key from one that lost it may not have its set programmed yet, and who stands above it leads on to
    /// another set now; who lost a key may have a set that nothing leads to.
    fn settle_contests(&self, delta: &mut Delta, keys: &HashSet<FrontendKey>) {
        let planned: HashSet<OwnerName> = delta.services.iter().map(|(name, _)| name.clone()).collect();
        let holders = keys.iter().flat_map(|key| self.claims.chain(key)).map(|claim| &claim.service);
        let heirs = holders.filter(|name| !planned.contains(name)).cloned().collect();
        delta.services.extend(self.plan_all(heirs));
        for plan in delta.services.iter_mut().filter_map(|(_, plan)| plan.as_mut()) {
            plan.keep_used(&self.claims);
            plan.link(&self.claims);
        }
    }

    /// Where there is no pod network, what a policy's Service is left to decides what the policy does when it has nobody.
    fn policies_beside(&self, services: &HashSet<OwnerName>) -> Vec<OwnerName> {
        let is_away = |name: &&OwnerName| self.order.of(name.cluster()).is_some_and(|o| o.stand != StandPoint::Node);
        services.iter().filter(is_away).flat_map(|name| self.register.on_service(name)).cloned().collect()
    }

    /// An address goes from one cluster to another on all ports at once.
    fn add_other_ports(&self, keys: &mut HashSet<FrontendKey>) {
        let mut more = Vec::new();
        for known in keys.iter().filter(|key| key.protocol.is_none() && self.is_several()) {
            let claimants = self.claims.claimants(known).iter().map(|claim| &claim.service);
            let claimed = claimants.filter_map(|name| self.claimed.get(name)).flat_map(|keys| keys.iter());
            more.extend(claimed.filter(|key| key.fallbacks()[0] == *known).copied());
        }
        keys.extend(more);
    }

    /// With a nodePort's owner change its rows at other nodes' addresses.
    fn add_node_rows(&self, keys: &mut HashSet<FrontendKey>) {
        let mut more = Vec::new();
        for wildcard in keys.iter().filter(|key| key.is_node_port_row()) {
            let claimants = self.claims.claimants(wildcard).iter().map(|claim| &claim.service);
            let claimed = claimants.filter_map(|name| self.claimed.get(name)).flat_map(|keys| keys.iter());
            more.extend(claimed.filter(|key| key.fallbacks()[1] == *wildcard).copied());
        }
        keys.extend(more);
    }

    /// `None`: the configuration does not name this cluster.
    pub fn surroundings(&self, cluster: &str) -> Option<Surroundings<'_>> {
        let (outlook, site) = (self.order.of(cluster)?, self.sites.get(cluster)?);
        let own = self.own_node().and_then(|node| node.zone.clone()).filter(|_| !outlook.is_remote());
        let zone = outlook.rules.zone.clone().or(own);
        let node = if outlook.is_remote() { "".into() } else { self.rules.node_name.clone() };
        Some(Surroundings {
            rules: &self.rules,
            place: Place { node, zone },
            hosts: &site.hosts,
            others: &site.others,
            outlook,
            nodes: &site.nodes,
            reach: &self.reach,
            neighbours: self.neighbours(&outlook.rules.name),
        })
    }

    fn neighbours(&self, cluster: &Name) -> Vec<Neighbour<'_>> {
        let others = self.order.outlooks().iter().filter(|outlook| outlook.rules.name != *cluster);
        let known = others.filter_map(|outlook| Some((outlook, self.sites.get(&outlook.rules.name)?)));
        known.map(|(outlook, site)| Neighbour { outlook, hosts: &site.hosts, heard: site.heard }).collect()
    }

    pub(super) fn plan(&self, name: &OwnerName, around: &Surroundings<'_>) -> Option<ServicePlan> {
        let policy = self.register.policy(name);
        let mut plan = match policy {
            Some(policy) => plan_policy(policy, &self.ground(name, policy, around)),
            None => plan_service(self.services.get(name)?, self.slices_of(name), around),
        };
        if let Some(service) = policy.and_then(service_of).filter(|_| around.outlook.stand != StandPoint::Node) {
            let views = || around.outlook.seats.iter().map(|seat| seat.view);
            let has = |key: FrontendKey| self.claims.claimants(&key).iter().any(|claim| claim.service == service);
            plan.leave_to_network(|key| views().any(|view| has(FrontendKey { view, ..*key })));
        }
        if !around.outlook.is_plain() || !around.neighbours.is_empty() {
            let (has, held) = (|key: &FrontendKey| self.has(name, key), |key: &FrontendKey| self.held_for(key));
            let beside = Beside { neighbours: &around.neighbours, has: &has, held: &held };
            plan.withheld = spread(&mut plan, around.outlook, &beside).map(Box::new);
        }
        Some(plan)
    }

    /// The cluster that an address was programmed for before we knew anything.
    fn held_for(&self, known: &FrontendKey) -> Option<&str> {
        self.adopted.get(known).map(OwnerName::cluster)
    }

    pub(super) fn has(&self, name: &OwnerName, key: &FrontendKey) -> bool {
        let holder = self.claims.winner(key).map(|claim| &claim.service);
        holder == Some(name) || self.adopted.get(key) == Some(name)
    }

    pub(super) fn ground<'a>(&'a self, name: &OwnerName, policy: &Policy, around: &Surroundings<'a>) -> Ground<'a> {
        Ground {
            rules: &self.rules,
            way: around.way(),
            pods: self.register.pods(),
            cgroups: self.register.cgroups(),
            service: service_of(policy).and_then(|name| self.services.get(&name)),
            slices: self.register.slices_of(name),
            taken: match policy.matcher {
                Matcher::Address { address, .. } => self.whose(&address, around),
                Matcher::Service { .. } => None,
            },
        }
    }

    /// Whose an address is that a policy wants.
    fn whose(&self, address: &Address, around: &Surroundings<'_>) -> Option<String> {
        let known = self.claims.cluster_ip_of(&FrontendKey::known(*address));
        // What a later cluster has is no hindrance: it comes after.
        let known = known.filter(|claim| around.outlook.seats.iter().any(|s| s.view == 0 && s.rank >= claim.rank));
        match (known, around.hosts.get(address)) {
            (Some(claim), _) => Some(format!("the ClusterIP of Service {}", claim.service)),
            (None, Some(node)) => Some(format!("an address of node {node}, or of a pod on it")),
            (None, None) if self.rules.own_addresses.contains(address) => Some("this host's own".into()),
            (None, None) => None,
        }
    }

    fn depends_on_nodes(&self, name: &OwnerName) -> bool {
        let nameless = |slice: &Slice| slice.endpoints.iter().any(|e| e.node.is_none());
        self.services.get(name).is_some_and(|s| s.external_local() && s.has_node_ports)
            || self.slices_of(name).any(nameless)
    }

    fn claim_all(&mut self, planned: &[(OwnerName, Option<ServicePlan>)], keys: &mut HashSet<FrontendKey>) {
        let claims = planned.iter().filter_map(|(_, plan)| Some(plan.as_ref()?.claims.len())).sum();
        keys.reserve(claims);
        self.claims.reserve(claims.saturating_sub(self.claims.len()));
        for (name, plan) in planned {
            self.claim(name, plan.as_ref(), keys);
        }
        self.note_claimed(planned);
    }

    /// Replaces what the service claims and notes every key whose winner may differ now.
    fn claim(&mut self, name: &OwnerName, plan: Option<&ServicePlan>, keys: &mut HashSet<FrontendKey>) {
        for key in self.claimed.remove(name).iter().flat_map(|old| old.iter()) {
            self.claims.remove(key, name);
            keys.insert(*key);
        }
        self.refusals.remove(name);
        self.withheld.remove(name);
        self.by_nodes.remove(name);
        if name.policy_kind().is_some() {
            self.claims.set_service(name, self.register.policy(name).and_then(service_of));
        }
        let Some(plan) = plan else { return };
        for (key, claim) in &plan.claims {
            self.claims.add(*key, claim.clone());
            keys.insert(*key);
        }
        if !plan.refusals.is_empty() {
            self.refusals.insert(name.clone(), plan.refusals.clone());
        }
        if let Some(bar) = &plan.withheld {
            self.withheld.insert(name.clone(), Bar::clone(bar));
        }
        if self.depends_on_nodes(name) {
            self.by_nodes.insert(name.clone());
        }
    }

    /// Not plan by plan: what stays would lie between what goes, and keep its memory from being given back.
    fn note_claimed(&mut self, planned: &[(OwnerName, Option<ServicePlan>)]) {
        self.claimed.reserve(planned.len().saturating_sub(self.claimed.len()));
        for (name, plan) in planned {
            if let Some(plan) = plan {
                self.claimed.insert(name.clone(), plan.claims.iter().map(|(key, _)| *key).collect());
            }
        }
    }
}
