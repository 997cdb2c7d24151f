//! What a node has programmed, in a few bytes: a digest over the policies that the node knows, and the names of the
//! policies that it could not program. The controller keeps the history of its own digests, and finds from a node's
//! digest how far that node is.
//!
//! Every node receives the policies of one kind in the same order, so a digest serves as a version. Unlike a
//! resourceVersion, a digest does not change when only a status is written, which the controller itself does.

use crate::change::{Change, ObjectKey};
use crate::hash::{HashMap, stable_hash};
use crate::object::Object;
use crate::policy::{PolicyKind, PolicyName};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of failing policies that a report names. Further ones are only counted.
pub const MAX_NAMED_POLICIES: usize = 32;
/// Maximum number of namespaces for which a report counts further failing policies.
const MAX_NAMESPACES: usize = 32;
/// Maximum length of the name of a namespace, in bytes.
const MAX_NAMESPACE_BYTES: usize = 63;
/// Maximum length of a reason, in bytes.
const MAX_REASON_BYTES: usize = 128;
/// Maximum length of a policy's kind, namespace and name, in bytes.
const MAX_TITLE_BYTES: usize = 64 + 63 + 253;
/// Number of digests that the history keeps.
const HISTORY_LENGTH: usize = 65_536;

/// A digest over the UID and generation of every policy of a kind. It does not depend on the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyDigest {
    pub count: u32,
    #[serde(with = "hex")]
    pub sum: u64,
}

/// A JSON number would lose the low bits.
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
pub struct FailingPolicy {
    /// `BalancingPolicy shop/api`.
    pub policy: String,
    /// The reason and message of the refusal.
    pub reason: String,
}

impl FailingPolicy {
    fn new(policy: &PolicyName, refusal: &Refusal) -> FailingPolicy {
        let mut reason = format!("{}: {}", refusal.reason, refusal.message);
        truncate(&mut reason);
        FailingPolicy { policy: policy.title(), reason }
    }

    fn namespace(&self) -> &str {
        let name = self.policy.split_once(' ').map_or("", |(_, name)| name);
        name.split_once('/').map_or("", |(namespace, _)| namespace)
    }
}

fn truncate(reason: &mut String) {
    let end = (0..=MAX_REASON_BYTES).rev().find(|end| reason.is_char_boundary(*end));
    reason.truncate(end.unwrap_or(0));
}

/// The report of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutReport {
    pub local_redirect: PolicyDigest,
    pub balancing: PolicyDigest,
    /// Policies that the node knows but could not program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<FailingPolicy>,
    /// Number of further failing policies, by namespace. Only policies of these namespaces may be among them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more_in: BTreeMap<String, u32>,
    /// Number of further failing policies of any namespace.
    #[serde(default)]
    pub more: u32,
}

impl RolloutReport {
    pub fn digest(&self, kind: PolicyKind) -> PolicyDigest {
        match kind {
            PolicyKind::LocalRedirect => self.local_redirect,
            PolicyKind::Balancing => self.balancing,
        }
    }

    /// The number of failing policies that are not named and may include one of this namespace.
    pub fn unnamed(&self, namespace: &str) -> u32 {
        self.more.saturating_add(self.more_in.get(namespace).copied().unwrap_or(0))
    }

    pub fn set_failing(&mut self, failing: Vec<FailingPolicy>) {
        let (named, unnamed) = name_in_turn(failing, FailingPolicy::namespace);
        (self.failing, self.more) = (named, 0);
        self.set_unnamed(unnamed);
    }

    fn set_unnamed(&mut self, mut counts: BTreeMap<String, u32>) {
        while counts.len() > MAX_NAMESPACES {
            self.more = self.more.saturating_add(counts.pop_last().map_or(0, |(_, count)| count));
        }
        self.more_in = counts;
    }

    /// Limits what a node may report: few policies, and short reasons.
    pub fn bounded(mut self) -> RolloutReport {
        let before = self.failing.len();
        self.failing.retain(|failing| failing.policy.len() <= MAX_TITLE_BYTES);
        self.failing.truncate(MAX_NAMED_POLICIES);
        self.more = self.more.saturating_add((before - self.failing.len()) as u32);
        self.failing.iter_mut().for_each(|failing| truncate(&mut failing.reason));
        let mut counts = std::mem::take(&mut self.more_in);
        counts.retain(|namespace, count| {
            let fits = namespace.len() <= MAX_NAMESPACE_BYTES;
            self.more = self.more.saturating_add(if fits { 0 } else { *count });
            fits
        });
        self.set_unnamed(counts);
        self
    }
}

