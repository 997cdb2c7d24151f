//! Checks that a cluster is the one that the configuration means. A cluster is identified by the UID of its kube-system
//! namespace; its name comes from the configuration. The UID of each name is kept on disk, so that a wrong kubeconfig
//! cannot make another cluster's objects appear under an old name.

use beeline_model::Name;
use beeline_model::refusal::{Refusal, RefusalReason, RefusalSubject};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

#[derive(Debug)]
pub struct ClusterIdStore {
    dir: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order of the configuration.
    configured: Vec<Name>,
    /// UIDs that this process has verified.
    verified: BTreeMap<Name, Box<str>>,
    refused: BTreeMap<Name, Refusal>,
}

/// The directory with the files of one cluster.
pub fn cluster_dir(state_dir: &Path, cluster: &str) -> PathBuf {
    state_dir.join("clusters").join(cluster)
}

impl ClusterIdStore {
    pub fn new(state_dir: &Path) -> ClusterIdStore {
        ClusterIdStore { dir: state_dir.to_owned(), inner: Mutex::default() }
    }

    /// Sets the configured clusters. Refusals of other clusters are dropped.
    pub fn set_configured(&self, clusters: impl Iterator<Item = Name>) {
        self.with(|inner| {
            inner.configured = clusters.collect();
            let configured = &inner.configured;
            inner.verified.retain(|name, _| configured.contains(name));
            inner.refused.retain(|name, _| configured.contains(name));
        });
    }

