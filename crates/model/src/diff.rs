//! The one diff: from the plan's delta and the mirror to ops, for change, start and periodic check alike.
//!
//! Order is everything. *Make*: names, backends, slots, sets, filter bits, then the visible frontends. *Break*: only what
//! the mirror shows to be unreferenced after the frontends have really moved, so a write that failed never leaves a
//! frontend that leads to something recycled. A set changes in place by single stores; whoever read an old span still
//! meets a backend of this set.

use crate::address::Address;
use crate::claim::Claim;
use crate::fact::Refusal;
use crate::name::{Name, PortName, Protocol, ServiceName, SetRole};
use crate::op::{MapError, Maps, Op};
use crate::plan::{BackendPlan, ServicePlan, SetPlan};
use crate::planner::Delta;
use crate::range;
use crate::row::*;
use crate::table::{Released, Tables};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Beyond this many single stores a new range and one flip of the span is cheaper, and never mixes old and new for long.
const IN_PLACE: usize = 16;
/// One grace period serves this many released ids.
const RECYCLE_AT: usize = 4096;

#[derive(Debug, Default)]
pub struct Outcome {
    pub ops: usize,
    /// To be tried again, with back-off.
    pub failed: BTreeMap<ServiceName, MapError>,
    /// Node rows that could not be written.
    pub nodes_failed: Option<MapError>,
    /// No set holds these any more.
    pub retired: Vec<(PortName, Address, u16)>,
}

impl Outcome {
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.nodes_failed.is_none()
    }

    pub fn refusals(&self) -> Vec<Refusal> {
        let refusal = |(name, error): (&ServiceName, &MapError)| Refusal {
            subject: format!("Service {name}"),
            reason: if matches!(error, MapError::Full(_)) { "tableFull" } else { "writeFailed" },
            message: match error {
                MapError::Full(what) => {
                    format!("the {what} table is full: what was programmed before keeps serving; raise --max-services and restart")
                }
                MapError::Failed(why) => format!("{why}: what was programmed before keeps serving; it is tried again"),
            },
        };
        self.failed.iter().map(refusal).collect()
    }
}

/// Brings the maps to the plan. `full`: the delta is the whole plan, so rows that it does not name go.
pub fn reconcile<M: Maps>(tables: &mut Tables, maps: &mut M, delta: &Delta, full: bool) -> Outcome {
    let mut work = Work { tables, maps, outcome: Outcome::default(), touched: Touched::default(), late: Vec::new() };
    if work.tables.quarantined() > RECYCLE_AT {
        let _ = work.tables.recycle(work.maps);
    }
    for (name, plan) in &delta.services {
        if let Some(plan) = plan {
            work.make(name, plan);
        }
    }
    work.put_nodes(delta);
    work.put_frontends(delta);
    work.tighten();
    work.delete_frontends(delta, full);
    work.delete_nodes(delta);
    work.sweep(delta, full);
    work.tables.settle();
    work.outcome
}

#[derive(Default)]
struct Touched {
    owners: BTreeSet<OwnerId>,
    backends: BTreeSet<BackendId>,
}

struct Work<'a, M> {
    tables: &'a mut Tables,
    maps: &'a mut M,
    outcome: Outcome,
    touched: Touched,
    /// Headers that narrow a meaning: only after the rows that take over are visible.
    late: Vec<(ServiceName, Op)>,
}

