//! Starts everything and waits: one JoinSet, the first task to end ends the process with its reason.

use crate::health::Health;
use crate::identity::{Identities, Who};
use crate::owner::{Message, own};
use crate::probe::{self, Probes};
use crate::settings::{Origin, Settings};
use crate::state::State;
use crate::{http, interface, socket};
use anyhow::Context;
use beeline_cluster::{Echo, Folder, Reports};
use beeline_datapath::event::Events;
use beeline_datapath::pin::PinDir;
use beeline_model::event::Event;
use beeline_model::name::LOCAL_CLUSTER;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;

/// Refusals that wait to be told on their objects.
const REFUSALS: usize = 256;

pub async fn run(mut settings: Settings) -> anyhow::Result<()> {
    if let Origin::Server(server) = &settings.origin {
        server.access.check().await?;
    }
    if !settings.fixed_addresses {
        settings.rules.own_addresses = interface::own_addresses().context("cannot read the interfaces' addresses")?;
    }
    let health = Arc::new(Health::new(settings.sync_period));
    // Another agent would hold the ports as well, and "in use" would say nothing of it.
    PinDir::check_free(&settings.pin_dir)?;
    let metrics = bind(settings.metrics, "--metrics-address").await?;
    let healthz = bind(settings.health, "--health-address").await?;
    let probes = Arc::new(Probes::default());
    let identities = Arc::new(Identities::new(&settings.cgroup));
    let (told, refused) = mpsc::channel(REFUSALS);
    let mut state = State::open(settings.clone(), probes.clone(), identities.clone(), told)?;
    if let (Origin::Server(server), Some(period)) = (&mut settings.origin, settings.report) {
        let (reports, what) = watch::channel(None);
        (state.reports, server.reports) = (Some(reports), Some(Reports { what, period }));
    }
    let listener = socket::bind(&settings.socket)?;
    let dropped = state.dropped_events.clone();
    let events = state.program.events(dropped.clone())?;
    tracing::info!(
        node = %settings.rules.node_name,
        cgroup = %settings.cgroup.display(),
        start = ?state.program.start,
        "beeline {} starts",
        env!("CARGO_PKG_VERSION")
    );
    let (owner, inbox) = std::sync::mpsc::channel();
    let (event_lines, _) = broadcast::channel(4096);
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let (programmed, is_programmed) = watch::channel(false);
    let echo = Echo { programmed: is_programmed, refused };
    let shared = health.clone();
    tasks.spawn_blocking(move || own(state, &inbox, &shared, &programmed).context("the agent's state"));
    let lines = event_lines.clone();
    tasks.spawn_blocking(move || pump(&events, &lines, &identities));
    warn_of_loop(&settings.origin);
    tasks.spawn(follow(settings.origin.clone(), owner.clone(), health.clone(), echo));
    if settings.probes {
        tasks.spawn(probe::serve(probes, health.clone()));
    }
    tasks.spawn(socket::serve(listener, owner.clone(), event_lines, dropped));
    if let Some(listener) = metrics {
        tasks.spawn(http::serve_metrics(listener, owner.clone()));
    }
    if let Some(listener) = healthz {
        tasks.spawn(http::serve_health(listener, health));
    }
    tasks.spawn(stop_signal());
    let first = tasks.join_next().await;
    // The owner ends between two changes, never inside one; the kernel goes on by itself.
    let _ = owner.send(Message::Stop);
    let _ = std::fs::remove_file(&settings.socket);
    STOPPING.store(true, std::sync::atomic::Ordering::Relaxed);
    tasks.shutdown().await;
    first.map_or(Ok(()), |joined| joined.context("a task of the agent panicked")?)
}

static STOPPING: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

async fn bind(at: Option<std::net::SocketAddr>, option: &str) -> anyhow::Result<Option<tokio::net::TcpListener>> {
    match at {
        Some(at) => Ok(Some(http::bind(at, option).await?)),
        None => Ok(None),
    }
}

async fn stop_signal() -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! { _ = term.recv() => {} _ = int.recv() => {} }
    tracing::info!("stopping; the kernel goes on serving from its tables (`beeline cleanup` detaches)");
    Ok(())
}

/// Who provides an address should not need it to begin.
fn warn_of_loop(origin: &Origin) {
    if let Origin::Server(server) = origin
        && server.access.is_service()
    {
        tracing::warn!(
            "the API server is reached at its service address, which this agent provides itself: give --api-server where no kube-proxy runs"
        );
    }
}

async fn follow(origin: Origin, owner: Sender<Message>, health: Arc<Health>, echo: Echo) -> anyhow::Result<()> {
    let (tx, mut rx) = mpsc::channel(16);
    let forward = async {
        while let Some(batch) = rx.recv().await {
            // From here on somebody waits: an owner that hangs is found by it.
            health.queued();
            owner.send(Message::Facts(batch)).context("the agent is stopping")?;
        }
        anyhow::Ok(())
    };
    match origin {
        Origin::Folder { path, claim } => {
            let watching = Folder::new(path, LOCAL_CLUSTER, claim).watch(tx);
            let ((), forwarded) = tokio::join!(watching, forward);
            forwarded?;
        }
        Origin::Server(server) => {
            let (watched, forwarded) = tokio::join!(server.watch(tx, echo), forward);
            watched?;
            forwarded?;
        }
    }
    anyhow::bail!("the source of the objects ended")
}

/// Reads the event ring; whoever monitors gets a line each.
fn pump(events: &Events, lines: &broadcast::Sender<String>, identities: &Identities) -> anyhow::Result<()> {
    while !STOPPING.load(std::sync::atomic::Ordering::Relaxed) {
        for event in events.poll(Duration::from_millis(200)) {
            if lines.receiver_count() > 0 {
                let _ = lines.send(line(event, identities));
            }
        }
    }
    Ok(())
}

/// An event and who it was.
#[derive(serde::Serialize)]
struct Told {
    #[serde(flatten)]
    event: Event,
    #[serde(flatten)]
    who: Option<Who>,
}

fn line(event: Event, identities: &Identities) -> String {
    let who = identities.who(event.cgroup);
    serde_json::to_string(&Told { event, who }).unwrap_or_default()
}
