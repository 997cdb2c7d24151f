//! Tokens for what costs others something.

use std::time::Instant;

#[derive(Debug)]
pub struct Limit {
    tokens: f64,
    at: Instant,
}

impl Limit {
    pub fn new(tokens: f64) -> Limit {
        Limit { tokens, at: Instant::now() }
    }

    pub fn refill(&mut self, rate: f64) {
        self.tokens = (self.tokens + rate * self.at.elapsed().as_secs_f64()).min(rate.max(1.0) * 2.0);
        self.at = Instant::now();
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
        let mut limit = Limit::new(1.5);
        assert!(limit.take() && !limit.take());
    }
}
