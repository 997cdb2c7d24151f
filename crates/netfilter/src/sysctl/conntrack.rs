//! The conntrack settings that kube-proxy writes, with its defaults.
//!
//! Differences from kube-proxy: `nf_conntrack_max` and the hash size are raised but never lowered, and a setting that
//! cannot be written does not keep the others from being written. The timeouts are set to the configured value in both
//! directions, as kube-proxy does: its 24 h for established connections are less than the kernel's 5 days.

use std::{io, time::Duration};

use super::{Sysctl, Sysctls};

/// kube-proxy limits the number that it computes from the processors to this.
const MAX_LIMIT: u64 = 1 << 20;
/// Entries per bucket of the hash table, as kube-proxy assumes.
const ENTRIES_PER_BUCKET: u64 = 4;

/// Zero leaves a setting as it is, as with kube-proxy's options of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackSettings {
    pub max_per_core: u32,
    /// The least maximum, regardless of `max_per_core`. Has no effect if that is zero.
    pub min: u32,
    pub tcp_timeout_established: Duration,
    pub tcp_timeout_close_wait: Duration,
    /// Accept packets outside of the TCP window. False leaves the setting as it is.
    pub tcp_be_liberal: bool,
}

impl Default for ConntrackSettings {
    fn default() -> Self {
        ConntrackSettings {
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_timeout_established: Duration::from_secs(24 * 3600),
            tcp_timeout_close_wait: Duration::from_secs(3600),
            tcp_be_liberal: false,
        }
    }
}

impl ConntrackSettings {
    /// The value of `nf_conntrack_max` on a machine with this many processors; `None` leaves it as it is.
    pub fn max(&self, processors: u32) -> Option<u64> {
        let scaled = u64::from(self.max_per_core) * u64::from(processors);
        (scaled > 0).then(|| scaled.min(MAX_LIMIT).max(u64::from(self.min)))
    }
}

/// What happened to one setting.
#[derive(Debug)]
pub struct SettingResult {
    pub setting: Sysctl,
    pub wanted: u64,
    /// The value before; `None` if it could not be read.
    pub before: Option<u64>,
    pub outcome: SettingOutcome,
}

#[derive(Debug)]
pub enum SettingOutcome {
    /// The value is the wanted one, or larger and not to be lowered.
    Unchanged,
    Written,
    Failed(io::Error),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Raise,
    Set,
}

impl Sysctls {
    /// Writes the settings that differ. The result has one element for each setting that is not left as it is.
    pub fn set_conntrack(&self, settings: &ConntrackSettings, processors: u32) -> Vec<SettingResult> {
        let mut results = Vec::new();
        if let Some(max) = settings.max(processors) {
            results.extend(self.set_conntrack_max(max));
        }
        let timeouts = [
            (Sysctl::ConntrackTcpTimeoutEstablished, settings.tcp_timeout_established.as_secs()),
            (Sysctl::ConntrackTcpTimeoutCloseWait, settings.tcp_timeout_close_wait.as_secs()),
            (Sysctl::ConntrackTcpBeLiberal, u64::from(settings.tcp_be_liberal)),
        ];
        let wanted = timeouts.into_iter().filter(|(_, value)| *value > 0);
        results.extend(wanted.map(|(setting, value)| self.apply(setting, value, Direction::Set)));
        results
    }

    /// The hash table grows with the maximum. It stays if the maximum could not be written.
    fn set_conntrack_max(&self, max: u64) -> Vec<SettingResult> {
        let mut results = vec![self.apply(Sysctl::ConntrackMax, max, Direction::Raise)];
        if !matches!(results[0].outcome, SettingOutcome::Failed(_)) {
            results.push(self.apply(Sysctl::ConntrackHashSize, max / ENTRIES_PER_BUCKET, Direction::Raise));
        }
        results
    }

    fn apply(&self, setting: Sysctl, wanted: u64, direction: Direction) -> SettingResult {
        let before = self.read(setting).ok();
        let is_enough = |value: u64| value == wanted || value > wanted && direction == Direction::Raise;
        let outcome = match before {
            Some(value) if is_enough(value) => SettingOutcome::Unchanged,
            _ => self.write(setting, wanted).map_or_else(SettingOutcome::Failed, |()| SettingOutcome::Written),
        };
        SettingResult { setting, wanted, before, outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that kube-proxy computes with its defaults.
    #[test]
    fn the_maximum_grows_with_the_processors_between_two_limits() {
        let settings = ConntrackSettings::default();
        for (processors, max) in [(1, 131_072), (4, 131_072), (8, 262_144), (32, 1_048_576), (128, 1_048_576)] {
            assert_eq!(settings.max(processors), Some(max), "{processors} processors");
        }
        assert_eq!(ConntrackSettings { max_per_core: 0, ..settings }.max(8), None);
    }
}
