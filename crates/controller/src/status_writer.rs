//! Writes the status of every policy.
//!
//! A status is a part of the policy, and every agent watches policies: one write causes as many watch events as there are
//! nodes. So changed conditions are written before changed counts, and the write rate depends on the size of the cluster.

use crate::cluster_state::{ClusterState, SharedState};
use crate::publisher::max_backoff;
use crate::status::{has_same_conditions, is_same, resource, with_transition_times};
use crate::write_queue::{Priority, WriteQueue};
use beeline_cluster::RateLimiter;
use beeline_cluster::policy::PolicyStatus;
use beeline_model::policy::PolicyName;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Watch events per second that status writes may cause at all agents together.
const MAX_EVENT_RATE: f64 = 20_000.0;
const INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which the nodes' reports are counted again. It is up to five times longer in large clusters.
const COUNT_INTERVAL: Duration = Duration::from_secs(2);
/// Number of statuses that are compared under one lock, so that other tasks do not wait long for it.
const CHUNK: usize = 64;
/// Limit of chunks per round, after which statuses are written.
const MAX_CHUNKS: usize = 64;
/// Limit of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 4;
/// Minimum time between two writes of one status.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// One in this many writes is a count, if any waits, so that endless changes of conditions do not block counts.
const COUNT_SHARE: u64 = 8;

/// Status writes per second: 100 in a small cluster, 4 with 5,000 nodes.
fn write_rate(nodes: usize) -> f64 {
    MAX_EVENT_RATE / (nodes.max(200) as f64)
}

/// At most two seconds' worth of writes are saved up.
fn burst(rate: f64) -> f64 {
    rate.max(1.0) * 2.0
}

pub struct StatusWriter {
    client: StatusClient,
    /// Changed conditions have high priority, changed counts low priority.
    queue: WriteQueue<PolicyName>,
    limiter: RateLimiter,
    counted_at: Instant,
    /// Number of statuses taken from the queue.
    taken: u64,
}

impl StatusWriter {
    pub fn new(client: Client, state: SharedState) -> StatusWriter {
        let (now, rate) = (Instant::now(), write_rate(0));
        StatusWriter {
            client: StatusClient { client, state },
            queue: WriteQueue::default(),
            limiter: RateLimiter::empty(rate, burst(rate), now),
            counted_at: now,
            taken: 0,
        }
    }

    pub async fn run(mut self, mut leader: watch::Receiver<bool>) -> anyhow::Result<()> {
        loop {
            leader.wait_for(|leading| *leading).await?;
            self.queue = WriteQueue::default();
            self.client.state.with(ClusterState::mark_all_statuses_dirty);
            while *leader.borrow() {
                self.round(&leader).await;
                tokio::time::sleep(INTERVAL).await;
            }
        }
    }

    /// A failed write is retried later; the others are written.
    async fn round(&mut self, leader: &watch::Receiver<bool>) {
        self.enqueue_dirty().await;
        let rate = write_rate(self.node_count());
        self.limiter.set_rate(rate, burst(rate), Instant::now());
        let mut running = FuturesUnordered::new();
        while *leader.borrow() {
            let Some((name, priority)) = self.next() else { break };
            let client = self.client.clone();
            running.push(async move { (client.write(&name).await, name, priority) });
            if running.len() >= MAX_CONCURRENT_WRITES
                && let Some((written, name, priority)) = running.next().await
            {
                self.finish(name, priority, written);
            }
        }
        while let Some((written, name, priority)) = running.next().await {
            self.finish(name, priority, written);
        }
    }

    fn node_count(&self) -> usize {
        self.client.state.with(|state| state.rollout.node_count())
    }

    fn next(&mut self) -> Option<(PolicyName, Priority)> {
        if self.queue.len().0 == 0 || !self.limiter.try_take(Instant::now()) {
            return None;
        }
        self.taken += 1;
        pop(&mut self.queue, self.taken, Instant::now())
    }

    fn finish(&mut self, name: PolicyName, priority: Priority, written: Result<(), kube::Error>) {
        match written {
            Ok(()) => self.queue.finish(name, Instant::now() + WRITE_INTERVAL),
            Err(error) => {
                tracing::warn!(policy = %name, %error, "cannot write the status of a policy, retrying");
                self.queue.retry_later(name, priority, Instant::now(), max_backoff(&error));
            }
        }
    }

