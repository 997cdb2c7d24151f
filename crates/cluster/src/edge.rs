//! The edge cache of KubeEdge (MetaServer) as a source of objects: plain HTTP on the edge host itself. The cache asks
//! the cloud while the link is up, and answers from a small database while it is down.
//!
//! The cache resembles an API server, but differs in these points:
//! - With an empty database it answers 200 and an empty list without a resourceVersion. Such a response is an error
//!   here, because it would delete all objects.
//! - Its database lacks objects that were only listed and never watched, and a cloud that was just started loses the
//!   first event of a watch. So a list from the database (recognized by its `selfLink`) can add objects but delete
//!   none.
//! - Its watch ignores the requested resourceVersion and starts with an ADDED event for every object of the database,
//!   also for objects that were deleted in the cloud while the link was down. `VersionFilter` drops these.
//! - It sends no bookmarks and does not report missed events, and a watch may stay silent after an interruption. So
//!   everything is listed and watched again every ten minutes and after each interruption, which `link` detects.
//! - It supports field selectors for name and namespace only. A request for the pods of a node returns none.
//! - EndpointSlices may be rewritten to 127.0.0.1:10550 on the way from the cloud (KubeEdge directs pods to the cache
//!   in this way, and not only for its own Service). So v1 Endpoints are read instead.
//!
//! Every byte may come over a metered radio link. So only Services and Endpoints are listed and watched, and the Nodes
//! that the Endpoints name are read one by one every half an hour: a watch of Nodes would carry the heartbeat of every
//! node. That a node is not ready shows earlier in the Endpoints. Pods and policies are not read.

mod answer_check;
mod client;
mod link;
mod tracker;
mod version_filter;
mod watcher;

use crate::api::{ClusterIdCheck, LoadError};
use crate::convert::{Converter, ServiceFilter};
use crate::folder::ChangeBatch;
use crate::snapshot::Snapshot;
pub use answer_check::check_edge_answers;
use beeline_model::Name;
pub use client::TrafficCounter;
use client::{EdgeCacheClient, EdgeCacheError};
use http::Uri;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use link::LinkState;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracker::EdgeTracker;
use watcher::{EdgeUpdate, EdgeWatcher, read_nodes};

/// KubeEdge's default.
pub const DEFAULT_EDGE_CACHE_URL: &str = "http://127.0.0.1:10550";
/// Updates between the watchers and the tracker. A watcher that is faster than the tracker waits.
const UPDATE_QUEUE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeIntervals {
    /// Between two lists of everything.
    pub relist: Duration,
    /// Between two probes of the link to the cloud.
    pub probe: Duration,
    /// Between two reads of the same Node.
    pub node: Duration,
}

impl Default for EdgeIntervals {
    fn default() -> EdgeIntervals {
        EdgeIntervals {
            relist: Duration::from_secs(600),
            probe: Duration::from_secs(20),
            node: Duration::from_secs(1800),
        }
    }
}

#[derive(Clone, Debug)]
pub struct EdgeCacheSource {
    pub server: Uri,
    /// The name of the cluster in the configuration.
    pub cluster: String,
    /// The node of this host.
    pub node: String,
    pub service_filter: ServiceFilter,
    pub intervals: EdgeIntervals,
    pub traffic: Arc<TrafficCounter>,
    /// `None` accepts any cluster.
    pub cluster_id_check: Option<ClusterIdCheck>,
}

impl EdgeCacheSource {
    /// Parses the URL of a cache. It must be on this host: the cache has no authentication, and its objects are
    /// programmed into the kernel.
    pub fn parse_url(url: &str) -> Option<Uri> {
        let uri: Uri = url.parse().ok()?;
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
        let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        (is_local && uri.scheme_str() == Some("http")).then_some(uri)
    }

    /// Lists all objects of the cache once, without watching them.
    pub async fn load(self) -> Result<Snapshot, LoadError> {
        let (sender, mut batches) = channel::<ChangeBatch>(UPDATE_QUEUE);
        let mut snapshot = Snapshot::default();
        let apply = async {
            while let Some(batch) = batches.recv().await {
                batch.changes.into_iter().for_each(|change| snapshot.apply(change));
                snapshot.refusals = batch.refusals.to_vec();
                if batch.synced {
                    return Ok(snapshot);
                }
                // After one list from the database, the list of the other kind may still follow.
                batch.error.filter(|_| !batch.from_cache).map_or(Ok(()), |error| Err(LoadError::List(error)))?;
            }
            Err(LoadError::List("the watch of the edge cache ended".into()))
        };
        tokio::select! {
            loaded = apply => loaded,
            Err(error) = self.watch(sender) => Err(LoadError::List(error.to_string())),
        }
    }

    /// Sends the objects and then every change, until the receiver is dropped.
    pub async fn watch(self, batches: Sender<ChangeBatch>) -> Result<(), EdgeCacheError> {
        let client = EdgeCacheClient::new(&self.server, self.traffic.clone(), self.cluster_id_check.clone())?;
        let (update_sender, updates) = channel(UPDATE_QUEUE);
        let (needed_sender, needed_nodes) = watch::channel(BTreeSet::from([Name::from(self.node.as_str())]));
        let (link_sender, link) = watch::channel(LinkState::default());
        let watcher = || EdgeWatcher {
            client: client.clone(),
            intervals: self.intervals,
            dns_names: self.service_filter.dns_names,
            link: link.clone(),
            updates: update_sender.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(watcher().run::<Service>());
        tasks.spawn(watcher().run::<Endpoints>());
        tasks.spawn(link::probe(client.clone(), self.intervals.probe, link_sender));
        tasks.spawn(read_nodes(client.clone(), self.intervals.node, needed_nodes, update_sender.clone()));
        let converter = Converter::new(&self.cluster, self.service_filter);
        let tracker = EdgeTracker::new(converter, self.node.as_str().into());
        tokio::select! {
            () = send_batches(tracker, updates, &needed_sender, &self.server, &batches) => {}
            () = batches.closed() => {}
        }
        tasks.shutdown().await;
        Ok(())
    }
}

/// Applies all updates that are available, and sends one batch for them.
async fn send_batches(
    mut tracker: EdgeTracker,
    mut updates: Receiver<EdgeUpdate>,
    needed_nodes: &watch::Sender<BTreeSet<Name>>,
    server: &Uri,
    batches: &Sender<ChangeBatch>,
) {
    let server = server.to_string().trim_end_matches('/').to_owned();
    while let Some(first) = updates.recv().await {
        tracker.apply(first);
        while let Ok(update) = updates.try_recv() {
            tracker.apply(update);
        }
        needed_nodes.send_if_modified(|before| {
            let now = tracker.needed_nodes();
            std::mem::replace(before, now) != *before
        });
        if let Some(batch) = tracker.next_batch(&server)
            && batches.send(batch).await.is_err()
        {
            return;
        }
    }
}
