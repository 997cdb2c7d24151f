//! What changes while running: event level, heartbeat, the host's own addresses, and cgroups that are left alone.

use crate::mapped::{Mapped, bytes_of, from_bytes};
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

/// So many levels of cgroups above a process are looked at.
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

/// What holds for the processes below a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupRule {
    /// They keep the address that they dialled.
    pub untouched: bool,
    /// 0: as everybody.
    pub view: u32,
}

impl CgroupRule {
    pub const UNTOUCHED: CgroupRule = CgroupRule { untouched: true, view: 0 };
}

pub struct Control {
    row: Mapped<abi::control>,
    cgroups: MapHandle,
}

/// Nanoseconds of the clock that programs read.
pub fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Control {
    pub fn new(maps: &MapSet) -> Result<Control> {
        Ok(Control { row: maps.mapped("control")?, cgroups: maps.handle("cgroup")? })
    }

    /// Takes over what was set in other tables.
    pub fn carry(&self, from: &Control) -> Result<()> {
        self.row.write(0, from.row.read(0));
        for key in from.cgroups.keys() {
            let value = from.cgroups.lookup(&key, MapFlags::ANY).context(|| "cannot read the cgroup table".into())?;
            let put = value.map_or(Ok(()), |v| self.cgroups.update(&key, &v, MapFlags::ANY));
            put.context(|| "cannot write the cgroup table".into())?;
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

    /// A sign of life.
    pub fn beat(&self) {
        self.row.store(0, offset_of!(abi::control, heartbeat), monotonic());
    }

    /// How long ago the last sign of life was.
    pub fn last_beat(&self) -> Option<Duration> {
        let beat: u64 = self.row.load(0, offset_of!(abi::control, heartbeat));
        (beat != 0).then(|| Duration::from_nanos(monotonic().saturating_sub(beat)))
    }

    /// How long without a sign of life before dials are left alone; zero: never.
    pub fn set_orphan(&self, after: Option<Duration>) {
        self.beat();
        let nanos = after.map_or(0, |d| d.as_nanos() as u64);
        self.row.store(0, offset_of!(abi::control, orphan), nanos);
    }

    pub fn orphan(&self) -> Option<Duration> {
        let nanos: u64 = self.row.load(0, offset_of!(abi::control, orphan));
        (nanos != 0).then(|| Duration::from_nanos(nanos))
    }

    /// What the host itself dials from.
    pub fn set_host_addresses(&self, v4: Option<Address>, v6: Option<Address>) {
        let mut row = self.row.read(0);
        row.host4 = v4.map(wire::address).unwrap_or_default();
        row.host6 = v6.map(wire::address).unwrap_or_default();
        for (i, word) in row.host4.word.iter().chain(&row.host6.word).enumerate() {
            self.row.store(0, offset_of!(abi::control, host4) + i * 4, *word);
        }
    }

    /// Where one cgroup is below another, the deeper one's view holds. Replaces what was there.
    pub fn set_rules(&self, rules: &[(&Path, CgroupRule)]) -> Result<()> {
        let (wanted, levels) = self.write_rules(rules)?;
        self.row.store(0, CGROUP_LEVELS, levels);
        let stale = self.cgroups.keys().filter(|k| from_bytes(k).is_none_or(|id: u64| !wanted.contains(&id)));
        for key in stale.collect::<Vec<_>>() {
            let _ = self.cgroups.delete(&key);
        }
        Ok(())
    }

    /// What was there stays.
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

    /// Their ids, and at which levels they stand.
    fn write_rules(&self, rules: &[(&Path, CgroupRule)]) -> Result<(Vec<u64>, u64)> {
        let mut levels = 0u64;
        let mut wanted = Vec::new();
        for (path, rule) in rules {
            let level = cgroup::level(path)?;
            if level >= LEVELS {
                return Err(Error::Said(format!(
                    "{} is {level} levels deep: at most {} can be told",
                    path.display(),
                    LEVELS - 1
                )));
            }
            levels |= 1 << level;
            let flags = if rule.untouched { abi::cgroup_flag::CGROUP_UNTOUCHED.0 } else { 0 };
            wanted.push((cgroup::id(path)?, abi::cgroup_rule { flags, view: rule.view }));
        }
        for (id, rule) in &wanted {
            let put = self.cgroups.update(&id.to_ne_bytes(), bytes_of(rule), MapFlags::ANY);
            put.context(|| "cannot write the cgroup table".into())?;
        }
        Ok((wanted.into_iter().map(|(id, _)| id).collect(), levels))
    }

    /// Cgroups of pods stand at these levels below the root, from now on too: to be told before a pod is a member.
    pub fn add_member_levels(&self, levels: impl IntoIterator<Item = u32>) -> Result<()> {
        let told = self.row.load::<u32>(0, MEMBER_LEVELS).to_ne_bytes();
        self.store_member_levels(tell_levels(told, levels)?);
        Ok(())
    }

    /// Replaces what was told: these are the levels of all members. Some kubelets' layouts have gone, and there is room for
    /// few.
    pub fn set_member_levels(&self, levels: impl IntoIterator<Item = u32>) -> Result<()> {
        self.store_member_levels(tell_levels([0; size_of::<u32>()], levels)?);
        Ok(())
    }

    fn store_member_levels(&self, told: [u8; size_of::<u32>()]) {
        self.row.store(0, MEMBER_LEVELS, u32::from_ne_bytes(told));
    }

    pub fn member_levels(&self) -> Vec<u32> {
        let told: u32 = self.row.load(0, MEMBER_LEVELS);
        told.to_ne_bytes().into_iter().filter(|byte| *byte != 0).map(|byte| u32::from(byte) - 1).collect()
    }

    /// By the cgroup's id.
    pub fn rules(&self) -> HashMap<u64, CgroupRule> {
        let read = |key: Vec<u8>| {
            let value = self.cgroups.lookup(&key, MapFlags::ANY).ok()??;
            let rule: abi::cgroup_rule = from_bytes(&value)?;
            let untouched = rule.flags & abi::cgroup_flag::CGROUP_UNTOUCHED.0 != 0;
            Some((from_bytes(&key)?, CgroupRule { untouched, view: rule.view }))
        };
        self.cgroups.keys().filter_map(read).collect()
    }
}

/// A byte for each level, kept as one more, so that 0 is none.
fn tell_levels<const N: usize>(mut told: [u8; N], levels: impl IntoIterator<Item = u32>) -> Result<[u8; N]> {
    for level in levels {
        let byte = u8::try_from(level + 1).unwrap_or(0);
        if byte == 0 || u32::from(byte) > LEVELS {
            let most = LEVELS - 1;
            return Err(Error::Said(format!("a pod's cgroup is {level} levels deep: at most {most} can be told")));
        }
        if told.contains(&byte) {
            continue;
        }
        let free = told.iter_mut().find(|told| **told == 0);
        *free.ok_or_else(|| Error::Said(format!("pods' cgroups stand at more than {N} levels")))? = byte;
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_told_once_each_and_no_more_than_there_is_room() {
        let told = tell_levels([0; 4], [2, 3, 2]).unwrap();
        assert_eq!(told, [3, 4, 0, 0]);
        assert_eq!(tell_levels(told, [4, 5]).unwrap(), [3, 4, 5, 6]);
        assert!(tell_levels([3, 4, 5, 6], [9]).unwrap_err().to_string().contains("more than 4 levels"));
        assert!(tell_levels([0; 4], [LEVELS]).unwrap_err().to_string().contains("levels deep"));
    }
}
