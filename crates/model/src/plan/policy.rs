//! The plan of one policy on this host: the frontends that it claims and the sets that they lead to. Pure functions,
//! without ids.
//!
//! Each frontend of a policy has its own set. An empty set stays in place: its dials go to the next set in the chain
//! (`Claims::chain`), and use the policy again as soon as it has a backend, without a change of any frontend row.

use super::port_pair::{PortPair, PortPairs, pair_ports, refusal};
use super::protected::{ProtectedAddresses, Protection};
use super::remote::may_program;
use super::target::{backends, count_backends, members};
use super::{ServicePlan, SetPlan, SetPolicy};
use crate::address::{Address, Family};
use crate::claim::Claim;
use crate::cluster::path;
use crate::hash::HashMap;
use crate::name::{Audience, PortName, ServiceName, SetName, SetRole};
use crate::object::{Node, Pod, PodName, Service};
use crate::policy::{Limit, Matcher, Policy, PolicyKind, PolicySlice, Target};
use crate::refusal::{Refusal, RefusalReason};
use crate::row::{FrontendKey, FrontendKind, MAX_SLOTS, Rule, WhenEmpty};
use crate::rules::{HostRole, Rules};
use crate::virtual_address;
use serde::Serialize;
use std::collections::BTreeMap;

/// What the plan of a policy depends on.
pub struct PolicyContext<'a> {
    pub rules: &'a Rules,
    /// The role of this host in the policy's cluster, and the nodes of that cluster.
    pub path: path::PathContext<'a>,
    /// The pods of this node.
    pub pods: &'a BTreeMap<PodName, Pod>,
    /// Cgroup ids by pod UID.
    pub cgroups: &'a HashMap<Box<str>, u64>,
    /// The Service that the policy's frontend names.
    pub service: Option<&'a Service>,
    pub slices: &'a [PolicySlice],
    /// The current owner of the policy's virtual address, if any.
    pub taken: Option<String>,
    /// An address of the policy's addressEndpoint that is itself a frontend, and of what.
    pub frontend_as_backend: Option<(Address, String)>,
    pub protected: &'a ProtectedAddresses<'a>,
}

impl PolicyContext<'_> {
    /// This host's Node. `None` outside the cluster, even if a Node has the name of this host.
    fn own_node(&self) -> Option<&Node> {
        self.path.nodes.get(&self.rules.node_name).filter(|_| self.path.host_role != HostRole::Outside)
    }
}

/// Whether a policy applies to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyApplicability {
    ThisNode,
    /// The policy's nodeLabelSelector selects other nodes.
    OtherNodes,
    /// `enableOutCluster: false`, and this host is outside the cluster.
    InsideOnly,
}

pub fn applicability(policy: &Policy, context: &PolicyContext<'_>) -> PolicyApplicability {
    let unknown = Default::default();
    let labels = context.own_node().map_or(&unknown, |node| &node.labels);
    match &policy.nodes {
        _ if context.path.host_role == HostRole::Outside && !policy.out_cluster => PolicyApplicability::InsideOnly,
        Some(selector) if !selector.matches(labels) => PolicyApplicability::OtherNodes,
        _ => PolicyApplicability::ThisNode,
    }
}

/// The frontends of a policy: every address is combined with every port pair.
struct Frontends {
    addresses: Vec<Address>,
    kind: FrontendKind,
    pairs: Vec<PortPair>,
    skipped: Vec<Refusal>,
}

/// A policy that is not accepted or does not apply to this host claims nothing, so the next level of precedence serves.
pub fn plan_policy(policy: &Policy, context: &PolicyContext<'_>) -> ServicePlan {
    let mut plan = ServicePlan::default();
    match accept(policy, context) {
        Err(refusal) => plan.refusals.push(refusal),
        Ok(_) if applicability(policy, context) != PolicyApplicability::ThisNode => {}
        Ok(frontends) => write(policy, context, frontends, &mut plan),
    }
    plan
}

/// Why a policy serves no dial on this host although it should: it is refused, or each of its backends is left out. A
/// policy that selects nothing does not fail.
pub fn failure(plan: &ServicePlan) -> Option<&Refusal> {
    let has_backend = plan.sets.iter().any(|set| !set.backends.is_empty());
    let is_note = |refusal: &Refusal| {
        matches!(refusal.reason, RefusalReason::PortWithoutBackend | RefusalReason::TooManyEndpoints)
    };
    plan.refusals.iter().find(|refusal| !has_backend && !is_note(refusal))
}

