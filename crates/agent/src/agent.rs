//! The agent's state. It takes changes, snapshots, the configuration and the time, and brings the kernel up to date. It is
//! synchronous; only the thread of the main loop calls it.

mod cgroup;
mod packet;
mod status;

use crate::cgroup_rules::CgroupRules;
use crate::cluster_id::ClusterIdStore;
use crate::dns::DnsUpdater;
use crate::event_level::EventLevelState;
use crate::health_check::HealthCheckPorts;
use crate::packet_path::udp_flows::UdpFlowReporter;
use crate::packet_path::{PacketSources, SharedPacketState, UdpBackends};
use crate::plan_refusals::log_refusal;
use crate::pod_cgroup::PodCgroups;
use crate::pod_rules::ExclusionRules;
use crate::reach::{ReachQuery, ReachUpdate};
use crate::reach_client::ReachClient;
use crate::reconciler::{Reconciler, SyncRequest};
use crate::redirect_health::watch::RedirectWatch;
use crate::rollout_reporter::RolloutReporter;
use crate::settings::{AgentDownAction, AgentSettings, ClusterList};
use crate::share_collector::ShareCollector;
use crate::snapshot::SnapshotStore;
use crate::sources::Sources;
use crate::startup_gate::StartupGate;
use crate::token::TokenRenewals;
use crate::traffic::TrafficCounters;
use crate::udp_reaper::UdpReaper;
use anyhow::Context;
use beeline_cluster::ChangeBatch;
use beeline_datapath::control::{CgroupRule, Control};
use beeline_datapath::counter::CounterMaps;
use beeline_datapath::namespace_opener::NamespaceOpener;
use beeline_datapath::pod_address::PodAddressMap;
use beeline_datapath::program::{Program, StartKind, shards};
use beeline_datapath::reap::Reaper;
use beeline_model::change::{Change, ObjectKind};
use beeline_model::diff::SyncScope;
use beeline_model::object::Object;
use beeline_model::planner::Delta;
use beeline_model::refusal::Refusal;
use beeline_model::rollout::RolloutReport;
use beeline_model::{Address, Name, ServiceName};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

/// The result of the self-test before it has run. It runs when the hooks are attached.
pub const SELF_TEST_NOT_RUN: &str = "not run";

/// The time that the first complete cluster waits for the others after a change of the table layout.
const LAYOUT_CHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Stores and counters that tasks of the agent share with the main loop.
#[derive(Clone)]
pub struct SharedStores {
    pub cluster_ids: Arc<ClusterIdStore>,
    pub snapshots: Option<Arc<SnapshotStore>>,
    pub tokens: TokenRenewals,
    pub traffic: Arc<TrafficCounters>,
    pub health_checks: Arc<HealthCheckPorts>,
    /// Events that were read from the kernel and not delivered.
    pub dropped_events: Arc<AtomicU64>,
}

pub struct Agent {
    pub settings: AgentSettings,
    pub sources: Sources,
    gate: StartupGate,
    pub reconciler: Reconciler,
    pub control: Control,
    pub counters: CounterMaps,
    pub pod_cgroups: PodCgroups,
    pod_addresses: PodAddressMap,
    cgroup_rules: CgroupRules,
    pub reach: ReachClient,
    pub udp_reaper: UdpReaper,
    shares: ShareCollector,
    pub redirects: RedirectWatch,
    reporter: RolloutReporter,
    dns: Option<DnsUpdater>,
    pub shared: SharedStores,
    pub event_level: EventLevelState,
    /// The refusal that is reported while the Node object of this host is missing.
    node_refusal: Option<Refusal>,
    /// When an earlier agent last kept the tables up to date that this agent found. `None` if it found none.
    tables_written: Option<SystemTime>,
    pub self_test: String,
    pub packet_sources: Option<PacketSources>,
    pub packet_state: Arc<SharedPacketState>,
    udp_backends: UdpBackends,
    /// `None` if the packet path is off.
    udp_flows: Option<UdpFlowReporter>,
}

/// The earlier agent wrote its heartbeat as long as it ran.
fn tables_written(program: &Program) -> Option<SystemTime> {
    match program.start {
        StartKind::Adopted | StartKind::Resized => SystemTime::now().checked_sub(program.earlier_heartbeat_age?),
        StartKind::Fresh | StartKind::Rebuilt => None,
    }
}

