//! Waits for a condition with a time limit. The error of a wait names the condition, the limit and the log to read.

use std::{
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub struct Timeout {
    /// The awaited condition, for the error message.
    pub what: String,
    pub limit: Duration,
    pub log: Option<PathBuf>,
}

impl Timeout {
    pub fn new(what: impl Into<String>, seconds: u64, log: PathBuf) -> Timeout {
        Timeout { what: what.into(), limit: Duration::from_secs(seconds), log: Some(log) }
    }

    fn error(&self) -> anyhow::Error {
        let hint = self.log.as_ref().map(|log| format!(": read {}", log.display())).unwrap_or_default();
        anyhow::anyhow!("timed out after {} s waiting for {}{hint}", self.limit.as_secs(), self.what)
    }
}

/// Calls `check` until it returns a value. An error of `check` ends the wait: the condition can no longer become true.
pub fn until<T>(timeout: Timeout, mut check: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = check()? {
            return Ok(value);
        }
        if start.elapsed() >= timeout.limit {
            bail!(timeout.error());
        }
        sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_names_the_condition_and_the_log() {
        let timeout = Timeout::new("the API server", 0, "/var/log/api.log".into());
        let error = until(timeout, || Ok(None::<()>)).unwrap_err();
        assert_eq!(error.to_string(), "timed out after 0 s waiting for the API server: read /var/log/api.log");
    }

    #[test]
    fn an_error_ends_the_wait() {
        let timeout = Timeout::new("the API server", 600, "api.log".into());
        let error = until(timeout, || -> Result<Option<()>> { bail!("it exited") }).unwrap_err();
        assert_eq!(error.to_string(), "it exited");
    }
}
