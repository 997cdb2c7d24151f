//! Links between the sets of a chain: the set to which a policy's set passes dials on, and whether that set has
//! backends.

use super::Reconciler;
use super::policy::chain_position;
use crate::hash::HashSet;
use crate::name::ServiceName;
use crate::op::{MapError, Maps, Op};
use crate::plan::{ServicePlan, SetPlan};
use crate::row::*;

impl<M: Maps> Reconciler<'_, M> {
    /// The next set in the chain, which is created before this one (`in_link_order`). A policy that does not fit into
    /// the tables is skipped. If the set could not be created for another reason, nothing changes, because a dial would
    /// find nothing below.
    pub(super) fn next_set(&self, plan: &SetPlan) -> Result<SetId, MapError> {
        let Some(mut name) = plan.next.as_ref() else { return Ok(SET_NONE) };
        loop {
            if let Some(id) = self.tables.sets.get(name) {
                return Ok(*id);
            }
            let missing = || MapError::Failed(format!("{name}, the set below {}, is missing", plan.name));
            match (self.tables.pending.services.get(&name.owner.service), self.next_of.get(name)) {
                (Some(MapError::Full(_)), Some(next)) => name = next,
                // The Service itself does not fit into the tables. The policy serves nevertheless.
                (Some(MapError::Full(_)), None) => return Ok(SET_NONE),
                (error, _) => return Err(error.cloned().unwrap_or_else(missing)),
            }
        }
    }

    fn owner_of(&self, set: SetId) -> Option<ServiceName> {
        Some(self.tables.port_name(self.tables.owner_of(set)?)?.service)
    }

    /// The set belongs to a policy that was not listed yet, and that takes precedence over the new owner.
    pub(super) fn is_unlisted_above(&self, set: SetId, new_position: u8) -> bool {
        let owner = self.owner_of(set);
        owner.is_some_and(|name| chain_position(&name) > new_position && self.tables.unlisted.contains(name.cluster()))
    }

    fn keeps_link(&self, old: SetId, new: SetId) -> bool {
        let new_position = || self.owner_of(new).map_or(0, |name| chain_position(&name));
        !self.tables.unlisted.is_empty() && self.is_unlisted_above(old, new_position())
    }

    pub(super) fn next_is_over_capacity(&self, plan: &SetPlan, next: SetId) -> Option<MapError> {
        let below = plan.next.as_ref().filter(|_| next == SET_NONE)?;
        self.tables.pending.services.get(&below.owner.service).cloned()
    }

    /// Links to a set with backends are written before pods become selected and look for the next set. A link to a
    /// chain without backends waits until the sets above have their backends (`write_late_links`).
    pub(super) fn relink(&mut self, plan: &ServicePlan) -> Result<(), MapError> {
        for set in plan.sets.iter().filter(|set| set.next.is_some()) {
            let Some(id) = self.tables.sets.get(&set.name).copied() else { continue };
            let (header, next) = (self.tables.rows.sets[id].header, self.next_set(set)?);
            if header.next != next && !self.keeps_link(header.next, next) && self.has_backend_in_chain(next) {
                self.write(Op::Header(id, SetHeader { next, ..header }))?;
            }
        }
        Ok(())
    }

    pub(super) fn change_policy_header(
        &mut self,
        name: &ServiceName,
        id: SetId,
        new: SetHeader,
    ) -> Result<(), MapError> {
        let old = self.tables.rows.sets[id].header;
        if old.next != new.next && !self.keeps_link(old.next, new.next) {
            self.late_links.push((name.clone(), id, new.next));
        }
        self.change_header(id, old, SetHeader { next: old.next, ..new })
    }

    /// Written after the pods that are no longer selected are removed, because those still use the next set.
    pub(super) fn write_late_links(&mut self) {
        let reached = self.sets_reached_by_unselected();
        for (name, id, next) in std::mem::take(&mut self.late_links) {
            let Some(old) = self.tables.rows.sets.get(id).map(|row| row.header) else { continue };
            let waits = still_selected(&reached, id).or_else(|| self.failed_below(next).cloned());
            let result = waits.map_or_else(|| self.change_header(id, old, SetHeader { next, ..old }), Err);
            if let Err(error) = result {
                self.keep_link(&name, next);
                self.fail(&name, error);
            }
        }
    }

    /// Keeps a set for the next attempt, because nothing would create it again.
    fn keep_link(&mut self, name: &ServiceName, next: SetId) {
        let below = self.tables.rows.sets.get(next).and_then(|row| self.tables.name_of_set(row));
        self.tables.pending.links.entry(name.clone()).or_default().extend(below);
    }

    pub(super) fn is_to_be_linked(&self, set: SetId) -> bool {
        self.late_links.iter().any(|(_, _, next)| *next == set)
    }

    /// The sets that are reached by pods which their policy no longer selects but the kernel still does.
    pub(super) fn sets_reached_by_unselected(&self) -> HashSet<SetId> {
        let policies: HashSet<PolicyId> = self.tables.sweep_queue.selected.iter().map(|(policy, _)| *policy).collect();
        if policies.is_empty() {
            return HashSet::default();
        }
        let sets = self.tables.rows.sets.iter().filter(|(_, row)| policies.contains(&row.header.policy));
        sets.flat_map(|(id, _)| self.chain(id).map(|(id, _)| id)).collect()
    }

    /// This set and those below it.
    fn chain(&self, first: SetId) -> impl Iterator<Item = (SetId, &SetRow)> {
        let row = |id: SetId| Some((id, self.tables.rows.sets.get(id)?));
        std::iter::successors(row(first), move |(_, set)| row(set.header.next)).take(3)
    }

    fn has_backend_in_chain(&self, set: SetId) -> bool {
        self.chain(set).any(|(_, row)| row.span.count > 0)
    }

    /// The chain from this set has no backends, and the write of one of its owners failed. A full table does not count,
    /// because waiting would not help.
    pub(super) fn failed_below(&self, set: SetId) -> Option<&MapError> {
        if self.tables.pending.services.is_empty() || self.has_backend_in_chain(set) {
            return None;
        }
        let owner = |row: &SetRow| Some(self.tables.port_name(row.owner)?.service);
        self.chain(set).find_map(|(_, row)| self.failed(&owner(row)?))
    }

    /// A policy whose write failed leads to this set, and should serve in its place.
    pub(super) fn failed_above(&self, set: SetId) -> Option<&MapError> {
        let leads_here = |first: &SetId| self.chain(*first).any(|(id, _)| id == set);
        self.tables.pending.links.iter().find_map(|(policy, links)| {
            let mut ids = links.iter().filter_map(|name| self.tables.sets.get(name));
            ids.any(&leads_here).then(|| self.failed(policy)).flatten()
        })
    }

    pub(super) fn failed(&self, name: &ServiceName) -> Option<&MapError> {
        self.tables.pending.services.get(name).filter(|error| matches!(error, MapError::Failed(_)))
    }
}

pub(super) fn still_selected(reached: &HashSet<SetId>, set: SetId) -> Option<MapError> {
    reached.contains(&set).then(|| MapError::Failed("the kernel still has a pod that is no longer selected".into()))
}
