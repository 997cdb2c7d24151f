//! Which clusters we have met: a cluster is its UID (that of its namespace kube-system), its name is the configuration's.
//! What was served under a name yesterday must not be another cluster's today because somebody copied a kubeconfig, so the
//! UID is remembered on disk, beside what else is remembered of that cluster.

use beeline_model::Name;
use beeline_model::fact::Refusal;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

#[derive(Debug)]
pub struct Known {
    dir: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order of the configuration.
    configured: Vec<Name>,
    /// Met by this process.
    met: BTreeMap<Name, Box<str>>,
    refused: BTreeMap<Name, Refusal>,
}

/// Where everything is that is remembered of a cluster.
pub fn folder(state_dir: &Path, cluster: &str) -> PathBuf {
    state_dir.join("clusters").join(cluster)
}

impl Known {
    /// Nothing is read or written before a cluster is met.
    pub fn new(state_dir: &Path) -> Known {
        Known { dir: state_dir.to_owned(), inner: Mutex::default() }
    }

    /// Those that are configured now; what was refused of others is forgotten.
    pub fn configure(&self, clusters: impl Iterator<Item = Name>) {
        self.with(|inner| {
            inner.configured = clusters.collect();
            let configured = &inner.configured;
            inner.met.retain(|name, _| configured.contains(name));
            inner.refused.retain(|name, _| configured.contains(name));
        });
    }

