//! Checks the invariants of the tables between two rounds. Tests call it after every step.

use super::{ReleasedId, Tables};
use crate::address::Address;
use crate::hash::HashMap;
use crate::id_map::IdMap;
use crate::range;
use crate::row::*;
use std::collections::{BTreeMap, BTreeSet};

type Check = Result<(), String>;

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(message()) }
}

impl Tables {
    /// Returns the first violation: an id that is both in use and free, or neither; a row that refers to a missing row;
    /// an index or a count that differs from the rows.
    pub fn audit(&self, sizes: Sizes) -> Check {
        self.audit_frontends()?;
        self.audit_sets()?;
        self.audit_backends()?;
        self.audit_names()?;
        self.audit_policies()?;
        self.audit_ids()?;
        self.audit_slots(sizes)
    }

    fn audit_frontends(&self) -> Check {
        let (mut refs, mut links): (IdMap<u32>, IdMap<u32>) = Default::default();
        let mut port_refs: HashMap<(crate::Protocol, u16, bool), u32> = HashMap::default();
        for (key, row) in &self.rows.frontends {
            refs.count(row.set, 1);
            let exists = row.set == SET_CLOSED || self.rows.sets.contains(row.set);
            ensure(exists, || format!("{key:?} leads to set {}, which does not exist", row.set))?;
            ensure(self.passes_filter(key), || format!("the filter hides {key:?}"))?;
            if let Some(protocol) = key.protocol {
                *port_refs.entry((protocol, key.port, key.is_node_port_row())).or_default() += 1;
            }
        }
        for set in self.rows.sets.values().filter(|set| set.header.next != SET_NONE) {
            refs.count(set.header.next, 1);
            links.count(set.header.next, 1);
        }
        ensure(links == self.links, || format!("links to sets: {links:?}, counted {:?}", self.links))?;
        ensure(refs == self.refs, || format!("references of sets: {refs:?}, counted {:?}", self.refs))?;
        ensure(port_refs == self.port_refs, || {
            format!("references of ports: {port_refs:?}, counted {:?}", self.port_refs)
        })
    }

    fn passes_filter(&self, key: &FrontendKey) -> bool {
        let words = match key.address.family() {
            crate::Family::V4 => &self.rows.ranges_v4,
            crate::Family::V6 => &self.rows.ranges_v6,
        };
        match key.protocol {
            None => words.iter().any(|word| range::contains(*word, key.address)),
            Some(protocol) => self
                .rows
                .ports
                .get(&(protocol, key.port))
                .is_some_and(|bits| if key.is_node_port_row() { bits.node_port } else { bits.frontend }),
        }
    }

    fn audit_sets(&self) -> Check {
        let named: BTreeMap<SetId, _> = self.sets.iter().map(|(name, id)| (*id, name)).collect();
        ensure(named.len() == self.rows.sets.len(), || {
            format!("{} sets, {} names", self.rows.sets.len(), named.len())
        })?;
        for (id, set) in self.rows.sets.iter() {
            let name = self.name_of_set(set);
            ensure(named.get(&id).copied() == name.as_ref(), || {
                format!("set {id} is {name:?}, known as {:?}", named.get(&id))
            })?;
            let listed = self.sets_of.get(set.owner).is_some_and(|all| all.contains(&id));
            ensure(listed, || format!("set {id} is not among those of owner {}", set.owner))?;
            let kept = name.as_ref().is_some_and(|name| self.pending.is_linked(name));
            ensure(kept || self.refs.contains(id), || format!("nothing leads to set {id} {name:?}"))?;
            for member in self.rows.members(set) {
                let fits = self.rows.backends.get(*member).is_some_and(|b| {
                    b.owner == set.owner
                        && b.state.roles & set.role as u8 != 0
                        && (set.role != Role::Node || b.node == set.node)
                });
                ensure(fits, || {
                    format!("backend {member} {:?} in set {id} {name:?}", self.rows.backends.get(*member))
                })?;
            }
        }
        Ok(())
    }

    fn audit_backends(&self) -> Check {
        let mut roles: HashMap<BackendId, u8> = HashMap::default();
        for set in self.rows.sets.values() {
            for member in self.rows.members(set) {
                *roles.entry(*member).or_default() |= set.role as u8;
            }
        }
        let mut counts: IdMap<u32> = IdMap::default();
        for (id, row) in self.rows.backends.iter() {
            counts.count(row.owner, 1);
            let wanted = roles.get(&id).copied().unwrap_or(0);
            let queued = self.sweep_queue.backends.contains(&id);
            ensure(queued || row.state.roles == wanted, || {
                format!("backend {id} {row:?} is in sets of roles {wanted}")
            })?;
        }
        ensure(counts == self.backend_count, || {
            format!("backends of owners: {counts:?}, counted {:?}", self.backend_count)
        })?;
        // A row may be missing from the index: a pod moved, and its newer row was dropped before it was used.
        let fits = |row: &BackendRow, key: &(OwnerId, Address, u16)| (row.owner, row.address, row.port) == *key;
        let stale =
            self.backends.iter().find(|(key, id)| !self.rows.backends.get(**id).is_some_and(|row| fits(row, key)));
        ensure(stale.is_none(), || format!("{stale:?} is no such backend"))
    }

