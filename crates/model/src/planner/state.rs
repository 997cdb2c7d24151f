//! What became of each policy on this node: accepted or why not, who holds its frontends, and how many backends it has.
//! Worked out when somebody asks, by the same functions that plan.

use super::Planner;
use crate::claim::Claim;
use crate::fact::Refusal;
use crate::name::OwnerName;
use crate::plan::policy::{Standing, objection, plan_policy, standing};
use crate::plan::target::counts;
use crate::plan::{ServicePlan, SetPlan};
use crate::policy::{Matcher, Policy, PolicyName, Target};
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
    /// Why it is not accepted; then it claims nothing.
    pub refused: Option<Refusal>,
    pub standing: Standing,
    /// For slices that the controller has not published yet.
    pub waits: bool,
    pub frontends: Vec<FrontendState>,
    /// Addresses that a dial may become, each once.
    pub backends: usize,
    /// What is left out of it, and why.
    pub left_out: Vec<Refusal>,
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

impl Planner {
    /// Sorted by kind, namespace and name.
    pub fn policies(&self) -> Vec<PolicyState> {
        let mut owners: Vec<&OwnerName> = self.register.owners().collect();
        owners.sort_unstable();
        owners.into_iter().filter_map(|owner| self.policy_state(owner)).collect()
    }

    pub fn policy_state(&self, owner: &OwnerName) -> Option<PolicyState> {
        let policy = self.register.policy(owner)?;
        let ground = self.ground(owner, policy);
        let (refused, standing) = (objection(policy, &ground), standing(policy, &ground));
        let plan = plan_policy(policy, &ground);
        let left_out = if refused.is_some() { Vec::new() } else { plan.refusals.clone() };
        let addresses: BTreeSet<_> = plan.sets.iter().flat_map(|set| set.backends.iter().map(|b| b.address)).collect();
        Some(PolicyState {
            name: policy.name.clone(),
            uid: policy.uid.clone(),
            generation: policy.generation,
            target: target_of(policy),
            waits: refused.is_none() && self.waits(owner, policy),
            frontends: self.frontends(&plan),
            backends: addresses.len(),
            refused,
            standing,
            left_out,
        })
    }

    fn waits(&self, owner: &OwnerName, policy: &Policy) -> bool {
        let shape = policy.shape();
        let published = self.register.slices_of(owner).iter().any(|slice| counts(slice, policy, shape));
        matches!(policy.target, Target::Pods { .. }) && !published
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
            dialled: format!("{key:?}"),
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
