//! The kernel half from user space: the embedded objects, their maps as `Maps`, load and attach and pin and adopt, the
//! event ring, the socket reaper. The only crate with `unsafe`: mapped memory, and types that come from BTF.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod cgroup;
pub mod control;
pub mod count;
mod diag;
pub mod door;
pub mod event;
pub mod kernel;
pub mod level;
pub mod mapped;
pub mod memory;
pub mod netns;
pub mod object;
pub mod pin;
pub mod pod;
pub mod program;
pub mod query;
pub mod reap;
pub mod record;
pub mod tcp;
pub mod wire;

pub use door::Door;
pub use kernel::Kernel;
pub use program::{Config, Program, StartKind};

/// Types that the kernel half declares, from its BTF.
pub mod abi {
    mod skeleton {
        #![allow(unused_imports, dead_code, clippy::all)]
        include!(concat!(env!("OUT_DIR"), "/layout.skel.rs"));
    }
    pub use skeleton::types::*;
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}: {source}")]
    Bpf { what: String, source: libbpf_rs::Error },
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("{0}")]
    Said(String),
}

pub type Result<T> = std::result::Result<T, Error>;

pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for libbpf_rs::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Bpf { what: what(), source })
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source })
    }
}

impl<T> Context<T> for std::result::Result<T, rustix::io::Errno> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| Error::Io { what: what(), source: errno.into() })
    }
}
