//! The state of each policy on this host: whether it is accepted, who holds its frontends, and how many backends it
//! has. Computed on request by the functions that also plan.

use super::Planner;
use crate::address::Address;
use crate::claim::Claim;
use crate::name::ServiceName;
use crate::object::Pod;
use crate::plan::policy::{PolicyApplicability, applicability, backend_count, rejection};
use crate::plan::target::shape_of;
use crate::plan::{ServicePlan, SetPlan};
use crate::policy::{Matcher, Policy, PolicyName};
use crate::refusal::Refusal;
use crate::row::{FrontendKey, FrontendKind};
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyState {
    #[serde(flatten)]
    pub name: PolicyName,
    pub uid: Box<str>,
    pub generation: i64,
    /// `Service default/web`, or an address.
    pub target: String,
    /// The frontend ports that the policy names, such as `53/UDP`. `None` means all ports of the Service.
    pub ports: Option<Vec<String>>,
    /// Why the policy is not accepted. Such a policy claims nothing.
    pub refused: Option<Refusal>,
    pub applicability: PolicyApplicability,
    /// A controller publishes the pods of the policy, and no slice of the policy in its current form was received
    /// yet.
    pub awaits_controller: bool,
    pub frontends: Vec<FrontendState>,
    /// The number of backends: ready pods, or fixed addresses. 0 if the policy serves none of its frontends.
    pub backends: usize,
    /// What the policy leaves out, and why.
    pub left_out: Vec<Refusal>,
    /// Selected pods of this node that are not backends yet, because their cgroup was not found.
    pub without_cgroup: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendState {
    pub dialled: String,
    pub kind: FrontendKind,
    pub port: String,
    pub holder: FrontendHolder,
    /// Who serves the dials that the policy passes on: if it has no backend, over its limit, and from pods that it
    /// selects.
    pub next: Option<ServiceName>,
    pub backends: Vec<std::net::SocketAddr>,
}

/// Who holds a frontend of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FrontendHolder {
    ThisPolicy,
    /// An older policy of the same kind. This policy does not serve the frontend.
    OlderPolicy(ServiceName),
    /// A policy of a kind with higher precedence. This policy serves the dials that it passes on.
    HigherPolicy(ServiceName),
    /// Another Service: the Service of this policy lost the address to it.
    OtherService(ServiceName),
}

impl FrontendHolder {
    /// Whether the policy serves dials to the frontend, possibly after another policy.
    fn is_served(&self) -> bool {
        matches!(self, FrontendHolder::ThisPolicy | FrontendHolder::HigherPolicy(_))
    }
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
    /// Without a controller, the caller computes the slices of policies and applies them.
    pub fn set_self_publishing(&mut self) {
        self.self_publishing = true;
    }

    /// Sorted by kind, namespace and name.
    pub fn policies(&self) -> Vec<PolicyState> {
        self.states_of(self.policies.owners())
    }

    /// The policies of this name, with or without a namespace (`NAMESPACE/NAME`).
    pub fn policies_named(&self, name: &str) -> Vec<PolicyState> {
        let is_named = |owner: &&ServiceName| match name.split_once('/') {
            Some((namespace, name)) => owner.namespace() == namespace && owner.name() == name,
            None => owner.name() == name,
        };
        self.states_of(self.policies.owners().filter(is_named))
    }

    /// The policies that claim this address, and those on a Service: the given one, or else the one whose ClusterIP the
    /// address is.
    pub fn policies_for(&self, address: Address, service: Option<&ServiceName>) -> Vec<PolicyState> {
        let owner = || self.claims.cluster_ip_of(&FrontendKey::all_ports(address)).map(|claim| &claim.service);
        let on_service = service.or_else(owner).into_iter().flat_map(|service| self.policies.on_service(service));
        self.states_of(self.policies.at_address(&address).chain(on_service))
    }

    fn states_of<'a>(&self, owners: impl Iterator<Item = &'a ServiceName>) -> Vec<PolicyState> {
        let owners: BTreeSet<&ServiceName> = owners.collect();
        owners.into_iter().filter_map(|owner| self.policy_state(owner)).collect()
    }

    pub fn policy_state(&self, owner: &ServiceName) -> Option<PolicyState> {
        let policy = self.policies.policy(owner)?;
        let context = self.plan_context(owner.cluster())?;
        let policy_context = self.policy_context(owner, policy, &context);
        let (refused, applicability) = (rejection(policy, &policy_context), applicability(policy, &policy_context));
        let plan = self.plan(owner, &context)?;
        let left_out = if refused.is_some() { Vec::new() } else { plan.refusals.clone() };
        let frontends = self.frontends(&plan);
        let serves = frontends.iter().any(|frontend| frontend.holder.is_served());
        Some(PolicyState {
            name: policy.name.clone(),
            uid: policy.uid.clone(),
            generation: policy.generation,
            target: target_of(policy),
            ports: ports_of(policy),
            awaits_controller: refused.is_none() && self.awaits_controller(owner, policy),
            frontends,
            backends: if serves { backend_count(policy, &policy_context) } else { 0 },
            refused,
            applicability,
            left_out,
            without_cgroup: self.without_cgroup(policy),
        })
    }

    fn awaits_controller(&self, owner: &ServiceName, policy: &Policy) -> bool {
        let seen = shape_of(self.policies.slices_of(owner), policy);
        !self.self_publishing && policy.shape().is_some() && seen != policy.shape()
    }

    fn without_cgroup(&self, policy: &Policy) -> Vec<String> {
        let Some(selector) = policy.local_selector() else { return Vec::new() };
        let of = |pod: &&Pod| pod.name.cluster == policy.name.cluster && pod.name.namespace == policy.name.namespace;
        let pods = self.policies.pods().values().filter(of).filter(|pod| selector.matches(&pod.labels));
        let missing = |pod: &&Pod| self.needs_cgroup(pod) && !self.policies.cgroups().contains_key(&pod.uid);
        pods.filter(missing).map(|pod| format!("{}/{}", pod.name.namespace, pod.name.name)).collect()
    }

    fn frontends(&self, plan: &ServicePlan) -> Vec<FrontendState> {
        let set_of = |claim: &Claim| plan.sets.iter().find(|set| Some(&set.name) == claim.set.as_ref());
        plan.claims.iter().filter_map(|(key, claim)| Some(self.frontend(key, claim, set_of(claim)?))).collect()
    }

    fn frontend(&self, key: &FrontendKey, claim: &Claim, set: &SetPlan) -> FrontendState {
        let mut below = self.claims.chain(key).skip_while(|holding| *holding != claim).skip(1);
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

    fn holder(&self, key: &FrontendKey, claim: &Claim) -> FrontendHolder {
        let chain: Vec<&Claim> = self.claims.chain(key).collect();
        let equal = chain.iter().find(|holder| holder.level() == claim.level());
        match (chain.first(), equal) {
            (Some(first), _) if *first == claim => FrontendHolder::ThisPolicy,
            (Some(first), Some(equal)) if *equal == claim => FrontendHolder::HigherPolicy(first.service.clone()),
            (_, Some(equal)) => FrontendHolder::OlderPolicy(equal.service.clone()),
            (Some(first), None) => FrontendHolder::OtherService(first.service.clone()),
            (None, None) => FrontendHolder::ThisPolicy,
        }
    }
}
