//! The files and directories of the agent, with their defaults: state, snapshots, pinned maps, socket.

use super::value::{HumanDuration, MaxAge};
use super::{Options, PIN_DIR, SOCKET, STATE_DIR};
use anyhow::ensure;
use beeline_agent::SnapshotSettings;
use beeline_model::rules::HostRole;
use std::path::{Path, PathBuf};

impl Options {
    pub fn state_dir(&self) -> PathBuf {
        self.state_dir.clone().unwrap_or_else(|| STATE_DIR.into())
    }

    pub fn pin_dir(&self) -> PathBuf {
        self.pin_dir.clone().unwrap_or_else(|| PIN_DIR.into())
    }

    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| SOCKET.into())
    }

    /// `None` if snapshots are off.
    pub fn snapshot_dir(&self) -> Option<PathBuf> {
        let dir = self.snapshot_dir.clone().unwrap_or_else(|| self.state_dir().join("snapshot"));
        (dir != Path::new("off")).then_some(dir)
    }

    /// A Node with one cluster keeps no snapshot: it starts when its API server answers. With several clusters the
    /// agent must know at start which cluster owns which addresses.
    pub(super) fn snapshot(&self, role: HostRole) -> anyhow::Result<Option<SnapshotSettings>> {
        let max_age = match self.snapshot_max_age {
            None | Some(MaxAge::Forever) => None,
            Some(MaxAge::Limited(HumanDuration(age))) => Some(age),
        };
        if role == HostRole::Node && self.clusters.is_empty() {
            ensure!(
                self.snapshot_dir.is_none() && max_age.is_none(),
                "--snapshot-dir and --snapshot-max-age need --host-role outside or edge, or a list of `clusters` in the \
                 configuration file"
            );
            return Ok(None);
        }
        let Some(dir) = self.snapshot_dir() else { return Ok(None) };
        ensure!(dir.is_absolute(), "--snapshot-dir {}: expected an absolute path, or off", dir.display());
        Ok(Some(SnapshotSettings { dir, max_age }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn snapshot(text: &str) -> Result<Option<SnapshotSettings>, String> {
        let settings = Options::parse(text).and_then(|options| options.snapshot(options.host_role()));
        settings.map_err(|error| error.to_string())
    }

    #[test]
    fn snapshots_are_kept_outside_at_the_edge_and_with_several_clusters() {
        const SNAPSHOT_DIR: &str = "/var/lib/beeline/snapshot";
        let kept = |dir: &str, max_age| Ok(Some(SnapshotSettings { dir: dir.into(), max_age }));
        assert_eq!(snapshot("host-role: outside"), kept(SNAPSHOT_DIR, None));
        assert_eq!(snapshot("host-role: outside\nstate-dir: /x"), kept("/x/snapshot", None));
        let text = "host-role: edge\nsnapshot-dir: /x\nsnapshot-max-age: 72h";
        assert_eq!(snapshot(text), kept("/x", Some(Duration::from_secs(72 * 3600))));
        assert_eq!(snapshot("host-role: edge\nsnapshot-max-age: forever"), kept(SNAPSHOT_DIR, None));
        assert_eq!(snapshot("host-role: outside\nsnapshot-dir: 'off'"), Ok(None));
        assert_eq!(snapshot("node-name: n1"), Ok(None));
        let several = "node-name: n1\nclusters: [{ name: home, kubeconfig: /h }, { name: far, kubeconfig: /f }]";
        assert_eq!(snapshot(several), kept(SNAPSHOT_DIR, None));
        assert!(snapshot("snapshot-dir: /x").unwrap_err().contains("--host-role outside"));
        assert!(snapshot("host-role: outside\nsnapshot-dir: x").unwrap_err().contains("absolute path"));
        assert!(snapshot("host-role: outside\nsnapshot-max-age: 3").unwrap_err().contains("snapshot-max-age"));
    }
}
