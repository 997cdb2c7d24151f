//! Replaces `snapshot` in a binary for Nodes: a Node of one cluster keeps no snapshot.

use crate::cluster_id::ClusterIdStore;
use crate::settings::SnapshotSettings;
use beeline_api::SnapshotStatus;
use beeline_cluster::ChangeBatch;
use beeline_model::Name;
use beeline_model::object::Object;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub struct LoadedSnapshot {
    pub objects: Vec<Object>,
    pub age: Duration,
    pub path: PathBuf,
}

/// Does not exist in this build.
pub enum SnapshotStore {}

impl SnapshotStore {
    pub(crate) fn open(
        _settings: Option<SnapshotSettings>,
        _cluster_ids: &Arc<ClusterIdStore>,
    ) -> Option<Arc<SnapshotStore>> {
        None
    }

    pub fn start_source(&self, _cluster: &Name) {
        match *self {}
    }

    pub fn is_listed(&self, _cluster: &Name) -> bool {
        match *self {}
    }

    pub fn apply(&self, _cluster: &Name, _batch: &ChangeBatch) {
        match *self {}
    }

    pub fn set_configured(&self, _clusters: &BTreeSet<Name>) {
        match *self {}
    }

    pub async fn load(&self, _cluster: &Name, _uid: Option<Box<str>>) -> Option<LoadedSnapshot> {
        match *self {}
    }

    pub async fn write_periodically(self: Arc<SnapshotStore>) -> anyhow::Result<()> {
        match *self {}
    }

    pub fn flush(&self) {
        match *self {}
    }

    pub fn status(&self, _cluster: &Name) -> Option<SnapshotStatus> {
        match *self {}
    }
}
