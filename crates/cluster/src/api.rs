//! A Kubernetes API server as a source of objects. One watcher per kind lists and watches its objects, and one task
//! owns the tracker and turns the updates of the watchers into batches. Objects are trimmed while they are
//! deserialized, converted page by page, and not kept.

mod access;
mod cluster_id;
mod connector;
mod event;
mod event_limiter;
mod failover;
mod load;
mod missing_kind;
mod published_nodes;
mod report;
mod static_pod;
mod taint;
mod tracker;
mod trigger;
mod update;
mod watcher;

use crate::convert::published::{MANAGED_BY, MANAGER};
use crate::convert::{Converter, HEADLESS, PROXY_NAME, RESOLVE, ServiceFilter};
use crate::folder::ChangeBatch;
use crate::kind::ResourceKind;
use crate::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
use crate::wire::PolicyObject;
pub use access::{Access, AccessError};
use beeline_model::refusal::Refusal;
pub use cluster_id::ClusterIdCheck;
#[cfg(feature = "outside")]
pub(crate) use cluster_id::ClusterIdError;
use event::{RefusalEvent, post_events, resolve_plan_refusals};
use failover::{FailoverClient, PendingClient};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
pub use load::LoadError;
pub use report::{REPORT_LABEL, ReportSettings, read_report, report_name};
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use taint::STARTUP_TAINT;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use tracker::{ObjectTracker, PublishedSlices};
pub(crate) use trigger::ANNOTATION as TRIGGER_TIME_ANNOTATION;
use update::WatchUpdate;
use watcher::{KindWatcher, Selector};

/// The default of `ApiServerSource::idle_timeout`.
pub const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Pages and events between the watchers and the tracker. A watcher that is faster than the tracker waits.
const UPDATE_QUEUE: usize = 64;
/// Events that wait to be posted. Further refusals are in the log only.
const EVENT_QUEUE: usize = 256;

/// Which Nodes are watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeScope {
    /// The node of this agent only. With thousands of nodes, watching all of them would overload the API server.
    #[default]
    Own,
    /// All Nodes. NodePorts of other nodes are resolved at the source.
    Watch,
    /// The node of this agent, and the addresses of the other nodes from the slices that the controller publishes.
    Controller,
}

/// The program that reads the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceRole {
    #[default]
    Agent,
    /// The controller reads only the EndpointSlices that it publishes itself.
    Controller,
}

/// Which Pods are watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodScope {
    /// The pods of the node of this agent.
    #[default]
    Own,
    /// All pods and namespaces. Without a controller, the agent computes the backends of policies itself. For small
    /// clusters.
    All,
    /// No pods and no LocalRedirectPolicies: no pod of the cluster runs on this host.
    None,
}

#[derive(Clone, Debug)]
pub struct ApiServerSource {
    pub access: Access,
    /// The name of the cluster in the configuration.
    pub cluster: String,
    /// The node of this agent. Empty on a host outside the cluster.
    pub node: String,
    pub nodes: NodeScope,
    pub pods: PodScope,
    pub service_filter: ServiceFilter,
    /// Remove the startup taint from the node once everything is programmed.
    pub clear_taint: bool,
    /// A watch without events for this time is opened again.
    pub idle_timeout: Duration,
    pub role: SourceRole,
    /// The namespace in which the controller publishes Nodes.
    pub controller_namespace: String,
    /// The namespace of the agents' reports. It must contain nothing else, because agents may write any Lease in it.
    pub report_namespace: String,
    pub reports: Option<ReportSettings>,
    /// Watch ServiceCIDRs. No externalIP may lie inside the service ranges, and with several clusters it must be known
    /// which cluster an address belongs to.
    pub watch_service_cidrs: bool,
    /// Whether another cluster than before may not answer. A Node accepts whichever cluster it is in.
    pub verify_cluster: bool,
    /// Post refusals as Events on the objects.
    pub post_events: bool,
    /// `None` accepts any cluster.
    pub cluster_id_check: Option<ClusterIdCheck>,
}

/// A kube client with failover to the next server and with credentials that are read again after a failure.
pub async fn connect(access: Access, timeout: Duration) -> Result<kube::Client, AccessError> {
    Ok(FailoverClient::connect(access, timeout, None).await?.kube_client())
}

