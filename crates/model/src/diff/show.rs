//! *Show* and *hide*: the rows that a dial meets first. Every order here exists so that a dial between two writes gets
//! the old answer or the new one, also when a write fails.

use super::admit::beneficiary;
use super::policy::rank;
use super::{Whole, Work};
use crate::address::{Address, Family};
use crate::claim::Claim;
use crate::hash::{HashMap, HashSet};
use crate::name::{Audience, Name, OwnerName};
use crate::op::{MapError, Maps, Op};
use crate::planner::{Delta, Unheard};
use crate::range;
use crate::row::*;
use std::collections::BTreeSet;

impl<M: Maps> Work<'_, M> {
    /// Rows that the plan no longer has, to be deleted by `delete_frontends`.
    pub(super) fn mark_unclaimed(&mut self, delta: &Delta, whole: &Whole) {
        let unknown = self.unknown_to(delta, whole);
        let touched = &mut self.tables.touched.frontends;
        for (key, claim) in &delta.frontends {
            if claim.is_none() {
                touched.insert(*key)
            } else {
                touched.remove(key)
            };
        }
        touched.extend(unknown);
    }

    /// Rows that the plan does not name, of those whose plan is whole.
    fn unknown_to(&self, delta: &Delta, whole: &Whole) -> Vec<FrontendKey> {
        if *whole == Whole::Nothing {
            return Vec::new();
        }
        let wanted: HashSet<&FrontendKey> = delta.frontends.iter().map(|(key, _)| key).collect();
        let unknown = self.tables.rows.frontends.iter().filter(|(key, _)| !wanted.contains(key));
        match whole {
            Whole::Clusters(clusters) => {
                let kept = self.known_addresses_of_others(clusters);
                let goes = |key: &FrontendKey, row: &FrontendRow| match self.cluster_of(row.set) {
                    Some(cluster) => clusters.contains(&*cluster),
                    // Beside it may be no row at all: of a Service that has no port with a hook.
                    None => kept.get(&(key.address, key.view)) != Some(&true),
                };
                unknown.filter(|(key, row)| goes(key, row)).map(|(key, _)| *key).collect()
            }
            _ => unknown.map(|(key, _)| *key).collect(),
        }
    }

    fn cluster_of(&self, set: SetId) -> Option<String> {
        let owner = self.tables.owner_of(set)?;
        Some(self.tables.port_name(owner)?.service.cluster().to_owned())
    }

    /// A ClusterIP's "known" row names nobody: it is whose its other rows are. Address and view, and whether somebody else
    /// has one there.
    fn known_addresses_of_others(&self, clusters: &BTreeSet<Name>) -> HashMap<(Address, u32), bool> {
        let mut found: HashMap<(Address, u32), bool> = HashMap::default();
        for (key, row) in self.tables.rows.frontends.iter().filter(|(_, row)| row.kind == Kind::ClusterIp) {
            if let Some(cluster) = self.cluster_of(row.set) {
                *found.entry((key.address, key.view)).or_default() |= !clusters.contains(&*cluster);
            }
        }
        found
    }

    pub(super) fn put_frontends(&mut self, delta: &Delta, tier: Tier) {
        let mut puts = Vec::new();
        let claimed = delta.frontends.iter().filter_map(|(key, claim)| Some((key, claim.as_ref()?)));
        for (key, winner) in claimed.filter(|(key, _)| key.tier() == tier) {
            if self.is_spoken_for(delta, key, winner) || self.is_unlisted(key, winner) {
                continue;
            }
            let claim = self.able(winner, delta.below(key));
            let whose = beneficiary(delta, key, winner);
            if let Err(error) = self.check_room(key, whose) {
                self.fail(&winner.service, error.clone());
                self.fail_frontend(key, whose, error);
                continue;
            }
            match self.may_put(key, claim).and_then(|()| self.frontend_put(key, claim)) {
                Ok(op) => puts.extend(op.map(|op| (&claim.service, op))),
                Err(error) => self.fail_frontend(key, &claim.service, error),
            }
        }
        self.write_many(puts);
    }

    /// An earlier cluster that was not heard of yet has this row from before, or a node there: it is not for a later one to
    /// take.
    fn is_spoken_for(&self, delta: &Delta, key: &FrontendKey, claim: &Claim) -> bool {
        let is_earlier = |unheard: &&Unheard| {
            let mut ranks = unheard.ranks.iter();
            ranks.any(|(view, rank)| *view == key.view && *rank < claim.rank)
        };
        let mut earlier = delta.unheard.iter().filter(is_earlier).peekable();
        if earlier.peek().is_none() {
            return false;
        }
        let holder = self.tables.rows.frontends.get(key).and_then(|row| self.cluster_of(row.set));
        let node = self.tables.rows.nodes.get(&key.address).filter(|_| claim.kind != Kind::NodePort);
        let holds = |unheard: &Unheard| holder.as_deref() == Some(&*unheard.cluster);
        earlier.any(|unheard| holds(unheard) || node.is_some_and(|node| node.cluster == unheard.number))
    }

    /// Held by a policy that is not known yet, as it may be right after a start: whoever comes after it waits until it is.
    fn is_unlisted(&self, key: &FrontendKey, winner: &Claim) -> bool {
        let holder = self.tables.rows.frontends.get(key).filter(|_| !self.tables.unlisted.is_empty());
        holder.is_some_and(|row| self.is_unlisted_above(row.set, rank(&winner.service)))
    }

    /// A policy that has no room must not take down who is below it: the first whose set could be made.
    fn able<'d>(&self, winner: &'d Claim, below: &'d [Claim]) -> &'d Claim {
        let is_full = matches!(self.tables.held.services.get(&winner.service), Some(MapError::Full(_)));
        if !is_full || self.frontend_row(winner).is_some() {
            return winner;
        }
        below.iter().find(|claim| self.frontend_row(claim).is_some()).unwrap_or(winner)
    }

    /// No row that a miss falls back to while an exact row of that service, or above that row, is missing; no row that
    /// leads to restricted backends while their ranges may be old ones, or anew to a set that could not be changed; and none
    /// away from a policy to where somebody should be by now whose write failed.
    fn may_put(&self, key: &FrontendKey, claim: &Claim) -> Result<(), MapError> {
        let restricted = claim.set.as_ref().is_some_and(|set| set.audience == Audience::Sources);
        let failed = self.tables.held.services.get(&claim.service);
        let error = match key.tier() {
            Tier::Exact => {
                let is_old = |error: &&MapError| matches!(error, MapError::Failed(_)) && self.would_move(key, claim);
                let waits = failed.filter(|error| restricted || is_old(error) || self.would_empty(key, claim));
                waits.or_else(|| self.failed_instead(key, claim))
            }
            Tier::Fallback => failed.or_else(|| self.tables.held.missing_above(key)),
        };
        error.cloned().map_or(Ok(()), Err)
    }

    /// The row would be led to another set than now.
    fn would_move(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let old = self.tables.rows.frontends.get(key).map(|row| row.set);
        self.frontend_row(claim).map(|row| row.set) != old
    }

    /// The row would be led to a set that has nobody in it.
    fn would_empty(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let old = self.tables.rows.frontends.get(key).map(|row| row.set);
        let new = self.frontend_row(claim).map(|row| row.set).filter(|set| Some(*set) != old);
        new.and_then(|set| self.tables.rows.sets.get(set)).is_some_and(|set| set.span.count == 0)
    }

    fn failed_instead(&self, key: &FrontendKey, claim: &Claim) -> Option<&MapError> {
        if self.tables.held.services.is_empty() {
            return None;
        }
        let (old, new) = (self.tables.rows.frontends.get(key)?, self.frontend_row(claim)?);
        let serves = self.tables.rows.sets.get(old.set).is_some_and(|row| row.rule != Rule::Service);
        if serves && old.set != new.set { self.failed_below(new.set) } else { None }
    }

    fn fail_frontend(&mut self, key: &FrontendKey, service: &OwnerName, error: MapError) {
        self.tables.held.miss(*key, service);
        self.fail(service, error);
    }

    fn frontend_put(&mut self, key: &FrontendKey, claim: &Claim) -> Result<Option<Op>, MapError> {
        let row = self.frontend_row(claim).ok_or_else(|| MapError::Failed(format!("{key:?}: its set is missing")))?;
        let old = self.tables.rows.frontends.get(key).copied();
        if old == Some(row) {
            return Ok(None);
        }
        self.tables.touched.owners.extend(old.and_then(|old| self.tables.owner_of(old.set)));
        self.open_filter(key)?;
        Ok(Some(Op::Frontend(*key, Some(row))))
    }

    /// The row that a claim wants; `None`: its set could not be made.
    fn frontend_row(&self, claim: &Claim) -> Option<FrontendRow> {
        let set = match &claim.set {
            Some(name) => *self.tables.sets.get(name)?,
            None => SET_CLOSED,
        };
        Some(FrontendRow { set, kind: claim.kind })
    }

    /// Writes as many as it can; a failed one fails its service and no other.
    fn write_many(&mut self, writes: Vec<(&OwnerName, Op)>) {
        let (names, ops): (Vec<&OwnerName>, Vec<Op>) = writes.into_iter().unzip();
        let mut at = 0;
        while at < ops.len() {
            let (written, error) = self.maps.write_all(&ops[at..]);
            ops[at..at + written].iter().for_each(|op| self.tables.apply(op));
            self.outcome.ops += written;
            at += written;
            let Some(error) = error else { continue };
            if let Op::Frontend(key, _) = &ops[at] {
                self.fail_frontend(key, names[at], error);
            }
            at += 1;
        }
    }

    /// The filter must let a dial through before the row that it should find is there.
    fn open_filter(&mut self, key: &FrontendKey) -> Result<(), MapError> {
        let Some(protocol) = key.protocol else {
            let words = match key.address.family() {
                Family::V4 => self.tables.rows.ranges_v4,
                Family::V6 => self.tables.rows.ranges_v6,
            };
            for (i, word) in range::cover(&words, key.address) {
                self.write(Op::Range(key.address.family(), i, word))?;
            }
            return Ok(());
        };
        let old = self.tables.rows.ports.get(&(protocol, key.port)).copied().unwrap_or_default();
        let mut bits = old;
        if key.is_node_port_row() {
            bits.node_port = true
        } else {
            bits.frontend = true
        }
        if bits == old {
            return Ok(());
        }
        self.tables.touched.ports.insert((protocol, key.port));
        self.write(Op::Port(protocol, key.port, bits))
    }

    // ---- nodes ----

    /// A NodePort row speaks for every address in the node table, so while a service is half changed, nodes stay as they
    /// are. A full table is no reason to wait: it stays full.
    fn hold_nodes(&mut self, delta: &Delta) {
        let passing = |(name, error): (&OwnerName, &MapError)| match error {
            MapError::Failed(why) => Some(MapError::Failed(format!("nodes wait for {}: {why}", name.subject()))),
            MapError::Full(_) => None,
        };
        if delta.nodes.is_some() && self.outcome.nodes_failed.is_none() {
            let waits = self.tables.held.services.iter().find_map(passing);
            waits.into_iter().for_each(|error| self.fail_nodes(error));
        }
    }

    pub(super) fn delete_nodes(&mut self, delta: &Delta) {
        self.hold_nodes(delta);
        let Some(wanted) = &delta.nodes else { return };
        // Under another cluster's number it would for a moment lead to that one's NodePorts.
        let stale = |(address, row): &(&Address, &NodeRow)| match wanted.get(address) {
            Some(wanted) => wanted.cluster != row.cluster && !is_earlier(delta, row, wanted),
            None => {
                let unheard = delta.unheard.iter().any(|unheard| unheard.number == row.cluster);
                !unheard && !delta.waiting.contains(&row.cluster)
            }
        };
        let stale: Vec<Address> = self.tables.rows.nodes.iter().filter(stale).map(|(address, _)| *address).collect();
        self.write_nodes(stale.into_iter().map(|address| (address, None)).collect());
    }

    pub(super) fn put_nodes(&mut self, delta: &Delta) {
        self.hold_nodes(delta);
        let changed = |(a, row): &(&Address, &NodeRow)| {
            let old = self.tables.rows.nodes.get(a);
            old != Some(row) && !old.is_some_and(|old| is_earlier(delta, old, row))
        };
        let rows = delta.nodes.iter().flatten().filter(changed).map(|(a, row)| (*a, Some(*row))).collect();
        self.write_nodes(rows);
    }

    fn write_nodes(&mut self, rows: Vec<(Address, Option<NodeRow>)>) {
        for (address, row) in rows {
            if self.outcome.nodes_failed.is_some() {
                return;
            }
            if let Err(error) = self.write(Op::Node(address, row)) {
                self.fail_nodes(error);
            }
        }
    }

    pub(super) fn change_late(&mut self) {
        for (service, op) in std::mem::take(&mut self.late) {
            if self.outcome.failed.contains_key(&service) {
                continue;
            }
            let result = self.tables.held.nodes.clone().map_or_else(|| self.write(op), Err);
            if let Err(error) = result {
                self.fail(&service, error);
            }
        }
    }

    // ---- hide ----

    /// A nodePort is left to its node as soon as one member of the set is not reached by its own address. That member may
    /// not be met here first, so these rows go before their set changes. Whose row cannot go, changes nothing yet.
    pub(super) fn withdraw(&mut self, delta: &Delta) {
        let unclaimed = delta.frontends.iter().filter(|(key, claim)| claim.is_none() && key.is_node_port_row());
        let rows = unclaimed.filter_map(|(key, _)| Some((*key, self.tables.rows.frontends.get(key)?.set)));
        let rows: Vec<(FrontendKey, SetId)> = rows.collect();
        if rows.is_empty() {
            return;
        }
        let plans = delta.services.iter().filter_map(|(_, plan)| plan.as_ref());
        let planned: HashSet<SetId> =
            plans.flat_map(|plan| &plan.sets).filter_map(|set| self.tables.sets.get(&set.name).copied()).collect();
        for (key, set) in rows.into_iter().filter(|(_, set)| planned.contains(set)) {
            self.delete_frontend(key);
            let owner = self.tables.owner_of(set).and_then(|owner| self.tables.port_name(owner));
            if let (Some(_), Some(owner)) = (self.tables.rows.frontends.get(&key), owner) {
                self.fail(&owner.service, MapError::Failed("its NodePort cannot be left to its node yet".into()));
            }
        }
    }

    pub(super) fn delete_frontends(&mut self, tier: Tier) {
        let gone = self.tables.touched.frontends.iter().filter(|key| key.tier() == tier);
        gone.copied().collect::<Vec<_>>().into_iter().for_each(|key| self.delete_frontend(key));
    }

    fn delete_frontend(&mut self, key: FrontendKey) {
        let row = self.tables.rows.frontends.get(&key).copied();
        let owner = row.and_then(|row| self.tables.owner_of(row.set));
        let service = owner.and_then(|owner| self.tables.port_name(owner)).map(|name| name.service);
        if row.is_some_and(|row| self.is_held(&key, &row, service.as_ref())) {
            return;
        }
        let written = if row.is_some() { self.write(Op::Frontend(key, None)) } else { Ok(()) };
        if let Err(error) = written {
            service.into_iter().for_each(|service| self.fail(&service, error.clone()));
            return;
        }
        self.tables.touched.frontends.remove(&key);
        self.tables.touched.owners.extend(owner);
        self.tables.touched.ports.extend(key.protocol.map(|protocol| (protocol, key.port)));
    }

    /// Without this row a dial would fall through to one that should be gone or is not yet there, or to none.
    fn is_held(&self, key: &FrontendKey, row: &FrontendRow, service: Option<&OwnerName>) -> bool {
        let held = &self.tables.held;
        let unsettled = |below: &FrontendKey| self.tables.touched.frontends.contains(below) || held.is_waiting(below);
        service.is_some_and(|service| held.services.contains_key(service))
            || row.kind == Kind::NodePort && held.nodes.is_some()
            || key.tier() == Tier::Exact && key.fallbacks().iter().any(unsettled)
            || held.is_missing(key)
    }
}

/// A row of a cluster that was not heard of yet, and that comes before the one that would take its place.
fn is_earlier(delta: &Delta, old: &NodeRow, new: &NodeRow) -> bool {
    delta.unheard.iter().any(|unheard| unheard.number == old.cluster && unheard.later.contains(&new.cluster))
}
