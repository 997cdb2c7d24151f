//! The agent. One thread, the main loop, owns the state (sources, plan, tables, maps) and brings the kernel up to date.
//! Tasks around it read the clusters, probe pods, serve the command line's socket, HTTP and DNS, and read events.
//!
//! Without the feature `outside`, the modules below `node_only` replace those that only hosts outside and at the edge need:
//! they have the same interface and do nothing.
#![forbid(unsafe_code)]

mod agent;
mod attribution;
mod cgroup_rules;
mod change_metric;
pub mod cluster_id;
mod descriptor;
#[cfg_attr(not(feature = "outside"), path = "node_only/dns.rs")]
mod dns;
mod event_level;
mod event_task;
mod explain;
mod health;
mod health_check;
mod http;
mod interface;
mod key_tracker;
mod listen;
mod main_loop;
mod member;
mod metric;
mod netlink;
pub mod packet_path;
mod plan_refusals;
mod pod_cgroup;
mod pod_rules;
pub mod reach;
mod reach_client;
mod reconciler;
mod redirect_health;
mod request;
mod request_check;
mod retry;
mod rollout_reporter;
pub mod run;
mod self_test;
mod settings;
mod settings_watcher;
mod share_collector;
#[cfg_attr(not(feature = "outside"), path = "node_only/snapshot.rs")]
pub mod snapshot;
mod socket;
mod source;
mod sources;
mod stale_udp;
mod startup_gate;
mod status;
mod supervisor;
#[cfg_attr(not(feature = "outside"), path = "node_only/token.rs")]
mod token;
#[cfg_attr(not(feature = "outside"), path = "node_only/traffic.rs")]
mod traffic;
mod udp_reaper;
mod view;

pub use dns::Zone;
#[doc(hidden)]
pub use request_check::check_request;
pub use run::run;
pub use self_test::dial as self_test_dial;
pub use settings::{
    AgentDownAction, AgentSettings, ClusterList, ClusterSettings, ControllerMode, DnsSettings, DnsView, KernelSettings,
    ListenerSettings, ReloadableFile, SnapshotSettings, SourceSettings,
};
pub use view::remove_view_cgroups;
