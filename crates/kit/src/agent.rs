//! Beeline's agent on a node, as a plain process. It always gets the node's own cgroup: the one it would find by itself
//! is the machine's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{
    cgroup::Tree,
    kubeconfig::agent_user,
    namespace::Place,
    part::{self, Part},
    plan::Node,
    state,
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

pub fn part(node: Node, binary: &Path, extra: &[String]) -> Result<Part> {
    let cgroup = Tree::find()?.path(&node.name());
    let own = [
        binary.display().to_string(),
        "agent".into(),
        format!("--node-name={node}"),
        format!("--kubeconfig={}", state::kubeconfig(&agent_user(node)).display()),
        format!("--cgroup={}", cgroup.display()),
    ];
    let words: Vec<String> = own.into_iter().chain(extra.iter().cloned()).collect();
    let part = Part::new(Place::Node(node), NAME, words)?;
    Ok(part)
}
