//! Work that waits to be written, fair to everybody: namespaces are served in turn, what failed waits its own time and
//! nobody else's, and what was just written rests a moment, so that many changes become one write. Plain state; the clock
//! is given.

use beeline_model::Name;
use beeline_model::fact::SliceName;
use beeline_model::policy::PolicyName;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// What is served in turn.
pub trait Placed: Ord + Clone {
    fn namespace(&self) -> &Name;
}

impl Placed for SliceName {
    fn namespace(&self) -> &Name {
        &self.namespace
    }
}

impl Placed for PolicyName {
    fn namespace(&self) -> &Name {
        &self.namespace
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    First,
    Then,
}

/// The first wait after a failure; each further one is twice as long.
const BACK_OFF: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Turns<K> {
    waiting: BTreeMap<Name, BTreeSet<K>>,
    /// Who was served last.
    last: Option<Name>,
}

#[derive(Debug)]
struct Hold {
    /// `None`: it is being written.
    until: Option<Instant>,
    /// It is wanted again.
    again: Option<Lane>,
}

#[derive(Debug)]
pub struct Queue<K> {
    first: Turns<K>,
    then: Turns<K>,
    held: BTreeMap<K, Hold>,
    due: BTreeSet<(Instant, K)>,
    failures: BTreeMap<K, u32>,
}

impl<K: Placed> Default for Queue<K> {
    fn default() -> Queue<K> {
        let (first, then) = (Turns::default(), Turns::default());
        Queue { first, then, held: BTreeMap::new(), due: BTreeSet::new(), failures: BTreeMap::new() }
    }
}

impl<K: Placed> Queue<K> {
    pub fn put(&mut self, key: K, lane: Lane) {
        if let Some(hold) = self.held.get_mut(&key) {
            hold.again = Some(hold.again.map_or(lane, |other| other.min(lane)));
            return;
        }
        match lane {
            Lane::First => {
                self.then.remove(&key);
                self.first.insert(key);
            }
            Lane::Then if self.first.contains(&key) => {}
            Lane::Then => self.then.insert(key),
        }
    }

    /// It is under way from now on, until one of the next four is said of it.
    pub fn take(&mut self, lane: Lane, now: Instant) -> Option<K> {
        self.release(now);
        let key = self.turns(lane).next()?;
        self.held.insert(key.clone(), Hold { until: None, again: None });
        Some(key)
    }

    /// There was nothing to do.
    pub fn skip(&mut self, key: &K) {
        self.failures.remove(key);
        if let Some(lane) = self.held.remove(key).and_then(|hold| hold.again) {
            self.put(key.clone(), lane);
        }
    }

    /// Nothing was tried.
    pub fn give_back(&mut self, key: K, lane: Lane) {
        self.held.remove(&key);
        self.put(key, lane);
    }

    /// It is written; not again before this.
    pub fn done(&mut self, key: K, until: Instant) {
        self.failures.remove(&key);
        self.hold(key, until, None);
    }

    /// It is tried again, later every time, but at most `longest` later.
    pub fn fail(&mut self, key: K, lane: Lane, now: Instant, longest: Duration) {
        let failures = self.failures.entry(key.clone()).or_default();
        let wait = BACK_OFF.saturating_mul(1 << (*failures).min(16)).min(longest);
        *failures += 1;
        self.hold(key, now + wait, Some(lane));
    }

    /// It is no more.
    pub fn forget(&mut self, key: &K) {
        self.first.remove(key);
        self.then.remove(key);
        self.failures.remove(key);
        if let Some(Hold { until: Some(until), .. }) = self.held.remove(key) {
            self.due.remove(&(until, key.clone()));
        }
    }

    /// How many wait, and how many of those because they failed.
    pub fn len(&self) -> (usize, usize) {
        let again = self.held.values().filter(|hold| hold.again.is_some()).count();
        (self.first.len() + self.then.len() + again, self.failures.len())
    }

    fn turns(&mut self, lane: Lane) -> &mut Turns<K> {
        match lane {
            Lane::First => &mut self.first,
            Lane::Then => &mut self.then,
        }
    }

