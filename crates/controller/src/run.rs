//! Starts the controller's tasks in one JoinSet. The first task to end ends the process with its error.

use crate::admission::AdmissionHandler;
use crate::cluster_state::{CLUSTER, ClusterState, SharedState};
use crate::health::{self, HealthContext};
use crate::leader_election::LeaderElection;
use crate::node_report::watch_reports;
use crate::observed_status::watch_statuses;
use crate::publisher::{SlicePublisher, list_node_slices};
use crate::report_cleanup::delete_orphaned_reports;
use crate::settings::ControllerSettings;
use crate::status_writer::StatusWriter;
use crate::webhook::{self, ServingCertificate, WebhookContext};
use crate::webhook_certificate::WebhookCertificate;
use crate::webhook_token::WebhookTokens;
use anyhow::Context;
use beeline_cluster::{
    ApiServerSource, ChangeBatch, Feedback, NodeScope, PodScope, ServiceFilter, SourceRole, WATCH_IDLE_TIMEOUT, connect,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

pub async fn run(settings: ControllerSettings) -> anyhow::Result<()> {
    settings.access.check().await?;
    let client = connect(settings.access.clone(), WATCH_IDLE_TIMEOUT).await?;
    let webhook_listener = webhook::bind(settings.webhook_address).await?;
    let health_listener = match settings.health_address {
        Some(address) => Some(health::bind(address).await?),
        None => None,
    };
    tracing::info!(identity = settings.identity, namespace = settings.namespace, "starting the beeline controller");
    let state = SharedState::new(&settings);
    let (certificate, changed) = (Arc::new(ServingCertificate::default()), Arc::new(Notify::new()));
    let tokens = Arc::new(WebhookTokens::default());
    let (leader_sender, leader) = watch::channel(false);
    let (stop_sender, stop) = watch::channel(false);
    let reports = settings.report_namespace.clone();
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    tasks.spawn(watch_cluster(settings.clone(), client.clone(), state.clone(), changed.clone()));
    tasks.spawn(watch_reports(client.clone(), reports.clone(), state.clone()));
    tasks.spawn(watch_statuses(client.clone(), state.clone()));
    tasks.spawn(delete_orphaned_reports(client.clone(), reports, state.clone(), leader.clone()));
    tasks.spawn(LeaderElection::new(client.clone(), &settings).run(leader_sender, stop.clone()));
    let maintained = WebhookCertificate::new(client.clone(), &settings, certificate.clone(), tokens.clone());
    tasks.spawn(maintained.run(leader.clone()));
    let publisher = SlicePublisher::new(client.clone(), &settings.namespace, state.clone());
    tasks.spawn(publisher.run(leader.clone(), changed));
    tasks.spawn(StatusWriter::new(client.clone(), state.clone()).run(leader.clone()));
    let webhook = WebhookContext { admission: AdmissionHandler::new(client, state.clone()), tokens };
    tasks.spawn(webhook::serve(webhook_listener, certificate.clone(), webhook, stop.clone(), settings.drain));
    if let Some(listener) = health_listener {
        let commit = settings.commit;
        tasks.spawn(health::serve(listener, HealthContext { state, certificate, leader, stop, commit }));
    }
    let ended = tokio::select! {
        first = tasks.join_next() => first.map_or(Ok(()), |joined| joined.context("a task of the controller panicked")?),
        signal = stop_signal() => signal,
    };
    // The Lease is released at once. The webhook continues until no requests are routed to this replica any more.
    stop_sender.send_replace(true);
    if ended.is_ok() {
        tracing::info!("stopping; published slices stay, and traffic is not affected");
        tokio::time::sleep(settings.drain + Duration::from_millis(200)).await;
    }
    tasks.shutdown().await;
    ended
}

async fn stop_signal() -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! { _ = term.recv() => {} _ = int.recv() => {} }
    Ok(())
}

/// Watches all objects of the cluster and applies them to the state. `changed` is notified after each batch.
async fn watch_cluster(
    settings: ControllerSettings,
    client: kube::Client,
    state: SharedState,
    changed: Arc<Notify>,
) -> anyhow::Result<()> {
    adopt_node_slices(&settings, &client, &state).await;
    let source = ApiServerSource {
        access: settings.access,
        cluster: CLUSTER.into(),
        node: settings.identity,
        nodes: NodeScope::Watch,
        pods: PodScope::All,
        service_filter: ServiceFilter::default(),
        clear_taint: false,
        idle_timeout: WATCH_IDLE_TIMEOUT,
        role: SourceRole::Controller,
        controller_namespace: settings.namespace,
        report_namespace: settings.report_namespace,
        reports: None,
        watch_service_cidrs: false,
        verify_cluster: false,
        post_events: true,
        cluster_id_check: None,
    };
    let (sender, mut batches) = mpsc::channel::<ChangeBatch>(16);
    // The controller programs nothing, and reports problems by the status of policies, not by Events.
    let (_programmed, programmed) = watch::channel(false);
    let (_refusals, refusals) = mpsc::channel(1);
    let feedback = Feedback::new(programmed, refusals);
    let apply = async {
        while let Some(batch) = batches.recv().await {
            state.with(|state| push_batch(state, batch));
            while state.with(ClusterState::advance) {
                // A pause lets other tasks get the lock, which is not fair.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            changed.notify_one();
        }
    };
    let (watched, ()) = tokio::join!(source.watch(sender, feedback), apply);
    watched?;
    anyhow::bail!("the watch of the cluster ended")
}

fn push_batch(state: &mut ClusterState, batch: ChangeBatch) {
    if state.error != batch.error {
        match &batch.error {
            Some(error) => tracing::warn!(error, "cannot read the cluster, the last known state stays in effect"),
            None => tracing::info!("the cluster can be read again"),
        }
    }
    state.push(batch.changes, batch.synced, batch.complete && batch.error.is_none());
    state.error = batch.error;
}

/// Best effort: if the published node slices cannot be read, nodes move to other slices.
async fn adopt_node_slices(settings: &ControllerSettings, client: &kube::Client, state: &SharedState) {
    match list_node_slices(client, &settings.namespace).await {
        Ok(slices) => state.with(|state| state.adopt_nodes(&slices)),
        Err(error) => tracing::warn!(%error, "cannot read the published node slices; nodes may move to other slices"),
    }
}
