//! The objects of one kind that a source has delivered. After a complete list the tracker knows which objects
//! disappeared since the list before.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// `V` is what is remembered of an object: enough to decide whether a delivered object differs from the last one.
pub(crate) struct ListTracker<K, V> {
    known: HashMap<K, V>,
    /// While a list is being read: every object that it has named so far.
    listed: Option<HashSet<K>>,
}

impl<K, V> Default for ListTracker<K, V> {
    fn default() -> ListTracker<K, V> {
        ListTracker { known: HashMap::new(), listed: None }
    }
}

impl<K: Clone + Eq + Hash, V> ListTracker<K, V> {
    /// Starts a list. A list that was started before and did not finish is discarded.
    pub(crate) fn begin_list(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// Records that the current list contains this object, also if the object is not used.
    pub(crate) fn mark_listed(&mut self, key: &K) {
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
    }

    /// Returns the previous value.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.known.insert(key, value)
    }

    #[cfg(feature = "outside")]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.known.get(key)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.known.remove(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Ends the list: removes the known objects that it did not contain, and returns them, together with the keys that
    /// it did contain. `None` if no list was started.
    pub(crate) fn finish_list(&mut self) -> Option<FinishedList<K, V>> {
        let listed = self.listed.take()?;
        let removed = self.known.extract_if(|key, _| !listed.contains(key)).collect();
        Some(FinishedList { listed, removed })
    }
}

pub(crate) struct FinishedList<K, V> {
    pub(crate) listed: HashSet<K>,
    pub(crate) removed: Vec<(K, V)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_a_complete_list_does_not_contain_are_removed() {
        let mut tracker = ListTracker::default();
        tracker.insert("a", 1);
        tracker.insert("b", 1);
        assert!(tracker.finish_list().is_none(), "no list was started");
        tracker.begin_list();
        tracker.mark_listed(&"a");
        tracker.begin_list();
        tracker.mark_listed(&"b");
        tracker.mark_listed(&"unused");
        let finished = tracker.finish_list().unwrap();
        assert_eq!((finished.removed, finished.listed.len()), (vec![("a", 1)], 2), "the first list was discarded");
        assert_eq!((tracker.len(), tracker.get(&"b")), (1, Some(&1)));
    }
}