    fn audit_names(&self) -> Check {
        let mut node_refs: IdMap<u32> = IdMap::default();
        let nodes = self.rows.backends.values().map(|b| b.node).chain(self.rows.sets.values().map(|s| s.node));
        nodes.filter(|node| *node != 0).for_each(|node| node_refs.count(node, 1));
        ensure(node_refs == self.node_refs, || {
            format!("references of nodes: {node_refs:?}, counted {:?}", self.node_refs)
        })?;
        let missing = node_refs.ids().find(|id| !self.rows.names.contains(*id));
        ensure(missing.is_none(), || format!("node {missing:?} has no name"))?;
        let known = self.owners.len() + self.nodes.len() + self.policies.len();
        ensure(known == self.rows.names.len(), || format!("{} names, {known} known", self.rows.names.len()))?;
        let mut owners = self.sets_of.ids().chain(self.rows.sources.iter().map(|(owner, _)| *owner));
        let unnamed = owners.find(|id| !self.rows.names.contains(*id));
        ensure(unnamed.is_none(), || format!("owner {unnamed:?} has no name"))
    }

    /// A set with a policy id has a named policy, and a bucket if it takes tokens. Everything else must be in the sweep
    /// queue.
    fn audit_policies(&self) -> Check {
        let (mut policies, mut limits): (IdMap<u32>, IdMap<u32>) = Default::default();
        for header in self.rows.sets.values().map(|set| set.header).filter(|header| header.policy != NO_POLICY) {
            policies.count(header.policy, 1);
            limits.count(header.policy, i32::from(header.limited));
            let named = self.policy_name(header.policy).is_some();
            ensure(named, || format!("policy {} has no name", header.policy))?;
        }
        ensure((&policies, &limits) == (&self.policy_refs, &self.limit_refs), || {
            format!("sets of policies: {policies:?} {limits:?}, counted {:?} {:?}", self.policy_refs, self.limit_refs)
        })?;
        let empty = limits.ids().find(|id| !self.rows.buckets.contains_key(id));
        ensure(empty.is_none(), || format!("policy {empty:?} has sets with a limit and no bucket"))?;
        let queued = |id: &PolicyId| self.sweep_queue.policies.contains(id);
        let unused = self.rows.buckets.keys().find(|id| !limits.contains(**id) && !queued(id));
        ensure(unused.is_none(), || format!("no set takes tokens of policy {unused:?}"))?;
        let unnamed = self.rows.selected.iter().find(|(id, _)| !policies.contains(*id) && !queued(id));
        ensure(unnamed.is_none(), || format!("{unnamed:?} is selected by no policy that has a set"))?;
        let left = self.policies.values().find(|id| !policies.contains(**id) && !queued(id));
        ensure(left.is_none(), || format!("policy {left:?} has no set"))
    }

    fn audit_ids(&self) -> Check {
        ensure(self.reserved.is_empty(), || format!("still reserved: {:?}", self.reserved))?;
        let of = |pick: fn(&ReleasedId) -> Option<u32>| self.quarantine.iter().filter_map(pick).collect::<Vec<u32>>();
        let kinds = [
            ("name", 1, &self.owner_ids, self.rows.names.ids().collect::<Vec<u32>>(), of(owner_id)),
            ("set", SET_FIRST, &self.set_ids, self.rows.sets.ids().collect(), of(set_id)),
            ("backend", 1, &self.backend_ids, self.rows.backends.ids().collect(), of(backend_id)),
        ];
        for (what, first, ids, used, quarantined) in kinds {
            let mut all: Vec<u32> = used.iter().chain(&ids.free).chain(&quarantined).copied().collect();
            all.sort_unstable();
            let expected: Vec<u32> = (first..ids.next).collect();
            ensure(all == expected, || {
                format!(
                    "{what} ids: used {used:?}, free {:?}, quarantined {quarantined:?}, next {}",
                    ids.free, ids.next
                )
            })?;
        }
        Ok(())
    }

    /// Every slot belongs to one set, is quarantined, or is free.
    fn audit_slots(&self, sizes: Sizes) -> Check {
        let mut parts: BTreeSet<(u32, u32, &str)> = self.free_slots.0.iter().map(|(b, l)| (*b, *l, "free")).collect();
        let mut count = parts.len();
        for (id, length) in self.capacity.iter() {
            let base = self.rows.sets.get(id).map(|set| set.span.base);
            let Some(Base::Range(base)) = base else {
                return Err(format!("set {id} has slots, but its base is {base:?}"));
            };
            parts.insert((base, *length, "set"));
            count += 1;
        }
        for released in &self.quarantine {
            if let ReleasedId::Range(base, length) = released {
                parts.insert((*base, *length, "quarantined"));
                count += 1;
            }
        }
        let mut at = 0;
        for (base, length, _) in &parts {
            ensure(*base == at, || format!("slots at {at}: {parts:?}"))?;
            at += length;
        }
        ensure(at == sizes.slots && count == parts.len(), || format!("slots end at {at}: {parts:?}"))
    }
}

fn owner_id(released: &ReleasedId) -> Option<u32> {
    if let ReleasedId::Owner(id) = released { Some(*id) } else { None }
}

fn set_id(released: &ReleasedId) -> Option<u32> {
    if let ReleasedId::Set(id) = released { Some(*id) } else { None }
}

fn backend_id(released: &ReleasedId) -> Option<u32> {
    if let ReleasedId::Backend(id) = released { Some(*id) } else { None }
}
