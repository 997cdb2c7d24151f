//! A folder of manifests as a source of facts.

use crate::convert::{Claim, Convert};
use crate::files::{Files, FolderError};
use crate::index::{Change, Index};
use crate::manifest::{self, Format};
use crate::snapshot::Snapshot;
use crate::watch;
use beeline_model::fact::{Fact, Refusal};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio::sync::mpsc::Sender;

/// What differs from the batch before, and how the source is now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// What is new or other first, what is gone last.
    pub facts: Vec<Fact>,
    /// All that is refused now, not only what is new.
    pub refusals: Arc<[Refusal]>,
    /// The source has been read as a whole at least once.
    pub synced: bool,
    /// Nothing of it was unreadable.
    pub whole: bool,
    /// Some of it comes from a copy that may be older than what was heard before, by whomever.
    pub second_hand: bool,
    /// The source cannot be read; what it gave before holds.
    pub error: Option<String>,
    /// When the first of these facts came in; `None`: now.
    pub heard: Option<Instant>,
    /// When the changes behind these facts happened, by their slices' own word.
    pub triggers: Vec<SystemTime>,
    /// The API server that is asked now.
    pub server: Option<String>,
}

pub struct Folder {
    path: PathBuf,
    cluster: String,
    claim: Claim,
}

impl Folder {
    pub fn new(path: impl Into<PathBuf>, cluster: &str, claim: Claim) -> Folder {
        Folder { path: path.into(), cluster: cluster.into(), claim }
    }

    /// All that the folder says now.
    pub fn load(&self) -> Result<Snapshot, FolderError> {
        let mut files = Files::new(self.path.clone(), &self.cluster, self.claim.clone());
        let facts = files.refresh(&BTreeSet::new(), &BTreeSet::new())?;
        Ok(snapshot(facts, files.refusals()))
    }

    /// Sends what the folder says and then every change of it, until nobody listens any more. Says nothing if nothing
    /// changed.
    pub async fn watch(self, batches: Sender<Batch>) {
        watch::watch(Files::new(self.path, &self.cluster, self.claim), batches).await;
    }
}

/// Manifests from memory: what a folder with this one file would say.
pub fn parse(input: &[u8], format: Format, convert: &mut Convert) -> Snapshot {
    let reading = manifest::read("input", format, input, convert);
    let mut index = Index::new(convert.cluster().clone());
    let change = Change { file: "input".into(), old: Box::default(), objects: reading.objects, keep: false };
    let (facts, _) = index.apply(vec![change]);
    let mut refusals = reading.refusals;
    refusals.extend(index.refusals());
    snapshot(facts, refusals)
}

fn snapshot(facts: Vec<Fact>, refusals: Vec<Refusal>) -> Snapshot {
    let mut snapshot = Snapshot { refusals, ..Snapshot::default() };
    facts.into_iter().for_each(|fact| snapshot.apply(fact));
    snapshot
}
