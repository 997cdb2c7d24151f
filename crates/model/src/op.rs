//! Ops (single writes) and the trait that applies them: implemented by the BPF maps, by maps in memory, and by maps
//! that fail on purpose in tests.
//!
//! An op is idempotent and contains the new value, never a difference. The order of ops guarantees that readers always
//! see a consistent state.

use crate::address::{Address, Family};
use crate::name::Protocol;
use crate::policy::Limit;
use crate::row::*;
use ipnet::IpNet;

#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    Name(OwnerId, Option<NameRow>),
    /// Resets the counters of a new owner.
    ZeroCounters(OwnerId),
    /// Fills the bucket of a new policy. After that, only time fills it.
    FillBucket(PolicyId),
    Bucket(PolicyId, Option<Limit>),
    /// Whether the policy selects the pod with this cgroup id.
    Member(PolicyId, u64, bool),
    /// Writes a new backend row that nothing refers to yet, and resets its counter.
    Backend(BackendId, BackendRow),
    State(BackendId, BackendState),
    /// Writes backend ids to a new range that nothing refers to yet.
    Slots(u32, Box<[BackendId]>),
    /// Writes a new set row that nothing refers to yet.
    Set(SetId, Box<SetRow>),
    /// Writes one backend id of a live set, at an index of the given base.
    Slot(SetId, Base, u16, BackendId),
    Span(SetId, SlotSpan),
    Header(SetId, SetHeader),
    Port(Protocol, u16, PortBits),
    Range(Family, usize, u64),
    Node(Address, Option<NodeRow>),
    Source(OwnerId, IpNet, bool),
    Frontend(FrontendKey, Option<FrontendRow>),
}

#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum MapError {
    #[error("the {0} table is full")]
    Full(&'static str),
    #[error("{0}")]
    Failed(String),
}

pub trait Maps {
    fn write(&mut self, op: &Op) -> Result<(), MapError>;

    /// Writes in order until one op fails. Returns the number of ops written. An implementation may batch consecutive
    /// ops of one kind.
    fn write_all(&mut self, ops: &[Op]) -> (usize, Option<MapError>) {
        for (i, op) in ops.iter().enumerate() {
            if let Err(e) = self.write(op) {
                return (i, Some(e));
            }
        }
        (ops.len(), None)
    }

    fn dump(&self) -> Result<Rows, MapError>;

    /// Returns when every dial that was in progress has ended.
    fn wait_grace_period(&mut self) -> Result<(), MapError>;

    fn sizes(&self) -> Sizes;
}

