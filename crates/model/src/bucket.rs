//! Token buckets, as the kernel half keeps them: the twin of take_token() in bpf/policy.h, in the same arithmetic.

use crate::hash::HashMap;
use crate::policy::Limit;
use crate::row::PolicyId;

/// Credit is kept in billionths of a token: a token a second is one for each nanosecond.
const TOKEN: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Nanoseconds: when the credit was right. 0: never used, and full.
    pub time: u64,
    pub credit: u64,
}

impl Level {
    fn credit_at(self, now: u64, limit: Limit) -> u64 {
        let (rate, full) = (u64::from(limit.connects_per_second), u64::from(limit.burst) * TOKEN);
        let passed = now.saturating_sub(self.time);
        if self.time == 0 || (rate != 0 && passed > full / rate) {
            return full;
        }
        full.min(self.credit + passed * rate)
    }

    /// Whole tokens that it holds.
    pub fn tokens_at(self, now: u64, limit: Limit) -> u64 {
        self.credit_at(now, limit) / TOKEN
    }

    fn take(&mut self, now: u64, limit: Limit) -> bool {
        let left = self.credit_at(now, limit).checked_sub(TOKEN);
        if let Some(credit) = left {
            *self = Level { time: now.max(self.time), credit };
        }
        left.is_some()
    }
}

/// One for each policy, full until used.
#[derive(Clone, Debug, Default)]
pub struct Buckets(HashMap<PolicyId, Level>);

impl FromIterator<(PolicyId, Level)> for Buckets {
    fn from_iter<I: IntoIterator<Item = (PolicyId, Level)>>(levels: I) -> Buckets {
        Buckets(levels.into_iter().collect())
    }
}

impl Buckets {
    pub fn take(&mut self, policy: PolicyId, limit: Limit, now: u64) -> bool {
        self.0.entry(policy).or_default().take(now, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dial every ten microseconds for ten seconds.
    #[test]
    fn burst_and_rate_exactly() {
        for (connects_per_second, burst) in [(500, 1000), (7, 3), (1, 1), (99_991, 10)] {
            let limit = Limit { connects_per_second, burst };
            let mut buckets = Buckets::default();
            let dials = (1..=1_000_000u64).map(|at| at * 10_000);
            let taken = dials.filter(|now| buckets.take(1, limit, *now)).count() as u64;
            let filled = (1_000_000 - 1) * 10_000 * u64::from(connects_per_second) / TOKEN;
            assert_eq!(taken, u64::from(burst) + filled, "{limit:?}");
        }
    }

    #[test]
    fn a_clock_that_was_read_earlier_takes_nothing_back() {
        let limit = Limit { connects_per_second: 1, burst: 2 };
        let mut level = Level::default();
        assert!(level.take(5 * TOKEN, limit) && level.take(4 * TOKEN, limit) && !level.take(5 * TOKEN, limit));
        assert!(level.take(6 * TOKEN, limit) && !level.take(6 * TOKEN, limit));
    }

    #[test]
    fn the_largest_limits_do_not_overflow() {
        let limit = Limit { connects_per_second: u32::MAX, burst: u32::MAX };
        let mut level = Level::default();
        assert!(level.take(1, limit) && level.take(u64::MAX, limit));
        assert_eq!(level.tokens_at(u64::MAX, limit), u64::from(u32::MAX) - 1);
    }
}
