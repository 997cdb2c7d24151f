//! Waiting with an end. Whoever waits says for what, how long, and which log tells why it did not come.

use std::{
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

const STEP: Duration = Duration::from_millis(100);

pub struct Patience {
    pub what: String,
    pub limit: Duration,
    pub log: Option<PathBuf>,
}

impl Patience {
    pub fn new(what: impl Into<String>, seconds: u64, log: PathBuf) -> Patience {
        Patience { what: what.into(), limit: Duration::from_secs(seconds), log: Some(log) }
    }

    fn spent(&self) -> anyhow::Error {
        let hint = self.log.as_ref().map(|log| format!(": read {}", log.display())).unwrap_or_default();
        anyhow::anyhow!("{} did not come within {} s{hint}", self.what, self.limit.as_secs())
    }
}

/// Asks until there is an answer. An error ends the wait at once: it says that the answer cannot come any more.
pub fn until<T>(patience: Patience, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if start.elapsed() >= patience.limit {
            bail!(patience.spent());
        }
        sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_log_when_time_is_up() {
        let patience = Patience::new("the moon", 0, "/var/log/sky.log".into());
        let error = until(patience, || Ok(None::<()>)).unwrap_err();
        assert_eq!(error.to_string(), "the moon did not come within 0 s: read /var/log/sky.log");
    }

    #[test]
    fn an_error_ends_the_wait() {
        let patience = Patience::new("the moon", 600, "sky.log".into());
        assert_eq!(until(patience, || -> Result<Option<()>> { bail!("it fell") }).unwrap_err().to_string(), "it fell");
    }
}
