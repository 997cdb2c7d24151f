//! A memory-mapped BPF array, whose rows are read and written as 8-byte words without system calls.
//!
//! This is the only `unsafe` code of the benches.

use std::{
    ffi::c_void,
    fs,
    os::fd::AsRawFd,
    ptr, slice,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result};
use libbpf_rs::MapCore;
use rustix::mm::{MapFlags, ProtFlags};

pub struct Mapping {
    start: *mut c_void,
    words: usize,
}

impl Mapping {
    pub fn of(map: &impl MapCore) -> Result<Self> {
        let row = map.value_size().div_ceil(8);
        let words = (row * map.max_entries()) as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping, so it aliases no other memory.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), words * 8, access, MapFlags::SHARED, map.as_fd(), 0) };
        Ok(Self { start: start.with_context(|| format!("cannot map {:?}", map.name()))?, words })
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping lives as long as `self`, is page-aligned and `words` long. The kernel may write it at any
        // time, which atomics allow.
        unsafe { slice::from_raw_parts(self.start.cast(), self.words) }
    }

    /// Writes a row word by word; readers may see a partly written row.
    pub fn write<const N: usize>(&self, row: u32, value: [u64; N]) {
        let start = row as usize * N;
        for (word, value) in self.words()[start..start + N].iter().zip(value) {
            word.store(value, Ordering::Release);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped by `of`, and all borrows of it have ended with `self`.
        let _ = unsafe { rustix::mm::munmap(self.start, self.words * 8) };
    }
}

/// Memory of a map in bytes, as the kernel reports it.
pub fn memory(map: &impl MapCore) -> Result<u64> {
    let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
    let account = fs::read_to_string(&path).with_context(|| path.clone())?;
    let bytes = account.lines().find_map(|line| line.strip_prefix("memlock:"));
    bytes.and_then(|bytes| bytes.trim().parse().ok()).with_context(|| format!("{path} has no memlock line"))
}
