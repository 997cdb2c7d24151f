//! Lists and watches one kind of the edge cache. A kind is listed, and if the list came from the cloud, it is watched
//! until the next list is due or the link was interrupted. Nodes are read one by one.

use super::EdgeIntervals;
use super::client::{EdgeCacheClient, EdgeCacheError};
use super::link::{LinkState, wait_until_up};
use crate::backoff::Backoff;
use crate::kind::ResourceKind;
use crate::wire::{Trimmed, TrimmedKind};
use beeline_model::Name;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::WatchEvent;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

/// The pause between the reads of two Nodes. There may be many, and they are not urgent.
const NODE_PAUSE: Duration = Duration::from_millis(50);
/// The delay before a Node that could not be read is read again.
const NODE_RETRY: Duration = Duration::from_secs(30);
/// After an interruption, the next list waits for this many probe intervals after the last one, so that an unstable
/// link does not cause too many lists.
const PROBES_BETWEEN_LISTS: u32 = 3;

pub(crate) enum CachedObject {
    Service(Box<Service>),
    Endpoints(Box<Endpoints>),
}

impl CachedObject {
    pub(crate) fn kind(&self) -> ResourceKind {
        match self {
            CachedObject::Service(_) => ResourceKind::Service,
            CachedObject::Endpoints(_) => ResourceKind::Endpoints,
        }
    }

    pub(crate) fn meta(&self) -> &ObjectMeta {
        match self {
            CachedObject::Service(service) => &service.metadata,
            CachedObject::Endpoints(endpoints) => &endpoints.metadata,
        }
    }
}

pub(crate) enum EdgeUpdate {
    List {
        kind: ResourceKind,
        objects: Vec<CachedObject>,
        version: Option<u64>,
        from_cache: bool,
    },
    Upserted(CachedObject),
    Deleted(CachedObject),
    Failed(ResourceKind, String),
    /// The watch is open.
    Healthy(ResourceKind),
    Node(Box<Node>),
    /// The Node could not be read.
    NodeUnavailable(Name),
}

impl EdgeUpdate {
    /// `None` for an event without an object.
    pub(crate) fn from_event<K: CachedKind>(event: WatchEvent<Trimmed<K>>) -> Option<EdgeUpdate> {
        match event {
            WatchEvent::Added(Trimmed(object)) | WatchEvent::Modified(Trimmed(object)) => {
                Some(EdgeUpdate::Upserted(object.into_object()))
            }
            WatchEvent::Deleted(Trimmed(object)) => Some(EdgeUpdate::Deleted(object.into_object())),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => None,
        }
    }
}

/// A kind that is listed and watched in the edge cache.
pub(crate) trait CachedKind: TrimmedKind {
    const KIND: ResourceKind;
    const PATH: &'static str;
    /// The query with the label selector. The cache supports no other selectors.
    fn selector(dns_names: bool) -> &'static str;
    fn into_object(self) -> CachedObject;
}

impl CachedKind for Service {
    const KIND: ResourceKind = ResourceKind::Service;
    const PATH: &'static str = "/api/v1/services";

    fn selector(_: bool) -> &'static str {
        ""
    }

    fn into_object(self) -> CachedObject {
        CachedObject::Service(Box::new(self))
    }
}

impl CachedKind for Endpoints {
    const KIND: ResourceKind = ResourceKind::Endpoints;
    const PATH: &'static str = "/api/v1/endpoints";

    /// The Endpoints of headless Services are often long, and only DNS needs them.
    fn selector(dns_names: bool) -> &'static str {
        if dns_names { "" } else { "labelSelector=%21service.kubernetes.io%2Fheadless" }
    }

    fn into_object(self) -> CachedObject {
        CachedObject::Endpoints(Box::new(self))
    }
}

/// Watches one kind and sends its updates to the tracker.
pub(crate) struct EdgeWatcher {
    pub(crate) client: EdgeCacheClient,
    pub(crate) intervals: EdgeIntervals,
    pub(crate) dns_names: bool,
    pub(crate) link: watch::Receiver<LinkState>,
    pub(crate) updates: Sender<EdgeUpdate>,
}

