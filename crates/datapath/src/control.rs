//! Settings of the BPF programs that change at run time: event level, heartbeat, the host's addresses, and rules for
//! cgroups (exclusion from resolution, view).

use crate::exchange::ExchangeCounter;
use crate::mapped::{MappedArray, bytes_of, from_bytes};
use crate::object::MapSet;
use crate::{Context, Error, Result, abi, cgroup, wire};
use beeline_model::Address;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::mem::offset_of;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// Number of ancestor cgroup levels of a process that the programs check.
pub const LEVELS: u32 = 24;

const CGROUP_LEVELS: usize = offset_of!(abi::control, cgroup_levels);
const MEMBER_LEVELS: usize = offset_of!(abi::control, member_levels);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum EventLevel {
    Off,
    Failures,
    /// One dial in N, and every failure.
    Sample(u32),
    All,
}

impl FromStr for EventLevel {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<EventLevel, String> {
        let sample = || text.strip_prefix("sample:")?.parse().ok().filter(|n| *n > 0).map(EventLevel::Sample);
        match text {
            "off" => Ok(EventLevel::Off),
            "failures" => Ok(EventLevel::Failures),
            "all" => Ok(EventLevel::All),
            _ => sample().ok_or_else(|| format!("{text:?} is not an event level: off, failures, sample:N or all")),
        }
    }
}

impl fmt::Display for EventLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventLevel::Off => f.write_str("off"),
            EventLevel::Failures => f.write_str("failures"),
            EventLevel::Sample(n) => write!(f, "sample:{n}"),
            EventLevel::All => f.write_str("all"),
        }
    }
}

/// A rule for the processes below a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupRule {
    /// Their dials are not resolved.
    pub excluded: bool,
    /// Their view; 0 is the default view.
    pub view: u32,
}

impl CgroupRule {
    pub const EXCLUDED: CgroupRule = CgroupRule { excluded: true, view: 0 };
}

pub struct Control {
    row: MappedArray<abi::control>,
    cgroups: MapHandle,
    exchange: ExchangeCounter,
}

