//! How long to wait after a failure: longer each time, up to a limit, and never the same for all agents of a cluster.

use std::time::Duration;

#[derive(Clone, Copy)]
struct Bounds {
    first: Duration,
    longest: Duration,
}

const TRY: Bounds = Bounds { first: Duration::from_millis(200), longest: Duration::from_secs(10) };
/// For what may never be there: at 5,000 nodes and two kinds, 83 small answers a second.
const SEARCH: Bounds = Bounds { first: Duration::from_secs(2), longest: Duration::from_secs(120) };

pub(crate) struct Pause {
    count: u32,
    bounds: Bounds,
}

impl Default for Pause {
    fn default() -> Pause {
        Pause { count: 0, bounds: TRY }
    }
}

impl Pause {
    /// Between two looks for something that is not there.
    pub(crate) fn search() -> Pause {
        Pause { count: 0, bounds: SEARCH }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.bounds.first.saturating_mul(1 << self.count.min(10)).min(self.bounds.longest);
        self.count = self.count.saturating_add(1);
        wait.mul_f64(0.75 + fastrand::f64() / 2.0)
    }

    pub(crate) fn reset(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_begins_anew() {
        let mut pause = Pause::default();
        assert!(pause.next() < Duration::from_millis(300));
        let last = (0..100).map(|_| pause.next()).last().unwrap();
        assert!((Duration::from_secs(7)..Duration::from_secs(13)).contains(&last), "{last:?}");
        pause.reset();
        assert!(pause.next() < Duration::from_millis(300));
    }
}
