//! The status of every policy, kept true: what it should say, and a writer that brings it there.
//!
//! A status is written into the policy, and every agent watches policies: one write is as many events as there are nodes.
//! So conditions go first, counts after them, and both within what the cluster's size allows.

use crate::census::Missing;
use crate::judge::Finding;
use crate::limit::Limit;
use crate::publish::longest;
use crate::queue::{Lane, Queue};
use crate::world::World;
use beeline_cluster::policy::{ACCEPTED, NodeCount, PROGRAMMED, PolicyStatus};
use beeline_model::policy::{Policy, PolicyKind, PolicyName, RedirectMode, Target};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Events a second that statuses may cause at all agents together.
const EVENTS: f64 = 20_000.0;
const TICK: Duration = Duration::from_millis(250);
/// Reports of nodes come one by one; what follows from them is counted this often, and in large clusters every ten
/// seconds.
const COUNT: Duration = Duration::from_secs(2);
/// Statuses worked out in one go: whoever else waits for the lock waits no longer than for these.
const CHUNK: usize = 64;
/// And so many goes before something is written.
const CHUNKS: usize = 64;
/// Writes under way at once.
const AT_ONCE: usize = 4;
/// One policy's status is written at most this often.
const REST: Duration = Duration::from_secs(1);
const NO_NODES: &str =
    "no node matches nodeLabelSelector: label a node, or change it (kubectl get nodes --show-labels)";
/// What to do about nodes that do not say that they have it.
const PENDING: &str = "does the agent run there, and may it write its report (docs/controller.md)?";
/// Characters of a message.
const MESSAGE: usize = 1024;

pub fn plural(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::LocalRedirect => "localredirectpolicies",
        PolicyKind::Balancing => "balancingpolicies",
    }
}

pub fn resource(kind: PolicyKind) -> ApiResource {
    let kind_name = kind.to_string();
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("beeline.dev", "v1alpha1", &kind_name), plural(kind))
}

impl World {
    /// Without times.
    pub fn status(&self, policy: &Policy) -> PolicyStatus {
        let judged = self.judge(policy);
        let count = self.census.count(policy);
        let backends = self.publisher.backends(&policy.name);
        let programmed = if judged.is_ok() { count.programmed } else { 0 };
        let conditions = vec![self.accepted(policy, &judged), programmed_condition(policy, &judged, &count)];
        PolicyStatus {
            observed_generation: Some(policy.generation),
            conditions: Some(conditions),
            nodes: Some(NodeCount::new(number(programmed), number(count.wanted))),
            backends: Some(number(backends)),
            mode: Some(mode(policy).into()),
        }
    }

    fn accepted(&self, policy: &Policy, judged: &Result<Option<Finding>, Finding>) -> Condition {
        let (status, reason, mut message) = match judged {
            Ok(None) => (true, "Accepted", String::new()),
            Ok(Some(note)) => (true, note.reason, note.message.clone()),
            Err(why) => (false, why.reason, why.message.clone()),
        };
        let mut left = self.publisher.left_out(&policy.name);
        if let (true, Some((pod, why))) = (status, left.next()) {
            let others = left.count();
            let more = if others > 0 { format!(", and {others} more") } else { String::new() };
            let note = format!("pod {}/{} is left out: {}{more}", pod.namespace, pod.name, why.message);
            message = if message.is_empty() { note } else { format!("{message}; {note}") };
        }
        condition(ACCEPTED, status, reason, message, policy.generation)
    }
}

fn programmed_condition(
    policy: &Policy,
    judged: &Result<Option<Finding>, Finding>,
    count: &crate::census::Count,
) -> Condition {
    let missing = count.wanted - count.programmed;
    let (status, reason, message) = match judged {
        Err(_) => (false, "NotAccepted", String::new()),
        Ok(_) if count.wanted == 0 => (false, "NoNodes", NO_NODES.to_owned()),
        Ok(_) if missing == 0 => (true, "Programmed", String::new()),
        Ok(_) => {
            let name = |(node, why): &(beeline_model::Name, Missing)| match why {
                Missing::Failing(why) => format!("{node} ({why})"),
                Missing::Unnamed(more) => format!("{node} (unknown: {more} policies fail that it does not name)"),
                Missing::Pending => node.to_string(),
            };
            let named: Vec<String> = count.missing.iter().map(name).collect();
            let more = if missing > named.len() { ", ..." } else { "" };
            let failed = count.missing.iter().any(|(_, why)| matches!(why, Missing::Failing(_)));
            let reason = if failed { "Failing" } else { "Pending" };
            let next = if failed { "beeline status tells more there" } else { PENDING };
            let named = named.join(", ");
            (false, reason, format!("{missing} of {} nodes do not have it: {named}{more}; {next}", count.wanted))
        }
    };
    condition(PROGRAMMED, status, reason, message, policy.generation)
}