/// The number of backends that the policy has on this host.
pub fn backend_count(policy: &Policy, context: &PolicyContext<'_>) -> usize {
    match accept(policy, context) {
        Ok(frontends) if applicability(policy, context) == PolicyApplicability::ThisNode => {
            let has_family = |family: &Family| frontends.addresses.iter().any(|address| address.family() == *family);
            let families: Vec<Family> = Family::BOTH.into_iter().filter(has_family).collect();
            count_backends(policy, context, &frontends.pairs, &families)
        }
        _ => 0,
    }
}

/// Why the policy as a whole is not accepted.
pub fn rejection(policy: &Policy, context: &PolicyContext<'_>) -> Option<Refusal> {
    accept(policy, context).err()
}

/// Checks a policy against its Service and pairs its ports. Agents and the controller use this one function, so that the
/// status of a policy says what agents do.
pub fn check_policy(policy: &Policy, service: Option<&Service>) -> Result<PortPairs, Refusal> {
    check_target(policy)?;
    check_limit(policy)?;
    pair_ports(policy, service)
}

fn accept(policy: &Policy, context: &PolicyContext<'_>) -> Result<Frontends, Refusal> {
    let paired = check_policy(policy, context.service)?;
    check_backend_addresses(policy, context)?;
    let (addresses, kind) = match &policy.matcher {
        Matcher::Service { .. } => (cluster_ips(context), FrontendKind::ClusterIp),
        Matcher::Address { address, .. } => {
            check_virtual(policy, *address, context)?;
            check_api_server(policy, *address, &paired.pairs, context)?;
            (vec![*address], FrontendKind::Virtual)
        }
    };
    Ok(Frontends { addresses, kind, pairs: paired.pairs, skipped: paired.skipped })
}

/// The ClusterIPs of the policy's Service that may be programmed on this host.
fn cluster_ips(context: &PolicyContext<'_>) -> Vec<Address> {
    let all = context.service.into_iter().flat_map(|service| service.cluster_ips.iter().copied());
    all.filter(|address| may_program(context.rules, &context.path, *address)).collect()
}

fn check_target(policy: &Policy) -> Result<(), Refusal> {
    let special = |a: &&Address| a.is_any() || a.is_loopback() || a.ip().is_multicast();
    let problem = match (policy.name.kind, &policy.target) {
        (PolicyKind::LocalRedirect, Target::LocalPods { .. }) | (PolicyKind::Balancing, Target::Pods { .. }) => None,
        (PolicyKind::Balancing, Target::Addresses { addresses, .. }) if addresses.is_empty() => {
            Some("addressEndpoint names no address".to_owned())
        }
        (PolicyKind::Balancing, Target::Addresses { addresses, .. }) => {
            let bad = addresses.iter().find(special);
            bad.map(|bad| format!("{bad} cannot be a backend: it is a loopback, unspecified or multicast address"))
        }
        (kind, _) => Some(format!("a {kind} cannot have this type of backend")),
    };
    problem.map_or(Ok(()), |why| Err(refusal(policy, RefusalReason::BadBackend, why)))
}

/// A ClusterIP and a virtual address exist on no interface, and a dial is resolved once: a connection to such a backend
/// would never be answered.
fn check_backend_addresses(policy: &Policy, context: &PolicyContext<'_>) -> Result<(), Refusal> {
    match &context.frontend_as_backend {
        None => Ok(()),
        Some((address, owner)) => Err(refusal(policy, RefusalReason::BadBackend, frontend_as_backend(*address, owner))),
    }
}

/// The message for an addressEndpoint at a frontend. `owner` is `the ClusterIP of Service default/web`.
pub fn frontend_as_backend(address: Address, owner: &str) -> String {
    format!("addressEndpoint {address} is {owner}, which no host has: use serviceEndpoint, or the addresses behind it")
}

fn check_limit(policy: &Policy) -> Result<(), Refusal> {
    match policy.limit {
        Some(Limit { connects_per_second: 0, .. } | Limit { burst: 0, .. }) => {
            let why = "connectsPerSecond and burst must be at least 1; omit the limit to disable it";
            Err(refusal(policy, RefusalReason::BadLimit, why))
        }
        _ => Ok(()),
    }
}

