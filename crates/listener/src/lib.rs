//! Listeners that a peer cannot block: limits for connections in total and per peer, time limits for HTTP, and errors of
//! `accept` that never end the process. The agent, its DNS server and the controller use it.
#![forbid(unsafe_code)]

mod accept_errors;
mod connection_limiter;
pub mod http;

pub use accept_errors::AcceptErrors;
pub use connection_limiter::{ConnectionLimiter, ConnectionLimits, ConnectionSlot};
