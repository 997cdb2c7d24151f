//! Which nodes have programmed which policy, from the nodes' reports. A report has a digest for each kind of policy, which
//! tells the position in this controller's history up to which the node knows every change. A node has a policy if that
//! position is at least the one at which the policy last changed.

use crate::report_wait::{ReportSubject, ReportWaits};
use beeline_model::Name;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{Node, Object};
use beeline_model::policy::{Policy, PolicyKind, PolicyName};
use beeline_model::rollout::{DigestHistory, DigestTracker, RolloutReport};
use beeline_model::selector::Labels;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Number of nodes that a status names.
const MAX_NAMED_NODES: usize = 3;
/// A report whose Node does not exist is kept this long.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
struct NodeRecord {
    /// `None` if the Node does not exist, and only its report does.
    labels: Option<Labels>,
    report: Option<RolloutReport>,
    /// Since when the report has been seen without its Node.
    orphaned_since: Option<Instant>,
}

#[derive(Debug, Default)]
pub struct RolloutTracker {
    digests: DigestTracker,
    local_redirect: DigestHistory,
    balancing: DigestHistory,
    /// The position in the history at which each policy last changed.
    positions: HashMap<PolicyName, u64>,
    nodes: BTreeMap<Name, NodeRecord>,
    waits: ReportWaits,
    /// Some rollout may have changed since `take_changed`.
    changed: bool,
}

/// The rollout of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// Number of nodes that should have the policy.
    pub wanted: usize,
    /// Number of nodes that have it.
    pub programmed: usize,
    /// Some of the nodes that do not have it.
    pub missing: Vec<(Name, MissingReason)>,
}

impl Rollout {
    /// Nodes with a failure are named before nodes that only have not reported.
    fn add_missing(&mut self, node: &Name, reason: MissingReason) {
        self.missing.push((node.clone(), reason));
        self.missing.sort_by_key(|(_, reason)| reason.rank());
        self.missing.truncate(MAX_NAMED_NODES);
    }
}

/// Why a node does not count as programmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingReason {
    /// The policy or the node is new, and the node's report is still to come.
    Awaited,
    /// The node has not reported this state in time.
    Pending,
    /// The node reports this many failing policies without naming them, so this policy may be one of them.
    Unnamed(u32),
    Failing(String),
}

impl MissingReason {
    fn rank(&self) -> u8 {
        match self {
            MissingReason::Failing(_) => 0,
            MissingReason::Unnamed(_) => 1,
            MissingReason::Pending => 2,
            MissingReason::Awaited => 3,
        }
    }
}

impl RolloutTracker {
    pub fn apply(&mut self, change: &Change, now: Instant) {
        if let Some(kind) = self.digests.apply(change) {
            let digest = self.digests.digest(kind);
            let position = self.history_mut(kind).push(digest);
            match change {
                Change::Upsert(Object::Policy(policy)) => {
                    self.positions.insert(policy.name.clone(), position);
                    self.waits.start(ReportSubject::Policy(policy.name.clone()), now);
                }
                Change::Delete(ObjectKey::Policy(name)) => {
                    self.positions.remove(name);
                    self.waits.stop(&ReportSubject::Policy(name.clone()));
                }
                _ => {}
            }
        }
        match change {
            Change::Upsert(Object::Node(node)) => self.upsert_node(node, now),
            Change::Delete(ObjectKey::Node { name, .. }) => self.remove_node(name),
            _ => {}
        }
    }

    fn upsert_node(&mut self, node: &Node, now: Instant) {
        let record = self.nodes.entry(node.name.clone()).or_default();
        record.orphaned_since = None;
        if record.labels.is_none() {
            self.waits.start(ReportSubject::Node(node.name.clone()), now);
        }
        if record.labels.as_ref() != Some(&node.labels) {
            record.labels = Some(node.labels.clone());
            self.changed = true;
        }
    }

    fn remove_node(&mut self, name: &str) {
        if let Some(record) = self.nodes.get_mut(name) {
            record.labels = None;
            self.changed = true;
        }
        self.waits.stop(&ReportSubject::Node(name.into()));
        self.nodes.retain(|_, record| record.labels.is_some() || record.report.is_some());
    }

    /// Sets or removes the report of a node.
    pub fn set_report(&mut self, node: &str, report: Option<RolloutReport>) {
        let report = report.map(RolloutReport::bounded);
        let record = self.nodes.entry(node.into()).or_default();
        self.changed |= record.report != report;
        record.report = report;
        if record.labels.is_none() && record.report.is_none() {
            self.nodes.remove(node);
        }
    }

