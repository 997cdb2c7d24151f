//! Policies: a number, a bucket and the pods that it selects stand before its sets ask for them, and go after the last set
//! that does.

use super::Work;
use crate::name::OwnerName;
use crate::op::{MapError, Maps, Op};
use crate::plan::{ServicePlan, SetPolicy};
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

    /// A pod is known before it is a backend, and until it no longer is: it would be sent to itself.
    fn make_members(&mut self, id: PolicyId, plan: &ServicePlan) -> Result<(), MapError> {
        let wanted: BTreeSet<u64> = plan.members.iter().copied().collect();
        let stale = self.tables.rows.selected_by(id).filter(|cgroup| !wanted.contains(cgroup));
        let stale: Vec<_> = stale.map(|cgroup| (id, cgroup)).collect();
        self.tables.touched.selected.extend(stale);
        for cgroup in wanted {
            self.tables.touched.selected.remove(&(id, cgroup));
            if !self.tables.rows.selected.contains(&(id, cgroup)) {
                self.write(Op::Member(id, cgroup, true))?;
            }
        }
        Ok(())
    }

    // ---- sweep ----

    pub(super) fn sweep_policies(&mut self) {
        for (id, cgroup) in std::mem::take(&mut self.tables.touched.selected) {
            if self.sweep_member(id, cgroup).is_err() {
                self.tables.touched.selected.insert((id, cgroup));
            }
        }
        for id in std::mem::take(&mut self.tables.touched.policies) {
            if self.sweep_policy(id).is_err() {
                self.tables.touched.policies.insert(id);
            }
        }
    }

    /// While the policy is half written, a pod that it selects no more may still be in its set.
    fn sweep_member(&mut self, id: PolicyId, cgroup: u64) -> Result<(), MapError> {
        let held = self.tables.policy_name(id).and_then(|name| self.tables.held.services.get(&name)).cloned();
        held.map_or(Ok(()), Err)?;
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