fn condition(kind: &str, status: bool, reason: &str, mut message: String, generation: i64) -> Condition {
    if let Some((end, _)) = message.char_indices().nth(MESSAGE) {
        message.truncate(end);
    }
    Condition {
        type_: kind.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message,
        observed_generation: Some(generation),
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn mode(policy: &Policy) -> &'static str {
    match &policy.target {
        Target::LocalPods { .. } => "local",
        Target::Addresses { .. } => "addresses",
        Target::Pods { mode: RedirectMode::PodEndpoint, .. } => "podEndpoint",
        Target::Pods { mode: RedirectMode::HostPort, .. } => "hostPort",
        Target::Pods { mode: RedirectMode::NodeProxy, .. } => "nodeProxy",
    }
}

/// What they say, and not since when.
fn is_same(a: &PolicyStatus, b: &PolicyStatus) -> bool {
    let plain = |status: &PolicyStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_transition_time = Time(jiff::Timestamp::UNIX_EPOCH);
        }
        status
    };
    plain(a) == plain(b)
}

fn same_verdict(a: &PolicyStatus, b: &PolicyStatus) -> bool {
    let of = |status: &PolicyStatus| -> Vec<(String, String, String)> {
        let all = status.conditions.iter().flatten();
        all.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone())).collect()
    };
    of(a) == of(b) && a.observed_generation == b.observed_generation
}

/// A condition keeps its time while its status does not change.
fn with_times(mut wanted: PolicyStatus, before: Option<&PolicyStatus>) -> PolicyStatus {
    let now = Time(jiff::Timestamp::now());
    for condition in wanted.conditions.iter_mut().flatten() {
        let old = before.and_then(|status| status.conditions.as_ref());
        let old = old.and_then(|all| all.iter().find(|c| c.type_ == condition.type_ && c.status == condition.status));
        condition.last_transition_time = old.map_or_else(|| now.clone(), |old| old.last_transition_time.clone());
    }
    wanted
}

/// Writes a second: a hundred in a small cluster, four at 5,000 nodes.
pub fn rate(nodes: usize) -> f64 {
    EVENTS / (nodes.max(200) as f64)
}

pub struct Writer {
    pen: Pen,
    /// Verdicts first, counts then.
    queue: Queue<PolicyName>,
    limit: Limit,
    counted: Instant,
    /// Statuses taken so far.
    taken: u64,
}

/// Every so many is a count, should there be any: verdicts without end must not keep counts from being told.
const COUNTS: u64 = 8;

impl Writer {
    pub fn new(client: Client, world: Arc<Mutex<World>>) -> Writer {
        let pen = Pen { client, world };
        Writer {
            pen,
            queue: Queue::default(),
            limit: Limit::new(0.0, Instant::now()),
            counted: Instant::now(),
            taken: 0,
        }
    }

    pub async fn run(mut self, mut leader: watch::Receiver<bool>) -> anyhow::Result<()> {
        loop {
            leader.wait_for(|leads| *leads).await?;
            self.queue = Queue::default();
            self.pen.with(World::mark_statuses);
            while *leader.borrow() {
                self.round(&leader).await;
                tokio::time::sleep(TICK).await;
            }
        }
    }

    /// One that fails waits its own time; the others are written.
    async fn round(&mut self, leader: &watch::Receiver<bool>) {
        self.sort().await;
        self.limit.refill(rate(self.pen.with(|world| world.census.size())), Instant::now());
        let mut running = FuturesUnordered::new();
        while *leader.borrow() {
            let Some((name, lane)) = self.next() else { break };
            let pen = self.pen.clone();
            running.push(async move { (pen.write(&name).await, name, lane) });
            if running.len() >= AT_ONCE
                && let Some((written, name, lane)) = running.next().await
            {
                self.settle(name, lane, written);
            }
        }
        while let Some((written, name, lane)) = running.next().await {
            self.settle(name, lane, written);
        }
    }

    fn next(&mut self) -> Option<(PolicyName, Lane)> {
        if self.queue.len().0 == 0 || !self.limit.take() {
            return None;
        }
        self.taken += 1;
        take_turn(&mut self.queue, self.taken, Instant::now())
    }

    /// What failed comes again in its own lane.
    fn settle(&mut self, name: PolicyName, lane: Lane, written: Result<(), kube::Error>) {
        match written {
            Ok(()) => self.queue.done(name, Instant::now() + REST),
            Err(error) => {
                tracing::warn!("the status of {name} cannot be written: {error}");
                self.queue.fail(name, lane, Instant::now(), longest(&error));
            }
        }
    }

    /// What may have changed: at once if a verdict did, else in its turn.
    async fn sort(&mut self) {
        let size = self.pen.with(|world| world.census.size());
        if self.counted.elapsed() >= COUNT.mul_f64((size as f64 / 200.0).clamp(1.0, 5.0)) {
            self.pen.with(World::count_again);
            self.counted = Instant::now();
        }
        for _ in 0..CHUNKS {
            let found = self.pen.with(|world| world.next_statuses(CHUNK));
            if found.is_empty() {
                return;
            }
            found.into_iter().for_each(|(name, standing)| self.file(name, standing));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn file(&mut self, name: PolicyName, standing: Standing) {
        match standing {
            Standing::Gone => self.queue.forget(&name),
            Standing::Same => {}
            Standing::Counts => self.queue.put(name, Lane::Then),
            Standing::Verdict => self.queue.put(name, Lane::First),
        }
    }
}

fn take_turn(queue: &mut Queue<PolicyName>, turn: u64, now: Instant) -> Option<(PolicyName, Lane)> {
    let mut lanes = [Lane::First, Lane::Then];
    if turn.is_multiple_of(COUNTS) {
        lanes.reverse();
    }
    lanes.into_iter().find_map(|lane| Some((queue.take(lane, now)?, lane)))
}

/// How what is said of a policy stands to what should be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Gone,
    Same,
    /// Only numbers and words differ.
    Counts,
    Verdict,
}

impl World {
    fn count_again(&mut self) {
        if self.census.take_changed() {
            self.mark_statuses();
        }
    }

