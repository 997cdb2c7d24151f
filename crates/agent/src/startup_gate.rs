//! Delays the first write to the kernel after a start, on a host that is not a node of the cluster.
//!
//! The tables in the kernel are most likely still right, and keep serving. A plan that is made too early would change
//! them and change them back: it does not know yet which other clusters have pods at the same addresses, nor how pods
//! are reached. The gate waits for both, each for a limited time.

use crate::reach::{ReachTarget, ReachUpdate};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for clusters that do not answer. By then their snapshots have been loaded (`supervisor`).
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(4);
/// How long to wait for route lookups and the first probe results.
const REACH_TIMEOUT: Duration = Duration::from_millis(2500);

pub enum StartupGate {
    /// Waits until every cluster is synced.
    WaitingForClusters {
        deadline: Instant,
    },
    /// Waits for the answer to this query.
    WaitingForReach {
        deadline: Instant,
        query: Arc<[ReachTarget]>,
    },
    Open,
}

/// How many of the configured clusters are synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncedClusters {
    None,
    Some,
    All,
}

impl StartupGate {
    pub fn new(now: Instant) -> StartupGate {
        StartupGate::WaitingForClusters { deadline: now + CLUSTER_TIMEOUT }
    }

    pub fn is_open(&self) -> bool {
        matches!(self, StartupGate::Open)
    }

    /// Whether enough clusters are synced to ask how their pods are reached.
    pub fn clusters_ready(&self, synced: SyncedClusters, now: Instant) -> bool {
        match self {
            StartupGate::WaitingForClusters { deadline } => {
                synced == SyncedClusters::All || synced == SyncedClusters::Some && now >= *deadline
            }
            _ => false,
        }
    }

    pub fn wait_for_reach(&mut self, query: Arc<[ReachTarget]>, now: Instant) {
        *self = StartupGate::WaitingForReach { deadline: now + REACH_TIMEOUT, query };
    }

    /// Opens the gate if the update answers the query that the gate waits for.
    pub fn apply(&mut self, update: &ReachUpdate) {
        let answers = |query: &Arc<[ReachTarget]>| update.complete && Arc::ptr_eq(&update.query, query);
        if matches!(self, StartupGate::WaitingForReach { query, .. } if answers(query)) {
            *self = StartupGate::Open;
        }
    }

    pub fn check_timeout(&mut self, now: Instant) {
        if matches!(self, StartupGate::WaitingForReach { deadline, .. } if now >= *deadline) {
            *self = StartupGate::Open;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query() -> Arc<[ReachTarget]> {
        Arc::new([])
    }

    #[test]
    fn a_silent_cluster_is_waited_for_until_the_timeout() {
        let now = Instant::now();
        let gate = StartupGate::new(now);
        let timeout = now + CLUSTER_TIMEOUT;
        assert!(!gate.clusters_ready(SyncedClusters::None, timeout) && !gate.clusters_ready(SyncedClusters::Some, now));
        assert!(gate.clusters_ready(SyncedClusters::All, now) && gate.clusters_ready(SyncedClusters::Some, timeout));
    }

    #[test]
    fn only_the_answer_to_the_pending_query_opens_the_gate() {
        let (now, query) = (Instant::now(), query());
        let mut gate = StartupGate::new(now);
        gate.apply(&ReachUpdate { complete: true, query: query.clone(), ..ReachUpdate::default() });
        assert!(!gate.is_open(), "no query is pending");
        gate.wait_for_reach(query.clone(), now);
        gate.apply(&ReachUpdate { complete: true, query: Arc::new([]), ..ReachUpdate::default() });
        gate.apply(&ReachUpdate { complete: false, query: query.clone(), ..ReachUpdate::default() });
        gate.check_timeout(now);
        assert!(!gate.is_open());
        gate.apply(&ReachUpdate { complete: true, query, ..ReachUpdate::default() });
        assert!(gate.is_open());
    }

    #[test]
    fn the_gate_opens_after_the_timeout_without_an_answer() {
        let now = Instant::now();
        let mut gate = StartupGate::new(now);
        gate.wait_for_reach(query(), now);
        gate.check_timeout(now + REACH_TIMEOUT);
        assert!(gate.is_open());
    }
}
