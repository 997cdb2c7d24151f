//! The pure core: what the cluster says (facts), which endpoints a dial may reach (select), what this node should
//! therefore program (plan), the rows that say so to the kernel (row, table, diff), and a resolver over those rows that
//! decides as the kernel half does (resolve). No IO, no clock, no kernel: values in, values out.
#![forbid(unsafe_code)]

pub mod address;
pub mod bucket;
pub mod by_id;
pub mod claim;
pub mod diff;
pub mod event;
pub mod fact;
pub mod hash;
pub mod name;
pub mod op;
pub mod plan;
pub mod planner;
pub mod policy;
pub mod publish;
pub mod range;
pub mod reach;
pub mod report;
pub mod resolve;
pub mod row;
pub mod rules;
pub mod select;
pub mod selector;
pub mod stand;
pub mod table;
pub mod virtual_address;

pub use address::{Address, Family};
pub use name::{Audience, Name, OwnerName, PortName, Protocol, SetName, SetRole};
