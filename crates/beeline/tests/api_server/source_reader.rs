//! Reads the batches of a source and keeps the resulting state.

use crate::cluster::TIMEOUT;
use beeline_cluster::{ApiServerSource, ChangeBatch, Feedback, Snapshot};
use std::time::Instant;
use tokio::sync::{mpsc, watch};

pub struct SourceReader {
    batches: mpsc::Receiver<ChangeBatch>,
    pub programmed: watch::Sender<bool>,
    pub state: Snapshot,
    pub last: ChangeBatch,
    /// Number of changes so far.
    pub changes: usize,
}

impl SourceReader {
    pub fn start(source: ApiServerSource) -> SourceReader {
        let (sender, batches) = mpsc::channel(16);
        let (programmed, is_programmed) = watch::channel(false);
        let feedback = Feedback::new(is_programmed, mpsc::channel(1).1);
        tokio::spawn(async move { source.watch(sender, feedback).await.unwrap() });
        SourceReader { batches, programmed, state: Snapshot::default(), last: ChangeBatch::default(), changes: 0 }
    }

    fn apply(&mut self, mut batch: ChangeBatch) {
        for change in std::mem::take(&mut batch.changes) {
            self.changes += 1;
            self.state.apply(change);
        }
        self.state.refusals = batch.refusals.to_vec();
        self.last = batch;
    }

    /// Reads batches until the condition holds.
    pub async fn wait_until(&mut self, what: &str, condition: impl Fn(&SourceReader) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            let left = TIMEOUT.saturating_sub(start.elapsed());
            let batch = tokio::time::timeout(left, self.batches.recv()).await;
            let batch =
                batch.unwrap_or_else(|_| panic!("{what}: not within {TIMEOUT:?}: {:?} {:?}", self.state, self.last));
            self.apply(batch.unwrap_or_else(|| panic!("the source ended: {what}")));
        }
    }

    pub async fn wait_until_synced(&mut self) {
        self.wait_until("all kinds are listed", |r| r.last.synced && r.last.error.is_none()).await;
    }

    pub fn has_service(&self, name: &str) -> bool {
        self.state.services.keys().any(|service| service.name() == name)
    }

    pub fn endpoints(&self, slice: &str) -> Vec<String> {
        let found = self.state.slices.values().filter(|s| &*s.name.name == slice);
        found.flat_map(|s| s.endpoints.iter().map(|e| e.address.to_string())).collect()
    }
}
