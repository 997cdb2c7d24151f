//! What needs the whole cluster's knowledge, done once and not on every node: admission of policies, the backends of
//! BalancingPolicies and the nodes' addresses published as EndpointSlices, and the status of every policy. Traffic never
//! waits for it.
#![forbid(unsafe_code)]

mod admission;
mod census;
mod certificate;
mod claim;
mod health;
mod judge;
mod keep;
mod lease;
mod limit;
mod listen;
mod publish;
mod queue;
mod report;
mod right;
mod run;
mod said;
mod seat;
mod settings;
mod spot;
mod status;
mod sweep;
mod webhook;
mod world;

pub use run::run;
pub use settings::{Overlap, Settings};
