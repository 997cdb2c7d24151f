//! Upstream's kube-proxy on the nodes, to compare with, or to have a cluster without Beeline.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    cache::Cache,
    call,
    namespace::Place,
    part::{self, Part},
    plan::{Node, PODS},
    state,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Nftables,
    Iptables,
}

pub fn part(node: Node, cache: &Cache) -> Result<Part> {
    let settings = state::node(node, "kube-proxy.json").display().to_string();
    let program = cache.program("kube-proxy").display().to_string();
    Part::new(Place::Node(node), "kube-proxy", vec![program, format!("--config={settings}"), "--v=2".into()])
}

/// Starts it, or starts it again in another mode.
pub fn start(node: Node, mode: Mode, cache: &Cache) -> Result<()> {
    stop(node, cache)?;
    let settings = settings(&node.name(), mode, &state::kubeconfig("kube-proxy"));
    state::write(&state::node(node, "kube-proxy.json"), serde_json::to_vec_pretty(&settings)?)?;
    part(node, cache)?.start()
}

pub fn settings(name: &str, mode: Mode, kubeconfig: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "hostnameOverride": name,
        "clientConnection": {"kubeconfig": kubeconfig},
        "clusterCIDR": PODS.join(","),
        // The size of the connection table belongs to the machine, and cannot be written from a node.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "bindAddress": "0.0.0.0",
        "metricsBindAddress": "0.0.0.0:10249",
    })
}

/// Ends it and removes its rules, if it ever ran.
pub fn stop(node: Node, cache: &Cache) -> Result<()> {
    let part = part(node, cache)?;
    part.stop()?;
    if !state::node(node, "kube-proxy.json").exists() {
        return Ok(());
    }
    let mut cleanup = std::process::Command::new(part::program()?);
    cleanup.args(["node", &node.name(), "--", &part.words[0], "--cleanup"]);
    call::run_logged(&mut cleanup, &part.log())?;
    std::fs::remove_file(state::node(node, "kube-proxy.json"))?;
    Ok(())
}