    /// Compares the statuses that may have changed, and enqueues those that differ.
    async fn enqueue_dirty(&mut self) {
        let interval = COUNT_INTERVAL.mul_f64((self.node_count() as f64 / 200.0).clamp(1.0, 5.0));
        if self.counted_at.elapsed() >= interval {
            self.client.state.with(ClusterState::mark_dirty_after_reports);
            self.counted_at = Instant::now();
        }
        for _ in 0..MAX_CHUNKS {
            let compared = self.client.state.with(|state| state.compare_dirty_statuses(CHUNK));
            if compared.is_empty() {
                return;
            }
            compared.into_iter().for_each(|(name, diff)| self.enqueue(name, diff));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn enqueue(&mut self, name: PolicyName, diff: StatusDiff) {
        match diff {
            StatusDiff::PolicyDeleted => self.queue.remove(&name),
            StatusDiff::Same => {}
            StatusDiff::Counts => self.queue.push(name, Priority::Low),
            StatusDiff::Conditions => self.queue.push(name, Priority::High),
        }
    }
}

/// `turn` is the number of the write: every `COUNT_SHARE`th prefers a low priority.
fn pop(queue: &mut WriteQueue<PolicyName>, turn: u64, now: Instant) -> Option<(PolicyName, Priority)> {
    let mut priorities = [Priority::High, Priority::Low];
    if turn.is_multiple_of(COUNT_SHARE) {
        priorities.reverse();
    }
    priorities.into_iter().find_map(|priority| Some((queue.pop(priority, now)?, priority)))
}

/// How the observed status of a policy differs from the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusDiff {
    PolicyDeleted,
    Same,
    /// Only counts and messages differ.
    Counts,
    Conditions,
}

impl ClusterState {
    /// Marks the statuses that may have changed because nodes reported, or did not report in time.
    fn mark_dirty_after_reports(&mut self) {
        self.rollout.take_overdue(Instant::now()).into_iter().for_each(|name| self.mark_status_dirty(name));
        if self.rollout.take_changed() {
            self.mark_all_statuses_dirty();
        }
    }

    /// Compares up to `max` dirty statuses. Empty if none is dirty.
    fn compare_dirty_statuses(&mut self, max: usize) -> Vec<(PolicyName, StatusDiff)> {
        if !self.is_current() || !self.reports_listed {
            return Vec::new();
        }
        let names = std::iter::from_fn(|| self.dirty_statuses.pop_first());
        let names: Vec<PolicyName> = names.take(max).collect();
        names.into_iter().map(|name| (name.clone(), self.compare_status(&name))).collect()
    }

    fn compare_status(&self, name: &PolicyName) -> StatusDiff {
        let Some(policy) = self.policy(name) else { return StatusDiff::PolicyDeleted };
        // A status that has not been observed yet is marked dirty when the watch delivers it.
        let Some(observed) = self.observed_statuses.get(name, &policy.uid) else { return StatusDiff::Same };
        let wanted = self.wanted_status(policy);
        match () {
            () if is_same(&observed.status, &wanted) => StatusDiff::Same,
            () if has_same_conditions(&observed.status, &wanted) => StatusDiff::Counts,
            () => StatusDiff::Conditions,
        }
    }
}

#[derive(Clone)]
struct StatusClient {
    client: Client,
    state: SharedState,
}

impl StatusClient {
    /// The status to write, and the resourceVersion to write over; `None` if the observed status is right.
    fn pending_write(&self, name: &PolicyName) -> Option<(String, PolicyStatus)> {
        self.state.with(|state| {
            let policy = state.policy(name)?;
            let observed = state.observed_statuses.get(name, &policy.uid)?;
            let wanted = state.wanted_status(policy);
            let differs = !is_same(&observed.status, &wanted);
            differs.then(|| (observed.version.clone(), with_transition_times(wanted, Some(&observed.status))))
        })
    }

    /// The list of conditions is replaced as a whole, so that conditions of other writers cannot fill it.
    async fn write(&self, name: &PolicyName) -> Result<(), kube::Error> {
        let Some((version, status)) = self.pending_write(name) else { return Ok(()) };
        // The resourceVersion makes sure that the status is not written into a new policy of the same name.
        let patch = serde_json::json!({ "metadata": { "resourceVersion": version }, "status": status });
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &name.namespace, &resource(name.kind));
        let params = PatchParams { field_manager: Some("beeline-controller".into()), ..PatchParams::default() };
        match api.patch_status(&name.name, &params, &Patch::Merge(patch)).await {
            Ok(written) => drop(self.state.with(|state| state.observed_statuses.record(name.kind, written))),
            // The policy was deleted or changed meanwhile; the watch delivers that.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::policy::PolicyKind;

    #[test]
    fn the_write_rate_depends_on_the_number_of_nodes() {
        assert_eq!((write_rate(3), write_rate(200), write_rate(5000)), (100.0, 100.0, 4.0));
    }

    #[test]
    fn endless_changes_of_conditions_do_not_block_counts() {
        let (mut queue, now) = (WriteQueue::default(), Instant::now());
        let name = |n: u64| crate::validation::tests::policy(PolicyKind::Balancing, &format!("p{n}"), 1, None).name;
        queue.push(name(1000), Priority::Low);
        let mut priorities = Vec::new();
        for turn in 1..=2 * COUNT_SHARE {
            queue.push(name(turn), Priority::High);
            let (popped, priority) = pop(&mut queue, turn, now).unwrap();
            queue.finish_unchanged(&popped);
            priorities.push(priority);
        }
        let low = |priority: &Priority| *priority == Priority::Low;
        assert_eq!(priorities.iter().position(low), Some(COUNT_SHARE as usize - 1));
        assert_eq!(priorities.into_iter().filter(low).count(), 1, "only one count waits");
    }
}
