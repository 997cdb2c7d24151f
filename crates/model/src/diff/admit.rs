//! *Admit*: a table that cannot hold every new frontend holds those of whole services, in the order of their names. Half
//! a service would take the room of another and serve nobody. A frontend that a policy takes is still its Service's.

use super::Work;
use crate::claim::Claim;
use crate::name::OwnerName;
use crate::op::{MapError, Maps};
use crate::planner::Delta;
use crate::row::FrontendKey;
use std::collections::BTreeMap;

/// Whose dials come to nothing without this row: the last one that they may lead to.
pub(super) fn beneficiary<'d>(delta: &'d Delta, key: &FrontendKey, claim: &'d Claim) -> &'d OwnerName {
    &delta.below(key).last().unwrap_or(claim).service
}

const FULL: MapError = MapError::Full("frontend");

impl<M: Maps> Work<'_, M> {
    /// Rows that go in this round make room for the next one: they go last.
    pub(super) fn admit(&mut self, delta: &Delta) {
        let size = self.maps.sizes().frontends as usize;
        let mut room = size.saturating_sub(self.tables.rows.frontends.len());
        if delta.frontends.len() <= room {
            return;
        }
        let mut wanted: BTreeMap<&OwnerName, usize> = BTreeMap::new();
        let claimed = delta.frontends.iter().filter_map(|(key, claim)| Some((key, claim.as_ref()?)));
        for (key, claim) in claimed.filter(|(key, _)| self.is_new(key)) {
            *wanted.entry(beneficiary(delta, key, claim)).or_default() += 1;
        }
        for (service, rows) in wanted {
            match room.checked_sub(rows) {
                Some(left) => room = left,
                None => drop(self.crowded_out.insert(service.clone())),
            }
        }
    }

    fn is_new(&self, key: &FrontendKey) -> bool {
        !self.tables.rows.frontends.contains_key(key)
    }

    /// What a service has already stays and follows its endpoints, also when there is no room for more.
    pub(super) fn check_room(&self, key: &FrontendKey, service: &OwnerName) -> Result<(), MapError> {
        if self.crowded_out.contains(service) && self.is_new(key) { Err(FULL) } else { Ok(()) }
    }
}
