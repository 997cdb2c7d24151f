//! Who dialled: from the cgroup of an event to pod, namespace and container. Pods are told by the source, their cgroups
//! are found by the kubelet's naming; both change all the time, so a cgroup that is not known yet is looked for again.

use beeline_datapath::pod::{PodCgroup, pods_below};
use beeline_model::Name;
use beeline_model::fact::{Fact, Pod, PodName};
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A walk over all pods' cgroups is a few milliseconds; an unknown cgroup is often nobody's, and asks with every dial.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Who {
    pub namespace: String,
    pub pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// What a pod asks for by annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub untouched: bool,
    pub view: Option<Name>,
}

impl Asked {
    fn by(pod: &Pod) -> Asked {
        Asked { untouched: pod.untouched, view: pod.view.clone() }
    }

    fn is_nothing(&self) -> bool {
        *self == Asked::default()
    }
}

/// Shared by the owner, which hears of pods, and the reader of events, which asks.
#[derive(Debug)]
pub struct Identities {
    root: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pods: HashMap<PodName, Pod>,
    by_uid: HashMap<Box<str>, PodName>,
    /// UID and container id.
    cgroups: HashMap<u64, (String, Option<String>)>,
    walked: Option<Instant>,
}

impl Identities {
    /// Of the pods at or below this cgroup.
    pub fn new(root: &Path) -> Identities {
        Identities { root: root.to_owned(), inner: Mutex::default() }
    }

    /// Says whether pods that ask for something may be others now.
    pub fn apply(&self, fact: &Fact) -> bool {
        self.with(|inner| match fact {
            Fact::Pod(pod) => inner.insert(pod.clone()),
            Fact::PodGone(name) => inner.remove(name),
            _ => false,
        })
    }

    pub fn who(&self, cgroup: u64) -> Option<Who> {
        self.with(|inner| {
            if !inner.cgroups.contains_key(&cgroup) {
                inner.walk(&self.root);
            }
            inner.who(cgroup)
        })
    }

    /// Cgroups of the pods that ask for something, and whether all of them have one by now.
    pub fn asking(&self) -> (Vec<(PathBuf, Asked)>, bool) {
        let wanted: Vec<(Box<str>, Asked)> = self.with(|inner| {
            let all = inner.pods.values().map(|pod| (pod.uid.clone(), Asked::by(pod)));
            all.filter(|(_, asked)| !asked.is_nothing()).collect()
        });
        if wanted.is_empty() {
            return (Vec::new(), true);
        }
        let found: HashMap<String, PathBuf> =
            pods_below(&self.root).into_iter().map(|PodCgroup { uid, path, .. }| (uid, path)).collect();
        let count = wanted.len();
        let all = wanted.into_iter().filter_map(|(uid, asked)| Some((found.get(&*uid)?.clone(), asked)));
        let all: Vec<(PathBuf, Asked)> = all.collect();
        let complete = all.len() == count;
        (all, complete)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl Inner {
    fn insert(&mut self, pod: Pod) -> bool {
        self.by_uid.insert(pod.uid.clone(), pod.name.clone());
        let (asks, uid) = (Asked::by(&pod), pod.uid.clone());
        let old = self.pods.insert(pod.name.clone(), pod);
        let asked = old.as_ref().map(Asked::by).unwrap_or_default();
        let replaced = old.filter(|old| old.uid != uid);
        replaced.iter().for_each(|old| drop(self.by_uid.remove(&old.uid)));
        asks != asked || !asks.is_nothing() && replaced.is_some()
    }

    fn remove(&mut self, name: &PodName) -> bool {
        let Some(old) = self.pods.remove(name) else { return false };
        self.by_uid.remove(&old.uid);
        !Asked::by(&old).is_nothing()
    }

    fn walk(&mut self, root: &Path) {
        if self.walked.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        self.cgroups.clear();
        for pod in pods_below(root) {
            self.cgroups.insert(pod.id, (pod.uid.clone(), None));
            self.cgroups.extend(pod.inside.into_iter().map(|(id, container)| (id, (pod.uid.clone(), container))));
        }
        self.walked = Some(Instant::now());
    }

    fn who(&self, cgroup: u64) -> Option<Who> {
        let (uid, container) = self.cgroups.get(&cgroup)?;
        let pod = self.pods.get(self.by_uid.get(uid.as_str())?)?;
        let name = |id: &String| pod.containers.iter().find(|c| *c.id == **id).map(|c| c.name.to_string());
        Some(Who {
            namespace: pod.name.namespace.to_string(),
            pod: pod.name.name.to_string(),
            container: container.as_ref().and_then(name),
        })
    }
}
