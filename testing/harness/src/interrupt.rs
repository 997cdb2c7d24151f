//! Ctrl-C as an error instead of an end: what was made is removed by the values that own it, and they are only dropped
//! if the process goes on.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Result, ensure};

use crate::sys;

static SEEN: AtomicBool = AtomicBool::new(false);

/// To be called first in `main`, before any other thread is there.
pub fn catch() {
    let wait = sys::hold_signals(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
    thread::spawn(move || {
        wait();
        SEEN.store(true, Ordering::Relaxed);
    });
}

/// An error once a signal has come.
pub fn check() -> Result<()> {
    ensure!(!seen(), "interrupted");
    Ok(())
}

pub fn seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}
