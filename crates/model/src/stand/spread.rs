//! From the frontends of one cluster's plan to those of all views: full rows for each, and one set for all.

use super::order::{Bar, Outlook, Seat};
use crate::address::Address;
use crate::claim::Claim;
use crate::fact::Refusal;
use crate::name::{Audience, Name, PortName, SetName};
use crate::plan::ServicePlan;
use crate::row::{FrontendKey, Kind};
use std::collections::{BTreeMap, BTreeSet};

/// Another cluster, for whoever comes after it.
pub struct Neighbour<'a> {
    pub outlook: &'a Outlook,
    /// Whose address is whose there.
    pub hosts: &'a BTreeMap<Address, Name>,
    /// Its source has said something.
    pub heard: bool,
}

impl Neighbour<'_> {
    fn is_before(&self, seat: &Seat) -> bool {
        self.outlook.seats.iter().any(|own| own.view == seat.view && own.rank < seat.rank)
    }
}

/// What decides beside the order of ranges.
pub struct Beside<'a> {
    pub neighbours: &'a [Neighbour<'a>],
    /// Keys that it has already, and keeps while nobody knows whether they are another's.
    pub has: &'a dyn Fn(&FrontendKey) -> bool,
    /// The cluster that an address, by its "known" key, was programmed for before we knew anything.
    pub held: &'a dyn Fn(&FrontendKey) -> Option<&'a str>,
}

/// Why an address is not programmed in some view.
enum Kept {
    Range(Bar),
    /// A cluster that comes before had it, and has said nothing yet.
    Held,
    /// It is a node of a cluster that comes before, or a pod on ours.
    Host(Refusal),
}

/// Gives the reason where an address is not programmed in the order of the configuration.
pub fn spread(plan: &mut ServicePlan, outlook: &Outlook, beside: &Beside<'_>) -> Option<Bar> {
    let mut withheld = None;
    for (key, claim) in std::mem::take(&mut plan.claims) {
        if key.is_node_port_row() {
            plan.claims.push((FrontendKey { view: u32::from(outlook.number), ..key }, claim));
            continue;
        }
        for seat in &outlook.seats {
            let key = FrontendKey { view: seat.view, ..key };
            match keeps(seat, beside, &key, &claim) {
                None => plan.claims.push((key, Claim { rank: seat.rank, ..claim.clone() })),
                Some(_) if seat.view != 0 => {}
                Some(Kept::Range(bar)) => withheld = withheld.or(Some(bar)),
                Some(Kept::Held) => {}
                Some(Kept::Host(refusal)) if plan.refusals.contains(&refusal) => {}
                Some(Kept::Host(refusal)) => plan.refusals.push(refusal),
            }
        }
    }
    drop_unclaimed(plan);
    if !beside.neighbours.is_empty() {
        note_parts(plan);
    }
    withheld
}

/// Rows at a node's address for its own nodePort are its cluster's in every view.
fn keeps(seat: &Seat, beside: &Beside<'_>, key: &FrontendKey, claim: &Claim) -> Option<Kept> {
    let range = seat.bar(key.address).filter(|bar| matches!(bar, Bar::Owned { .. }) || !(beside.has)(key));
    if range.is_some() || claim.kind == Kind::NodePort {
        return range.map(Kept::Range);
    }
    let holder = (beside.held)(&key.fallbacks()[0]);
    for neighbour in beside.neighbours.iter().filter(|neighbour| neighbour.is_before(seat)) {
        if !neighbour.heard && holder == Some(&*neighbour.outlook.rules.name) {
            return Some(Kept::Held);
        }
        if let Some(node) = neighbour.hosts.get(&key.address) {
            return Some(Kept::Host(at_a_host(key.address, claim, neighbour, node)));
        }
    }
    None
}

fn at_a_host(address: Address, claim: &Claim, neighbour: &Neighbour<'_>, node: &Name) -> Refusal {
    let by = &neighbour.outlook.rules.name;
    let message = format!(
        "{address} is an address of node {node} of cluster {by}, or of a pod on it, and {by} comes before: it is left alone; \
         use another address, or a view"
    );
    Refusal { subject: claim.service.subject(), reason: "addressConflict", message }
}

/// An address is one cluster's, whatever the port: who claims one has a part in all of them.
fn note_parts(plan: &mut ServicePlan) {
    let mut parts: BTreeMap<FrontendKey, Option<Claim>> = BTreeMap::new();
    for (key, claim) in plan.claims.iter().filter(|(_, claim)| claim.kind != Kind::NodePort) {
        let [known, _] = key.fallbacks();
        // Where its ClusterIP is known, that says it.
        let part = if key.protocol.is_none() { None } else { Some(claim.part()) };
        parts.entry(known).and_modify(|noted| *noted = noted.take().filter(|_| part.is_some())).or_insert(part);
    }
    plan.claims.extend(parts.into_iter().filter_map(|(key, part)| Some((key, part?))));
}

/// Sets that no frontend is left for.
fn drop_unclaimed(plan: &mut ServicePlan) {
    let used: BTreeSet<&SetName> = plan.claims.iter().filter_map(|(_, claim)| claim.set.as_ref()).collect();
    plan.sets.retain(|set| used.contains(&set.name));
    let restricted =
        |owner: &PortName| used.iter().any(|name| name.audience == Audience::Sources && name.owner == *owner);
    plan.sources.retain(|(owner, _)| restricted(owner));
}
