//! What one policy should become on this node: the frontends that it claims and the sets that they lead to. Pure, no ids.
//!
//! A set of a policy serves one frontend. Empty, it stays: dials fall through to the next in the order (`Claims::chain`
//! says which that is), and find the policy again as soon as it has a backend, without a change of any row.

use super::away::may_hold;
use super::pair::{Pair, pair_ports, refusal};
use super::target::{backends, members};
use super::{ServicePlan, SetPlan, SetPolicy};
use crate::address::{Address, Family};
use crate::claim::Claim;
use crate::fact::{Node, Pod, PodName, Refusal, Service};
use crate::hash::HashMap;
use crate::name::{Audience, OwnerName, PortName, SetName, SetRole};
use crate::policy::{Limit, Matcher, Policy, PolicyKind, PolicySlice, Target};
use crate::row::{FrontendKey, Kind, MAX_SLOTS, Rule, WhenEmpty};
use crate::rules::{Rules, StandPoint};
use crate::stand::way;
use crate::virtual_address;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a plan needs to know beside the policy.
pub struct Ground<'a> {
    pub rules: &'a Rules,
    /// Where we stand to the policy's cluster, and its nodes.
    pub way: way::Ground<'a>,
    /// Of this node.
    pub pods: &'a BTreeMap<PodName, Pod>,
    /// By the uid of their pod.
    pub cgroups: &'a HashMap<Box<str>, u64>,
    /// The one that its frontend names.
    pub service: Option<&'a Service>,
    pub slices: &'a [PolicySlice],
    /// Whose its virtual address is already.
    pub taken: Option<String>,
}

impl Ground<'_> {
    /// Outside the cluster there is none, whatever this host is called.
    fn own_node(&self) -> Option<&Node> {
        self.way.nodes.get(&self.rules.node_name).filter(|_| self.way.stand != StandPoint::Outside)
    }
}

/// Whether a policy is meant for this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    Here,
    /// Its nodeLabelSelector asks for other nodes.
    OtherNodes,
    /// `enableOutCluster: false`, and we stand outside.
    InsideOnly,
}

pub fn standing(policy: &Policy, ground: &Ground<'_>) -> Standing {
    let unknown = Default::default();
    let labels = ground.own_node().map_or(&unknown, |node| &node.labels);
    match &policy.nodes {
        _ if ground.way.stand == StandPoint::Outside && !policy.out_cluster => Standing::InsideOnly,
        Some(selector) if !selector.matches(labels) => Standing::OtherNodes,
        _ => Standing::Here,
    }
}

/// What is dialled, and as what.
struct Frontends {
    addresses: Vec<Address>,
    kind: Kind,
    pairs: Vec<Pair>,
    left: Vec<Refusal>,
}

/// Not accepted, or not for us: nothing is claimed, and what is below it in the order serves.
pub fn plan_policy(policy: &Policy, ground: &Ground<'_>) -> ServicePlan {
    let mut plan = ServicePlan::default();
    match accept(policy, ground) {
        Err(refusal) => plan.refusals.push(refusal),
        Ok(_) if standing(policy, ground) != Standing::Here => {}
        Ok(frontends) => write(policy, ground, frontends, &mut plan),
    }
    plan
}

/// Why the policy as a whole is not accepted.
pub fn objection(policy: &Policy, ground: &Ground<'_>) -> Option<Refusal> {
    accept(policy, ground).err()
}

fn accept(policy: &Policy, ground: &Ground<'_>) -> Result<Frontends, Refusal> {
    check_target(policy)?;
    check_limit(policy)?;
    let found = pair_ports(policy, ground.service)?;
    let (addresses, kind) = match &policy.matcher {
        Matcher::Service { .. } => (cluster_ips(ground), Kind::ClusterIp),
        Matcher::Address { address, .. } => {
            check_virtual(policy, *address, ground)?;
            (vec![*address], Kind::Virtual)
        }
    };
    Ok(Frontends { addresses, kind, pairs: found.pairs, left: found.left })
}