    /// Up to `max` nodes that no longer exist but have a report. A Node may be missing for a moment only, and its agent
    /// does not notice that its report was deleted, so a report is returned only after a while.
    pub fn orphaned_reports(&mut self, now: Instant, max: usize) -> Vec<Name> {
        let orphans = self.nodes.iter_mut().filter(|(_, record)| record.labels.is_none());
        let expired = orphans.filter_map(|(name, record)| {
            let since = *record.orphaned_since.get_or_insert(now);
            (now.saturating_duration_since(since) >= ORPHAN_TIMEOUT).then(|| name.clone())
        });
        let expired: Vec<Name> = expired.collect();
        expired.into_iter().take(max).collect()
    }

    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The policies whose reports are overdue now.
    pub fn take_overdue(&mut self, now: Instant) -> Vec<PolicyName> {
        let mut policies = Vec::new();
        for subject in self.waits.take_overdue(now) {
            match subject {
                ReportSubject::Policy(name) => policies.push(name),
                ReportSubject::Node(_) => self.changed = true,
            }
        }
        policies
    }

    pub fn node_count(&self) -> usize {
        self.nodes.values().filter(|record| record.labels.is_some()).count()
    }

    pub fn rollout(&self, policy: &Policy) -> Rollout {
        let mut rollout = Rollout::default();
        let position = self.positions.get(&policy.name).copied().unwrap_or(u64::MAX);
        let is_new = self.waits.is_waiting(&ReportSubject::Policy(policy.name.clone()));
        for (name, record) in &self.nodes {
            let Some(labels) = &record.labels else { continue };
            if !policy.nodes.as_ref().is_none_or(|selector| selector.matches(labels)) {
                continue;
            }
            rollout.wanted += 1;
            match self.missing_reason(record, &policy.name, position) {
                None => rollout.programmed += 1,
                Some(MissingReason::Pending) if is_new || self.is_new_node(name) => {
                    rollout.add_missing(name, MissingReason::Awaited);
                }
                Some(reason) => rollout.add_missing(name, reason),
            }
        }
        rollout
    }

    fn is_new_node(&self, name: &Name) -> bool {
        self.waits.is_waiting(&ReportSubject::Node(name.clone()))
    }

    /// `None` if the node has programmed the policy.
    fn missing_reason(&self, record: &NodeRecord, policy: &PolicyName, position: u64) -> Option<MissingReason> {
        let Some(report) = &record.report else { return Some(MissingReason::Pending) };
        let kind = policy.kind;
        if self.history(kind).position(report.digest(kind)).is_none_or(|reported| reported < position) {
            return Some(MissingReason::Pending);
        }
        let failing = report.failing.iter().find(|failing| is_title(&failing.policy, policy));
        match (failing, report.unnamed(&policy.namespace)) {
            (Some(failing), _) => Some(MissingReason::Failing(failing.reason.clone())),
            (None, 0) => None,
            (None, unnamed) => Some(MissingReason::Unnamed(unnamed)),
        }
    }

    fn history(&self, kind: PolicyKind) -> &DigestHistory {
        match kind {
            PolicyKind::LocalRedirect => &self.local_redirect,
            PolicyKind::Balancing => &self.balancing,
        }
    }

    fn history_mut(&mut self, kind: PolicyKind) -> &mut DigestHistory {
        match kind {
            PolicyKind::LocalRedirect => &mut self.local_redirect,
            PolicyKind::Balancing => &mut self.balancing,
        }
    }
}

