//! What a node has programmed, in a few bytes: a sum over the policies that it knows, and by name only those that it could
//! not program. The controller keeps the sums that its own knowledge went through, and so reads from a node's sum how far
//! that node is.
//!
//! One kind of policy comes to everybody in the same order, so a sum is as good as a version; and unlike a
//! resourceVersion it does not move when only a status is written (the controller's own answer would move it).

use crate::fact::Fact;
use crate::hash::{HashMap, lasting};
use crate::policy::{PolicyKind, PolicyName};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Policies by name that a report holds at most; beyond that their number has to do.
pub const NAMED: usize = 32;
/// Bytes of a reason.
const REASON: usize = 128;
/// Bytes of a policy's title: its kind, namespace and name.
const TITLE: usize = 64 + 63 + 253;
/// So far back a node may be and still be understood.
const REMEMBERED: usize = 65_536;

/// Over uid and generation of every policy of a kind. Order does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sum {
    pub count: u32,
    #[serde(with = "hex")]
    pub sum: u64,
}

/// JSON's numbers lose the lower bits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &u64, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{value:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
        u64::from_str_radix(&String::deserialize(d)?, 16).map_err(D::Error::custom)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// `BalancingPolicy shop/api`.
    pub policy: String,
    pub reason: String,
}

/// What one node says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub local_redirect: Sum,
    pub balancing: Sum,
    /// Known, but not in the kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<Failing>,
    /// How many more, of which nothing is said.
    #[serde(default)]
    pub more: u32,
}

impl Report {
    pub fn sum(&self, kind: PolicyKind) -> Sum {
        match kind {
            PolicyKind::LocalRedirect => self.local_redirect,
            PolicyKind::Balancing => self.balancing,
        }
    }

    pub fn set_failing(&mut self, mut failing: Vec<Failing>) {
        self.more = failing.len().saturating_sub(NAMED) as u32;
        failing.truncate(NAMED);
        self.failing = failing;
    }

    /// As whoever reads it takes it, whatever a node wrote: few policies, and few words of each.
    pub fn bounded(mut self) -> Report {
        let before = self.failing.len();
        self.failing.retain(|failing| failing.policy.len() <= TITLE);
        self.failing.truncate(NAMED);
        self.more = self.more.saturating_add((before - self.failing.len()) as u32);
        for failing in &mut self.failing {
            let end = (0..=REASON).rev().find(|end| failing.reason.is_char_boundary(*end));
            failing.reason.truncate(end.unwrap_or(0));
        }
        self
    }
}

/// Counts policies as they come and go.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    known: HashMap<PolicyName, u64>,
    local_redirect: Sum,
    balancing: Sum,
}

impl Tally {
    /// Says which kind's sum is another one now.
    pub fn apply(&mut self, fact: &Fact) -> Option<PolicyKind> {
        let (name, now) = match fact {
            Fact::Policy(policy) => (&policy.name, Some(fingerprint(&policy.uid, policy.generation))),
            Fact::PolicyGone(name) => (name, None),
            _ => return None,
        };
        let before = match now {
            Some(now) => self.known.insert(name.clone(), now),
            None => self.known.remove(name),
        };
        if before == now {
            return None;
        }
        let sum = self.sum_mut(name.kind);
        before.into_iter().for_each(|old| (sum.count, sum.sum) = (sum.count - 1, sum.sum.wrapping_sub(old)));
        now.into_iter().for_each(|new| (sum.count, sum.sum) = (sum.count + 1, sum.sum.wrapping_add(new)));
        Some(name.kind)
    }

    fn sum_mut(&mut self, kind: PolicyKind) -> &mut Sum {
        match kind {
            PolicyKind::LocalRedirect => &mut self.local_redirect,
            PolicyKind::Balancing => &mut self.balancing,
        }
    }

    pub fn sum(&self, kind: PolicyKind) -> Sum {
        match kind {
            PolicyKind::LocalRedirect => self.local_redirect,
            PolicyKind::Balancing => self.balancing,
        }
    }

