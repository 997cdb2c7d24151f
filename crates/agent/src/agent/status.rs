//! The agent's status and refusals.

use super::Agent;
use crate::dns::DnsUpdater;
use crate::reach::ReachFinding;
use crate::redirect_health::SuspendedBackend;
use crate::source::ClusterSource;
use crate::status;
use beeline_api::{
    AgentStatus, ClusterStatus, KernelStatus, ObjectCounts, PacketCounts, PacketPathStatus, ReachStatus, RefusalStatus,
    SuspendedRedirect, TokenStatus, ViewStatus,
};
use beeline_model::Name;
use beeline_model::cluster::ClusterRules;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::Node;
use beeline_model::refusal::Refusal;
use beeline_model::rules::HostRole;
use std::time::{Instant, SystemTime};

impl Agent {
    pub fn refusals(&self) -> Vec<RefusalStatus> {
        let mut all: Vec<RefusalStatus> = self.sources.iter().flat_map(|source| self.source_refusals(source)).collect();
        let mut rest = self.reconciler.refusals();
        rest.extend(self.shared.health_checks.refusals());
        rest.extend(self.sources.configuration_refusal().cloned());
        rest.extend(self.reach.refusal().cloned());
        rest.extend(self.node_refusal.clone());
        let views = self.settings.cluster_list.view_names();
        rest.extend(self.cgroup_rules.refusals(self.pod_cgroups.rules(), &views));
        all.extend(rest.iter().map(|refusal| status::refusal_status(refusal, &self.sources)));
        all
    }

    /// Objects that a source refuses, and why the cluster itself is refused.
    fn source_refusals(&self, source: &ClusterSource) -> Vec<RefusalStatus> {
        let name = &source.rules.name;
        let cluster = Some(name.to_string()).filter(|name| name != LOCAL_CLUSTER);
        let all = source.refusals.iter().cloned().chain(self.shared.cluster_ids.refusal(name));
        all.map(|refusal| RefusalStatus::new(&refusal, cluster.clone())).collect()
    }

    /// On a node: its own Node object is missing, most likely because `--node-name` is wrong. With manifests this counts
    /// only if they contain other Nodes, because they need not contain any.
    pub(super) fn missing_node(&self) -> Option<Refusal> {
        let rules = &self.settings.rules;
        let planner = &self.reconciler.planner;
        let is_expected = self.sources.needs_node() || planner.nodes().next().is_some();
        if rules.host_role != HostRole::Node || !self.sources.is_ready() || !is_expected || planner.own_node().is_some()
        {
            return None;
        }
        Some(Refusal::node_not_found(rules.node_name.clone()))
    }

    /// On a host outside the cluster the host's name.
    fn node_name(&self) -> String {
        let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        Some(self.settings.rules.node_name.to_string()).filter(|name| !name.is_empty()).unwrap_or_else(host)
    }

    fn cluster_status(&self, source: &ClusterSource, refusals: &[RefusalStatus]) -> ClusterStatus {
        let name = &source.rules.name;
        let own = refusals.iter().filter(|refusal| refusal.cluster.as_deref().unwrap_or(LOCAL_CLUSTER) == &**name);
        let services = self.reconciler.planner.services().filter(|service| service.name.cluster() == &**name);
        let mut status = status::cluster_status(source, services.count(), own.count());
        status.snapshot = self.shared.snapshots.as_ref().and_then(|snapshots| snapshots.status(name));
        status.bytes = self.shared.traffic.bytes(name);
        status.reach = reach_status(self.reach.findings(), name);
        status
    }

    fn token_status(&self) -> Vec<TokenStatus> {
        let error = |cluster: &str| self.sources.iter().find(|source| *source.rules.name == *cluster)?.error.clone();
        self.shared.tokens.reports(error)
    }

    fn view_status(&self) -> Vec<ViewStatus> {
        let view = |rules: &ClusterRules| {
            let name = rules.view.as_ref()?;
            let number = self.reconciler.planner.view(name)?;
            Some(ViewStatus { name: name.to_string(), first: rules.name.to_string(), number })
        };
        self.sources.iter().filter_map(|source| view(&source.rules)).collect()
    }

    fn kernel_status(&self) -> KernelStatus {
        let program = &self.reconciler.program;
        let meta = program.meta();
        KernelStatus {
            cgroup: self.settings.kernel.cgroup.display().to_string(),
            kubelet_root: self.pod_cgroups.kubelet_root().map(|path| path.display().to_string()),
            pin_dir: self.settings.kernel.pin_dir.display().to_string(),
            layout: meta.layout,
            generation: meta.generation,
            start: format!("{:?}", program.start).to_lowercase(),
            live: program.is_attached(),
            self_test: self.self_test.clone(),
            exact_udp_reaping: self.udp_reaper.is_exact(),
            no_local_endpoint_action: self.settings.rules.no_local_endpoint_action,
            sizes: self.settings.kernel.sizes,
        }
    }

