//! What is remembered of all clusters: every batch goes by on its way to the owner, and what is due goes to the disk where
//! nobody waits for it.

use super::clock::{Clock, Host};
use super::file::{Place, Recalled};
use super::memory::{Job, Memory, Report, Standing};
use crate::known::Known;
use beeline_cluster::Batch;
use beeline_model::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is due is looked for this often.
const LOOK: Duration = Duration::from_secs(2);

/// Where, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeping {
    pub dir: PathBuf,
    /// `None`: as long as it takes.
    pub max_age: Option<Duration>,
}

/// What is kept of one cluster. Whoever passes a batch on waits for nobody who reads or writes the disk, nor does whoever
/// asks how it stands.
struct Desk {
    /// One write at a time, each to its end: the last one, at a stop, waits for the one under way.
    pen: Mutex<()>,
    memory: Mutex<Memory>,
    /// As it was after the last read or write.
    standing: Mutex<Standing>,
}

impl Desk {
    fn new(memory: Memory) -> Desk {
        Desk { pen: Mutex::default(), standing: memory.standing().into(), memory: memory.into() }
    }

    fn recall(&self, uid: Option<&str>) -> Option<Recalled> {
        let search = lock(&self.memory).search();
        let loaded = search.run(uid);
        let mut memory = lock(&self.memory);
        let recalled = memory.take_up(loaded);
        *lock(&self.standing) = memory.standing();
        recalled
    }

    /// What is chosen, if anything is.
    fn write(&self, choose: impl FnOnce(&mut Memory) -> Option<Job>) {
        let _one = lock(&self.pen);
        let Some(job) = choose(&mut lock(&self.memory)) else { return };
        let written = job.run();
        let mut memory = lock(&self.memory);
        memory.settle(&job, written);
        *lock(&self.standing) = memory.standing();
    }
}

