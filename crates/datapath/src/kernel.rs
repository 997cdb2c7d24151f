//! Writes and reads the tables in the kernel. Ops become stores into mapped arrays and system calls on hash maps. A dump
//! reads all rows, which is how an agent starts on pinned tables.

use crate::exchange::ExchangeCounter;
use crate::mapped::{MappedArray, bytes_of, from_bytes};
use crate::object::MapSet;
use crate::{Context, Error, Result, abi, wire};
use beeline_model::op::{MapError, Maps, Op};
use beeline_model::row::*;
use beeline_model::{Address, Family, Protocol};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::collections::HashSet;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};

/// Rows per batch system call.
const BATCH: usize = 8192;

pub struct KernelMaps {
    frontend: MapHandle,
    node: MapHandle,
    source: MapHandle,
    member: MapHandle,
    /// Written by the BPF programs. Only `Op::FillBucket` writes it here, to assign a policy number with a full bucket.
    level: MapHandle,
    bucket: MappedArray<u64>,
    exchange: ExchangeCounter,
    filter: MappedArray<abi::filter>,
    set: MappedArray<abi::set>,
    slot: MappedArray<u32>,
    backend: MappedArray<abi::backend>,
    backend_index: MapHandle,
    /// UDP backends that went out of use, for `take_released_udp`.
    released_udp: Vec<BackendRow>,
    /// UDP frontends that were removed, for `take_removed_udp_frontends`.
    removed_udp_frontends: Vec<FrontendKey>,
    /// Not mapped: all pages of a mapped array count as memory of the agent, and these arrays are rarely used.
    names: MapHandle,
    counters: MapHandle,
    picks: MapHandle,
    /// Ids from here on were never used in these maps, so their rows need not be zeroed.
    unused_owner: u32,
    unused_backend: u32,
    grace_period: GracePeriod,
    sizes: Sizes,
    shards: u32,
}

impl KernelMaps {
    pub fn new(maps: &MapSet) -> Result<KernelMaps> {
        let max = |name: &str| maps.max_entries(name);
        let sizes = Sizes {
            frontends: max("frontend")?,
            sets: max("set")?,
            slots: max("slot")?,
            backends: max("backend")?,
            nodes: max("node")?,
            sources: max("source")?,
            names: max("names")?,
            members: max("member")?,
            // Affinity is a record map, which may be absent among the pins of an older agent.
            affinity: max("affinity").unwrap_or(0),
        };
        Ok(KernelMaps {
            frontend: maps.handle("frontend")?,
            node: maps.handle("node")?,
            source: maps.handle("source")?,
            member: maps.handle("member")?,
            level: maps.handle("level")?,
            bucket: maps.mapped("bucket")?,
            exchange: ExchangeCounter::new(maps)?,
            filter: maps.mapped("filter")?,
            set: maps.mapped("set")?,
            slot: maps.mapped("slot")?,
            backend: maps.mapped("backend")?,
            backend_index: maps.handle("backend_index")?,
            released_udp: Vec::new(),
            removed_udp_frontends: Vec::new(),
            names: maps.handle("names")?,
            counters: maps.handle("counters")?,
            picks: maps.handle("picks")?,
            unused_owner: u32::MAX,
            unused_backend: u32::MAX,
            grace_period: GracePeriod::new()?,
            shards: max("counters")? / sizes.names,
            sizes,
        })
    }

    /// Declares that the maps are new, so that no row needs to be zeroed.
    pub fn assume_empty(mut self) -> KernelMaps {
        (self.unused_owner, self.unused_backend) = (0, 0);
        self
    }

    /// Makes `exchange` even in case an earlier agent was killed while it replaced rows.
    pub fn reset_exchange(self) -> KernelMaps {
        self.exchange.announce(|| ());
        self
    }

