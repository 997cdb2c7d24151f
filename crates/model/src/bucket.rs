//! Token buckets with the same arithmetic as take_token() in bpf/policy.h.

use crate::hash::HashMap;
use crate::policy::Limit;
use crate::row::PolicyId;

/// Credit is kept in billionths of a token, so that a rate of one token per second adds 1 per nanosecond.
const TOKEN: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketLevel {
    /// Time of the last update, in nanoseconds. 0 means that the bucket was never used and is full.
    pub time: u64,
    pub credit: u64,
}

impl BucketLevel {
    fn credit_at(self, now: u64, limit: Limit) -> u64 {
        let (rate, full) = (u64::from(limit.connects_per_second), u64::from(limit.burst) * TOKEN);
        let passed = now.saturating_sub(self.time);
        if self.time == 0 || (rate != 0 && passed > full / rate) {
            return full;
        }
        full.min(self.credit + passed * rate)
    }

    /// Whole tokens in the bucket.
    pub fn tokens_at(self, now: u64, limit: Limit) -> u64 {
        self.credit_at(now, limit) / TOKEN
    }

    fn take_token(&mut self, now: u64, limit: Limit) -> bool {
        let left = self.credit_at(now, limit).checked_sub(TOKEN);
        if let Some(credit) = left {
            *self = BucketLevel { time: now.max(self.time), credit };
        }
        left.is_some()
    }
}

/// One bucket per policy. A bucket is full until it is used.
#[derive(Clone, Debug, Default)]
pub struct TokenBuckets(HashMap<PolicyId, BucketLevel>);

impl FromIterator<(PolicyId, BucketLevel)> for TokenBuckets {
    fn from_iter<I: IntoIterator<Item = (PolicyId, BucketLevel)>>(levels: I) -> TokenBuckets {
        TokenBuckets(levels.into_iter().collect())
    }
}

impl TokenBuckets {
    pub fn take_token(&mut self, policy: PolicyId, limit: Limit, now: u64) -> bool {
        self.0.entry(policy).or_default().take_token(now, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dials every ten microseconds for ten seconds.
    #[test]
    fn a_bucket_grants_exactly_its_burst_and_rate() {
        for (connects_per_second, burst) in [(500, 1000), (7, 3), (1, 1), (99_991, 10)] {
            let limit = Limit { connects_per_second, burst };
            let mut buckets = TokenBuckets::default();
            let dials = (1..=1_000_000u64).map(|at| at * 10_000);
            let taken = dials.filter(|now| buckets.take_token(1, limit, *now)).count() as u64;
            let filled = (1_000_000 - 1) * 10_000 * u64::from(connects_per_second) / TOKEN;
            assert_eq!(taken, u64::from(burst) + filled, "{limit:?}");
        }
    }

    #[test]
    fn an_earlier_timestamp_does_not_refill_the_bucket() {
        let limit = Limit { connects_per_second: 1, burst: 2 };
        let mut level = BucketLevel::default();
        assert!(
            level.take_token(5 * TOKEN, limit)
                && level.take_token(4 * TOKEN, limit)
                && !level.take_token(5 * TOKEN, limit)
        );
        assert!(level.take_token(6 * TOKEN, limit) && !level.take_token(6 * TOKEN, limit));
    }

    #[test]
    fn the_largest_limits_do_not_overflow() {
        let limit = Limit { connects_per_second: u32::MAX, burst: u32::MAX };
        let mut level = BucketLevel::default();
        assert!(level.take_token(1, limit) && level.take_token(u64::MAX, limit));
        assert_eq!(level.tokens_at(u64::MAX, limit), u64::from(u32::MAX) - 1);
    }
}