/// Those that its Service may have here at all.
fn cluster_ips(ground: &Ground<'_>) -> Vec<Address> {
    let all = ground.service.into_iter().flat_map(|service| service.cluster_ips.iter().copied());
    all.filter(|address| may_hold(ground.rules, &ground.way, *address)).collect()
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
            bad.map(|bad| format!("{bad} is no address of a server: loopback, unspecified or multicast"))
        }
        (kind, _) => Some(format!("a {kind} cannot have such a backend")),
    };
    problem.map_or(Ok(()), |why| Err(refusal(policy, "badBackend", why)))
}

fn check_limit(policy: &Policy) -> Result<(), Refusal> {
    match policy.limit {
        Some(Limit { connects_per_second: 0, .. } | Limit { burst: 0, .. }) => {
            let why = "connectsPerSecond and burst are at least 1; leave the limit out for none";
            Err(refusal(policy, "badLimit", why))
        }
        _ => Ok(()),
    }
}

fn check_virtual(policy: &Policy, address: Address, ground: &Ground<'_>) -> Result<(), Refusal> {
    let not_allowed = |why: &dyn std::fmt::Display| {
        Err(refusal(policy, "virtualAddressNotAllowed", format!("virtual address {address}: {why}")))
    };
    if ground.way.is_ours(address) {
        let message = format!(
            "virtual address {address} is this host's own, loopback or link-local: no remote cluster's; use one of \
             fd00:bee::/48, or of another range that --virtual-ranges lists"
        );
        return Err(refusal(policy, "ownAddress", message));
    }
    match (virtual_address::check(&ground.rules.virtual_ranges, address), &ground.taken) {
        (Err(why), _) => not_allowed(&why),
        (Ok(()), Some(whose)) => not_allowed(&format!("it is {whose} already")),
        (Ok(()), None) => Ok(()),
    }
}

fn write(policy: &Policy, ground: &Ground<'_>, frontends: Frontends, plan: &mut ServicePlan) {
    let owner = OwnerName::of_policy(&policy.name);
    let Frontends { addresses, kind, pairs, left } = frontends;
    plan.refusals = left;
    plan.members = members(policy, ground);
    for pair in pairs.iter().filter(|pair| pair.dialled.protocol.has_hook()) {
        for address in &addresses {
            let name = set_name(policy, &owner, pair, address.family());
            let key = FrontendKey::new(*address, pair.dialled.port, pair.dialled.protocol);
            let (created, service) = (policy.created, owner.clone());
            let claim = Claim { kind, rank: 0, created, service, set: Some(name.clone()) };
            plan.claims.push((key, claim));
            plan.sets.push(set(policy, ground, pair, name, &mut plan.refusals));
        }
    }
    plan.refusals.sort();
    plan.refusals.dedup();
}

fn set_name(policy: &Policy, owner: &OwnerName, pair: &Pair, family: Family) -> SetName {
    let port = pair.dialled.name.clone();
    let role = match policy.name.kind {
        PolicyKind::LocalRedirect => SetRole::Local,
        PolicyKind::Balancing => SetRole::Cluster,
    };
    let matched = policy.matcher.mark(&pair.dialled);
    let owner = PortName { matched, ..PortName::new(owner.clone(), port, pair.dialled.protocol) };
    SetName { owner, family, role, audience: Audience::Everyone }
}

fn set(policy: &Policy, ground: &Ground<'_>, pair: &Pair, name: SetName, refusals: &mut Vec<Refusal>) -> SetPlan {
    let mut backends = backends(policy, ground, pair, name.family, refusals);
    if backends.len() > MAX_SLOTS {
        let message = format!("{} backends of {}: only the first {MAX_SLOTS} are used", backends.len(), name.owner);
        refusals.push(refusal(policy, "tooManyEndpoints", message));
        backends.truncate(MAX_SLOTS);
    }
    let redirects = policy.name.kind == PolicyKind::LocalRedirect;
    let kept = ground.service.and_then(|service| service.affinity).filter(|_| !redirects);
    SetPlan {
        rule: if redirects { Rule::Redirect } else { Rule::Balancing },
        affinity: kept.unwrap_or(0),
        when_empty: WhenEmpty::Refuse,
        any: !backends.is_empty(),
        next: None,
        policy: Some(SetPolicy { limit: policy.limit, self_next: redirects }),
        name,
        backends,
    }
}
