//! Delays between retries: each delay is twice the previous one up to a maximum. Every delay is randomized by a
//! quarter, so that the agents of a cluster do not retry at the same moment.

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use std::time::Duration;

pub(crate) struct Backoff {
    builder: ExponentialBuilder,
    delays: ExponentialBackoff,
    max_delay: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new(Duration::from_millis(200), Duration::from_secs(10))
    }
}

impl Backoff {
    fn new(min_delay: Duration, max_delay: Duration) -> Backoff {
        // backon's own jitter would double the delays.
        let builder = ExponentialBuilder::new().with_min_delay(min_delay).with_max_delay(max_delay).without_max_times();
        Backoff { builder, delays: builder.build(), max_delay }
    }

    /// Between two checks whether a missing kind has been installed. At 5,000 nodes and two such kinds, a maximum of
    /// 120 s gives 83 small requests a second.
    pub(crate) fn for_missing_kind() -> Backoff {
        Backoff::new(Duration::from_secs(2), Duration::from_secs(120))
    }

    pub(crate) fn next(&mut self) -> Duration {
        let delay = self.delays.next().unwrap_or(self.max_delay);
        delay.mul_f64(0.75 + fastrand::f64() / 2.0)
    }

    pub(crate) fn reset(&mut self) {
        self.delays = self.builder.build();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_maximum_and_restart_after_a_reset() {
        let mut backoff = Backoff::default();
        assert!(backoff.next() < Duration::from_millis(300));
        let last = (0..100).map(|_| backoff.next()).last().unwrap();
        assert!((Duration::from_secs(7)..Duration::from_secs(13)).contains(&last), "{last:?}");
        backoff.reset();
        assert!(backoff.next() < Duration::from_millis(300));
    }
}
