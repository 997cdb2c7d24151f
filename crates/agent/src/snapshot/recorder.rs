//! Records the objects of one source and decides when they are written to disk. The clock is a
//! parameter.

use super::clock::{Clock, ClockReading};
use super::error::SnapshotError;
use super::file::{LoadRequirements, LoadResult, LoadedSnapshot, SnapshotFiles, SnapshotHeader};
use beeline_api::SnapshotStatus;
use beeline_cluster::{ChangeBatch, Snapshot};
use std::io;
use std::time::Duration;

/// The shortest time between two writes. An agent that is killed loses the changes since the last write, so a small
/// snapshot is written soon; a large one is written less often to spare the disk.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// The average rate of writing that sets the interval of a large snapshot.
const BYTES_PER_SECOND: u64 = 32 * 1024;
/// The longest time between two writes while there are changes, whatever the size.
const MAX_INTERVAL: Duration = Duration::from_secs(600);
/// A snapshot without changes is written again after this time, because its age counts from the last write.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3600);

/// The state of the files on disk.
#[derive(Clone, Debug, Default)]
pub struct DiskState {
    /// The time that the newest usable file reflects.
    written: Option<ClockReading>,
    status: SnapshotStatus,
}

impl DiskState {
    pub fn status(&self, now: &ClockReading) -> SnapshotStatus {
        let age_seconds = self.written.as_ref().map(|then| now.since(then).as_secs());
        SnapshotStatus { age_seconds, ..self.status.clone() }
    }
}

pub struct SnapshotRecorder {
    files: SnapshotFiles,
    max_age: Option<Duration>,
    clock: Box<dyn Clock>,
    /// The current objects of the source.
    objects: Snapshot,
    /// Some source of this cluster has delivered a list since the agent started.
    listed: bool,
    /// The current source has delivered a complete list. Nothing is written before.
    complete: bool,
    /// Something changed since the last write.
    dirty: bool,
    /// When the source last confirmed the objects. They count as valid until then, whenever they are written.
    confirmed: Option<ClockReading>,
    /// The last batch was complete and had no error: the objects are valid now.
    healthy: bool,
    tried: Option<ClockReading>,
    disk: DiskState,
}

/// One attempt to load a snapshot, to be run where it may block.
pub struct LoadJob {
    files: SnapshotFiles,
    now: ClockReading,
    max_age: Option<Duration>,
}

impl LoadJob {
    /// `uid` is the UID of the cluster, if it is known.
    pub fn run(&self, uid: Option<&str>) -> LoadResult {
        self.files.load(&LoadRequirements { now: self.now.clone(), max_age: self.max_age, uid })
    }
}

/// One write, to be run where it may block.
pub struct WriteJob {
    files: SnapshotFiles,
    header: SnapshotHeader,
    objects: Snapshot,
}

impl WriteJob {
    /// Returns the size in bytes.
    pub fn run(&self) -> io::Result<u64> {
        let objects = self.objects.objects();
        self.files.write(&self.header, objects)
    }
}

impl SnapshotRecorder {
    pub fn new(files: SnapshotFiles, max_age: Option<Duration>, clock: Box<dyn Clock>) -> SnapshotRecorder {
        let status = SnapshotStatus { path: files.path().display().to_string(), ..SnapshotStatus::default() };
        SnapshotRecorder {
            files,
            max_age,
            clock,
            objects: Snapshot::default(),
            listed: false,
            complete: false,
            dirty: false,
            confirmed: None,
            healthy: false,
            tried: None,
            disk: DiskState { written: None, status },
        }
    }

    /// Loads the newest usable snapshot. `uid` is the UID of the cluster, if it is known.
    pub fn load(&mut self, uid: Option<&str>) -> Option<LoadedSnapshot> {
        let result = self.load_job().run(uid);
        self.record_load(result)
    }

    pub fn load_job(&self) -> LoadJob {
        LoadJob { files: self.files.clone(), now: self.clock.now(), max_age: self.max_age }
    }

