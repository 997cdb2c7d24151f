//! Policies: a number, a bucket and the pods that it selects stand before its sets ask for them, and go after the last set
//! that does.

use super::Work;
use crate::name::{OwnerName, SetName};
use crate::op::{MapError, Maps, Op};
use crate::plan::{ServicePlan, SetPolicy};
use crate::planner::Delta;
use crate::policy::PolicyKind;
use crate::row::*;
use std::collections::BTreeSet;

/// What a set links to is made before it: Services, then what goes before them, then what goes before that.
pub(super) fn rank(name: &OwnerName) -> u8 {
    match name.policy_kind() {
        None => 0,
        Some(PolicyKind::Balancing) => 1,
        Some(PolicyKind::LocalRedirect) => 2,
    }
}

impl<M: Maps> Work<'_, M> {
    pub(super) fn make_policy(&mut self, name: &OwnerName, plan: &ServicePlan) -> Result<(), MapError> {
        let mut asked = plan.sets.iter().filter_map(|set| set.policy).filter(SetPolicy::asks).peekable();
        if asked.peek().is_none() {
            return Ok(());
        }
        let limit = asked.find_map(|policy| policy.limit);
        let id = self.policy(name)?;
        self.tables.touched.policies.insert(id);
        if let Some(limit) = limit
            && self.tables.rows.buckets.get(&id) != Some(&limit)
        {
            self.write(Op::Bucket(id, Some(limit)))?;
        }
        self.make_members(id, plan)
    }

    fn policy(&mut self, name: &OwnerName) -> Result<PolicyId, MapError> {
        if let Some(id) = self.tables.policies.get(name) {
            return Ok(*id);
        }
        let id = self.tables.take_owner()?;
        self.write(Op::FillBucket(id))?;
        self.write(Op::Name(id, Some(NameRow { kind: NameKind::Policy, number: 0, text: name.to_text() })))?;
        self.tables.touched.policies.insert(id);
        Ok(id)
    }

    /// A pod is known before it is a backend, or it would be sent to itself.
    fn make_members(&mut self, id: PolicyId, plan: &ServicePlan) -> Result<(), MapError> {
        for cgroup in &plan.members {
            self.tables.touched.selected.remove(&(id, *cgroup));
            if !self.tables.rows.selected.contains(&(id, *cgroup)) {
                self.check_below(plan)?;
                self.write(Op::Member(id, *cgroup, true))?;
            }
        }
        Ok(())
    }

    /// A pod that is selected from now on is served by who is below.
    fn check_below(&self, plan: &ServicePlan) -> Result<(), MapError> {
        for set in &plan.sets {
            let below = self.set_below(set)?;
            self.failed_below(below).cloned().map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// The sets are as the plan has them: whom it selects no more is in none of them.
    pub(super) fn mark_members(&mut self, name: &OwnerName, plan: &ServicePlan) {
        let Some(id) = self.tables.policies.get(name).copied() else { return };
        let wanted: BTreeSet<u64> = plan.members.iter().copied().collect();
        let stale = self.tables.rows.selected_by(id).filter(|cgroup| !wanted.contains(cgroup));
        let stale: Vec<_> = stale.map(|cgroup| (id, cgroup)).collect();
        self.tables.touched.selected.extend(stale);
        self.tables.policy_sets.insert(id, plan.sets.len() as u32);
    }

    /// What a policy that could not be written links to stays until it could.
    pub(super) fn hold_links(&mut self, delta: &Delta) {
        let held = &mut self.tables.held;
        for (name, plan) in delta.services.iter().filter(|(name, _)| name.policy_kind().is_some()) {
            let sets = plan.iter().flat_map(|plan| &plan.sets);
            let links: Vec<SetName> = sets.filter_map(|set| set.next.clone()).collect();
            match held.services.contains_key(name) && !links.is_empty() {
                true => drop(held.links.insert(name.clone(), links)),
                false => drop(held.links.remove(name)),
            }
        }
    }

    pub(super) fn is_linked(&self, set: SetId) -> bool {
        let held = &self.tables.held;
        let name = || self.tables.rows.sets.get(set).and_then(|row| self.tables.name_of_set(row));
        !held.links.is_empty() && name().is_some_and(|name| held.is_linked(&name))
    }

    // ---- sweep ----

    pub(super) fn sweep_members(&mut self) {
        for (id, cgroup) in std::mem::take(&mut self.tables.touched.selected) {
            if self.sweep_member(id, cgroup).is_err() {
                self.tables.touched.selected.insert((id, cgroup));
            }
        }
    }

    pub(super) fn sweep_policies(&mut self) {
        for id in std::mem::take(&mut self.tables.touched.policies) {
            if self.sweep_policy(id).is_err() {
                self.tables.touched.policies.insert(id);
            }
        }
    }

    /// A set that the policy should have no more, and to which something still leads, may hold the pod, and so may one that
    /// could not be written.
    fn sweep_member(&mut self, id: PolicyId, cgroup: u64) -> Result<(), MapError> {
        if let Some(error) = self.tables.policy_name(id).and_then(|name| self.failed(&name)) {
            return Err(error.clone());
        }
        if self.tables.policy_refs.get(id) > self.tables.policy_sets.get(id) {
            return Err(MapError::Failed("a set that should be gone is in use".into()));
        }
        let there = self.tables.rows.selected.contains(&(id, cgroup));
        if there { self.write(Op::Member(id, cgroup, false)) } else { Ok(()) }
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
