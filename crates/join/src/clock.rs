//! The time by two clocks. The wall clock may be wrong or be set (a host without a battery starts in the past). The time
//! since boot, which includes suspend, never jumps.

use jiff::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeReading {
    pub wall: Timestamp,
    pub uptime: Duration,
}

impl TimeReading {
    pub fn now() -> TimeReading {
        let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        TimeReading { wall: Timestamp::now(), uptime: Duration::try_from(uptime).unwrap_or_default() }
    }
}
