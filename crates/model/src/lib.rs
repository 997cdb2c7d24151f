//! The pure core of Beeline: the cluster's objects (`object`, `change`), which endpoints a dial may reach (`select`),
//! what this node should therefore program (`plan`, `planner`), the rows that program it (`row`, `table`, `diff`), and
//! a resolver over those rows that decides exactly as the BPF programs do (`resolve`). No I/O, no clock and no kernel:
//! every function takes values and returns values.
#![forbid(unsafe_code)]

pub mod address;
pub mod bucket;
pub mod capacity;
pub mod change;
pub mod claim;
pub mod cluster;
pub mod diff;
pub mod event;
pub mod hash;
pub mod id_map;
pub mod metadata_address;
pub mod name;
pub mod node_port;
pub mod object;
pub mod op;
pub mod plan;
mod plan_check;
pub mod planner;
pub mod policy;
pub mod publish;
pub mod range;
pub mod reach;
pub mod refusal;
pub mod resolve;
pub mod resolve_packet;
pub mod rollout;
pub mod row;
pub mod rules;
pub mod select;
pub mod selector;
pub mod table;
pub mod virtual_address;

pub use address::{Address, Family};
pub use name::{Audience, Name, PortName, Protocol, ServiceName, SetName, SetRole};
#[doc(hidden)]
pub use plan_check::check_plan;
