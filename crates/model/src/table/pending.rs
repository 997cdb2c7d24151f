//! What a round leaves to later rounds: obsolete rows to delete, and writes that failed.

use crate::ServiceName;
use crate::hash::HashMap;
use crate::name::{Protocol, SetName};
use crate::op::MapError;
use crate::row::*;
use std::collections::BTreeSet;

/// Rows that may be obsolete. The queue outlives a round: a delete that failed is tried again in the next round,
/// whatever that round changes.
#[derive(Debug, Default)]
pub(crate) struct SweepQueue {
    /// Frontends that nothing claims any more.
    pub frontends: BTreeSet<FrontendKey>,
    pub ports: BTreeSet<(Protocol, u16)>,
    pub owners: BTreeSet<OwnerId>,
    pub backends: BTreeSet<BackendId>,
    pub nodes: BTreeSet<u32>,
    pub policies: BTreeSet<PolicyId>,
    /// Pods that their policy no longer selects.
    pub selected: BTreeSet<(PolicyId, u64)>,
}

/// Services and policies that are only partly written. The state outlives a round: until they are completely written,
/// the rows that their dials would fall back to stay as they are.
#[derive(Debug, Default)]
pub(crate) struct PendingWrites {
    pub services: HashMap<ServiceName, MapError>,
    /// Fallback rows below a row that could not be written, with the owners of that row.
    missing: HashMap<FrontendKey, Vec<ServiceName>>,
    /// Fallback rows that could not be written themselves, with their owners.
    waiting: HashMap<FrontendKey, Vec<ServiceName>>,
    pub nodes: Option<MapError>,
    /// Sets that a partly written policy links to. They are kept although nothing may refer to them yet, because
    /// nothing would create them again for the next attempt.
    pub links: HashMap<ServiceName, Vec<SetName>>,
}

impl PendingWrites {
    /// Forgets the failures of what is tried again now.
    pub(crate) fn retry<'a>(&mut self, services: impl Iterator<Item = &'a ServiceName>, nodes: bool) {
        if nodes {
            self.nodes = None;
        }
        if self.services.is_empty() {
            return;
        }
        services.for_each(|name| drop(self.services.remove(name)));
        for keys in [&mut self.missing, &mut self.waiting] {
            keys.retain(|_, names| {
                names.retain(|name| self.services.contains_key(name));
                !names.is_empty()
            });
        }
    }

    /// Records that a row could not be written.
    pub(crate) fn record_missing(&mut self, key: FrontendKey, service: &ServiceName) {
        for below in key.fallbacks() {
            self.missing.entry(below).or_default().push(service.clone());
        }
        if key.tier() == Tier::Fallback {
            self.waiting.entry(key).or_default().push(service.clone());
        }
    }

    pub(crate) fn is_linked(&self, set: &SetName) -> bool {
        self.links.values().flatten().any(|name| name == set)
    }

    pub(crate) fn is_waiting(&self, key: &FrontendKey) -> bool {
        self.waiting.contains_key(key)
    }

    pub(crate) fn is_missing(&self, key: &FrontendKey) -> bool {
        self.missing.contains_key(key)
    }

    /// Why a fallback row must wait.
    pub(crate) fn missing_above(&self, key: &FrontendKey) -> Option<&MapError> {
        self.missing.get(key)?.iter().find_map(|name| self.services.get(name))
    }
}

impl SweepQueue {
    pub(crate) fn len(&self) -> usize {
        let rows = self.frontends.len() + self.ports.len() + self.owners.len() + self.backends.len() + self.nodes.len();
        rows + self.policies.len() + self.selected.len()
    }
}
