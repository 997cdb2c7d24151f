//! Links: what a policy's set leads on to, and whether somebody is there.

use super::Work;
use super::policy::rank;
use crate::hash::HashSet;
use crate::name::OwnerName;
use crate::op::{MapError, Maps, Op};
use crate::plan::{ServicePlan, SetPlan};
use crate::row::*;

impl<M: Maps> Work<'_, M> {
    /// Made before this one (`in_order`). A policy for which there is no room is passed over; where the set could not be
    /// made for another reason, a dial would find nothing below, and all stays as it is.
    pub(super) fn set_below(&self, plan: &SetPlan) -> Result<SetId, MapError> {
        let Some(mut name) = plan.next.as_ref() else { return Ok(SET_NONE) };
        loop {
            if let Some(id) = self.tables.sets.get(name) {
                return Ok(*id);
            }
            let missing = || MapError::Failed(format!("{name}, the set below {}, is missing", plan.name));
            match (self.tables.held.services.get(&name.owner.service), self.next_of.get(name)) {
                (Some(MapError::Full(_)), Some(next)) => name = next,
                // The Service itself has no room: that is no reason not to serve by the policy.
                (Some(MapError::Full(_)), None) => return Ok(SET_NONE),
                (error, _) => return Err(error.cloned().unwrap_or_else(missing)),
            }
        }
    }

    fn owner_of(&self, set: SetId) -> Option<OwnerName> {
        Some(self.tables.port_name(self.tables.owner_of(set)?)?.service)
    }

    /// A set of a policy that nobody could list yet, and that goes before who would take its place.
    pub(super) fn is_unlisted_above(&self, set: SetId, newcomer: u8) -> bool {
        let owner = self.owner_of(set);
        owner.is_some_and(|name| rank(&name) > newcomer && self.tables.unlisted.contains(name.cluster()))
    }

    fn keeps_link(&self, old: SetId, new: SetId) -> bool {
        let newcomer = || self.owner_of(new).map_or(0, |name| rank(&name));
        !self.tables.unlisted.is_empty() && self.is_unlisted_above(old, newcomer())
    }

    pub(super) fn no_room_below(&self, plan: &SetPlan, next: SetId) -> Option<MapError> {
        let below = plan.next.as_ref().filter(|_| next == SET_NONE)?;
        self.tables.held.services.get(&below.owner.service).cloned()
    }

    /// Before pods become known as selected and look below: a link to where somebody is can only help. One to where
    /// nobody is waits until the set above it, if any, has what it gets (`change_links`).
    pub(super) fn relink(&mut self, plan: &ServicePlan) -> Result<(), MapError> {
        for set in plan.sets.iter().filter(|set| set.next.is_some()) {
            let Some(id) = self.tables.sets.get(&set.name).copied() else { continue };
            let (header, next) = (self.tables.rows.sets[id].header, self.set_below(set)?);
            if header.next != next && !self.keeps_link(header.next, next) && self.leads_to_any(next) {
                self.write(Op::Header(id, Header { next, ..header }))?;
            }
        }
        Ok(())
    }

    pub(super) fn change_policy_header(&mut self, name: &OwnerName, id: SetId, new: Header) -> Result<(), MapError> {
        let old = self.tables.rows.sets[id].header;
        if old.next != new.next && !self.keeps_link(old.next, new.next) {
            self.links.push((name.clone(), id, new.next));
        }
        self.change_header(id, old, Header { next: old.next, ..new })
    }

    /// After pods that are selected no more are forgotten: until then they come to what is below.
    pub(super) fn change_links(&mut self) {
        let passed = self.passed_by_selected();
        for (name, id, next) in std::mem::take(&mut self.links) {
            let Some(old) = self.tables.rows.sets.get(id).map(|row| row.header) else { continue };
            let waits = still_selected(&passed, id).or_else(|| self.failed_below(next).cloned());
            let result = waits.map_or_else(|| self.change_header(id, old, Header { next, ..old }), Err);
            if let Err(error) = result {
                self.hold_link(&name, next);
                self.fail(&name, error);
            }
        }
    }

    /// Nobody would make the set again for the next try.
    fn hold_link(&mut self, name: &OwnerName, next: SetId) {
        let below = self.tables.rows.sets.get(next).and_then(|row| self.tables.name_of_set(row));
        self.tables.held.links.entry(name.clone()).or_default().extend(below);
    }

    pub(super) fn is_to_be_linked(&self, set: SetId) -> bool {
        self.links.iter().any(|(_, _, next)| *next == set)
    }

    /// Sets that a pod comes to, or past, which its policy selects no more and which is not forgotten yet.
    pub(super) fn passed_by_selected(&self) -> HashSet<SetId> {
        let policies: HashSet<PolicyId> = self.tables.touched.selected.iter().map(|(policy, _)| *policy).collect();
        if policies.is_empty() {
            return HashSet::default();
        }
        let theirs = self.tables.rows.sets.iter().filter(|(_, row)| policies.contains(&row.header.policy));
        theirs.flat_map(|(id, _)| self.chain(id).map(|(id, _)| id)).collect()
    }

    /// This set and those below it.
    fn chain(&self, first: SetId) -> impl Iterator<Item = (SetId, &SetRow)> {
        let row = |id: SetId| Some((id, self.tables.rows.sets.get(id)?));
        std::iter::successors(row(first), move |(_, set)| row(set.header.next)).take(3)
    }

    fn leads_to_any(&self, set: SetId) -> bool {
        self.chain(set).any(|(_, row)| row.span.count > 0)
    }

    /// Nobody is in this set and below it, and somebody may have to come whose write failed. A full table is no reason to
    /// wait: it stays full.
    pub(super) fn failed_below(&self, set: SetId) -> Option<&MapError> {
        if self.tables.held.services.is_empty() || self.leads_to_any(set) {
            return None;
        }
        let owner = |row: &SetRow| Some(self.tables.port_name(row.owner)?.service);
        self.chain(set).find_map(|(_, row)| self.failed(&owner(row)?))
    }

    /// A policy whose write failed leads to this set, and may have to serve in its place.
    pub(super) fn failed_above(&self, set: SetId) -> Option<&MapError> {
        let leads_here = |first: &SetId| self.chain(*first).any(|(id, _)| id == set);
        self.tables.held.links.iter().find_map(|(policy, links)| {
            let mut ids = links.iter().filter_map(|name| self.tables.sets.get(name));
            ids.any(&leads_here).then(|| self.failed(policy)).flatten()
        })
    }

    pub(super) fn failed(&self, name: &OwnerName) -> Option<&MapError> {
        self.tables.held.services.get(name).filter(|error| matches!(error, MapError::Failed(_)))
    }
}

pub(super) fn still_selected(passed: &HashSet<SetId>, set: SetId) -> Option<MapError> {
    passed.contains(&set).then(|| MapError::Failed("a pod is still known as selected".into()))
}
