//! Why a snapshot is not used.

use super::file::VERSION;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    #[error("there is none")]
    Missing,
    #[error("it cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error(
        "it belongs to user {owner} with mode {mode:04o}: only a file that nobody but this agent's user can write counts"
    )]
    Exposed { owner: u32, mode: u32 },
    #[error("it is no plain file")]
    NoFile,
    #[error("it has {0} bytes, more than a snapshot ever has")]
    TooLarge(u64),
    #[error("it is no snapshot of version {VERSION}, but begins {0:?}")]
    Version(String),
    #[error("its checksum does not hold: it was cut short or changed")]
    Checksum,
    #[error("its header is none: {0}")]
    Header(String),
    #[error("it is of cluster {0:?}")]
    Cluster(String),
    #[error("it is of another cluster with this name: its kube-system has the UID {found}, not {expected}")]
    ForeignUid { found: String, expected: String },
    #[error("it is of the cluster with the UID {found}, and which cluster has this name now is not known here")]
    NoUid { found: String },
    #[error("it is {} s old, and --snapshot-max-age is {} s", age.as_secs(), most.as_secs())]
    TooOld { age: Duration, most: Duration },
    #[error("line {line}: {why}")]
    Fact { line: usize, why: String },
}
