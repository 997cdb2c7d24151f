//! The refusals of the planner (conflicts between objects, addresses that are not allowed). Each is logged once when it
//! appears and once when it is resolved, and sent to the source, which posts it as an Event on the object.

use beeline_model::planner::Planner;
use beeline_model::refusal::Refusal;
use std::collections::BTreeSet;
use std::time::Instant;
use tokio::sync::mpsc::Sender;

/// Finding all refusals examines every claim, which takes milliseconds with 100,000 Services. At most 1/`TIME_SHARE` of the
/// time is spent on it.
const TIME_SHARE: u32 = 50;

pub struct PlanRefusals {
    current: Vec<Refusal>,
    /// Something was planned since the last update.
    stale: bool,
    next_update: Instant,
    /// To the source. When the channel is full, a refusal is only logged.
    events: Sender<Refusal>,
}

impl PlanRefusals {
    pub fn new(events: Sender<Refusal>) -> PlanRefusals {
        PlanRefusals { current: Vec::new(), stale: false, next_update: Instant::now(), events }
    }

    pub fn mark_stale(&mut self) {
        self.stale = true;
    }

    pub fn update_if_due(&mut self, planner: &Planner) {
        let start = Instant::now();
        if !self.stale || start < self.next_update {
            return;
        }
        self.set(planner.refusals());
        self.stale = false;
        self.next_update = Instant::now() + start.elapsed() * TIME_SHARE;
    }

    /// The refusals of the current plan.
    pub fn current(&self, planner: &Planner) -> Vec<Refusal> {
        if self.stale { planner.refusals() } else { self.current.clone() }
    }

    fn set(&mut self, refusals: Vec<Refusal>) {
        for refusal in log_refusal_changes(None, &self.current, &refusals) {
            let _ = self.events.try_send(refusal.clone());
        }
        self.current = refusals;
    }
}

/// Logs new and resolved refusals. Returns the new ones. `cluster` is the cluster whose source refuses the objects; the
/// planner's refusals contain theirs.
pub fn log_refusal_changes<'a>(cluster: Option<&str>, before: &[Refusal], now: &'a [Refusal]) -> Vec<&'a Refusal> {
    if before == now {
        return Vec::new();
    }
    let (old, new): (BTreeSet<&Refusal>, BTreeSet<&Refusal>) = (before.iter().collect(), now.iter().collect());
    for Refusal { subject, reason, message } in old.difference(&new) {
        tracing::info!(cluster, %subject, %reason, detail = %message, "a refusal no longer applies; see reason and detail");
    }
    let added: Vec<&Refusal> = new.into_iter().filter(|refusal| !old.contains(*refusal)).collect();
    added.iter().for_each(|refusal| log_refusal(cluster, refusal));
    added
}

pub fn log_refusal(cluster: Option<&str>, Refusal { subject, reason, message }: &Refusal) {
    tracing::warn!(cluster, %subject, %reason, detail = %message, "an object or part of it is not served; see reason and detail");
}

pub fn log_resolved(Refusal { subject, reason, message }: &Refusal) {
    tracing::info!(%subject, %reason, detail = %message, "a refusal no longer applies; see reason and detail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::ServiceName;
    use beeline_model::refusal::RefusalReason;
    use tokio::sync::mpsc::channel;

    fn refusal(name: &str) -> Refusal {
        Refusal::new(&ServiceName::local("default", name), RefusalReason::AddressConflict, "taken")
    }

    #[test]
    fn a_refusal_is_sent_to_the_source_once_and_again_when_it_reappears() {
        let (events, mut received) = channel(8);
        let mut refusals = PlanRefusals::new(events);
        let mut sent = |refusals: &mut PlanRefusals, now: &[Refusal]| {
            refusals.set(now.to_vec());
            std::iter::from_fn(|| received.try_recv().ok()).collect::<Vec<_>>()
        };
        let (a, b) = (refusal("a"), refusal("b"));
        assert_eq!(sent(&mut refusals, std::slice::from_ref(&a)), vec![a.clone()]);
        assert_eq!(sent(&mut refusals, &[a.clone(), b.clone()]), vec![b.clone()], "only the new one");
        assert_eq!(sent(&mut refusals, &[a.clone(), b.clone()]), []);
        assert_eq!(sent(&mut refusals, std::slice::from_ref(&b)), []);
        assert_eq!(sent(&mut refusals, &[a.clone(), b]), [a], "it was resolved in between");
    }
}