    fn hold(&mut self, key: K, until: Instant, lane: Option<Lane>) {
        let before = self.held.remove(&key);
        if let Some(Hold { until: Some(until), .. }) = before {
            self.due.remove(&(until, key.clone()));
        }
        let again = [lane, before.and_then(|hold| hold.again)].into_iter().flatten().min();
        self.due.insert((until, key.clone()));
        self.held.insert(key, Hold { until: Some(until), again });
    }

    fn release(&mut self, now: Instant) {
        while self.due.first().is_some_and(|(until, _)| *until <= now) {
            let Some((_, key)) = self.due.pop_first() else { return };
            if let Some(lane) = self.held.remove(&key).and_then(|hold| hold.again) {
                self.put(key, lane);
            }
        }
    }
}

impl<K> Default for Turns<K> {
    fn default() -> Turns<K> {
        Turns { waiting: BTreeMap::new(), last: None }
    }
}

impl<K: Placed> Turns<K> {
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

    /// Of the namespace after the one that was served last.
    fn next(&mut self) -> Option<K> {
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

    fn slice(namespace: &str, name: &str) -> SliceName {
        SliceName { cluster: "local".into(), namespace: namespace.into(), name: name.into() }
    }

    fn names(queue: &mut Queue<SliceName>, now: Instant) -> Vec<String> {
        let taken = std::iter::from_fn(|| queue.take(Lane::First, now));
        taken.map(|key| format!("{}/{}", key.namespace, key.name)).collect()
    }

    #[test]
    fn namespaces_are_served_in_turn() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        (0..3).for_each(|n| queue.put(slice("a", &n.to_string()), Lane::First));
        queue.put(slice("b", "0"), Lane::First);
        queue.put(slice("c", "0"), Lane::First);
        assert_eq!(names(&mut queue, now), ["a/0", "b/0", "c/0", "a/1", "a/2"]);
    }

    #[test]
    fn what_fails_waits_longer_each_time_and_alone() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let (bad, second) = (slice("a", "bad"), Duration::from_secs(1));
        queue.put(bad.clone(), Lane::First);
        for wait in [1, 2, 4, 5, 5] {
            let now = Instant::now();
            assert_eq!(queue.take(Lane::First, now + 60 * second), Some(bad.clone()));
            queue.fail(bad.clone(), Lane::First, start + 60 * second, 5 * second);
            queue.put(slice("a", "good"), Lane::First);
            assert_eq!(names(&mut queue, start + 60 * second), ["a/good"], "{wait}");
            queue.skip(&slice("a", "good"));
            assert_eq!(queue.take(Lane::First, start + (59 + wait) * second), None);
            let again = queue.take(Lane::First, start + (60 + wait) * second);
            assert_eq!(again, Some(bad.clone()), "after {wait}");
            queue.give_back(bad.clone(), Lane::First);
        }
    }

    #[test]
    fn many_changes_are_one_write() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let (key, second) = (slice("a", "x"), Duration::from_secs(1));
        queue.put(key.clone(), Lane::Then);
        queue.put(key.clone(), Lane::First);
        assert_eq!(queue.take(Lane::Then, now), None);
        assert_eq!(queue.take(Lane::First, now), Some(key.clone()), "at once");
        queue.put(key.clone(), Lane::First);
        assert_eq!(queue.take(Lane::First, now), None, "it is under way");
        queue.done(key.clone(), now + second);
        (0..10).for_each(|_| queue.put(key.clone(), Lane::First));
        assert_eq!((queue.take(Lane::First, now), queue.len()), (None, (1, 0)));
        assert_eq!(names(&mut queue, now + second), ["a/x"]);
        queue.done(key.clone(), now + 2 * second);
        assert_eq!(names(&mut queue, now + 3 * second), Vec::<String>::new(), "nobody wanted it again");
        queue.put(key.clone(), Lane::First);
        queue.forget(&key);
        assert_eq!((queue.take(Lane::First, now + 9 * second), queue.len()), (None, (0, 0)));
    }
}