/// Time of the monotonic clock in nanoseconds, as the programs read it.
pub fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Control {
    pub fn new(maps: &MapSet) -> Result<Control> {
        Ok(Control {
            row: maps.mapped("control")?,
            cgroups: maps.handle("cgroup")?,
            exchange: ExchangeCounter::new(maps)?,
        })
    }

    /// Copies the settings of other tables.
    pub fn copy_from(&self, from: &Control) -> Result<()> {
        self.row.write(0, from.row.read(0));
        for key in from.cgroups.keys() {
            let value = from.cgroups.lookup(&key, MapFlags::ANY).context(|| "cannot read the cgroup table".into())?;
            let result = value.map_or(Ok(()), |v| self.cgroups.update(&key, &v, MapFlags::ANY));
            result.context(|| "cannot write the cgroup table".into())?;
        }
        Ok(())
    }

    pub fn set_event_level(&self, level: EventLevel) {
        let (number, sample) = match level {
            EventLevel::Off => (abi::event_level::EVENTS_OFF, 0),
            EventLevel::Failures => (abi::event_level::EVENTS_FAILURES, 0),
            EventLevel::Sample(n) => (abi::event_level::EVENTS_SAMPLE, n),
            EventLevel::All => (abi::event_level::EVENTS_ALL, 0),
        };
        self.row.store(0, offset_of!(abi::control, event_sample), sample);
        self.row.store(0, offset_of!(abi::control, event_level), number.0);
    }

    pub fn event_level(&self) -> EventLevel {
        let row = self.row.read(0);
        match abi::event_level(row.event_level) {
            abi::event_level::EVENTS_FAILURES => EventLevel::Failures,
            abi::event_level::EVENTS_SAMPLE => EventLevel::Sample(row.event_sample),
            abi::event_level::EVENTS_ALL => EventLevel::All,
            _ => EventLevel::Off,
        }
    }

    /// Stores the current time as the agent's last heartbeat.
    pub fn record_heartbeat(&self) {
        self.row.store(0, offset_of!(abi::control, heartbeat), monotonic());
    }

    /// Time since the last heartbeat; `None` before the first one.
    pub fn heartbeat_age(&self) -> Option<Duration> {
        let beat: u64 = self.row.load(0, offset_of!(abi::control, heartbeat));
        (beat != 0).then(|| Duration::from_nanos(monotonic().saturating_sub(beat)))
    }

    /// Sets how the packet path treats packets of pods. `detects_pods`: the tables of pod ranges and devices tell which
    /// packets come from pods.
    pub fn set_packet_flags(&self, detects_pods: bool, masquerades_all: bool) {
        let flag = |on, flag: abi::packet_flag| if on { flag.0 } else { 0 };
        let flags = flag(detects_pods, abi::packet_flag::PACKET_DETECTS_PODS)
            | flag(masquerades_all, abi::packet_flag::PACKET_MASQUERADES_ALL);
        self.row.store(0, offset_of!(abi::control, packet_flags), flags);
    }

    /// The values of `set_packet_flags`.
    pub fn packet_flags(&self) -> (bool, bool) {
        let flags: u32 = self.row.load(0, offset_of!(abi::control, packet_flags));
        let has = |flag: abi::packet_flag| flags & flag.0 != 0;
        (has(abi::packet_flag::PACKET_DETECTS_PODS), has(abi::packet_flag::PACKET_MASQUERADES_ALL))
    }

    /// Sets the time without a heartbeat after which dials are not resolved; `None` means never.
    pub fn set_agent_down_timeout(&self, after: Option<Duration>) {
        self.record_heartbeat();
        let nanos = after.map_or(0, |d| d.as_nanos() as u64);
        self.row.store(0, offset_of!(abi::control, agent_down_timeout), nanos);
    }

    pub fn agent_down_timeout(&self) -> Option<Duration> {
        let nanos: u64 = self.row.load(0, offset_of!(abi::control, agent_down_timeout));
        (nanos != 0).then(|| Duration::from_nanos(nanos))
    }

    /// Sets the level of the cgroups that are shares (bpf/share.h).
    pub fn set_share_level(&self, level: u32) {
        self.row.store(0, offset_of!(abi::control, share_level), level);
    }

    pub fn share_level(&self) -> u32 {
        self.row.load(0, offset_of!(abi::control, share_level))
    }

    /// Sets the bytes of socket records that all pods together may use above their reserves; 0 means no limit.
    pub fn set_record_limit(&self, bytes: u64) {
        self.row.store(0, offset_of!(abi::control, record_limit), bytes);
    }

    /// Sets the source addresses of the host's own dials.
    pub fn set_host_addresses(&self, v4: Option<Address>, v6: Option<Address>) {
        let mut row = self.row.read(0);
        row.host4 = v4.map(wire::address).unwrap_or_default();
        row.host6 = v6.map(wire::address).unwrap_or_default();
        for (i, word) in row.host4.word.iter().chain(&row.host6.word).enumerate() {
            self.row.store(0, offset_of!(abi::control, host4) + i * 4, *word);
        }
    }

    /// Replaces all rules. If two cgroups with rules are nested, the view of the inner one applies.
    pub fn set_rules(&self, rules: &[(&Path, CgroupRule)]) -> Result<()> {
        let (wanted, levels) = self.write_rules(rules)?;
        self.row.store(0, CGROUP_LEVELS, levels);
        let stale = self.cgroups.keys().filter(|k| from_bytes(k).is_none_or(|id: u64| !wanted.contains(&id)));
        for key in stale.collect::<Vec<_>>() {
            let _ = self.cgroups.delete(&key);
        }
        Ok(())
    }

    /// Adds rules; the existing ones stay.
    pub fn add_rules(&self, rules: &[(&Path, CgroupRule)]) -> Result<()> {
        let (_, levels) = self.write_rules(rules)?;
        self.row.store(0, CGROUP_LEVELS, levels | self.row.load::<u64>(0, CGROUP_LEVELS));
        Ok(())
    }

    pub fn remove_rules(&self, ids: impl Iterator<Item = u64>) {
        for id in ids {
            let _ = self.cgroups.delete(&id.to_ne_bytes());
        }
    }

    /// Writes the rules. Returns the ids of their cgroups, and the levels of these cgroups as bits.
    fn write_rules(&self, rules: &[(&Path, CgroupRule)]) -> Result<(Vec<u64>, u64)> {
        let mut levels = 0u64;
        let mut wanted = Vec::new();
        for (path, rule) in rules {
            let level = cgroup::level(path)?;
            if level >= LEVELS {
                return Err(Error::Message(format!(
                    "the cgroup {} is {level} levels below the root: rules are possible for at most {} levels",
                    path.display(),
                    LEVELS - 1
                )));
            }
            levels |= 1 << level;
            wanted.push((cgroup::id(path)?, *rule));
        }
        for (id, rule) in &wanted {
            self.write_rule(*id, *rule)?;
        }
        Ok((wanted.into_iter().map(|(id, _)| id).collect(), levels))
    }

    /// Writes the rule of a cgroup, by its id, unless the row has it already. Returns whether it was written.
    ///
    /// An unneeded write is not harmless: concurrent dials may have to look the row up again, and the kernel recycles the
    /// old element for another cgroup.
    pub fn write_rule(&self, id: u64, rule: CgroupRule) -> Result<bool> {
        let stored = self.cgroups.lookup(&id.to_ne_bytes(), MapFlags::ANY);
        let stored = stored.context(|| "cannot read the cgroup table".into())?;
        if stored.as_deref() == Some(bytes_of(&wire::cgroup_rule(id, rule))) {
            return Ok(false);
        }
        self.replace_rule(id, rule)?;
        Ok(true)
    }

    /// Writes the rule of a cgroup whether it changed or not.
    pub fn replace_rule(&self, id: u64, rule: CgroupRule) -> Result<()> {
        let row = wire::cgroup_rule(id, rule);
        let write = || self.cgroups.update(&id.to_ne_bytes(), bytes_of(&row), MapFlags::ANY);
        self.exchange.announce(write).context(|| "cannot write the cgroup table".into())
    }

    /// Adds levels below the root at which pod cgroups are. The level of a pod must be added before the pod becomes a
    /// member of a policy.
    pub fn add_member_levels(&self, levels: impl IntoIterator<Item = u32>) -> Result<()> {
        let stored = self.row.load::<u32>(0, MEMBER_LEVELS).to_ne_bytes();
        self.store_member_levels(encode_levels(stored, levels)?);
        Ok(())
    }

    /// Replaces the levels by those of all current members. There is space for only a few levels, and levels without
    /// members would use it up.
    pub fn set_member_levels(&self, levels: impl IntoIterator<Item = u32>) -> Result<()> {
        self.store_member_levels(encode_levels([0; size_of::<u32>()], levels)?);
        Ok(())
    }

    fn store_member_levels(&self, bytes: [u8; size_of::<u32>()]) {
        self.row.store(0, MEMBER_LEVELS, u32::from_ne_bytes(bytes));
    }

    pub fn member_levels(&self) -> Vec<u32> {
        let stored: u32 = self.row.load(0, MEMBER_LEVELS);
        stored.to_ne_bytes().into_iter().filter(|byte| *byte != 0).map(|byte| u32::from(byte) - 1).collect()
    }

    /// All rules, by cgroup id.
    pub fn rules(&self) -> HashMap<u64, CgroupRule> {
        let read = |key: Vec<u8>| {
            let value = self.cgroups.lookup(&key, MapFlags::ANY).ok()??;
            Some((from_bytes(&key)?, wire::read_cgroup_rule(&from_bytes(&value)?)))
        };
        self.cgroups.keys().filter_map(read).collect()
    }
}

