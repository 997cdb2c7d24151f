//! Tables: the mirror of what the kernel holds, with the indexes and free lists that give names their ids.
//!
//! The mirror moves only after a write succeeded (`apply`), so it is always the truth about the kernel; what failed is
//! simply still missing and is found again by the next diff. Ids that nobody points at any more are quarantined: they
//! are used again only after a grace period, because a dial that is under way may still hold them.

mod audit;
mod id;

use crate::address::Address;
use crate::by_id::ById;
use crate::hash::{HashMap, HashSet};
use crate::name::{Audience, Name, PortName, SetName, SetRole};
use crate::op::{MapError, Maps, Op};
use crate::row::*;
use id::{Ids, Stretches};
use std::collections::{BTreeMap, BTreeSet};

/// An id of any kind, or a stretch of slots: base and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Released {
    Owner(OwnerId),
    Set(SetId),
    Backend(BackendId),
    Range(u32, u32),
}

/// A dump does not show the generations of backends that are gone, and records of them may live on: leave them behind.
const RESTART_LEAP: u32 = 0x1_0000;

/// What may be in the way and was not yet seen to be gone. It outlives a round: a delete that failed is tried again by
/// the next round, whatever that one is about.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    /// Nobody claims these any more.
    pub frontends: BTreeSet<FrontendKey>,
    pub ports: BTreeSet<(crate::Protocol, u16)>,
    pub owners: BTreeSet<OwnerId>,
    pub backends: BTreeSet<BackendId>,
    pub nodes: BTreeSet<u32>,
    pub policies: BTreeSet<PolicyId>,
    /// Pods that their policy selects no more.
    pub selected: BTreeSet<(PolicyId, u64)>,
}

/// What is half written. It outlives a round too: until these are written whole, what they would fall through to stays as
/// it is, whatever the rounds in between are about.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub services: HashMap<crate::OwnerName, MapError>,
    /// Fallbacks above which a row could not be written, and whose that was.
    missing: HashMap<FrontendKey, Vec<crate::OwnerName>>,
    /// Fallbacks that could not be written themselves, and who claims them.
    waiting: HashMap<FrontendKey, Vec<crate::OwnerName>>,
    pub nodes: Option<MapError>,
    /// Sets that a half-written policy links to. Nothing may lead to them yet, and nobody would make them again for its
    /// next try.
    pub links: HashMap<crate::OwnerName, Vec<SetName>>,
}

