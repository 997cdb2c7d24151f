//! The agent: one thread owns the state (facts, plan, tables, maps) and brings the kernel to the facts; around it, small
//! tasks feed it (folder or API server, interfaces), ask it (CLI socket, HTTP) and read the event ring.
#![forbid(unsafe_code)]

mod change;
pub mod explain;
mod follow;
mod health;
mod hold;
mod http;
pub mod identity;
mod interface;
pub mod known;
mod ledger;
mod listen;
mod member;
mod meter;
mod metric;
mod names;
mod owner;
mod policy;
mod probe;
pub mod reach;
mod refused;
mod reload;
pub mod run;
mod self_test;
mod settings;
pub mod snapshot;
mod socket;
mod source;
mod stale;
mod state;
pub mod status;
mod token;
mod view;

pub use run::run;
pub use self_test::dial as self_test_dial;
pub use settings::{Cluster, Controller, Dns, DnsView, Listing, Origin, Orphan, Reload, Settings};
pub use socket::ask;
pub use view::remove_rooms;
