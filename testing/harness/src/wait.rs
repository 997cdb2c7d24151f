//! Waits for a condition in a test.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls until `condition` holds. Panics with `what` if it does not within `timeout`.
#[track_caller]
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + timeout;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {timeout:?}");
        sleep(POLL_INTERVAL);
    }
}
