//! Beeline's agent as a process on a node. The kit always passes `--cgroup` with the node's own cgroup, because the
//! agent would otherwise attach to the machine's root cgroup.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{
    address_plan::{NodeId, control_namespace},
    cgroup::CgroupTree,
    component::{self, Component},
    kubeconfig::agent_user,
    namespace::{self, Location},
    network, state,
    wait::{self, Timeout},
};

pub const NAME: &str = "beeline";

/// Path of the beeline program: the given one, or the one beside the kit.
pub fn binary(named: Option<&Path>) -> Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => component::program()?.with_file_name(NAME),
    };
    ensure!(
        path.is_file(),
        "{} is missing: run `cargo build --workspace`, or pass another program with --binary",
        path.display()
    );
    path.canonicalize().with_context(|| format!("cannot find {}", path.display()))
}

/// Starts the agent with additional options. `kit restart` uses the same command line.
pub fn start(node: NodeId, binary: &Path, extra: &[String]) -> Result<()> {
    let own = [
        binary.display().to_string(),
        "agent".into(),
        format!("--node-name={node}"),
        format!("--kubeconfig={}", state::kubeconfig(&agent_user(node)).display()),
        format!("--cgroup={}", CgroupTree::find()?.path(&node.name()).display()),
        // The cluster has no controller: agents watch all nodes, find the pods of policies themselves, and report to no
        // one.
        "--node-source=watch".into(),
        "--controller=none".into(),
        "--report-interval=off".into(),
    ];
    let arguments: Vec<String> = own.into_iter().chain(extra.iter().cloned()).collect();
    state::write(&saved_command_line(node), serde_json::to_vec_pretty(&arguments)?)?;
    component(node)?.start()
}

/// Waits until the agent's health endpoint reports that everything is programmed.
pub fn wait_until_ready(node: NodeId, beside_proxy: bool) -> Result<()> {
    let (component, port) = (component(node)?, if beside_proxy { 10356 } else { 10256 });
    wait::until(Timeout::new(format!("Beeline on {node}"), 60, component.log()), || {
        component.require_running()?;
        let is_healthy = || network::is_healthy(node.addresses()[0], port);
        Ok(namespace::run_in(&control_namespace(), is_healthy)?.then_some(()))
    })
}

/// The agent with the command line of its last start.
pub fn component(node: NodeId) -> Result<Component> {
    let arguments = fs::read(saved_command_line(node)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    Component::new(Location::Node(node), NAME, arguments.unwrap_or_default())
}

fn saved_command_line(node: NodeId) -> PathBuf {
    state::node(node, "beeline.json")
}
