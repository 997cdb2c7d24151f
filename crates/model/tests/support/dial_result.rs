//! The result of a dial without ids, so that tables with different histories can be compared.

use beeline_model::Address;
use beeline_model::event::{Action, Reason};
use beeline_model::resolve::{Dial, resolve};
use beeline_model::row::Rows;
use beeline_model::rules::NoLocalEndpointAction;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialResult {
    pub action: Action,
    pub reason: Reason,
    pub backends: BTreeSet<(Address, u16)>,
}

impl DialResult {
    pub fn of(rows: &Rows, dial: &Dial, no_local_endpoint_action: NoLocalEndpointAction) -> DialResult {
        let verdict = resolve(rows, dial, no_local_endpoint_action);
        let backends =
            verdict.backends.iter().map(|id| (rows.backends[*id].address, rows.backends[*id].port)).collect();
        DialResult { action: verdict.action, reason: verdict.reason, backends }
    }

    /// Whether this result is allowed while the tables change from the old to the new one: one of the two, or backends
    /// of both. The reason of a refusal may differ meanwhile, for example if a pod is selected before its frontends
    /// change.
    pub fn is_between(&self, old: &DialResult, new: &DialResult) -> bool {
        let is_refused = self.action == Action::Refused;
        let is_same = |other: &DialResult| other.action == self.action && (is_refused || other.reason == self.reason);
        let known = self.backends.iter().all(|b| old.backends.contains(b) || new.backends.contains(b));
        (is_same(old) || is_same(new)) && known && (self.action == Action::Resolved) != self.backends.is_empty()
    }
}