/// Adds levels to an array of bytes. A level is stored as level + 1, because 0 marks a free byte.
fn encode_levels<const N: usize>(mut bytes: [u8; N], levels: impl IntoIterator<Item = u32>) -> Result<[u8; N]> {
    for level in levels {
        let byte = u8::try_from(level + 1).unwrap_or(0);
        if byte == 0 || u32::from(byte) > LEVELS {
            let most = LEVELS - 1;
            return Err(Error::Message(format!(
                "a pod cgroup is {level} levels below the root: at most {most} are supported"
            )));
        }
        if bytes.contains(&byte) {
            continue;
        }
        let free = bytes.iter_mut().find(|stored| **stored == 0);
        *free.ok_or_else(|| Error::Message(format!("pod cgroups are at more than {N} different levels")))? = byte;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_stored_once_and_too_many_levels_are_rejected() {
        let bytes = encode_levels([0; 4], [2, 3, 2]).unwrap();
        assert_eq!(bytes, [3, 4, 0, 0]);
        assert_eq!(encode_levels(bytes, [4, 5]).unwrap(), [3, 4, 5, 6]);
        assert!(encode_levels([3, 4, 5, 6], [9]).unwrap_err().to_string().contains("more than 4 different levels"));
        assert!(encode_levels([0; 4], [LEVELS]).unwrap_err().to_string().contains("levels below the root"));
    }
}