impl Agent {
    /// `refusals` receives the planner's refusals, to be posted on the objects. `namespaces` opens files of pods.
    pub fn open(
        settings: AgentSettings,
        shared: SharedStores,
        refusals: Sender<Refusal>,
        namespaces: Arc<NamespaceOpener>,
    ) -> anyhow::Result<Agent> {
        let mut reconciler = Reconciler::open(&settings, refusals)?;
        let program = &reconciler.program;
        let control = program.control()?;
        let tables_written = tables_written(program);
        let event_level = EventLevelState::new(settings.kernel.event_level);
        control.set_event_level(event_level.kernel_level());
        control.set_agent_down_timeout(match settings.kernel.agent_down_action {
            AgentDownAction::Keep => None,
            AgentDownAction::Passthrough(after) => Some(after),
        });
        control.set_record_limit(settings.kernel.record_limit);
        let excluded = settings.kernel.excluded_cgroups.iter().map(|path| (path.as_path(), CgroupRule::EXCLUDED));
        // Rules that an earlier agent wrote for pods stay until the pods are known again.
        control.add_rules(&excluded.collect::<Vec<_>>()).context("--exclude-cgroup")?;
        let reaper = Reaper::new(program.maps(), &settings.kernel.sizes, shards(), program.constants()?, namespaces);
        let list = &settings.cluster_list;
        let exclusion = ExclusionRules::new(settings.kernel.sidecar_exclusion);
        let (excluded, configured) = (settings.kernel.excluded_cgroups.clone(), list.view_cgroups.clone());
        Ok(Agent {
            sources: Sources::new(&list.clusters, settings.rules.host_role),
            gate: StartupGate::new(Instant::now()),
            control,
            counters: program.counters()?,
            pod_addresses: program.pod_addresses()?,
            pod_cgroups: PodCgroups::new(&settings.kernel.cgroup, settings.rules.node_name.clone(), exclusion),
            cgroup_rules: CgroupRules::new(&settings.kernel.cgroup, excluded, configured),
            reach: ReachClient::new(),
            redirects: RedirectWatch::new(program)?,
            udp_reaper: UdpReaper::new(reaper, settings.kernel.udp_grace_period),
            shares: ShareCollector::new(program),
            reporter: RolloutReporter::default(),
            dns: None,
            shared,
            event_level,
            node_refusal: None,
            tables_written,
            self_test: SELF_TEST_NOT_RUN.into(),
            packet_sources: settings
                .packet_path
                .as_ref()
                .map(|packet| PacketSources::new(program, packet))
                .transpose()?,
            packet_state: Arc::default(),
            udp_flows: None,
            udp_backends: UdpBackends::restore(&mut reconciler),
            reconciler,
            settings,
        })
    }

    pub fn set_event_level(&mut self, state: EventLevelState) {
        self.event_level = state;
        self.control.set_event_level(state.kernel_level());
    }

    pub fn set_report_sender(&mut self, sender: Option<watch::Sender<Option<RolloutReport>>>) {
        self.reporter.set_sender(sender);
    }

    /// Applies a batch of a cluster. Nothing is programmed before the cluster has delivered its first list.
    pub fn apply_batch(&mut self, cluster: &Name, mut batch: ChangeBatch) -> anyhow::Result<()> {
        let started = batch.received_at.unwrap_or_else(Instant::now);
        let triggers = std::mem::take(&mut batch.trigger_times);
        if !batch.api_servers.is_empty() {
            self.reconciler.planner.set_api_servers(cluster, std::mem::take(&mut batch.api_servers));
        }
        let Some(applied) = self.sources.apply(cluster, batch) else { return Ok(()) };
        self.apply_changes(applied.changes);
        if applied.first {
            self.reconciler.planner.note_synced(cluster);
        }
        if self.is_gated(started)? || !self.sources.is_synced() {
            return Ok(());
        }
        if applied.first {
            return self.sync_first(started);
        }
        self.update_pod_cgroups();
        self.sync(started)?;
        self.reconciler.metrics.record_programmed(&triggers);
        Ok(())
    }

