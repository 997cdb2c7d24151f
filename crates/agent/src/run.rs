//! Starts everything and waits: one JoinSet, the first task to end ends the process with its reason.

use crate::follow::{self, Way};
use crate::health::Health;
use crate::identity::{Identities, Who};
use crate::known::Known;
use crate::meter::Meters;
use crate::names;
use crate::owner::{Message, own};
use crate::probe::{self, Probes};
use crate::reach::{self, Pace};
use crate::settings::{Origin, Settings};
use crate::snapshot::Archive;
use crate::state::State;
use crate::{http, interface, socket};
use anyhow::Context;
use beeline_cluster::{Access, Echo, Reports};
use beeline_datapath::event::Events;
use beeline_datapath::pin::PinDir;
use beeline_model::event::Event;
use beeline_model::report::Report;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;

/// Refusals that wait to be told on their objects.
const REFUSALS: usize = 256;

pub async fn run(mut settings: Settings) -> anyhow::Result<()> {
    check(&settings).await?;
    if !settings.fixed_addresses {
        settings.rules.own_addresses = interface::own_addresses().context("cannot read the interfaces' addresses")?;
    }
    let health = Arc::new(Health::new(settings.sync_period));
    // Another agent would hold the ports as well, and "in use" would say nothing of it.
    PinDir::check_free(&settings.pin_dir)?;
    let metrics = bind(settings.metrics, "--metrics-address").await?;
    let healthz = bind(settings.health, "--health-address").await?;
    // With a list of clusters somebody relies on this host after a boot: no interface that comes later must keep it down.
    let desk = names::open(settings.dns.as_ref(), &settings.listing.clusters, settings.reload.is_some()).await?;
    let probes = Arc::new(Probes::default());
    let identities = Arc::new(Identities::new(&settings.cgroup));
    let (told, refused) = mpsc::channel(REFUSALS);
    let known = Arc::new(Known::new(&settings.state_dir));
    let mut state = State::open(settings.clone(), probes.clone(), identities.clone(), known.clone(), told)?;
    let tokens = state.tokens.clone();
    let (told_reports, reports) = settings.report.map(report).unzip();
    state.reports = told_reports;
    let archive = settings.snapshot.clone().map(|keeping| Arc::new(Archive::new(keeping, known.clone())));
    let meters = Arc::new(Meters::default());
    (state.archive, state.meters) = (archive.clone(), meters.clone());
    let asked = state.asked.subscribe();
    if let Some(desk) = &desk {
        state.answer_names(desk.names.clone());
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
    let echo = Echo::new(is_programmed, refused);
    let shared = health.clone();
    tasks.spawn_blocking(move || own(state, &inbox, &shared, &programmed).context("the agent's state"));
    let lines = event_lines.clone();
    tasks.spawn_blocking(move || pump(&events, &lines, &identities));
    settings.listing.clusters.iter().for_each(|cluster| warn_of_loop(&cluster.origin));
    let way = Way {
        owner: owner.clone(),
        health: health.clone(),
        known,
        tokens,
        renew_after: settings.renew_after,
        archive: archive.clone(),
        meters,
        echo,
        reports,
    };
    tasks.spawn(follow::keep(settings.listing.clone(), settings.reload.clone(), way));
    if settings.probes {
        tasks.spawn(probe::serve(probes, health.clone()));
    }
    let pace = Pace { interval: settings.probe_interval, per_second: reach::PER_SECOND };
    let hears = owner.clone();
    tasks.spawn(reach::run(pace, asked, move |news| hears.send(Message::Reach(news)).is_ok()));
    if let Some(archive) = archive.clone() {
        tasks.spawn(archive.keep());
    }
    tasks.spawn(socket::serve(listener, owner.clone(), event_lines, dropped));
    if let Some(listener) = metrics {
        tasks.spawn(http::serve_metrics(listener, owner.clone()));
    }
    if let Some(listener) = healthz {
        tasks.spawn(http::serve_health(listener, health));
    }
    if let Some(desk) = desk {
        tasks.spawn(desk.serve());
    }
    tasks.spawn(stop_signal());
    let first = tasks.join_next().await;
    // The owner ends between two changes, never inside one; the kernel goes on by itself.
    let _ = owner.send(Message::Stop);
    let _ = std::fs::remove_file(&settings.socket);
    STOPPING.store(true, std::sync::atomic::Ordering::Relaxed);
    tasks.shutdown().await;
    archive.iter().for_each(|archive| archive.flush());
    // Those that nobody is in.
    crate::view::remove_rooms(&settings.cgroup);
    first.map_or(Ok(()), |joined| joined.context("a task of the agent panicked")?)
}

/// A typing error in an option ends the agent at once. In a list of clusters it is one cluster's trouble.
async fn check(settings: &Settings) -> anyhow::Result<()> {
    for cluster in settings.listing.clusters.iter().filter(|_| settings.reload.is_none()) {
        if let Origin::Server(server) = &cluster.origin {
            let checked = server.access.check().await;
            match server.access {
                Access::Kubeconfig { .. } => checked.context("--kubeconfig")?,
                Access::InCluster { .. } => checked?,
            }
        }
    }
    Ok(())
}

/// Only a Node reports, and only to its own cluster, which is the first.
fn report(period: Duration) -> (watch::Sender<Option<Report>>, Reports) {
    let (told, what) = watch::channel(None);
    (told, Reports { what, period })
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
