//! A real Kubernetes cluster of several nodes on one machine. It runs upstream's own programs, each node in namespaces
//! and a cgroup of its own, with Beeline, kube-proxy or neither. The machine's own network, packet filter and settings
//! are not changed.
//!
//! `TestCluster` is the entry point. The `cache` module holds what is built, `cgroup` what runs, and `address_plan` the
//! names and addresses.

#![forbid(unsafe_code)]

pub mod addon;
pub mod address_plan;
pub mod agent;
pub mod cache;
mod certificate;
mod cgroup;
pub mod chart;
pub mod cluster;
pub mod component;
mod control_plane;
mod debian_package;
pub mod e2e;
pub mod extra_cluster;
pub mod guest;
pub mod host;
mod image;
pub mod image_store;
pub mod init;
pub mod junit;
mod kubeconfig;
pub mod load;
mod manifest;
pub mod namespace;
mod network;
pub mod node;
pub mod program;
pub mod progress;
pub mod proxy;
mod state;
mod subprocess;
mod toolchain;
pub mod wait;

pub use address_plan::{HostId, NodeId};
pub use cgroup::CgroupTree;
pub use cluster::{BeelineInstall, ClusterConfig, TestCluster, down};
pub use namespace::{Location, run_in};

/// Optional parts of a build.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildOptions {
    /// Upstream's end-to-end tests.
    pub tests: bool,
    pub helm: bool,
    /// KubeEdge.
    pub edge: bool,
}

/// Builds everything a cluster needs, and keeps what is already built.
pub fn build(cache: &cache::Cache, options: &BuildOptions) -> anyhow::Result<()> {
    prepare(cache)?;
    debian_package::unpack_for_nodes(cache)?;
    program::build_cluster(cache)?;
    image_store::build(cache)?;
    if options.tests {
        program::build_tests(cache)?;
    }
    if options.helm {
        program::build_helm(cache)?;
    }
    if options.edge {
        program::build_edge(cache)?;
    }
    progress::report(format!("built: {}", cache.root().display()));
    Ok(())
}

/// Builds Helm alone, because rendering the chart needs no cluster.
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
