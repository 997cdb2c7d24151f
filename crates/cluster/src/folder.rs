//! A folder of manifests as a source of objects.

use crate::convert::{Converter, ServiceFilter};
use crate::files::{FolderError, ManifestFiles};
use crate::folder_watcher;
use crate::manifest::{self, ManifestFormat};
use crate::manifest_index::{FileUpdate, ManifestIndex};
use crate::snapshot::Snapshot;
use beeline_model::Address;
use beeline_model::change::Change;
use beeline_model::refusal::Refusal;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio::sync::mpsc::Sender;

/// The changes since the previous batch of a source, and the current state of the source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeBatch {
    /// Upserts first, deletions last.
    pub changes: Vec<Change>,
    /// All current refusals, not only the new ones.
    pub refusals: Arc<[Refusal]>,
    /// The source has been read completely at least once, as far as it can be read.
    pub synced: bool,
    /// Every object of the source is known.
    pub complete: bool,
    /// Some objects come from a cache and may be older than objects that were known before.
    pub from_cache: bool,
    /// Why the source cannot be read. Its last known state stays in effect.
    pub error: Option<String>,
    /// When the first of these changes was received. `None` means now.
    pub received_at: Option<Instant>,
    /// When the changes were triggered, according to the annotations of their EndpointSlices.
    pub trigger_times: Vec<SystemTime>,
    /// The API server or edge cache that is in use.
    pub server: Option<String>,
    /// The known addresses of the cluster's API servers. Empty for sources without one.
    pub api_servers: Vec<(Address, u16)>,
}

pub struct FolderSource {
    path: PathBuf,
    cluster: String,
    filter: ServiceFilter,
}

impl FolderSource {
    pub fn new(path: impl Into<PathBuf>, cluster: &str, filter: ServiceFilter) -> FolderSource {
        FolderSource { path: path.into(), cluster: cluster.into(), filter }
    }

    /// Reads the folder once.
    pub fn load(&self) -> Result<Snapshot, FolderError> {
        let mut files = ManifestFiles::new(self.path.clone(), &self.cluster, self.filter.clone());
        let changes = files.refresh(&BTreeSet::new(), &BTreeSet::new())?;
        Ok(snapshot(changes, files.refusals()))
    }

    /// Sends the objects of the folder and then every change, until the receiver is dropped. Nothing is sent if nothing
    /// changed.
    pub async fn watch(self, batches: Sender<ChangeBatch>) {
        folder_watcher::watch(ManifestFiles::new(self.path, &self.cluster, self.filter), batches).await;
    }
}

/// Parses manifests in memory, as if they were the only file of a folder.
pub fn parse_manifests(input: &[u8], format: ManifestFormat, converter: &mut Converter) -> Snapshot {
    let contents = manifest::read("input", format, input, converter);
    let mut index = ManifestIndex::default();
    let update =
        FileUpdate { file: "input".into(), previous: Box::default(), objects: contents.objects, keep_missing: false };
    let (changes, _) = index.apply(vec![update]);
    let mut refusals = contents.refusals;
    refusals.extend(index.refusals());
    snapshot(changes, refusals)
}

fn snapshot(changes: Vec<Change>, refusals: Vec<Refusal>) -> Snapshot {
    let mut snapshot = Snapshot { refusals, ..Snapshot::default() };
    changes.into_iter().for_each(|change| snapshot.apply(change));
    snapshot
}
