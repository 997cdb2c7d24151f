//! Turns Ctrl-C into an error. Namespaces and cgroups are removed when their values are dropped, which needs a process
//! that unwinds instead of being killed.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Result, ensure};

use crate::sys;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Blocks the signals. Call this first in `main`, before any other thread exists.
pub fn install_handler() {
    let wait = sys::block_signals(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
    thread::spawn(move || {
        wait();
        INTERRUPTED.store(true, Ordering::Relaxed);
    });
}

/// Returns an error once a signal has arrived.
pub fn check() -> Result<()> {
    ensure!(!was_interrupted(), "interrupted");
    Ok(())
}

pub fn was_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
