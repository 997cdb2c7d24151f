//! Services, policies and node rows whose last write to the kernel failed, each with its refusal and the time of the next
//! attempt.

use crate::plan_refusals::{log_refusal, log_resolved};
use beeline_model::ServiceName;
use beeline_model::diff::ReconcileOutcome;
use beeline_model::op::MapError;
use beeline_model::planner::Delta;
use beeline_model::refusal::{Refusal, RefusalReason, RefusalSubject};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The first delay. It is doubled after every failure.
const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(30);

struct FailedWrite {
    refusal: Refusal,
    next_attempt: Instant,
    delay: Duration,
    /// The table is full: an attempt is useless until rows become free.
    is_full: bool,
}

impl FailedWrite {
    fn new(refusal: Refusal, before: Option<&FailedWrite>, is_full: bool, now: Instant) -> FailedWrite {
        if before.is_none_or(|before| before.refusal != refusal) {
            log_refusal(None, &refusal);
        }
        let delay = before.map_or(MIN_DELAY, |before| (before.delay * 2).min(MAX_DELAY));
        FailedWrite { refusal, next_attempt: now + delay, delay, is_full }
    }
}

#[derive(Default)]
pub struct RetryQueue {
    services: BTreeMap<ServiceName, FailedWrite>,
    nodes: Option<FailedWrite>,
}

impl RetryQueue {
    /// Records the outcome of a write: failures are queued, successes are removed from the queue.
    pub fn record(&mut self, delta: &Delta, outcome: &ReconcileOutcome, now: Instant) {
        for (name, _) in &delta.services {
            if !outcome.failed.contains_key(name) {
                self.services.remove(name).iter().for_each(|failed| log_resolved(&failed.refusal));
            }
        }
        let rows_freed = self.are_rows_freed(delta, outcome);
        if rows_freed {
            let soon = now + MIN_DELAY;
            let full = self.services.values_mut().filter(|failed| failed.is_full);
            full.for_each(|failed| failed.next_attempt = failed.next_attempt.min(soon));
        }
        for ((name, error), refusal) in outcome.failed.iter().zip(outcome.refusals()) {
            let is_full = matches!(error, MapError::Full(_));
            let mut failed = FailedWrite::new(refusal, self.services.get(name), is_full, now);
            if is_full && !rows_freed {
                (failed.delay, failed.next_attempt) = (MAX_DELAY, now + MAX_DELAY);
            }
            self.services.insert(name.clone(), failed);
        }
        if delta.nodes.is_some() {
            self.record_nodes(outcome.nodes_failed.as_ref(), now);
        }
    }

    /// Whether this write freed rows, so that a service which failed because of a full table, in this write or in an
    /// earlier one, may succeed now. Rows that a failed service used only for its own attempt do not count.
    fn are_rows_freed(&self, delta: &Delta, outcome: &ReconcileOutcome) -> bool {
        let is_written = |name: &ServiceName| !outcome.failed.contains_key(name) && !self.services.contains_key(name);
        outcome.retired.iter().any(|(name, ..)| is_written(&name.service))
            || delta.services.iter().any(|(_, plan)| plan.is_none())
    }

    fn record_nodes(&mut self, error: Option<&MapError>, now: Instant) {
        let before = self.nodes.take();
        let Some(error) = error else { return };
        let message = match error {
            MapError::Full(_) => {
                "the node table is full; the remaining addresses are not known as addresses of nodes: \
                                  watch fewer Nodes (--node-source)"
                    .to_owned()
            }
            MapError::Failed(error) => format!("{error}; the last state stays in effect, the write is retried"),
        };
        let refusal = Refusal::new(RefusalSubject::NodeTable, RefusalReason::WriteFailed, message);
        let is_full = matches!(error, MapError::Full(_));
        self.nodes = Some(FailedWrite::new(refusal, before.as_ref(), is_full, now));
    }

    /// Services and policies whose next attempt is due.
    pub fn due_services(&self, now: Instant) -> Vec<ServiceName> {
        let due = self.services.iter().filter(|(_, failed)| failed.next_attempt <= now);
        due.map(|(name, _)| name.clone()).collect()
    }

    pub fn are_nodes_due(&self, now: Instant) -> bool {
        self.nodes.as_ref().is_some_and(|failed| failed.next_attempt <= now)
    }

    /// Services and policies whose last write failed.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    pub fn refusal(&self, name: &ServiceName) -> Option<&Refusal> {
        self.services.get(name).map(|failed| &failed.refusal)
    }

    pub fn service_refusals(&self) -> impl Iterator<Item = (&ServiceName, &Refusal)> {
        self.services.iter().map(|(name, failed)| (name, &failed.refusal))
    }

    pub fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        self.services.values().chain(&self.nodes).map(|failed| &failed.refusal)
    }

    /// Whether some write may succeed when it is retried. A full table is not counted: restarting the agent would not help.
    pub fn has_retryable(&self) -> bool {
        self.services.values().chain(&self.nodes).any(|failed| !failed.is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ServiceName {
        ServiceName::local("default", text)
    }

    /// A delta without plans would remove the service; here only the name matters.
    fn delta(names: &[&str]) -> Delta {
        Delta {
            services: names.iter().map(|text| (name(text), Some(Default::default()))).collect(),
            ..Delta::default()
        }
    }

    fn failing(names: &[&str], error: &MapError) -> ReconcileOutcome {
        let failed = names.iter().map(|text| (name(text), error.clone())).collect();
        ReconcileOutcome { failed, ..ReconcileOutcome::default() }
    }

    #[test]
    fn a_failed_write_is_retried_with_increasing_delay_until_it_succeeds() {
        let (mut queue, error) = (RetryQueue::default(), MapError::Failed("EIO".into()));
        let mut now = Instant::now();
        for delay in [100, 200, 400] {
            queue.record(&delta(&["web"]), &failing(&["web"], &error), now);
            assert!(queue.has_retryable() && queue.due_services(now).is_empty());
            now += Duration::from_millis(delay);
            assert_eq!(queue.due_services(now), [name("web")], "after {delay} ms");
        }
        queue.record(&delta(&["web"]), &ReconcileOutcome::default(), now);
        assert!(queue.services().next().is_none() && queue.refusal(&name("web")).is_none());
    }

    #[test]
    fn a_full_table_is_retried_when_a_service_is_deleted() {
        let (mut queue, full, now) = (RetryQueue::default(), MapError::Full("backend"), Instant::now());
        queue.record(&delta(&["web"]), &failing(&["web"], &full), now);
        assert!(!queue.has_retryable(), "a restart would not help");
        assert!(queue.due_services(now + MIN_DELAY).is_empty());
        let deletion = Delta { services: vec![(name("api"), None)], ..Delta::default() };
        queue.record(&deletion, &ReconcileOutcome::default(), now);
        assert_eq!(queue.due_services(now + MIN_DELAY), [name("web")]);
    }
}
