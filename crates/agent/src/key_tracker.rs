//! The keys of the objects that one cluster's source has delivered.
//!
//! A source that replaces another one (its settings changed, or the live cluster replaces a snapshot) does not know which
//! objects the earlier source delivered. The tracker keeps their keys: when the new source has listed everything, the
//! objects that it did not list are deleted.

use beeline_model::change::{Change, ObjectKey};
use std::collections::HashSet;

#[derive(Debug, Default)]
pub struct KeyTracker {
    /// Delivered by the current source.
    current: HashSet<ObjectKey>,
    /// Delivered by an earlier source or a snapshot, and not yet confirmed by the current source.
    unconfirmed: HashSet<ObjectKey>,
}

impl KeyTracker {
    pub fn of(keys: Vec<ObjectKey>) -> KeyTracker {
        KeyTracker { current: keys.into_iter().collect(), unconfirmed: HashSet::new() }
    }

    pub fn record(&mut self, change: &Change) {
        let key = change.key();
        self.unconfirmed.remove(&key);
        match change {
            Change::Upsert(_) => self.current.insert(key),
            Change::Delete(_) => self.current.remove(&key),
        };
    }

    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.current.contains(key) || self.unconfirmed.contains(key)
    }

    /// Adds the objects of a snapshot as unconfirmed. Returns only those that are not tracked yet, because what a source
    /// delivered is newer than the snapshot.
    pub fn add_snapshot(&mut self, mut changes: Vec<Change>) -> Vec<Change> {
        changes.retain(|change| {
            let key = change.key();
            !self.current.contains(&key) && self.unconfirmed.insert(key)
        });
        changes
    }

    /// Another source takes over: every object has to be confirmed by it.
    pub fn start_relist(&mut self) {
        self.unconfirmed.extend(std::mem::take(&mut self.current));
    }

    /// The current source has listed everything. Returns a deletion for every object that it did not confirm.
    pub fn finish_relist(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.unconfirmed).into_iter().map(Change::Delete).collect()
    }

    /// The cluster was removed from the configuration. Returns a deletion for every object.
    pub fn delete_all(mut self) -> Vec<Change> {
        self.start_relist();
        self.finish_relist()
    }

    pub fn len(&self) -> usize {
        self.current.len() + self.unconfirmed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::object::{Node, Object};

    fn node(name: &str) -> Change {
        Change::Upsert(Object::Node(Node::named("blue", name)))
    }

    fn deletion(name: &str) -> Change {
        Change::Delete(ObjectKey::Node { cluster: "blue".into(), name: name.into() })
    }

    fn deleted(changes: Vec<Change>) -> Vec<String> {
        let name = |change: Change| match change {
            Change::Delete(ObjectKey::Node { cluster, name }) if *cluster == *"blue" => name.to_string(),
            other => panic!("{other:?}"),
        };
        let mut names: Vec<String> = changes.into_iter().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn objects_that_the_next_source_does_not_list_are_deleted_once_its_list_is_complete() {
        let mut tracker = KeyTracker::default();
        ["a", "b", "c"].iter().for_each(|name| tracker.record(&node(name)));
        tracker.record(&deletion("c"));
        assert_eq!(deleted(tracker.finish_relist()), [""; 0], "one source deletes its own objects itself");
        tracker.start_relist();
        tracker.record(&node("b"));
        tracker.record(&node("d"));
        assert_eq!((tracker.len(), deleted(tracker.finish_relist())), (3, vec!["a".to_owned()]));
        assert_eq!(deleted(tracker.finish_relist()), [""; 0]);
        assert_eq!(deleted(tracker.delete_all()), ["b", "d"]);
    }

    #[test]
    fn a_source_that_is_replaced_before_its_list_is_complete_deletes_nothing() {
        let mut tracker = KeyTracker::default();
        tracker.record(&node("a"));
        tracker.start_relist();
        tracker.record(&node("b"));
        tracker.start_relist();
        tracker.record(&node("a"));
        assert_eq!(deleted(tracker.finish_relist()), ["b"]);
    }
}