    /// The source of a cluster starts again, after a panic or an error. It will list everything, but does not remember what
    /// it delivered before: objects that were deleted meanwhile are deleted when the list is complete.
    pub fn restart_source(&mut self, cluster: &Name) {
        let reconciler = &self.reconciler;
        self.sources.restart(cluster, || reconciler.keys_of_cluster(cluster));
    }

    fn apply_changes(&mut self, changes: Vec<Change>) {
        self.reach.schedule_update(Instant::now());
        self.dns.iter_mut().for_each(|dns| dns.queue(&changes));
        for change in changes {
            self.pod_cgroups.apply(&change, &self.reconciler.planner);
            if self.reconciler.planner.order().is_home(change.cluster()) {
                self.reporter.apply(&change);
            }
            self.reconciler.apply(change);
        }
        self.reconciler.apply_published();
    }

    /// Serves a snapshot of a cluster until its source has delivered a list.
    pub fn apply_snapshot(&mut self, cluster: &Name, objects: Vec<Object>, taken_at: SystemTime) -> anyhow::Result<()> {
        let Some(changes) = self.sources.apply_snapshot(cluster, objects, taken_at) else { return Ok(()) };
        if self.has_newer_rows(cluster, taken_at) {
            tracing::warn!(%cluster, "the tables are newer than the snapshot; they stay until the cluster answers");
            self.apply_ranges_and_names(changes);
        } else {
            self.apply_changes(changes);
        }
        if self.is_gated(Instant::now())? {
            return Ok(());
        }
        self.update_pod_cgroups();
        self.sync_all(Instant::now())
    }

    /// Whether the tables have rows of the cluster that an earlier agent wrote after the snapshot was taken. The agent writes
    /// a snapshot some time after the tables, so a killed agent leaves tables that are newer.
    fn has_newer_rows(&self, cluster: &Name, taken_at: SystemTime) -> bool {
        self.tables_written.is_some_and(|at| at > taken_at)
            && self.reconciler.programmed_clusters().any(|name| name == &**cluster)
    }

    /// Applies the part of a snapshot that changes no row of its cluster: the service ranges, which other clusters wait for,
    /// and the DNS names.
    fn apply_ranges_and_names(&mut self, changes: Vec<Change>) {
        let is_range = |change: &Change| change.key().kind() == ObjectKind::ServiceRange;
        let (ranges, rest): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(is_range);
        self.dns.iter_mut().for_each(|dns| dns.queue(&rest));
        self.apply_changes(ranges);
    }

    /// Whether it is too early to write. When the gate opens, everything is written here, once.
    fn is_gated(&mut self, started: Instant) -> anyhow::Result<bool> {
        if self.gate.is_open() {
            return Ok(false);
        }
        let now = Instant::now();
        if self.gate.clusters_ready(self.sources.synced_clusters(), now) {
            match self.reach.update(&self.reconciler.planner) {
                Some(query) => self.gate.wait_for_reach(query, now),
                None => self.gate = StartupGate::Open,
            }
        }
        self.gate.check_timeout(now);
        if self.gate.is_open() {
            self.sync_first(started)?;
        }
        Ok(true)
    }

    /// The first write of a cluster. The cgroups of members are found before, so that pods of a policy do not leave its sets
    /// for a moment after a restart.
    fn sync_first(&mut self, started: Instant) -> anyhow::Result<()> {
        self.update_pod_cgroups();
        self.update_share_level();
        self.sync_all(started)?;
        self.remove_unused_member_levels();
        Ok(())
    }

