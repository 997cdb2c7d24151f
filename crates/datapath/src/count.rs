//! Counters, as the kernel half keeps them: sharded per service port, one per backend, a few for the whole host.

use crate::mapped::Mapped;
use crate::object::MapSet;
use crate::{Context, Result, abi};
use beeline_model::row::{BackendId, OwnerId};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::Serialize;

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

/// Things that happen to no service in particular, by the name that metrics use.
pub const STATS: [(&str, abi::stat, &str); 9] = [
    ("record_failed", abi::stat::STAT_RECORD_FAILED, "socket records that could not be stored"),
    ("record_overflow", abi::stat::STAT_RECORD_OVERFLOW, "UDP sends beyond what the socket's own record holds"),
    ("send_failed", abi::stat::STAT_SEND_FAILED, "unconnected UDP sends that failed for want of a record"),
    ("event_lost", abi::stat::STAT_EVENT_LOST, "events that found the ring full"),
    ("source_unknown", abi::stat::STAT_SOURCE_UNKNOWN, "dials to a restricted address from an unknown source"),
    ("bound_loopback", abi::stat::STAT_BOUND_LOOPBACK, "dials of sockets bound to loopback, left alone"),
    ("orphaned", abi::stat::STAT_ORPHANED, "dials left alone because no agent was seen"),
    ("raced_out", abi::stat::STAT_RACED_OUT, "picks that met a change three times"),
    ("opted_out", abi::stat::STAT_OPTED_OUT, "dials of processes that asked to be left alone"),
];

pub struct Count {
    counters: Mapped<abi::counters>,
    picks: Mapped<u64>,
    stats: MapHandle,
    shards: u32,
}

impl Count {
    pub fn new(maps: &MapSet) -> Result<Count> {
        let names = maps.max_entries("names")?;
        let counters: Mapped<abi::counters> = maps.mapped("counters")?;
        let shards = counters.len() / names;
        Ok(Count { counters, picks: maps.mapped("picks")?, stats: maps.handle("stats")?, shards })
    }

    /// Takes over what other tables counted, for the rows that were carried over.
    pub fn carry(&self, from: &Count, rows: &beeline_model::row::Rows) {
        for owner in rows.names.keys() {
            for shard in 0..self.shards.min(from.shards) {
                self.counters.write(owner * self.shards + shard, from.counters.read(owner * from.shards + shard));
            }
        }
        for backend in rows.backends.keys() {
            self.picks.write(*backend, from.picks.read(*backend));
        }
    }

    pub fn of_owner(&self, owner: OwnerId) -> Counters {
        let mut sum = Counters::default();
        for shard in 0..self.shards {
            let c = self.counters.read(owner * self.shards + shard);
            sum.dials += c.dials;
            sum.refused += c.refused;
            sum.no_local += c.no_local;
            sum.affinity_hits += c.affinity_hits;
            sum.raced += c.raced;
            sum.source_denied += c.source_denied;
            sum.limited += c.limited;
        }
        sum
    }

    pub fn picks_of(&self, backend: BackendId) -> u64 {
        self.picks.read(backend)
    }

    /// Each stat by its name, summed over CPUs.
    pub fn stats(&self) -> Result<Vec<(&'static str, u64)>> {
        STATS.iter().map(|(name, stat, _)| Ok((*name, self.stat(stat.0)?))).collect()
    }

    fn stat(&self, index: u32) -> Result<u64> {
        let cpus = self.stats.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY);
        let cpus = cpus.context(|| "cannot read the map stats".into())?.unwrap_or_default();
        let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_ne_bytes);
        Ok(cpus.iter().map(number).sum())
    }
}
