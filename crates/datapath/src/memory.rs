//! Memory of the agent process.

/// Returns free heap memory to the host. After a large initial load the allocator would otherwise keep it.
pub fn trim() {
    // SAFETY: no argument but the pad; glibc locks its arenas itself.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