impl EdgeWatcher {
    /// Runs until the task is aborted.
    pub(crate) async fn run<K: CachedKind>(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let (link, due) = (*self.link.borrow_and_update(), Instant::now() + self.intervals.relist);
            match self.list::<K>().await {
                Ok(()) => {
                    backoff.reset();
                    self.watch::<K>(&link, due).await;
                }
                Err(EdgeCacheError::EmptyCache | EdgeCacheError::NotPermitted | EdgeCacheError::CloudUnreachable) => {
                    wait_until_up(&mut self.link, &link, due).await
                }
                Err(_) => tokio::time::sleep(backoff.next()).await,
            }
        }
    }

    async fn send(&self, update: EdgeUpdate) {
        // Sending fails only if the tracker has ended, which aborts this task.
        let _ = self.updates.send(update).await;
    }

    async fn report<K: CachedKind>(&self, error: EdgeCacheError) -> EdgeCacheError {
        let message = format!("{} {}: {error}", self.client.server(), K::PATH);
        self.send(EdgeUpdate::Failed(K::KIND, message)).await;
        error
    }

    /// Fails also if the database has answered: there is nothing to watch then.
    async fn list<K: CachedKind>(&self) -> Result<(), EdgeCacheError> {
        let list = match self.client.list::<K>(&format!("{}?{}", K::PATH, K::selector(self.dns_names))).await {
            Ok(list) => list,
            Err(EdgeCacheError::EmptyCache) => return Err(self.find_cause::<K>(EdgeCacheError::EmptyCache).await),
            Err(error) => return Err(self.report::<K>(error).await),
        };
        let objects = list.objects.into_iter().map(CachedKind::into_object).collect();
        let (version, from_cache) = (list.version, list.from_cache);
        self.send(EdgeUpdate::List { kind: K::KIND, objects, version, from_cache }).await;
        if from_cache { Err(self.find_cause::<K>(EdgeCacheError::CloudUnreachable).await) } else { Ok(()) }
    }

    /// The database answers both if the cloud is unreachable and if cloudcore may not list the kind. In the second case
    /// a watch would do harm: cloudcore waits forever for a kind that it may not list, and serves no other edge host
    /// meanwhile.
    async fn find_cause<K: CachedKind>(&self, if_unreachable: EdgeCacheError) -> EdgeCacheError {
        let error = if self.client.reaches_cloud().await { EdgeCacheError::NotPermitted } else { if_unreachable };
        self.report::<K>(error).await
    }

    /// Watches until the next list is due: at its time, after an interruption of the link, or some time after the watch
    /// ended by itself.
    async fn watch<K: CachedKind>(&mut self, link_at_list: &LinkState, due: Instant) {
        let left = due.saturating_duration_since(Instant::now());
        let (selector, link) = (K::selector(self.dns_names), self.link.clone());
        let path = format!("{}?watch=true&timeoutSeconds={}&{selector}", K::PATH, left.as_secs().max(1));
        let ended = tokio::select! {
            ended = self.receive_events::<K>(&path) => ended,
            () = self.link_restored::<K>(link, link_at_list) => return,
            // The cache may ignore timeoutSeconds.
            () = tokio::time::sleep(left) => return,
        };
        // Another cluster may answer next.
        self.client.reset_verification().await;
        if let Err(error) = ended {
            self.report::<K>(error).await;
        }
        let left = due.saturating_duration_since(Instant::now());
        tokio::time::sleep(self.intervals.probe.min(left)).await;
    }

    /// Waits until the link went down and is up again.
    async fn link_restored<K: CachedKind>(&self, mut link: watch::Receiver<LinkState>, since: &LinkState) {
        let earliest = Instant::now() + self.intervals.probe * PROBES_BETWEEN_LISTS;
        loop {
            let now = *link.borrow_and_update();
            if now.is_restored_since(since) {
                return tokio::time::sleep_until(earliest.into()).await;
            }
            if !now.is_up {
                self.report::<K>(EdgeCacheError::CloudUnreachable).await;
            }
            if link.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Receives events until the cache ends the watch.
    async fn receive_events<K: CachedKind>(&self, path: &str) -> Result<(), EdgeCacheError> {
        let mut events = std::pin::pin!(self.client.watch::<K>(path).await?);
        self.send(EdgeUpdate::Healthy(K::KIND)).await;
        while let Some(event) = events.next().await {
            match event? {
                // The cache ends a watch with an error event.
                WatchEvent::Error(_) => break,
                event => {
                    if let Some(update) = EdgeUpdate::from_event(event) {
                        self.send(update).await;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads the needed Nodes: each one at once when it is first needed, and then at the interval.
pub(crate) async fn read_nodes(
    client: EdgeCacheClient,
    interval: Duration,
    mut needed: watch::Receiver<BTreeSet<Name>>,
    updates: Sender<EdgeUpdate>,
) {
    let mut due_times: BTreeMap<Name, Instant> = BTreeMap::new();
    loop {
        let names = needed.borrow_and_update().clone();
        due_times.retain(|name, _| names.contains(name));
        for name in names {
            due_times.entry(name).or_insert_with(Instant::now);
        }
        let next = due_times.iter().min_by_key(|(_, due)| **due).map(|(name, due)| (name.clone(), *due));
        let Some((name, due)) = next else {
            if needed.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            changed = needed.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due.into()) => {
                let delay = read_node(&client, &name, interval, &updates).await;
                due_times.insert(name, Instant::now() + delay);
                tokio::time::sleep(NODE_PAUSE).await;
            }
        }
    }
}

/// Returns the delay before the Node is read again.
async fn read_node(
    client: &EdgeCacheClient,
    name: &Name,
    interval: Duration,
    updates: &Sender<EdgeUpdate>,
) -> Duration {
    match client.get::<Node>(&format!("/api/v1/nodes/{name}")).await {
        Ok(node) => {
            let _ = updates.send(EdgeUpdate::Node(Box::new(node))).await;
            interval
        }
        Err(error) => {
            tracing::debug!(node = %name, %error, "cannot read a Node from the edge cache");
            let _ = updates.send(EdgeUpdate::NodeUnavailable(name.clone())).await;
            NODE_RETRY.min(interval)
        }
    }
}