/// Whether the text is the policy's title. Compares without allocating, for each policy on each node.
fn is_title(text: &str, policy: &PolicyName) -> bool {
    let name = text.strip_prefix(policy.kind.as_str()).and_then(|rest| rest.strip_prefix(' '));
    let name = name.and_then(|rest| rest.strip_prefix(&*policy.namespace)).and_then(|rest| rest.strip_prefix('/'));
    name == Some(&*policy.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report_wait::REPORT_TIMEOUT;
    use crate::validation::title;
    use beeline_model::rollout::FailingPolicy;

    fn upsert_node(name: &str) -> Change {
        Change::Upsert(Object::Node(Node::named("local", name)))
    }

    #[test]
    fn a_report_with_unnamed_failures_counts_for_no_other_policy() {
        let (mut tracker, start) = (RolloutTracker::default(), Instant::now());
        let policy = crate::validation::tests::policy(PolicyKind::Balancing, "x", 1, Some(&[80]));
        let upsert_policy = Change::Upsert(Object::Policy(policy.clone()));
        tracker.apply(&upsert_policy, start);
        tracker.apply(&upsert_node("n"), start);
        assert_eq!(tracker.rollout(&policy).missing, [("n".into(), MissingReason::Awaited)]);
        let mut digests = DigestTracker::default();
        digests.apply(&upsert_policy);
        let failing = |policy: String| FailingPolicy { policy, reason: "full".into() };
        let others = |namespace: &str| (0..40).map(|n| failing(format!("BalancingPolicy {namespace}/{n}"))).collect();
        tracker.set_report("n", Some(digests.report(others("default"))));
        assert_eq!(tracker.rollout(&policy).missing, [("n".into(), MissingReason::Unnamed(8))]);
        tracker.set_report("n", Some(digests.report(others("another"))));
        assert_eq!(tracker.rollout(&policy).missing, [], "failures of another namespace do not count");
        tracker.set_report("n", Some(digests.report(vec![failing(title(&policy.name))])));
        assert_eq!(tracker.rollout(&policy).missing, [("n".into(), MissingReason::Failing("full".into()))]);
        tracker.set_report("n", Some(digests.report(Vec::new())));
        assert_eq!((tracker.rollout(&policy).programmed, tracker.rollout(&policy).missing), (1, Vec::new()));
    }

    #[test]
    fn a_report_is_kept_for_minutes_after_its_node_is_deleted() {
        let (mut tracker, start) = (RolloutTracker::default(), Instant::now());
        tracker.set_report("n", Some(DigestTracker::default().report(Vec::new())));
        assert!(tracker.orphaned_reports(start, 9).is_empty(), "the Node may not have been listed yet");
        tracker.apply(&upsert_node("n"), start);
        tracker.apply(&Change::Delete(ObjectKey::Node { cluster: "local".into(), name: "n".into() }), start);
        assert!(tracker.orphaned_reports(start + ORPHAN_TIMEOUT, 9).is_empty());
        assert!(tracker.orphaned_reports(start + 2 * ORPHAN_TIMEOUT, 0).is_empty());
        assert_eq!(tracker.orphaned_reports(start + 2 * ORPHAN_TIMEOUT, 9), ["n".into()]);
        tracker.apply(&upsert_node("n"), start);
        assert!(tracker.orphaned_reports(start + 9 * ORPHAN_TIMEOUT, 9).is_empty());
    }

    #[test]
    fn reports_are_awaited_for_a_while_after_a_policy_or_node_is_new() {
        let (mut tracker, start) = (RolloutTracker::default(), Instant::now());
        let policy = crate::validation::tests::policy(PolicyKind::Balancing, "x", 1, Some(&[80]));
        tracker.apply(&Change::Upsert(Object::Policy(policy.clone())), start);
        tracker.apply(&upsert_node("a"), start);
        let missing = |tracker: &RolloutTracker| -> Vec<MissingReason> {
            tracker.rollout(&policy).missing.into_iter().map(|(_, reason)| reason).collect()
        };
        assert_eq!(missing(&tracker), [MissingReason::Awaited]);
        let late = start + REPORT_TIMEOUT;
        tracker.take_changed();
        assert_eq!(tracker.take_overdue(late), std::slice::from_ref(&policy.name));
        assert!(tracker.take_changed(), "the node is overdue, for all policies");
        tracker.apply(&upsert_node("b"), late);
        assert_eq!(missing(&tracker), [MissingReason::Pending, MissingReason::Awaited]);
        let changed = Policy { generation: 2, ..policy.clone() };
        tracker.apply(&Change::Upsert(Object::Policy(changed)), late);
        assert_eq!(missing(&tracker), [MissingReason::Awaited, MissingReason::Awaited]);
    }

    #[test]
    fn a_failing_node_is_named_before_nodes_without_a_report() {
        let (mut tracker, start) = (RolloutTracker::default(), Instant::now());
        let policy = crate::validation::tests::policy(PolicyKind::Balancing, "x", 1, Some(&[80]));
        let upsert_policy = Change::Upsert(Object::Policy(policy.clone()));
        tracker.apply(&upsert_policy, start);
        ["a", "b", "c", "d"].iter().for_each(|name| tracker.apply(&upsert_node(name), start));
        let mut digests = DigestTracker::default();
        digests.apply(&upsert_policy);
        let failing = FailingPolicy { policy: title(&policy.name), reason: "full".into() };
        tracker.set_report("d", Some(digests.report(vec![failing])));
        let rollout = tracker.rollout(&policy);
        assert_eq!((rollout.missing.len(), rollout.wanted), (MAX_NAMED_NODES, 4));
        assert_eq!(rollout.missing[0], ("d".into(), MissingReason::Failing("full".into())));
    }
}
