//! Changes that were received and are not applied yet. Nothing is applied before every kind has been listed, because
//! slices, policies and namespaces must be known before pods.

use beeline_model::change::{Change, ObjectKind};
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub struct PendingChanges {
    changes: VecDeque<Change>,
    listed: bool,
    complete: bool,
}

impl PendingChanges {
    /// `listed` means that every kind has been listed or cannot be listed. `complete` means that every kind has been
    /// listed without an error.
    pub fn push(&mut self, changes: Vec<Change>, listed: bool, complete: bool) {
        self.listed |= listed;
        self.complete |= complete;
        self.changes.extend(changes);
        if self.listed {
            self.changes.make_contiguous().sort_by_cached_key(|change| apply_order(change.key().kind()));
        }
    }

    /// The next change to apply; `None` before every kind has been listed.
    pub fn pop(&mut self) -> Option<Change> {
        if self.listed { self.changes.pop_front() } else { None }
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub fn is_listed(&self) -> bool {
        self.listed
    }

    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

/// Published slices first, then policies and namespaces, pods last. Changes of one object keep their order.
fn apply_order(kind: ObjectKind) -> u8 {
    match kind {
        ObjectKind::PolicySlice => 0,
        ObjectKind::Policy(_) => 1,
        ObjectKind::Namespace => 2,
        ObjectKind::Pod => 4,
        _ => 3,
    }
}
