//! A mirror of the kernel tables, with the indexes and free lists that give names their ids.
//!
//! The mirror changes only after a write succeeded (`apply`), so it always shows what the kernel has. A failed write is
//! still missing from the mirror, so the next diff finds it again. Ids that nothing refers to any more are quarantined:
//! they are reused only after a grace period, because a dial in progress may still use them.

mod audit;
mod id;
mod index;
mod pending;

use crate::ServiceName;
use crate::address::Address;
use crate::hash::{HashMap, HashSet};
use crate::id_map::IdMap;
use crate::name::{Name, PortName, SetName};
use crate::op::{MapError, Maps, Op};
use crate::row::*;
use id::{IdAllocator, SlotAllocator};
use index::name_of_set;
pub(crate) use pending::{PendingWrites, SweepQueue};
use std::collections::{BTreeMap, BTreeSet};

/// An id of any kind, or a range of slots (base and length).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ReleasedId {
    Owner(OwnerId),
    Set(SetId),
    Backend(BackendId),
    Range(u32, u32),
}

/// A dump does not show the generations of deleted backends, which socket records may still contain. After a restart,
/// generations continue beyond those.
const RESTART_GENERATION_STEP: u32 = 0x1_0000;

#[derive(Debug)]
pub struct Tables {
    pub(crate) rows: Rows,
    pub(crate) owners: HashMap<PortName, OwnerId>,
    pub(crate) nodes: HashMap<Name, u32>,
    pub(crate) policies: HashMap<ServiceName, PolicyId>,
    pub(crate) sets: HashMap<SetName, SetId>,
    pub(crate) sets_of: IdMap<Vec<SetId>>,
    pub(crate) backends: HashMap<(OwnerId, Address, u16), BackendId>,
    pub(crate) backend_count: IdMap<u32>,
    /// The number of frontends and links that refer to a set.
    pub(crate) refs: IdMap<u32>,
    /// The number of links that refer to a set.
    pub(crate) links: IdMap<u32>,
    /// The number of backends and sets that refer to a node, by the id of its name.
    pub(crate) node_refs: IdMap<u32>,
    /// The number of sets that refer to a policy, and of those that take its tokens.
    pub(crate) policy_refs: IdMap<u32>,
    pub(crate) limit_refs: IdMap<u32>,
    /// The number of sets in the last completely written plan of a policy.
    pub(crate) policy_sets: IdMap<u32>,
    pub(crate) sweep_queue: SweepQueue,
    pub(crate) pending: PendingWrites,
    /// The number of slots that a set's range has. Its span says how many are used.
    pub(crate) capacity: IdMap<u32>,
    pub(crate) port_refs: HashMap<(crate::Protocol, u16, bool), u32>,
    numbers: HashMap<ServiceName, (u32, u32)>,
    next_number: u32,
    generation: u32,
    owner_ids: IdAllocator,
    set_ids: IdAllocator,
    backend_ids: IdAllocator,
    free_slots: SlotAllocator,
    quarantine: Vec<ReleasedId>,
    /// Ids allocated in this round. They are in use only when a row uses them.
    reserved: Vec<ReleasedId>,
    /// Ids that were quarantined in this round. They are not free, although no row uses them.
    quarantined_this_round: HashSet<ReleasedId>,
    /// Ranges that spans refer to since the end of the last round.
    committed_ranges: HashSet<u32>,
    /// Clusters whose policies have not been listed yet. A frontend that one of their policies holds stays with it.
    pub unlisted: BTreeSet<Name>,
    /// Reuses ids at once. Only for the test that shows that the grace period is necessary.
    pub skip_grace: bool,
}

impl Tables {
    pub fn new(sizes: Sizes) -> Tables {
        Tables::restore(Rows::default(), sizes)
    }

    /// Restores the state from a dump: a set that is reachable from a frontend is live, every other set is free (BPF
    /// arrays keep old rows).
    pub fn restore(mut rows: Rows, sizes: Sizes) -> Tables {
        let live = rows.reachable_sets();
        rows.sets.retain(|id, _| live.contains(&id));
        let mut tables = Tables {
            owners: HashMap::default(),
            nodes: HashMap::default(),
            policies: HashMap::default(),
            sets: HashMap::default(),
            sets_of: IdMap::default(),
            backends: HashMap::default(),
            backend_count: IdMap::default(),
            refs: IdMap::default(),
            links: IdMap::default(),
            node_refs: IdMap::default(),
            policy_refs: IdMap::default(),
            limit_refs: IdMap::default(),
            policy_sets: IdMap::default(),
            sweep_queue: SweepQueue::default(),
            pending: PendingWrites::default(),
            capacity: IdMap::default(),
            port_refs: HashMap::default(),
            numbers: HashMap::default(),
            next_number: 1,
            generation: rows
                .backends
                .values()
                .map(|b| b.state.generation)
                .max()
                .map_or(0, |last| last + RESTART_GENERATION_STEP),
            owner_ids: IdAllocator::restore(1, sizes.names, &rows.names),
            set_ids: IdAllocator::restore(SET_FIRST, sizes.sets, &rows.sets),
            backend_ids: IdAllocator::restore(1, sizes.backends, &rows.backends),
            free_slots: SlotAllocator(BTreeMap::from([(0, sizes.slots)])),
            quarantine: Vec::new(),
            reserved: Vec::new(),
            quarantined_this_round: HashSet::default(),
            committed_ranges: HashSet::default(),
            unlisted: BTreeSet::new(),
            skip_grace: false,
            rows: Rows::default(),
        };
        tables.index(&rows);
        tables.rows = rows;
        tables
    }

    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Whether some set of this owner contains the backend.
    pub fn has_backend(&self, owner: OwnerId, address: Address, port: u16) -> bool {
        self.backends.contains_key(&(owner, address, port))
    }

