//! Which node has which policy, from the nodes' reports: a sum a kind says up to which turn of ours a node has everything,
//! and a policy is where the turn is at least the one at which it became what it is.

use crate::judge::title;
use beeline_model::Name;
use beeline_model::fact::Fact;
use beeline_model::policy::{Policy, PolicyKind, PolicyName};
use beeline_model::report::{History, Report, Tally};
use beeline_model::selector::Labels;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct Member {
    labels: Option<Labels>,
    report: Option<Report>,
    /// Since when there is a report and no Node, as far as anybody looked.
    alone: Option<Instant>,
}

#[derive(Debug, Default)]
pub struct Census {
    tally: Tally,
    local_redirect: History,
    balancing: History,
    turns: HashMap<PolicyName, u64>,
    nodes: BTreeMap<Name, Member>,
    /// Somebody's place or number of nodes is another one since it was last asked.
    changed: bool,
}

/// How it stands with one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub wanted: usize,
    pub programmed: usize,
    /// Some that do not have it, or do not say.
    pub missing: Vec<(Name, Missing)>,
}

/// Why a node does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is not that far, or has said nothing yet.
    Pending,
    /// More fail there than it can name: whether this one does is unknown.
    Unnamed(u32),
    Failing(String),
}

/// So many are named.
const NAMED: usize = 3;
/// So long a report is kept whose Node nobody knows.
const ALONE: Duration = Duration::from_secs(300);

impl Census {
    pub fn apply(&mut self, fact: &Fact) {
        if let Some(kind) = self.tally.apply(fact) {
            let sum = self.tally.sum(kind);
            let turn = self.history_mut(kind).push(sum);
            match fact {
                Fact::Policy(policy) => drop(self.turns.insert(policy.name.clone(), turn)),
                Fact::PolicyGone(name) => drop(self.turns.remove(name)),
                _ => {}
            }
        }
        match fact {
            Fact::Node(node) => {
                let member = self.nodes.entry(node.name.clone()).or_default();
                member.alone = None;
                if member.labels.as_ref() != Some(&node.labels) {
                    member.labels = Some(node.labels.clone());
                    self.changed = true;
                }
            }
            Fact::NodeGone { name, .. } => {
                if let Some(member) = self.nodes.get_mut(name) {
                    member.labels = None;
                    self.changed = true;
                }
                self.nodes.retain(|_, member| member.labels.is_some() || member.report.is_some());
            }
            _ => {}
        }
    }

    pub fn report(&mut self, node: &str, report: Option<Report>) {
        let report = report.map(Report::bounded);
        let member = self.nodes.entry(node.into()).or_default();
        self.changed |= member.report != report;
        member.report = report;
        if member.labels.is_none() && member.report.is_none() {
            self.nodes.remove(node);
        }
    }

    /// Some reports of nodes that are no more: a Node may be unknown for a moment, and its agent does not know that its
    /// report is gone.
    pub fn stale(&mut self, now: Instant, most: usize) -> Vec<Name> {
        let alone = self.nodes.iter_mut().filter(|(_, member)| member.labels.is_none());
        let old = alone.filter_map(|(name, member)| {
            let since = *member.alone.get_or_insert(now);
            (now.saturating_duration_since(since) >= ALONE).then(|| name.clone())
        });
        let old: Vec<Name> = old.collect();
        old.into_iter().take(most).collect()
    }

    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// How many nodes there are.
    pub fn size(&self) -> usize {
        self.nodes.values().filter(|member| member.labels.is_some()).count()
    }

    pub fn count(&self, policy: &Policy) -> Count {
        let mut count = Count::default();
        let turn = self.turns.get(&policy.name).copied().unwrap_or(u64::MAX);
        let title = title(&policy.name);
        for (name, member) in &self.nodes {
            let Some(labels) = &member.labels else { continue };
            if !policy.nodes.as_ref().is_none_or(|selector| selector.matches(labels)) {
                continue;
            }
            count.wanted += 1;
            match self.missing(member, policy.name.kind, turn, &title) {
                None => count.programmed += 1,
                Some(why) if count.missing.len() < NAMED => count.missing.push((name.clone(), why)),
                Some(_) => {}
            }
        }
        count
    }

    /// `None`: it has it.
    fn missing(&self, member: &Member, kind: PolicyKind, turn: u64, title: &str) -> Option<Missing> {
        let Some(report) = &member.report else { return Some(Missing::Pending) };
        if self.history(kind).turn(report.sum(kind)).is_none_or(|known| known < turn) {
            return Some(Missing::Pending);
        }
        let failing = report.failing.iter().find(|failing| failing.policy == title);
        match failing {
            Some(failing) => Some(Missing::Failing(failing.reason.clone())),
            None if report.more > 0 => Some(Missing::Unnamed(report.more)),
            None => None,
        }
    }

    fn history(&self, kind: PolicyKind) -> &History {
        match kind {
            PolicyKind::LocalRedirect => &self.local_redirect,
            PolicyKind::Balancing => &self.balancing,
        }
    }

    fn history_mut(&mut self, kind: PolicyKind) -> &mut History {
        match kind {
            PolicyKind::LocalRedirect => &mut self.local_redirect,
            PolicyKind::Balancing => &mut self.balancing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::fact::Node;
    use beeline_model::report::Failing;

    #[test]
    fn who_names_too_few_speaks_for_nobody_else() {
        let mut census = Census::default();
        let policy = crate::judge::tests::policy(PolicyKind::Balancing, "x", 1, Some(&[80]));
        census.apply(&Fact::Policy(policy.clone()));
        census.apply(&Fact::Node(Node::named("local", "n")));
        assert_eq!(census.count(&policy).missing, [("n".into(), Missing::Pending)]);
        let mut tally = Tally::default();
        tally.apply(&Fact::Policy(policy.clone()));
        let failing = |policy: String| Failing { policy, reason: "full".into() };
        let others: Vec<Failing> = (0..40).map(|n| failing(n.to_string())).collect();
        census.report("n", Some(tally.report(others)));
        assert_eq!(census.count(&policy).missing, [("n".into(), Missing::Unnamed(8))]);
        census.report("n", Some(tally.report(vec![failing(title(&policy.name))])));
        assert_eq!(census.count(&policy).missing, [("n".into(), Missing::Failing("full".into()))]);
        census.report("n", Some(tally.report(Vec::new())));
        assert_eq!((census.count(&policy).programmed, census.count(&policy).missing), (1, Vec::new()));
    }

    #[test]
    fn a_report_outlives_its_node_for_minutes() {
        let (mut census, start) = (Census::default(), Instant::now());
        let node = || Fact::Node(Node::named("local", "n"));
        census.report("n", Some(Tally::default().report(Vec::new())));
        assert!(census.stale(start, 9).is_empty(), "its Node may not have been heard of");
        census.apply(&node());
        census.apply(&Fact::NodeGone { cluster: "local".into(), name: "n".into() });
        assert!(census.stale(start + ALONE, 9).is_empty() && census.stale(start + 2 * ALONE, 0).is_empty());
        assert_eq!(census.stale(start + 2 * ALONE, 9), ["n".into()]);
        census.apply(&node());
        assert!(census.stale(start + 9 * ALONE, 9).is_empty());
    }
}
