//! The snapshots of all clusters. Every batch passes through the store on its way to the main loop; due snapshots are
//! written by a task of their own, so that no other task waits for the disk.

use super::clock::{Clock, SystemClock};
use super::file::{LoadedSnapshot, SnapshotFiles};
use super::recorder::{DiskState, SnapshotRecorder, WriteJob};
use crate::cluster_id::ClusterIdStore;
use crate::settings::SnapshotSettings;
use beeline_api::SnapshotStatus;
use beeline_cluster::ChangeBatch;
use beeline_model::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the task looks for due writes.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The snapshot of one cluster. The recorder's lock is never held during disk access, so that neither the source nor
/// `status` waits for the disk.
struct ClusterSnapshot {
    /// Held during a write: the last write before the agent stops waits for the one in progress.
    write_lock: Mutex<()>,
    recorder: Mutex<SnapshotRecorder>,
    /// The state after the last load or write.
    disk: Mutex<DiskState>,
}

impl ClusterSnapshot {
    fn new(recorder: SnapshotRecorder) -> ClusterSnapshot {
        ClusterSnapshot { write_lock: Mutex::default(), disk: recorder.disk_state().into(), recorder: recorder.into() }
    }

    fn load(&self, uid: Option<&str>) -> Option<LoadedSnapshot> {
        let job = lock(&self.recorder).load_job();
        let result = job.run(uid);
        let mut recorder = lock(&self.recorder);
        let snapshot = recorder.record_load(result);
        *lock(&self.disk) = recorder.disk_state();
        snapshot
    }

    /// Runs the job that `choose` returns, if any.
    fn write(&self, choose: impl FnOnce(&mut SnapshotRecorder) -> Option<WriteJob>) {
        let _guard = lock(&self.write_lock);
        let Some(job) = choose(&mut lock(&self.recorder)) else { return };
        let written = job.run();
        let mut recorder = lock(&self.recorder);
        recorder.record_write(&job, written);
        *lock(&self.disk) = recorder.disk_state();
    }
}

