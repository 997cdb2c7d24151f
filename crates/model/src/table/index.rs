//! The indexes over the rows: names to ids, and reference counts.

use super::{ReleasedId, Tables};
use crate::ServiceName;
use crate::hash::HashMap;
use crate::name::{Audience, PortName, SetName, SetRole};
use crate::row::*;

impl Tables {
    pub(super) fn index(&mut self, rows: &Rows) {
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

    pub(super) fn index_name(&mut self, id: OwnerId, row: &NameRow) {
        match row.kind {
            NameKind::Node => drop(self.nodes.insert(row.text.as_str().into(), id)),
            NameKind::ServicePort => {
                if let Some(name) = PortName::from_text(&row.text) {
                    self.index_port_name(id, name, row.number);
                }
            }
            NameKind::Policy => {
                if let Some(name) = ServiceName::policy_from_text(&row.text) {
                    self.policies.insert(name, id);
                }
            }
        }
    }

    pub(super) fn index_port_name(&mut self, id: OwnerId, name: PortName, number: u32) {
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
        // An empty span uses no slots, whatever its base is.
        if let Base::Range(base) = row.span.base
            && row.span.count > 0
        {
            self.free_slots.reserve(base, u32::from(row.span.count));
            self.capacity.insert(id, u32::from(row.span.count));
        }
    }

    /// Counts what a set's header refers to: the next set and the policy.
    pub(super) fn count_header(&mut self, header: &SetHeader, step: i32) {
        if header.next != SET_NONE {
            self.refs.count(header.next, step);
            self.links.count(header.next, step);
        }
        if header.policy != NO_POLICY {
            self.policy_refs.count(header.policy, step);
            self.limit_refs.count(header.policy, if header.limited { step } else { 0 });
        }
        if step < 0 {
            self.sweep_queue.owners.extend(self.owner_of(header.next));
            self.sweep_queue.policies.extend((header.policy != NO_POLICY).then_some(header.policy));
        }
    }

    /// 0 means no node.
    pub(super) fn count_node(&mut self, node: u32, step: i32) {
        if node != 0 {
            self.node_refs.count(node, step);
        }
        if step < 0 && node != 0 {
            self.sweep_queue.nodes.insert(node);
        }
    }

    pub(super) fn index_backend(&mut self, id: BackendId, row: &BackendRow) {
        self.backends.insert((row.owner, row.address, row.port), id);
        self.backend_count.count(row.owner, 1);
        self.count_node(row.node, 1);
    }

    pub(super) fn index_frontend(&mut self, key: &FrontendKey, new: Option<&FrontendRow>, old: Option<&FrontendRow>) {
        for (row, step) in [(new, 1), (old, -1)] {
            let Some(row) = row else { continue };
            self.refs.count(row.set, step);
            if let Some(protocol) = key.protocol {
                count(&mut self.port_refs, (protocol, key.port, key.is_node_port_row()), step);
            }
        }
    }

    pub(super) fn remove_name(&mut self, id: OwnerId) {
        self.release(ReleasedId::Owner(id));
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

    pub(super) fn remove_backend(&mut self, id: BackendId) {
        if let Some(row) = self.rows.backends.get(id).copied() {
            let key = (row.owner, row.address, row.port);
            // A pod that moved to another node has a newer row under the same key.
            if self.backends.get(&key) == Some(&id) {
                self.backends.remove(&key);
            }
            self.backend_count.count(row.owner, -1);
            self.count_node(row.node, -1);
            self.release(ReleasedId::Backend(id));
        }
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

/// The name of a set, from its row and the name table. This makes a restart possible.
pub(super) fn name_of_set(rows: &Rows, row: &SetRow) -> Option<SetName> {
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
