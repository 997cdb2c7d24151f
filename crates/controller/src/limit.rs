//! Tokens for what costs others something.

use std::time::Instant;

#[derive(Debug)]
pub struct Limit {
    tokens: f64,
    at: Instant,
}

impl Limit {
    pub fn new(tokens: f64, now: Instant) -> Limit {
        Limit { tokens, at: now }
    }

    /// Two seconds' worth are kept at most.
    pub fn refill(&mut self, rate: f64, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + rate * passed).min(rate.max(1.0) * 2.0);
        self.at = self.at.max(now);
    }

    pub fn take(&mut self) -> bool {
        let has = self.tokens >= 1.0;
        self.tokens -= if has { 1.0 } else { 0.0 };
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_there_are() {
        let mut limit = Limit::new(1.5, Instant::now());
        assert!(limit.take() && !limit.take());
    }

    #[test]
    fn they_come_with_time_and_do_not_pile_up() {
        let (start, second) = (Instant::now(), std::time::Duration::from_secs(1));
        let mut limit = Limit::new(0.0, start);
        let mut taken = |after: std::time::Duration| {
            limit.refill(4.0, start + after);
            std::iter::from_fn(|| limit.take().then_some(())).count()
        };
        assert_eq!([taken(second / 8), taken(second / 4), taken(second / 4), taken(second)], [0, 1, 0, 3]);
        assert_eq!(taken(1000 * second), 8);
        assert_eq!(taken(second), 0, "time does not go back");
    }
}
