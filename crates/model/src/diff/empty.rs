//! Removes the last backend of sets. A dial that still reaches such a set must find a backend above or below it in the
//! chain, so this happens last and from the top: first LocalRedirectPolicies, then (once the pods that they no longer
//! select are removed) the sets below.

use super::Reconciler;
use super::link::still_selected;
use super::policy::chain_position;
use crate::hash::HashSet;
use crate::name::ServiceName;
use crate::op::{MapError, Maps, Op};
use crate::row::{FrontendKey, SetId, SlotSpan};

impl<M: Maps> Reconciler<'_, M> {
    /// Empties the sets that are in no chain and that no frontend is about to leave. A frontend that is left to the
    /// network or moves to another set must not be refused first.
    pub(super) fn empty_unlinked(&mut self) {
        if self.sets_to_empty.is_empty() {
            return;
        }
        let changing_sets = self.changing_sets();
        let planned: HashSet<SetId> =
            self.next_of.values().filter_map(|name| self.tables.sets.get(*name)).copied().collect();
        self.empty_if(|reconciler, name, id| {
            let linked = reconciler.tables.links.contains(id) || planned.contains(&id) || reconciler.is_linked(id);
            chain_position(name) == 0 && !linked && !changing_sets.contains(&id)
        });
    }

    /// Sets that a frontend row leads to but should not: the row is to be deleted or moved, or that failed.
    fn changing_sets(&self) -> HashSet<SetId> {
        let set_of = |key: &FrontendKey| self.tables.rows.frontends.get(key).map(|row| row.set);
        let moves = self.delta.frontends.iter().filter_map(|(key, claim)| {
            let set = claim.as_ref().and_then(|claim| self.tables.sets.get(claim.set.as_ref()?).copied());
            set_of(key).filter(|now| Some(*now) != set)
        });
        self.tables.sweep_queue.frontends.iter().filter_map(set_of).chain(moves).collect()
    }

    pub(super) fn empty_redirects(&mut self) {
        self.empty_if(|_, name, _| chain_position(name) == 2);
    }

    pub(super) fn empty_rest(&mut self) {
        self.empty_if(|_, _, _| true);
    }

    /// A set that waits for a set above it is not recorded as pending, because the set above might wait for it in turn.
    fn empty_if(&mut self, is_due: impl Fn(&Self, &ServiceName, SetId) -> bool) {
        let all = std::mem::take(&mut self.sets_to_empty);
        let (mut due, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, id)| is_due(self, name, *id));
        self.sets_to_empty = later;
        due.sort_by_key(|(name, _)| std::cmp::Reverse(chain_position(name)));
        let passed = self.sets_reached_by_unselected();
        let changing_sets = if due.is_empty() { HashSet::default() } else { self.changing_sets() };
        for (name, id) in due {
            let stays = || MapError::Failed("a row that should lead elsewhere still leads to this set".into());
            match self.needed_above(&name, id, &passed).or_else(|| changing_sets.contains(&id).then(stays)) {
                Some(error) => _ = self.outcome.failed.entry(name).or_insert(error),
                None => self.empty_set(id).unwrap_or_else(|error| self.fail(&name, error)),
            }
        }
    }

    /// The set above that should serve instead is not ready yet.
    fn needed_above(&self, name: &ServiceName, id: SetId, passed: &HashSet<SetId>) -> Option<MapError> {
        if chain_position(name) == 2 {
            return None;
        }
        still_selected(passed, id).or_else(|| self.failed_above(id).cloned())
    }

    fn empty_set(&mut self, id: SetId) -> Result<(), MapError> {
        // The set was swept meanwhile, or was already empty.
        let Some(row) = self.tables.rows.sets.get(id).copied().filter(|row| row.span.count > 0) else { return Ok(()) };
        self.failed_below(row.header.next).cloned().map_or(Ok(()), Err)?;
        self.tables.sweep_queue.backends.extend(self.tables.rows.members(&row));
        self.write(Op::Span(id, SlotSpan { count: 0, generation: row.span.generation.wrapping_add(1), ..row.span }))
    }
}
