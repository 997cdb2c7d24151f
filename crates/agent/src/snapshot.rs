//! Snapshots: the last known objects of a cluster on disk. A snapshot is served when no API server answers at the start,
//! also after a reboot, when the kernel has no tables. When the cluster answers again, its objects replace those of the
//! snapshot; an object is deleted only once a complete list does not contain it.

mod clock;
mod error;
mod file;
mod file_check;
mod recorder;
mod store;

pub use clock::{Clock, ClockReading, SystemClock};
pub use error::SnapshotError;
pub use file::{LoadRequirements, LoadResult, LoadedSnapshot, MAX_SNAPSHOT_BYTES, SnapshotFiles, SnapshotHeader};
#[doc(hidden)]
pub use file_check::check_snapshot;
pub use recorder::{DiskState, LoadJob, SnapshotRecorder, WriteJob};
pub use store::SnapshotStore;