impl Held {
    /// These are tried again now.
    pub(crate) fn try_again<'a>(&mut self, services: impl Iterator<Item = &'a crate::OwnerName>, nodes: bool) {
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

    /// This row could not be written.
    pub(crate) fn miss(&mut self, key: FrontendKey, service: &crate::OwnerName) {
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

    /// Why this fallback must wait.
    pub(crate) fn missing_above(&self, key: &FrontendKey) -> Option<&MapError> {
        self.missing.get(key)?.iter().find_map(|name| self.services.get(name))
    }
}

impl Touched {
    pub(crate) fn len(&self) -> usize {
        let rows = self.frontends.len() + self.ports.len() + self.owners.len() + self.backends.len() + self.nodes.len();
        rows + self.policies.len() + self.selected.len()
    }
}

#[derive(Debug)]
pub struct Tables {
    pub(crate) rows: Rows,
    pub(crate) owners: HashMap<PortName, OwnerId>,
    pub(crate) nodes: HashMap<Name, u32>,
    pub(crate) policies: HashMap<crate::OwnerName, PolicyId>,
    pub(crate) sets: HashMap<SetName, SetId>,
    pub(crate) sets_of: ById<Vec<SetId>>,
    pub(crate) backends: HashMap<(OwnerId, Address, u16), BackendId>,
    pub(crate) backend_count: ById<u32>,
    /// Frontends and links that point at a set.
    pub(crate) refs: ById<u32>,
    /// Links alone.
    pub(crate) links: ById<u32>,
    /// Backends and sets that name a node, by the id of its name.
    pub(crate) node_refs: ById<u32>,
    /// Sets that name a policy, and those of them that take its tokens.
    pub(crate) policy_refs: ById<u32>,
    pub(crate) limit_refs: ById<u32>,
    /// How many sets a policy has by the plan that was last made whole.
    pub(crate) policy_sets: ById<u32>,
    pub(crate) touched: Touched,
    pub(crate) held: Held,
    /// Slots that a set's range really has; its span says how many are used.
    pub(crate) capacity: ById<u32>,
    pub(crate) port_refs: HashMap<(crate::Protocol, u16, bool), u32>,
    numbers: HashMap<crate::OwnerName, (u32, u32)>,
    next_number: u32,
    generation: u32,
    owner_ids: Ids,
    set_ids: Ids,
    backend_ids: Ids,
    stretches: Stretches,
    quarantine: Vec<Released>,
    /// Taken in this round; in use only once a row says so.
    reserved: Vec<Released>,
    /// Went into quarantine in this round: not free, though no row says that they are in use.
    parted: HashSet<Released>,
    /// Ranges that a span points at since the last settling.
    committed_ranges: HashSet<u32>,
    /// Clusters whose policies nobody could list yet: a frontend that one of them holds stays with it.
    pub unlisted: BTreeSet<Name>,
    /// For the test that proves the grace period needed: recycle at once.
    pub skip_grace: bool,
}

impl Tables {
    pub fn new(sizes: Sizes) -> Tables {
        Tables::restore(Rows::default(), sizes)
    }

    /// From a dump: a set that is reachable from a frontend is live, any other is free (arrays forget nothing).
    pub fn restore(mut rows: Rows, sizes: Sizes) -> Tables {
        let live = rows.reachable_sets();
        rows.sets.retain(|id, _| live.contains(&id));
        let mut tables = Tables {
            owners: HashMap::default(),
            nodes: HashMap::default(),
            policies: HashMap::default(),
            sets: HashMap::default(),
            sets_of: ById::default(),
            backends: HashMap::default(),
            backend_count: ById::default(),
            refs: ById::default(),
            links: ById::default(),
            node_refs: ById::default(),
            policy_refs: ById::default(),
            limit_refs: ById::default(),
            policy_sets: ById::default(),
            touched: Touched::default(),
            held: Held::default(),
            capacity: ById::default(),
            port_refs: HashMap::default(),
            numbers: HashMap::default(),
            next_number: 1,
            generation: rows.backends.values().map(|b| b.state.generation).max().map_or(0, |last| last + RESTART_LEAP),
            owner_ids: Ids::restore(1, sizes.names, &rows.names),
            set_ids: Ids::restore(SET_FIRST, sizes.sets, &rows.sets),
            backend_ids: Ids::restore(1, sizes.backends, &rows.backends),
            stretches: Stretches(BTreeMap::from([(0, sizes.slots)])),
            quarantine: Vec::new(),
            reserved: Vec::new(),
            parted: HashSet::default(),
            committed_ranges: HashSet::default(),
            unlisted: BTreeSet::new(),
            skip_grace: false,
            rows: Rows::default(),
        };
        tables.index(&rows);
        tables.rows = rows;
        tables
    }

    fn index(&mut self, rows: &Rows) {
        for (id, row) in rows.names.iter() {
            self.index_name(id, row);
        }
        for (id, row) in rows.sets.iter() {
            self.index_set(id, row, name_of_set(rows, row));
        }
        for (id, row) in rows.backends.iter() {
            self.index_backend(id, row);
        }
        for (key, row) in &rows.frontends {
            self.index_frontend(key, Some(row), None);
        }
    }

    fn index_name(&mut self, id: OwnerId, row: &NameRow) {
        match row.kind {
            NameKind::Node => drop(self.nodes.insert(row.text.as_str().into(), id)),
            NameKind::ServicePort => {
                if let Some(name) = PortName::from_text(&row.text) {
                    self.index_port_name(id, name, row.number);
                }
            }
            NameKind::Policy => {
                if let Some(name) = crate::OwnerName::policy_from_text(&row.text) {
                    self.policies.insert(name, id);
                }
            }
        }
    }

    fn index_port_name(&mut self, id: OwnerId, name: PortName, number: u32) {
        let entry = self.numbers.entry(name.service.clone()).or_insert((number, 0));
        entry.1 += 1;
        self.next_number = self.next_number.max(number + 1);
        self.owners.insert(name, id);
    }

    fn index_set(&mut self, id: SetId, row: &SetRow, name: Option<SetName>) {
        self.sets_of.or_default(row.owner).push(id);
        if let Some(name) = name {
            self.sets.insert(name, id);
        }
        self.count_header(&row.header, 1);
        self.count_node(row.node, 1);
        // An empty span holds no slots, whatever its base says.
        if let Base::Range(base) = row.span.base
            && row.span.count > 0
        {
            self.stretches.carve(base, u32::from(row.span.count));
            self.capacity.insert(id, u32::from(row.span.count));
        }
    }

    /// What a set's header points at: the set below, and its policy.
    fn count_header(&mut self, header: &Header, step: i32) {
        if header.next != SET_NONE {
            self.refs.count(header.next, step);
            self.links.count(header.next, step);
        }
        if header.policy != NO_POLICY {
            self.policy_refs.count(header.policy, step);
            self.limit_refs.count(header.policy, if header.limited { step } else { 0 });
        }
        if step < 0 {
            self.touched.owners.extend(self.owner_of(header.next));
            self.touched.policies.extend((header.policy != NO_POLICY).then_some(header.policy));
        }
    }

    /// 0: no node.
    fn count_node(&mut self, node: u32, step: i32) {
        if node != 0 {
            self.node_refs.count(node, step);
        }
        if step < 0 && node != 0 {
            self.touched.nodes.insert(node);
        }
    }

    fn index_backend(&mut self, id: BackendId, row: &BackendRow) {
        self.backends.insert((row.owner, row.address, row.port), id);
        self.backend_count.count(row.owner, 1);
        self.count_node(row.node, 1);
    }

    fn index_frontend(&mut self, key: &FrontendKey, new: Option<&FrontendRow>, old: Option<&FrontendRow>) {
        for (row, step) in [(new, 1), (old, -1)] {
            let Some(row) = row else { continue };
            self.refs.count(row.set, step);
            if let Some(protocol) = key.protocol {
                count(&mut self.port_refs, (protocol, key.port, key.is_node_port_row()), step);
            }
        }
    }

    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Whether some set of this owner holds this backend now.
    pub fn has_backend(&self, owner: OwnerId, address: Address, port: u16) -> bool {
        self.backends.contains_key(&(owner, address, port))
    }

    /// Whether a dump shows what was written. Slots that no set uses may hold anything.
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

    /// Number of ids that wait for a grace period.
    pub fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    pub(crate) fn owner_of(&self, set: SetId) -> Option<OwnerId> {
        self.rows.sets.get(set).map(|s| s.owner)
    }

    pub fn port_name(&self, owner: OwnerId) -> Option<PortName> {
        self.rows.names.get(owner).and_then(|row| PortName::from_text(&row.text))
    }

    /// Whose number this is.
    pub fn policy_name(&self, policy: PolicyId) -> Option<crate::OwnerName> {
        let row = self.rows.names.get(policy).filter(|row| row.kind == NameKind::Policy)?;
        crate::OwnerName::policy_from_text(&row.text)
    }

    pub fn port_names(&self) -> impl Iterator<Item = (&PortName, OwnerId)> {
        self.owners.iter().map(|(name, id)| (name, *id))
    }

    /// Which Service or policy each row leads to.
    pub fn holders(&self) -> impl Iterator<Item = (FrontendKey, crate::OwnerName)> {
        let name = |set| Some(self.port_name(self.owner_of(set)?)?.service);
        self.rows.frontends.iter().filter_map(move |(key, row)| Some((*key, name(row.set)?)))
    }

    // ---- ids ----

    fn full(what: &'static str) -> MapError {
        MapError::Full(what)
    }

    pub(crate) fn take_owner(&mut self) -> Result<OwnerId, MapError> {
        let id = self.owner_ids.take().ok_or(Tables::full("name"))?;
        self.reserved.push(Released::Owner(id));
        Ok(id)
    }

    pub(crate) fn take_set(&mut self) -> Result<SetId, MapError> {
        let id = self.set_ids.take().ok_or(Tables::full("set"))?;
        self.reserved.push(Released::Set(id));
        Ok(id)
    }

    pub(crate) fn take_backend(&mut self) -> Result<(BackendId, u32), MapError> {
        let id = self.backend_ids.take().ok_or(Tables::full("backend"))?;
        self.reserved.push(Released::Backend(id));
        self.generation = (self.generation + 1) & 0xff_ffff;
        Ok((id, self.generation))
    }

    pub(crate) fn take_range(&mut self, count: usize) -> Result<(u32, u32), MapError> {
        let length = (count as u32).next_power_of_two();
        let base = self.stretches.take(length).ok_or(Tables::full("slot"))?;
        self.reserved.push(Released::Range(base, length));
        Ok((base, length))
    }

    /// The service's own number, shared by all its ports; never chosen by anybody outside.
    pub(crate) fn number_of(&mut self, service: &crate::OwnerName) -> u32 {
        if let Some((number, _)) = self.numbers.get(service) {
            return *number;
        }
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// After a round of writes: what was reserved and did not come into use is free again.
    pub(crate) fn settle(&mut self) {
        let ranges = std::mem::take(&mut self.committed_ranges);
        let parted = std::mem::take(&mut self.parted);
        for released in std::mem::take(&mut self.reserved) {
            let used = match released {
                Released::Owner(id) => self.rows.names.contains(id),
                Released::Set(id) => self.rows.sets.contains(id),
                Released::Backend(id) => self.rows.backends.contains(id),
                Released::Range(base, _) => ranges.contains(&base),
            };
            if !used && !parted.contains(&released) {
                self.free(released);
            }
        }
    }

    pub(crate) fn note_capacity(&mut self, set: SetId, capacity: u32) {
        self.capacity.insert(set, capacity);
    }

    pub(crate) fn release(&mut self, released: Released) {
        if self.skip_grace {
            self.reserved.retain(|taken| *taken != released);
            match released {
                Released::Set(id) => self.set_ids.free.push_front(id),
                Released::Backend(id) => self.backend_ids.free.push_front(id),
                Released::Owner(id) => self.owner_ids.free.push_front(id),
                Released::Range(base, length) => self.stretches.give(base, length),
            }
        } else {
            self.parted.insert(released);
            self.quarantine.push(released);
        }
    }

    fn free(&mut self, released: Released) {
        match released {
            Released::Owner(id) => self.owner_ids.free.push_back(id),
            Released::Set(id) => self.set_ids.free.push_back(id),
            Released::Backend(id) => self.backend_ids.free.push_back(id),
            Released::Range(base, length) => self.stretches.give(base, length),
        }
    }

    /// Waits until no dial can hold a released id, then frees them all. One wait serves any number of ids.
    pub fn recycle<M: Maps>(&mut self, maps: &mut M) -> Result<usize, MapError> {
        if self.quarantine.is_empty() {
            return Ok(0);
        }
        maps.grace()?;
        let parted = std::mem::take(&mut self.parted);
        if !parted.is_empty() {
            self.reserved.retain(|taken| !parted.contains(taken));
        }
        let freed = std::mem::take(&mut self.quarantine);
        let count = freed.len();
        freed.into_iter().for_each(|r| self.free(r));
        Ok(count)
    }

    // ---- the mirror ----

    /// A write succeeded.
    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Name(id, Some(row)) => self.index_name(*id, row),
            Op::Name(id, None) => self.forget_name(*id),
            Op::Backend(id, row) => self.index_backend(*id, row),
            Op::State(id, state) if state.roles == 0 => self.forget_backend(*id),
            Op::Frontend(key, new) => {
                let old = self.rows.frontends.get(key).copied();
                self.index_frontend(key, new.as_ref(), old.as_ref());
            }
            Op::Span(_, Span { base: Base::Range(base), .. }) => drop(self.committed_ranges.insert(*base)),
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

    /// A fresh name row of a service port: the caller has the name that the text would only be another copy of.
    pub(crate) fn apply_port_name(&mut self, op: &Op, name: &PortName) {
        if let Op::Name(id, Some(row)) = op {
            self.index_port_name(*id, name.clone(), row.number);
        }
        self.rows.apply(op);
    }

    /// A fresh set row: its name is known to the caller only.
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

    fn forget_name(&mut self, id: OwnerId) {
        self.release(Released::Owner(id));
        if let Some(row) = self.rows.names.get(id).filter(|row| row.kind == NameKind::Node) {
            self.nodes.remove(row.text.as_str());
        }
        if let Some(policy) = self.policy_name(id) {
            self.policies.remove(&policy);
            self.policy_sets.remove(id);
        }
        let Some(name) = self.port_name(id) else { return };
        if let Some(entry) = self.numbers.get_mut(&name.service) {
            entry.1 -= 1;
            if entry.1 == 0 {
                self.numbers.remove(&name.service);
            }
        }
        self.owners.remove(&name);
        self.backend_count.remove(id);
        self.sets_of.remove(id);
    }

    fn forget_backend(&mut self, id: BackendId) {
        if let Some(row) = self.rows.backends.get(id).copied() {
            let key = (row.owner, row.address, row.port);
            // A pod that moved to another node has a younger row under the same key.
            if self.backends.get(&key) == Some(&id) {
                self.backends.remove(&key);
            }
            self.backend_count.count(row.owner, -1);
            self.count_node(row.node, -1);
            self.release(Released::Backend(id));
        }
    }

    pub(crate) fn name_of_set(&self, row: &SetRow) -> Option<SetName> {
        name_of_set(&self.rows, row)
    }

    /// Nobody points at it: forget its name; its row stays as it is for dials that are under way.
    pub(crate) fn forget_set(&mut self, id: SetId) {
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
            self.release(Released::Range(base, length));
        }
        self.release(Released::Set(id));
    }
}

fn count<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u32>, key: K, step: i32) {
    let entry = counts.entry(key);
    match entry {
        std::collections::hash_map::Entry::Occupied(mut e) => {
            let next = e.get().saturating_add_signed(step);
            if next == 0 {
                e.remove();
            } else {
                *e.get_mut() = next;
            }
        }
        std::collections::hash_map::Entry::Vacant(e) if step > 0 => drop(e.insert(step as u32)),
        std::collections::hash_map::Entry::Vacant(_) => {}
    }
}

/// A set's row and the name table tell its name: that is what makes a restart possible.
fn name_of_set(rows: &Rows, row: &SetRow) -> Option<SetName> {
    let owner = PortName::from_text(&rows.names.get(row.owner)?.text)?;
    let role = match row.role {
        Role::Cluster => SetRole::Cluster,
        Role::Local => SetRole::Local,
        Role::Node => SetRole::Node(rows.names.get(row.node)?.text.as_str().into()),
    };
    let audience = match (row.header.restricted, row.header.own_node) {
        (true, _) => Audience::Sources,
        (false, true) => Audience::OwnNode,
        (false, false) => Audience::Everyone,
    };
    Some(SetName { owner, family: row.family, role, audience })
}