/// Divides failing policies into those that a report names and the number of the others by namespace. Each namespace is
/// named in turn: a user with many failing policies must not hide those of other namespaces.
fn name_in_turn<T>(failing: Vec<T>, namespace: impl Fn(&T) -> &str) -> (Vec<T>, BTreeMap<String, u32>) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, T)> = Vec::with_capacity(failing.len());
    for policy in failing {
        let count = counts.entry(namespace(&policy).to_owned()).or_default();
        turns.push((*count, policy));
        *count += 1;
    }
    turns.sort_by_key(|(turn, _)| *turn);
    let rest = turns.split_off(MAX_NAMED_POLICIES.min(turns.len()));
    let mut unnamed: BTreeMap<String, u32> = BTreeMap::new();
    for (_, policy) in &rest {
        *unnamed.entry(namespace(policy).to_owned()).or_default() += 1;
    }
    (turns.into_iter().map(|(_, policy)| policy).collect(), unnamed)
}

/// Maintains the digests as policies are added and removed.
#[derive(Clone, Debug, Default)]
pub struct DigestTracker {
    known: HashMap<PolicyName, u64>,
    local_redirect: PolicyDigest,
    balancing: PolicyDigest,
}

impl DigestTracker {
    /// Returns the kind whose digest changed.
    pub fn apply(&mut self, change: &Change) -> Option<PolicyKind> {
        let (name, now) = match change {
            Change::Upsert(Object::Policy(policy)) => (&policy.name, Some(fingerprint(&policy.uid, policy.generation))),
            Change::Delete(ObjectKey::Policy(name)) => (name, None),
            _ => return None,
        };
        let before = match now {
            Some(now) => self.known.insert(name.clone(), now),
            None => self.known.remove(name),
        };
        if before == now {
            return None;
        }
        let sum = self.digest_mut(name.kind);
        before.into_iter().for_each(|old| (sum.count, sum.sum) = (sum.count - 1, sum.sum.wrapping_sub(old)));
        now.into_iter().for_each(|new| (sum.count, sum.sum) = (sum.count + 1, sum.sum.wrapping_add(new)));
        Some(name.kind)
    }

    fn digest_mut(&mut self, kind: PolicyKind) -> &mut PolicyDigest {
        match kind {
            PolicyKind::LocalRedirect => &mut self.local_redirect,
            PolicyKind::Balancing => &mut self.balancing,
        }
    }

    pub fn digest(&self, kind: PolicyKind) -> PolicyDigest {
        match kind {
            PolicyKind::LocalRedirect => self.local_redirect,
            PolicyKind::Balancing => self.balancing,
        }
    }

    /// A report with these refusals of policies. A policy with several refusals is reported with the first one.
    pub fn report_refusals(&self, mut refusals: Vec<(PolicyName, &Refusal)>) -> RolloutReport {
        refusals.sort_by(|(a, _), (b, _)| a.cmp(b));
        refusals.dedup_by(|(a, _), (b, _)| a == b);
        let (named, unnamed) = name_in_turn(refusals, |(policy, _)| &policy.namespace);
        let mut report =
            self.report(named.iter().map(|(policy, refusal)| FailingPolicy::new(policy, refusal)).collect());
        report.set_unnamed(unnamed);
        report
    }

    pub fn report(&self, failing: Vec<FailingPolicy>) -> RolloutReport {
        let mut report = RolloutReport {
            local_redirect: self.local_redirect,
            balancing: self.balancing,
            ..RolloutReport::default()
        };
        report.set_failing(failing);
        report
    }
}

