//! Beeline's agent on a node, as a plain process. It always gets the node's own cgroup: the one it would find by itself
//! is the machine's.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{
    cgroup::Tree,
    kubeconfig::agent_user,
    namespace::{self, Place},
    network,
    part::{self, Part},
    plan::{Node, control_namespace},
    state,
    wait::{self, Patience},
};

pub const NAME: &str = "beeline";

/// The program beside the kit, unless another is named.
pub fn binary(named: Option<&Path>) -> Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => part::program()?.with_file_name(NAME),
    };
    ensure!(path.is_file(), "{} is missing: cargo build -p beeline, or name another with --binary", path.display());
    path.canonicalize().with_context(|| format!("find {}", path.display()))
}

/// Starts it; `extra` are more options. A later `kit restart` uses the same words.
pub fn start(node: Node, binary: &Path, extra: &[String]) -> Result<()> {
    let own = [
        binary.display().to_string(),
        "agent".into(),
        format!("--node-name={node}"),
        format!("--kubeconfig={}", state::kubeconfig(&agent_user(node)).display()),
        format!("--cgroup={}", Tree::find()?.path(&node.name()).display()),
        // A small cluster without a controller: other nodes' NodePorts are resolved at the source, each agent finds the
        // pods of policies itself, and there is nobody to report to.
        "--nodes=watch".into(),
        "--controller=none".into(),
        "--report=off".into(),
    ];
    let words: Vec<String> = own.into_iter().chain(extra.iter().cloned()).collect();
    state::write(&remembered(node), serde_json::to_vec_pretty(&words)?)?;
    part(node)?.start()
}

/// Until it says itself that all is programmed.
pub fn wait_until_ready(node: Node, beside_proxy: bool) -> Result<()> {
    let (part, port) = (part(node)?, if beside_proxy { 10356 } else { 10256 });
    wait::until(Patience::new(format!("Beeline on {node}"), 60, part.log()), || {
        part.require_running()?;
        let asked = || network::is_healthy(node.addresses()[0], port);
        Ok(namespace::run_in(&control_namespace(), asked)?.then_some(()))
    })
}

/// As it was started last.
pub fn part(node: Node) -> Result<Part> {
    let words = fs::read(remembered(node)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    Part::new(Place::Node(node), NAME, words.unwrap_or_default())
}

fn remembered(node: Node) -> PathBuf {
    state::node(node, "beeline.json")
}