    fn write_port(&self, protocol: Protocol, port: u16, bits: PortBits) {
        let half = self.filter_words() / 2;
        let word = if protocol == Protocol::Udp { half } else { 0 } + usize::from(port >> 5);
        let offset = offset_of!(abi::filter, ports) + word * 8;
        let shift = u32::from(port & 31) * 2;
        let frontend = if bits.frontend { abi::port_bit::PORT_FRONTEND.0 } else { 0 };
        let node_port = if bits.node_port { abi::port_bit::PORT_NODE.0 } else { 0 };
        let old: u64 = self.filter.load(0, offset);
        self.filter.store(0, offset, old & !(3 << shift) | u64::from(frontend | node_port) << shift);
    }

    fn filter_words(&self) -> usize {
        size_of_val(&abi::filter::default().ports) / 8
    }

    fn write_range(&self, family: Family, index: usize, word: u64) {
        let base = match family {
            Family::V4 => offset_of!(abi::filter, v4),
            Family::V6 => offset_of!(abi::filter, v6),
        };
        self.filter.store(0, base + index * 8, word);
    }

    fn write_header(&self, id: SetId, header: &SetHeader) {
        let family = if self.set.load::<u8>(id, offset_of!(abi::set, flags)) & abi::set_flag::SET_V6.0 as u8 != 0 {
            Family::V6
        } else {
            Family::V4
        };
        self.set.store(id, offset_of!(abi::set, next), header.next);
        self.set.store(id, offset_of!(abi::set, affinity), header.affinity);
        // The policy is stored before the flags, because the flags make the programs use it.
        self.set.store(id, offset_of!(abi::set, policy), header.policy);
        self.set.store(id, offset_of!(abi::set, when_empty), wire::when_empty(header.when_empty));
        self.set.store(id, offset_of!(abi::set, flags), wire::set_flags(header, family));
    }

    fn write_slot(&self, id: SetId, base: Base, index: u16, backend: BackendId) {
        match base {
            Base::Range(base) => self.slot.store(base + u32::from(index), 0, backend),
            Base::Inline => self.set.store(id, offset_of!(abi::set, slot) + usize::from(index) * 4, backend),
        }
    }

    fn write_frontend(&mut self, key: &FrontendKey, row: Option<&FrontendRow>) -> std::result::Result<(), MapError> {
        if row.is_none() && key.protocol == Some(Protocol::Udp) {
            self.removed_udp_frontends.push(*key);
        }
        let key = wire::frontend_key(key);
        match row {
            Some(row) => {
                let value = wire::frontend(&key, row);
                self.exchange.announce(|| put(&self.frontend, "frontend", bytes_of(&key), bytes_of(&value)))
            }
            None => delete(&self.frontend, bytes_of(&key)),
        }
    }

    fn write_node(&self, at: &Address, row: Option<&NodeRow>) -> std::result::Result<(), MapError> {
        let key = wire::address(*at);
        match row {
            Some(row) => {
                let value = wire::node(&key, row);
                self.exchange.announce(|| put(&self.node, "node", bytes_of(&key), bytes_of(&value)))
            }
            None => delete(&self.node, bytes_of(&key)),
        }
    }

    fn zero_counters(&mut self, owner: OwnerId) -> std::result::Result<(), MapError> {
        if owner >= self.unused_owner {
            self.unused_owner = owner + 1;
            return Ok(());
        }
        for shard in 0..self.shards {
            let at = owner * self.shards + shard;
            put(&self.counters, "counters", &at.to_ne_bytes(), bytes_of(&abi::counters::default()))?;
        }
        Ok(())
    }

    fn write_backend(&mut self, id: BackendId, row: &BackendRow) -> std::result::Result<(), MapError> {
        if id >= self.unused_backend {
            self.unused_backend = id + 1;
        } else {
            put(&self.picks, "picks", &id.to_ne_bytes(), &0u64.to_ne_bytes())?;
        }
        // Before the backend can be picked: the second packet of a flow looks it up.
        if row.udp {
            put(&self.backend_index, "backend_index", bytes_of(&wire::backend_index_key(row)), bytes_of(&1u32))?;
        }
        self.backend.write(id, wire::backend(row));
        Ok(())
    }

    fn write_state(&mut self, id: BackendId, state: &BackendState) {
        let row = wire::read_backend(&self.backend.read(id));
        if row.udp && state.roles == 0 {
            self.released_udp.push(row);
        }
        self.backend.store(id, offset_of!(abi::backend, state), wire::state(state));
    }

