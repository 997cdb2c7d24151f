//! What time it is, twice: by the calendar, which somebody may set (a host without a battery wakes up in the past, one that
//! keeps local time hours ahead), and by the time since the host's start, sleep included, which nobody does.

use jiff::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub calendar: Timestamp,
    pub uptime: Duration,
}

impl Moment {
    pub fn now() -> Moment {
        let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Moment { calendar: Timestamp::now(), uptime: Duration::try_from(uptime).unwrap_or_default() }
    }
}
