//! Writes and deletes frontend rows and node rows, which a dial looks up first. The order guarantees that a dial
//! between two writes gets the old or the new result, even if a write fails.

use super::capacity::beneficiary;
use super::policy::chain_position;
use super::{Reconciler, SyncScope};
use crate::address::{Address, Family};
use crate::claim::Claim;
use crate::hash::{HashMap, HashSet};
use crate::name::{Audience, Name, ServiceName};
use crate::op::{MapError, Maps, Op};
use crate::planner::{Delta, PendingCluster};
use crate::range;
use crate::row::*;
use std::collections::BTreeSet;

impl<M: Maps> Reconciler<'_, M> {
    /// Queues the rows that the plan no longer contains. `delete_frontends` deletes them.
    pub(super) fn mark_unclaimed(&mut self, delta: &Delta, scope: &SyncScope) {
        let unplanned = self.unplanned_frontends(delta, scope);
        let queue = &mut self.tables.sweep_queue.frontends;
        for (key, claim) in &delta.frontends {
            if claim.is_none() {
                queue.insert(*key)
            } else {
                queue.remove(key)
            };
        }
        queue.extend(unplanned);
    }

    /// The rows in the scope that the delta does not contain.
    fn unplanned_frontends(&self, delta: &Delta, scope: &SyncScope) -> Vec<FrontendKey> {
        if *scope == SyncScope::Changes {
            return Vec::new();
        }
        let wanted: HashSet<&FrontendKey> = delta.frontends.iter().map(|(key, _)| key).collect();
        let unplanned = self.tables.rows.frontends.iter().filter(|(key, _)| !wanted.contains(key));
        match scope {
            SyncScope::Clusters(clusters) => {
                let other_owner = self.addresses_of_others(clusters);
                let is_in_scope = |key: &FrontendKey, row: &FrontendRow| match self.cluster_of(row.set) {
                    Some(cluster) => clusters.contains(&*cluster),
                    // The address may have no other row, if the Service has no port whose protocol has a hook.
                    None => other_owner.get(&(key.address, key.view)) != Some(&true),
                };
                unplanned.filter(|(key, row)| is_in_scope(key, row)).map(|(key, _)| *key).collect()
            }
            _ => unplanned.map(|(key, _)| *key).collect(),
        }
    }

    fn cluster_of(&self, set: SetId) -> Option<String> {
        let owner = self.tables.owner_of(set)?;
        Some(self.tables.port_name(owner)?.service.cluster().to_owned())
    }

    /// The all-ports row of a ClusterIP does not name its owner; the owner is that of the other rows of the address. By
    /// address and view: whether a cluster outside the scope owns it.
    fn addresses_of_others(&self, clusters: &BTreeSet<Name>) -> HashMap<(Address, u32), bool> {
        let mut found: HashMap<(Address, u32), bool> = HashMap::default();
        for (key, row) in self.tables.rows.frontends.iter().filter(|(_, row)| row.kind == FrontendKind::ClusterIp) {
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
            if self.belongs_to_pending_cluster(delta, key, winner) || self.is_held_by_unlisted_policy(key, winner) {
                continue;
            }
            let claim = self.usable_claim(winner, delta.below(key));
            let owner = beneficiary(delta, key, winner);
            if let Err(error) = self.check_capacity(key, owner) {
                self.fail(&winner.service, error.clone());
                self.fail_frontend(key, owner, error);
                continue;
            }
            match self.check_put(key, claim).and_then(|()| self.frontend_put(key, claim)) {
                Ok(op) => puts.extend(op.map(|op| (&claim.service, op))),
                Err(error) => self.fail_frontend(key, &claim.service, error),
            }
        }
        self.write_many(puts);
    }

    /// An earlier cluster of which no object was received yet holds this row or has a node at this address, so a later
    /// cluster must not take it.
    fn belongs_to_pending_cluster(&self, delta: &Delta, key: &FrontendKey, claim: &Claim) -> bool {
        let is_earlier = |pending: &&PendingCluster| {
            let mut ranks = pending.ranks.iter();
            ranks.any(|(view, rank)| *view == key.view && *rank < claim.rank)
        };
        let mut earlier = delta.pending.iter().filter(is_earlier).peekable();
        if earlier.peek().is_none() {
            return false;
        }
        let holder = self.tables.rows.frontends.get(key).and_then(|row| self.cluster_of(row.set));
        let node = self.tables.rows.nodes.get(&key.address).filter(|_| claim.kind != FrontendKind::NodePort);
        let holds = |pending: &PendingCluster| holder.as_deref() == Some(&*pending.cluster);
        earlier.any(|pending| holds(pending) || node.is_some_and(|node| node.cluster == pending.number))
    }

    /// The row belongs to a policy that was not listed yet, which is possible right after a start. Claims of lower
    /// precedence wait until it is.
    fn is_held_by_unlisted_policy(&self, key: &FrontendKey, winner: &Claim) -> bool {
        let holder = self.tables.rows.frontends.get(key).filter(|_| !self.tables.unlisted.is_empty());
        holder.is_some_and(|row| self.is_unlisted_above(row.set, chain_position(&winner.service)))
    }

    /// The claim that the row can lead to. A policy that does not fit into the tables must not disable the levels below
    /// it, so the first claim whose set exists is used.
    fn usable_claim<'d>(&self, winner: &'d Claim, below: &'d [Claim]) -> &'d Claim {
        let is_full = matches!(self.tables.pending.services.get(&winner.service), Some(MapError::Full(_)));
        if !is_full || self.frontend_row(winner).is_some() {
            return winner;
        }
        below.iter().find(|claim| self.frontend_row(claim).is_some()).unwrap_or(winner)
    }

    /// Why the row must not be written now. A fallback row waits while an exact row of its service, or above it, is
    /// missing. A row waits if it leads to restricted backends whose source ranges may be old, or to another set of an
    /// owner that could not be written. A row also stays with a policy while the write of the set that should serve
    /// instead failed.
    fn check_put(&self, key: &FrontendKey, claim: &Claim) -> Result<(), MapError> {
        let restricted = claim.set.as_ref().is_some_and(|set| set.audience == Audience::Sources);
        let failed = self.tables.pending.services.get(&claim.service);
        let error = match key.tier() {
            Tier::Exact => {
                let is_old = |error: &&MapError| matches!(error, MapError::Failed(_)) && self.would_move(key, claim);
                let waits = failed.filter(|error| restricted || is_old(error) || self.would_empty(key, claim));
                waits.or_else(|| self.failed_instead(key, claim))
            }
            Tier::Fallback => failed.or_else(|| self.tables.pending.missing_above(key)),
        };
        error.cloned().map_or(Ok(()), Err)
    }

    /// The row would lead to another set than it does now.
    fn would_move(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let old = self.tables.rows.frontends.get(key).map(|row| row.set);
        self.frontend_row(claim).map(|row| row.set) != old
    }

    /// The row would lead to another set, which has no backends.
    fn would_empty(&self, key: &FrontendKey, claim: &Claim) -> bool {
        let old = self.tables.rows.frontends.get(key).map(|row| row.set);
        let new = self.frontend_row(claim).map(|row| row.set).filter(|set| Some(*set) != old);
        new.and_then(|set| self.tables.rows.sets.get(set)).is_some_and(|set| set.span.count == 0)
    }

    fn failed_instead(&self, key: &FrontendKey, claim: &Claim) -> Option<&MapError> {
        if self.tables.pending.services.is_empty() {
            return None;
        }
        let (old, new) = (self.tables.rows.frontends.get(key)?, self.frontend_row(claim)?);
        let serves = self.tables.rows.sets.get(old.set).is_some_and(|row| row.rule != Rule::Service);
        if serves && old.set != new.set { self.failed_below(new.set) } else { None }
    }

    fn fail_frontend(&mut self, key: &FrontendKey, service: &ServiceName, error: MapError) {
        self.tables.pending.record_missing(*key, service);
        self.fail(service, error);
    }

    fn frontend_put(&mut self, key: &FrontendKey, claim: &Claim) -> Result<Option<Op>, MapError> {
        let row = self.frontend_row(claim).ok_or_else(|| MapError::Failed(format!("{key:?}: its set is missing")))?;
        let old = self.tables.rows.frontends.get(key).copied();
        if old == Some(row) {
            return Ok(None);
        }
        self.tables.sweep_queue.owners.extend(old.and_then(|old| self.tables.owner_of(old.set)));
        self.open_filter(key)?;
        Ok(Some(Op::Frontend(*key, Some(row))))
    }

    /// The row for a claim. `None` if its set could not be created.
    fn frontend_row(&self, claim: &Claim) -> Option<FrontendRow> {
        let set = match &claim.set {
            Some(name) => *self.tables.sets.get(name)?,
            None => SET_CLOSED,
        };
        Some(FrontendRow { set, kind: claim.kind })
    }

    /// Writes as many as possible. A failed write fails its own service only.
    fn write_many(&mut self, writes: Vec<(&ServiceName, Op)>) {
        let (names, ops): (Vec<&ServiceName>, Vec<Op>) = writes.into_iter().unzip();
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

    /// The filter must let a dial pass before the row that it should find is written.
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
        self.tables.sweep_queue.ports.insert((protocol, key.port));
        self.write(Op::Port(protocol, key.port, bits))
    }

    // ---- nodes ----

    /// A NodePort row applies to every address in the node table, so nodes do not change while a service is only partly
    /// written. A full table does not count, because waiting would not help.
    fn delay_nodes(&mut self, delta: &Delta) {
        let passing = |(name, error): (&ServiceName, &MapError)| match error {
            MapError::Failed(why) => Some(MapError::Failed(format!("nodes wait for {}: {why}", name.subject()))),
            MapError::Full(_) => None,
        };
        if delta.nodes.is_some() && self.outcome.nodes_failed.is_none() {
            let waits = self.tables.pending.services.iter().find_map(passing);
            waits.into_iter().for_each(|error| self.fail_nodes(error));
        }
    }

    pub(super) fn delete_nodes(&mut self, delta: &Delta) {
        self.delay_nodes(delta);
        let Some(wanted) = &delta.nodes else { return };
        // With the number of another cluster, the address would lead to that cluster's NodePorts for a moment.
        let stale = |(address, row): &(&Address, &NodeRow)| match wanted.get(address) {
            Some(wanted) => wanted.cluster != row.cluster && !is_earlier(delta, row, wanted),
            None => {
                let pending = delta.pending.iter().any(|pending| pending.number == row.cluster);
                !pending && !delta.waiting.contains(&row.cluster)
            }
        };
        let stale: Vec<Address> = self.tables.rows.nodes.iter().filter(stale).map(|(address, _)| *address).collect();
        self.write_nodes(stale.into_iter().map(|address| (address, None)).collect());
    }

    pub(super) fn put_nodes(&mut self, delta: &Delta) {
        self.delay_nodes(delta);
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

    pub(super) fn write_late_headers(&mut self) {
        for (service, op) in std::mem::take(&mut self.late_headers) {
            if self.outcome.failed.contains_key(&service) {
                continue;
            }
            let result = self.tables.pending.nodes.clone().map_or_else(|| self.write(op), Err);
            if let Err(error) = result {
                self.fail(&service, error);
            }
        }
    }

    // ---- deleting ----

    /// A nodePort is left to its node as soon as one backend of the set is not reached at its own address. Dials must
    /// not reach that backend, so these rows are deleted before their set changes. If the row cannot be deleted, the
    /// service does not change yet.
    pub(super) fn delete_node_ports_first(&mut self, delta: &Delta) {
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
                self.fail(&owner.service, MapError::Failed("the NodePort row cannot be deleted yet".into()));
            }
        }
    }

    pub(super) fn delete_frontends(&mut self, tier: Tier) {
        let obsolete = self.tables.sweep_queue.frontends.iter().filter(|key| key.tier() == tier);
        obsolete.copied().collect::<Vec<_>>().into_iter().for_each(|key| self.delete_frontend(key));
    }

    fn delete_frontend(&mut self, key: FrontendKey) {
        let row = self.tables.rows.frontends.get(&key).copied();
        let owner = row.and_then(|row| self.tables.owner_of(row.set));
        let service = owner.and_then(|owner| self.tables.port_name(owner)).map(|name| name.service);
        if row.is_some_and(|row| self.must_stay(&key, &row, service.as_ref())) {
            return;
        }
        let written = if row.is_some() { self.write(Op::Frontend(key, None)) } else { Ok(()) };
        if let Err(error) = written {
            service.into_iter().for_each(|service| self.fail(&service, error.clone()));
            return;
        }
        self.tables.sweep_queue.frontends.remove(&key);
        self.tables.sweep_queue.owners.extend(owner);
        self.tables.sweep_queue.ports.extend(key.protocol.map(|protocol| (protocol, key.port)));
    }

    /// Without this row, a dial would fall back to a row that should be deleted or is not written yet, or to no row.
    fn must_stay(&self, key: &FrontendKey, row: &FrontendRow, service: Option<&ServiceName>) -> bool {
        let pending = &self.tables.pending;
        let is_unfinished =
            |below: &FrontendKey| self.tables.sweep_queue.frontends.contains(below) || pending.is_waiting(below);
        service.is_some_and(|service| pending.services.contains_key(service))
            || row.kind == FrontendKind::NodePort && pending.nodes.is_some()
            || key.tier() == Tier::Exact && key.fallbacks().iter().any(is_unfinished)
            || pending.is_missing(key)
    }
}

/// The old row belongs to a cluster of which no object was received yet and which comes before the cluster of the new
/// row.
fn is_earlier(delta: &Delta, old: &NodeRow, new: &NodeRow) -> bool {
    delta.pending.iter().any(|pending| pending.number == old.cluster && pending.later.contains(&new.cluster))
}
