//! How long to wait after a failure: longer each time, up to a limit, and never the same for all agents of a cluster.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Pause(u32);

impl Pause {
    pub(crate) fn next(&mut self) -> Duration {
        let wait = FIRST.saturating_mul(1 << self.0.min(10)).min(LONGEST);
        self.0 = self.0.saturating_add(1);
        wait.mul_f64(0.75 + fastrand::f64() / 2.0)
    }

    pub(crate) fn reset(&mut self) {
        self.0 = 0;
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
