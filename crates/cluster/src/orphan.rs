//! Slices and Endpoints whose Service is nowhere in the folder. They do no harm and serve nobody; the user wants to know.

use crate::object::Identity;
use beeline_model::OwnerName;
use beeline_model::fact::Refusal;
use std::collections::BTreeSet;

#[derive(Default)]
pub(crate) struct Orphans(BTreeSet<(OwnerName, Identity)>);

impl Orphans {
    pub(crate) fn join(&mut self, orphan: &Identity, owner: &OwnerName) {
        self.0.insert((owner.clone(), orphan.clone()));
    }

    pub(crate) fn leave(&mut self, orphan: &Identity, owner: Option<&OwnerName>) {
        if let Some(owner) = owner {
            self.0.remove(&(owner.clone(), orphan.clone()));
        }
    }

    /// Their Service is there.
    pub(crate) fn adopt(&mut self, service: &OwnerName) {
        // Services sort before all that can be orphaned, so this is where those of the service begin.
        let start = (service.clone(), Identity::Service(service.clone()));
        while let Some(orphan) = self.0.range(&start..).next().filter(|(owner, _)| owner == service).cloned() {
            self.0.remove(&orphan);
        }
    }

    pub(crate) fn refusals(&self) -> impl Iterator<Item = Refusal> {
        self.0.iter().map(|(owner, orphan)| Refusal {
            subject: orphan.to_string(),
            reason: "noService",
            message: format!("there is no Service {}/{} in the folder", owner.namespace(), owner.name()),
        })
    }
}