/// What the receiver of the batches reports back. When a source is restarted, the new watch uses the same feedback.
#[derive(Clone, Debug)]
pub struct Feedback {
    /// Everything has been programmed into the kernel.
    pub programmed: watch::Receiver<bool>,
    /// Refusals of the planner, such as conflicts between objects that are valid each by itself.
    pub refused: Arc<Mutex<Receiver<Refusal>>>,
}

impl Feedback {
    pub fn new(programmed: watch::Receiver<bool>, refused: Receiver<Refusal>) -> Feedback {
        Feedback { programmed, refused: Arc::new(Mutex::new(refused)) }
    }
}

/// Feedback that never reports anything.
impl Default for Feedback {
    fn default() -> Feedback {
        Feedback::new(watch::channel(false).1, channel(1).1)
    }
}

impl ApiServerSource {
    /// Sends the objects and then every change, until the receiver is dropped. Fails only if the credentials cannot be
    /// read at all.
    pub async fn watch(self, batches: Sender<ChangeBatch>, feedback: Feedback) -> Result<(), AccessError> {
        let Some(client) = self.connect(&batches).await? else { return Ok(()) };
        let (update_sender, updates) = channel(UPDATE_QUEUE);
        let (event_sender, events) = channel(EVENT_QUEUE);
        let (taint_sender, is_tainted) = watch::channel(false);
        let mut tasks = JoinSet::new();
        self.spawn_watchers(&client, update_sender, &mut tasks);
        if self.post_events {
            tasks.spawn(post_events(client.kube_client(), self.node.clone(), events));
            let (cluster, refused) = (self.cluster.clone(), feedback.refused);
            tasks.spawn(resolve_plan_refusals(client.kube_client(), cluster, refused, event_sender.clone()));
        }
        if self.clear_taint {
            let (node, programmed) = (self.node.clone(), feedback.programmed);
            tasks.spawn(taint::remove_startup_taint(client.kube_client(), node, is_tainted, programmed));
        }
        if let Some(reports) = self.reports.clone() {
            let (namespace, node) = (self.report_namespace.clone(), self.node.clone());
            tasks.spawn(report::write_reports(client.kube_client(), namespace, node, reports));
        }
        let (watched, published) = (self.watched_kinds(), self.published_slices());
        let converter = Converter::new(&self.cluster, self.service_filter);
        let tracker = ObjectTracker::new(converter, &self.node, &watched, published);
        tokio::select! {
            () = send_batches(tracker, updates, &client, &event_sender, &taint_sender, &batches) => {}
            () = batches.closed() => {}
        }
        tasks.shutdown().await;
        Ok(())
    }

    /// Credentials may take long, which is reported. `None` if the receiver was dropped.
    async fn connect(&self, batches: &Sender<ChangeBatch>) -> Result<Option<Arc<FailoverClient>>, AccessError> {
        let check = self.cluster_id_check.clone();
        let mut pending = PendingClient::start(self.access.clone(), self.idle_timeout, check);
        loop {
            let slow = match pending.wait().await {
                Err(slow @ AccessError::Slow { .. }) => slow,
                connected => return connected.map(Some),
            };
            let batch = ChangeBatch { error: Some(slow.to_string()), ..ChangeBatch::default() };
            if batches.send(batch).await.is_err() {
                return Ok(None);
            }
        }
    }

    fn spawn_watchers(&self, client: &Arc<FailoverClient>, updates: Sender<WatchUpdate>, tasks: &mut JoinSet<()>) {
        let [services, slices, nodes, pods] = self.selectors();
        let any_listed = Arc::new(Notify::new());
        let watcher = |selector| self.watcher(client, selector, &updates, &any_listed);
        let all = || watcher(Selector::default());
        tasks.spawn(watcher(services).run::<Service>());
        tasks.spawn(watcher(slices).run::<EndpointSlice>());
        tasks.spawn(watcher(nodes).run::<Node>());
        if self.pods != PodScope::None {
            tasks.spawn(watcher(pods).run::<Pod>());
            tasks.spawn(all().run::<PolicyObject<LocalRedirectPolicySpec>>());
        }
        tasks.spawn(all().run::<PolicyObject<BalancingPolicySpec>>());
        if let Some(namespaces) = self.namespace_selector() {
            tasks.spawn(watcher(namespaces).run::<Namespace>());
        }
        if self.watch_service_cidrs {
            tasks.spawn(all().run::<ServiceCIDR>());
        }
    }