pub struct SnapshotStore {
    settings: SnapshotSettings,
    cluster_ids: Arc<ClusterIdStore>,
    clusters: Mutex<BTreeMap<Name, Arc<ClusterSnapshot>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SnapshotStore {
    /// `None` if the settings ask for no snapshots.
    pub(crate) fn open(
        settings: Option<SnapshotSettings>,
        cluster_ids: &Arc<ClusterIdStore>,
    ) -> Option<Arc<SnapshotStore>> {
        settings.map(|settings| Arc::new(SnapshotStore::new(settings, cluster_ids.clone())))
    }

    pub(crate) fn new(settings: SnapshotSettings, cluster_ids: Arc<ClusterIdStore>) -> SnapshotStore {
        SnapshotStore { settings, cluster_ids, clusters: Mutex::default() }
    }

    /// A source of this cluster starts, which will list everything again.
    pub fn start_source(&self, cluster: &Name) {
        let files = SnapshotFiles { dir: self.settings.dir.clone(), cluster: cluster.clone() };
        let new = || {
            let recorder = SnapshotRecorder::new(files, self.settings.max_age, Box::new(SystemClock));
            Arc::new(ClusterSnapshot::new(recorder))
        };
        let snapshot = lock(&self.clusters).entry(cluster.clone()).or_insert_with(new).clone();
        lock(&snapshot.recorder).start_source();
    }

    pub fn is_listed(&self, cluster: &Name) -> bool {
        self.get(cluster).is_some_and(|snapshot| lock(&snapshot.recorder).is_listed())
    }

    /// Records a batch of a cluster whose source has started. Other clusters are not recorded.
    pub fn apply(&self, cluster: &Name, batch: &ChangeBatch) {
        if let Some(snapshot) = self.get(cluster) {
            lock(&snapshot.recorder).apply(batch);
        }
    }

    /// Stops recording clusters that are not configured any more. Their files stay.
    pub fn set_configured(&self, clusters: &BTreeSet<Name>) {
        lock(&self.clusters).retain(|name, _| clusters.contains(name));
    }

    fn get(&self, cluster: &Name) -> Option<Arc<ClusterSnapshot>> {
        lock(&self.clusters).get(cluster).cloned()
    }

    /// Loads the snapshot of a cluster. `uid` is the UID in the cluster's credentials, if they contain it; else the
    /// stored UID counts. Without a readable UID no snapshot is loaded.
    pub async fn load(&self, cluster: &Name, uid: Option<Box<str>>) -> Option<LoadedSnapshot> {
        let snapshot = self.get(cluster)?;
        let uid = match uid {
            Some(uid) => Some(uid),
            None => self.cluster_ids.uid(cluster).ok()?,
        };
        let read = tokio::task::spawn_blocking(move || snapshot.load(uid.as_deref()));
        read.await.ok().flatten()
    }

    /// Writes due snapshots, forever.
    pub async fn write_periodically(self: Arc<SnapshotStore>) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            for (snapshot, uid) in self.identified() {
                tokio::task::spawn_blocking(move || snapshot.write(|recorder| recorder.due_write(&uid))).await?;
            }
        }
    }

    /// The clusters whose UID is known. Others are not written.
    fn identified(&self) -> Vec<(Arc<ClusterSnapshot>, Box<str>)> {
        let all = lock(&self.clusters).clone();
        all.into_iter().filter_map(|(name, snapshot)| Some((snapshot, self.cluster_ids.uid(&name).ok()??))).collect()
    }

    /// Writes all pending changes before the agent stops.
    pub fn flush(&self) {
        self.identified().into_iter().for_each(|(snapshot, uid)| snapshot.write(|recorder| recorder.final_write(&uid)));
    }

    pub fn status(&self, cluster: &Name) -> Option<SnapshotStatus> {
        self.get(cluster).map(|snapshot| lock(&snapshot.disk).status(&SystemClock.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::SnapshotHeader;
    use super::*;
    use beeline_model::change::Change;
    use beeline_model::object::{Node, Object};
    use rustix::fs::{FileType, Mode};
    use std::fs::File;

    fn batch(names: impl Iterator<Item = usize>) -> ChangeBatch {
        let node = |name| Change::Upsert(Object::Node(Node::named("far", &format!("node-{name}"))));
        ChangeBatch { changes: names.map(node).collect(), synced: true, complete: true, ..ChangeBatch::default() }
    }

    #[test]
    fn the_final_write_waits_for_a_write_in_progress() {
        let dir = tempfile::tempdir().unwrap();
        let cluster_ids = Arc::new(ClusterIdStore::new(dir.path()));
        let far: Name = "far".into();
        cluster_ids.set_configured([far.clone()].into_iter());
        cluster_ids.verify(&far, "u1").unwrap();
        let settings = SnapshotSettings { dir: dir.path().to_owned(), max_age: None };
        let store = SnapshotStore::new(settings, cluster_ids);
        store.start_source(&far);
        store.apply(&far, &batch(0..2000));
        // The temporary file is a pipe: it takes a part of the snapshot, and then the writer waits.
        let (new, moved) = (dir.path().join("far.snapshot.new"), dir.path().join("moved"));
        rustix::fs::mknodat(rustix::fs::CWD, &new, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let snapshot = store.get(&far).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| snapshot.write(|recorder| recorder.due_write("u1")));
            let pipe = File::open(&new).unwrap();
            std::fs::rename(&new, &moved).unwrap();
            store.apply(&far, &batch(2000..2001));
            let last = scope.spawn(|| store.flush());
            std::thread::sleep(Duration::from_millis(300));
            assert!(!last.is_finished(), "the first write is still in progress");
            drop(pipe);
        });
        let loaded = snapshot.load(Some("u1")).unwrap();
        assert_eq!((loaded.objects.len(), loaded.path.ends_with("far.snapshot")), (2001, true));
    }

    /// As after `beeline leave` and a `join` to another cluster under the old name, while no API server answers.
    #[tokio::test]
    async fn the_snapshot_of_another_cluster_under_the_same_name_is_not_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let (cluster_ids, name) = (Arc::new(ClusterIdStore::new(dir.path())), Name::from("shop"));
        let settings = SnapshotSettings { dir: dir.path().join("snapshot"), max_age: None };
        let header = SnapshotHeader { cluster: name.clone(), uid: "AAAA".into(), at: SystemClock.now() };
        let files = SnapshotFiles { dir: settings.dir.clone(), cluster: name.clone() };
        files.write(&header, std::iter::empty()).unwrap();
        let store = SnapshotStore::new(settings, cluster_ids.clone());
        store.start_source(&name);
        for (uid, wanted) in [(Some("AAAA"), true), (Some("B"), false), (None, false)] {
            assert_eq!(store.load(&name, uid.map(Box::from)).await.is_some(), wanted, "{uid:?}");
        }
        let rejected = store.status(&name).unwrap().rejected;
        assert!(rejected.iter().any(|why| why.contains("AAAA") && why.contains("is not known")), "{rejected:?}");
        cluster_ids.verify(&name, "AAAA").unwrap();
        assert!(store.load(&name, None).await.is_some(), "the stored UID matches");
        assert!(store.load(&name, Some("B".into())).await.is_none(), "the UID of the credentials takes precedence");
    }
}
