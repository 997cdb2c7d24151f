//! The files of the one cluster that runs on this machine. Its place is fixed, as its names in the kernel are.

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
    plan::Node,
    proxy::Mode,
    wait::{self, Patience},
};

pub const ROOT: &str = "/var/tmp/beeline-kit";
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// What `up` was asked for; later commands read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shape {
    pub nodes: u8,
    pub zones: bool,
    pub proxy: Option<Mode>,
}

impl Shape {
    pub fn nodes(&self) -> Result<Vec<Node>> {
        Node::first(self.nodes)
    }

    pub fn save(&self) -> Result<()> {
        write(&path("cluster.json"), serde_json::to_vec_pretty(self)?)
    }

    pub fn load() -> Result<Shape> {
        let path = path("cluster.json");
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| format!("read {}", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => bail!("no cluster is up: run `kit up`"),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }
}

pub fn path(below: &str) -> PathBuf {
    Path::new(ROOT).join(below)
}

/// Files of a node: its kubelet's, its containerd's, its configuration.
pub fn node(node: Node, below: &str) -> PathBuf {
    Path::new(ROOT).join("node").join(node.name()).join(below)
}

pub fn kubeconfig(user: &str) -> PathBuf {
    path("kubeconfig").join(format!("{user}.kubeconfig"))
}

/// Held while a cluster is brought up or down; the kernel lets go of it when the holder dies.
pub fn lock() -> Result<File> {
    fs::create_dir_all(ROOT).with_context(|| format!("make {ROOT}"))?;
    let file = File::open(ROOT)?;
    // A holder that was killed a moment ago may not be quite gone.
    let patience = Patience { what: "the end of another kit's up or down".into(), limit: LOCK_LIMIT, log: None };
    wait::until(patience, || Ok(file.try_lock().ok()))?;
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
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(|| format!("remove {ROOT}")),
        _ => Ok(()),
    }
}

pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    }
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}