    /// Whether a load-balancer address accepts only certain source addresses.
    pub fn has_source_ranges(&self) -> bool {
        !self.rows.sources.is_empty()
    }

    /// Whether a dump equals the mirror. Unused slots are ignored.
    pub fn matches(&self, dump: &Rows) -> bool {
        let Rows { frontends, sets, slots: _, backends, nodes, sources, .. } = &self.rows;
        let Rows { buckets, selected, names, ports, ranges_v4, ranges_v6, .. } = &self.rows;
        let same_members = |(id, set): (SetId, &SetRow)| {
            let other = dump.sets.get(id);
            other.is_some_and(|other| self.rows.members(set) == dump.members(other))
        };
        *frontends == dump.frontends
            && *sets == dump.sets
            && *backends == dump.backends
            && *nodes == dump.nodes
            && *sources == dump.sources
            && *buckets == dump.buckets
            && *selected == dump.selected
            && *names == dump.names
            && *ports == dump.ports
            && (*ranges_v4, *ranges_v6) == (dump.ranges_v4, dump.ranges_v6)
            && sets.iter().all(same_members)
    }

    /// The number of ids that wait for a grace period.
    pub fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    pub(crate) fn owner_of(&self, set: SetId) -> Option<OwnerId> {
        self.rows.sets.get(set).map(|s| s.owner)
    }

    pub fn port_name(&self, owner: OwnerId) -> Option<PortName> {
        self.rows.names.get(owner).and_then(|row| PortName::from_text(&row.text))
    }

    /// The policy with this id.
    pub fn policy_name(&self, policy: PolicyId) -> Option<ServiceName> {
        let row = self.rows.names.get(policy).filter(|row| row.kind == NameKind::Policy)?;
        ServiceName::policy_from_text(&row.text)
    }

    pub fn port_names(&self) -> impl Iterator<Item = (&PortName, OwnerId)> {
        self.owners.iter().map(|(name, id)| (name, *id))
    }

    /// The Service or policy that each frontend row leads to.
    pub fn frontend_owners(&self) -> impl Iterator<Item = (FrontendKey, ServiceName)> {
        let name = |set| Some(self.port_name(self.owner_of(set)?)?.service);
        self.rows.frontends.iter().filter_map(move |(key, row)| Some((*key, name(row.set)?)))
    }

    // ---- ids ----

    fn full(what: &'static str) -> MapError {
        MapError::Full(what)
    }

    pub(crate) fn allocate_owner(&mut self) -> Result<OwnerId, MapError> {
        let id = self.owner_ids.allocate().ok_or(Tables::full("name"))?;
        self.reserved.push(ReleasedId::Owner(id));
        Ok(id)
    }

    pub(crate) fn allocate_set(&mut self) -> Result<SetId, MapError> {
        let id = self.set_ids.allocate().ok_or(Tables::full("set"))?;
        self.reserved.push(ReleasedId::Set(id));
        Ok(id)
    }

    pub(crate) fn allocate_backend(&mut self) -> Result<(BackendId, u32), MapError> {
        let id = self.backend_ids.allocate().ok_or(Tables::full("backend"))?;
        self.reserved.push(ReleasedId::Backend(id));
        self.generation = (self.generation + 1) & 0xff_ffff;
        Ok((id, self.generation))
    }

    pub(crate) fn allocate_range(&mut self, count: usize) -> Result<(u32, u32), MapError> {
        let length = (count as u32).next_power_of_two();
        let base = self.free_slots.allocate(length).ok_or(Tables::full("slot"))?;
        self.reserved.push(ReleasedId::Range(base, length));
        Ok((base, length))
    }