    fn watcher(
        &self,
        client: &Arc<FailoverClient>,
        selector: Selector,
        updates: &Sender<WatchUpdate>,
        any_listed: &Arc<Notify>,
    ) -> KindWatcher {
        KindWatcher {
            client: client.clone(),
            selector,
            idle_timeout: self.idle_timeout,
            updates: updates.clone(),
            any_listed: any_listed.clone(),
            cluster_generation: 0,
        }
    }

    /// An agent that watches all pods computes the backends of policies itself, and ignores published ones.
    fn published_slices(&self) -> PublishedSlices {
        PublishedSlices {
            policies: self.pods != PodScope::All || self.role == SourceRole::Controller,
            nodes: self.nodes == NodeScope::Controller,
            namespace: self.controller_namespace.clone(),
        }
    }

    fn watched_kinds(&self) -> Vec<ResourceKind> {
        let mut kinds =
            vec![ResourceKind::Service, ResourceKind::EndpointSlice, ResourceKind::Node, ResourceKind::BalancingPolicy];
        if self.pods != PodScope::None {
            kinds.extend([ResourceKind::Pod, ResourceKind::LocalRedirectPolicy]);
        }
        kinds.extend(self.watch_service_cidrs.then_some(ResourceKind::ServiceCidr));
        kinds.extend(self.namespace_selector().map(|_| ResourceKind::Namespace));
        kinds
    }

    /// The selectors of Services, slices, Nodes and Pods.
    fn selectors(&self) -> [Selector; 4] {
        let own_node = (self.nodes != NodeScope::Watch).then(|| format!("metadata.name={}", self.node));
        let own_pods = (self.pods == PodScope::Own).then(|| format!("spec.nodeName={}", self.node));
        let [services, slices] = self.service_selectors();
        [services, slices, Selector { labels: None, fields: own_node }, Selector { labels: None, fields: own_pods }]
    }

    /// Policies select by any label of a namespace. An agent that evaluates no policy needs only the label by which a
    /// namespace excludes its pods.
    fn namespace_selector(&self) -> Option<Selector> {
        match self.pods {
            PodScope::All => Some(Selector::default()),
            PodScope::Own => Some(Selector { labels: Some(RESOLVE.into()), fields: None }),
            PodScope::None => None,
        }
    }

    fn service_selectors(&self) -> [Selector; 2] {
        if self.service_filter.dns_names {
            // DNS needs all Services, also those that this host does not proxy.
            return [Selector::default(), Selector::default()];
        }
        let proxy_name = match &self.service_filter.proxy_name {
            None => format!("!{PROXY_NAME},!{HEADLESS}"),
            Some(name) => format!("{PROXY_NAME}={name},!{HEADLESS}"),
        };
        let slices = match self.role {
            SourceRole::Agent => format!("!{HEADLESS}"),
            SourceRole::Controller => format!("{MANAGED_BY}={MANAGER}"),
        };
        // Servers before 1.31 do not know this field. Headless Services are then skipped by the converter.
        let services = Selector { labels: Some(proxy_name), fields: Some("spec.clusterIP!=None".into()) };
        [services, Selector { labels: Some(slices), fields: None }]
    }
}

/// Applies all updates that are available, and sends one batch for them.
async fn send_batches(
    mut tracker: ObjectTracker,
    mut updates: Receiver<WatchUpdate>,
    client: &FailoverClient,
    events: &Sender<RefusalEvent>,
    is_tainted: &watch::Sender<bool>,
    batches: &Sender<ChangeBatch>,
) {
    while let Some(first) = updates.recv().await {
        tracker.apply(first, Instant::now());
        while let Ok(update) = updates.try_recv() {
            tracker.apply(update, Instant::now());
        }
        for event in tracker.events.drain(..) {
            // If the queue is full, the refusal is in the log only.
            let _ = events.try_send(event);
        }
        is_tainted.send_if_modified(|before| std::mem::replace(before, tracker.is_tainted) != tracker.is_tainted);
        if let Some(batch) = tracker.next_batch(client.server()) {
            let batch = ChangeBatch { api_servers: client.addresses(), ..batch };
            if batches.send(batch).await.is_err() {
                return;
            }
        }
    }
}
