//! What a host that is no Node remembers, how it finds its way, and where KubeEdge keeps its cache.

use super::{Options, PIN_DIR, SOCKET, STATE_DIR, duration};
use anyhow::{anyhow, ensure};
use beeline_agent::Origin;
use beeline_agent::snapshot::Keeping;
use beeline_cluster::{EDGE_CACHE, Edge, Rhythm};
use beeline_model::rules::StandPoint;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

    /// `None`: nothing is kept.
    pub fn snapshot_dir(&self) -> Option<PathBuf> {
        let dir = self.snapshot_dir.clone().unwrap_or_else(|| self.state_dir().join("snapshot"));
        (dir != Path::new("off")).then_some(dir)
    }

    pub(super) fn snapshot(&self, stand: StandPoint) -> anyhow::Result<Option<Keeping>> {
        let max_age = match self.snapshot_max_age.as_deref() {
            None | Some("forever") => None,
            Some(time) => Some(duration("--snapshot-max-age", time)?),
        };
        // A Node of its one cluster starts with that; with several, whose an address is must be known at the start.
        if stand == StandPoint::Node && self.clusters.is_empty() {
            ensure!(
                self.snapshot_dir.is_none() && max_age.is_none(),
                "--snapshot-dir and --snapshot-max-age are for hosts that are no Node (--stand outside or edge), and \
                 for Nodes that see several clusters (`clusters:`)"
            );
            return Ok(None);
        }
        let Some(dir) = self.snapshot_dir() else { return Ok(None) };
        ensure!(dir.is_absolute(), "--snapshot-dir {}: a path from / on, or off", dir.display());
        Ok(Some(Keeping { dir, max_age }))
    }

    pub(super) fn probe_interval(&self) -> anyhow::Result<Duration> {
        duration("--probe-interval", self.probe_interval.as_deref().unwrap_or("30s"))
    }

    /// `None`: where KubeEdge puts it.
    pub(super) fn edge(&self, url: Option<&str>, cluster: &str) -> anyhow::Result<Origin> {
        let url = url.unwrap_or(EDGE_CACHE);
        let server = Edge::parse(url)
            .ok_or_else(|| anyhow!("--edge-cache {url}: plain HTTP on this host's loopback, such as {EDGE_CACHE}"))?;
        Ok(Origin::Edge(Box::new(Edge {
            server,
            cluster: cluster.into(),
            node: self.node_name.clone().unwrap_or_default(),
            claim: self.claim(),
            rhythm: Rhythm::default(),
            traffic: Default::default(),
            passport: None,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        serde_saphyr::from_str(text).unwrap()
    }

    fn snapshot(text: &str) -> Result<Option<Keeping>, String> {
        let options = options(text);
        options.snapshot(options.stand().unwrap()).map_err(|why| why.to_string())
    }

    #[test]
    fn hosts_that_are_no_node_or_see_several_clusters_remember() {
        const SNAPSHOT_DIR: &str = "/var/lib/beeline/snapshot";
        let kept = |dir: &str, max_age| Ok(Some(Keeping { dir: dir.into(), max_age }));
        assert_eq!(snapshot("stand: outside"), kept("/var/lib/beeline/snapshot", None));
        assert_eq!(snapshot("stand: outside\nstate-dir: /x"), kept("/x/snapshot", None));
        let text = "stand: edge\nsnapshot-dir: /x\nsnapshot-max-age: 72h";
        assert_eq!(snapshot(text), kept("/x", Some(Duration::from_secs(72 * 3600))));
        assert_eq!(snapshot("stand: edge\nsnapshot-max-age: forever"), kept("/var/lib/beeline/snapshot", None));
        assert_eq!(snapshot("stand: outside\nsnapshot-dir: 'off'"), Ok(None));
        assert_eq!(snapshot("stand: outside\nstate-dir: /s"), kept("/s/snapshot", None), "of a second agent");
        assert_eq!(snapshot("node-name: n1"), Ok(None));
        let several = "node-name: n1\nclusters: [{ name: home, kubeconfig: /h }, { name: far, kubeconfig: /f }]";
        assert_eq!(snapshot(several), kept(SNAPSHOT_DIR, None));
        assert!(snapshot("snapshot-dir: /x").unwrap_err().contains("--stand outside"));
        assert!(snapshot("stand: outside\nsnapshot-dir: x").unwrap_err().contains("from / on"));
        assert!(snapshot("stand: outside\nsnapshot-max-age: 3").unwrap_err().contains("--snapshot-max-age"));
    }

    #[test]
    fn the_edge_asks_its_own_cache_unless_told_otherwise() {
        let title = |text: &str| match options(text).listing().map(|listing| listing.clusters[0].origin.clone()) {
            Ok(Origin::Edge(edge)) => edge.server.to_string(),
            Ok(other) => format!("{other:?}"),
            Err(why) => format!("{why:#}"),
        };
        assert_eq!(title("stand: edge\nnode-name: e1"), "http://127.0.0.1:10550/");
        assert_eq!(title("stand: edge\nnode-name: e1\nedge-cache: http://127.0.0.1:9"), "http://127.0.0.1:9/");
        assert!(title("stand: edge\nnode-name: e1\nkubeconfig: /k").starts_with("Server"));
        for far in [
            "nonsense",
            "https://127.0.0.1:10550",
            "http://192.0.2.1:10550",
            "http://cache.example:10550",
            "http://[2001:db8::1]:1",
        ] {
            let said = title(&format!("stand: edge\nnode-name: e1\nedge-cache: \"{far}\""));
            assert!(said.contains(&format!("--edge-cache {far}: plain HTTP on this host's loopback")), "{said}");
        }
        assert_eq!(title("stand: edge\nnode-name: e1\nedge-cache: \"http://[::1]:9\""), "http://[::1]:9/");
        assert!(title("stand: outside\nkubeconfig: /k\nedge-cache: http://127.0.0.1:9").contains("--stand edge"));
        let listed = "stand: edge\nnode-name: e1\nclusters: [{ name: far, edgeCache: 'http://127.0.0.1:9' }]";
        assert_eq!(title(listed), "http://127.0.0.1:9/");
    }
}
