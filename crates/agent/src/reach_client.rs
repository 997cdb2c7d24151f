//! The main loop's side of the reach task: which groups of pods the plan needs, and the results.

use crate::reach::{ReachFinding, ReachQuery, ReachUpdate};
use beeline_model::planner::Planner;
use beeline_model::reach::Reach;
use beeline_model::refusal::{Refusal, RefusalReason, RefusalSubject};
use beeline_model::rules::HostRole;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// After a change the query is recomputed after this time, because changes often come in groups.
const UPDATE_DELAY: Duration = Duration::from_millis(500);

pub struct ReachClient {
    query: watch::Sender<ReachQuery>,
    /// When to recompute the query.
    update_at: Option<Instant>,
    findings: Vec<ReachFinding>,
    /// Why routes cannot be read.
    refusal: Option<Refusal>,
}

impl ReachClient {
    pub fn new() -> ReachClient {
        ReachClient { query: watch::channel(None).0, update_at: None, findings: Vec::new(), refusal: None }
    }

    pub fn subscribe(&self) -> watch::Receiver<ReachQuery> {
        self.query.subscribe()
    }

    pub fn findings(&self) -> &[ReachFinding] {
        &self.findings
    }

    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// Objects changed: the query may change.
    pub fn schedule_update(&mut self, now: Instant) {
        self.update_at.get_or_insert(now + UPDATE_DELAY);
    }

    /// The configuration changed: the query is recomputed with the next tick.
    pub fn schedule_update_now(&mut self, now: Instant) {
        self.update_at.get_or_insert(now);
    }

    pub fn update_if_due(&mut self, planner: &Planner, now: Instant) {
        if self.update_at.take_if(|at| *at <= now).is_some() {
            self.update(planner);
        }
    }

    /// Recomputes the query, and sends it if it changed. `None` means that this host is a node of every cluster, so nothing
    /// is looked up.
    pub fn update(&mut self, planner: &Planner) -> ReachQuery {
        let is_remote = planner.order().clusters().iter().any(|cluster| cluster.host_role != HostRole::Node);
        let targets = is_remote.then(|| planner.reach_targets());
        self.query.send_if_modified(|query| {
            let differs = query.as_deref() != targets.as_deref();
            if differs {
                *query = targets.map(Arc::from);
            }
            differs
        });
        self.query.borrow().clone()
    }

    /// Returns the reachability for the planner, or `None` if the task could not read routes: then the last results stay in
    /// effect.
    pub fn apply(&mut self, update: ReachUpdate) -> Option<Reach> {
        let refusal = |message| Refusal::new(RefusalSubject::Routes, RefusalReason::RoutesUnknown, message);
        self.refusal = update.error.map(refusal);
        if self.refusal.is_some() {
            return None;
        }
        self.findings = update.findings;
        Some(update.reach)
    }
}
