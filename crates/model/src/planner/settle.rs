//! From what is marked to what changed: plans are made again, claims are exchanged, and whoever wins, inherits or leads on
//! to another set now is part of the delta.

use super::register::service_of;
use super::{Delta, Planner};
use crate::address::Address;
use crate::claim::Claim;
use crate::fact::Slice;
use crate::hash::HashSet;
use crate::name::OwnerName;
use crate::plan::policy::{Ground, plan_policy};
use crate::plan::{ServicePlan, Surroundings, plan_service};
use crate::policy::{Matcher, Policy};
use crate::row::FrontendKey;
use crate::select::Place;

impl Planner {
    pub(super) fn plan_again(&mut self, names: HashSet<OwnerName>) -> Delta {
        let mut delta = Delta::default();
        let mut keys: HashSet<FrontendKey> = HashSet::default();
        let contested = self.claims.is_contested();
        // Services first: whether a virtual address is free depends on what they claim.
        let (services, policies) = names.into_iter().partition(|name| name.policy_kind().is_none());
        for names in [services, policies] {
            let planned = self.plan_all(names);
            self.claim_all(&planned, &mut keys);
            delta.services.extend(planned);
        }
        self.add_node_rows(&mut keys);
        if contested || self.claims.is_contested() {
            self.settle_contests(&mut delta, &keys);
        }
        let winner = |key: FrontendKey| (key, self.claims.winner(&key).cloned());
        if self.claims.is_contested() {
            delta.below = keys.iter().filter_map(|key| Some((*key, self.below(key)?))).collect();
        }
        delta.frontends = keys.into_iter().map(winner).collect();
        if std::mem::take(&mut self.nodes_dirty) {
            delta.nodes = Some(self.node_rows());
        }
        delta
    }

    fn below(&self, key: &FrontendKey) -> Option<Vec<Claim>> {
        let claims: Vec<Claim> = self.claims.chain(key).skip(1).cloned().collect();
        (!claims.is_empty()).then_some(claims)
    }

    fn plan_all(&self, names: HashSet<OwnerName>) -> Vec<(OwnerName, Option<ServicePlan>)> {
        let mut names: Vec<OwnerName> = names.into_iter().collect();
        names.sort_unstable();
        let around = self.surroundings();
        let plans = names.iter().map(|name| self.plan(name, &around)).collect::<Vec<_>>();
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

    pub fn surroundings(&self) -> Surroundings<'_> {
        let zone = self.own_node().and_then(|n| n.zone.clone());
        let place = Place { node: self.rules.node_name.clone(), zone };
        Surroundings { rules: &self.rules, place, hosts: &self.hosts, others: &self.others }
    }

    fn plan(&self, name: &OwnerName, around: &Surroundings<'_>) -> Option<ServicePlan> {
        if let Some(policy) = self.register.policy(name) {
            return Some(plan_policy(policy, &self.ground(name, policy)));
        }
        let service = self.services.get(name)?;
        Some(plan_service(service, self.slices_of(name), around))
    }

    pub(super) fn ground(&self, name: &OwnerName, policy: &Policy) -> Ground<'_> {
        Ground {
            rules: &self.rules,
            nodes: &self.nodes,
            pods: self.register.pods(),
            cgroups: self.register.cgroups(),
            service: service_of(policy).and_then(|name| self.services.get(&name)),
            slices: self.register.slices_of(name),
            taken: match policy.matcher {
                Matcher::Address { address, .. } => self.whose(&address),
                Matcher::Service { .. } => None,
            },
        }
    }

    /// Whose an address is that a policy wants.
    fn whose(&self, address: &Address) -> Option<String> {
        let known = self.claims.claimants(&FrontendKey::known(*address)).first();
        match (known, self.hosts.get(address)) {
            (Some(claim), _) => Some(format!("the ClusterIP of Service {}", claim.service)),
            (None, Some(node)) => Some(format!("an address of node {node}, or of a pod on it")),
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
