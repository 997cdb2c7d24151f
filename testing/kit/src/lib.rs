//! A real Kubernetes of several nodes on one machine: upstream's own programs, each node in namespaces and a cgroup of
//! its own, with Beeline or kube-proxy or neither. The machine's own network, packet filter and settings stay as they
//! are.
//!
//! `Cluster` is the way in. What is built is in the `cache`, what runs is in the cgroup tree, and who has which address
//! is in the `plan`.

#![forbid(unsafe_code)]

pub mod addon;
pub mod agent;
pub mod cache;
mod call;
mod certificate;
mod cgroup;
pub mod cluster;
mod control;
pub mod e2e;
pub mod first;
pub mod guest;
pub mod host;
mod image;
pub mod junit;
mod kubeconfig;
mod manifest;
pub mod namespace;
mod network;
pub mod node;
mod package;
pub mod part;
pub mod plan;
pub mod program;
pub mod progress;
pub mod proxy;
mod state;
pub mod store;
pub mod storm;
mod toolchain;
pub mod twin;
pub mod wait;

pub use cgroup::Tree;
pub use cluster::{Cluster, Wish, down};
pub use namespace::{Place, run_in};
pub use plan::{Host, Node};

/// What is built only where it is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct More {
    /// Upstream's end-to-end tests.
    pub tests: bool,
    pub helm: bool,
    /// KubeEdge.
    pub edge: bool,
}

/// Builds what a cluster needs; what is there already is kept.
pub fn build(cache: &cache::Cache, more: &More) -> anyhow::Result<()> {
    prepare(cache)?;
    package::unpack_for_nodes(cache)?;
    program::build_cluster(cache)?;
    store::build(cache)?;
    if more.tests {
        program::build_tests(cache)?;
    }
    if more.helm {
        program::build_helm(cache)?;
    }
    if more.edge {
        program::build_edge(cache)?;
    }
    progress::say(format!("built: {}", cache.root().display()));
    Ok(())
}

/// Helm alone: rendering the chart needs no cluster.
pub fn build_helm(cache: &cache::Cache) -> anyhow::Result<()> {
    prepare(cache)?;
    program::build_helm(cache)
}

fn prepare(cache: &cache::Cache) -> anyhow::Result<()> {
    for dir in ["bin", "log"] {
        std::fs::create_dir_all(cache.path(dir))?;
    }
    Ok(())
}
