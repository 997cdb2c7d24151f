//! Netfilter for the packet path, by netlink: one nftables table ([`table`]), a monitor of changes to it ([`monitor`]),
//! conntrack entries ([`conntrack`]), and the kernel settings that routing and conntrack need ([`sysctl`]). The crate
//! knows nothing of Kubernetes and nothing of BPF.
//!
//! # Network namespaces
//!
//! A netlink socket belongs to the network namespace of the thread that opens it, and keeps it. `Table::open`,
//! `Monitor::open` and `Conntrack::open` are called on a thread in the right namespace; the values may then be used on
//! any thread. The files below `/proc/sys/net` belong to the namespace of the thread that reads or writes them.
//!
//! # Why the messages are encoded here
//!
//! The table has two chains and three rules, and conntrack needs two messages. No crate does this better:
//!
//! - `rustables` is under the GPL. `nftnl` and `mnl` link C libraries. `nftables` runs the program `nft`, which the
//!   agent's image does not contain.
//! - `netlink-packet-netfilter` (0.4) has nftables and conntrack messages, but no expressions for `ct`, `counter` and
//!   `reject`, which are most of this table; half of the rules would still be encoded by hand, and every conntrack
//!   entry of a dump would be several allocations.
//! - `netlink-sys` and `netlink-packet-core` add little to the netlink sockets of `rustix`, which the workspace uses
//!   anyway, without `unsafe` code.

#![forbid(unsafe_code)]

mod attribute;
pub mod conntrack;
mod error;
mod message;
pub mod monitor;
mod socket;
pub mod sysctl;
pub mod table;

pub use conntrack::{Conntrack, ConntrackEntry};
pub use error::{Error, Result};
pub use monitor::{Monitor, TableChange};
pub use table::{Ensured, Table, TableConfig, TableProblem, TableState};
