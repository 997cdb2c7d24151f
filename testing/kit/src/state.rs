//! Files of the cluster that runs on this machine. There is at most one, so the directory is fixed.

use std::{
    fs::{self, File, Permissions},
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{
    address_plan::NodeId,
    proxy::ProxyMode,
    wait::{self, Timeout},
};

pub const ROOT: &str = "/var/tmp/beeline-kit";
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// Configuration of the running cluster, saved by `up` for later commands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedConfig {
    pub nodes: u8,
    pub zones: bool,
    pub proxy: Option<ProxyMode>,
}

impl SavedConfig {
    pub fn nodes(&self) -> Result<Vec<NodeId>> {
        NodeId::first(self.nodes)
    }

    pub fn save(&self) -> Result<()> {
        write(&path("cluster.json"), serde_json::to_vec_pretty(self)?)
    }

    pub fn load() -> Result<SavedConfig> {
        let path = path("cluster.json");
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| format!("cannot read {}", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => bail!("no cluster is running: run `kit up`"),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

pub fn path(below: &str) -> PathBuf {
    Path::new(ROOT).join(below)
}

/// Path below a node's directory, which contains the files of its kubelet and containerd.
pub fn node(node: NodeId, below: &str) -> PathBuf {
    Path::new(ROOT).join("node").join(node.name()).join(below)
}

pub fn kubeconfig(user: &str) -> PathBuf {
    path("kubeconfig").join(format!("{user}.kubeconfig"))
}

/// Lock that is held while a cluster is started or stopped. The kernel releases it when the holder dies.
pub fn lock() -> Result<File> {
    fs::create_dir_all(ROOT).with_context(|| format!("cannot create {ROOT}"))?;
    let file = File::open(ROOT)?;
    // A holder that was just killed may not have exited yet.
    let timeout = Timeout { what: "another `kit up` or `kit down` to end".into(), limit: LOCK_LIMIT, log: None };
    wait::until(timeout, || Ok(file.try_lock().ok()))?;
    Ok(file)
}

pub fn make() -> Result<()> {
    for below in ["pki", "kubeconfig"] {
        fs::create_dir_all(path(below))?;
        fs::set_permissions(path(below), Permissions::from_mode(0o700))?;
    }
    Ok(())
}

pub fn remove() -> Result<()> {
    match fs::remove_dir_all(ROOT) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {ROOT}"))
        }
        _ => Ok(()),
    }
}

pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