    /// The UDP backends that went out of use since the last call. The packet path moves their flows to another backend as
    /// soon as `remove_udp_backend` is called.
    pub fn take_released_udp(&mut self) -> Vec<BackendRow> {
        std::mem::take(&mut self.released_udp)
    }

    /// The UDP frontends that were removed since the last call. Some may exist again.
    pub fn take_removed_udp_frontends(&mut self) -> Vec<FrontendKey> {
        std::mem::take(&mut self.removed_udp_frontends)
    }

    /// All rows of the index, with the fields that it has.
    pub fn udp_backends(&self) -> Vec<BackendRow> {
        let keys = self.backend_index.keys().filter_map(|key| from_bytes::<abi::backend_index_key>(&key));
        keys.map(|key| wire::read_backend_index_key(&key)).collect()
    }

    pub fn remove_udp_backend(&self, row: &BackendRow) -> std::result::Result<(), MapError> {
        delete(&self.backend_index, bytes_of(&wire::backend_index_key(row)))
    }

    /// An existing row is not replaced, because a lookup could miss it during the replacement.
    fn write_member(&self, policy: PolicyId, cgroup: u64) -> std::result::Result<(), MapError> {
        let key = wire::member_key(policy, cgroup);
        match self.member.update(bytes_of(&key), bytes_of(&1u32), MapFlags::NO_EXIST) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::AlreadyExists => Err(map_error("member", &e)),
            _ => Ok(()),
        }
    }

    fn write_name(&self, id: OwnerId, row: Option<&NameRow>) -> std::result::Result<(), MapError> {
        let row = row.map(wire::name).unwrap_or_default();
        put(&self.names, "name", &id.to_ne_bytes(), bytes_of(&row))
    }

    /// Writes frontend rows with one batch system call.
    fn write_frontends(&self, ops: &[Op]) -> std::result::Result<(), MapError> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for op in ops {
            if let Op::Frontend(key, Some(row)) = op {
                let key = wire::frontend_key(key);
                values.extend_from_slice(bytes_of(&wire::frontend(&key, row)));
                keys.extend_from_slice(bytes_of(&key));
            }
        }
        let put = || self.frontend.update_batch(&keys, &values, ops.len() as u32, MapFlags::ANY, MapFlags::ANY);
        self.exchange.announce(put).map_err(|e| map_error("frontend", &e))
    }

    // ---- dump ----

    fn dump_frontends(&self, rows: &mut Rows) -> Result<()> {
        let all = self.frontend.lookup_batch(BATCH as u32, MapFlags::ANY, MapFlags::ANY);
        for (key, value) in all.context(|| "cannot read the map frontend".into())? {
            let (key, value) = (from_bytes(&key), from_bytes(&value));
            if let (Some(key), Some(value)) = (key, value)
                && let Some(row) = wire::read_frontend(&value)
            {
                rows.frontends.insert(wire::read_frontend_key(&key), row);
            }
        }
        Ok(())
    }

    /// Reads the sets that are reachable from a frontend, directly or through `next`. Other rows are not in use.
    fn dump_sets(&self, rows: &mut Rows) {
        let mut queue: Vec<SetId> = rows.frontends.values().map(|f| f.set).collect();
        let mut seen: HashSet<SetId> = HashSet::from([SET_NONE, SET_CLOSED]);
        let mut end = 0;
        while let Some(id) = queue.pop() {
            if !seen.insert(id) || id >= self.set.len() {
                continue;
            }
            let Some(row) = wire::read_set(&self.set.read(id)) else { continue };
            if let Base::Range(base) = row.span.base {
                end = end.max(base.saturating_add(u32::from(row.span.count)));
            }
            queue.push(row.header.next);
            rows.sets.insert(id, row);
        }
        rows.slots = (0..end.min(self.slot.len())).map(|i| self.slot.load(i, 0)).collect();
    }

    fn dump_backends(&self, rows: &mut Rows) {
        for id in 1..self.backend.len() {
            let row = wire::read_backend(&self.backend.read(id));
            if row.state.roles != 0 {
                rows.backends.insert(id, row);
            }
        }
    }

    fn dump_names(&self, rows: &mut Rows) -> Result<()> {
        let all = self.names.lookup_batch(1024, MapFlags::ANY, MapFlags::ANY);
        for (key, value) in all.context(|| "cannot read the map names".into())? {
            if let (Some(id), Some(name)) = (from_bytes(&key), from_bytes(&value).and_then(|n| wire::read_name(&n))) {
                rows.names.insert(id, name);
            }
        }
        Ok(())
    }

    fn dump_buckets(&self, rows: &mut Rows) {
        let limit = |policy| Some((policy, wire::read_bucket(self.bucket.load(policy, 0))?));
        rows.buckets = (1..self.bucket.len()).filter_map(limit).collect();
    }

    fn dump_filter(&self, rows: &mut Rows) {
        let filter = self.filter.read(0);
        let half = filter.ports.len() / 2;
        for (i, word) in filter.ports.iter().enumerate().filter(|(_, w)| **w != 0) {
            let protocol = if i < half { Protocol::Tcp } else { Protocol::Udp };
            for at in 0..32 {
                let bits = (word >> (at * 2)) as u32;
                let frontend = bits & abi::port_bit::PORT_FRONTEND.0 != 0;
                let node_port = bits & abi::port_bit::PORT_NODE.0 != 0;
                if frontend || node_port {
                    rows.ports.insert((protocol, ((i % half) * 32 + at) as u16), PortBits { frontend, node_port });
                }
            }
        }
        rows.ranges_v4 = filter.v4;
        rows.ranges_v6 = filter.v6;
    }

    fn dump_hashes(&self, rows: &mut Rows) -> Result<()> {
        for key in self.node.keys() {
            let value = self.node.lookup(&key, MapFlags::ANY).context(|| "cannot read the map node".into())?;
            if let (Some(at), Some(node)) = (from_bytes(&key), value.and_then(|v| from_bytes(&v))) {
                rows.nodes.insert(wire::read_address(&at), wire::read_node(&node));
            }
        }
        rows.sources =
            self.source.keys().filter_map(|k| from_bytes(&k)).filter_map(|k| wire::read_source_key(&k)).collect();
        let members = self.member.keys().filter_map(|k| from_bytes::<abi::member_key>(&k));
        rows.selected = members.map(|k| (k.policy, k.cgroup)).collect();
        Ok(())
    }

    pub fn rows(&self) -> Result<Rows> {
        let mut rows = Rows::default();
        self.dump_frontends(&mut rows)?;
        self.dump_sets(&mut rows);
        self.dump_backends(&mut rows);
        self.dump_names(&mut rows)?;
        self.dump_buckets(&mut rows);
        self.dump_filter(&mut rows);
        self.dump_hashes(&mut rows)?;
        Ok(rows)
    }
}

