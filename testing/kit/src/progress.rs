//! One line for each step, with the time it took: nobody should wonder whether something still happens.

use std::time::Instant;

use anyhow::{Context, Result};

pub fn say(line: impl AsRef<str>) {
    println!("kit: {}", line.as_ref());
}

/// Announces a step that takes long, and tells when it is done.
pub fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say(format!("{what} ..."));
    quick(what, work)
}

/// Tells of a step once it is done.
pub fn quick<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let done = work().with_context(|| what.to_owned())?;
    say(format!("{what}: {:.1} s", start.elapsed().as_secs_f32()));
    Ok(done)
}
