//! Slices and Endpoints whose Service is not in the folder. They have no effect, and are reported to the user.

use crate::source_key::SourceKey;
use beeline_model::ServiceName;
use beeline_model::refusal::{Refusal, RefusalReason};
use std::collections::BTreeSet;

#[derive(Default)]
pub(crate) struct OrphanIndex(BTreeSet<(ServiceName, SourceKey)>);

impl OrphanIndex {
    pub(crate) fn insert(&mut self, orphan: &SourceKey, owner: &ServiceName) {
        self.0.insert((owner.clone(), orphan.clone()));
    }

    pub(crate) fn remove(&mut self, orphan: &SourceKey, owner: Option<&ServiceName>) {
        if let Some(owner) = owner {
            self.0.remove(&(owner.clone(), orphan.clone()));
        }
    }

    /// Removes the orphans of a Service that exists now.
    pub(crate) fn remove_owner(&mut self, service: &ServiceName) {
        // Keys of Services sort before the keys of slices and Endpoints, so the range starts at the first orphan.
        let start = (service.clone(), SourceKey::service(service));
        while let Some(orphan) = self.0.range(&start..).next().filter(|(owner, _)| owner == service).cloned() {
            self.0.remove(&orphan);
        }
    }

    pub(crate) fn refusals(&self) -> impl Iterator<Item = Refusal> {
        self.0.iter().map(|(owner, orphan)| {
            let message = format!(
                "the manifest folder has no valid Service {}/{}: add or correct it",
                owner.namespace(),
                owner.name()
            );
            Refusal::new(orphan.object_ref(), RefusalReason::NoService, message)
        })
    }
}
