//! The agent's own memory.

/// Gives back to the host what a large load left behind: the allocator would keep it for a next one that never comes.
pub fn trim() {
    // SAFETY: no argument but the pad; glibc locks its arenas itself.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
