//! Test harness: private cgroups, network namespaces, echo servers that answer with their name, and clients that dial
//! by every kind of socket call. The integration tests, the demo and the benches use it; the product never does.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use beeline_harness::{DialKind, DialRequest, TestNetwork};
//!
//! let network = TestNetwork::new(2)?;                      // a node with pod-a and pod-b, removed on drop
//! let _server = network.pod(0).serve(8080)?;               // TCP, HTTP and UDP, IPv4 and IPv6
//! let client = network.node().client()?;                   // a process in the node's namespace and cgroup
//! let outcome = client.dial(&DialRequest::new(DialKind::Tcp, network.pod(0).v4(8080)))?;
//! assert_eq!(outcome.name(), "pod-a");
//! let curl = network.node().program("curl")?.args(["-s", "http://10.244.1.2:8080/"]).run()?;
//! assert!(curl.stdout.starts_with("pod-a 10.244.1.2:8080 peer="));
//! # Ok(()) }
//! ```

#![deny(unsafe_code)]

mod addressing;
mod agent;
mod backend_process;
mod cgroup;
pub mod child;
mod client;
mod corpus;
mod dial;
mod dial_check;
mod echo_server;
mod errno;
mod example_cluster;
mod identity;
pub mod interrupt;
mod load;
mod loaded_program;
mod manifest_dir;
mod netns;
mod network;
pub mod packet;
mod probe;
mod program;
pub mod protocol;
mod requirement;
mod seed;
mod socket;
mod sys;
mod test_host;
mod wait;

pub use agent::AgentProcess;
pub use backend_process::BackendProcess;
pub use cgroup::{Cgroup, mount as cgroup_mount};
pub use client::{CallError, ChildServer, Client, Socket};
pub use corpus::replay_corpus;
pub use dial::{DialKind, DialOutcome, DialRequest};
pub use dial_check::{DialCheck, DialResults, Expected};
pub use echo_server::{EchoServer, EchoService};
pub use errno::Errno;
pub use example_cluster::ExampleCluster;
pub use identity::{ServerIdentity, mapped, unmapped};
pub use load::{LoadConfig, LoadKind, LoadReport};
pub use loaded_program::LoadedProgram;
pub use manifest_dir::ManifestDir;
pub use netns::{NetworkNamespace, remove_stale as remove_stale_namespaces};
pub use network::{TestNetwork, TestNode};
pub use probe::{ProbeConfig, ProbeFailure, ProbeReport, monotonic_ns};
pub use program::{ProgramOutput, RunningProgram, TestProgram};
pub use protocol::{CallMethod, SocketFamily, SocketOption, SocketType};
pub use requirement::check_requirements;
pub use seed::test_seed;
pub use test_host::TestHost;
pub use wait::wait_until;
