//! Packets from outside a node, served by the agent's packet path. Needs root and no Kubernetes.
//!
//!     cargo test --workspace --test packet

mod agent_driver;
mod suite;

packet_tests!(agent_driver::with_fixture);
