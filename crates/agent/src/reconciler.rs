//! Brings the kernel's tables to the plan: owns the planner, the tables and the programs in the kernel, and retries writes
//! that failed. The sources decide what may be deleted; the caller passes that in.

use crate::change_metric::ChangeMetrics;
use crate::plan_refusals::PlanRefusals;
use crate::retry::RetryQueue;
use crate::settings::{AgentSettings, ControllerMode, SourceSettings};
use crate::status;
use beeline_api::{LastChange, PolicyCounts};
use beeline_datapath::program::StartKind;
use beeline_datapath::{KernelMaps, Program};
use beeline_model::change::{Change, ObjectKey};
use beeline_model::diff::{SyncScope, reconcile};
use beeline_model::op::Maps;
use beeline_model::planner::{Delta, Planner};
use beeline_model::policy::PolicyName;
use beeline_model::publish::{Publisher, UnknownNamespace};
use beeline_model::refusal::Refusal;
use beeline_model::row::Sizes;
use beeline_model::table::Tables;
use beeline_model::{Address, Family, Name, Protocol, ServiceName};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::Sender;

/// The number of service names in the log line of one write.
const LOGGED_SERVICES: usize = 5;
/// How often it is checked whether something that was refused for a full table fits now. The check looks at all Services.
const CAPACITY_REVIEW_INTERVAL: Duration = Duration::from_secs(1);
/// The number of left-out pods of a policy that are reported.
const MAX_REPORTED_PODS: usize = 20;

pub struct Reconciler {
    pub planner: Planner,
    pub tables: Tables,
    pub program: Program,
    kernel: KernelMaps,
    sizes: Sizes,
    /// Only for the test that proves that the grace period is needed.
    skip_grace: bool,
    /// Set if the agent itself selects the pods of BalancingPolicies, because there is no controller.
    publisher: Option<Publisher>,
    pub retries: RetryQueue,
    plan_refusals: PlanRefusals,
    pub metrics: ChangeMetrics,
    last_change: Option<LastChange>,
    /// Rows that should be deleted could not be deleted yet.
    has_leftover_rows: bool,
    next_capacity_review: Instant,
    /// Computed on demand after each sync, because it plans every policy.
    policy_counts: Cell<Option<PolicyCounts>>,
}

/// One write: which part of the plan, and what the sources allow.
pub struct SyncRequest {
    pub delta: Delta,
    pub scope: SyncScope,
    /// Clusters whose policies may not all be known yet.
    pub incomplete: BTreeSet<Name>,
    /// Whether the programs may be attached after the write.
    pub may_attach: bool,
    /// When the change arrived that is written.
    pub started: Instant,
}

/// The effects of a sync that other parts of the agent depend on.
pub struct SyncEffects {
    /// The Services and policies that were planned.
    pub services: Vec<ServiceName>,
    /// A UDP backend was removed, or the programs were attached.
    pub udp_changed: bool,
}

impl Reconciler {
    /// `refusals` receives the planner's refusals, to be posted on the objects.
    pub fn open(settings: &AgentSettings, refusals: Sender<Refusal>) -> anyhow::Result<Reconciler> {
        let program = Program::open(beeline_datapath::Config {
            pin_dir: settings.kernel.pin_dir.clone(),
            cgroup: settings.kernel.cgroup.clone(),
            sizes: settings.kernel.sizes,
            no_local_endpoint_action: settings.rules.no_local_endpoint_action,
            skip_rule_check: false,
        })?;
        let mut kernel = program.kernel()?;
        // An earlier agent may have released ids just before it ended: wait until no dial uses them.
        kernel.wait_grace_period()?;
        let mut tables = Tables::restore(kernel.dump()?, settings.kernel.sizes);
        tables.skip_grace = settings.kernel.skip_grace;
        let clusters = &settings.cluster_list.clusters;
        let mut planner = Planner::new(settings.rules.clone());
        planner.set_views(settings.cluster_list.view_names());
        let programmed: BTreeSet<ServiceName> = tables.port_names().map(|(name, _)| name.service.clone()).collect();
        planner.set_capacity(&settings.kernel.sizes, programmed.into_iter());
        // A snapshot may be served before an API server answers.
        for cluster in clusters {
            if let SourceSettings::Server(source) = &cluster.source {
                planner.set_api_servers(&cluster.rules.name, source.access.server_addresses());
            }
        }
        planner.adopt(tables.frontend_owners().filter(|_| clusters.len() > 1));
        let self_publishing = settings.controller == ControllerMode::None;
        if self_publishing {
            planner.set_self_publishing();
        }
        let folders = clusters.iter().all(|cluster| matches!(cluster.source, SourceSettings::Folder { .. }));
        let unknown = if folders { UnknownNamespace::Unlabelled } else { UnknownNamespace::Pending };
        Ok(Reconciler {
            planner,
            tables,
            program,
            kernel,
            sizes: settings.kernel.sizes,
            skip_grace: settings.kernel.skip_grace,
            publisher: self_publishing.then(|| Publisher::new(unknown)),
            retries: RetryQueue::default(),
            plan_refusals: PlanRefusals::new(refusals),
            metrics: ChangeMetrics::default(),
            last_change: None,
            has_leftover_rows: false,
            next_capacity_review: Instant::now(),
            policy_counts: Cell::new(None),
        })
    }