impl Rows {
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Name(id, Some(row)) => drop(self.names.insert(*id, row.clone())),
            Op::Name(id, None) => drop(self.names.remove(*id)),
            Op::ZeroCounters(_) | Op::FillBucket(_) => {}
            Op::Bucket(policy, Some(limit)) => drop(self.buckets.insert(*policy, *limit)),
            Op::Bucket(policy, None) => drop(self.buckets.remove(policy)),
            Op::Member(policy, cgroup, true) => drop(self.selected.insert((*policy, *cgroup))),
            Op::Member(policy, cgroup, false) => drop(self.selected.remove(&(*policy, *cgroup))),
            Op::Backend(id, row) => drop(self.backends.insert(*id, *row)),
            // A backend without roles is out of use. Only socket records may still refer to it, and they compare the
            // generation.
            Op::State(id, state) if state.roles == 0 => drop(self.backends.remove(*id)),
            Op::State(id, state) => {
                if let Some(row) = self.backends.get_mut(*id) {
                    row.state = *state;
                }
            }
            Op::Slots(base, ids) => self.write_slots(*base as usize, ids),
            Op::Set(id, row) => drop(self.sets.insert(*id, **row)),
            Op::Slot(id, base, index, backend) => self.write_slot(*id, *base, *index, *backend),
            Op::Span(id, span) => {
                if let Some(row) = self.sets.get_mut(*id) {
                    row.span = *span;
                }
            }
            Op::Header(id, header) => {
                if let Some(row) = self.sets.get_mut(*id) {
                    row.header = *header;
                }
            }
            Op::Port(protocol, port, bits) if *bits == PortBits::default() => {
                self.ports.remove(&(*protocol, *port));
            }
            Op::Port(protocol, port, bits) => drop(self.ports.insert((*protocol, *port), *bits)),
            Op::Range(Family::V4, i, word) => self.ranges_v4[*i] = *word,
            Op::Range(Family::V6, i, word) => self.ranges_v6[*i] = *word,
            Op::Node(address, Some(row)) => drop(self.nodes.insert(*address, *row)),
            Op::Node(address, None) => drop(self.nodes.remove(address)),
            Op::Source(owner, net, true) => drop(self.sources.insert((*owner, *net))),
            Op::Source(owner, net, false) => drop(self.sources.remove(&(*owner, *net))),
            Op::Frontend(key, Some(row)) => drop(self.frontends.insert(*key, *row)),
            Op::Frontend(key, None) => drop(self.frontends.remove(key)),
        }
    }

    fn write_slots(&mut self, base: usize, ids: &[BackendId]) {
        let end = base + ids.len();
        if self.slots.len() < end {
            self.slots.resize(end, 0);
        }
        self.slots[base..end].copy_from_slice(ids);
    }

    fn write_slot(&mut self, id: SetId, base: Base, index: u16, backend: BackendId) {
        match base {
            Base::Range(base) => self.write_slots(base as usize + usize::from(index), &[backend]),
            Base::Inline => {
                if let Some(row) = self.sets.get_mut(id) {
                    row.inline[usize::from(index)] = backend;
                }
            }
        }
    }
}

/// Tables in memory, for tests, `plan` and `explain`.
#[derive(Clone, Debug)]
pub struct MemoryMaps {
    pub rows: Rows,
    pub sizes: Sizes,
}

impl MemoryMaps {
    pub fn new(sizes: Sizes) -> MemoryMaps {
        MemoryMaps { rows: Rows::default(), sizes }
    }
}

impl Maps for MemoryMaps {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        if let Op::Frontend(key, Some(_)) = op
            && self.rows.frontends.len() >= self.sizes.frontends as usize
            && !self.rows.frontends.contains_key(key)
        {
            return Err(MapError::Full("frontend"));
        }
        if let Op::Member(policy, cgroup, true) = op
            && self.rows.selected.len() >= self.sizes.members as usize
            && !self.rows.selected.contains(&(*policy, *cgroup))
        {
            return Err(MapError::Full("member"));
        }
        self.rows.apply(op);
        Ok(())
    }

    fn dump(&self) -> Result<Rows, MapError> {
        Ok(self.rows.clone())
    }

    fn wait_grace_period(&mut self) -> Result<(), MapError> {
        Ok(())
    }

    fn sizes(&self) -> Sizes {
        self.sizes
    }
}

/// Wraps other maps and fails selected writes. For tests.
pub struct FaultyMaps<M> {
    pub inner: M,
    /// Called before each write with its number. Returning true fails the write.
    pub fails: Box<dyn FnMut(u64) -> bool + Send>,
    pub writes: u64,
}

impl<M: Maps> FaultyMaps<M> {
    pub fn new(inner: M, fails: impl FnMut(u64) -> bool + Send + 'static) -> FaultyMaps<M> {
        FaultyMaps { inner, fails: Box::new(fails), writes: 0 }
    }
}

impl<M: Maps> Maps for FaultyMaps<M> {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        self.writes += 1;
        if (self.fails)(self.writes) {
            return Err(MapError::Failed(format!("write {} was made to fail by the test", self.writes)));
        }
        self.inner.write(op)
    }

    fn dump(&self) -> Result<Rows, MapError> {
        self.inner.dump()
    }

    fn wait_grace_period(&mut self) -> Result<(), MapError> {
        self.inner.wait_grace_period()
    }

    fn sizes(&self) -> Sizes {
        self.inner.sizes()
    }
}
