//! Expands the frontends of one cluster's plan to all views: one row per view, and one set for all of them.

use super::order::{ClusterContext, RangeConflict, ViewRank};
use crate::address::Address;
use crate::claim::Claim;
use crate::name::{Audience, Name, PortName, SetName};
use crate::plan::ServicePlan;
use crate::refusal::{Refusal, RefusalReason};
use crate::row::{FrontendKey, FrontendKind};
use std::collections::{BTreeMap, BTreeSet};

/// Another cluster, which may own addresses that this cluster claims.
pub struct OtherCluster<'a> {
    pub context: &'a ClusterContext,
    /// The node of each address of that cluster.
    pub hosts: &'a BTreeMap<Address, Name>,
    /// At least one object of that cluster was received.
    pub has_data: bool,
}

impl OtherCluster<'_> {
    fn is_before(&self, rank: &ViewRank) -> bool {
        self.context.view_ranks.iter().any(|own| own.view == rank.view && own.rank < rank.rank)
    }
}

/// What decides besides the ranks of the clusters.
pub struct ViewInputs<'a> {
    pub others: &'a [OtherCluster<'a>],
    /// Whether the Service or policy already holds the key. It keeps such a key while the ranges of an earlier cluster
    /// are unknown.
    pub has: &'a dyn Fn(&FrontendKey) -> bool,
    /// The cluster for which the tables held the address (by its all-ports key) when the agent started.
    pub held: &'a dyn Fn(&FrontendKey) -> Option<&'a str>,
}

/// Why an address is not programmed in a view.
enum Exclusion {
    Range(RangeConflict),
    /// The tables still hold the address for an earlier cluster of which no object was received yet.
    Held,
    /// It is the address of a node of an earlier cluster, or of a pod on this node.
    Host(Refusal),
}

/// Returns the reason if an address is not programmed in view 0.
pub fn expand_views(
    plan: &mut ServicePlan,
    cluster: &ClusterContext,
    inputs: &ViewInputs<'_>,
) -> Option<RangeConflict> {
    let mut withheld = None;
    for (key, claim) in std::mem::take(&mut plan.claims) {
        if key.is_node_port_row() {
            plan.claims.push((FrontendKey { view: u32::from(cluster.number), ..key }, claim));
            continue;
        }
        for rank in &cluster.view_ranks {
            let key = FrontendKey { view: rank.view, ..key };
            match exclusion(rank, inputs, &key, &claim) {
                None => plan.claims.push((key, Claim { rank: rank.rank, ..claim.clone() })),
                Some(_) if rank.view != 0 => {}
                Some(Exclusion::Range(conflict)) => withheld = withheld.or(Some(conflict)),
                Some(Exclusion::Held) => {}
                Some(Exclusion::Host(refusal)) if plan.refusals.contains(&refusal) => {}
                Some(Exclusion::Host(refusal)) => plan.refusals.push(refusal),
            }
        }
    }
    remove_unclaimed_sets(plan);
    if !inputs.others.is_empty() {
        add_address_claims(plan);
    }
    withheld
}

/// The rows of a NodePort at a node's own address belong to its cluster in every view.
fn exclusion(rank: &ViewRank, inputs: &ViewInputs<'_>, key: &FrontendKey, claim: &Claim) -> Option<Exclusion> {
    let range = rank
        .conflict_at(key.address)
        .filter(|conflict| matches!(conflict, RangeConflict::Owned { .. }) || !(inputs.has)(key));
    if range.is_some() || claim.kind == FrontendKind::NodePort {
        return range.map(Exclusion::Range);
    }
    let holder = (inputs.held)(&key.fallbacks()[0]);
    for other in inputs.others.iter().filter(|other| other.is_before(rank)) {
        if !other.has_data && holder == Some(&*other.context.rules.name) {
            return Some(Exclusion::Held);
        }
        if let Some(node) = other.hosts.get(&key.address) {
            return Some(Exclusion::Host(host_conflict(key.address, claim, other, node)));
        }
    }
    None
}

fn host_conflict(address: Address, claim: &Claim, other: &OtherCluster<'_>, node: &Name) -> Refusal {
    let by = &other.context.rules.name;
    let message = format!(
        "{address} is an address of node {node} of cluster {by}, or of a pod on it, and {by} is earlier in the configuration: \
         the address is not programmed; use another address, or a view"
    );
    Refusal { subject: (&claim.service).into(), reason: RefusalReason::AddressConflict, message }
}

/// An address belongs to one cluster on all its ports: a claim to one port records an address claim for the whole
/// address.
fn add_address_claims(plan: &mut ServicePlan) {
    let mut address_claims: BTreeMap<FrontendKey, Option<Claim>> = BTreeMap::new();
    for (key, claim) in plan.claims.iter().filter(|(_, claim)| claim.kind != FrontendKind::NodePort) {
        let [all_ports, _] = key.fallbacks();
        // The claim of the ClusterIP itself already says so.
        let address_claim = if key.protocol.is_none() { None } else { Some(claim.to_address_claim()) };
        address_claims
            .entry(all_ports)
            .and_modify(|noted| *noted = noted.take().filter(|_| address_claim.is_some()))
            .or_insert(address_claim);
    }
    plan.claims.extend(address_claims.into_iter().filter_map(|(key, address_claim)| Some((key, address_claim?))));
}

/// Removes the sets that no frontend leads to.
fn remove_unclaimed_sets(plan: &mut ServicePlan) {
    let used: BTreeSet<&SetName> = plan.claims.iter().filter_map(|(_, claim)| claim.set.as_ref()).collect();
    plan.sets.retain(|set| used.contains(&set.name));
    let restricted =
        |owner: &PortName| used.iter().any(|name| name.audience == Audience::Sources && name.owner == *owner);
    plan.sources.retain(|(owner, _)| restricted(owner));
}
