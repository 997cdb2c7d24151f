//! When something was, told across reboots. In one boot the time since its start counts, which nobody sets; only after a
//! reboot is the calendar believed, and small hosts without a battery wake up in the past.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Handed in, so that tests can make a host reboot.
pub trait Clock: Send + Sync {
    fn now(&self) -> Moment;
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Moment {
    /// Which start of this host.
    pub boot_id: Box<str>,
    /// Seconds since then, sleep included.
    pub uptime: u64,
    /// Seconds since the epoch.
    pub time: u64,
}

impl Moment {
    /// How long ago `then` was.
    pub fn since(&self, then: &Moment) -> Duration {
        let (now, then) =
            if self.boot_id == then.boot_id { (self.uptime, then.uptime) } else { (self.time, then.time) };
        Duration::from_secs(now.saturating_sub(then))
    }
}

/// This host's.
pub struct Host;

impl Clock for Host {
    fn now(&self) -> Moment {
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Moment { boot_id: boot_id.trim().into(), uptime: uptime.tv_sec.unsigned_abs(), time: time.as_secs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot: &str, uptime: u64, time: u64) -> Moment {
        Moment { boot_id: boot.into(), uptime, time }
    }

    #[test]
    fn in_one_boot_nobody_sets_the_clock() {
        let then = moment("a", 100, 5_000);
        assert_eq!(moment("a", 160, 1).since(&then), Duration::from_secs(60));
        assert_eq!(moment("b", 10, 5_600).since(&then), Duration::from_secs(600));
        assert_eq!(moment("b", 10, 1).since(&then), Duration::ZERO, "a clock that woke up in the past");
    }

    #[test]
    fn this_host_knows_when_it_is() {
        let (first, second) = (Host.now(), Host.now());
        assert!(!first.boot_id.is_empty() && first.boot_id == second.boot_id);
        assert!(first.uptime > 0 && second.since(&first) < Duration::from_secs(60));
    }
}
