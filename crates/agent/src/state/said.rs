//! What the agent says of itself: what is refused, and the whole of `status`.

use super::{LEFT_OUT, State, views_of};
use crate::names;
use crate::reach::Finding;
use crate::source::Source;
use crate::status::{
    ClusterStatus, Counts, KernelStatus, Policies, ReachStatus, SourceStatus, Status, Told, ViewStatus,
};
use crate::view;
use beeline_datapath::reap::Reaper;
use beeline_model::fact::{Node, Refusal};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::policy::PolicyName;
use beeline_model::rules::EmptyLocal;
use beeline_model::stand::ClusterRules;
use beeline_model::{Name, OwnerName};
use std::time::{Instant, SystemTime};

impl State {
    pub fn refusals(&self) -> Vec<Told> {
        let mut all: Vec<Told> = self.sources.iter().flat_map(|source| self.refusals_of(source)).collect();
        let mut rest = self.plan_refusals.of(&self.planner);
        rest.extend(self.table_refusals.values().cloned());
        rest.extend(self.nodes_retry.iter().map(|(refusal, _)| refusal.clone()));
        rest.extend(self.probes.refusals());
        rest.extend(self.misread.clone());
        rest.extend(self.blind.clone());
        rest.extend(self.view_refusals());
        all.extend(rest.into_iter().map(|refusal| Told::of(refusal, &self.sources)));
        all
    }

    /// Without a controller we choose the pods of policies ourselves, and know whom we left out. Of many the first.
    pub fn left_out(&self, policy: &PolicyName) -> impl Iterator<Item = Refusal> {
        let pods = self.publisher.iter().flat_map(|publisher| publisher.left_out(policy)).take(LEFT_OUT);
        pods.map(|(pod, why)| Refusal {
            subject: policy.to_string(),
            reason: why.reason,
            message: format!("pod {}/{}: {}", pod.namespace, pod.name, why.message),
        })
    }

    /// What a cluster's source refuses, or why it is refused itself.
    fn refusals_of(&self, source: &Source) -> Vec<Told> {
        let cluster = &source.rules.name;
        let shown = Some(cluster.to_string()).filter(|name| name != LOCAL_CLUSTER);
        let all = source.refusals.iter().cloned().chain(self.known.refusal(cluster));
        all.map(|refusal| Told { cluster: shown.clone(), refusal }).collect()
    }

