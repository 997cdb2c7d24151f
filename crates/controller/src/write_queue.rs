//! A queue of objects to write that is fair between namespaces: namespaces are served in turn. A failed write is
//! retried after its own back-off and delays no other object. An object that was just written is not written again for
//! a while, so that many changes become one write. Plain state; the caller passes the time.

use beeline_model::Name;
use beeline_model::object::SliceName;
use beeline_model::policy::PolicyName;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// A key of the queue.
pub trait Namespaced: Ord + Clone {
    fn namespace(&self) -> &Name;
}

impl Namespaced for SliceName {
    fn namespace(&self) -> &Name {
        &self.namespace
    }
}

impl Namespaced for PolicyName {
    fn namespace(&self) -> &Name {
        &self.namespace
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    High,
    Low,
}

/// The wait after the first failure. It doubles with each further failure.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// The keys of one priority, by namespace.
#[derive(Debug)]
struct RoundRobin<K> {
    waiting: BTreeMap<Name, BTreeSet<K>>,
    /// The namespace that was served last.
    last: Option<Name>,
}

/// A key that is being written, or must not be written yet.
#[derive(Debug)]
struct HeldKey {
    /// `None` while the key is being written.
    until: Option<Instant>,
    /// Set if the key must be enqueued again afterwards.
    requeue: Option<Priority>,
}

#[derive(Debug)]
pub struct WriteQueue<K> {
    high: RoundRobin<K>,
    low: RoundRobin<K>,
    held: BTreeMap<K, HeldKey>,
    due: BTreeSet<(Instant, K)>,
    failures: BTreeMap<K, u32>,
}

impl<K: Namespaced> Default for WriteQueue<K> {
    fn default() -> WriteQueue<K> {
        let (high, low) = (RoundRobin::default(), RoundRobin::default());
        WriteQueue { high, low, held: BTreeMap::new(), due: BTreeSet::new(), failures: BTreeMap::new() }
    }
}

impl<K: Namespaced> WriteQueue<K> {
    pub fn push(&mut self, key: K, priority: Priority) {
        if let Some(held) = self.held.get_mut(&key) {
            held.requeue = Some(held.requeue.map_or(priority, |other| other.min(priority)));
            return;
        }
        match priority {
            Priority::High => {
                self.low.remove(&key);
                self.high.insert(key);
            }
            Priority::Low if self.high.contains(&key) => {}
            Priority::Low => self.low.insert(key),
        }
    }

    /// The key counts as being written until `finish`, `finish_unchanged`, `requeue` or `retry_later` is called for it.
    pub fn pop(&mut self, priority: Priority, now: Instant) -> Option<K> {
        self.release_due(now);
        let key = self.round_robin(priority).pop()?;
        self.held.insert(key.clone(), HeldKey { until: None, requeue: None });
        Some(key)
    }

    /// No write was necessary.
    pub fn finish_unchanged(&mut self, key: &K) {
        self.failures.remove(key);
        if let Some(priority) = self.held.remove(key).and_then(|held| held.requeue) {
            self.push(key.clone(), priority);
        }
    }

    /// The write was not attempted.
    pub fn requeue(&mut self, key: K, priority: Priority) {
        self.held.remove(&key);
        self.push(key, priority);
    }

    /// The write succeeded. The key is not written again before `until`.
    pub fn finish(&mut self, key: K, until: Instant) {
        self.failures.remove(&key);
        self.hold(key, until, None);
    }

    /// The write failed. It is retried after a back-off of at most `max_backoff`.
    pub fn retry_later(&mut self, key: K, priority: Priority, now: Instant, max_backoff: Duration) {
        let failures = self.failures.entry(key.clone()).or_default();
        let backoff = FIRST_BACKOFF.saturating_mul(1 << (*failures).min(16)).min(max_backoff);
        *failures += 1;
        self.hold(key, now + backoff, Some(priority));
    }

    /// The object was deleted.
    pub fn remove(&mut self, key: &K) {
        self.high.remove(key);
        self.low.remove(key);
        self.failures.remove(key);
        if let Some(HeldKey { until: Some(until), .. }) = self.held.remove(key) {
            self.due.remove(&(until, key.clone()));
        }
    }

    /// Number of waiting keys, and number of keys whose last write failed.
    pub fn len(&self) -> (usize, usize) {
        let held = self.held.values().filter(|held| held.requeue.is_some()).count();
        (self.high.len() + self.low.len() + held, self.failures.len())
    }

    fn round_robin(&mut self, priority: Priority) -> &mut RoundRobin<K> {
        match priority {
            Priority::High => &mut self.high,
            Priority::Low => &mut self.low,
        }
    }

    fn hold(&mut self, key: K, until: Instant, priority: Option<Priority>) {
        let before = self.held.remove(&key);
        if let Some(HeldKey { until: Some(until), .. }) = before {
            self.due.remove(&(until, key.clone()));
        }
        let requeue = [priority, before.and_then(|held| held.requeue)].into_iter().flatten().min();
        self.due.insert((until, key.clone()));
        self.held.insert(key, HeldKey { until: Some(until), requeue });
    }