    /// Applies a new cluster list. The sources of `restarted` are new ones.
    pub fn set_cluster_list(&mut self, list: ClusterList, restarted: &BTreeSet<Name>) -> anyhow::Result<()> {
        let deletions = self.sources.configure(&list.clusters, restarted);
        self.apply_changes(deletions);
        let planner = &mut self.reconciler.planner;
        let is_configured = |name: &Name| list.clusters.iter().any(|cluster| cluster.rules.name == *name);
        let before = planner.rules().clusters.iter().map(|rules| rules.name.clone());
        let removed: BTreeSet<Name> = before.filter(|name| !is_configured(name)).collect();
        for name in &removed {
            planner.remove_cluster(name);
        }
        planner.set_clusters(list.clusters.iter().map(|cluster| cluster.rules.clone()).collect());
        planner.set_views(list.view_names());
        let now = Instant::now();
        self.reach.schedule_update_now(now);
        self.dns.iter().for_each(|dns| dns.set_zones(&list.clusters));
        self.cgroup_rules.set_configured(list.view_cgroups.clone());
        self.settings.cluster_list = list;
        let clusters: Vec<&str> = self.sources.names().map(|name| &**name).collect();
        tracing::info!(clusters = clusters.join(", "), "the configuration has changed");
        if !self.is_gated(now)? && self.sources.is_synced() {
            return self.sync_all(now);
        }
        // The rows of removed clusters are deleted at once, whatever is known of the others.
        if removed.is_empty() { Ok(()) } else { self.sync_delta(Delta::default(), SyncScope::Clusters(removed), now) }
    }

    /// Applies results of the reach task.
    pub fn apply_reach(&mut self, update: ReachUpdate) -> anyhow::Result<()> {
        let was_open = self.gate.is_open();
        if update.error.is_none() {
            self.gate.apply(&update);
        }
        let Some(reach) = self.reach.apply(update) else { return Ok(()) };
        self.reconciler.planner.set_reach(reach);
        match (was_open, self.gate.is_open()) {
            (false, true) => self.sync_first(Instant::now()),
            (true, true) if self.sources.is_synced() => self.sync(Instant::now()),
            _ => Ok(()),
        }
    }

    pub fn reach_query(&self) -> watch::Receiver<ReachQuery> {
        self.reach.subscribe()
    }

    /// Reports to the controller what this node has programmed.
    pub fn publish_report(&self) {
        if self.sources.is_synced() {
            let planner = &self.reconciler.planner;
            let capacity_refusals: Vec<(&ServiceName, Refusal)> = planner.refused_policies().collect();
            let failing = self.reconciler.retries.service_refusals().chain(planner.policy_failures());
            let failing = failing.chain(capacity_refusals.iter().map(|(name, refusal)| (*name, refusal)));
            self.reporter.publish(failing.filter(|(name, _)| planner.order().is_home(name.cluster())));
        }
    }

    /// Writes the changes of the plan.
    fn sync(&mut self, started: Instant) -> anyhow::Result<()> {
        if !self.reconciler.planner.is_dirty() {
            return Ok(());
        }
        let delta = self.reconciler.planner.take_delta();
        self.sync_delta(delta, SyncScope::Changes, started)
    }

    /// Compares the whole plan with the kernel's tables: at the start, and when they differ.
    fn sync_all(&mut self, started: Instant) -> anyhow::Result<()> {
        let delta = self.reconciler.planner.take_full_delta();
        let scope = self.sources.sync_scope(self.reconciler.programmed_clusters());
        let result = self.sync_delta(delta, scope, started);
        beeline_datapath::memory::trim();
        result
    }

    fn sync_delta(&mut self, delta: Delta, scope: SyncScope, started: Instant) -> anyhow::Result<()> {
        let [v4, v6] = self.reconciler.host_addresses();
        self.control.set_host_addresses(v4, v6);
        let (incomplete, may_attach) = (self.sources.incomplete(), self.may_attach());
        let request = SyncRequest { delta, scope, incomplete, may_attach, started };
        let effects = self.reconciler.sync(request)?;
        self.update_packet_path()?;
        self.udp_reaper.record_sync(effects.udp_changed, Instant::now());
        self.redirects.update(&self.reconciler);
        self.shared.health_checks.update(effects.services.iter(), &self.reconciler.planner);
        self.check_node_name();
        Ok(())
    }

    /// After a change of the table layout the new tables contain only what the sources delivered, so with an unreadable
    /// file some services would be missing. The old programs serve from the old tables until everything is read; but one
    /// cluster that does not answer blocks the others for a limited time only.
    fn may_attach(&self) -> bool {
        let timeout = (self.sources.iter().count() > 1).then_some(LAYOUT_CHANGE_TIMEOUT);
        !self.reconciler.is_rebuilt() || self.sources.is_settled(timeout)
    }