    /// Stores the result of a load job for the status.
    pub fn record_load(&mut self, LoadResult { snapshot, errors }: LoadResult) -> Option<LoadedSnapshot> {
        let errors = errors.into_iter().filter(|(_, error)| !matches!(error, SnapshotError::Missing));
        let rejected: Vec<String> = errors.map(|(path, error)| format!("{}: {error}", path.display())).collect();
        for reason in &rejected {
            tracing::warn!(cluster = %self.files.cluster, reason, "a snapshot file is not used");
        }
        self.disk.status.rejected = rejected;
        self.disk.written = snapshot.as_ref().map(|snapshot| snapshot.header.at.clone());
        snapshot
    }

    /// A new source starts, which will list everything again.
    pub fn start_source(&mut self) {
        (self.objects, self.complete, self.dirty) = (Snapshot::default(), false, false);
        self.healthy = false;
    }

    pub fn is_listed(&self) -> bool {
        self.listed
    }

    pub fn apply(&mut self, batch: &ChangeBatch) {
        batch.changes.iter().cloned().for_each(|change| self.objects.apply(change));
        self.dirty |= !batch.changes.is_empty();
        self.listed |= batch.synced;
        let complete = batch.synced && batch.complete;
        self.complete |= complete;
        let was_healthy = std::mem::replace(&mut self.healthy, batch.error.is_none() && complete);
        // While one kind cannot be read, changes of the other kinds confirm the source, too.
        if was_healthy || complete && (batch.error.is_none() || !batch.changes.is_empty()) {
            self.confirmed = Some(self.clock.now());
        }
    }

    /// The time until which the objects are known to be valid.
    fn valid_at(&self, now: ClockReading) -> ClockReading {
        if self.healthy { now } else { self.confirmed.clone().unwrap_or(now) }
    }

    /// The write that is due now, if any. `uid` is the UID of the cluster.
    pub fn due_write(&mut self, uid: &str) -> Option<WriteJob> {
        let now = self.clock.now();
        let waited = |since: &Option<ClockReading>, time| since.as_ref().is_none_or(|since| now.since(since) >= time);
        let interval = self.interval();
        let refresh = self.max_age.map_or(REFRESH_INTERVAL, |max| (max / 4).min(REFRESH_INTERVAL)).max(interval);
        let due = waited(&self.tried, interval) && (self.dirty || self.healthy && waited(&self.disk.written, refresh));
        (self.complete && due).then(|| self.write_job(uid, now))
    }

    fn interval(&self) -> Duration {
        let size = self.disk.status.bytes.unwrap_or(0);
        let max = self.max_age.map_or(MAX_INTERVAL, |max| (max / 4).min(MAX_INTERVAL)).max(MIN_INTERVAL);
        Duration::from_secs(size / BYTES_PER_SECOND).clamp(MIN_INTERVAL, max)
    }

    /// The last write before the agent stops, if there are changes.
    pub fn final_write(&mut self, uid: &str) -> Option<WriteJob> {
        let now = self.clock.now();
        (self.complete && self.dirty).then(|| self.write_job(uid, now))
    }

    fn write_job(&mut self, uid: &str, now: ClockReading) -> WriteJob {
        (self.tried, self.dirty) = (Some(now.clone()), false);
        let header = SnapshotHeader { cluster: self.files.cluster.clone(), uid: uid.into(), at: self.valid_at(now) };
        WriteJob { files: self.files.clone(), header, objects: self.objects.clone() }
    }

    pub fn record_write(&mut self, job: &WriteJob, written: io::Result<u64>) {
        match written {
            Ok(bytes) => {
                self.disk.written = Some(job.header.at.clone());
                let status = &mut self.disk.status;
                (status.bytes, status.error) = (Some(bytes), None);
                status.rejected.clear();
            }
            Err(error) => {
                self.dirty = true;
                self.record_failure(format!("{}: {error}", self.disk.status.path));
            }
        }
    }

    /// Logs a failure when it begins or becomes another one.
    fn record_failure(&mut self, error: String) {
        if self.disk.status.error.as_ref() != Some(&error) {
            let cluster = &self.files.cluster;
            tracing::warn!(%cluster, error, "cannot write the snapshot; the previous file stays");
        }
        self.disk.status.error = Some(error);
    }

    pub fn disk_state(&self) -> DiskState {
        self.disk.clone()
    }

    pub fn status(&self) -> SnapshotStatus {
        self.disk.status(&self.clock.now())
    }
}