    /// The UID that a cluster had when it was last met, also by an earlier process. `None`: it never was; an error: nobody
    /// can tell.
    pub fn uid(&self, cluster: &str) -> io::Result<Option<Box<str>>> {
        match std::fs::read_to_string(self.file(cluster)) {
            Ok(text) if text.trim().is_empty() => Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty")),
            Ok(text) => Ok(Some(text.trim().into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether whoever answers under this name is the cluster that it should be; else why not, and what to do. One after
    /// the other: of two names that are met at once, and are the same cluster, the second sees the first.
    pub fn meet(&self, cluster: &Name, uid: &str) -> Result<(), String> {
        self.with(|inner| {
            if !inner.refused.contains_key(cluster) && inner.met.get(cluster).is_some_and(|met| **met == *uid) {
                return Ok(());
            }
            if let Err((reason, message)) = self.judge(inner, cluster, uid) {
                let refusal = Refusal { subject: format!("cluster {cluster}"), reason, message: message.clone() };
                inner.refused.insert(cluster.clone(), refusal);
                return Err(message);
            }
            inner.refused.remove(cluster);
            inner.met.insert(cluster.clone(), uid.into());
            self.remember(cluster, uid);
            Ok(())
        })
    }

    pub fn refusal(&self, cluster: &str) -> Option<Refusal> {
        self.with(|inner| inner.refused.get(cluster).cloned())
    }

    fn judge(&self, inner: &Inner, cluster: &Name, uid: &str) -> Result<(), (&'static str, String)> {
        let file = self.file(cluster);
        let before = self.uid(cluster).map_err(|error| {
            let next = "make it readable, or remove it to believe whoever answers";
            (
                "unknownCluster",
                format!("which cluster {cluster} was cannot be read: {}: {error}; {next}", file.display()),
            )
        })?;
        if let Some(before) = before.as_deref().filter(|before| *before != uid) {
            return Err((
                "otherCluster",
                format!(
                    "{cluster} was the cluster {before}, and {uid} answers now: what was known of {cluster} stays; \
                     give the other cluster a name of its own, or, if it took the place of the old one, remove {}",
                    file.display()
                ),
            ));
        }
        match self.twin(inner, cluster, uid, before.is_some()) {
            None => Ok(()),
            Some(twin) => Err((
                "sameCluster",
                format!("{cluster} is the same cluster as {twin} ({uid}): remove one of them from the configuration"),
            )),
        }
    }

    /// Another one of the configuration that is the same cluster, and has the older right to be it: it was met, or was once
    /// and this one never. Of two that both were, the earlier of the configuration.
    fn twin(&self, inner: &Inner, cluster: &Name, uid: &str, was_it: bool) -> Option<Name> {
        let own = inner.configured.iter().position(|name| name == cluster);
        let is_it = |(at, other): &(usize, &Name)| match inner.met.get(*other) {
            Some(met) => **met == *uid,
            None if was_it && Some(*at) > own => false,
            None => self.uid(other).is_ok_and(|before| before.as_deref() == Some(uid)),
        };
        let mut others = inner.configured.iter().enumerate().filter(|(_, other)| *other != cluster);
        others.find(is_it).map(|(_, other)| other.clone())
    }

    /// Where nothing can be written, the next start believes whoever answers first.
    fn remember(&self, cluster: &Name, uid: &str) {
        if self.uid(cluster).is_ok_and(|before| before.as_deref() == Some(uid)) {
            return;
        }
        let folder = folder(&self.dir, cluster);
        if let Err(error) = std::fs::create_dir_all(&folder).and_then(|()| write(&folder, uid)) {
            tracing::warn!(
                "which cluster {cluster} is cannot be remembered at {}: {error} (--state-dir)",
                self.file(cluster).display()
            );
        }
    }

    fn file(&self, cluster: &str) -> PathBuf {
        folder(&self.dir, cluster).join("uid")
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// It is there as a whole or not at all, also when the power goes.
fn write(folder: &Path, uid: &str) -> io::Result<()> {
    let aside = folder.join("uid.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
    writeln!(file, "{uid}")?;
    file.sync_all()?;
    std::fs::rename(&aside, folder.join("uid"))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(dir: &Path, clusters: &[&str]) -> Known {
        let known = Known::new(dir);
        known.configure(clusters.iter().map(|name| Name::from(*name)));
        known
    }

    #[test]
    fn another_cluster_under_an_old_name_is_refused_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let first = known(dir.path(), &["blue"]);
        assert_eq!((first.uid("blue").unwrap(), first.meet(&"blue".into(), "u1")), (None, Ok(())));
        for process in [first, known(dir.path(), &["blue"])] {
            let why = process.meet(&"blue".into(), "u2").unwrap_err();
            assert!(why.contains("u1") && why.contains("remove") && why.contains("clusters/blue/uid"), "{why}");
            assert_eq!(process.refusal("blue").unwrap().reason, "otherCluster");
            assert_eq!(process.meet(&"blue".into(), "u1"), Ok(()), "the right one is welcome again");
            assert_eq!(process.refusal("blue"), None);
        }
        std::fs::remove_file(folder(dir.path(), "blue").join("uid")).unwrap();
        assert_eq!(known(dir.path(), &["blue"]).meet(&"blue".into(), "u2"), Ok(()), "as the message says");
    }

    #[test]
    fn the_same_cluster_twice_is_refused_until_one_goes() {
        let dir = tempfile::tempdir().unwrap();
        let clusters = known(dir.path(), &["blue", "green"]);
        assert_eq!(clusters.meet(&"blue".into(), "u1"), Ok(()));
        let why = clusters.meet(&"green".into(), "u1").unwrap_err();
        assert!(why.contains("same cluster as blue") && why.contains("remove one"), "{why}");
        // After a restart green may be the first to answer: blue had it before.
        let again = known(dir.path(), &["blue", "green"]);
        assert!(again.meet(&"green".into(), "u1").is_err());
        again.configure(["green".into()].into_iter());
        assert_eq!(again.meet(&"green".into(), "u1"), Ok(()));
    }
    #[test]
    fn two_names_that_are_met_at_once_are_not_both_the_same_cluster() {
        for _ in 0..200 {
            let dir = tempfile::tempdir().unwrap();
            let clusters = known(dir.path(), &["blue", "green"]);
            let meet = |name: &'static str| clusters.meet(&name.into(), "u1").is_ok();
            let both = std::thread::scope(|scope| {
                let threads = ["blue", "green"].map(|name| scope.spawn(move || meet(name)));
                threads.map(|thread| thread.join().unwrap())
            });
            assert_eq!(both.into_iter().filter(|is_it| *is_it).count(), 1);
        }
    }

    #[test]
    fn of_two_that_both_were_it_the_earlier_one_is() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["blue", "green"] {
            std::fs::create_dir_all(folder(dir.path(), name)).unwrap();
            std::fs::write(folder(dir.path(), name).join("uid"), "u1\n").unwrap();
        }
        let clusters = known(dir.path(), &["green", "blue"]);
        assert!(clusters.meet(&"blue".into(), "u1").unwrap_err().contains("same cluster as green"));
        assert_eq!(clusters.meet(&"green".into(), "u1"), Ok(()));
        assert!(clusters.meet(&"blue".into(), "u1").is_err());
    }

    #[test]
    fn what_cannot_be_read_is_not_a_cluster_that_was_never_met() {
        let dir = tempfile::tempdir().unwrap();
        let file = folder(dir.path(), "blue").join("uid");
        let clusters = known(dir.path(), &["blue"]);
        std::fs::create_dir_all(&file).unwrap();
        let why = clusters.meet(&"blue".into(), "u2").unwrap_err();
        assert!(why.contains("clusters/blue/uid") && why.contains("remove it"), "{why}");
        assert_eq!(clusters.refusal("blue").unwrap().reason, "unknownCluster");
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(clusters.meet(&"blue".into(), "u2").unwrap_err().contains("it is empty"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(clusters.meet(&"blue".into(), "u2"), Ok(()), "as the message says");
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
