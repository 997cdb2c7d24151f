//! Tests with a real API server: etcd and kube-apiserver of the kit, in a private network namespace. They cover the API
//! server as a source, the agent, the controller, joining hosts, and failures of the server.
//!
//!     cargo test -p beeline --test api_server
//!
//! The programs are searched in BEELINE_KIT_BIN, or in $BEELINE_CACHE/kit/bin (~/.cache/beeline/kit/bin), and then on the
//! path. The tests fail if they are missing.

mod agent;
mod cluster;
mod controller;
mod credential;
mod intercepting_proxy;
mod join;
mod outage;
mod plan;
mod policy;
mod policy_rights;
mod proxy;
mod snapshot;
mod source_reader;
mod two_clusters;
mod uninstall;
mod unusual_responses;
mod watch;
