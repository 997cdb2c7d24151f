//! The clock of snapshots. Within one boot the time since the boot counts, because it cannot be set. After a reboot only
//! the calendar time can be compared, and a small host without a battery may start with a calendar time in the past.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A source of the time. It is a parameter, so that tests can simulate a reboot.
pub trait Clock: Send + Sync {
    fn now(&self) -> ClockReading;
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClockReading {
    pub boot_id: Box<str>,
    /// Seconds since the boot, including suspend.
    pub uptime: u64,
    /// Seconds since the Unix epoch.
    pub time: u64,
}

impl ClockReading {
    pub fn since(&self, earlier: &ClockReading) -> Duration {
        let (now, earlier) =
            if self.boot_id == earlier.boot_id { (self.uptime, earlier.uptime) } else { (self.time, earlier.time) };
        Duration::from_secs(now.saturating_sub(earlier))
    }
}

/// The clock of this host.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> ClockReading {
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        ClockReading { boot_id: boot_id.trim().into(), uptime: uptime.tv_sec.unsigned_abs(), time: time.as_secs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(boot: &str, uptime: u64, time: u64) -> ClockReading {
        ClockReading { boot_id: boot.into(), uptime, time }
    }

    #[test]
    fn within_one_boot_the_calendar_time_does_not_count() {
        let earlier = reading("a", 100, 5_000);
        assert_eq!(reading("a", 160, 1).since(&earlier), Duration::from_secs(60));
        assert_eq!(reading("b", 10, 5_600).since(&earlier), Duration::from_secs(600));
        assert_eq!(reading("b", 10, 1).since(&earlier), Duration::ZERO, "the clock started in the past");
    }

    #[test]
    fn the_system_clock_has_a_boot_id_and_advances() {
        let (first, second) = (SystemClock.now(), SystemClock.now());
        assert!(!first.boot_id.is_empty() && first.boot_id == second.boot_id);
        assert!(first.uptime > 0 && second.since(&first) < Duration::from_secs(60));
    }
}
