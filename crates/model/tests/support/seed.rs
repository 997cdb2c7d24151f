//! The seeds of property tests.

use std::ops::Range;

/// The seeds of one property test. `BEELINE_SEED` sets the first seed; without it, `default` is used. A failing test
/// prints the seed with which it failed.
pub fn seeds(default: Range<u64>) -> Seeds {
    let given = std::env::var("BEELINE_SEED").ok();
    let first = given.map_or(default.start, |text| text.parse().expect("BEELINE_SEED must be a number"));
    Seeds { next: first, left: default.end - default.start }
}

pub struct Seeds {
    next: u64,
    left: u64,
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        self.next = self.next.wrapping_add(1);
        Some(self.next.wrapping_sub(1))
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with this seed, repeat with BEELINE_SEED={}", self.next.wrapping_sub(1));
        }
    }
}
