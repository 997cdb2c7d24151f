//! Policies: the id, the bucket and the selected pods of a policy are written before the sets that use them, and
//! deleted after the last of these sets.

use super::Reconciler;
use crate::name::{ServiceName, SetName};
use crate::op::{MapError, Maps, Op};
use crate::plan::{ServicePlan, SetPolicy};
use crate::planner::Delta;
use crate::policy::PolicyKind;
use crate::row::*;
use std::collections::BTreeSet;

/// The position of an owner in a chain, counted from the end. A set is created after the sets that it links to:
/// Services first, then BalancingPolicies, then LocalRedirectPolicies.
pub(super) fn chain_position(name: &ServiceName) -> u8 {
    match name.policy_kind() {
        None => 0,
        Some(PolicyKind::Balancing) => 1,
        Some(PolicyKind::LocalRedirect) => 2,
    }
}

impl<M: Maps> Reconciler<'_, M> {
    pub(super) fn write_policy(&mut self, name: &ServiceName, plan: &ServicePlan) -> Result<(), MapError> {
        let mut active = plan.sets.iter().filter_map(|set| set.policy).filter(SetPolicy::is_active).peekable();
        if active.peek().is_none() {
            return Ok(());
        }
        let limit = active.find_map(|policy| policy.limit);
        let id = self.policy_id(name)?;
        self.tables.sweep_queue.policies.insert(id);
        if let Some(limit) = limit
            && self.tables.rows.buckets.get(&id) != Some(&limit)
        {
            self.write(Op::Bucket(id, Some(limit)))?;
        }
        self.write_members(id, plan)
    }

    fn policy_id(&mut self, name: &ServiceName) -> Result<PolicyId, MapError> {
        if let Some(id) = self.tables.policies.get(name) {
            return Ok(*id);
        }
        let id = self.tables.allocate_owner()?;
        self.write(Op::FillBucket(id))?;
        self.write(Op::Name(id, Some(NameRow { kind: NameKind::Policy, number: 0, text: name.to_text() })))?;
        self.tables.sweep_queue.policies.insert(id);
        Ok(id)
    }

    /// A pod must be known as selected before it is a backend, or it would be redirected to itself.
    fn write_members(&mut self, id: PolicyId, plan: &ServicePlan) -> Result<(), MapError> {
        for cgroup in &plan.members {
            self.tables.sweep_queue.selected.remove(&(id, *cgroup));
            if !self.tables.rows.selected.contains(&(id, *cgroup)) {
                self.check_below(plan)?;
                self.write(Op::Member(id, *cgroup, true))?;
            }
        }
        Ok(())
    }

    /// Dials of a newly selected pod go to the next set, so that set must be ready.
    fn check_below(&self, plan: &ServicePlan) -> Result<(), MapError> {
        for set in &plan.sets {
            let below = self.next_set(set)?;
            self.failed_below(below).cloned().map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// The sets now match the plan, so a pod that is no longer selected is in none of them.
    pub(super) fn mark_stale_members(&mut self, name: &ServiceName, plan: &ServicePlan) {
        let Some(id) = self.tables.policies.get(name).copied() else { return };
        let wanted: BTreeSet<u64> = plan.members.iter().copied().collect();
        let stale = self.tables.rows.selected_by(id).filter(|cgroup| !wanted.contains(cgroup));
        let stale: Vec<_> = stale.map(|cgroup| (id, cgroup)).collect();
        self.tables.sweep_queue.selected.extend(stale);
        self.tables.policy_sets.insert(id, plan.sets.len() as u32);
    }

    /// The sets that a policy links to are kept until the policy could be written.
    pub(super) fn keep_links_of_failed(&mut self, delta: &Delta) {
        let pending = &mut self.tables.pending;
        for (name, plan) in delta.services.iter().filter(|(name, _)| name.policy_kind().is_some()) {
            let sets = plan.iter().flat_map(|plan| &plan.sets);
            let links: Vec<SetName> = sets.filter_map(|set| set.next.clone()).collect();
            match pending.services.contains_key(name) && !links.is_empty() {
                true => drop(pending.links.insert(name.clone(), links)),
                false => drop(pending.links.remove(name)),
            }
        }
    }

    pub(super) fn is_linked(&self, set: SetId) -> bool {
        let pending = &self.tables.pending;
        let name = || self.tables.rows.sets.get(set).and_then(|row| self.tables.name_of_set(row));
        !pending.links.is_empty() && name().is_some_and(|name| pending.is_linked(&name))
    }

    // ---- sweep ----

    pub(super) fn sweep_members(&mut self) {
        for (id, cgroup) in std::mem::take(&mut self.tables.sweep_queue.selected) {
            if self.sweep_member(id, cgroup).is_err() {
                self.tables.sweep_queue.selected.insert((id, cgroup));
            }
        }
    }

    pub(super) fn sweep_policies(&mut self) {
        for id in std::mem::take(&mut self.tables.sweep_queue.policies) {
            if self.sweep_policy(id).is_err() {
                self.tables.sweep_queue.policies.insert(id);
            }
        }
    }

    /// Waits while an obsolete set of the policy is still in use, or a set could not be written: either may still
    /// contain the pod.
    fn sweep_member(&mut self, id: PolicyId, cgroup: u64) -> Result<(), MapError> {
        if let Some(error) = self.tables.policy_name(id).and_then(|name| self.failed(&name)) {
            return Err(error.clone());
        }
        if self.tables.policy_refs.get(id) > self.tables.policy_sets.get(id) {
            return Err(MapError::Failed("an obsolete set of the policy is still in use".into()));
        }
        let exists = self.tables.rows.selected.contains(&(id, cgroup));
        if exists { self.write(Op::Member(id, cgroup, false)) } else { Ok(()) }
    }

    fn sweep_policy(&mut self, id: PolicyId) -> Result<(), MapError> {
        if !self.tables.limit_refs.contains(id) && self.tables.rows.buckets.contains_key(&id) {
            self.write(Op::Bucket(id, None))?;
        }
        if self.tables.policy_refs.contains(id) {
            return Ok(());
        }
        for cgroup in self.tables.rows.selected_by(id).collect::<Vec<_>>() {
            self.write(Op::Member(id, cgroup, false))?;
        }
        let named = self.tables.policy_name(id).is_some();
        if named { self.write(Op::Name(id, None)) } else { Ok(()) }
    }
}
