//! The agent's handling of cgroups: rules, the cgroups of members, and cgroups for `beeline run --view`.

use super::Agent;
use crate::cgroup_rules::RuleContext;
use crate::member::MemberUpdate;
use beeline_datapath::cgroup;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

impl Agent {
    pub(super) fn update_cgroup_rules(&mut self, now: Instant) {
        if !self.cgroup_rules.is_due(self.pod_cgroups.are_rules_outdated(), now) {
            return;
        }
        self.update_pod_cgroups();
        self.pod_cgroups.mark_rules_applied();
        let context = RuleContext {
            planner: &self.reconciler.planner,
            control: &self.control,
            pod_rules: self.pod_cgroups.rules(),
            complete: self.sources.is_complete(),
        };
        self.cgroup_rules.update(&context, now);
    }

    /// Creates a cgroup whose processes see this view, for a command to enter.
    pub fn create_view_cgroup(&mut self, view: &str) -> anyhow::Result<PathBuf> {
        let context = RuleContext {
            planner: &self.reconciler.planner,
            control: &self.control,
            pod_rules: self.pod_cgroups.rules(),
            complete: self.sources.is_complete(),
        };
        self.cgroup_rules.create_view_cgroup(view, &self.settings.cluster_list.view_names(), &context)
    }

    /// Finds the cgroups of pods that policies select or that have rules, as far as they exist, and passes those of members
    /// to the planner.
    pub(super) fn update_pod_cgroups(&mut self) {
        for MemberUpdate { uid, cgroup } in self.pod_cgroups.update(&self.reconciler.planner, Instant::now()) {
            let id = cgroup.and_then(|(id, path)| self.add_member(&uid, &path).then_some(id));
            self.reconciler.planner.set_cgroup(&uid, id);
        }
    }

    /// Tells the kernel at which level of the hierarchy the member's cgroup is. If that fails the pod is not a member,
    /// because its own dials would be redirected to itself; the next scan tries again.
    fn add_member(&mut self, uid: &str, path: &Path) -> bool {
        let level = cgroup::level(path);
        let error = match level.and_then(|level| self.control.add_member_levels([level])) {
            Ok(()) => {
                self.pod_cgroups.members().record_success(uid);
                return true;
            }
            Err(error) => error.to_string(),
        };
        if self.pod_cgroups.members().record_failure(uid, error.clone()) {
            tracing::warn!(
                pod_uid = uid,
                error,
                "cannot add the pod to the backends of its LocalRedirectPolicy; retrying"
            );
        }
        false
    }

    /// Writes the source addresses of pods to the kernel, if a load-balancer address is restricted to source ranges.
    pub(super) fn update_pod_addresses(&mut self, now: Instant) {
        if !self.reconciler.tables.has_source_ranges() {
            return;
        }
        let Some(pods) = self.pod_cgroups.changed_addresses(now) else { return };
        let levels: Result<BTreeSet<u32>, _> = pods.iter().map(|pod| cgroup::level(&pod.path)).collect();
        let rows = pods.into_iter().map(|pod| (pod.cgroup, pod.addresses)).collect();
        let written = levels.and_then(|levels| {
            self.control.add_member_levels(levels)?;
            self.pod_addresses.set(&rows, self.sources.is_complete())
        });
        if let Err(error) = written {
            tracing::debug!(%error, "cannot write the addresses of pods; retrying");
            self.pod_cgroups.mark_addresses_changed();
        }
    }

    /// Removes the levels at which no member's cgroup is. Does nothing before all clusters are complete, because rows that
    /// are not in the plan yet may belong to pods that are not known yet.
    pub(super) fn remove_unused_member_levels(&self) {
        if !self.sources.is_complete() {
            return;
        }
        let needs_all = self.reconciler.tables.has_source_ranges();
        let addressed = self.pod_cgroups.scanned_paths().filter(|_| needs_all);
        let levels = self.pod_cgroups.member_paths().chain(addressed).map(cgroup::level).collect::<Result<Vec<_>, _>>();
        if let Err(error) = levels.and_then(|levels| self.control.set_member_levels(levels)) {
            tracing::debug!(%error, "cannot set the levels of members' cgroups; the last ones stay in effect");
        }
    }

    /// Sets the level of the cgroups between which memory in the kernel is shared: that of pods. Without pods it is two
    /// levels below the agent's cgroup, the level of systemd's services.
    pub(super) fn update_share_level(&self) {
        let pods = self.pod_cgroups.scanned_paths().filter_map(|path| cgroup::level(path).ok()).max();
        let level = pods.or_else(|| Some(cgroup::level(&self.settings.kernel.cgroup).ok()? + 2));
        level.into_iter().for_each(|level| self.control.set_share_level(level));
    }
}
