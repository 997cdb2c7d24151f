//! What is refused of each object. The list of all of them is made only when one of them changed: there may be thousands,
//! and batches come many times a second.

use crate::object::Identity;
use beeline_model::fact::Refusal;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Refused {
    by_object: BTreeMap<Identity, Vec<Refusal>>,
    all: Option<Arc<[Refusal]>>,
}

impl Refused {
    pub(crate) fn of(&self, id: &Identity) -> &[Refusal] {
        self.by_object.get(id).map(Vec::as_slice).unwrap_or_default()
    }

    pub(crate) fn set(&mut self, id: &Identity, refusals: Vec<Refusal>) {
        if refusals == self.of(id) {
            return;
        }
        self.all = None;
        if refusals.is_empty() {
            self.by_object.remove(id);
        } else {
            self.by_object.insert(id.clone(), refusals);
        }
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Identity) -> bool) {
        let before = self.by_object.len();
        self.by_object.retain(|id, _| keep(id));
        if self.by_object.len() != before {
            self.all = None;
        }
    }

    pub(crate) fn all(&mut self) -> Arc<[Refusal]> {
        let list = || self.by_object.values().flatten().cloned().collect();
        self.all.get_or_insert_with(list).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_made_anew_only_when_it_changed() {
        let (a, b) = (Identity::Node("a".into()), Identity::Node("b".into()));
        let why = |message: &str| vec![Refusal { subject: "a".into(), reason: "bad", message: message.into() }];
        let mut refused = Refused::default();
        refused.set(&a, why("x"));
        let first = refused.all();
        refused.set(&a, why("x"));
        refused.set(&b, Vec::new());
        refused.retain(|_| true);
        assert!(Arc::ptr_eq(&first, &refused.all()));
        refused.set(&b, why("y"));
        assert_eq!(refused.all().len(), 2);
        refused.set(&b, Vec::new());
        refused.retain(|id| *id != a);
        assert!(refused.all().is_empty());
    }
}
