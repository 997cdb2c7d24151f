//! A token bucket for requests that cost the API server or other nodes something. The caller passes the time.

use std::time::{Duration, Instant};

/// More than the error of the arithmetic.
const ROUNDING: Duration = Duration::from_micros(1);

#[derive(Clone, Debug)]
pub struct RateLimiter {
    /// Tokens per second.
    rate: f64,
    /// Maximum number of tokens.
    burst: f64,
    /// Negative after `reserve` has handed out tokens in advance.
    tokens: f64,
    updated: Instant,
}

impl RateLimiter {
    /// Starts with `burst` tokens.
    pub fn new(rate: f64, burst: f64, now: Instant) -> RateLimiter {
        RateLimiter { rate, burst, tokens: burst, updated: now }
    }

    /// Starts without tokens.
    pub fn empty(rate: f64, burst: f64, now: Instant) -> RateLimiter {
        RateLimiter { tokens: 0.0, ..RateLimiter::new(rate, burst, now) }
    }

    /// Applies from now on. Time that has passed is counted at the old rate.
    pub fn set_rate(&mut self, rate: f64, burst: f64, now: Instant) {
        self.refill(now);
        (self.rate, self.burst) = (rate, burst);
        self.tokens = self.tokens.min(burst);
    }

    /// Takes a token if there is one.
    pub fn try_take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let available = self.tokens >= 1.0;
        if available {
            self.tokens -= 1.0;
        }
        available
    }

    /// Takes a token in any case, and returns how long the caller must wait before it uses the token.
    pub fn reserve(&mut self, now: Instant) -> Duration {
        self.refill(now);
        self.tokens -= 1.0;
        Duration::from_secs_f64((-self.tokens).max(0.0) / self.rate)
    }

    /// How long it takes until `try_take` succeeds. Rounded up, so that it does succeed after that time.
    pub fn until_token(&self, now: Instant) -> Duration {
        let missing = 1.0 - self.tokens_at(now);
        if missing <= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(missing / self.rate) + ROUNDING }
    }

    /// Whether no token has been used for so long that the bucket is full.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.tokens >= self.burst
    }

    /// A `now` before the last update adds nothing.
    fn refill(&mut self, now: Instant) {
        self.tokens = self.tokens_at(now);
        self.updated = self.updated.max(now);
    }

    fn tokens_at(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.updated).as_secs_f64();
        (self.tokens + self.rate * passed).min(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn tokens_accumulate_over_time_up_to_the_burst() {
        let start = Instant::now();
        let mut limiter = RateLimiter::empty(4.0, 8.0, start);
        let mut taken = |after: Duration| {
            let taken = std::iter::from_fn(|| limiter.try_take(start + after).then_some(()));
            taken.count()
        };
        assert_eq!([taken(SECOND / 8), taken(SECOND / 4), taken(SECOND / 4), taken(SECOND)], [0, 1, 0, 3]);
        assert_eq!(taken(1000 * SECOND), 8);
        assert_eq!(taken(SECOND), 0, "an earlier time adds nothing");
    }

    #[test]
    fn a_token_can_be_taken_after_the_announced_time() {
        let mut now = Instant::now();
        let mut limiter = RateLimiter::new(7.0, 1.0, now);
        assert_eq!(limiter.until_token(now), Duration::ZERO);
        for _ in 0..1000 {
            assert!(limiter.try_take(now) && !limiter.try_take(now));
            now += limiter.until_token(now);
        }
    }

    #[test]
    fn a_lower_rate_caps_the_tokens() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(4.0, 8.0, start);
        limiter.set_rate(1.0, 2.0, start);
        assert_eq!(std::iter::from_fn(|| limiter.try_take(start).then_some(())).count(), 2);
        assert!(!limiter.try_take(start + SECOND / 2) && limiter.try_take(start + SECOND));
    }

    #[test]
    fn a_reservation_waits_for_its_token() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(2.0, 1.0, start);
        assert!(limiter.is_full(start));
        assert_eq!(
            [limiter.reserve(start), limiter.reserve(start), limiter.reserve(start)],
            [0, 1, 2].map(|n| n * SECOND / 2)
        );
        assert!(!limiter.is_full(start + SECOND) && limiter.is_full(start + 2 * SECOND));
    }
}