fn put(map: &MapHandle, what: &'static str, key: &[u8], value: &[u8]) -> std::result::Result<(), MapError> {
    map.update(key, value, MapFlags::ANY).map_err(|e| map_error(what, &e))
}

/// Deletes a row; a row that does not exist is no error.
fn delete(map: &MapHandle, key: &[u8]) -> std::result::Result<(), MapError> {
    match map.delete(key) {
        Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => Err(MapError::Failed(e.to_string())),
        _ => Ok(()),
    }
}

fn map_error(what: &'static str, error: &libbpf_rs::Error) -> MapError {
    let text = format!("{error:#}");
    // E2BIG means a full hash, ENOSPC a full trie. The error has its number only in its text.
    if text.contains("(os error 7)") || text.contains("(os error 28)") {
        MapError::Full(what)
    } else {
        MapError::Failed(format!("cannot write the map {what}: {text}"))
    }
}

impl Maps for KernelMaps {
    fn write(&mut self, op: &Op) -> std::result::Result<(), MapError> {
        match op {
            Op::Name(id, row) => return self.write_name(*id, row.as_ref()),
            Op::ZeroCounters(owner) => return self.zero_counters(*owner),
            Op::FillBucket(policy) => {
                let full = abi::level::default();
                return put(&self.level, "level", &policy.to_ne_bytes(), bytes_of(&full));
            }
            Op::Bucket(policy, limit) => self.bucket.store(*policy, 0, wire::bucket(*limit)),
            Op::Member(policy, cgroup, true) => return self.write_member(*policy, *cgroup),
            Op::Member(policy, cgroup, false) => {
                return delete(&self.member, bytes_of(&wire::member_key(*policy, *cgroup)));
            }
            Op::Backend(id, row) => return self.write_backend(*id, row),
            Op::State(id, state) => self.write_state(*id, state),
            Op::Slots(base, ids) => ids.iter().zip(*base..).for_each(|(id, at)| self.slot.store(at, 0, *id)),
            Op::Set(id, row) => self.set.write(*id, wire::set(row)),
            Op::Slot(id, base, index, backend) => self.write_slot(*id, *base, *index, *backend),
            Op::Span(id, span) => self.set.store(*id, offset_of!(abi::set, span), wire::span(span)),
            Op::Header(id, header) => self.write_header(*id, header),
            Op::Port(protocol, port, bits) => self.write_port(*protocol, *port, *bits),
            Op::Range(family, index, word) => self.write_range(*family, *index, *word),
            Op::Node(at, row) => return self.write_node(at, row.as_ref()),
            Op::Source(owner, net, true) => {
                let key = wire::source_key(*owner, net);
                return put(&self.source, "source", bytes_of(&key), bytes_of(&1u32));
            }
            Op::Source(owner, net, false) => return delete(&self.source, bytes_of(&wire::source_key(*owner, net))),
            Op::Frontend(key, row) => return self.write_frontend(key, row.as_ref()),
        }
        Ok(())
    }

