//! Starts everything and waits: one JoinSet, the first task to end ends the process with its reason.

use crate::admission::Admission;
use crate::health::{self, Health};
use crate::keep::Keep;
use crate::lease::Election;
use crate::publish::{Publish, list_nodes};
use crate::settings::Settings;
use crate::status::Writer;
use crate::sweep::sweep;
use crate::webhook::{self, Shown};
use crate::world::{CLUSTER, World};
use crate::{report, said};
use anyhow::Context;
use beeline_cluster::{Batch, Claim, Echo, Nodes, PATIENCE, Pods, Role, Server, connect};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

pub async fn run(settings: Settings) -> anyhow::Result<()> {
    settings.access.check().await?;
    let client = connect(settings.access.clone(), PATIENCE).await?;
    let hooks = webhook::bind(settings.webhook).await?;
    let health = match settings.health {
        Some(at) => Some(health::bind(at).await?),
        None => None,
    };
    tracing::info!(identity = settings.identity, namespace = settings.namespace, "beeline controller starts");
    let world = Arc::new(Mutex::new(World::new(&settings)));
    let (shown, changed) = (Arc::new(Shown::default()), Arc::new(Notify::new()));
    let (leads, leader) = watch::channel(false);
    let (stop, stopping) = watch::channel(false);
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    tasks.spawn(follow(settings.clone(), client.clone(), world.clone(), changed.clone()));
    tasks.spawn(report::follow(client.clone(), settings.report_namespace.clone(), world.clone()));
    tasks.spawn(said::follow(client.clone(), world.clone()));
    tasks.spawn(sweep(client.clone(), settings.report_namespace.clone(), world.clone(), leader.clone()));
    tasks.spawn(Election::new(client.clone(), &settings).run(leads, stopping.clone()));
    tasks.spawn(Keep::new(client.clone(), &settings, shown.clone()).run(leader.clone()));
    tasks.spawn(Publish::new(client.clone(), &settings.namespace, world.clone()).run(leader.clone(), changed));
    tasks.spawn(Writer::new(client.clone(), world.clone()).run(leader.clone()));
    let admission = Admission::new(client, world.clone());
    tasks.spawn(webhook::serve(hooks, shown.clone(), admission, stopping.clone(), settings.drain));
    if let Some(listener) = health {
        tasks.spawn(health::serve(listener, Health { world, shown, leader, stop: stopping }));
    }
    let ended = tokio::select! {
        first = tasks.join_next() => first.map_or(Ok(()), |joined| joined.context("a task of the controller panicked")?),
        signal = stop_signal() => signal,
    };
    // The Lease is given back at once; the webhook goes on until nobody is sent here any more.
    stop.send_replace(true);
    if ended.is_ok() {
        tracing::info!("stopping; what is published stays, and traffic goes on");
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

/// All that the API server says of the whole cluster, into the world.
async fn follow(
    settings: Settings,
    client: kube::Client,
    world: Arc<Mutex<World>>,
    changed: Arc<Notify>,
) -> anyhow::Result<()> {
    adopt(&settings, &client, &world).await;
    let server = Server {
        access: settings.access,
        cluster: CLUSTER.into(),
        node: settings.identity,
        nodes: Nodes::Watch,
        pods: Pods::All,
        claim: Claim::default(),
        clear_taint: false,
        patience: PATIENCE,
        role: Role::Controller,
        controller_namespace: settings.namespace,
        report_namespace: settings.report_namespace,
        reports: None,
        ranges: false,
        notices: true,
        passport: None,
    };
    let (batches, mut heard) = mpsc::channel::<Batch>(16);
    // It programs nothing, and refuses by status, not by Events.
    let (_programmed, programmed) = watch::channel(false);
    let (_refusals, refused) = mpsc::channel(1);
    let echo = Echo::new(programmed, refused);
    let take = async {
        while let Some(batch) = heard.recv().await {
            take_batch(&world, batch);
            while advance(&world) {
                // A lock that is let go of and taken again at once may never be anybody else's.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            changed.notify_one();
        }
    };
    let (watched, ()) = tokio::join!(server.watch(batches, echo), take);
    watched?;
    anyhow::bail!("the watch of the cluster ended")
}

fn take_batch(world: &Mutex<World>, batch: Batch) {
    let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
    if world.error != batch.error {
        match &batch.error {
            Some(error) => tracing::warn!("the cluster cannot be read, what was known before holds: {error}"),
            None => tracing::info!("the cluster can be read"),
        }
    }
    world.take(batch.facts, batch.synced, batch.whole && batch.error.is_none());
    world.error = batch.error;
}

fn advance(world: &Mutex<World>) -> bool {
    world.lock().unwrap_or_else(PoisonError::into_inner).advance()
}

/// Best effort: without it nodes only change their slices.
async fn adopt(settings: &Settings, client: &kube::Client, world: &Mutex<World>) {
    match list_nodes(client, &settings.namespace).await {
        Ok(slices) => world.lock().unwrap_or_else(PoisonError::into_inner).adopt_nodes(&slices),
        Err(error) => tracing::warn!("what is published of nodes cannot be read: {error}"),
    }
}
