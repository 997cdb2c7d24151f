//! The packet tests with upstream's kube-proxy in nftables mode instead of the agent: they prove that the expectations
//! are what kube-proxy does. Needs root, and the kit's etcd, kube-apiserver and kube-proxy.
//!
//!     cargo test --workspace --test packet_kube_proxy

#[path = "../api_server/cluster.rs"]
#[allow(dead_code)] // The other tests use more of it.
mod cluster;
#[path = "../api_server/source_reader.rs"]
#[allow(dead_code)]
mod source_reader;
#[path = "../packet/suite/mod.rs"]
mod suite;

mod kube_proxy_driver;

packet_tests!(kube_proxy_driver::with_fixture);
