//! Publishes the backends of policies and the nodes' addresses as EndpointSlices: writes the difference between the wanted
//! and the existing slices. Only the leader writes. A change of one pod is one write.

use crate::cluster_state::{CLUSTER, ClusterState, SharedState, SliceWrite};
use crate::status::resource;
use crate::write_queue::Priority;
use beeline_cluster::{
    Converter, MANAGED_BY, MANAGER, NODES_LABEL, ServiceFilter, node_slice_object, policy_slice_object,
};
use beeline_model::Name;
use beeline_model::object::SliceName;
use beeline_model::policy::{PolicyKind, PolicyName, PolicySlice};
use beeline_model::publish::NodeSlice;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// Limit of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 8;
/// Limit of slice writes per round, after which the node slices are checked again.
const MAX_WRITES_PER_ROUND: usize = 256;
const INTERVAL: Duration = Duration::from_millis(250);
/// Pause after a failed write of a node slice.
const NODE_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Longest back-off after an error of the object itself, such as an exceeded quota or a name that is taken.
const MAX_OBJECT_BACKOFF: Duration = Duration::from_secs(60);
/// Longest back-off after other errors, such as an API server that does not answer.
const MAX_SERVER_BACKOFF: Duration = Duration::from_secs(5);
/// Node slices are not watched. They are listed at this interval, in case something else has changed them.
const NODE_LIST_INTERVAL: Duration = Duration::from_secs(300);

/// The published node slices.
pub async fn list_node_slices(client: &Client, namespace: &str) -> Result<Vec<NodeSlice>, kube::Error> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let selector = ListParams::default().labels(&format!("{NODES_LABEL},{MANAGED_BY}={MANAGER}"));
    let mut converter = Converter::new(CLUSTER, ServiceFilter::default());
    let found = api.list(&selector).await?;
    Ok(found.items.iter().filter_map(|slice| converter.node_slice(slice, namespace).result.ok()).collect())
}

pub struct SlicePublisher {
    client: Client,
    namespace: String,
    state: SharedState,
    /// The existing node slices.
    nodes: BTreeMap<Name, NodeSlice>,
    nodes_listed_at: Option<Instant>,
    /// Node slices are not written before this time.
    nodes_paused_until: Option<Instant>,
}

impl SlicePublisher {
    pub fn new(client: Client, namespace: &str, state: SharedState) -> SlicePublisher {
        let (namespace, nodes) = (namespace.into(), BTreeMap::new());
        SlicePublisher { client, namespace, state, nodes, nodes_listed_at: None, nodes_paused_until: None }
    }

    pub async fn run(mut self, mut leader: watch::Receiver<bool>, changed: Arc<Notify>) -> anyhow::Result<()> {
        loop {
            leader.wait_for(|leading| *leading).await?;
            self.nodes_listed_at = None;
            self.state.with(ClusterState::start_leading);
            while *leader.borrow() {
                if self.state.with(|state| state.is_current()) && self.round(&leader).await {
                    continue;
                }
                // A notification that arrives between two waits is stored, so no change is missed.
                let _ = tokio::time::timeout(INTERVAL, changed.notified()).await;
            }
            self.state.with(ClusterState::stop_leading);
        }
    }

    /// Returns whether there is more to write. Node slices come first, because every node needs them.
    async fn round(&mut self, leader: &watch::Receiver<bool>) -> bool {
        if self.nodes_paused_until.is_none_or(|until| until <= Instant::now()) {
            self.nodes_paused_until = self.publish_nodes().await.err().map(|error| {
                tracing::warn!(%error, "cannot publish the nodes' addresses, retrying");
                Instant::now() + NODE_RETRY_PAUSE
            });
        }
        let more_writes = self.write_slices(Priority::High, leader).await;
        let more_deletions = self.write_slices(Priority::Low, leader).await;
        more_writes || more_deletions
    }

    /// Writes the slices of a priority concurrently. Returns whether there are more.
    async fn write_slices(&self, priority: Priority, leader: &watch::Receiver<bool>) -> bool {
        let (mut running, mut written) = (FuturesUnordered::new(), 0);
        let more = loop {
            if written >= MAX_WRITES_PER_ROUND || !*leader.borrow() {
                break true;
            }
            match self.state.with(|state| state.next_slice(priority, Instant::now())) {
                SliceWrite::Idle => break false,
                SliceWrite::Unchanged => tokio::task::yield_now().await,
                SliceWrite::Write(name, slice) => {
                    running.push(self.write_slice(name, slice.map(|slice| *slice), leader));
                    written += 1;
                }
            }
            if running.len() >= MAX_CONCURRENT_WRITES {
                running.next().await;
            }
        };
        while running.next().await.is_some() {}
        more
    }

