//! Progress lines: one for each step, with the time it took.

use std::time::Instant;

use anyhow::{Context, Result};

pub fn report(line: impl AsRef<str>) {
    println!("kit: {}", line.as_ref());
}

/// Reports a long step at its start and at its end.
pub fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    report(format!("{what} ..."));
    timed(what, work)
}

/// Reports a step at its end only.
pub fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let done = work().with_context(|| what.to_owned())?;
    report(format!("{what}: {:.1} s", start.elapsed().as_secs_f32()));
    Ok(done)
}