    pub fn report(&self, failing: Vec<Failing>) -> Report {
        let mut report = Report { local_redirect: self.local_redirect, balancing: self.balancing, ..Report::default() };
        report.set_failing(failing);
        report
    }
}

/// Agent and controller may be of different builds: never to be changed. Mixed, since it is summed up.
fn fingerprint(uid: &str, generation: i64) -> u64 {
    let hash = lasting(uid.bytes().chain([0]).chain(generation.to_le_bytes()));
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The sums of one kind, in the order in which the controller came through them.
#[derive(Clone, Debug)]
pub struct History {
    turn: u64,
    turns: HashMap<Sum, u64>,
    order: VecDeque<(Sum, u64)>,
}

impl Default for History {
    fn default() -> History {
        let empty = Sum::default();
        History { turn: 0, turns: [(empty, 0)].into_iter().collect(), order: VecDeque::from([(empty, 0)]) }
    }
}

impl History {
    /// The turn at which the sum became this one.
    pub fn push(&mut self, sum: Sum) -> u64 {
        self.turn += 1;
        self.turns.insert(sum, self.turn);
        self.order.push_back((sum, self.turn));
        while self.order.len() > REMEMBERED {
            let Some((old, turn)) = self.order.pop_front() else { break };
            // It may have come back since.
            if self.turns.get(&old) == Some(&turn) {
                self.turns.remove(&old);
            }
        }
        self.turn
    }

    /// Up to which turn somebody with this sum knows everything; `None`: it never was so here, or too long ago.
    pub fn turn(&self, sum: Sum) -> Option<u64> {
        self.turns.get(&sum).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_what_other_builds_compute() {
        assert_eq!(fingerprint("8c0f2b8e-0d5c-4f0e-9f0a-1b2c3d4e5f60", 3), 0xd41e_2272_6146_ebb8);
        assert_ne!(fingerprint("a", 1), fingerprint("a", 2));
    }

    #[test]
    fn a_sum_tells_how_far_somebody_is() {
        let mut history = History::default();
        let sums: Vec<Sum> = (1..=3).map(|n| Sum { count: n, sum: u64::from(n) * 7 }).collect();
        sums.iter().for_each(|sum| _ = history.push(*sum));
        assert_eq!((history.turn(sums[0]), history.turn(sums[2])), (Some(1), Some(3)));
        // What was taken back is where it was: whoever has this sum has everything.
        history.push(sums[0]);
        assert_eq!(history.turn(sums[0]), Some(4));
        assert_eq!(history.turn(Sum { count: 9, sum: 9 }), None);
        (0..REMEMBERED as u64).for_each(|n| _ = history.push(Sum { count: 1, sum: n }));
        assert_eq!(history.turn(sums[1]), None, "too long ago");
    }

    #[test]
    fn a_report_names_few() {
        let mut report = Report { balancing: Sum { count: 2, sum: u64::MAX - 1 }, ..Report::default() };
        report.set_failing((0..40).map(|n| Failing { policy: n.to_string(), reason: "full".into() }).collect());
        assert_eq!((report.failing.len(), report.more), (NAMED, 8));
    }

    #[test]
    fn a_report_is_read_within_bounds() {
        let failing = |policy: String| Failing { policy, reason: "ü".repeat(1000) };
        let many = (0..40).map(|n| failing(n.to_string())).chain([failing("x".repeat(1000))]).collect();
        let report = Report { failing: many, more: 1, ..Report::default() }.bounded();
        assert_eq!((report.failing.len(), report.more), (NAMED, 10));
        assert!(report.failing.iter().all(|failing| failing.reason.len() == REASON));
        let short = Failing { policy: "a".into(), reason: "full".into() };
        let report = Report { failing: vec![short.clone()], ..Report::default() }.bounded();
        assert_eq!((report.failing, report.more), (vec![short], 0));
    }
}
