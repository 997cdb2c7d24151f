//! Which policies and nodes changed so recently that reports about them are still to come. An agent reports at most once in
//! `--report-interval` (30 s), after a random part of it, so a healthy node may need a minute.

use beeline_model::Name;
use beeline_model::policy::PolicyName;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a report may take.
pub const REPORT_TIMEOUT: Duration = Duration::from_secs(90);

/// What reports are awaited about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReportSubject {
    /// The policy was created or changed.
    Policy(PolicyName),
    /// The node was added.
    Node(Name),
}

#[derive(Debug, Default)]
pub struct ReportWaits {
    since: HashMap<ReportSubject, Instant>,
    /// In the order of time. An entry that differs from `since` is outdated.
    order: VecDeque<(Instant, ReportSubject)>,
}

impl ReportWaits {
    pub fn start(&mut self, subject: ReportSubject, now: Instant) {
        self.since.insert(subject.clone(), now);
        self.order.push_back((now, subject));
    }

    pub fn stop(&mut self, subject: &ReportSubject) {
        self.since.remove(subject);
    }

    pub fn is_waiting(&self, subject: &ReportSubject) -> bool {
        self.since.contains_key(subject)
    }

    /// Removes the subjects whose reports are overdue, and returns them.
    pub fn take_overdue(&mut self, now: Instant) -> Vec<ReportSubject> {
        let mut overdue = Vec::new();
        while let Some((since, _)) = self.order.front()
            && now.saturating_duration_since(*since) >= REPORT_TIMEOUT
        {
            let Some((since, subject)) = self.order.pop_front() else { break };
            if self.since.get(&subject) == Some(&since) {
                self.since.remove(&subject);
                overdue.push(subject);
            }
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_that_changes_again_is_awaited_longer() {
        let (mut waits, start) = (ReportWaits::default(), Instant::now());
        let [a, b, c] = ["a", "b", "c"].map(|name| ReportSubject::Node(name.into()));
        [&a, &b, &c].into_iter().for_each(|subject| waits.start(subject.clone(), start));
        waits.start(a.clone(), start + REPORT_TIMEOUT / 2);
        waits.stop(&c);
        assert_eq!(waits.take_overdue(start + REPORT_TIMEOUT / 2), []);
        assert_eq!(waits.take_overdue(start + REPORT_TIMEOUT), std::slice::from_ref(&b));
        assert!(waits.is_waiting(&a) && !waits.is_waiting(&b) && !waits.is_waiting(&c));
        assert_eq!(waits.take_overdue(start + 2 * REPORT_TIMEOUT), [a]);
        assert!(waits.order.is_empty() && waits.since.is_empty());
    }
}
