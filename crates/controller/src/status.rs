//! The status of every policy, kept true: what it should say, and a writer that brings it there.
//!
//! A status is written into the policy, and every agent watches policies: one write is as many events as there are nodes.
//! So conditions go first, counts after them, and both within what the cluster's size allows.

use crate::judge::Finding;
use crate::world::World;
use beeline_cluster::policy::{ACCEPTED, API_VERSION, NodeCount, PROGRAMMED, PolicyStatus};
use beeline_model::policy::{Policy, PolicyKind, PolicyName, RedirectMode, Target};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Events a second that statuses may cause at all agents together.
const EVENTS: f64 = 20_000.0;
const TICK: Duration = Duration::from_millis(250);
/// Reports of nodes come one by one; what follows from them is counted this often, and in large clusters every ten
/// seconds.
const COUNT: Duration = Duration::from_secs(2);
const PAGE: u32 = 500;

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
        Ok(_) if count.wanted == 0 => (false, "NoNodes", "no node matches nodeLabelSelector".to_owned()),
        Ok(_) if missing == 0 => (true, "Programmed", String::new()),
        Ok(_) => {
            let name = |(node, why): &(beeline_model::Name, Option<String>)| match why {
                Some(why) => format!("{node} ({why})"),
                None => node.to_string(),
            };
            let named: Vec<String> = count.missing.iter().map(name).collect();
            let more = if missing > named.len() { ", ..." } else { "" };
            let failed = count.missing.iter().any(|(_, why)| why.is_some());
            let reason = if failed { "Failing" } else { "Pending" };
            (false, reason, format!("{missing} of {} nodes do not have it: {}{more}", count.wanted, named.join(", ")))
        }
    };
    condition(PROGRAMMED, status, reason, message, policy.generation)
}

