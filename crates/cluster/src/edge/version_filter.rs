//! Separates new versions of objects from repeated ones. A watch of the edge cache starts with all objects of its
//! database, which may be older than the list that was just read from the cloud, and may include objects that this list
//! no longer contains. A list of the database itself lacks objects that were never delivered as an event, and has old
//! versions of objects that changed while the cache did not watch: it can only add objects.

use crate::list_tracker::ListTracker;
use std::hash::Hash;

pub(crate) struct VersionFilter<K> {
    /// The accepted version of each object. `None` means that the object has no version.
    versions: ListTracker<K, Option<u64>>,
    /// The version of the last list from the cloud, which contained every object up to this version.
    list_version: Option<u64>,
}

impl<K> Default for VersionFilter<K> {
    fn default() -> VersionFilter<K> {
        VersionFilter { versions: ListTracker::default(), list_version: None }
    }
}

impl<K: Clone + Eq + Hash> VersionFilter<K> {
    /// Starts a list from the cloud.
    pub(crate) fn begin_list(&mut self) {
        self.versions.begin_list();
    }

    /// Whether an object of a list from the cloud differs from the accepted version. An older version counts too: the
    /// cluster may have been restored from a backup.
    pub(crate) fn accept_listed(&mut self, key: &K, version: Option<u64>) -> bool {
        self.versions.mark_listed(key);
        let before = self.versions.insert(key.clone(), version);
        version.is_none() || before != Some(version)
    }

    /// Ends a list from the cloud, and returns the objects that it does not contain any more.
    pub(crate) fn finish_list(&mut self, version: Option<u64>) -> Vec<K> {
        self.list_version = version;
        let finished = self.versions.finish_list();
        finished.into_iter().flat_map(|finished| finished.removed).map(|(key, _)| key).collect()
    }

    /// Whether an object of a watch, or of a list from the database, is newer than the accepted version.
    pub(crate) fn accept_event(&mut self, key: &K, version: Option<u64>) -> bool {
        let is_new = match (self.versions.get(key), version) {
            (_, None) | (Some(None), _) => true,
            (Some(Some(before)), Some(now)) => now > *before,
            // An object that is older than the list and not contained in it was deleted in the cloud.
            (None, Some(now)) => self.list_version.is_none_or(|listed| now > listed),
        };
        if is_new {
            self.versions.insert(key.clone(), version);
        }
        is_new
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.versions.remove(key);
    }

    pub(crate) fn len(&self) -> usize {
        self.versions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Filter = VersionFilter<&'static str>;

    /// Returns the accepted and the removed objects.
    fn list(
        filter: &mut Filter,
        objects: &[(&'static str, u64)],
        version: u64,
    ) -> (Vec<&'static str>, Vec<&'static str>) {
        filter.begin_list();
        let accepted = objects.iter().filter(|(key, version)| filter.accept_listed(key, Some(*version)));
        let accepted = accepted.map(|(key, _)| *key).collect();
        let mut removed = filter.finish_list(Some(version));
        removed.sort();
        (accepted, removed)
    }

    #[test]
    fn repeated_versions_are_dropped_and_deleted_objects_do_not_return() {
        let mut filter = Filter::default();
        assert_eq!(list(&mut filter, &[("a", 5), ("b", 7)], 9).0, ["a", "b"]);
        assert!(!filter.accept_event(&"a", Some(5)) && !filter.accept_event(&"b", Some(6)), "not newer than the list");
        assert!(!filter.accept_event(&"deleted", Some(8)), "the list from the cloud did not contain it");
        assert!(filter.accept_event(&"b", Some(10)) && filter.accept_event(&"new", Some(11)));
        assert!(!filter.accept_event(&"b", Some(10)));
        assert_eq!(list(&mut filter, &[("a", 5), ("new", 12)], 12), (vec!["new"], vec!["b"]));
    }

    #[test]
    fn objects_of_the_database_are_new_only_until_a_list_from_the_cloud() {
        let mut filter = Filter::default();
        assert!(filter.accept_event(&"a", Some(5)) && filter.accept_event(&"late", Some(8)));
        assert!(!filter.accept_event(&"a", Some(5)));
        list(&mut filter, &[("a", 5), ("b", 12)], 20);
        assert!(!filter.accept_event(&"b", Some(7)), "the database missed the last change");
        assert!(!filter.accept_event(&"deleted", Some(15)), "the database missed the deletion");
    }

    #[test]
    fn a_removed_object_may_return_and_a_list_counts_even_if_it_is_older() {
        let mut filter = Filter::default();
        list(&mut filter, &[("a", 50)], 60);
        filter.remove(&"a");
        assert!(filter.accept_event(&"a", Some(61)));
        assert_eq!(list(&mut filter, &[("a", 3)], 4).0, ["a"], "a cluster that was restored");
        assert!(filter.accept_event(&"b", Some(5)));
    }

    #[test]
    fn objects_without_a_version_are_always_new() {
        let mut filter = Filter::default();
        let accepted = [None, None, Some(1)].map(|version| filter.accept_event(&"a", version));
        assert_eq!(accepted, [true; 3]);
    }
}
