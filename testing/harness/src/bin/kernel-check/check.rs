//! Counts and prints the results of checks.

use std::fmt::Display;

use anyhow::{Result, bail};
use beeline_harness::{Client, DialCheck};

#[derive(Default)]
pub struct Checks {
    pub passed: u32,
    pub failed: u32,
}

impl Checks {
    /// Runs a check and prints one line with its result and the text that it returns.
    pub fn check<T: Display>(&mut self, what: &str, work: impl FnOnce(&mut Self) -> Result<T>) {
        match work(self) {
            Ok(detail) => {
                self.passed += 1;
                println!("{}", format!("ok    {what} {detail}").trim_end());
            }
            Err(error) => {
                self.failed += 1;
                println!("FAIL  {what}: {error:#}");
            }
        }
    }

    /// Checks a few dials: which of the expected servers answers is random.
    pub fn dial(&mut self, client: &Client, what: &str, check: DialCheck) {
        let check = DialCheck { times: 6, ..check };
        let what = format!("{what}: {:?} to {}", check.kind, check.to);
        self.check(&what, |_| {
            let results = check.run(client)?;
            check.mismatch(&results).map_or(Ok(""), |mismatch| bail!("{mismatch}"))
        });
    }
}
