//! The slices that v1 Endpoints are mirrored into. They are published only while the Service of the same name exists
//! and has no selector. The slices themselves are kept, because a change of the Service in another file can publish
//! them at any time.

use beeline_model::ServiceName;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{Object, Slice};
use std::collections::HashMap;

#[derive(Default)]
struct Mirror {
    /// The slices of the current Endpoints.
    current: Vec<Slice>,
    /// The slices that were last published.
    published: Vec<Slice>,
}

#[derive(Default)]
pub(crate) struct MirroredEndpoints(HashMap<ServiceName, Mirror>);

/// What changed. Upserts are applied before deletions, so that an endpoint that moves to another slice is never
/// missing.
#[derive(Default)]
pub(crate) struct SplitChanges {
    pub(crate) upserts: Vec<Change>,
    pub(crate) deletions: Vec<Change>,
}

impl SplitChanges {
    pub(crate) fn into_changes(self) -> Vec<Change> {
        let SplitChanges { mut upserts, deletions } = self;
        upserts.extend(deletions);
        upserts
    }
}

impl MirroredEndpoints {
    pub(crate) fn set(&mut self, service: &ServiceName, slices: Vec<Slice>) {
        self.0.entry(service.clone()).or_default().current = slices;
    }

    /// Publishes the current slices, or withdraws them if the Endpoints do not apply.
    pub(crate) fn publish(&mut self, service: &ServiceName, applies: bool, changes: &mut SplitChanges) {
        let Some(mirror) = self.0.get_mut(service) else { return };
        let now = if applies { mirror.current.clone() } else { Vec::new() };
        let before = std::mem::replace(&mut mirror.published, now);
        let contains = |slices: &[Slice], slice: &Slice| slices.iter().any(|other| other.name == slice.name);
        let changed = mirror.published.iter().filter(|slice| !before.contains(slice)).cloned();
        changes.upserts.extend(changed.map(|slice| Change::Upsert(Object::Slice(slice))));
        let removed = before.into_iter().filter(|slice| !contains(&mirror.published, slice));
        changes.deletions.extend(removed.map(|slice| Change::Delete(ObjectKey::Slice(slice.name))));
        if mirror.current.is_empty() {
            self.0.remove(service);
        }
    }
}