    fn release_due(&mut self, now: Instant) {
        while self.due.first().is_some_and(|(until, _)| *until <= now) {
            let Some((_, key)) = self.due.pop_first() else { return };
            if let Some(priority) = self.held.remove(&key).and_then(|held| held.requeue) {
                self.push(key, priority);
            }
        }
    }
}

impl<K> Default for RoundRobin<K> {
    fn default() -> RoundRobin<K> {
        RoundRobin { waiting: BTreeMap::new(), last: None }
    }
}

impl<K: Namespaced> RoundRobin<K> {
    fn insert(&mut self, key: K) {
        self.waiting.entry(key.namespace().clone()).or_default().insert(key);
    }

    fn remove(&mut self, key: &K) {
        if let Some(keys) = self.waiting.get_mut(key.namespace()) {
            keys.remove(key);
            if keys.is_empty() {
                self.waiting.remove(key.namespace());
            }
        }
    }

    fn contains(&self, key: &K) -> bool {
        self.waiting.get(key.namespace()).is_some_and(|keys| keys.contains(key))
    }

    fn len(&self) -> usize {
        self.waiting.values().map(BTreeSet::len).sum()
    }

    /// The first key of the namespace after the one that was served last.
    fn pop(&mut self) -> Option<K> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.waiting.range::<Name, _>((after, Bound::Unbounded)).next();
        let (namespace, keys) = next.or_else(|| self.waiting.iter().next())?;
        let (namespace, key) = (namespace.clone(), keys.first()?.clone());
        self.remove(&key);
        self.last = Some(namespace);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn slice(namespace: &str, name: &str) -> SliceName {
        SliceName { cluster: "local".into(), namespace: namespace.into(), name: name.into() }
    }

    fn pop_all(queue: &mut WriteQueue<SliceName>, now: Instant) -> Vec<String> {
        let popped = std::iter::from_fn(|| queue.pop(Priority::High, now));
        popped.map(|key| format!("{}/{}", key.namespace, key.name)).collect()
    }

    #[test]
    fn namespaces_are_served_in_turn() {
        let (mut queue, now) = (WriteQueue::default(), Instant::now());
        (0..3).for_each(|n| queue.push(slice("a", &n.to_string()), Priority::High));
        queue.push(slice("b", "0"), Priority::High);
        queue.push(slice("c", "0"), Priority::High);
        assert_eq!(pop_all(&mut queue, now), ["a/0", "b/0", "c/0", "a/1", "a/2"]);
    }

    #[test]
    fn a_failing_key_backs_off_and_delays_no_other_key() {
        let (mut queue, start) = (WriteQueue::default(), Instant::now());
        let bad = slice("a", "bad");
        queue.push(bad.clone(), Priority::High);
        for wait in [1, 2, 4, 5, 5] {
            let now = Instant::now();
            assert_eq!(queue.pop(Priority::High, now + 60 * SECOND), Some(bad.clone()));
            queue.retry_later(bad.clone(), Priority::High, start + 60 * SECOND, 5 * SECOND);
            queue.push(slice("a", "good"), Priority::High);
            assert_eq!(pop_all(&mut queue, start + 60 * SECOND), ["a/good"], "{wait}");
            queue.finish_unchanged(&slice("a", "good"));
            assert_eq!(queue.pop(Priority::High, start + (59 + wait) * SECOND), None);
            let retried = queue.pop(Priority::High, start + (60 + wait) * SECOND);
            assert_eq!(retried, Some(bad.clone()), "after {wait}");
            queue.requeue(bad.clone(), Priority::High);
        }
    }

    #[test]
    fn many_changes_become_one_write() {
        let (mut queue, now) = (WriteQueue::default(), Instant::now());
        let key = slice("a", "x");
        queue.push(key.clone(), Priority::Low);
        queue.push(key.clone(), Priority::High);
        assert_eq!(queue.pop(Priority::Low, now), None);
        assert_eq!(queue.pop(Priority::High, now), Some(key.clone()), "the first change is written at once");
        queue.push(key.clone(), Priority::High);
        assert_eq!(queue.pop(Priority::High, now), None, "the key is being written");
        queue.finish(key.clone(), now + SECOND);
        (0..10).for_each(|_| queue.push(key.clone(), Priority::High));
        assert_eq!((queue.pop(Priority::High, now), queue.len()), (None, (1, 0)));
        assert_eq!(pop_all(&mut queue, now + SECOND), ["a/x"]);
        queue.finish(key.clone(), now + 2 * SECOND);
        assert_eq!(pop_all(&mut queue, now + 3 * SECOND), Vec::<String>::new(), "no change since the last write");
        queue.push(key.clone(), Priority::High);
        queue.remove(&key);
        assert_eq!((queue.pop(Priority::High, now + 9 * SECOND), queue.len()), (None, (0, 0)));
    }
}
