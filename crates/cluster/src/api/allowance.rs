//! How many Events one agent may write: whoever can make objects that are refused must not be able to make every agent of
//! the cluster write for each of them.

use std::time::{Duration, Instant};

/// In a second, for good.
const RATE: f64 = 1.0;
/// At once, after a pause.
const BURST: f64 = 20.0;
/// All agents refuse the same object at the same moment: the first one waits some part of this.
const SPREAD: Duration = Duration::from_secs(2);

pub(crate) struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    pub(crate) fn new(now: Instant) -> Allowance {
        Allowance { left: BURST, at: now }
    }

    /// How long to wait before the next one.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * RATE;
        let rested = self.left + gained >= BURST;
        self.left = (self.left + gained).min(BURST) - 1.0;
        self.at = now;
        let debt = Duration::from_secs_f64((-self.left).max(0.0) / RATE);
        debt.mul_f64(1.0 + fastrand::f64() / 2.0)
            + if rested { SPREAD.mul_f64(fastrand::f64()) } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_one_a_second() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        assert!(allowance.take(start) <= SPREAD);
        assert!((1..20).all(|_| allowance.take(start).is_zero()));
        let wait = allowance.take(start);
        assert!((Duration::from_secs(1)..=Duration::from_millis(1500)).contains(&wait), "{wait:?}");
        let later = start + Duration::from_secs(100);
        assert!(allowance.take(later) <= SPREAD);
        assert!((1..20).all(|_| allowance.take(later).is_zero()), "no more is saved up than a burst");
        assert!(!allowance.take(later).is_zero());
    }
}
