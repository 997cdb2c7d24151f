//! Sweeps unreferenced rows: sets that nothing leads to, backends in no set, owners with neither, nodes that nothing
//! names, and filter bits without a frontend. The mirror decides, not an earlier plan.

use super::Reconciler;
use crate::hash::{HashMap, HashSet};
use crate::name::{PortName, ServiceName};
use crate::op::{MapError, Maps, Op};
use crate::planner::Delta;
use crate::row::*;
use ipnet::IpNet;
use std::collections::BTreeMap;

/// Up to this many backends of one owner, searching its sets is cheaper than a map of their members.
const FEW_BACKENDS: usize = 4;

/// The source ranges of the delta.
struct Sources<'d> {
    planned: HashSet<&'d ServiceName>,
    wanted: HashSet<(&'d PortName, IpNet)>,
}

impl Sources<'_> {
    fn of(delta: &Delta) -> Sources<'_> {
        let plans = delta.services.iter().filter_map(|(_, plan)| plan.as_ref());
        Sources {
            planned: delta.services.iter().map(|(name, _)| name).collect(),
            wanted: plans.flat_map(|plan| plan.sources.iter().map(|(owner, net)| (owner, *net))).collect(),
        }
    }
}

impl<M: Maps> Reconciler<'_, M> {
    pub(super) fn sweep(&mut self, delta: &Delta) {
        self.sweep_all_sets();
        self.sweep_members();
        let has_late_links = !self.late_links.is_empty();
        self.write_late_links();
        self.empty_rest();
        if has_late_links {
            self.sweep_all_sets();
        }
        self.sweep_backends();
        let sources = Sources::of(delta);
        for owner in self.queued_owners() {
            if self.sweep_owner(owner, &sources).is_ok() {
                self.tables.sweep_queue.owners.remove(&owner);
            }
        }
        self.sweep_policies();
        self.sweep_nodes();
        self.sweep_ports();
    }

    fn sweep_all_sets(&mut self) {
        let mut owners = self.queued_owners();
        while let Some(owner) = owners.pop() {
            // The next set of a swept set may have no other reference.
            owners.extend(self.sweep_sets(owner));
        }
    }

    fn queued_owners(&self) -> Vec<OwnerId> {
        self.tables.sweep_queue.owners.iter().copied().collect()
    }

    /// Queues everything that exists. Called before anything is created: rows of this round are queued as they are
    /// created, and a start with empty tables has nothing to queue.
    pub(super) fn queue_all(&mut self) {
        let tables = &mut *self.tables;
        tables.sweep_queue.owners.extend(tables.owners.values());
        tables.sweep_queue.owners.extend(tables.sets_of.ids());
        tables.sweep_queue.owners.extend(tables.rows.sources.iter().map(|(owner, _)| *owner));
        tables.sweep_queue.backends.extend(tables.rows.backends.ids());
        tables.sweep_queue.nodes.extend(tables.nodes.values());
        tables.sweep_queue.ports.extend(tables.rows.ports.keys());
        tables.sweep_queue.policies.extend(tables.policies.values());
        tables.sweep_queue.policies.extend(tables.rows.buckets.keys());
        tables.sweep_queue.policies.extend(tables.rows.selected.iter().map(|(policy, _)| *policy));
    }

    /// Returns the owners of the sets that the swept sets linked to.
    fn sweep_sets(&mut self, owner: OwnerId) -> Vec<OwnerId> {
        let wanted = |id| self.tables.refs.contains(id) || self.is_linked(id) || self.is_to_be_linked(id);
        let unused = |id: &SetId| !wanted(*id);
        let sets: Vec<SetId> = self.tables.sets_of.get(owner).into_iter().flatten().copied().filter(unused).collect();
        let mut below = Vec::new();
        for id in sets {
            let row = self.tables.rows.sets[id];
            below.extend(self.tables.owner_of(row.header.next));
            self.tables.sweep_queue.backends.extend(self.tables.rows.members(&row));
            self.tables.remove_set(id);
        }
        below
    }

    fn sweep_backends(&mut self) {
        let mut by_owner: BTreeMap<OwnerId, Vec<BackendId>> = BTreeMap::new();
        for id in std::mem::take(&mut self.tables.sweep_queue.backends) {
            if let Some(row) = self.tables.rows.backends.get(id) {
                by_owner.entry(row.owner).or_default().push(id);
            }
        }
        for (owner, ids) in by_owner {
            for (id, roles) in self.roles(owner, ids) {
                if self.sweep_backend(id, roles).is_err() {
                    self.tables.sweep_queue.backends.insert(id);
                }
            }
        }
    }

    fn sweep_backend(&mut self, id: BackendId, roles: u8) -> Result<(), MapError> {
        let row = self.tables.rows.backends[id];
        if roles == row.state.roles {
            return Ok(());
        }
        let name = self.tables.port_name(row.owner);
        self.write(Op::State(id, BackendState { roles, ..row.state }))?;
        if roles == 0 {
            self.tables.sweep_queue.owners.insert(row.owner);
            self.outcome.retired.extend(name.map(|name| (name, row.address, row.port)));
        }
        Ok(())
    }

    /// The roles of the sets that contain each backend.
    fn roles(&self, owner: OwnerId, backends: Vec<BackendId>) -> Vec<(BackendId, u8)> {
        let sets = self.tables.sets_of.get(owner).into_iter().flatten();
        let sets: Vec<&SetRow> = sets.filter_map(|id| self.tables.rows.sets.get(*id)).collect();
        if backends.len() <= FEW_BACKENDS {
            let holds = |row: &SetRow, id| self.tables.rows.members(row).contains(&id);
            let roles = |id| sets.iter().filter(|row| holds(row, id)).fold(0, |roles, row| roles | row.role as u8);
            return backends.into_iter().map(|id| (id, roles(id))).collect();
        }
        let mut roles: HashMap<BackendId, u8> = HashMap::default();
        for row in sets {
            for id in self.tables.rows.members(row) {
                *roles.entry(*id).or_default() |= row.role as u8;
            }
        }
        backends.into_iter().map(|id| (id, roles.get(&id).copied().unwrap_or(0))).collect()
    }

    fn sweep_owner(&mut self, owner: OwnerId, sources: &Sources<'_>) -> Result<(), MapError> {
        // The name is parsed from text, so only where it is needed.
        let needs_name =
            !self.tables.pending.services.is_empty() || self.tables.rows.sources_of(owner).next().is_some();
        let name = needs_name.then(|| self.tables.port_name(owner)).flatten();
        if let Some(error) = name.as_ref().and_then(|name| self.tables.pending.services.get(&name.service)) {
            return Err(error.clone());
        }
        let sets = self.tables.sets_of.get(owner).into_iter().flatten();
        let waiting = !self.tables.pending.links.is_empty() && sets.clone().any(|id| !self.tables.refs.contains(*id));
        if waiting {
            return Err(MapError::Failed("a set is kept for a policy that could not be written".into()));
        }
        for net in self.stale_sources(owner, name.as_ref(), sources) {
            self.write(Op::Source(owner, net, false))?;
        }
        let in_use = self.tables.backend_count.contains(owner)
            || self.tables.sets_of.get(owner).is_some_and(|sets| !sets.is_empty());
        let named = self.tables.rows.names.get(owner).is_some_and(|row| row.kind == NameKind::ServicePort);
        if named && !in_use { self.write(Op::Name(owner, None)) } else { Ok(()) }
    }

    /// A service that the delta does not contain keeps its ranges while a set needs them.
    fn stale_sources(&self, owner: OwnerId, name: Option<&PortName>, sources: &Sources<'_>) -> Vec<IpNet> {
        let sets = self.tables.sets_of.get(owner).into_iter().flatten();
        let restricted = sets.filter_map(|id| self.tables.rows.sets.get(*id)).any(|set| set.header.restricted);
        let wanted = |net: &IpNet| {
            let Some(name) = name else { return false };
            if sources.planned.contains(&name.service) { sources.wanted.contains(&(name, *net)) } else { restricted }
        };
        self.tables.rows.sources_of(owner).filter(|net| !wanted(net)).collect()
    }

    fn sweep_nodes(&mut self) {
        for id in std::mem::take(&mut self.tables.sweep_queue.nodes) {
            let unused = self.tables.rows.names.contains(id) && !self.tables.node_refs.contains(id);
            if unused && self.write(Op::Name(id, None)).is_err() {
                self.tables.sweep_queue.nodes.insert(id);
            }
        }
    }

    fn sweep_ports(&mut self) {
        for (protocol, port) in std::mem::take(&mut self.tables.sweep_queue.ports) {
            let used = |node_port| self.tables.port_refs.contains_key(&(protocol, port, node_port));
            let bits = PortBits { frontend: used(false), node_port: used(true) };
            let old = self.tables.rows.ports.get(&(protocol, port)).copied().unwrap_or_default();
            if old != bits && self.write(Op::Port(protocol, port, bits)).is_err() {
                self.tables.sweep_queue.ports.insert((protocol, port));
            }
        }
    }
}
