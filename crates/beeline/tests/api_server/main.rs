//! A real API server as the source: etcd and kube-apiserver of the kit, in a network namespace of the test's own, and all
//! that an API server does to whoever follows it.
//!
//!     cargo test -p beeline --test api_server
//!
//! The programs are looked for in BEELINE_KIT_BIN, else in $BEELINE_CACHE/kit/bin (~/.cache/beeline/kit/bin), else on the
//! path. Where they are missing the tests fail and say so.

mod agent;
mod answer;
mod cluster;
mod controller;
mod credential;
mod follow;
mod front;
mod join;
mod listener;
mod memory;
mod outage;
mod plan;
mod policy;
mod policy_right;
mod proxy;
mod several;
