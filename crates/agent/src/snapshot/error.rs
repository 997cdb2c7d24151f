//! Why a snapshot file is not used.

use super::file::VERSION;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("the file does not exist")]
    Missing,
    #[error("cannot read the file: {0}")]
    Unreadable(std::io::Error),
    #[error("the file belongs to user {owner} with mode {mode:04o}: only the agent's user may be able to write it")]
    Exposed { owner: u32, mode: u32 },
    #[error("the path is not a regular file")]
    NotAFile,
    #[error("the file has {0} bytes, more than the maximum of a snapshot")]
    TooLarge(u64),
    #[error("the file is not a snapshot of version {VERSION}; it begins with {0:?}")]
    Version(String),
    #[error("the checksum does not match: the file was truncated or modified")]
    Checksum,
    #[error("the header is invalid: {0}")]
    Header(String),
    #[error("the file belongs to cluster {0:?}")]
    Cluster(String),
    #[error("the file belongs to another cluster of this name: its kube-system has the UID {found}, not {expected}")]
    OtherUid { found: String, expected: String },
    #[error("the file belongs to the cluster with the UID {found}, and the UID of the configured cluster is not known")]
    UnknownUid { found: String },
    #[error("the file is {} s old, more than --snapshot-max-age {} s", age.as_secs(), max.as_secs())]
    TooOld { age: Duration, max: Duration },
    #[error("line {line}: {error}")]
    Object { line: usize, error: String },
}
