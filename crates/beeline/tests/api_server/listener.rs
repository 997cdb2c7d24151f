//! Whoever takes the batches: what all of them together say.

use crate::cluster::PATIENCE;
use beeline_cluster::{Batch, Echo, Server, Snapshot};
use std::time::Instant;
use tokio::sync::{mpsc, watch};

pub struct Listener {
    batches: mpsc::Receiver<Batch>,
    pub programmed: watch::Sender<bool>,
    pub said: Snapshot,
    pub last: Batch,
    /// Batches with facts so far, not counting the first list.
    pub changes: usize,
}

impl Listener {
    pub fn to(server: Server) -> Listener {
        let (sender, batches) = mpsc::channel(16);
        let (programmed, is_programmed) = watch::channel(false);
        let echo = Echo::new(is_programmed, mpsc::channel(1).1);
        tokio::spawn(async move { server.watch(sender, echo).await.unwrap() });
        Listener { batches, programmed, said: Snapshot::default(), last: Batch::default(), changes: 0 }
    }

    fn take(&mut self, mut batch: Batch) {
        for fact in std::mem::take(&mut batch.facts) {
            self.changes += 1;
            self.said.apply(fact);
        }
        self.said.refusals = batch.refusals.to_vec();
        self.last = batch;
    }

    /// Takes in what is said until it is so.
    pub async fn until(&mut self, what: &str, so: impl Fn(&Listener) -> bool) {
        let start = Instant::now();
        while !so(self) {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let batch = tokio::time::timeout(left, self.batches.recv()).await;
            let batch =
                batch.unwrap_or_else(|_| panic!("not so after {PATIENCE:?}: {what}: {:?} {:?}", self.said, self.last));
            self.take(batch.unwrap_or_else(|| panic!("the source ended before: {what}")));
        }
    }

    pub async fn until_synced(&mut self) {
        self.until("everything listed", |l| l.last.synced && l.last.error.is_none()).await;
    }

    pub fn has_service(&self, name: &str) -> bool {
        self.said.services.keys().any(|service| service.name() == name)
    }

    pub fn endpoints(&self, slice: &str) -> Vec<String> {
        let found = self.said.slices.values().filter(|s| &*s.name.name == slice);
        found.flat_map(|s| s.endpoints.iter().map(|e| e.address.to_string())).collect()
    }
}
