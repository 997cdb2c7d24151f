//! The agent: one thread owns the state (facts, plan, tables, maps) and brings the kernel to the facts; around it, small
//! tasks feed it (folder or API server, interfaces), ask it (CLI socket, HTTP) and read the event ring.
#![forbid(unsafe_code)]

mod change;
pub mod explain;
mod health;
mod http;
pub mod identity;
mod interface;
mod listen;
mod member;
mod metric;
mod owner;
mod policy;
mod probe;
mod refused;
pub mod run;
mod self_test;
mod settings;
mod socket;
mod stale;
mod state;
pub mod status;

pub use run::run;
pub use self_test::dial as self_test_dial;
pub use settings::{Controller, Origin, Orphan, Settings};
pub use socket::ask;
