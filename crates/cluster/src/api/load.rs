//! Lists all objects of an API server once, without watching them: for commands that plan and do not serve.

use super::access::AccessError;
use super::failover::FailoverClient;
use super::tracker::ObjectTracker;
use super::watcher::Selector;
use super::{ApiServerSource, PodScope, UPDATE_QUEUE};
use crate::convert::Converter;
use crate::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
use crate::snapshot::Snapshot;
use crate::wire::PolicyObject;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;
use tokio::sync::mpsc::channel;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Access(#[from] AccessError),
    /// With the server, the path and the reason.
    #[error("the objects cannot be listed: {0}")]
    List(String),
}

impl ApiServerSource {
    /// Fails if any kind cannot be listed: a part of the objects would give a plan that no node has.
    pub async fn load(self) -> Result<Snapshot, LoadError> {
        let access = self.access.clone();
        let client = FailoverClient::connect(access, self.idle_timeout, self.cluster_id_check.clone()).await?;
        let (update_sender, mut updates) = channel(UPDATE_QUEUE);
        let [services, slices, nodes, pods] = self.selectors();
        let any_listed = Arc::new(Notify::new());
        let watcher = |selector| self.watcher(&client, selector, &update_sender, &any_listed);
        let all = || watcher(Selector::default());
        let services = watcher(services).list_once::<Service>();
        let slices = watcher(slices).list_once::<EndpointSlice>();
        let nodes = watcher(nodes).list_once::<Node>();
        let has_pods = self.pods != PodScope::None;
        let pods = has_pods.then(|| watcher(pods).list_once::<Pod>());
        let redirects = has_pods.then(|| all().list_once::<PolicyObject<LocalRedirectPolicySpec>>());
        let balancing = all().list_once::<PolicyObject<BalancingPolicySpec>>();
        let namespaces = self.namespace_selector().map(|selector| watcher(selector).list_once::<Namespace>());
        let ranges = self.watch_service_cidrs.then(|| all().list_once::<ServiceCIDR>());
        let (pods, redirects) = (optional(pods), optional(redirects));
        let (namespaces, ranges) = (optional(namespaces), optional(ranges));
        drop(update_sender);
        let converter = Converter::new(&self.cluster, self.service_filter.clone());
        let mut tracker = ObjectTracker::new(converter, &self.node, &self.watched_kinds(), self.published_slices());
        let apply = async {
            while let Some(update) = updates.recv().await {
                tracker.apply(update, Instant::now());
            }
        };
        let lists = async { tokio::try_join!(services, slices, nodes, pods, redirects, balancing, namespaces, ranges) };
        let (listed, ()) = tokio::join!(lists, apply);
        listed.map_err(LoadError::List)?;
        let batch = tracker.next_batch(client.server()).unwrap_or_default();
        let mut snapshot = Snapshot { refusals: batch.refusals.to_vec(), ..Snapshot::default() };
        batch.changes.into_iter().for_each(|change| snapshot.apply(change));
        Ok(snapshot)
    }
}

async fn optional(list: Option<impl Future<Output = Result<(), String>>>) -> Result<(), String> {
    match list {
        Some(list) => list.await,
        None => Ok(()),
    }
}
