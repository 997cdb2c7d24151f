//! What a dial gets, without ids: comparable between tables that grew in different ways.

use beeline_model::Address;
use beeline_model::event::{Action, Reason};
use beeline_model::resolve::{Dial, resolve};
use beeline_model::row::Rows;
use beeline_model::rules::EmptyLocal;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub action: Action,
    pub reason: Reason,
    pub backends: BTreeSet<(Address, u16)>,
}

impl Answer {
    pub fn of(rows: &Rows, dial: &Dial, empty_local: EmptyLocal) -> Answer {
        let verdict = resolve(rows, dial, empty_local);
        let backends =
            verdict.backends.iter().map(|id| (rows.backends[*id].address, rows.backends[*id].port)).collect();
        Answer { action: verdict.action, reason: verdict.reason, backends }
    }

    /// While tables change from one answer to the other: one of the two, or backends of both. Whoever is refused before or
    /// after may be told another reason meanwhile (selected by the policy before its frontends have moved).
    pub fn is_between(&self, old: &Answer, new: &Answer) -> bool {
        let is_refused = self.action == Action::Refused;
        let one_of = |a: &Answer| a.action == self.action && (is_refused || a.reason == self.reason);
        let known = self.backends.iter().all(|b| old.backends.contains(b) || new.backends.contains(b));
        (one_of(old) || one_of(new)) && known && (self.action == Action::Resolved) != self.backends.is_empty()
    }
}
