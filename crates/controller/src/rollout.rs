//! Which nodes have programmed which policy, from the nodes' reports. A report has a digest for each kind of policy, which
//! tells the position in this controller's history up to which the node knows every change. A node has a policy if that
//! position is at least the one at which the policy last changed.

use crate::validation::title;
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

/// Why a node does not count as programmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingReason {
    /// The node has not reported this state yet.
    Pending,
    /// The node reports this many failing policies without naming them, so this policy may be one of them.
    Unnamed(u32),
    Failing(String),
}

impl RolloutTracker {
    pub fn apply(&mut self, change: &Change) {
        if let Some(kind) = self.digests.apply(change) {
            let digest = self.digests.digest(kind);
            let position = self.history_mut(kind).push(digest);
            match change {
                Change::Upsert(Object::Policy(policy)) => drop(self.positions.insert(policy.name.clone(), position)),
                Change::Delete(ObjectKey::Policy(name)) => drop(self.positions.remove(name)),
                _ => {}
            }
        }
        match change {
            Change::Upsert(Object::Node(node)) => self.upsert_node(node),
            Change::Delete(ObjectKey::Node { name, .. }) => self.remove_node(name),
            _ => {}
        }
    }

    fn upsert_node(&mut self, node: &Node) {
        let record = self.nodes.entry(node.name.clone()).or_default();
        record.orphaned_since = None;
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

    pub fn node_count(&self) -> usize {
        self.nodes.values().filter(|record| record.labels.is_some()).count()
    }

    pub fn rollout(&self, policy: &Policy) -> Rollout {
        let mut rollout = Rollout::default();
        let position = self.positions.get(&policy.name).copied().unwrap_or(u64::MAX);
        let title = title(&policy.name);
        for (name, record) in &self.nodes {
            let Some(labels) = &record.labels else { continue };
            if !policy.nodes.as_ref().is_none_or(|selector| selector.matches(labels)) {
                continue;
            }
            rollout.wanted += 1;
            match self.missing_reason(record, policy.name.kind, position, &title) {
                None => rollout.programmed += 1,
                Some(reason) if rollout.missing.len() < MAX_NAMED_NODES => rollout.missing.push((name.clone(), reason)),
                Some(_) => {}
            }
        }
        rollout
    }

    /// `None` if the node has programmed the policy.
    fn missing_reason(
        &self,
        record: &NodeRecord,
        kind: PolicyKind,
        position: u64,
        title: &str,
    ) -> Option<MissingReason> {
        let Some(report) = &record.report else { return Some(MissingReason::Pending) };
        if self.history(kind).position(report.digest(kind)).is_none_or(|reported| reported < position) {
            return Some(MissingReason::Pending);
        }
        let failing = report.failing.iter().find(|failing| failing.policy == title);
        match failing {
            Some(failing) => Some(MissingReason::Failing(failing.reason.clone())),
            None if report.more > 0 => Some(MissingReason::Unnamed(report.more)),
            None => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::rollout::FailingPolicy;

    fn upsert_node() -> Change {
        Change::Upsert(Object::Node(Node::named("local", "n")))
    }

    #[test]
    fn a_report_with_unnamed_failures_counts_for_no_other_policy() {
        let mut tracker = RolloutTracker::default();
        let policy = crate::validation::tests::policy(PolicyKind::Balancing, "x", 1, Some(&[80]));
        let upsert_policy = Change::Upsert(Object::Policy(policy.clone()));
        tracker.apply(&upsert_policy);
        tracker.apply(&upsert_node());
        assert_eq!(tracker.rollout(&policy).missing, [("n".into(), MissingReason::Pending)]);
        let mut digests = DigestTracker::default();
        digests.apply(&upsert_policy);
        let failing = |policy: String| FailingPolicy { policy, reason: "full".into() };
        let others: Vec<FailingPolicy> = (0..40).map(|n| failing(n.to_string())).collect();
        tracker.set_report("n", Some(digests.report(others)));
        assert_eq!(tracker.rollout(&policy).missing, [("n".into(), MissingReason::Unnamed(8))]);
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
        tracker.apply(&upsert_node());
        tracker.apply(&Change::Delete(ObjectKey::Node { cluster: "local".into(), name: "n".into() }));
        assert!(tracker.orphaned_reports(start + ORPHAN_TIMEOUT, 9).is_empty());
        assert!(tracker.orphaned_reports(start + 2 * ORPHAN_TIMEOUT, 0).is_empty());
        assert_eq!(tracker.orphaned_reports(start + 2 * ORPHAN_TIMEOUT, 9), ["n".into()]);
        tracker.apply(&upsert_node());
        assert!(tracker.orphaned_reports(start + 9 * ORPHAN_TIMEOUT, 9).is_empty());
    }
}
