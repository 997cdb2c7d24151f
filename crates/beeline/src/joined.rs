//! The files of a host that `beeline join` configured: configuration, credentials and snapshots. All paths are below a
//! root directory, which is `/` except for images and packages.

use crate::configuration::Configuration;
use crate::options::ClusterOptions;
use anyhow::Context;
use beeline_agent::snapshot::SnapshotFiles;
use beeline_join::{Credential, HostName};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub const CONFIGURATION: &str = "/etc/beeline/config.yaml";

pub struct JoinedHost {
    root: PathBuf,
    pub configuration: Configuration,
}

impl JoinedHost {
    pub fn open(root: &Path) -> anyhow::Result<JoinedHost> {
        let configuration = Configuration::read(&below(root, CONFIGURATION))?;
        Ok(JoinedHost { root: root.to_owned(), configuration })
    }

    pub fn configuration_path(&self) -> PathBuf {
        below(&self.root, CONFIGURATION)
    }

    /// The path that the configuration names: without the root, as the agent will find it.
    pub fn configured_kubeconfig(&self, name: &str) -> PathBuf {
        self.configuration.options.state_dir().join("clusters").join(name).join("kubeconfig")
    }

    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        below(&self.root, &self.configured_kubeconfig(name).display().to_string())
    }

    /// Whether `join` added this cluster. Entries that an administrator wrote are neither replaced nor removed.
    pub fn is_joined(&self, cluster: &ClusterOptions) -> bool {
        cluster.kubeconfig.as_deref() == Some(&self.configured_kubeconfig(&cluster.name))
    }

    /// The credential of a cluster that `join` added, if it can be read.
    pub fn credential(&self, cluster: &ClusterOptions) -> Option<Credential> {
        self.is_joined(cluster).then(|| Credential::open(&self.kubeconfig(&cluster.name)).ok()).flatten()
    }

    pub fn save(&self, configuration: &Configuration) -> anyhow::Result<()> {
        let path = self.write_path();
        let context = || path.display().to_string();
        if configuration.is_bare() {
            return ignore_missing(std::fs::remove_file(&path)).with_context(context);
        }
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(context)?;
        }
        let mode = std::fs::metadata(&path).map_or(0o644, |meta| meta.mode() & 0o777);
        beeline_join::write_atomic(&path, configuration.text().as_bytes(), mode).with_context(context)
    }

    /// Follows a symbolic link at the place of the configuration, so that the link is kept, unless it leads out of the
    /// root.
    fn write_path(&self) -> PathBuf {
        let (path, root) = (self.configuration_path(), std::fs::canonicalize(&self.root));
        let target = std::fs::canonicalize(&path).ok();
        target.filter(|target| root.is_ok_and(|root| target.starts_with(root))).unwrap_or(path)
    }

    /// Removes the token of a cluster. This comes before the other steps of `leave`, so that an interrupted `leave`
    /// leaves no token behind.
    pub fn remove_token(&self, name: &str) -> anyhow::Result<()> {
        if is_cluster_name(name) && self.may_remove(name) {
            Credential::remove(&self.kubeconfig(name))?;
        }
        Ok(())
    }

    /// Removes all files of a cluster (credentials, cluster UID, snapshots) and returns their paths.
    pub fn remove_cluster(&self, name: &str) -> anyhow::Result<Vec<PathBuf>> {
        if !is_cluster_name(name) {
            return Ok(Vec::new());
        }
        let mut removed = self.remove_snapshots(name)?;
        let dir = self.cluster_dir(name);
        if dir.exists() {
            self.remove_cluster_dir(name).with_context(|| dir.display().to_string())?;
            removed.push(dir);
        }
        Ok(removed)
    }

    /// In the directory of a cluster that an administrator configured, only the file of the agent is removed.
    fn remove_cluster_dir(&self, name: &str) -> std::io::Result<()> {
        let dir = self.cluster_dir(name);
        if self.may_remove(name) {
            return std::fs::remove_dir_all(dir);
        }
        ignore_missing(std::fs::remove_file(dir.join("uid")))?;
        let _ = std::fs::remove_dir(dir);
        Ok(())
    }

    fn may_remove(&self, name: &str) -> bool {
        self.configuration.cluster(name).is_none_or(|cluster| self.is_joined(cluster))
    }

    /// Whether an earlier `leave` of this cluster was interrupted: files of it exist, though the configuration does not
    /// name it any more.
    pub fn has_leftovers(&self, name: &str) -> bool {
        let exists = |files: SnapshotFiles| files.path().exists() || files.previous_path().exists();
        is_cluster_name(name) && (self.cluster_dir(name).exists() || self.snapshot_files(name).is_some_and(exists))
    }

    fn cluster_dir(&self, name: &str) -> PathBuf {
        let mut path = self.kubeconfig(name);
        path.pop();
        path
    }

    fn remove_snapshots(&self, name: &str) -> anyhow::Result<Vec<PathBuf>> {
        let Some(files) = self.snapshot_files(name) else { return Ok(Vec::new()) };
        files
            .remove()
            .with_context(|| format!("cannot remove the snapshots of cluster {name} in {}", files.dir.display()))
    }

    fn snapshot_files(&self, name: &str) -> Option<SnapshotFiles> {
        let dir = self.configuration.options.snapshot_dir()?;
        Some(SnapshotFiles { dir: below(&self.root, &dir.display().to_string()), cluster: name.into() })
    }
}

pub fn create_configuration_dir(root: &Path) -> anyhow::Result<()> {
    let dir = configuration_dir(root);
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())
}

/// Waits until no other `join` or `leave` changes the configuration. The lock is held until the file is dropped. `None`
/// if there is no configuration directory yet.
pub fn lock_configuration(root: &Path) -> anyhow::Result<Option<File>> {
    let dir = configuration_dir(root);
    let file = match File::open(&dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.with_context(|| dir.display().to_string())?,
    };
    rustix::fs::flock(&file, FlockOperation::LockExclusive).with_context(|| dir.display().to_string())?;
    Ok(Some(file))
}

fn configuration_dir(root: &Path) -> PathBuf {
    let path = below(root, CONFIGURATION);
    path.parent().unwrap_or(root).to_owned()
}

/// A name that is also safe as the name of a directory.
fn is_cluster_name(name: &str) -> bool {
    HostName::sanitize(name).as_deref() == Some(name)
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn ignore_missing(removed: std::io::Result<()>) -> std::io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