impl<M: Maps> Work<'_, M> {
    fn write(&mut self, op: Op) -> Result<(), MapError> {
        self.maps.write(&op)?;
        self.outcome.ops += 1;
        self.tables.apply(&op);
        Ok(())
    }

    fn fail(&mut self, name: &ServiceName, error: MapError) {
        self.outcome.failed.entry(name.clone()).or_insert(error);
    }

    /// Out of ids: those in quarantine may be enough.
    fn make(&mut self, name: &ServiceName, plan: &ServicePlan) {
        let mut result = self.make_service(name, plan);
        if matches!(result, Err(MapError::Full(_))) && self.tables.quarantined() > 0 {
            result = self.tables.recycle(self.maps).and_then(|_| self.make_service(name, plan));
        }
        if let Err(error) = result {
            self.fail(name, error);
        }
    }

    fn make_service(&mut self, name: &ServiceName, plan: &ServicePlan) -> Result<(), MapError> {
        for (owner, net) in &plan.sources {
            let id = self.owner(owner)?;
            if !self.tables.rows.sources.contains(&(id, *net)) {
                self.write(Op::Source(id, *net, true))?;
            }
        }
        for set in &plan.sets {
            self.make_set(name, set)?;
        }
        Ok(())
    }

    fn owner(&mut self, name: &PortName) -> Result<OwnerId, MapError> {
        if let Some(id) = self.tables.owners.get(name) {
            return Ok(*id);
        }
        let id = self.tables.take_owner()?;
        let number = self.tables.number_of(&name.service);
        self.write(Op::ZeroCounters(id))?;
        self.write(Op::Name(id, Some(NameRow { kind: NameKind::ServicePort, number, text: name.to_text() })))?;
        Ok(id)
    }

    fn node(&mut self, name: &Name) -> Result<u32, MapError> {
        if let Some(id) = self.tables.nodes.get(name) {
            return Ok(*id);
        }
        let id = self.tables.take_owner()?;
        self.write(Op::Name(id, Some(NameRow { kind: NameKind::Node, number: 0, text: name.to_string() })))?;
        Ok(id)
    }

    /// The backend's id, with a state that already says it is in a set of this role.
    fn backend(&mut self, owner: OwnerId, plan: &BackendPlan, role: Role) -> Result<BackendId, MapError> {
        if let Some(id) = self.tables.backends.get(&(owner, plan.address, plan.port)).copied() {
            let row = self.tables.rows.backends[&id];
            let node = plan.node.as_ref().map_or(Ok(0), |n| self.node(n))?;
            if row.node != node {
                // A pod that moved without a new address: only its node differs, and rows are written once.
                return self.fresh_backend(owner, plan, row.state.roles | role as u8);
            }
            if row.state.roles & role as u8 == 0 {
                let roles = row.state.roles | role as u8;
                self.write(Op::State(id, State { roles, ..row.state }))?;
            }
            return Ok(id);
        }
        self.fresh_backend(owner, plan, role as u8)
    }

    fn fresh_backend(&mut self, owner: OwnerId, plan: &BackendPlan, roles: u8) -> Result<BackendId, MapError> {
        if let Some(old) = self.tables.backends.get(&(owner, plan.address, plan.port)) {
            self.touched.backends.insert(*old);
        }
        let node = plan.node.as_ref().map_or(Ok(0), |n| self.node(n))?;
        let (id, generation) = self.tables.take_backend()?;
        let state = State { generation, roles };
        self.write(Op::Backend(id, BackendRow { address: plan.address, port: plan.port, node, owner, state }))?;
        Ok(id)
    }

    fn make_set(&mut self, service: &ServiceName, plan: &SetPlan) -> Result<(), MapError> {
        let owner = self.owner(&plan.name.owner)?;
        self.touched.owners.insert(owner);
        let role = role_of(&plan.name.role);
        let mut wanted = Vec::with_capacity(plan.backends.len());
        for backend in &plan.backends {
            wanted.push(self.backend(owner, backend, role)?);
        }
        let next = plan.next.as_ref().and_then(|name| self.tables.sets.get(name)).copied().unwrap_or(SET_NONE);
        let header = Header {
            next,
            affinity: plan.affinity,
            limit: 0,
            when_empty: plan.when_empty,
            restricted: plan.name.restricted,
            own_node: plan.own_node,
        };
        match self.tables.sets.get(&plan.name).copied() {
            Some(id) => self.change_set(service, id, &wanted, header),
            None => self.create_set(plan, owner, &wanted, header),
        }
    }

    fn create_set(
        &mut self,
        plan: &SetPlan,
        owner: OwnerId,
        wanted: &[BackendId],
        header: Header,
    ) -> Result<(), MapError> {
        let id = self.tables.take_set()?;
        let (base, capacity) = self.write_slots(wanted)?;
        let mut inline = [0; INLINE_SLOTS];
        if base == Base::Inline {
            inline[..wanted.len()].copy_from_slice(wanted);
        }
        let node = match &plan.name.role {
            SetRole::Node(name) => self.node(name)?,
            _ => 0,
        };
        let span = Span { base, count: wanted.len() as u16, generation: 0 };
        let (family, role, rule) = (plan.name.family, role_of(&plan.name.role), plan.rule);
        let op = Op::Set(id, Box::new(SetRow { span, owner, family, role, node, rule, header, inline }));
        self.maps.write(&op)?;
        self.outcome.ops += 1;
        self.tables.apply_set(&op, &plan.name);
        self.note_capacity(id, capacity);
        Ok(())
    }

    fn note_capacity(&mut self, id: SetId, capacity: Option<u32>) {
        match capacity {
            Some(capacity) => self.tables.note_capacity(id, capacity),
            None => drop(self.tables.capacity.remove(&id)),
        }
    }

    /// Ids where no reader looks yet.
    fn write_slots(&mut self, wanted: &[BackendId]) -> Result<(Base, Option<u32>), MapError> {
        if wanted.len() <= INLINE_SLOTS {
            return Ok((Base::Inline, None));
        }
        let (base, capacity) = self.tables.take_range(wanted.len())?;
        self.write(Op::Slots(base, wanted.into()))?;
        Ok((Base::Range(base), Some(capacity)))
    }

    fn change_set(
        &mut self,
        service: &ServiceName,
        id: SetId,
        wanted: &[BackendId],
        header: Header,
    ) -> Result<(), MapError> {
        let row = self.tables.rows.sets[&id];
        // What an empty set means must be in place before it is empty, and go only after it no longer is.
        let shrinks = wanted.is_empty();
        if shrinks {
            self.change_header(service, id, row.header, header)?;
        }
        self.change_members(id, &row, wanted)?;
        if !shrinks {
            self.change_header(service, id, row.header, header)?;
        }
        Ok(())
    }

    fn change_header(&mut self, service: &ServiceName, id: SetId, old: Header, new: Header) -> Result<(), MapError> {
        if old == new {
            return Ok(());
        }
        if new.own_node && !old.own_node {
            self.late.push((service.clone(), Op::Header(id, new)));
            return if (Header { own_node: false, ..new }) == old {
                Ok(())
            } else {
                self.write(Op::Header(id, Header { own_node: false, ..new }))
            };
        }
        self.write(Op::Header(id, new))
    }

    fn change_members(&mut self, id: SetId, row: &SetRow, wanted: &[BackendId]) -> Result<(), MapError> {
        let current = self.tables.rows.members(row).to_vec();
        let (added, removed) = difference(&current, wanted);
        if added.is_empty() && removed.is_empty() {
            return Ok(());
        }
        self.touched.backends.extend(removed.iter().copied());
        let capacity = self.tables.capacity.get(&id).copied().unwrap_or(INLINE_SLOTS as u32) as usize;
        let kept = current.len() > removed.len();
        if kept && added.len() + removed.len() <= IN_PLACE && current.len() + added.len() <= capacity {
            return self.change_in_place(id, row.span, current, &added, &removed);
        }
        if wanted.is_empty() {
            return self.write(Op::Span(id, Span { count: 0, generation: row.span.generation.wrapping_add(1), ..row.span }));
        }
        self.flip(id, row.span, wanted)
    }

    /// Adds first: slot, then span. Then removals: the last id into the hole, then the shorter span.
    fn change_in_place(
        &mut self,
        id: SetId,
        mut span: Span,
        mut members: Vec<BackendId>,
        added: &[BackendId],
        removed: &[BackendId],
    ) -> Result<(), MapError> {
        for backend in added {
            self.write(Op::Slot(id, span.base, span.count, *backend))?;
            members.push(*backend);
            span = Span { count: span.count + 1, generation: span.generation.wrapping_add(1), ..span };
            self.write(Op::Span(id, span))?;
        }
        for backend in removed {
            let Some(hole) = members.iter().position(|m| m == backend) else { continue };
            let last = members.len() - 1;
            if hole != last {
                self.write(Op::Slot(id, span.base, hole as u16, members[last]))?;
            }
            members.swap_remove(hole);
            span = Span { count: span.count - 1, generation: span.generation.wrapping_add(1), ..span };
            self.write(Op::Span(id, span))?;
        }
        Ok(())
    }

    /// A new range beside the old one, then one store of the span.
    fn flip(&mut self, id: SetId, old: Span, wanted: &[BackendId]) -> Result<(), MapError> {
        let (base, capacity) = match old.base {
            // The row's own slots are free to be written: no span points at them now.
            Base::Range(_) if wanted.len() <= INLINE_SLOTS => {
                for (i, backend) in wanted.iter().enumerate() {
                    self.write(Op::Slot(id, Base::Inline, i as u16, *backend))?;
                }
                (Base::Inline, None)
            }
            Base::Inline if old.count == 0 && wanted.len() <= INLINE_SLOTS => {
                for (i, backend) in wanted.iter().enumerate() {
                    self.write(Op::Slot(id, Base::Inline, i as u16, *backend))?;
                }
                (Base::Inline, None)
            }
            _ => {
                let (base, capacity) = self.tables.take_range(wanted.len())?;
                self.write(Op::Slots(base, wanted.into()))?;
                (Base::Range(base), Some(capacity))
            }
        };
        let span = Span { base, count: wanted.len() as u16, generation: old.generation.wrapping_add(1) };
        self.write(Op::Span(id, span))?;
        if let (Base::Range(base), Some(length)) = (old.base, self.tables.capacity.get(&id).copied()) {
            self.tables.release(Released::Range(base, length.max(1)));
        }
        self.note_capacity(id, capacity);
        Ok(())
    }

    // ---- what is visible ----

    fn put_nodes(&mut self, delta: &Delta) {
        for (address, row) in delta.nodes.iter().flatten() {
            if self.tables.rows.nodes.get(address) != Some(row)
                && let Err(error) = self.write(Op::Node(*address, Some(*row)))
            {
                self.outcome.nodes_failed = Some(error);
            }
        }
    }

    fn delete_nodes(&mut self, delta: &Delta) {
        let Some(wanted) = &delta.nodes else { return };
        let stale: Vec<Address> = self.tables.rows.nodes.keys().filter(|a| !wanted.contains_key(a)).copied().collect();
        for address in stale {
            if let Err(error) = self.write(Op::Node(address, None)) {
                self.outcome.nodes_failed = Some(error);
            }
        }
    }

    /// The row that a claim wants; `None`: its set could not be made.
    fn frontend_row(&self, claim: &Claim) -> Option<FrontendRow> {
        let set = match &claim.set {
            Some(name) => *self.tables.sets.get(name)?,
            None => SET_CLOSED,
        };
        Some(FrontendRow { set, kind: claim.kind })
    }

    fn put_frontends(&mut self, delta: &Delta) {
        let mut puts: Vec<(&ServiceName, Op)> = Vec::new();
        for (key, claim) in delta.frontends.iter().filter_map(|(key, claim)| Some((key, claim.as_ref()?))) {
            let Some(row) = self.frontend_row(claim) else {
                self.fail(&claim.service, MapError::Failed(format!("{key:?}: its set could not be written")));
                continue;
            };
            let old = self.tables.rows.frontends.get(key);
            if old == Some(&row) {
                continue;
            }
            if let Some(owner) = old.and_then(|old| self.tables.owner_of(old.set)) {
                self.touched.owners.insert(owner);
            }
            match self.open_filter(key) {
                Ok(()) => puts.push((&claim.service, Op::Frontend(*key, Some(row)))),
                Err(error) => self.fail(&claim.service, error),
            }
        }
        self.write_many(puts);
    }

    /// Writes as many as it can; a failed one fails its service and no other.
    fn write_many(&mut self, writes: Vec<(&ServiceName, Op)>) {
        let (names, ops): (Vec<&ServiceName>, Vec<Op>) = writes.into_iter().unzip();
        let mut at = 0;
        while at < ops.len() {
            let (written, error) = self.maps.write_all(&ops[at..]);
            ops[at..at + written].iter().for_each(|op| self.tables.apply(op));
            self.outcome.ops += written;
            at += written;
            let Some(error) = error else { continue };
            self.fail(names[at], error);
            at += 1;
        }
    }

    /// The filter must let a dial through before the row that it should find is there.
    fn open_filter(&mut self, key: &FrontendKey) -> Result<(), MapError> {
        let Some(protocol) = key.protocol else {
            let words = match key.address.family() {
                crate::Family::V4 => self.tables.rows.ranges_v4,
                crate::Family::V6 => self.tables.rows.ranges_v6,
            };
            for (i, word) in range::cover(&words, key.address) {
                self.write(Op::Range(key.address.family(), i, word))?;
            }
            return Ok(());
        };
        let old = self.tables.rows.ports.get(&(protocol, key.port)).copied().unwrap_or_default();
        let mut bits = old;
        if key.is_node_port_row() { bits.node_port = true } else { bits.frontend = true }
        if bits == old { Ok(()) } else { self.write(Op::Port(protocol, key.port, bits)) }
    }

    fn tighten(&mut self) {
        for (service, op) in std::mem::take(&mut self.late) {
            if self.outcome.failed.contains_key(&service) {
                continue;
            }
            if let Err(error) = self.write(op) {
                self.fail(&service, error);
            }
        }
    }

    // ---- break ----

    fn delete_frontends(&mut self, delta: &Delta, full: bool) {
        let mut gone: Vec<FrontendKey> =
            delta.frontends.iter().filter(|(_, claim)| claim.is_none()).map(|(key, _)| *key).collect();
        if full {
            let wanted: HashSet<&FrontendKey> = delta.frontends.iter().map(|(key, _)| key).collect();
            gone.extend(self.tables.rows.frontends.keys().filter(|key| !wanted.contains(key)));
        }
        let mut ports: BTreeSet<(Protocol, u16)> = BTreeSet::new();
        for key in gone {
            let Some(row) = self.tables.rows.frontends.get(&key).copied() else { continue };
            self.touched.owners.extend(self.tables.owner_of(row.set));
            ports.extend(key.protocol.map(|p| (p, key.port)));
            if let Err(error) = self.write(Op::Frontend(key, None)) {
                let owner = self.tables.owner_of(row.set).and_then(|o| self.tables.port_name(o));
                if let Some(owner) = owner {
                    self.fail(&owner.service, error);
                } else {
                    self.outcome.nodes_failed = Some(error);
                }
            }
        }
        for (protocol, port) in ports {
            self.close_filter(protocol, port);
        }
    }

    /// Too open is only slower, so a failure here is left to the next time.
    fn close_filter(&mut self, protocol: Protocol, port: u16) {
        let used = |node_port| self.tables.port_refs.contains_key(&(protocol, port, node_port));
        let bits = PortBits { frontend: used(false), node_port: used(true) };
        if self.tables.rows.ports.get(&(protocol, port)).copied().unwrap_or_default() != bits {
            let _ = self.write(Op::Port(protocol, port, bits));
        }
    }

    /// By what the mirror shows now: sets that nothing leads to, backends in no set, owners with neither.
    fn sweep(&mut self, delta: &Delta, full: bool) {
        if full {
            self.touched.owners.extend(self.tables.owners.values());
            self.touched.owners.extend(self.tables.sets_of.keys());
            self.touched.backends.extend(self.tables.rows.backends.keys());
        }
        let sources = wanted_sources(delta);
        let owners = std::mem::take(&mut self.touched.owners);
        for owner in &owners {
            self.sweep_sets(*owner);
        }
        for backend in std::mem::take(&mut self.touched.backends) {
            self.sweep_backend(backend);
        }
        for owner in owners {
            self.sweep_owner(owner, &sources);
        }
    }

    fn sweep_sets(&mut self, owner: OwnerId) {
        let unused: Vec<SetId> = self.tables.sets_of.get(&owner).into_iter().flatten().copied().filter(|id| !self.tables.refs.contains_key(id)).collect();
        for id in unused {
            let row = self.tables.rows.sets[&id];
            self.touched.backends.extend(self.tables.rows.members(&row).iter().copied());
            self.tables.forget_set(id);
        }
    }

    fn sweep_backend(&mut self, id: BackendId) {
        let Some(row) = self.tables.rows.backends.get(&id).copied() else { return };
        let roles = self.roles(id, row.owner);
        if roles == row.state.roles {
            return;
        }
        let name = self.tables.port_name(row.owner);
        match self.write(Op::State(id, State { roles, ..row.state })) {
            Ok(()) if roles == 0 => self.outcome.retired.extend(name.map(|n| (n, row.address, row.port))),
            Ok(()) => {}
            Err(error) => {
                if let Some(name) = name {
                    self.fail(&name.service, error);
                }
            }
        }
    }

    fn roles(&self, backend: BackendId, owner: OwnerId) -> u8 {
        let sets = self.tables.sets_of.get(&owner).into_iter().flatten();
        let holds = |row: &&SetRow| self.tables.rows.members(row).contains(&backend);
        sets.filter_map(|id| self.tables.rows.sets.get(id)).filter(holds).fold(0, |roles, row| roles | row.role as u8)
    }

    fn sweep_owner(&mut self, owner: OwnerId, wanted: &HashSet<(PortName, ipnet::IpNet)>) {
        let name = self.tables.port_name(owner);
        let all = (owner, LOWEST)..=(owner, HIGHEST);
        let nets: Vec<ipnet::IpNet> = self.tables.rows.sources.range(all).map(|(_, net)| *net).collect();
        for net in nets {
            if name.as_ref().is_none_or(|n| !wanted.contains(&(n.clone(), net))) {
                let _ = self.write(Op::Source(owner, net, false));
            }
        }
        let in_use = self.tables.backend_count.contains_key(&owner)
            || self.tables.sets_of.get(&owner).is_some_and(|sets| !sets.is_empty());
        let named = self.tables.rows.names.get(&owner).is_some_and(|row| row.kind == NameKind::ServicePort);
        if named && !in_use {
            let _ = self.write(Op::Name(owner, None));
        }
    }
}