    fn write_all(&mut self, ops: &[Op]) -> (usize, Option<MapError>) {
        let mut done = 0;
        while done < ops.len() {
            let batch = ops[done..].iter().take(BATCH).take_while(|op| matches!(op, Op::Frontend(_, Some(_)))).count();
            if batch > 1 && self.write_frontends(&ops[done..done + batch]).is_ok() {
                done += batch;
                continue;
            }
            // The ops are repeated one by one, so that exactly the failing op is reported. Batches are idempotent.
            for op in &ops[done..done + batch.max(1)] {
                if let Err(error) = self.write(op) {
                    return (done, Some(error));
                }
                done += 1;
            }
        }
        (done, None)
    }

    fn dump(&self) -> std::result::Result<Rows, MapError> {
        self.rows().map_err(|e| MapError::Failed(e.to_string()))
    }

    fn wait_grace_period(&mut self) -> std::result::Result<(), MapError> {
        self.grace_period.wait().map_err(|e| MapError::Failed(e.to_string()))
    }

    fn sizes(&self) -> Sizes {
        self.sizes
    }
}

/// Waits for an RCU grace period by updating a map of maps: the kernel waits for one before the update returns.
/// (`membarrier(GLOBAL)` waits too, but not on a machine with one CPU, and the kernel rejects it under nohz_full.)
pub struct GracePeriod {
    outer: MapHandle,
    inner: MapHandle,
}

impl GracePeriod {
    pub fn new() -> Result<GracePeriod> {
        let create = |kind, name, key, inner: i32| {
            let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
                inner_map_fd: inner.max(0) as _,
                ..Default::default()
            };
            MapHandle::create(kind, Some(name), key, 4, 1, &opts)
                .context(|| format!("cannot create the map {name}: CAP_BPF and CAP_NET_ADMIN are required"))
        };
        let inner = create(MapType::Array, "beeline_inner", 4, 0)?;
        let outer = create(MapType::ArrayOfMaps, "beeline_grace", 4, inner.as_fd().as_raw_fd())?;
        Ok(GracePeriod { outer, inner })
    }

    pub fn wait(&self) -> Result<()> {
        let fd = self.inner.as_fd().as_raw_fd();
        self.outer
            .update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error::Bpf { what: "cannot wait for an RCU grace period".into(), source })
    }
}
