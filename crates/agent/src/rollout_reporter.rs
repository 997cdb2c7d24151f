//! Reports to the controller which policies this node has programmed, and which it could not program.

use beeline_model::ServiceName;
use beeline_model::change::Change;
use beeline_model::refusal::Refusal;
use beeline_model::rollout::{DigestTracker, FailingPolicy, RolloutReport};
use tokio::sync::watch;

#[derive(Default)]
pub struct RolloutReporter {
    digests: DigestTracker,
    /// `None` if this host does not report.
    sender: Option<watch::Sender<Option<RolloutReport>>>,
}

impl RolloutReporter {
    pub fn set_sender(&mut self, sender: Option<watch::Sender<Option<RolloutReport>>>) {
        self.sender = sender;
    }

    /// Must be called for changes of the node's own cluster only.
    pub fn apply(&mut self, change: &Change) {
        self.digests.apply(change);
    }

    /// Sends the report if it changed. `failed` are the writes of the node's own cluster that failed.
    pub fn publish<'a>(&self, failed: impl Iterator<Item = (&'a ServiceName, &'a Refusal)>) {
        let Some(sender) = &self.sender else { return };
        let failing = failed.filter_map(|(name, refusal)| {
            let policy = name.policy()?.to_string();
            Some(FailingPolicy { policy, reason: refusal.reason.as_str().into() })
        });
        let report = Some(self.digests.report(failing.collect()));
        sender.send_if_modified(|sent| {
            let differs = *sent != report;
            sent.clone_from(&report);
            differs
        });
    }
}