fn check_virtual(policy: &Policy, address: Address, context: &PolicyContext<'_>) -> Result<(), Refusal> {
    let not_allowed = |why: &dyn std::fmt::Display| {
        Err(refusal(policy, RefusalReason::VirtualAddressNotAllowed, format!("virtual address {address}: {why}")))
    };
    if context.path.is_own_address(address) {
        let message = format!(
            "virtual address {address} is this host's own, loopback or link-local, which a policy of a remote cluster may not \
             use: use an address in fd00:bee::/48, or in another range of --virtual-address-cidrs"
        );
        return Err(refusal(policy, RefusalReason::OwnAddress, message));
    }
    match (&context.taken, virtual_address::check(&context.rules.virtual_address_cidrs, address)) {
        (Some(owner), _) => not_allowed(&format!("it is already {owner}")),
        (None, Err(why)) => not_allowed(&why),
        (None, Ok(())) => match context.protected.at_virtual(address) {
            Some(Protection { what, .. }) => not_allowed(&format!("it is {what}")),
            None => Ok(()),
        },
    }
}

fn check_api_server(
    policy: &Policy,
    address: Address,
    pairs: &[PortPair],
    context: &PolicyContext<'_>,
) -> Result<(), Refusal> {
    match pairs.iter().find(|pair| context.protected.is_api_server(address, pair.dialled.port)) {
        Some(pair) => {
            let message = format!("{address}:{} is an API server: use another address", pair.dialled.port);
            Err(refusal(policy, RefusalReason::ApiServerAddress, message))
        }
        None => Ok(()),
    }
}

fn write(policy: &Policy, context: &PolicyContext<'_>, frontends: Frontends, plan: &mut ServicePlan) {
    let owner = ServiceName::of_policy(&policy.name);
    let Frontends { addresses, kind, pairs, skipped } = frontends;
    plan.refusals = skipped;
    plan.members = members(policy, context);
    for pair in pairs.iter().filter(|pair| pair.dialled.protocol.has_hook()) {
        for address in &addresses {
            let name = set_name(policy, &owner, pair, address.family());
            let key = FrontendKey::new(*address, pair.dialled.port, pair.dialled.protocol);
            let (created, service) = (policy.created, owner.clone());
            let claim = Claim { kind, rank: 0, created, service, set: Some(name.clone()) };
            plan.claims.push((key, claim));
            plan.sets.push(set(policy, context, pair, name, &mut plan.refusals));
        }
    }
    plan.refusals.sort();
    plan.refusals.dedup();
}

fn set_name(policy: &Policy, owner: &ServiceName, pair: &PortPair, family: Family) -> SetName {
    let port = pair.dialled.name.clone();
    let role = match policy.name.kind {
        PolicyKind::LocalRedirect => SetRole::Local,
        PolicyKind::Balancing => SetRole::Cluster,
    };
    let matched = policy.matcher.fingerprint(&pair.dialled);
    let owner = PortName { matched, ..PortName::new(owner.clone(), port, pair.dialled.protocol) };
    SetName { owner, family, role, audience: Audience::Everyone }
}

fn set(
    policy: &Policy,
    context: &PolicyContext<'_>,
    pair: &PortPair,
    name: SetName,
    refusals: &mut Vec<Refusal>,
) -> SetPlan {
    let mut backends = backends(policy, context, pair, name.family, refusals);
    if backends.len() > MAX_SLOTS {
        let message = format!("{} backends of {}: only the first {MAX_SLOTS} are used", backends.len(), name.owner);
        refusals.push(refusal(policy, RefusalReason::TooManyEndpoints, message));
        backends.truncate(MAX_SLOTS);
    }
    let redirects = policy.name.kind == PolicyKind::LocalRedirect;
    let affinity = context.service.and_then(|service| service.affinity).filter(|_| !redirects);
    SetPlan {
        rule: if redirects { Rule::Redirect } else { Rule::Balancing },
        affinity: affinity.unwrap_or(0),
        when_empty: WhenEmpty::Refuse,
        has_any_endpoint: !backends.is_empty(),
        next: None,
        policy: Some(SetPolicy { limit: policy.limit, self_next: redirects }),
        name,
        backends,
    }
}