    /// Cgroups of the configuration that are not there, and views that nobody knows.
    fn view_refusals(&self) -> Vec<Refusal> {
        let names = views_of(&self.settings.listing);
        let missing = self.views.iter().filter_map(|(path, view)| {
            let why = view::unfit(path)?;
            Some(Refusal {
                subject: format!("cgroup {}", path.display()),
                reason: "noCgroup",
                message: format!("it is to see the view {view}, and {why}; it is looked at again and again"),
            })
        });
        let asked = self.pod_rules.iter().filter_map(|(path, asked)| Some((path, asked.view.as_ref()?)));
        let unknown = asked.filter(|(_, view)| !names.contains(*view)).map(|(path, view)| Refusal {
            subject: format!("cgroup {}", path.display()),
            reason: "unknownView",
            message: format!("its pod asks for the view {view}, which no cluster of the configuration has: left alone"),
        });
        missing.chain(unknown).collect()
    }

    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter()
    }

    /// What could not be written of this policy or Service.
    pub fn table_refusal(&self, name: &OwnerName) -> Option<&Refusal> {
        self.table_refusals.get(name)
    }

    /// Services and policies whose last write failed.
    pub fn pending(&self) -> impl Iterator<Item = &OwnerName> {
        self.retries.keys()
    }

    /// Every policy is planned for it, so no more than once a plan.
    fn policy_counts(&self) -> Policies {
        let counts = self.policy_counts.get().unwrap_or_else(|| Policies::count(&self.planner.policies()));
        self.policy_counts.set(Some(counts).filter(|_| self.sources.is_synced()));
        counts
    }

    /// A host outside is known by its own name.
    fn node_name(&self) -> String {
        let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        Some(self.settings.rules.node_name.to_string()).filter(|name| !name.is_empty()).unwrap_or_else(host)
    }

    fn cluster_status(&self, source: &Source, refusals: &[Told]) -> ClusterStatus {
        let name = &source.rules.name;
        let refused = refusals.iter().filter(|told| told.cluster.as_deref().unwrap_or(LOCAL_CLUSTER) == &**name);
        let services = self.planner.services().filter(|service| service.name.cluster() == &**name).count();
        let mut status = ClusterStatus::of(source, services, refused.count());
        status.snapshot = self.archive.as_ref().and_then(|archive| archive.report(name));
        status.bytes = self.meters.bytes(name);
        status.reach = reach_of(&self.findings, name);
        status
    }

    fn token_status(&self) -> Vec<crate::token::Token> {
        let error = |cluster: &str| self.sources.iter().find(|source| *source.rules.name == *cluster)?.error.clone();
        self.tokens.reports(error)
    }

    fn view_status(&self) -> Vec<ViewStatus> {
        let of = |rules: &ClusterRules| {
            let name = rules.view.as_ref()?;
            Some(ViewStatus { name: name.to_string(), first: rules.name.to_string(), number: self.planner.view(name)? })
        };
        self.sources.iter().filter_map(|source| of(&source.rules)).collect()
    }

    pub fn status(&self) -> Status {
        let meta = self.program.meta();
        let (rows, refusals) = (self.tables.rows(), self.refusals());
        Status {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            node: self.node_name(),
            stand: self.settings.rules.stand_point,
            source: SourceStatus::of_one(&self.sources),
            clusters: self.sources.iter().map(|source| self.cluster_status(source, &refusals)).collect(),
            views: self.view_status(),
            tokens: self.token_status(),
            kernel: KernelStatus {
                cgroup: self.settings.cgroup.display().to_string(),
                pin_dir: self.settings.pin_dir.display().to_string(),
                layout: meta.layout,
                generation: meta.generation,
                start: format!("{:?}", self.program.start).to_lowercase(),
                live: self.program.is_live(),
                self_test: self.self_test.clone(),
                exact_udp_reaping: self.reaper.as_ref().is_some_and(Reaper::is_exact),
                empty_local: match self.settings.rules.empty_local {
                    EmptyLocal::Refuse => "refuse",
                    EmptyLocal::Drop => "drop",
                },
                sizes: self.settings.sizes,
            },
            counts: Counts {
                services: self.planner.services().count(),
                slices: self.planner.slice_count(),
                nodes: self.planner.nodes().count(),
                policies: self.policy_counts(),
                frontends: rows.frontends.keys().filter(|k| k.protocol.is_some()).count(),
                sets: rows.sets.len(),
                backends: rows.backends.len(),
                pending: self.pending().count(),
                udp_sockets_destroyed: self.destroyed,
                dials_no_port: self.count.stat("dials_no_port"),
            },
            last_change: self.last_change.clone(),
            refusals,
            events: self.control.event_level().to_string(),
            node_addresses: rows.nodes.iter().filter(|(_, n)| n.own).map(|(a, _)| a.to_string()).collect(),
            nodes: self
                .planner
                .nodes()
                .map(|n| (shown(n), n.addresses.iter().map(|(_, a)| a.to_string()).collect()))
                .collect(),
            dns: self.settings.dns.as_ref().zip(self.names()).map(|(dns, names)| names::status(dns, names)),
            zone: self.planner.own_node().and_then(|n| n.zone.as_ref()).map(|z| z.to_string()),
        }
    }
}

/// Nodes of two clusters may have one name.
fn shown(node: &Node) -> String {
    if *node.cluster == *LOCAL_CLUSTER { node.name.to_string() } else { format!("{}:{}", node.cluster, node.name) }
}

/// As `status` shows it.
fn reach_of(findings: &[Finding], cluster: &Name) -> Vec<ReachStatus> {
    let (now, wall) = (Instant::now(), SystemTime::now());
    let show = |finding: &Finding| ReachStatus {
        node: finding.group.node.as_ref().map(ToString::to_string),
        prefix: finding.group.prefix.to_string(),
        found: finding.found,
        since: wall
            .checked_sub(now.saturating_duration_since(finding.since))
            .map(crate::health::timestamp)
            .unwrap_or_default(),
        evidence: finding.evidence.clone(),
    };
    findings.iter().filter(|finding| finding.group.cluster == *cluster).map(show).collect()
}
