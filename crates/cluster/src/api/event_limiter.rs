//! Limits the Events that one agent writes: a user who can create refused objects must not be able to make every agent
//! of the cluster write an Event for each of them.

use crate::rate_limiter::RateLimiter;
use std::time::{Duration, Instant};

/// Events per second.
const RATE: f64 = 1.0;
const BURST: f64 = 20.0;
/// All agents refuse the same object at the same moment, so the first Event is delayed by a random part of this time.
const SPREAD: Duration = Duration::from_secs(2);

pub(crate) struct EventLimiter(RateLimiter);

impl EventLimiter {
    pub(crate) fn new(now: Instant) -> EventLimiter {
        EventLimiter(RateLimiter::new(RATE, BURST, now))
    }

    /// Takes one Event from the budget, and returns the delay before it may be written.
    pub(crate) fn reserve(&mut self, now: Instant) -> Duration {
        let is_first = self.0.is_full(now);
        let delay = self.0.reserve(now).mul_f64(1.0 + fastrand::f64() / 2.0);
        delay + if is_first { SPREAD.mul_f64(fastrand::f64()) } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_one_event_a_second() {
        let start = Instant::now();
        let mut limiter = EventLimiter::new(start);
        assert!(limiter.reserve(start) <= SPREAD);
        assert!((1..20).all(|_| limiter.reserve(start).is_zero()));
        let delay = limiter.reserve(start);
        assert!((Duration::from_secs(1)..=Duration::from_millis(1500)).contains(&delay), "{delay:?}");
        let later = start + Duration::from_secs(100);
        assert!(limiter.reserve(later) <= SPREAD);
        assert!((1..20).all(|_| limiter.reserve(later).is_zero()), "at most one burst is saved up");
        assert!(!limiter.reserve(later).is_zero());
    }
}
