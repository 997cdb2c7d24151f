//! The sources of all configured clusters. A source that does not answer blocks none of the others.

use crate::plan_refusals::{log_refusal, log_resolved};
use crate::settings::{ClusterSettings, SourceSettings};
use crate::source::{AppliedBatch, ClusterSource, Readiness};
use crate::startup_gate::SyncedClusters;
use beeline_cluster::ChangeBatch;
use beeline_model::Name;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::diff::SyncScope;
use beeline_model::object::Object;
use beeline_model::refusal::Refusal;
use beeline_model::rules::HostRole;
use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

pub struct Sources {
    role: HostRole,
    /// In the order of the configuration.
    all: Vec<ClusterSource>,
    /// When the first source had delivered a complete list.
    first_complete: Option<Instant>,
    /// Why the configuration file cannot be used. The last usable one stays in effect.
    configuration_refusal: Option<Refusal>,
}

impl Sources {
    pub fn new(clusters: &[ClusterSettings], role: HostRole) -> Sources {
        let all = clusters.iter().map(|cluster| ClusterSource::new(cluster, role)).collect();
        Sources { role, all, first_complete: None, configuration_refusal: None }
    }

    pub fn iter(&self) -> impl Iterator<Item = &ClusterSource> {
        self.all.iter()
    }

    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.all.iter().map(|source| &source.rules.name)
    }

    fn get_mut(&mut self, cluster: &str) -> Option<&mut ClusterSource> {
        self.all.iter_mut().find(|source| *source.rules.name == *cluster)
    }

    /// `None` means that the cluster is not configured any more.
    pub fn apply(&mut self, cluster: &Name, batch: ChangeBatch) -> Option<AppliedBatch> {
        let applied = self.get_mut(cluster)?.apply(batch);
        if self.all.iter().any(|source| source.readiness.is_complete()) {
            self.first_complete.get_or_insert_with(Instant::now);
        }
        Some(applied)
    }

    /// The source of the cluster starts again. `known`: the keys of the objects that it has delivered.
    pub fn restart(&mut self, cluster: &Name, known: impl FnOnce() -> Vec<ObjectKey>) {
        if let Some(source) = self.get_mut(cluster) {
            source.restart(known);
        }
    }

    /// Adds the objects of a snapshot. Returns those to apply, or `None` if the source has already delivered a list or is
    /// not configured any more.
    pub fn apply_snapshot(
        &mut self,
        cluster: &Name,
        objects: Vec<Object>,
        taken_at: SystemTime,
    ) -> Option<Vec<Change>> {
        self.get_mut(cluster)?.apply_snapshot(objects, taken_at)
    }

    /// Sets the configured clusters. The sources of `restarted` are new ones. Returns the deletions of removed clusters.
    pub fn configure(&mut self, clusters: &[ClusterSettings], restarted: &BTreeSet<Name>) -> Vec<Change> {
        self.configuration_refusal.take().iter().for_each(log_resolved);
        let mut before = std::mem::take(&mut self.all);
        for cluster in clusters {
            let at = before.iter().position(|source| source.rules.name == cluster.rules.name);
            let mut source = at.map_or_else(|| ClusterSource::new(cluster, self.role), |at| before.swap_remove(at));
            source.rules = cluster.rules.clone();
            if restarted.contains(&cluster.rules.name) {
                source.replace(cluster);
            }
            self.all.push(source);
        }
        before.into_iter().flat_map(ClusterSource::delete_all).collect()
    }

    pub fn refuse_configuration(&mut self, refusal: Refusal) {
        if self.configuration_refusal.as_ref() != Some(&refusal) {
            log_refusal(None, &refusal);
        }
        self.configuration_refusal = Some(refusal);
    }

    pub fn configuration_refusal(&self) -> Option<&Refusal> {
        self.configuration_refusal.as_ref()
    }

    pub fn synced_clusters(&self) -> SyncedClusters {
        match self.all.iter().filter(|source| source.readiness.is_synced()).count() {
            0 => SyncedClusters::None,
            synced if synced == self.all.len() => SyncedClusters::All,
            _ => SyncedClusters::Some,
        }
    }

    /// Whether some cluster can be served.
    pub fn is_synced(&self) -> bool {
        self.all.iter().any(|source| source.readiness.is_synced())
    }

    /// Whether the cluster that this host needs first can be served: on a Node its own cluster, which is the first one;
    /// elsewhere any cluster.
    pub fn is_ready(&self) -> bool {
        match self.role {
            HostRole::Outside => self.is_synced(),
            HostRole::Node | HostRole::Edge => self.all.first().is_some_and(|source| source.readiness.is_synced()),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.all.iter().all(|source| source.readiness.is_complete())
    }

    /// Whether every cluster is complete or served from a snapshot, or `timeout` has passed since the first one was
    /// complete. `None` means no timeout.
    pub fn is_settled(&self, timeout: Option<Duration>) -> bool {
        let settled =
            |source: &ClusterSource| matches!(source.readiness, Readiness::Complete | Readiness::Snapshot { .. });
        let timed_out = || Some(self.first_complete?.elapsed() >= timeout?);
        self.all.iter().all(settled) || timed_out() == Some(true)
    }

    /// The clusters whose rows may be deleted from the kernel if the plan does not contain them. `programmed` are the
    /// clusters with rows, also those that are not configured any more.
    pub fn sync_scope<'a>(&self, programmed: impl Iterator<Item = &'a str>) -> SyncScope {
        if self.is_complete() {
            return SyncScope::All;
        }
        let is_removed = |name: &&str| self.names().all(|configured| **configured != **name);
        let mut clusters: BTreeSet<Name> = programmed.filter(is_removed).map(Name::from).collect();
        let complete = self.all.iter().filter(|source| source.readiness.is_complete());
        clusters.extend(complete.map(|source| source.rules.name.clone()));
        if clusters.is_empty() { SyncScope::Changes } else { SyncScope::Clusters(clusters) }
    }

    /// The clusters whose policies may not all be known yet.
    pub fn incomplete(&self) -> BTreeSet<Name> {
        let incomplete = self.all.iter().filter(|source| !source.readiness.is_complete());
        incomplete.map(|source| source.rules.name.clone()).collect()
    }

    /// Whether this host must have a Node object. With a folder of manifests it may be missing.
    pub fn needs_node(&self) -> bool {
        self.role == HostRole::Node && self.all.first().is_some_and(|source| source.kind != SourceSettings::FOLDER)
    }
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