pub struct Archive {
    keeping: Keeping,
    known: Arc<Known>,
    all: Mutex<BTreeMap<Name, Arc<Desk>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Archive {
    pub(crate) fn new(keeping: Keeping, known: Arc<Known>) -> Archive {
        Archive { keeping, known, all: Mutex::default() }
    }

    /// A source begins to speak for this cluster, and will say everything anew.
    pub fn begin(&self, cluster: &Name) {
        let place = Place { dir: self.keeping.dir.clone(), cluster: cluster.clone() };
        let new = || Arc::new(Desk::new(Memory::new(place, self.keeping.max_age, Box::new(Host))));
        let desk = lock(&self.all).entry(cluster.clone()).or_insert_with(new).clone();
        lock(&desk.memory).begin();
    }

    pub fn is_heard(&self, cluster: &Name) -> bool {
        self.of(cluster).is_some_and(|desk| lock(&desk.memory).is_heard())
    }

    /// Only of clusters that have begun.
    pub fn take(&self, cluster: &Name, batch: &Batch) {
        if let Some(desk) = self.of(cluster) {
            lock(&desk.memory).take(batch);
        }
    }

    /// Those that are configured no more are told of no more; their files stay.
    pub fn configure(&self, clusters: &BTreeSet<Name>) {
        lock(&self.all).retain(|name, _| clusters.contains(name));
    }

    fn of(&self, cluster: &Name) -> Option<Arc<Desk>> {
        lock(&self.all).get(cluster).cloned()
    }

    /// What the disk says of a cluster. `uid`: which one its credentials are of, where they say so; else the one that was
    /// met last. Nobody knows whose it is where that cannot be read.
    pub async fn recall(&self, cluster: &Name, uid: Option<Box<str>>) -> Option<Recalled> {
        let desk = self.of(cluster)?;
        let uid = match uid {
            Some(uid) => Some(uid),
            None => self.known.uid(cluster).ok()?,
        };
        let read = tokio::task::spawn_blocking(move || desk.recall(uid.as_deref()));
        read.await.ok().flatten()
    }

    /// Writes what is due, for ever.
    pub async fn keep(self: Arc<Archive>) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(LOOK).await;
            for (desk, uid) in self.good() {
                tokio::task::spawn_blocking(move || desk.write(|memory| memory.due(&uid))).await?;
            }
        }
    }

    /// Nothing is written before it is known which cluster it is.
    fn good(&self) -> Vec<(Arc<Desk>, Box<str>)> {
        let all = lock(&self.all).clone();
        all.into_iter().filter_map(|(name, desk)| Some((desk, self.known.uid(&name).ok()??))).collect()
    }

    /// At a clean stop.
    pub fn flush(&self) {
        self.good().into_iter().for_each(|(desk, uid)| desk.write(|memory| memory.last(&uid)));
    }

    pub fn report(&self, cluster: &Name) -> Option<Report> {
        self.of(cluster).map(|desk| lock(&desk.standing).report(&Host.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::super::file::Header;
    use super::*;
    use beeline_model::fact::{Fact, Node};
    use rustix::fs::{FileType, Mode};
    use std::fs::File;

    fn batch(names: impl Iterator<Item = usize>) -> Batch {
        let facts = names.map(|name| Fact::Node(Node::named("far", &format!("node-{name}")))).collect();
        Batch { facts, synced: true, whole: true, ..Batch::default() }
    }

    /// The agent stops, and a thread is in the middle of a write: two would write over each other.
    #[test]
    fn the_last_write_waits_for_the_one_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let known = Arc::new(Known::new(dir.path()));
        let far: Name = "far".into();
        known.configure([far.clone()].into_iter());
        known.meet(&far, "u1").unwrap();
        let keeping = Keeping { dir: dir.path().to_owned(), max_age: None };
        let archive = Archive::new(keeping, known);
        archive.begin(&far);
        archive.take(&far, &batch(0..2000));
        // A pipe takes a part of it, and then the writer waits.
        let (new, aside) = (dir.path().join("far.facts.new"), dir.path().join("aside"));
        rustix::fs::mknodat(rustix::fs::CWD, &new, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let desk = archive.of(&far).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| desk.write(|memory| memory.due("u1")));
            let pipe = File::open(&new).unwrap();
            std::fs::rename(&new, &aside).unwrap();
            archive.take(&far, &batch(2000..2001));
            let last = scope.spawn(|| archive.flush());
            std::thread::sleep(Duration::from_millis(300));
            assert!(!last.is_finished(), "the other one still writes");
            drop(pipe);
        });
        let recalled = desk.recall(Some("u1")).unwrap();
        assert_eq!((recalled.facts.len(), recalled.path.ends_with("far.facts")), (2001, true));
    }

    /// As after `beeline leave` and a `join` to another cluster under the old name, with the API server away.
    #[tokio::test]
    async fn of_another_cluster_under_the_name_nothing_is_recalled() {
        let dir = tempfile::tempdir().unwrap();
        let (known, name) = (Arc::new(Known::new(dir.path())), Name::from("shop"));
        let keeping = Keeping { dir: dir.path().join("snapshot"), max_age: None };
        let header = Header { cluster: name.clone(), uid: "AAAA".into(), at: Host.now() };
        let place = Place { dir: keeping.dir.clone(), cluster: name.clone() };
        place.write(&header, std::iter::empty()).unwrap();
        let archive = Archive::new(keeping, known.clone());
        archive.begin(&name);
        for (uid, wanted) in [(Some("AAAA"), true), (Some("B"), false), (None, false)] {
            assert_eq!(archive.recall(&name, uid.map(Box::from)).await.is_some(), wanted, "{uid:?}");
        }
        let unfit = archive.report(&name).unwrap().unfit;
        assert!(unfit.iter().any(|why| why.contains("AAAA") && why.contains("not known here")), "{unfit:?}");
        known.meet(&name, "AAAA").unwrap();
        assert!(archive.recall(&name, None).await.is_some(), "as it was met");
        assert!(archive.recall(&name, Some("B".into())).await.is_none(), "the credentials know better");
    }
}
