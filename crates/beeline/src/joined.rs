//! Where the things of a joined host lie, below a root.

use crate::configuration::Configuration;
use crate::options::ClusterOptions;
use anyhow::Context;
use beeline_agent::snapshot::Place;
use beeline_join::{Credential, HostName};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub const CONFIGURATION: &str = "/etc/beeline/config.yaml";

pub struct Joined {
    root: PathBuf,
    pub configuration: Configuration,
}

impl Joined {
    pub fn open(root: &Path) -> anyhow::Result<Joined> {
        let configuration = Configuration::read(&below(root, CONFIGURATION))?;
        Ok(Joined { root: root.to_owned(), configuration })
    }

    pub fn file(&self) -> PathBuf {
        below(&self.root, CONFIGURATION)
    }

    /// As the agent will find it, whatever the root is now.
    pub fn kubeconfig_named(&self, name: &str) -> PathBuf {
        self.configuration.options.state_dir().join("clusters").join(name).join("kubeconfig")
    }

    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        below(&self.root, &self.kubeconfig_named(name).display().to_string())
    }

    /// It came by `join`: what an administrator wrote into the list by hand is neither replaced nor removed.
    pub fn is_ours(&self, cluster: &ClusterOptions) -> bool {
        cluster.kubeconfig.as_deref() == Some(&self.kubeconfig_named(&cluster.name))
    }

    /// Where it came by `join` and can be read.
    pub fn credential(&self, cluster: &ClusterOptions) -> Option<Credential> {
        self.is_ours(cluster).then(|| Credential::open(&self.kubeconfig(&cluster.name)).ok()).flatten()
    }

    pub fn save(&self, configuration: &Configuration) -> anyhow::Result<()> {
        let path = self.target();
        let what = || path.display().to_string();
        if configuration.is_bare() {
            return gone(std::fs::remove_file(&path)).with_context(what);
        }
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(what)?;
        }
        let mode = std::fs::metadata(&path).map_or(0o644, |meta| meta.mode() & 0o777);
        beeline_join::write(&path, configuration.text().as_bytes(), mode).with_context(what)
    }

    /// An administrator's link stays one, as long as it does not lead out of the root.
    fn target(&self) -> PathBuf {
        let (file, root) = (self.file(), std::fs::canonicalize(&self.root));
        let led = std::fs::canonicalize(&file).ok().filter(|led| root.is_ok_and(|root| led.starts_with(root)));
        led.unwrap_or(file)
    }

    /// Who we are, before anything else goes: whatever ends us later, nobody finds a token.
    pub fn forget_token(&self, name: &str) -> anyhow::Result<()> {
        let is_ours = self.configuration.cluster(name).is_none_or(|cluster| self.is_ours(cluster));
        if is_name(name) && is_ours {
            Credential::remove(&self.kubeconfig(name))?;
        }
        Ok(())
    }

    /// Everything that is kept of a cluster: credentials, which one it is, what it said. Where it was.
    pub fn forget(&self, name: &str) -> anyhow::Result<Vec<PathBuf>> {
        if !is_name(name) {
            return Ok(Vec::new());
        }
        let mut gone = self.forget_facts(name)?;
        let dir = self.folder(name);
        if dir.exists() {
            self.forget_folder(name).with_context(|| dir.display().to_string())?;
            gone.push(dir);
        }
        Ok(gone)
    }

    /// Of a cluster that came by hand only what the agent put there.
    fn forget_folder(&self, name: &str) -> std::io::Result<()> {
        let dir = self.folder(name);
        if self.configuration.cluster(name).is_none_or(|cluster| self.is_ours(cluster)) {
            return std::fs::remove_dir_all(dir);
        }
        gone(std::fs::remove_file(dir.join("uid")))?;
        let _ = std::fs::remove_dir(dir);
        Ok(())
    }

    /// A `leave` that was ended halfway: the configuration does not name it any more, and something of it is there.
    pub fn is_left(&self, name: &str) -> bool {
        let kept = |place: Place| place.path().exists() || place.path_before().exists();
        is_name(name) && (self.folder(name).exists() || self.facts(name).is_some_and(kept))
    }

    fn folder(&self, name: &str) -> PathBuf {
        let mut path = self.kubeconfig(name);
        path.pop();
        path
    }

    fn forget_facts(&self, name: &str) -> anyhow::Result<Vec<PathBuf>> {
        let Some(place) = self.facts(name) else { return Ok(Vec::new()) };
        place.forget().with_context(|| format!("the snapshots of {name} in {}", place.dir.display()))
    }

    fn facts(&self, name: &str) -> Option<Place> {
        let dir = self.configuration.options.snapshot_dir()?;
        Some(Place { dir: below(&self.root, &dir.display().to_string()), cluster: name.into() })
    }
}

/// The configuration's folder.
pub fn make_room(root: &Path) -> anyhow::Result<()> {
    let path = below(root, CONFIGURATION);
    let dir = path.parent().unwrap_or(root);
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())
}

/// Whoever changes the configuration has the folder to himself, until it is dropped. `None`: there is nothing yet.
pub fn turn(root: &Path) -> anyhow::Result<Option<File>> {
    let path = below(root, CONFIGURATION);
    let dir = path.parent().unwrap_or(root);
    let file = match File::open(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.with_context(|| dir.display().to_string())?,
    };
    rustix::fs::flock(&file, FlockOperation::LockExclusive).with_context(|| dir.display().to_string())?;
    Ok(Some(file))
}

/// It becomes a folder's.
fn is_name(name: &str) -> bool {
    HostName::tidy(name).as_deref() == Some(name)
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// What is not there need not be removed.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
