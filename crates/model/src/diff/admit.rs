//! *Admit*: a table that cannot hold every new frontend holds those of whole services, in the order of their names. Half
//! a service would take the room of another and serve nobody.

use super::Work;
use crate::name::OwnerName;
use crate::op::{MapError, Maps};
use crate::planner::Delta;
use crate::row::FrontendKey;
use std::collections::BTreeMap;

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
        for (_, claim) in claimed.filter(|(key, _)| self.is_new(key)) {
            *wanted.entry(&claim.service).or_default() += 1;
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