    /// The stored UID of a cluster. `None` means that the cluster was never verified on this host.
    pub fn uid(&self, cluster: &str) -> io::Result<Option<Box<str>>> {
        match std::fs::read_to_string(self.file(cluster)) {
            Ok(text) if text.trim().is_empty() => Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty")),
            Ok(text) => Ok(Some(text.trim().into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks the UID that a server reports for this cluster, and stores it. Returns why the cluster is refused. Calls
    /// are serialized: if two names lead to the same cluster, the second one sees the first.
    pub fn verify(&self, cluster: &Name, uid: &str) -> Result<(), String> {
        self.with(|inner| {
            let verified = inner.verified.get(cluster).is_some_and(|verified| **verified == *uid);
            if verified && !inner.refused.contains_key(cluster) {
                return Ok(());
            }
            if let Err((reason, message)) = self.check(inner, cluster, uid) {
                let refusal = Refusal::new(RefusalSubject::Cluster(cluster.clone()), reason, message.clone());
                inner.refused.insert(cluster.clone(), refusal);
                return Err(message);
            }
            inner.refused.remove(cluster);
            inner.verified.insert(cluster.clone(), uid.into());
            self.store(cluster, uid);
            Ok(())
        })
    }

    pub fn refusal(&self, cluster: &str) -> Option<Refusal> {
        self.with(|inner| inner.refused.get(cluster).cloned())
    }

    fn check(&self, inner: &Inner, cluster: &Name, uid: &str) -> Result<(), (RefusalReason, String)> {
        let file = self.file(cluster);
        let stored = self.uid(cluster).map_err(|error| {
            let message = format!(
                "cannot read the stored UID of cluster {cluster} from {}: {error}; make the file readable, or remove it \
                 to accept the cluster that answers now",
                file.display()
            );
            (RefusalReason::UnknownCluster, message)
        })?;
        if let Some(stored) = stored.as_deref().filter(|stored| *stored != uid) {
            let message = format!(
                "cluster {cluster} has the stored UID {stored}, but the server reports the UID {uid}: the last known \
                 state of {cluster} stays in effect; give the other cluster its own name, or, if it replaces the old \
                 one, remove {}",
                file.display()
            );
            return Err((RefusalReason::OtherCluster, message));
        }
        match self.same_cluster(inner, cluster, uid, stored.is_some()) {
            None => Ok(()),
            Some(other) => {
                let remove = "remove one of them from the configuration";
                let message = format!("{cluster} is the same cluster as {other} (UID {uid}): {remove}");
                Err((RefusalReason::SameCluster, message))
            }
        }
    }

    /// Another configured name for the same cluster that takes precedence: it is verified, or has the UID stored while
    /// `cluster` has not (`was_stored`). If both have it stored, the earlier one in the configuration takes precedence.
    fn same_cluster(&self, inner: &Inner, cluster: &Name, uid: &str, was_stored: bool) -> Option<Name> {
        let own = inner.configured.iter().position(|name| name == cluster);
        let takes_precedence = |(at, other): &(usize, &Name)| match inner.verified.get(*other) {
            Some(verified) => **verified == *uid,
            None if was_stored && Some(*at) > own => false,
            None => self.uid(other).is_ok_and(|stored| stored.as_deref() == Some(uid)),
        };
        let mut others = inner.configured.iter().enumerate().filter(|(_, other)| *other != cluster);
        others.find(takes_precedence).map(|(_, other)| other.clone())
    }

    /// If the UID cannot be stored, the next start accepts the cluster that answers first.
    fn store(&self, cluster: &Name, uid: &str) {
        if self.uid(cluster).is_ok_and(|stored| stored.as_deref() == Some(uid)) {
            return;
        }
        let dir = cluster_dir(&self.dir, cluster);
        if let Err(error) = std::fs::create_dir_all(&dir).and_then(|()| write(&dir, uid)) {
            let file = self.file(cluster);
            tracing::warn!(%cluster, file = %file.display(), %error, "cannot store the cluster's UID; check --state-dir");
        }
    }

    fn file(&self, cluster: &str) -> PathBuf {
        cluster_dir(&self.dir, cluster).join("uid")
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Writes the file atomically, so that it is complete or missing after a power failure.
fn write(dir: &Path, uid: &str) -> io::Result<()> {
    let temporary = dir.join("uid.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    writeln!(file, "{uid}")?;
    file.sync_all()?;
    std::fs::rename(&temporary, dir.join("uid"))?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(dir: &Path, clusters: &[&str]) -> ClusterIdStore {
        let store = ClusterIdStore::new(dir);
        store.set_configured(clusters.iter().map(|name| Name::from(*name)));
        store
    }

    #[test]
    fn another_cluster_under_an_old_name_is_refused_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let first = store(dir.path(), &["blue"]);
        assert_eq!((first.uid("blue").unwrap(), first.verify(&"blue".into(), "u1")), (None, Ok(())));
        for process in [first, store(dir.path(), &["blue"])] {
            let message = process.verify(&"blue".into(), "u2").unwrap_err();
            let parts = ["u1", "remove", "clusters/blue/uid"];
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
            assert_eq!(process.refusal("blue").unwrap().reason, RefusalReason::OtherCluster);
            assert_eq!(process.verify(&"blue".into(), "u1"), Ok(()), "the right cluster is accepted again");
            assert_eq!(process.refusal("blue"), None);
        }
        std::fs::remove_file(cluster_dir(dir.path(), "blue").join("uid")).unwrap();
        assert_eq!(store(dir.path(), &["blue"]).verify(&"blue".into(), "u2"), Ok(()), "as the message advises");
    }

    #[test]
    fn the_same_cluster_under_two_names_is_refused_until_one_name_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let clusters = store(dir.path(), &["blue", "green"]);
        assert_eq!(clusters.verify(&"blue".into(), "u1"), Ok(()));
        let message = clusters.verify(&"green".into(), "u1").unwrap_err();
        assert!(message.contains("same cluster as blue") && message.contains("remove one"), "{message}");
        // After a restart green may answer first: the stored UID of blue decides.
        let restarted = store(dir.path(), &["blue", "green"]);
        assert!(restarted.verify(&"green".into(), "u1").is_err());
        restarted.set_configured(["green".into()].into_iter());
        assert_eq!(restarted.verify(&"green".into(), "u1"), Ok(()));
    }

    #[test]
    fn of_two_names_that_are_verified_concurrently_only_one_is_accepted() {
        for _ in 0..200 {
            let dir = tempfile::tempdir().unwrap();
            let clusters = store(dir.path(), &["blue", "green"]);
            let verify = |name: &'static str| clusters.verify(&name.into(), "u1").is_ok();
            let both = std::thread::scope(|scope| {
                let threads = ["blue", "green"].map(|name| scope.spawn(move || verify(name)));
                threads.map(|thread| thread.join().unwrap())
            });
            assert_eq!(both.into_iter().filter(|accepted| *accepted).count(), 1);
        }
    }

    #[test]
    fn of_two_names_with_the_same_stored_uid_the_earlier_one_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["blue", "green"] {
            std::fs::create_dir_all(cluster_dir(dir.path(), name)).unwrap();
            std::fs::write(cluster_dir(dir.path(), name).join("uid"), "u1\n").unwrap();
        }
        let clusters = store(dir.path(), &["green", "blue"]);
        assert!(clusters.verify(&"blue".into(), "u1").unwrap_err().contains("same cluster as green"));
        assert_eq!(clusters.verify(&"green".into(), "u1"), Ok(()));
        assert!(clusters.verify(&"blue".into(), "u1").is_err());
    }

    #[test]
    fn an_unreadable_uid_file_refuses_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let file = cluster_dir(dir.path(), "blue").join("uid");
        let clusters = store(dir.path(), &["blue"]);
        std::fs::create_dir_all(&file).unwrap();
        let message = clusters.verify(&"blue".into(), "u2").unwrap_err();
        assert!(message.contains("clusters/blue/uid") && message.contains("remove it"), "{message}");
        assert_eq!(clusters.refusal("blue").unwrap().reason, RefusalReason::UnknownCluster);
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(clusters.verify(&"blue".into(), "u2").unwrap_err().contains("the file is empty"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(clusters.verify(&"blue".into(), "u2"), Ok(()), "as the message advises");
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