const LOWEST: ipnet::IpNet = ipnet::IpNet::V4(match ipnet::Ipv4Net::new(std::net::Ipv4Addr::UNSPECIFIED, 0) {
    Ok(net) => net,
    Err(_) => unreachable!(),
});
const HIGHEST: ipnet::IpNet = ipnet::IpNet::V6(match ipnet::Ipv6Net::new(std::net::Ipv6Addr::from_bits(u128::MAX), 128) {
    Ok(net) => net,
    Err(_) => unreachable!(),
});

fn wanted_sources(delta: &Delta) -> HashSet<(PortName, ipnet::IpNet)> {
    delta.services.iter().filter_map(|(_, plan)| plan.as_ref()).flat_map(|plan| plan.sources.iter().cloned()).collect()
}

fn role_of(role: &SetRole) -> Role {
    match role {
        SetRole::Cluster => Role::Cluster,
        SetRole::Local => Role::Local,
        SetRole::Node(_) => Role::Node,
    }
}

/// Multiset difference: what must be added, what must go. Weights are repeated ids.
fn difference(current: &[BackendId], wanted: &[BackendId]) -> (Vec<BackendId>, Vec<BackendId>) {
    let (mut a, mut b) = (current.to_vec(), wanted.to_vec());
    a.sort_unstable();
    b.sort_unstable();
    let (mut i, mut j) = (0, 0);
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    while i < a.len() || j < b.len() {
        match (a.get(i), b.get(j)) {
            (Some(x), Some(y)) if x == y => (i, j) = (i + 1, j + 1),
            (Some(x), Some(y)) if x < y => {
                removed.push(*x);
                i += 1;
            }
            (Some(x), None) => {
                removed.push(*x);
                i += 1;
            }
            (_, Some(y)) => {
                added.push(*y);
                j += 1;
            }
            (None, None) => break,
        }
    }
    (added, removed)
}
