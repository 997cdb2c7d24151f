//! Follows one kind in the edge cache: lists it, and, if that came from the cloud, watches it until the next list is due or
//! the cloud was lost in between; for ever. Nodes are only read one by one.

use super::Rhythm;
use super::cache::{Cache, CacheError};
use super::link::{self, Link};
use crate::api::{Lean, Pause, Reduced};
use beeline_model::Name;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use kube::core::WatchEvent;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

/// Between two Nodes: there may be many, and nobody waits for them.
const BREATH: Duration = Duration::from_millis(50);
/// A Node that could not be read is tried again.
const NODE_AGAIN: Duration = Duration::from_secs(30);
/// A link that comes and goes asks for a list no sooner than so many looks after the last one.
const LOOKS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Service,
    Endpoints,
}

pub(crate) enum Object {
    Service(Box<Service>),
    Endpoints(Box<Endpoints>),
}

pub(crate) enum News {
    List {
        kind: Kind,
        objects: Vec<Object>,
        version: Option<u64>,
        cached: bool,
    },
    Changed(Object),
    Gone(Object),
    Failed(Kind, String),
    Well(Kind),
    Node(Box<Node>),
    /// It could not be read.
    NoNode(Name),
}

/// A kind that is followed here.
pub(crate) trait Cached: Reduced {
    const KIND: Kind;
    const PATH: &'static str;
    /// Labels are all that the cache can choose by. `names`: they are answered here.
    fn selector(names: bool) -> &'static str;
    fn object(self) -> Object;
}

impl Cached for Service {
    const KIND: Kind = Kind::Service;
    const PATH: &'static str = "/api/v1/services";

    fn selector(_: bool) -> &'static str {
        ""
    }

    fn object(self) -> Object {
        Object::Service(Box::new(self))
    }
}

impl Cached for Endpoints {
    const KIND: Kind = Kind::Endpoints;
    const PATH: &'static str = "/api/v1/endpoints";

    /// Those of headless Services are the long ones, and of use only to names.
    fn selector(names: bool) -> &'static str {
        if names { "" } else { "labelSelector=%21service.kubernetes.io%2Fheadless" }
    }

    fn object(self) -> Object {
        Object::Endpoints(Box::new(self))
    }
}

/// The way of one kind from the cache to whoever keeps the book.
pub(crate) struct Way {
    pub(crate) cache: Cache,
    pub(crate) rhythm: Rhythm,
    pub(crate) names: bool,
    pub(crate) link: watch::Receiver<Link>,
    pub(crate) news: Sender<News>,
}

/// Until it is ended.
pub(crate) async fn follow<K: Cached>(mut way: Way) {
    let mut pause = Pause::default();
    loop {
        let (seen, due) = (*way.link.borrow_and_update(), Instant::now() + way.rhythm.list);
        match way.list::<K>().await {
            Ok(()) => {
                pause.reset();
                way.watch::<K>(&seen, due).await;
            }
            Err(CacheError::NoAnswer | CacheError::Withheld | CacheError::CutOff) => {
                link::wait(&mut way.link, &seen, due).await;
            }
            Err(_) => tokio::time::sleep(pause.next()).await,
        }
    }
}

impl Way {
    async fn say(&self, news: News) {
        // Whoever does not listen any more ends us.
        let _ = self.news.send(news).await;
    }

    async fn fail<K: Cached>(&self, error: CacheError) -> CacheError {
        self.say(News::Failed(K::KIND, format!("{} {}: {error}", self.cache.server(), K::PATH))).await;
        error
    }

    /// An error also where the database has answered: then there is nothing to watch.
    async fn list<K: Cached>(&self) -> Result<(), CacheError> {
        let found = match self.cache.list::<K>(&format!("{}?{}", K::PATH, K::selector(self.names))).await {
            Ok(found) => found,
            Err(CacheError::NoAnswer) => return Err(self.blame::<K>(CacheError::NoAnswer).await),
            Err(error) => return Err(self.fail::<K>(error).await),
        };
        let objects = found.objects.into_iter().map(Cached::object).collect();
        self.say(News::List { kind: K::KIND, objects, version: found.version, cached: found.cached }).await;
        if found.cached { Err(self.blame::<K>(CacheError::CutOff).await) } else { Ok(()) }
    }