    /// Of some that may have changed; none: of all it has been said.
    fn next_statuses(&mut self, most: usize) -> Vec<(PolicyName, Standing)> {
        if !self.is_current() {
            return Vec::new();
        }
        let names = std::iter::from_fn(|| self.status_dirty.pop_first());
        let names: Vec<PolicyName> = names.take(most).collect();
        names.into_iter().map(|name| (name.clone(), self.standing(&name))).collect()
    }

    fn standing(&self, name: &PolicyName) -> Standing {
        let Some(policy) = self.policy(name) else { return Standing::Gone };
        // Whoever has not heard of its status yet hears soon.
        let Some(said) = self.said.of(name, &policy.uid) else { return Standing::Same };
        let wanted = self.status(policy);
        match () {
            () if is_same(&said.status, &wanted) => Standing::Same,
            () if same_verdict(&said.status, &wanted) => Standing::Counts,
            () => Standing::Verdict,
        }
    }
}

#[derive(Clone)]
struct Pen {
    client: Client,
    world: Arc<Mutex<World>>,
}

impl Pen {
    fn with<T>(&self, work: impl FnOnce(&mut World) -> T) -> T {
        work(&mut self.world.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What to write, and over which version; `None`: it says so already.
    fn draft(&self, name: &PolicyName) -> Option<(String, PolicyStatus)> {
        self.with(|world| {
            let policy = world.policy(name)?;
            let said = world.said.of(name, &policy.uid)?;
            let wanted = world.status(policy);
            let differs = !is_same(&said.status, &wanted);
            differs.then(|| (said.version.clone(), with_times(wanted, Some(&said.status))))
        })
    }

    /// Lists are replaced whole: what others put among our conditions does not stay, and cannot fill the list.
    async fn write(&self, name: &PolicyName) -> Result<(), kube::Error> {
        let Some((version, status)) = self.draft(name) else { return Ok(()) };
        // Of another policy under this name nothing is said.
        let patch = serde_json::json!({ "metadata": { "resourceVersion": version }, "status": status });
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &name.namespace, &resource(name.kind));
        let params = PatchParams { field_manager: Some("beeline-controller".into()), ..PatchParams::default() };
        match api.patch_status(&name.name, &params, &Patch::Merge(patch)).await {
            Ok(written) => drop(self.with(|world| world.said.hear(name.kind, written))),
            // Deleted, or changed meanwhile: the watch tells.
            Err(kube::Error::Api(answer)) if [404, 409].contains(&answer.code) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_statuses_may_cost() {
        assert_eq!((rate(3), rate(200), rate(5000)), (100.0, 100.0, 4.0));
    }

    #[test]
    fn verdicts_without_end_let_counts_through() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let name = |n: u64| crate::judge::tests::policy(PolicyKind::Balancing, &format!("p{n}"), 1, None).name;
        queue.put(name(1000), Lane::Then);
        let mut lanes = Vec::new();
        for turn in 1..=2 * COUNTS {
            queue.put(name(turn), Lane::First);
            let (taken, lane) = take_turn(&mut queue, turn, now).unwrap();
            queue.skip(&taken);
            lanes.push(lane);
        }
        assert_eq!(lanes.iter().position(|lane| *lane == Lane::Then), Some(COUNTS as usize - 1));
        assert_eq!(lanes.iter().filter(|lane| **lane == Lane::Then).count(), 1, "there is no other");
    }

    #[test]
    fn a_message_has_an_end() {
        let cut = condition(ACCEPTED, true, "Accepted", "ü".repeat(2000), 1);
        assert_eq!(cut.message.chars().count(), MESSAGE);
    }

    #[test]
    fn a_condition_keeps_its_time() {
        let status = |is: bool, reason: &str| PolicyStatus {
            conditions: Some(vec![condition(ACCEPTED, is, reason, String::new(), 1)]),
            ..PolicyStatus::default()
        };
        let first = with_times(status(true, "Accepted"), None);
        let time = |s: &PolicyStatus| s.conditions.as_ref().unwrap()[0].last_transition_time.clone();
        let second = with_times(status(true, "Overruled"), Some(&first));
        assert_eq!(time(&first), time(&second));
        assert!(is_same(&first, &status(true, "Accepted")) && !same_verdict(&first, &second));
        assert_ne!(time(&with_times(status(false, "Conflict"), Some(&first))), Time(jiff::Timestamp::UNIX_EPOCH));
    }
}
