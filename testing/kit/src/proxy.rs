//! Upstream's kube-proxy on the nodes, for comparison or for a cluster without Beeline.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    address_plan::{NodeId, PODS},
    cache::Cache,
    component::{self, Component},
    namespace::Location,
    state, subprocess,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProxyMode {
    Nftables,
    Iptables,
}

pub fn component(node: NodeId, cache: &Cache) -> Result<Component> {
    let settings = state::node(node, "kube-proxy.json").display().to_string();
    let program = cache.program("kube-proxy").display().to_string();
    Component::new(Location::Node(node), "kube-proxy", vec![program, format!("--config={settings}"), "--v=2".into()])
}

/// Starts kube-proxy, or restarts it in another mode.
pub fn start(node: NodeId, mode: ProxyMode, cache: &Cache) -> Result<()> {
    stop(node, cache)?;
    let settings = settings(&node.name(), mode, &state::kubeconfig("kube-proxy"));
    state::write(&state::node(node, "kube-proxy.json"), serde_json::to_vec_pretty(&settings)?)?;
    component(node, cache)?.start()
}

pub fn settings(name: &str, mode: ProxyMode, kubeconfig: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "hostnameOverride": name,
        "clientConnection": {"kubeconfig": kubeconfig},
        "clusterCIDR": PODS.join(","),
        // The size of the conntrack table belongs to the machine and is not writable from a node.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "bindAddress": "0.0.0.0",
        "metricsBindAddress": "0.0.0.0:10249",
    })
}

/// Stops kube-proxy and removes its rules, if it ever ran.
pub fn stop(node: NodeId, cache: &Cache) -> Result<()> {
    let component = component(node, cache)?;
    component.stop()?;
    if !state::node(node, "kube-proxy.json").exists() {
        return Ok(());
    }
    let mut cleanup = std::process::Command::new(component::program()?);
    cleanup.args(["node", &node.name(), "--", &component.arguments[0], "--cleanup"]);
    subprocess::run_logged(&mut cleanup, &component.log())?;
    std::fs::remove_file(state::node(node, "kube-proxy.json"))?;
    Ok(())
}
