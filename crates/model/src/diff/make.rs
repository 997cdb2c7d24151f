//! *Make*: names, sources, backends, slots and sets, none of them visible before a frontend leads to it.
//!
//! A set that is visible already changes by single stores, each of which leaves it whole.

use super::Work;
use crate::address::Family;
use crate::name::{Audience, Name, OwnerName, PortName, SetRole};
use crate::op::{MapError, Maps, Op};
use crate::plan::{BackendPlan, ServicePlan, SetPlan, SetPolicy};
use crate::row::*;
use crate::table::Released;
use ipnet::IpNet;
use std::collections::BTreeSet;

/// Beyond this many single stores a new range and one flip of the span is cheaper, and never mixes old and new for long.
const IN_PLACE: usize = 16;

impl<M: Maps> Work<'_, M> {
    /// Out of ids: those in quarantine may be enough.
    pub(super) fn make(&mut self, name: &OwnerName, plan: &ServicePlan) {
        if self.outcome.failed.contains_key(name) {
            return;
        }
        let mut result = self.make_service(name, plan);
        if matches!(result, Err(MapError::Full(_))) && self.tables.quarantined() > 0 {
            result = self.tables.recycle(self.maps).and_then(|_| self.make_service(name, plan));
        }
        if let Err(error) = result {
            self.fail(name, error);
        }
    }

    fn make_service(&mut self, name: &OwnerName, plan: &ServicePlan) -> Result<(), MapError> {
        self.make_sources(plan)?;
        self.relink(plan)?;
        self.make_policy(name, plan)?;
        for set in &plan.sets {
            self.make_set(name, set)?;
        }
        self.mark_members(name, plan);
        Ok(())
    }

    /// New ranges first, then the old ones go at once, before another address leads to these sets. Where a family has no
    /// ranges any more, the old ones stay until nothing asks for them (`sweep_owner`).
    fn make_sources(&mut self, plan: &ServicePlan) -> Result<(), MapError> {
        let mut wanted: BTreeSet<(OwnerId, IpNet)> = BTreeSet::new();
        for (owner, net) in &plan.sources {
            let id = self.owner(owner)?;
            wanted.insert((id, *net));
            if !self.tables.rows.sources.contains(&(id, *net)) {
                self.write(Op::Source(id, *net, true))?;
            }
        }
        let ruled: BTreeSet<(OwnerId, Family)> = wanted.iter().map(|(id, net)| (*id, Family::of(net.addr()))).collect();
        for (owner, family) in ruled {
            let stale = |net: &IpNet| Family::of(net.addr()) == family && !wanted.contains(&(owner, *net));
            for net in self.tables.rows.sources_of(owner).filter(stale).collect::<Vec<_>>() {
                self.write(Op::Source(owner, net, false))?;
            }
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
        let op = Op::Name(id, Some(NameRow { kind: NameKind::ServicePort, number, text: name.to_text() }));
        self.maps.write(&op)?;
        self.outcome.ops += 1;
        self.tables.apply_port_name(&op, name);
        self.tables.touched.owners.insert(id);
        Ok(id)
    }

    fn node(&mut self, name: &Name) -> Result<u32, MapError> {
        if let Some(id) = self.tables.nodes.get(name) {
            return Ok(*id);
        }
        let id = self.tables.take_owner()?;
        self.write(Op::Name(id, Some(NameRow { kind: NameKind::Node, number: 0, text: name.to_string() })))?;
        self.tables.touched.nodes.insert(id);
        Ok(id)
    }

    /// The backend's id, with a state that already says it is in a set of this role.
    fn backend(&mut self, owner: OwnerId, plan: &BackendPlan, role: Role) -> Result<BackendId, MapError> {
        if let Some(id) = self.tables.backends.get(&(owner, plan.address, plan.port)).copied() {
            let row = self.tables.rows.backends[id];
            let node = plan.node.as_ref().map_or(Ok(0), |n| self.node(n))?;
            if row.node != node {
                // A pod that moved without a new address: only its node differs, and rows are written once.
                let moved = self.fresh_backend(owner, plan, role)?;
                self.tables.touched.backends.insert(id);
                return Ok(moved);
            }
            if row.state.roles & role as u8 == 0 {
                let roles = row.state.roles | role as u8;
                self.write(Op::State(id, State { roles, ..row.state }))?;
            }
            return Ok(id);
        }
        self.fresh_backend(owner, plan, role)
    }

    fn fresh_backend(&mut self, owner: OwnerId, plan: &BackendPlan, role: Role) -> Result<BackendId, MapError> {
        let node = plan.node.as_ref().map_or(Ok(0), |n| self.node(n))?;
        let (id, generation) = self.tables.take_backend()?;
        let state = State { generation, roles: role as u8 };
        self.write(Op::Backend(id, BackendRow { address: plan.address, port: plan.port, node, owner, state }))?;
        Ok(id)
    }

    fn make_set(&mut self, service: &OwnerName, plan: &SetPlan) -> Result<(), MapError> {
        let owner = self.owner(&plan.name.owner)?;
        self.tables.touched.owners.insert(owner);
        let mut wanted = Vec::with_capacity(plan.backends.len());
        let made = self.fill_set(service, plan, owner, &mut wanted);
        if made.is_err() {
            // Backends that were made, or given this role, for a set that is not there.
            self.tables.touched.backends.extend(wanted);
        }
        made
    }

    fn fill_set(
        &mut self,
        service: &OwnerName,
        plan: &SetPlan,
        owner: OwnerId,
        wanted: &mut Vec<BackendId>,
    ) -> Result<(), MapError> {
        for backend in &plan.backends {
            wanted.push(self.backend(owner, backend, role_of(&plan.name.role))?);
        }
        let asks = plan.policy.filter(SetPolicy::asks).unwrap_or_default();
        let next = self.set_below(plan)?;
        if let Some(error) = self.no_room_below(plan, next) {
            // To be linked when there is.
            self.fail(service, error);
        }
        let header = Header {
            next,
            affinity: plan.affinity,
            policy: if asks.asks() {
                self.tables.policies.get(service).copied().unwrap_or(NO_POLICY)
            } else {
                NO_POLICY
            },
            limited: asks.limit.is_some(),
            self_next: asks.self_next,
            when_empty: plan.header_when_empty(),
            restricted: plan.name.audience == Audience::Sources,
            own_node: plan.name.audience == Audience::OwnNode,
        };
        match self.tables.sets.get(&plan.name).copied() {
            Some(id) if plan.policy.is_some() => {
                self.change_members(service, id, wanted)?;
                self.change_policy_header(service, id, header)
            }
            Some(id) => self.change_set(service, id, wanted, header),
            None => self.create_set(plan, owner, wanted, header),
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
        let fits = wanted.len() <= INLINE_SLOTS;
        let (base, capacity) = if fits { (Base::Inline, None) } else { self.write_range(wanted)? };
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
            None => drop(self.tables.capacity.remove(id)),
        }
    }

    fn write_inline(&mut self, id: SetId, wanted: &[BackendId]) -> Result<(Base, Option<u32>), MapError> {
        for (i, backend) in wanted.iter().enumerate() {
            self.write(Op::Slot(id, Base::Inline, i as u16, *backend))?;
        }
        Ok((Base::Inline, None))
    }

    /// Ids where no reader looks yet.
    fn write_range(&mut self, wanted: &[BackendId]) -> Result<(Base, Option<u32>), MapError> {
        let (base, capacity) = self.tables.take_range(wanted.len())?;
        self.write(Op::Slots(base, wanted.into()))?;
        Ok((Base::Range(base), Some(capacity)))
    }

    fn change_set(
        &mut self,
        service: &OwnerName,
        id: SetId,
        wanted: &[BackendId],
        header: Header,
    ) -> Result<(), MapError> {
        let row = self.tables.rows.sets[id];
        // What an empty set means must be in place before it is empty, and go only after it no longer is.
        let empties = wanted.is_empty() && row.span.count > 0;
        if empties {
            self.change_header(id, row.header, header)?;
        }
        self.change_members(service, id, wanted)?;
        if header.own_node && !empties && header.when_empty != row.header.when_empty {
            self.late.push((service.clone(), Op::Header(id, header)));
            return Ok(());
        }
        if empties { Ok(()) } else { self.change_header(id, row.header, header) }
    }

    pub(super) fn change_header(&mut self, id: SetId, old: Header, new: Header) -> Result<(), MapError> {
        if old == new { Ok(()) } else { self.write(Op::Header(id, new)) }
    }

    fn change_members(&mut self, service: &OwnerName, id: SetId, wanted: &[BackendId]) -> Result<(), MapError> {
        let row = self.tables.rows.sets[id];
        let current = self.tables.rows.members(&row).to_vec();
        let (added, removed) = difference(&current, wanted);
        if added.is_empty() && removed.is_empty() {
            return Ok(());
        }
        if wanted.is_empty() {
            self.empties.push((service.clone(), id));
            return Ok(());
        }
        self.tables.touched.backends.extend(removed.iter().copied());
        // A range of the largest sets has room for one more than a span can count.
        let capacity = self.tables.capacity.get(id).map_or(INLINE_SLOTS, |slots| (*slots as usize).min(MAX_SLOTS));
        let kept = current.len() > removed.len();
        if kept && added.len() + removed.len() <= IN_PLACE && current.len() + added.len() <= capacity {
            return self.change_in_place(id, row.span, current, &added, &removed);
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
        // The row's own slots are free to be written if no span points at them now.
        let inline_free = old.base != Base::Inline || old.count == 0;
        let (base, capacity) = if inline_free && wanted.len() <= INLINE_SLOTS {
            self.write_inline(id, wanted)?
        } else {
            self.write_range(wanted)?
        };
        let span = Span { base, count: wanted.len() as u16, generation: old.generation.wrapping_add(1) };
        self.write(Op::Span(id, span))?;
        if let (Base::Range(base), Some(length)) = (old.base, self.tables.capacity.get(id).copied()) {
            self.tables.release(Released::Range(base, length));
        }
        self.note_capacity(id, capacity);
        Ok(())
    }
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