    fn packet_path_status(&self) -> PacketPathStatus {
        let (state, stat) = (self.packet_state.get(), |name: &str| self.counters.stat(name));
        let serving = state.is_serving();
        let (attachment, devices) =
            state.attachment.map(|a| (format!("{:?}", a.kind).to_lowercase(), a.devices)).unzip();
        PacketPathStatus {
            serving,
            attachment,
            devices: devices.unwrap_or_default(),
            table: state.has_table,
            table_repairs: state.table_repairs,
            problem: state.problem,
            counts: PacketCounts {
                flows: stat("packet_flows"),
                rejected: stat("packet_rejected"),
                dropped: stat("packet_dropped"),
                failed: stat("packet_failed"),
            },
        }
    }

    /// The metrics use the same counts.
    pub fn object_counts(&self) -> ObjectCounts {
        let (planner, rows) = (&self.reconciler.planner, self.reconciler.tables.rows());
        ObjectCounts {
            services: planner.services().count(),
            slices: planner.slice_count(),
            nodes: planner.nodes().count(),
            policies: self.reconciler.policy_counts(self.sources.is_synced()),
            excluded_pods: self.pod_cgroups.excluded_pods(),
            frontends: rows.frontends.keys().filter(|key| key.protocol.is_some()).count(),
            frontend_rows: rows.frontends.len(),
            sets: rows.sets.len(),
            backends: rows.backends.len(),
            pending: self.reconciler.retries.services().count(),
            udp_sockets_destroyed: self.udp_reaper.destroyed(),
            dials_no_port: self.counters.stat("dials_no_port"),
        }
    }

    pub fn status(&self) -> AgentStatus {
        let (planner, rows) = (&self.reconciler.planner, self.reconciler.tables.rows());
        let refusals = self.refusals();
        let addresses = |node: &Node| node.addresses.iter().map(|(_, address)| address.to_string()).collect();
        let own = rows.nodes.iter().filter(|(_, node)| node.own);
        AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            node: self.node_name(),
            host_role: self.settings.rules.host_role,
            beside_kube_proxy: self.settings.beside_kube_proxy,
            source: status::only_source(&self.sources),
            clusters: self.sources.iter().map(|source| self.cluster_status(source, &refusals)).collect(),
            views: self.view_status(),
            tokens: self.token_status(),
            kernel: self.kernel_status(),
            counts: self.object_counts(),
            last_change: self.reconciler.last_change().cloned(),
            refusals,
            events: self.event_level.level.to_string(),
            monitors: self.event_level.monitors,
            node_addresses: own.map(|(address, _)| address.to_string()).collect(),
            nodes: planner.nodes().map(|node| (display_name(node), addresses(node))).collect(),
            dns: self.dns().map(DnsUpdater::status),
            suspended_redirects: self.redirects.health.suspended().iter().map(suspended_redirect).collect(),
            packet_path: self.settings.packet_path.is_some().then(|| self.packet_path_status()),
            zone: planner.own_node().and_then(|node| node.zone.as_ref()).map(|zone| zone.to_string()),
        }
    }
}

fn suspended_redirect(suspended: &SuspendedBackend) -> SuspendedRedirect {
    SuspendedRedirect {
        backend: suspended.backend,
        since: crate::health::timestamp(suspended.since),
        refused_probes: suspended.refused_probes,
    }
}

/// With the cluster, because nodes of two clusters may have the same name.
fn display_name(node: &Node) -> String {
    if *node.cluster == *LOCAL_CLUSTER { node.name.to_string() } else { format!("{}:{}", node.cluster, node.name) }
}

fn reach_status(findings: &[ReachFinding], cluster: &Name) -> Vec<ReachStatus> {
    let (now, wall) = (Instant::now(), SystemTime::now());
    let status = |finding: &ReachFinding| ReachStatus {
        node: finding.group.node.as_ref().map(ToString::to_string),
        prefix: finding.group.prefix.to_string(),
        found: finding.found,
        since: wall
            .checked_sub(now.saturating_duration_since(finding.since))
            .map(crate::health::timestamp)
            .unwrap_or_default(),
        evidence: finding.evidence.clone(),
    };
    findings.iter().filter(|finding| finding.group.cluster == *cluster).map(status).collect()
}
