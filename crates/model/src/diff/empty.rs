//! *Empty*: a set whose last member goes. A dial that may still come to it must find somebody above or below by then, so in
//! a chain this is the last thing that happens, from the top: redirects, then (once the pods that they select no more are
//! forgotten) what is below them.

use super::Work;
use super::link::still_selected;
use super::policy::rank;
use crate::hash::HashSet;
use crate::name::OwnerName;
use crate::op::{MapError, Maps, Op};
use crate::row::{FrontendKey, SetId, Span};

impl<M: Maps> Work<'_, M> {
    /// Nobody is above or below these, nor should be, and no row is about to part from them: what is left alone, or leads
    /// elsewhere from now on, must not be refused first.
    pub(super) fn empty_unlinked(&mut self) {
        if self.empties.is_empty() {
            return;
        }
        let parting = self.parting();
        let planned: HashSet<SetId> =
            self.next_of.values().filter_map(|name| self.tables.sets.get(*name)).copied().collect();
        self.empty_those(|work, name, id| {
            let linked = work.tables.links.contains(id) || planned.contains(&id) || work.is_linked(id);
            rank(name) == 0 && !linked && !parting.contains(&id)
        });
    }

    /// Sets that some row leads to and should not: it goes, or moves, or could not.
    fn parting(&self) -> HashSet<SetId> {
        let led = |key: &FrontendKey| self.tables.rows.frontends.get(key).map(|row| row.set);
        let moves = self.delta.frontends.iter().filter_map(|(key, claim)| {
            let set = claim.as_ref().and_then(|claim| self.tables.sets.get(claim.set.as_ref()?).copied());
            led(key).filter(|now| Some(*now) != set)
        });
        self.tables.touched.frontends.iter().filter_map(led).chain(moves).collect()
    }

    pub(super) fn empty_redirects(&mut self) {
        self.empty_those(|_, name, _| rank(name) == 2);
    }

    pub(super) fn empty_rest(&mut self) {
        self.empty_those(|_, _, _| true);
    }

    /// A set that waits for one above is not held: the one above might in turn wait for it.
    fn empty_those(&mut self, is_due: impl Fn(&Self, &OwnerName, SetId) -> bool) {
        let all = std::mem::take(&mut self.empties);
        let (mut due, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, id)| is_due(self, name, *id));
        self.empties = later;
        due.sort_by_key(|(name, _)| std::cmp::Reverse(rank(name)));
        let passed = self.passed_by_selected();
        let parting = if due.is_empty() { HashSet::default() } else { self.parting() };
        for (name, id) in due {
            let stays = || MapError::Failed("a row that should lead elsewhere still leads to this set".into());
            match self.needed_above(&name, id, &passed).or_else(|| parting.contains(&id).then(stays)) {
                Some(error) => _ = self.outcome.failed.entry(name).or_insert(error),
                None => self.empty_set(id).unwrap_or_else(|error| self.fail(&name, error)),
            }
        }
    }

    /// Whoever should serve in its place from above is not there yet.
    fn needed_above(&self, name: &OwnerName, id: SetId, passed: &HashSet<SetId>) -> Option<MapError> {
        if rank(name) == 2 {
            return None;
        }
        still_selected(passed, id).or_else(|| self.failed_above(id).cloned())
    }

    fn empty_set(&mut self, id: SetId) -> Result<(), MapError> {
        // Swept meanwhile, or left empty by a plan that was made a second time.
        let Some(row) = self.tables.rows.sets.get(id).copied().filter(|row| row.span.count > 0) else { return Ok(()) };
        self.failed_below(row.header.next).cloned().map_or(Ok(()), Err)?;
        self.tables.touched.backends.extend(self.tables.rows.members(&row));
        self.write(Op::Span(id, Span { count: 0, generation: row.span.generation.wrapping_add(1), ..row.span }))
    }
}