    /// Writes a slice, or deletes it if `slice` is `None`.
    async fn write_slice(&self, name: SliceName, slice: Option<PolicySlice>, leader: &watch::Receiver<bool>) {
        let is_write = slice.is_some();
        if !*leader.borrow() {
            return self.state.with(|state| state.requeue_slice(name, is_write));
        }
        let written = match &slice {
            Some(slice) => self.apply(&slice.name.namespace, &policy_slice_object(slice)).await.map(|()| true),
            None => self.delete(&name).await,
        };
        match written {
            Ok(false) => self.state.with(|state| state.retry_slice(name, is_write, MAX_SERVER_BACKOFF)),
            Ok(true) => self.state.with(|state| state.record_slice_write(name, slice)),
            Err(error) if is_namespace_ending(&error) => {
                tracing::debug!(?name, %error, "skipped an EndpointSlice in a namespace that is being deleted");
                self.state.with(|state| state.drop_slice(&name));
            }
            Err(error) => {
                let (namespace, slice) = (&name.namespace, &name.name);
                tracing::warn!(%namespace, %slice, %error, "cannot write an EndpointSlice, retrying");
                self.state.with(|state| state.retry_slice(name, is_write, max_backoff(&error)));
            }
        }
    }

    async fn apply(&self, namespace: &str, object: &EndpointSlice) -> Result<(), kube::Error> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams::apply("beeline-controller").force();
        let name = object.metadata.name.as_deref().unwrap_or_default();
        api.patch(name, &params, &Patch::Apply(object)).await.map(drop)
    }

    /// `Ok(false)` if the slice's policy exists after all. An unknown policy is looked up first, so that incomplete
    /// knowledge never deletes backends.
    async fn delete(&self, name: &SliceName) -> Result<bool, kube::Error> {
        if let Some((policy, uid)) = self.state.with(|state| state.unknown_owner(name))
            && self.policy_exists(&policy, &uid).await?
        {
            return Ok(false);
        }
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &name.namespace);
        ignore_not_found(api.delete(&name.name, &DeleteParams::default()).await.map(drop)).map(|()| true)
    }

    async fn policy_exists(&self, policy: &PolicyName, uid: &str) -> Result<bool, kube::Error> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &policy.namespace, &resource(PolicyKind::Balancing));
        match api.get(&policy.name).await {
            Ok(found) => Ok(found.metadata.uid.as_deref() == Some(uid)),
            // An API server that does not serve the kind (yet) answers 404 too, but without the object's name.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                Ok(status.details.as_ref().is_none_or(|details| details.name != *policy.name))
            }
            Err(error) => Err(error),
        }
    }

    async fn publish_nodes(&mut self) -> Result<(), kube::Error> {
        if self.nodes_listed_at.is_none_or(|at| at.elapsed() > NODE_LIST_INTERVAL) {
            let found = list_node_slices(&self.client, &self.namespace).await?;
            self.nodes = found.into_iter().map(|slice| (slice.name.clone(), slice)).collect();
            self.nodes_listed_at = Some(Instant::now());
            let names: Vec<Name> = self.nodes.keys().cloned().collect();
            self.state.with(|state| names.into_iter().for_each(|name| state.mark_node_slice_dirty(name)));
        }
        for name in self.state.with(ClusterState::take_dirty_nodes) {
            if let Err(error) = self.publish_node_slice(&name).await {
                self.state.with(|state| state.mark_node_slice_dirty(name));
                return Err(error);
            }
        }
        Ok(())
    }

    async fn publish_node_slice(&mut self, name: &Name) -> Result<(), kube::Error> {
        let wanted = self.state.with(|state| state.node_slice(name));
        if wanted.as_ref() == self.nodes.get(name) {
            return Ok(());
        }
        match wanted {
            Some(slice) => {
                self.apply(&self.namespace, &node_slice_object(&slice, &self.namespace)).await?;
                self.nodes.insert(name.clone(), slice);
            }
            None => {
                let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
                ignore_not_found(api.delete(name, &DeleteParams::default()).await.map(drop))?;
                self.nodes.remove(name);
            }
        }
        Ok(())
    }
}

/// A deletion of an object that does not exist counts as success.
pub fn ignore_not_found(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

/// Nothing can be created in a namespace that is being deleted.
fn is_namespace_ending(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 404 || status.code == 403 && status.message.contains("being terminated"))
}

/// The longest wait before a failed write is retried.
pub fn max_backoff(error: &kube::Error) -> Duration {
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => MAX_OBJECT_BACKOFF,
        _ => MAX_SERVER_BACKOFF,
    }
}