fn condition(kind: &str, status: bool, reason: &str, message: String, generation: i64) -> Condition {
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

/// Tokens for writes.
struct Budget {
    tokens: f64,
    at: Instant,
}

impl Budget {
    fn refill(&mut self, nodes: usize) {
        let rate = rate(nodes);
        self.tokens = (self.tokens + rate * self.at.elapsed().as_secs_f64()).min(rate.max(1.0) * 2.0);
        self.at = Instant::now();
    }

    fn take(&mut self) -> bool {
        let has = self.tokens >= 1.0;
        self.tokens -= if has { 1.0 } else { 0.0 };
        has
    }
}

/// Writes a second: a hundred in a small cluster, four at 5,000 nodes.
pub fn rate(nodes: usize) -> f64 {
    EVENTS / (nodes.max(200) as f64)
}

pub struct Writer {
    client: Client,
    world: Arc<Mutex<World>>,
    /// What is written, as far as we know, with the uid of the policy that it is written in.
    written: BTreeMap<PolicyName, (Box<str>, PolicyStatus)>,
    urgent: BTreeSet<PolicyName>,
    later: BTreeSet<PolicyName>,
    budget: Budget,
    counted: Instant,
}

impl Writer {
    pub fn new(client: Client, world: Arc<Mutex<World>>) -> Writer {
        Writer {
            client,
            world,
            written: BTreeMap::new(),
            urgent: BTreeSet::new(),
            later: BTreeSet::new(),
            budget: Budget { tokens: 0.0, at: Instant::now() },
            counted: Instant::now(),
        }
    }

    pub async fn run(mut self, mut leader: watch::Receiver<bool>) -> anyhow::Result<()> {
        loop {
            leader.wait_for(|leads| *leads).await?;
            match self.load().await {
                Ok(()) => self.with(World::mark_statuses),
                Err(error) => {
                    tracing::warn!("the policies' statuses cannot be read: {error}");
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    continue;
                }
            }
            while *leader.borrow() {
                self.round(&leader).await;
                tokio::time::sleep(TICK).await;
            }
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut World) -> T) -> T {
        work(&mut self.world.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What another leader, or an earlier run of ours, has written.
    async fn load(&mut self) -> Result<(), kube::Error> {
        self.written.clear();
        for kind in PolicyKind::BOTH {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource(kind));
            let mut params = ListParams::default().limit(PAGE);
            loop {
                let page = api.list(&params).await?;
                page.items.iter().for_each(|object| self.learn(kind, object));
                params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
                if params.continue_token.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn learn(&mut self, kind: PolicyKind, object: &DynamicObject) {
        let meta = &object.metadata;
        let (Some(namespace), Some(name), Some(uid)) = (&meta.namespace, &meta.name, &meta.uid) else { return };
        let status = object.data.get("status").cloned().unwrap_or_default();
        let Ok(status) = serde_json::from_value::<PolicyStatus>(status) else { return };
        let cluster = crate::world::CLUSTER.into();
        let name = PolicyName { kind, cluster, namespace: namespace.as_str().into(), name: name.as_str().into() };
        self.written.insert(name, (uid.as_str().into(), status));
    }

    async fn round(&mut self, leader: &watch::Receiver<bool>) {
        self.sort();
        self.budget.refill(self.with(|world| world.census.size()));
        while *leader.borrow() && (!self.urgent.is_empty() || !self.later.is_empty()) && self.budget.take() {
            let Some(name) = self.urgent.pop_first().or_else(|| self.later.pop_first()) else { return };
            if let Err(error) = self.write(&name).await {
                tracing::warn!("the status of {name} cannot be written: {error}");
                self.later.insert(name);
                return tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// What may have changed: at once if a verdict did, else in its turn.
    fn sort(&mut self) {
        let size = self.with(|world| world.census.size());
        let count = self.counted.elapsed() >= COUNT.mul_f64((size as f64 / 200.0).clamp(1.0, 5.0));
        let found: Vec<(PolicyName, Option<PolicyStatus>, Box<str>)> = {
            let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
            if !world.synced {
                return;
            }
            if count && world.census.take_changed() {
                world.mark_statuses();
            }
            let names = std::mem::take(&mut world.status_dirty);
            let status = |name: PolicyName| match world.policy(&name) {
                Some(policy) => (name, Some(world.status(policy)), policy.uid.clone()),
                None => (name, None, "".into()),
            };
            names.into_iter().map(status).collect()
        };
        if count {
            self.counted = Instant::now();
        }
        for (name, wanted, uid) in found {
            self.queue(name, wanted, &uid);
        }
    }

    fn queue(&mut self, name: PolicyName, wanted: Option<PolicyStatus>, uid: &str) {
        let Some(wanted) = wanted else {
            self.written.remove(&name);
            self.urgent.remove(&name);
            self.later.remove(&name);
            return;
        };
        let written = self.written.get(&name).filter(|(of, _)| **of == *uid).map(|(_, status)| status);
        match written {
            Some(status) if is_same(status, &wanted) => {}
            Some(status) if same_verdict(status, &wanted) => drop(self.later.insert(name)),
            _ => drop(self.urgent.insert(name)),
        }
    }

    async fn write(&mut self, name: &PolicyName) -> Result<(), kube::Error> {
        let found = self.with(|world| world.policy(name).map(|policy| (policy.uid.clone(), world.status(policy))));
        let Some((uid, wanted)) = found else { return Ok(()) };
        let before = self.written.get(name).filter(|(of, _)| *of == uid).map(|(_, status)| status);
        if before.is_some_and(|before| is_same(before, &wanted)) {
            return Ok(());
        }
        let status = with_times(wanted, before);
        // Of another policy under this name nothing is said.
        let object = serde_json::json!({
            "apiVersion": API_VERSION,
            "kind": name.kind.to_string(),
            "metadata": { "name": &*name.name, "namespace": &*name.namespace, "uid": &*uid },
            "status": status,
        });
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &name.namespace, &resource(name.kind));
        let params = PatchParams::apply("beeline-controller").force();
        match api.patch_status(&name.name, &params, &Patch::Apply(object)).await {
            Ok(_) => drop(self.written.insert(name.clone(), (uid, status))),
            // Deleted, or made again: the watch tells.
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
        let mut budget = Budget { tokens: 1.5, at: Instant::now() };
        assert!(budget.take() && !budget.take());
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