    /// Logs a missing Node object when it is noticed, and when it is found.
    fn check_node_name(&mut self) {
        let refusal = self.missing_node();
        if refusal != self.node_refusal {
            match &refusal {
                Some(refusal) => log_refusal(None, refusal),
                None => tracing::info!(node = %self.settings.rules.node_name, "the Node object was found"),
            }
        }
        self.node_refusal = refusal;
    }

    /// Called a few times per second: heartbeat, retries, and everything that waits for a point in time.
    pub fn tick(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        self.control.record_heartbeat();
        self.reach.update_if_due(&self.reconciler.planner, now);
        self.update_cgroup_rules(now);
        if self.sources.is_synced() {
            self.update_pod_cgroups();
        }
        self.update_pod_addresses(now);
        self.redirects.update(&self.reconciler);
        self.reconciler.tick(now)?;
        if self.is_gated(now)? || !self.sources.is_synced() {
            return Ok(());
        }
        self.sync(now)?;
        self.reconciler.update_refusals();
        let attach_now = !self.reconciler.program.is_attached() && self.may_attach();
        if self.reconciler.has_leftover_rows() || attach_now {
            return self.sync_delta(Delta::default(), SyncScope::Changes, now);
        }
        Ok(())
    }

    /// Compares the kernel with the plan and repairs differences.
    pub fn check_kernel(&mut self) -> anyhow::Result<()> {
        if !self.is_synced() {
            return Ok(());
        }
        self.pod_cgroups.mark_changed();
        self.update_pod_cgroups();
        self.sync(Instant::now())?;
        self.remove_unused_member_levels();
        self.update_share_level();
        let differs = self.reconciler.check_kernel()?;
        // After lost hooks were attached again: no release is missed from now on.
        self.collect_shares();
        if differs { self.sync_all(Instant::now()) } else { Ok(()) }
    }

    pub fn collect_shares(&self) {
        self.shares.run(&self.reconciler.program, self.control.share_level());
    }

    pub fn set_own_addresses(&mut self, addresses: Vec<Address>) -> anyhow::Result<()> {
        self.reconciler.planner.set_own_addresses(addresses);
        self.dns.iter().for_each(|dns| dns.set_own_addresses(self.reconciler.planner.rules()));
        if self.is_synced() { self.sync(Instant::now()) } else { Ok(()) }
    }

    pub fn dns(&self) -> Option<&DnsUpdater> {
        self.dns.as_ref()
    }

    /// Sets what passes changes on to the DNS server. `None` means that none runs.
    pub fn set_dns(&mut self, dns: Option<DnsUpdater>) {
        dns.iter().for_each(|dns| dns.set_own_addresses(self.reconciler.planner.rules()));
        self.dns = dns;
    }

    /// Publishes names after their addresses are programmed, so that a name that is answered can be dialled.
    pub fn publish_names(&mut self) {
        if !self.gate.is_open() {
            return;
        }
        let Some(dns) = &mut self.dns else { return };
        let synced = self.sources.iter().filter(|source| source.readiness.is_synced());
        let planner = &self.reconciler.planner;
        dns.publish(planner.order(), planner.reach(), synced.map(|source| &source.rules.name));
    }

    /// Destroys connected UDP sockets whose backend is gone.
    pub fn reap_udp(&mut self) {
        if self.may_reap_udp() {
            let Reconciler { tables, planner, program, .. } = &self.reconciler;
            self.udp_reaper.run(tables, planner, program.meta().epoch, Instant::now());
        }
    }

    fn may_reap_udp(&self) -> bool {
        self.is_synced() && self.reconciler.program.is_attached()
    }

    /// When `reap_udp` has to be called next.
    pub fn udp_deadline(&self) -> Option<Instant> {
        self.udp_reaper.next_deadline().filter(|_| self.may_reap_udp())
    }

    /// Whether load balancers may send traffic to this node. Without a Node object it may only with a folder of manifests
    /// and on a host outside the cluster.
    pub fn is_node_eligible(&self) -> bool {
        self.reconciler.planner.own_node().map_or(!self.sources.needs_node(), |node| node.eligible)
    }

    /// Whether some cluster is known and written.
    pub fn is_synced(&self) -> bool {
        self.sources.is_synced() && self.gate.is_open()
    }

    /// Whether pods may start on this node.
    pub fn is_ready(&self) -> bool {
        self.sources.is_ready() && self.gate.is_open()
    }
}
