//! Counters that the BPF programs write: per service port (sharded by CPU), per backend, and a few per host.

use crate::mapped::{bytes_of, from_bytes};
use crate::object::MapSet;
use crate::{Context, Result, abi};
use beeline_model::row::{BackendId, OwnerId};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    pub dials: u64,
    pub refused: u64,
    pub no_local: u64,
    pub affinity_hits: u64,
    pub raced: u64,
    pub source_denied: u64,
    pub limited: u64,
}

/// Counters that belong to no service: name in the metrics, index, help text.
pub const STATS: [(&str, abi::stat, &str); 20] = [
    ("record_failed", abi::stat::STAT_RECORD_FAILED, "socket records that could not be stored"),
    (
        "record_overflow",
        abi::stat::STAT_RECORD_OVERFLOW,
        "UDP sends whose translation did not fit into the socket record",
    ),
    (
        "send_failed",
        abi::stat::STAT_SEND_FAILED,
        "unconnected UDP sends that failed because their record could not be stored",
    ),
    ("event_lost", abi::stat::STAT_EVENT_LOST, "events lost because the ring buffer was full"),
    ("event_limited", abi::stat::STAT_EVENT_LIMITED, "events not reported because their cgroup exceeded its rate"),
    (
        "source_unknown",
        abi::stat::STAT_SOURCE_UNKNOWN,
        "dials to an address with source ranges from an unknown source address",
    ),
    (
        "bound_loopback",
        abi::stat::STAT_BOUND_LOOPBACK,
        "dials not resolved because the socket is bound to a loopback address",
    ),
    (
        "dials_agent_down",
        abi::stat::STAT_AGENT_DOWN,
        "dials not resolved because no agent has run for the time of --agent-down-action",
    ),
    ("raced_out", abi::stat::STAT_RACED_OUT, "picks that raced with a change three times in a row"),
    ("dials_excluded", abi::stat::STAT_EXCLUDED, "dials of processes that are excluded from resolution"),
    (
        "affinity_full",
        abi::stat::STAT_AFFINITY_FULL,
        "picks that session affinity does not keep because the client's pod uses too many rows",
    ),
    (
        "redirect_refused",
        abi::stat::STAT_REDIRECT_REFUSED,
        "TCP dials that the backend of a LocalRedirectPolicy refused",
    ),
    (
        "redirect_skipped",
        abi::stat::STAT_REDIRECT_SKIPPED,
        "TCP dials that a LocalRedirectPolicy passed on because its backends refuse connections",
    ),
    ("dials_no_port", abi::stat::STAT_NO_PORT, "dials refused because the ClusterIP has no such port"),
    (
        "packet_flows",
        abi::stat::STAT_PACKET_TRANSLATED,
        "flows from outside that the packet path translated to a backend",
    ),
    ("packet_rejected", abi::stat::STAT_PACKET_REJECTED, "packets from outside that were rejected"),
    (
        "packet_dropped",
        abi::stat::STAT_PACKET_DROPPED,
        "packets from outside that were dropped: no local endpoint, or a source that is not allowed",
    ),
    (
        "packet_failed",
        abi::stat::STAT_PACKET_FAILED,
        "packets from outside that were dropped because the kernel could not create a conntrack entry",
    ),
    (
        "packet_raced",
        abi::stat::STAT_PACKET_RACED,
        "packets from outside whose conntrack entry another CPU created at the same time",
    ),
    (
        "packet_entries_replaced",
        abi::stat::STAT_PACKET_REPLACED,
        "conntrack entries that were replaced because their connection had ended or their backend was gone",
    ),
];

/// Rows read per system call.
const BATCH: u32 = 8192;

impl From<abi::counters> for Counters {
    fn from(c: abi::counters) -> Counters {
        Counters {
            dials: c.dials,
            refused: c.refused,
            no_local: c.no_local,
            affinity_hits: c.affinity_hits,
            raced: c.raced,
            source_denied: c.source_denied,
            limited: c.limited,
        }
    }
}

