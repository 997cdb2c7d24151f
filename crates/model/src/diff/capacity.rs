//! Reserves frontends for whole services. A table that cannot hold every new frontend holds those of complete services,
//! in the order of their names, because a partly programmed service would take the capacity of another and serve no
//! client. A frontend that a policy takes over still counts for its Service.

use super::Reconciler;
use crate::claim::Claim;
use crate::name::ServiceName;
use crate::op::{MapError, Maps};
use crate::planner::Delta;
use crate::row::FrontendKey;
use std::collections::BTreeMap;

/// The Service or policy that loses its dials without this row: the last one in the chain.
pub(super) fn beneficiary<'d>(delta: &'d Delta, key: &FrontendKey, claim: &'d Claim) -> &'d ServiceName {
    &delta.below(key).last().unwrap_or(claim).service
}

const TABLE_FULL: MapError = MapError::Full("frontend");

impl<M: Maps> Reconciler<'_, M> {
    /// Rows that are deleted in this round free capacity for the next round only, because they are deleted last.
    pub(super) fn reserve_frontends(&mut self, delta: &Delta) {
        let size = self.maps.sizes().frontends as usize;
        let mut free = size.saturating_sub(self.tables.rows.frontends.len());
        if delta.frontends.len() <= free {
            return;
        }
        let mut wanted: BTreeMap<&ServiceName, usize> = BTreeMap::new();
        let claimed = delta.frontends.iter().filter_map(|(key, claim)| Some((key, claim.as_ref()?)));
        for (key, claim) in claimed.filter(|(key, _)| self.is_new(key)) {
            *wanted.entry(beneficiary(delta, key, claim)).or_default() += 1;
        }
        for (service, rows) in wanted {
            match free.checked_sub(rows) {
                Some(left) => free = left,
                None => drop(self.over_capacity.insert(service.clone())),
            }
        }
    }

    fn is_new(&self, key: &FrontendKey) -> bool {
        !self.tables.rows.frontends.contains_key(key)
    }

    /// A service keeps its existing frontends, and they follow its endpoints, even if there is no capacity for more.
    pub(super) fn check_capacity(&self, key: &FrontendKey, service: &ServiceName) -> Result<(), MapError> {
        if self.over_capacity.contains(service) && self.is_new(key) { Err(TABLE_FULL) } else { Ok(()) }
    }
}
