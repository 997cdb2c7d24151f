//! The test ground: private cgroups, network namespaces, servers that say who they are, and clients that dial them
//! in every way a program can. Used by the integration tests, the demo and the benches; never by the product.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use beeline_harness::{Dial, Kind, Lab};
//!
//! let lab = Lab::new(2)?;                                  // a node with pod-a and pod-b, gone again on drop
//! let _server = lab.pod(0).serve(8080)?;                   // TCP, HTTP and UDP, v4 and v6
//! let client = lab.node().client()?;                       // a process in the node's namespace and cgroup
//! let outcome = client.dial(&Dial::new(Kind::Tcp, lab.pod(0).v4(8080)))?;
//! assert_eq!(outcome.name(), "pod-a");
//! let curl = lab.node().program("curl")?.args(["-s", "http://10.244.1.2:8080/"]).run()?;
//! assert!(curl.stdout.starts_with("pod-a 10.244.1.2:8080 peer="));
//! # Ok(()) }
//! ```

#![deny(unsafe_code)]

mod agent;
mod backend;
mod cgroup;
pub mod child;
mod client;
mod dial;
mod errno;
mod example;
mod identity;
pub mod interrupt;
mod lab;
mod netns;
pub mod op;
mod place;
mod require;
mod serve;
mod socket;
mod spawn;
mod storm;
mod sys;
mod trial;
mod watch;
mod wire;

pub use agent::Agent;
pub use backend::Backend;
pub use cgroup::{Cgroup, mount as cgroup_mount};
pub use client::{CallError, Client, Served, Socket};
pub use dial::{Dial, Kind, Outcome};
pub use errno::Errno;
pub use example::Example;
pub use identity::{Identity, mapped, unmapped};
pub use lab::{Lab, Node};
pub use netns::{Namespace, sweep as sweep_namespaces};
pub use op::{By, Family, Setting, Sort};
pub use place::Place;
pub use require::require;
pub use serve::{Server, Service};
pub use spawn::{Output, Program, Running};
pub use storm::{Storm, StormKind, Tally};
pub use trial::{Expect, Seen, Trial};
pub use watch::{Failure, Watch, Watched, now};