    /// The number of a service, which all its ports share.
    pub(crate) fn number_of(&mut self, service: &ServiceName) -> u32 {
        if let Some((number, _)) = self.numbers.get(service) {
            return *number;
        }
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Called at the end of a round: frees the ids that were allocated and are not in use.
    pub(crate) fn end_round(&mut self) {
        let ranges = std::mem::take(&mut self.committed_ranges);
        let quarantined_this_round = std::mem::take(&mut self.quarantined_this_round);
        for released in std::mem::take(&mut self.reserved) {
            let used = match released {
                ReleasedId::Owner(id) => self.rows.names.contains(id),
                ReleasedId::Set(id) => self.rows.sets.contains(id),
                ReleasedId::Backend(id) => self.rows.backends.contains(id),
                ReleasedId::Range(base, _) => ranges.contains(&base),
            };
            if !used && !quarantined_this_round.contains(&released) {
                self.free(released);
            }
        }
    }

    pub(crate) fn note_capacity(&mut self, set: SetId, capacity: u32) {
        self.capacity.insert(set, capacity);
    }

    pub(crate) fn release(&mut self, released: ReleasedId) {
        if self.skip_grace {
            self.reserved.retain(|taken| *taken != released);
            match released {
                ReleasedId::Set(id) => self.set_ids.free.push_front(id),
                ReleasedId::Backend(id) => self.backend_ids.free.push_front(id),
                ReleasedId::Owner(id) => self.owner_ids.free.push_front(id),
                ReleasedId::Range(base, length) => self.free_slots.free(base, length),
            }
        } else {
            self.quarantined_this_round.insert(released);
            self.quarantine.push(released);
        }
    }

    fn free(&mut self, released: ReleasedId) {
        match released {
            ReleasedId::Owner(id) => self.owner_ids.free.push_back(id),
            ReleasedId::Set(id) => self.set_ids.free.push_back(id),
            ReleasedId::Backend(id) => self.backend_ids.free.push_back(id),
            ReleasedId::Range(base, length) => self.free_slots.free(base, length),
        }
    }

    /// Waits until no dial can use a quarantined id, then frees them all. One grace period serves any number of ids.
    pub fn recycle<M: Maps>(&mut self, maps: &mut M) -> Result<usize, MapError> {
        if self.quarantine.is_empty() {
            return Ok(0);
        }
        maps.wait_grace_period()?;
        let quarantined_this_round = std::mem::take(&mut self.quarantined_this_round);
        if !quarantined_this_round.is_empty() {
            self.reserved.retain(|taken| !quarantined_this_round.contains(taken));
        }
        let freed = std::mem::take(&mut self.quarantine);
        let count = freed.len();
        freed.into_iter().for_each(|r| self.free(r));
        Ok(count)
    }

    // ---- the mirror ----

    /// Updates the mirror after a successful write.
    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Name(id, Some(row)) => self.index_name(*id, row),
            Op::Name(id, None) => self.remove_name(*id),
            Op::Backend(id, row) => self.index_backend(*id, row),
            Op::State(id, state) if state.roles == 0 => self.remove_backend(*id),
            Op::Frontend(key, new) => {
                let old = self.rows.frontends.get(key).copied();
                self.index_frontend(key, new.as_ref(), old.as_ref());
            }
            Op::Span(_, SlotSpan { base: Base::Range(base), .. }) => drop(self.committed_ranges.insert(*base)),
            Op::Header(id, header) => {
                self.count_header(header, 1);
                if let Some(old) = self.rows.sets.get(*id).map(|set| set.header) {
                    self.count_header(&old, -1);
                }
            }
            _ => {}
        }
        self.rows.apply(op);
    }

    /// The same for a new name row of a service port. The caller passes the name, so that the text need not be parsed
    /// into a second copy.
    pub(crate) fn apply_port_name(&mut self, op: &Op, name: &PortName) {
        if let Op::Name(id, Some(row)) = op {
            self.index_port_name(*id, name.clone(), row.number);
        }
        self.rows.apply(op);
    }

    /// The same for a new set row, whose name only the caller knows.
    pub(crate) fn apply_set(&mut self, op: &Op, name: &SetName) {
        if let Op::Set(id, row) = op {
            self.sets_of.or_default(row.owner).push(*id);
            self.sets.insert(name.clone(), *id);
            if let Base::Range(base) = row.span.base {
                self.committed_ranges.insert(base);
            }
            self.count_header(&row.header, 1);
            self.count_node(row.node, 1);
        }
        self.rows.apply(op);
    }

    pub(crate) fn name_of_set(&self, row: &SetRow) -> Option<SetName> {
        name_of_set(&self.rows, row)
    }

    /// Removes a set that nothing refers to. Its row stays in the kernel for dials in progress.
    pub(crate) fn remove_set(&mut self, id: SetId) {
        let Some(row) = self.rows.sets.get(id).copied() else { return };
        if let Some(name) = self.name_of_set(&row) {
            self.sets.remove(&name);
        }
        self.rows.sets.remove(id);
        if let Some(all) = self.sets_of.get_mut(row.owner) {
            all.retain(|s| *s != id);
        }
        self.count_header(&row.header, -1);
        self.count_node(row.node, -1);
        if let (Base::Range(base), Some(length)) = (row.span.base, self.capacity.remove(id)) {
            self.release(ReleasedId::Range(base, length));
        }
        self.release(ReleasedId::Set(id));
    }
}
