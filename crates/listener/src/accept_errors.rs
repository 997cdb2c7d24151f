//! What a listener does when `accept` or `recv` fails: it logs, pauses and continues. The usual error is EMFILE (too many
//! open files), which returns at once and until a descriptor is closed, so the loop needs a pause and the log a limit.

use std::io;
use std::time::{Duration, Instant};

/// The pause after an error of the listener itself.
const PAUSE: Duration = Duration::from_millis(100);
/// The shortest time between two log lines of one listener.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct AcceptErrors {
    listener: &'static str,
    logged: Option<Instant>,
    /// Errors since the last log line.
    suppressed: u64,
}

impl AcceptErrors {
    /// `listener`: what is listened for, for the log.
    pub fn new(listener: &'static str) -> AcceptErrors {
        AcceptErrors { listener, logged: None, suppressed: 0 }
    }

    /// Logs the error, and waits before the next attempt.
    pub async fn pause(&mut self, error: &io::Error) {
        // The peer closed the connection before it was accepted: the listener itself is in order.
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            return;
        }
        if self.is_log_due(Instant::now()) {
            let (listener, suppressed) = (self.listener, std::mem::take(&mut self.suppressed));
            tracing::warn!(listener, %error, suppressed, "cannot accept a connection, retrying");
        }
        tokio::time::sleep(PAUSE).await;
    }

    fn is_log_due(&mut self, now: Instant) -> bool {
        if self.logged.is_some_and(|logged| now < logged + LOG_INTERVAL) {
            self.suppressed += 1;
            return false;
        }
        self.logged = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_exhausted_listener_pauses_and_an_aborted_connection_does_not() {
        let mut errors = AcceptErrors::new("test");
        let start = Instant::now();
        errors.pause(&io::ErrorKind::ConnectionAborted.into()).await;
        assert!(start.elapsed() < PAUSE);
        errors.pause(&io::Error::other("too many open files")).await;
        assert!(start.elapsed() >= PAUSE);
    }

    #[test]
    fn repeated_errors_are_logged_every_ten_seconds_with_their_number() {
        let (mut errors, start) = (AcceptErrors::new("test"), Instant::now());
        let due = [0, 1, 9, 10, 11].map(|seconds| errors.is_log_due(start + Duration::from_secs(seconds)));
        assert_eq!((due, errors.suppressed), ([true, false, false, true, false], 3));
    }
}