fn add(mut sum: abi::counters, more: abi::counters) -> abi::counters {
    sum.dials += more.dials;
    sum.refused += more.refused;
    sum.no_local += more.no_local;
    sum.affinity_hits += more.affinity_hits;
    sum.raced += more.raced;
    sum.source_denied += more.source_denied;
    sum.limited += more.limited;
    sum
}

pub struct CounterMaps {
    counters: MapHandle,
    picks: MapHandle,
    stats: MapHandle,
    shards: u32,
}

impl CounterMaps {
    pub fn new(maps: &MapSet) -> Result<CounterMaps> {
        let names = maps.max_entries("names")?;
        let counters = maps.handle("counters")?;
        let shards = counters.max_entries() / names;
        Ok(CounterMaps { counters, picks: maps.handle("picks")?, stats: maps.handle("stats")?, shards })
    }

    /// Copies the counters of other tables, for these rows.
    pub fn copy_from(&self, from: &CounterMaps, rows: &beeline_model::row::Rows) -> Result<()> {
        let put = |map: &MapHandle, at: u32, value: &[u8]| {
            map.update(&at.to_ne_bytes(), value, MapFlags::ANY)
                .context(|| "cannot copy the counters to the new tables".into())
        };
        for owner in rows.names.ids() {
            for shard in 0..self.shards {
                // With fewer shards than before (fewer CPUs), several old shards are added up into one.
                let old = (shard..from.shards).step_by(self.shards as usize).map(|shard| from.shard(owner, shard));
                put(&self.counters, owner * self.shards + shard, bytes_of(&old.fold(Default::default(), add)))?;
            }
        }
        for backend in rows.backends.ids() {
            put(&self.picks, backend, &from.picks_of(backend).to_ne_bytes())?;
        }
        Ok(())
    }

    fn shard(&self, owner: OwnerId, shard: u32) -> abi::counters {
        let at = owner * self.shards + shard;
        let row = self.counters.lookup(&at.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        row.and_then(|bytes| from_bytes(&bytes)).unwrap_or_default()
    }

    pub fn of_owner(&self, owner: OwnerId) -> Counters {
        (0..self.shards).map(|shard| self.shard(owner, shard)).fold(abi::counters::default(), add).into()
    }

    /// Counters of every owner with at least one dial. Reads all rows with a few system calls.
    pub fn by_owner(&self) -> Result<BTreeMap<OwnerId, Counters>> {
        let mut sums: BTreeMap<OwnerId, abi::counters> = BTreeMap::new();
        let rows = self.counters.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        for (key, value) in rows.context(|| "cannot read the map counters".into())? {
            let (Some(at), Some(row)) = (from_bytes::<u32>(&key), from_bytes::<abi::counters>(&value)) else {
                continue;
            };
            if row.dials + row.refused + row.source_denied + row.limited > 0 {
                let sum = sums.entry(at / self.shards).or_default();
                *sum = add(*sum, row);
            }
        }
        Ok(sums.into_iter().map(|(owner, sum)| (owner, sum.into())).collect())
    }

    pub fn picks_of(&self, backend: BackendId) -> u64 {
        let row = self.picks.lookup(&backend.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        row.and_then(|bytes| from_bytes(&bytes)).unwrap_or(0)
    }

    /// All per-host counters by name, summed over CPUs.
    pub fn stats(&self) -> Result<Vec<(&'static str, u64)>> {
        STATS.iter().map(|(name, stat, _)| Ok((*name, self.sum(stat.0)?))).collect()
    }

    /// One per-host counter by name; 0 if it cannot be read.
    pub fn stat(&self, name: &str) -> u64 {
        let stat = STATS.iter().find(|(candidate, ..)| *candidate == name);
        stat.and_then(|(_, stat, _)| self.sum(stat.0).ok()).unwrap_or(0)
    }

    fn sum(&self, index: u32) -> Result<u64> {
        let cpus = self.stats.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY);
        let cpus = cpus.context(|| "cannot read the map stats".into())?.unwrap_or_default();
        let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_ne_bytes);
        Ok(cpus.iter().map(number).sum())
    }
}