/// The agent and the controller may be different versions, so this must never change. The bits are mixed because the
/// fingerprints are added up.
fn fingerprint(uid: &str, generation: i64) -> u64 {
    let hash = stable_hash(uid.bytes().chain([0]).chain(generation.to_le_bytes()));
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The digests of one kind, in the order in which the controller's state had them.
#[derive(Clone, Debug)]
pub struct DigestHistory {
    position: u64,
    positions: HashMap<PolicyDigest, u64>,
    order: VecDeque<(PolicyDigest, u64)>,
}

impl Default for DigestHistory {
    fn default() -> DigestHistory {
        let empty = PolicyDigest::default();
        DigestHistory {
            position: 0,
            positions: [(empty, 0)].into_iter().collect(),
            order: VecDeque::from([(empty, 0)]),
        }
    }
}

impl DigestHistory {
    /// Returns the position of the new digest.
    pub fn push(&mut self, sum: PolicyDigest) -> u64 {
        self.position += 1;
        self.positions.insert(sum, self.position);
        self.order.push_back((sum, self.position));
        while self.order.len() > HISTORY_LENGTH {
            let Some((old, position)) = self.order.pop_front() else { break };
            // The same digest may have occurred again later.
            if self.positions.get(&old) == Some(&position) {
                self.positions.remove(&old);
            }
        }
        self.position
    }

    /// The position up to which a node with this digest knows every change. `None` if the controller never had this
    /// digest, or too long ago.
    pub fn position(&self, sum: PolicyDigest) -> Option<u64> {
        self.positions.get(&sum).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::RefusalReason;

    #[test]
    fn the_fingerprint_is_the_same_in_every_build() {
        assert_eq!(fingerprint("8c0f2b8e-0d5c-4f0e-9f0a-1b2c3d4e5f60", 3), 0xd41e_2272_6146_ebb8);
        assert_ne!(fingerprint("a", 1), fingerprint("a", 2));
    }

    #[test]
    fn a_digest_shows_how_far_a_node_is() {
        let mut history = DigestHistory::default();
        let sums: Vec<PolicyDigest> = (1..=3).map(|n| PolicyDigest { count: n, sum: u64::from(n) * 7 }).collect();
        sums.iter().for_each(|sum| _ = history.push(*sum));
        assert_eq!((history.position(sums[0]), history.position(sums[2])), (Some(1), Some(3)));
        // The controller's state is the same as after the first push, so a node with this digest knows everything.
        history.push(sums[0]);
        assert_eq!(history.position(sums[0]), Some(4));
        assert_eq!(history.position(PolicyDigest { count: 9, sum: 9 }), None);
        (0..HISTORY_LENGTH as u64).for_each(|n| _ = history.push(PolicyDigest { count: 1, sum: n }));
        assert_eq!(history.position(sums[1]), None, "too long ago");
    }

    #[test]
    fn a_report_names_a_limited_number_of_policies() {
        let mut report =
            RolloutReport { balancing: PolicyDigest { count: 2, sum: u64::MAX - 1 }, ..RolloutReport::default() };
        let failing = |policy: String| FailingPolicy { policy, reason: "full".into() };
        let many = (0..40).map(|n| failing(format!("BalancingPolicy many/p{n}")));
        report.set_failing(many.chain([failing("BalancingPolicy one/p".into())]).collect());
        assert_eq!((report.failing.len(), report.more), (MAX_NAMED_POLICIES, 0));
        assert!(
            report.failing.iter().any(|failing| failing.policy == "BalancingPolicy one/p"),
            "each namespace in turn"
        );
        assert_eq!((report.unnamed("many"), report.unnamed("one"), report.unnamed("other")), (9, 0, 0));
        let wide = (0..100).map(|n| failing(format!("BalancingPolicy n{n}/p")));
        report.set_failing(wide.collect());
        assert_eq!((report.failing.len(), report.more_in.len(), report.more), (MAX_NAMED_POLICIES, MAX_NAMESPACES, 36));
    }

    #[test]
    fn a_refusal_is_reported_with_its_message() {
        let name = |name: &str| PolicyName {
            kind: PolicyKind::Balancing,
            cluster: "home".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        let refusal = |message: &str| Refusal::new(&name("a"), RefusalReason::NodeWithoutAddress, message);
        let (first, second, long) = (refusal("no entry address"), refusal("other"), refusal(&"ü".repeat(200)));
        let refusals = vec![(name("b"), &long), (name("a"), &first), (name("a"), &second)];
        let report = DigestTracker::default().report_refusals(refusals);
        assert_eq!((report.failing.len(), report.more), (2, 0));
        let wanted = FailingPolicy {
            policy: "BalancingPolicy shop/a".into(),
            reason: "nodeWithoutAddress: no entry address".into(),
        };
        assert_eq!(report.failing[0], wanted);
        assert!(report.failing[1].reason.len() <= MAX_REASON_BYTES);
    }

    #[test]
    fn a_received_report_is_limited_in_size() {
        let failing = |policy: String| FailingPolicy { policy, reason: "ü".repeat(1000) };
        let many = (0..40).map(|n| failing(n.to_string())).chain([failing("x".repeat(1000))]).collect();
        let more_in = (0..100).map(|n| (format!("n{n:03}"), 1)).chain([("x".repeat(1000), 1)]).collect();
        let report = RolloutReport { failing: many, more: 1, more_in, ..RolloutReport::default() }.bounded();
        assert_eq!((report.failing.len(), report.more), (MAX_NAMED_POLICIES, 10 + 69));
        assert_eq!(report.more_in.len(), MAX_NAMESPACES);
        assert!(report.failing.iter().all(|failing| failing.reason.len() == MAX_REASON_BYTES));
        let short = FailingPolicy { policy: "a".into(), reason: "full".into() };
        let report = RolloutReport { failing: vec![short.clone()], ..RolloutReport::default() }.bounded();
        assert_eq!((report.failing, report.more), (vec![short], 0));
    }
}