    /// Cloudcore's refusal reaches us as an answer of the database, and so does the cloud's absence. To watch then would do
    /// harm: cloudcore waits for ever for what it may not list, and serves no other edge meanwhile.
    async fn blame<K: Cached>(&self, absent: CacheError) -> CacheError {
        let error = if self.cache.reaches_cloud().await { CacheError::Withheld } else { absent };
        self.fail::<K>(error).await
    }

    /// Until the next list is due: by its time, after a cut, or some time after the watch ended by itself.
    async fn watch<K: Cached>(&mut self, seen: &Link, due: Instant) {
        let left = due.saturating_duration_since(Instant::now());
        let (names, link) = (K::selector(self.names), self.link.clone());
        let path = format!("{}?watch=true&timeoutSeconds={}&{names}", K::PATH, left.as_secs().max(1));
        let ended = tokio::select! {
            ended = self.listen::<K>(&path) => ended,
            () = self.mended::<K>(link, seen) => return,
            // It is asked to end by itself, and not trusted to.
            () = tokio::time::sleep(left) => return,
        };
        // Whoever answers next may be another.
        self.cache.doubt().await;
        if let Err(error) = ended {
            self.fail::<K>(error).await;
        }
        let left = due.saturating_duration_since(Instant::now());
        tokio::time::sleep(self.rhythm.pulse.min(left)).await;
    }

    /// Until the cloud was lost and is back.
    async fn mended<K: Cached>(&self, mut link: watch::Receiver<Link>, seen: &Link) {
        let soonest = Instant::now() + self.rhythm.pulse * LOOKS;
        loop {
            let now = *link.borrow_and_update();
            if now.is_mended(seen) {
                return tokio::time::sleep_until(soonest.into()).await;
            }
            if !now.up {
                self.fail::<K>(CacheError::CutOff).await;
            }
            if link.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Until the cache ends it.
    async fn listen<K: Cached>(&self, path: &str) -> Result<(), CacheError> {
        let mut events = std::pin::pin!(self.cache.watch::<K>(path).await?);
        self.say(News::Well(K::KIND)).await;
        while let Some(event) = events.next().await {
            match heard(event?) {
                Heard::News(news) => self.say(news).await,
                Heard::Nothing => {}
                Heard::End => break,
            }
        }
        Ok(())
    }
}

enum Heard {
    News(News),
    Nothing,
    End,
}

fn heard<K: Cached>(event: WatchEvent<Lean<K>>) -> Heard {
    match event {
        WatchEvent::Added(Lean(object)) | WatchEvent::Modified(Lean(object)) => {
            Heard::News(News::Changed(object.object()))
        }
        WatchEvent::Deleted(Lean(object)) => Heard::News(News::Gone(object.object())),
        WatchEvent::Bookmark(_) => Heard::Nothing,
        // How a watch of the cache ends.
        WatchEvent::Error(_) => Heard::End,
    }
}

/// Reads the Nodes that are needed, each at once when it is first named, and again now and then.
pub(crate) async fn follow_nodes(
    cache: Cache,
    every: Duration,
    mut needed: watch::Receiver<BTreeSet<Name>>,
    news: Sender<News>,
) {
    let mut next: BTreeMap<Name, Instant> = BTreeMap::new();
    loop {
        let names = needed.borrow_and_update().clone();
        next.retain(|name, _| names.contains(name));
        for name in names {
            next.entry(name).or_insert_with(Instant::now);
        }
        let Some((name, due)) = next.iter().min_by_key(|(_, due)| **due).map(|(name, due)| (name.clone(), *due)) else {
            if needed.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            changed = needed.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due.into()) => {
                let wait = read_node(&cache, &name, every, &news).await;
                next.insert(name, Instant::now() + wait);
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// When to read it again.
async fn read_node(cache: &Cache, name: &Name, every: Duration, news: &Sender<News>) -> Duration {
    match cache.get::<Node>(&format!("/api/v1/nodes/{name}")).await {
        Ok(node) => {
            let _ = news.send(News::Node(Box::new(node))).await;
            every
        }
        Err(error) => {
            tracing::debug!("Node {name} of the edge cache: {error}");
            let _ = news.send(News::NoNode(name.clone())).await;
            NODE_AGAIN.min(every)
        }
    }
}
