//! Counts what held, and says what did not.

use std::fmt::Display;

use anyhow::{Result, bail};
use beeline_harness::{Client, Trial};

#[derive(Default)]
pub struct Checks {
    pub passed: u32,
    pub failed: u32,
}

impl Checks {
    /// A line for what `work` comes to; what it tells (or "") stands behind.
    pub fn check<T: Display>(&mut self, what: &str, work: impl FnOnce(&mut Self) -> Result<T>) {
        match work(self) {
            Ok(told) => {
                self.passed += 1;
                println!("{}", format!("ok    {what} {told}").trim_end());
            }
            Err(error) => {
                self.failed += 1;
                println!("FAIL  {what}: {error:#}");
            }
        }
    }

    /// A few dials: who answers is luck, that nobody else does is not.
    pub fn dial(&mut self, client: &Client, what: &str, trial: Trial) {
        let trial = Trial { times: 6, ..trial };
        let what = format!("{what}: {:?} to {}", trial.kind, trial.to);
        self.check(&what, |_| {
            let seen = trial.run(client)?;
            trial.fault(&seen).map_or(Ok(""), |fault| bail!("{fault}"))
        });
    }
}
