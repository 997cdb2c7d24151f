//! The refusals of each object or file. The combined list is rebuilt only when one of them has changed: there may be
//! thousands, and a source sends batches many times a second.

use beeline_model::refusal::Refusal;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct RefusalTracker<K> {
    by_key: BTreeMap<K, Vec<Refusal>>,
    /// `None` after a change.
    all: Option<Arc<[Refusal]>>,
}

impl<K> Default for RefusalTracker<K> {
    fn default() -> RefusalTracker<K> {
        RefusalTracker { by_key: BTreeMap::new(), all: None }
    }
}

impl<K: Clone + Ord> RefusalTracker<K> {
    pub(crate) fn get(&self, key: &K) -> &[Refusal] {
        self.by_key.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    pub(crate) fn set(&mut self, key: &K, refusals: Vec<Refusal>) {
        if refusals == self.get(key) {
            return;
        }
        self.all = None;
        if refusals.is_empty() {
            self.by_key.remove(key);
        } else {
            self.by_key.insert(key.clone(), refusals);
        }
    }

    pub(crate) fn clear(&mut self, key: &K) {
        self.set(key, Vec::new());
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        let before = self.by_key.len();
        self.by_key.retain(|key, _| keep(key));
        if self.by_key.len() != before {
            self.all = None;
        }
    }

    pub(crate) fn all(&mut self) -> Arc<[Refusal]> {
        let list = || self.by_key.values().flatten().cloned().collect();
        self.all.get_or_insert_with(list).clone()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Refusal> {
        self.by_key.values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::refusal::{RefusalReason, RefusalSubject};

    #[test]
    fn the_combined_list_is_rebuilt_only_after_a_change() {
        let refusal = |message: &str| vec![Refusal::new(RefusalSubject::Routes, RefusalReason::BadName, message)];
        let mut refusals = RefusalTracker::default();
        refusals.set(&"a", refusal("x"));
        let first = refusals.all();
        refusals.set(&"a", refusal("x"));
        refusals.clear(&"b");
        refusals.retain(|_| true);
        assert!(Arc::ptr_eq(&first, &refusals.all()));
        refusals.set(&"b", refusal("y"));
        assert_eq!(refusals.all().len(), 2);
        refusals.clear(&"b");
        refusals.retain(|key| *key != "a");
        assert!(refusals.all().is_empty());
    }
}
