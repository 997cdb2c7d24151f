//! Reports to the controller which policies this node has programmed, and which it could not program.

use beeline_model::ServiceName;
use beeline_model::change::Change;
use beeline_model::refusal::Refusal;
use beeline_model::rollout::{DigestTracker, RolloutReport};
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

    /// Sends the report if it changed. `failing` are the policies of the node's own cluster that could not be written, then
    /// those that the plan refuses.
    pub fn publish<'a>(&self, failing: impl Iterator<Item = (&'a ServiceName, &'a Refusal)>) {
        let Some(sender) = &self.sender else { return };
        let failing = failing.filter_map(|(name, refusal)| Some((name.policy()?, refusal)));
        let report = Some(self.digests.report_refusals(failing.collect()));
        sender.send_if_modified(|sent| {
            let differs = *sent != report;
            sent.clone_from(&report);
            differs
        });
    }
}
