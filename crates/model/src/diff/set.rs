//! Creates names, source ranges, backends, slots and sets. None of these is visible before a frontend leads to it.
//!
//! A set that is already visible changes by single writes, each of which leaves it consistent.

use super::Reconciler;
use crate::address::Family;
use crate::name::{Audience, Name, PortName, Protocol, ServiceName, SetRole};
use crate::op::{MapError, Maps, Op};
use crate::plan::{BackendPlan, ServicePlan, SetPlan, SetPolicy};
use crate::row::*;
use crate::table::ReleasedId;
use ipnet::IpNet;
use std::collections::BTreeSet;

/// Maximum number of single writes to change a set. For more, a new range and one write of the span is cheaper, and
/// does not mix old and new backends for long.
const MAX_IN_PLACE_WRITES: usize = 16;

impl<M: Maps> Reconciler<'_, M> {
    /// If the ids are exhausted, frees the quarantined ids and tries again.
    pub(super) fn write_plan(&mut self, name: &ServiceName, plan: &ServicePlan) {
        if self.outcome.failed.contains_key(name) {
            return;
        }
        let mut result = self.write_service(name, plan);
        if matches!(result, Err(MapError::Full(_))) && self.tables.quarantined() > 0 {
            result = self.tables.recycle(self.maps).and_then(|_| self.write_service(name, plan));
        }
        if let Err(error) = result {
            self.fail(name, error);
        }
    }

    fn write_service(&mut self, name: &ServiceName, plan: &ServicePlan) -> Result<(), MapError> {
        self.write_sources(plan)?;
        self.relink(plan)?;
        self.write_policy(name, plan)?;
        for set in &plan.sets {
            self.write_set(name, set)?;
        }
        self.mark_stale_members(name, plan);
        Ok(())
    }

    /// New source ranges are written first. Old ones are deleted at once, before another address leads to these sets.
    /// If a family has no ranges any more, the old ones stay until nothing uses them (`sweep_owner`).
    fn write_sources(&mut self, plan: &ServicePlan) -> Result<(), MapError> {
        let mut wanted: BTreeSet<(OwnerId, IpNet)> = BTreeSet::new();
        for (owner, net) in &plan.sources {
            let id = self.owner(owner)?;
            wanted.insert((id, *net));
            if !self.tables.rows.sources.contains(&(id, *net)) {
                self.write(Op::Source(id, *net, true))?;
            }
        }
        let with_ranges: BTreeSet<(OwnerId, Family)> =
            wanted.iter().map(|(id, net)| (*id, Family::of(net.addr()))).collect();
        for (owner, family) in with_ranges {
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
        let id = self.tables.allocate_owner()?;
        let number = self.tables.number_of(&name.service);
        self.write(Op::ZeroCounters(id))?;
        let op = Op::Name(id, Some(NameRow { kind: NameKind::ServicePort, number, text: name.to_text() }));
        self.maps.write(&op)?;
        self.outcome.ops += 1;
        self.tables.apply_port_name(&op, name);
        self.tables.sweep_queue.owners.insert(id);
        Ok(id)
    }

    fn node(&mut self, name: &Name) -> Result<u32, MapError> {
        if let Some(id) = self.tables.nodes.get(name) {
            return Ok(*id);
        }
        let id = self.tables.allocate_owner()?;
        self.write(Op::Name(id, Some(NameRow { kind: NameKind::Node, number: 0, text: name.to_string() })))?;
        self.tables.sweep_queue.nodes.insert(id);
        Ok(id)
    }

    /// The id of the backend, whose state already contains the role.
    fn backend(&mut self, owner: OwnerId, plan: &BackendPlan, role: Role) -> Result<BackendId, MapError> {
        if let Some(id) = self.tables.backends.get(&(owner, plan.address, plan.port)).copied() {
            let row = self.tables.rows.backends[id];
            let node = plan.node.as_ref().map_or(Ok(0), |n| self.node(n))?;
            if row.node != node {
                // The pod moved to another node but kept its address. A row is never changed, so the backend gets a new
                // one.
                let moved = self.create_backend(owner, plan, role)?;
                self.tables.sweep_queue.backends.insert(id);
                return Ok(moved);
            }
            if row.state.roles & role as u8 == 0 {
                let roles = row.state.roles | role as u8;
                self.write(Op::State(id, BackendState { roles, ..row.state }))?;
            }
            return Ok(id);
        }
        self.create_backend(owner, plan, role)
    }

    fn create_backend(&mut self, owner: OwnerId, plan: &BackendPlan, role: Role) -> Result<BackendId, MapError> {
        let node = plan.node.as_ref().map_or(Ok(0), |n| self.node(n))?;
        let (id, generation) = self.tables.allocate_backend()?;
        let state = BackendState { generation, roles: role as u8 };
        let udp = self.tables.port_name(owner).is_some_and(|name| name.protocol == Protocol::Udp);
        self.write(Op::Backend(id, BackendRow { address: plan.address, port: plan.port, node, owner, udp, state }))?;
        Ok(id)
    }

    fn write_set(&mut self, service: &ServiceName, plan: &SetPlan) -> Result<(), MapError> {
        let owner = self.owner(&plan.name.owner)?;
        self.tables.sweep_queue.owners.insert(owner);
        let mut wanted = Vec::with_capacity(plan.backends.len());
        let made = self.fill_set(service, plan, owner, &mut wanted);
        if made.is_err() {
            // Backends that were created, or got this role, for a set that does not exist.
            self.tables.sweep_queue.backends.extend(wanted);
        }
        made
    }

    fn fill_set(
        &mut self,
        service: &ServiceName,
        plan: &SetPlan,
        owner: OwnerId,
        wanted: &mut Vec<BackendId>,
    ) -> Result<(), MapError> {
        for backend in &plan.backends {
            wanted.push(self.backend(owner, backend, role_of(&plan.name.role))?);
        }
        let policy = plan.policy.filter(SetPolicy::is_active).unwrap_or_default();
        let next = self.next_set(plan)?;
        if let Some(error) = self.next_is_over_capacity(plan, next) {
            // The set is linked when the next set fits into the tables.
            self.fail(service, error);
        }
        let header = SetHeader {
            next,
            affinity: plan.affinity,
            policy: if policy.is_active() {
                self.tables.policies.get(service).copied().unwrap_or(NO_POLICY)
            } else {
                NO_POLICY
            },
            limited: policy.limit.is_some(),
            self_next: policy.self_next,
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
        header: SetHeader,
    ) -> Result<(), MapError> {
        let id = self.tables.allocate_set()?;
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
        let span = SlotSpan { base, count: wanted.len() as u16, generation: 0 };
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

    /// Writes the ids to a new range that no reader uses yet.
    fn write_range(&mut self, wanted: &[BackendId]) -> Result<(Base, Option<u32>), MapError> {
        let (base, capacity) = self.tables.allocate_range(wanted.len())?;
        self.write(Op::Slots(base, wanted.into()))?;
        Ok((Base::Range(base), Some(capacity)))
    }

    fn change_set(
        &mut self,
        service: &ServiceName,
        id: SetId,
        wanted: &[BackendId],
        header: SetHeader,
    ) -> Result<(), MapError> {
        let row = self.tables.rows.sets[id];
        // The behaviour of an empty set must be written before the set becomes empty, and changed only after it has
        // backends again.
        let becomes_empty = wanted.is_empty() && row.span.count > 0;
        if becomes_empty {
            self.change_header(id, row.header, header)?;
        }
        self.change_members(service, id, wanted)?;
        if header.own_node && !becomes_empty && header.when_empty != row.header.when_empty {
            self.late_headers.push((service.clone(), Op::Header(id, header)));
            return Ok(());
        }
        if becomes_empty { Ok(()) } else { self.change_header(id, row.header, header) }
    }

    pub(super) fn change_header(&mut self, id: SetId, old: SetHeader, new: SetHeader) -> Result<(), MapError> {
        if old == new { Ok(()) } else { self.write(Op::Header(id, new)) }
    }

    fn change_members(&mut self, service: &ServiceName, id: SetId, wanted: &[BackendId]) -> Result<(), MapError> {
        let row = self.tables.rows.sets[id];
        let current = self.tables.rows.members(&row).to_vec();
        let (added, removed) = difference(&current, wanted);
        if added.is_empty() && removed.is_empty() {
            return Ok(());
        }
        if wanted.is_empty() {
            self.sets_to_empty.push((service.clone(), id));
            return Ok(());
        }
        self.tables.sweep_queue.backends.extend(removed.iter().copied());
        // A range of the largest size has one slot more than a span can count.
        let capacity = self.tables.capacity.get(id).map_or(INLINE_SLOTS, |slots| (*slots as usize).min(MAX_SLOTS));
        let kept = current.len() > removed.len();
        if kept && added.len() + removed.len() <= MAX_IN_PLACE_WRITES && current.len() + added.len() <= capacity {
            return self.change_in_place(id, row.span, current, &added, &removed);
        }
        self.switch_range(id, row.span, wanted)
    }

    /// Additions first: the slot, then the span. Then removals: the last id into the free slot, then the shorter span.
    fn change_in_place(
        &mut self,
        id: SetId,
        mut span: SlotSpan,
        mut members: Vec<BackendId>,
        added: &[BackendId],
        removed: &[BackendId],
    ) -> Result<(), MapError> {
        for backend in added {
            self.write(Op::Slot(id, span.base, span.count, *backend))?;
            members.push(*backend);
            span = SlotSpan { count: span.count + 1, generation: span.generation.wrapping_add(1), ..span };
            self.write(Op::Span(id, span))?;
        }
        for backend in removed {
            let Some(hole) = members.iter().position(|m| m == backend) else { continue };
            let last = members.len() - 1;
            if hole != last {
                self.write(Op::Slot(id, span.base, hole as u16, members[last]))?;
            }
            members.swap_remove(hole);
            span = SlotSpan { count: span.count - 1, generation: span.generation.wrapping_add(1), ..span };
            self.write(Op::Span(id, span))?;
        }
        Ok(())
    }

    /// Writes a new range, then switches to it with one write of the span.
    fn switch_range(&mut self, id: SetId, old: SlotSpan, wanted: &[BackendId]) -> Result<(), MapError> {
        // The inline slots may be written if the span does not use them now.
        let inline_free = old.base != Base::Inline || old.count == 0;
        let (base, capacity) = if inline_free && wanted.len() <= INLINE_SLOTS {
            self.write_inline(id, wanted)?
        } else {
            self.write_range(wanted)?
        };
        let span = SlotSpan { base, count: wanted.len() as u16, generation: old.generation.wrapping_add(1) };
        self.write(Op::Span(id, span))?;
        if let (Base::Range(base), Some(length)) = (old.base, self.tables.capacity.get(id).copied()) {
            self.tables.release(ReleasedId::Range(base, length));
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

/// The difference of two multisets: the ids to add and the ids to remove. Weights are repeated ids.
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
