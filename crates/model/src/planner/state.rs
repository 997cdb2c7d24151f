//! What became of each policy on this node: accepted or why not, who holds its frontends, and how many backends it has.
//! Worked out when somebody asks, by the same functions that plan.

use super::Planner;
use crate::address::Address;
use crate::claim::Claim;
use crate::fact::{Pod, Refusal};
use crate::name::OwnerName;
use crate::plan::policy::{Standing, objection, standing};
use crate::plan::target::shape_of;
use crate::plan::{ServicePlan, SetPlan};
use crate::policy::{Matcher, Policy, PolicyName};
use crate::row::{FrontendKey, Kind};
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyState {
    #[serde(flatten)]
    pub name: PolicyName,
    pub uid: Box<str>,
    pub generation: i64,
    /// What it is about: `Service default/web`, or an address.
    pub target: String,
    /// Dialled ports that it names, such as `53/UDP`; `None`: all that the Service has.
    pub ports: Option<Vec<String>>,
    /// Why it is not accepted; then it claims nothing.
    pub refused: Option<Refusal>,
    pub standing: Standing,
    /// A controller is to publish its pods, and nothing of this very policy, as it is now, has been seen.
    pub waits: bool,
    pub frontends: Vec<FrontendState>,
    /// Addresses that a dial may become, each once.
    pub backends: usize,
    /// What is left out of it, and why.
    pub left_out: Vec<Refusal>,
    /// Pods that it selects here and that join once their cgroup is found.
    pub without_cgroup: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendState {
    pub dialled: String,
    pub kind: Kind,
    pub port: String,
    pub holder: Holder,
    /// Who is asked next: when it has no backend, over its limit, and by pods that it selects.
    pub next: Option<OwnerName>,
    pub backends: Vec<std::net::SocketAddr>,
}

/// Who is asked first at a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Holder {
    Itself,
    /// One of its own kind, which is older: it has no part in the frontend.
    Older(OwnerName),
    /// A kind that goes before: it is asked next.
    Before(OwnerName),
    /// Its Service has lost the address to another.
    Elsewhere(OwnerName),
}

fn target_of(policy: &Policy) -> String {
    match &policy.matcher {
        Matcher::Service { name, .. } => format!("Service {}/{name}", policy.name.namespace),
        Matcher::Address { address, .. } => address.to_string(),
    }
}

fn ports_of(policy: &Policy) -> Option<Vec<String>> {
    let ports = match &policy.matcher {
        Matcher::Service { ports, .. } => ports.as_ref()?,
        Matcher::Address { ports, .. } => ports,
    };
    Some(ports.iter().map(|port| format!("{}/{}", port.port, port.protocol)).collect())
}

impl Planner {
    /// There is no controller: the slices of policies come from whoever feeds us.
    pub fn publish_ourselves(&mut self) {
        self.publishes = true;
    }

    /// Sorted by kind, namespace and name.
    pub fn policies(&self) -> Vec<PolicyState> {
        self.states_of(self.register.owners())
    }

    /// Those that are called so, with or without their namespace.
    pub fn policies_called(&self, name: &str) -> Vec<PolicyState> {
        let is_called = |owner: &&OwnerName| match name.split_once('/') {
            Some((namespace, name)) => owner.namespace() == namespace && owner.name() == name,
            None => owner.name() == name,
        };
        self.states_of(self.register.owners().filter(is_called))
    }

    /// Those that want this address, or take a Service: the one given, else the one whose ClusterIP it is.
    pub fn policies_about(&self, address: Address, service: Option<&OwnerName>) -> Vec<PolicyState> {
        let known = || self.claims.cluster_ip_of(&FrontendKey::known(address)).map(|claim| &claim.service);
        let on_service = service.or_else(known).into_iter().flat_map(|service| self.register.on_service(service));
        self.states_of(self.register.at_address(&address).chain(on_service))
    }

    fn states_of<'a>(&self, owners: impl Iterator<Item = &'a OwnerName>) -> Vec<PolicyState> {
        let owners: BTreeSet<&OwnerName> = owners.collect();
        owners.into_iter().filter_map(|owner| self.policy_state(owner)).collect()
    }

    pub fn policy_state(&self, owner: &OwnerName) -> Option<PolicyState> {
        let policy = self.register.policy(owner)?;
        let around = self.surroundings(owner.cluster())?;
        let ground = self.ground(owner, policy, &around);
        let (refused, standing) = (objection(policy, &ground), standing(policy, &ground));
        let plan = self.plan(owner, &around)?;
        let left_out = if refused.is_some() { Vec::new() } else { plan.refusals.clone() };
        let addresses: BTreeSet<_> = plan.sets.iter().flat_map(|set| set.backends.iter().map(|b| b.address)).collect();
        Some(PolicyState {
            name: policy.name.clone(),
            uid: policy.uid.clone(),
            generation: policy.generation,
            target: target_of(policy),
            ports: ports_of(policy),
            waits: refused.is_none() && self.waits(owner, policy),
            frontends: self.frontends(&plan),
            backends: addresses.len(),
            refused,
            standing,
            left_out,
            without_cgroup: self.without_cgroup(policy),
        })
    }

    fn waits(&self, owner: &OwnerName, policy: &Policy) -> bool {
        let seen = shape_of(self.register.slices_of(owner), policy);
        !self.publishes && policy.shape().is_some() && seen != policy.shape()
    }

    fn without_cgroup(&self, policy: &Policy) -> Vec<String> {
        let Some(selector) = policy.local_selector() else { return Vec::new() };
        let of = |pod: &&Pod| pod.name.cluster == policy.name.cluster && pod.name.namespace == policy.name.namespace;
        let pods = self.register.pods().values().filter(of).filter(|pod| selector.matches(&pod.labels));
        let missing = |pod: &&Pod| self.needs_cgroup(pod) && !self.register.cgroups().contains_key(&pod.uid);
        pods.filter(missing).map(|pod| format!("{}/{}", pod.name.namespace, pod.name.name)).collect()
    }

    fn frontends(&self, plan: &ServicePlan) -> Vec<FrontendState> {
        let set_of = |claim: &Claim| plan.sets.iter().find(|set| Some(&set.name) == claim.set.as_ref());
        plan.claims.iter().filter_map(|(key, claim)| Some(self.frontend(key, claim, set_of(claim)?))).collect()
    }

    fn frontend(&self, key: &FrontendKey, claim: &Claim, set: &SetPlan) -> FrontendState {
        let mut below = self.claims.chain(key).skip_while(|standing| *standing != claim).skip(1);
        let mut backends: Vec<_> =
            set.backends.iter().map(|b| std::net::SocketAddr::new(b.address.ip(), b.port)).collect();
        backends.dedup();
        FrontendState {
            dialled: self.order.dialled(key),
            kind: claim.kind,
            port: set.name.owner.port.to_string(),
            holder: self.holder(key, claim),
            next: below.next().map(|claim| claim.service.clone()),
            backends,
        }
    }

    fn holder(&self, key: &FrontendKey, claim: &Claim) -> Holder {
        let chain: Vec<&Claim> = self.claims.chain(key).collect();
        let equal = chain.iter().find(|holder| holder.level() == claim.level());
        match (chain.first(), equal) {
            (Some(first), _) if *first == claim => Holder::Itself,
            (Some(first), Some(equal)) if *equal == claim => Holder::Before(first.service.clone()),
            (_, Some(equal)) => Holder::Older(equal.service.clone()),
            (Some(first), None) => Holder::Elsewhere(first.service.clone()),
            (None, None) => Holder::Itself,
        }
    }
}