    /// Applies a change to the plan. Nothing is written yet.
    pub fn apply(&mut self, change: Change) {
        self.metrics.count(&change);
        self.publisher.iter_mut().for_each(|publisher| publisher.apply(&change));
        self.planner.apply(change);
    }

    /// The keys of all objects of a cluster that were applied.
    pub fn keys_of_cluster(&self, cluster: &Name) -> Vec<ObjectKey> {
        let mut keys = self.planner.keys_of_cluster(cluster);
        let namespaces = self.publisher.iter().flat_map(Publisher::namespaces).cloned();
        keys.extend(namespaces.map(|name| ObjectKey::Namespace { cluster: cluster.clone(), name }));
        keys
    }

    /// Applies the pods that the agent itself selects for BalancingPolicies.
    pub fn apply_published(&mut self) {
        for change in self.publisher.as_mut().map(Publisher::take_changes).unwrap_or_default() {
            self.planner.apply(change);
        }
    }

    /// The clusters that have rows in the kernel.
    pub fn programmed_clusters(&self) -> impl Iterator<Item = &str> {
        self.tables.port_names().map(|(name, _)| name.service.cluster())
    }

    pub fn sync(&mut self, request: SyncRequest) -> anyhow::Result<SyncEffects> {
        let SyncRequest { delta, scope, incomplete, may_attach, started } = request;
        let full = scope != SyncScope::Changes;
        if incomplete.is_empty() {
            self.planner.finish_start();
        }
        self.tables.unlisted = incomplete;
        let outcome = reconcile(&mut self.tables, &mut self.kernel, &delta, scope);
        let was_attached = self.program.is_attached();
        if may_attach {
            self.program.attach_hooks()?;
        }
        let now = Instant::now();
        self.retries.record(&delta, &outcome, now);
        self.plan_refusals.mark_stale();
        self.policy_counts.set(None);
        self.has_leftover_rows = outcome.leftover > 0;
        let took = now.duration_since(started);
        self.metrics.record_sync(took, full);
        let services: Vec<ServiceName> = delta.services.into_iter().map(|(name, _)| name).collect();
        if outcome.ops > 0 {
            self.last_change = Some(LastChange {
                at: crate::health::timestamp(SystemTime::now()),
                services: services.len(),
                writes: outcome.ops,
                micros: took.as_micros() as u64,
            });
            tracing::debug!(services = service_list(&services), writes = outcome.ops, ?took, "programmed");
        }
        let removed_udp = outcome.retired.iter().any(|(name, ..)| name.protocol == Protocol::Udp);
        Ok(SyncEffects { services, udp_changed: removed_udp || !was_attached })
    }

    /// Marks the failed writes that are due, and frees the ids that no dial can use any more.
    pub fn tick(&mut self, now: Instant) -> anyhow::Result<()> {
        self.tables.recycle(&mut self.kernel)?;
        for name in self.retries.due_services(now) {
            self.planner.mark_dirty(&name);
        }
        if self.retries.are_nodes_due(now) {
            self.planner.mark_nodes_dirty();
        }
        if now >= self.next_capacity_review {
            self.planner.review_capacity();
            self.next_capacity_review = now + CAPACITY_REVIEW_INTERVAL;
        }
        Ok(())
    }

