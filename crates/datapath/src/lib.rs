//! User-space side of the BPF programs: loads, attaches and pins them, writes their maps, reads events and counters, and
//! destroys stale UDP sockets. This is the only crate with `unsafe` code, for mapped memory and types from BTF.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod affinity;
pub mod bucket;
pub mod cgroup;
pub mod control;
pub mod counter;
pub mod event;
pub mod exchange;
pub mod kernel;
pub mod mapped;
pub mod memory;
pub mod namespace_opener;
pub mod netns;
pub mod object;
pub mod packet;
pub mod pin;
pub mod pod;
pub mod pod_address;
pub mod program;
pub mod query;
pub mod reap;
pub mod recount;
pub mod share;
mod sock_diag;
pub mod suspension;
pub mod tcp;
pub mod test_resolver;
pub mod wire;

pub use kernel::KernelMaps;
pub use program::{Config, Program, StartKind};
pub use test_resolver::TestResolver;

/// The types of `bpf/abi.h`, generated from BTF.
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
    Message(String),
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