    pub fn update_refusals(&mut self) {
        self.plan_refusals.update_if_due(&self.planner);
    }

    /// Re-attaches hooks that another program detached, and compares the kernel's tables with what was written. Returns
    /// whether they differ: then everything has to be written again.
    pub fn check_kernel(&mut self) -> anyhow::Result<bool> {
        let reattached = self.program.reattach_lost()?;
        if !reattached.is_empty() {
            tracing::warn!(hooks = reattached.join(", "), "hooks were detached externally; re-attached");
        }
        self.kernel.wait_grace_period()?;
        let rows = self.kernel.dump()?;
        let differs = !self.tables.matches(&rows);
        if differs {
            tracing::warn!(
                "the kernel's tables differ from what was written; writing them again; if this repeats, look for another \
                 writer of --pin-dir"
            );
            self.tables = Tables::restore(rows, self.sizes);
            self.tables.skip_grace = self.skip_grace;
        } else {
            // Freed before the memory is trimmed: the dump is as large as the tables.
            drop(rows);
            beeline_datapath::memory::trim();
        }
        Ok(differs)
    }

    /// The addresses that host processes are seen with, for IPv4 and IPv6.
    pub fn host_addresses(&self) -> [Option<Address>; 2] {
        let rules = self.planner.rules();
        [Family::V4, Family::V6].map(|family| {
            let first = || rules.own_addresses.iter().copied().find(|address| address.family() == family);
            self.planner.own_node().and_then(|node| node.primary(family)).or_else(first)
        })
    }

    /// Whether the tables were created for another layout: then the old programs serve from the old tables until
    /// `SyncRequest::may_attach`.
    pub fn is_rebuilt(&self) -> bool {
        self.program.start == StartKind::Rebuilt
    }

    pub fn has_leftover_rows(&self) -> bool {
        self.has_leftover_rows
    }

    pub fn last_change(&self) -> Option<&LastChange> {
        self.last_change.as_ref()
    }

    pub fn kernel_mut(&mut self) -> &mut KernelMaps {
        &mut self.kernel
    }

    /// Refusals of the planner and of failed writes.
    pub fn refusals(&self) -> Vec<Refusal> {
        let mut all = self.plan_refusals.current(&self.planner);
        all.extend(self.retries.refusals().cloned());
        all
    }

    /// Pods that this agent did not select for a policy, and why. At most `MAX_REPORTED_PODS`.
    pub fn skipped_pods(&self, policy: &PolicyName) -> impl Iterator<Item = Refusal> {
        let pods = self.publisher.iter().flat_map(|publisher| publisher.skipped(policy)).take(MAX_REPORTED_PODS);
        pods.map(move |(pod, problem)| {
            let message = format!("pod {}/{}: {}", pod.namespace, pod.name, problem.message);
            Refusal::new(policy, problem.reason, message)
        })
    }

    /// `cache` tells whether the result may be kept until the next sync.
    pub fn policy_counts(&self, cache: bool) -> PolicyCounts {
        let counts = self.policy_counts.get().unwrap_or_else(|| status::policy_counts(&self.planner.policies()));
        self.policy_counts.set(Some(counts).filter(|_| cache));
        counts
    }
}

/// `default/web, default/api and 3 more`.
fn service_list(services: &[ServiceName]) -> String {
    let names: Vec<String> = services.iter().take(LOGGED_SERVICES).map(ToString::to_string).collect();
    match services.len().saturating_sub(LOGGED_SERVICES) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_the_first_services_and_counts_the_others() {
        let services: Vec<ServiceName> = (1..=7).map(|i| ServiceName::local("default", &format!("s{i}"))).collect();
        assert_eq!(service_list(&services[..2]), "default/s1, default/s2");
        assert_eq!(service_list(&services), "default/s1, default/s2, default/s3, default/s4, default/s5 and 2 more");
    }
}
