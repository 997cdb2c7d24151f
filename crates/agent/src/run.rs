//! Starts all tasks of the agent. When the first task ends, the process ends with that task's result.

use crate::agent::{Agent, SharedStores};
use crate::cluster_id::ClusterIdStore;
use crate::descriptor::DescriptorBudget;
use crate::dns::DnsServer;
use crate::health::Health;
use crate::main_loop::Message;
use crate::packet_path::{PacketPath, udp_flows};
use crate::reach::{self, ProbeRate};
use crate::settings::{AgentSettings, SourceSettings};
use crate::snapshot::SnapshotStore;
use crate::socket::{self, SocketContext};
use crate::supervisor::{self, SourceContext};
use crate::{event_task, health_check, http, interface, main_loop, redirect_health};
use anyhow::Context;
use beeline_cluster::{Access, Feedback, ReportSettings};
use beeline_datapath::namespace_opener::NamespaceOpener;
use beeline_datapath::pin::PinDir;
use beeline_model::rollout::RolloutReport;
use std::net::SocketAddr;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;

/// The capacity of the channel of refusals to be posted on objects.
const REFUSAL_CAPACITY: usize = 256;
/// The number of events that a slow monitor may lag behind.
const EVENT_CAPACITY: usize = 4096;
/// How often to check whether the namespace helper runs.
const HELPER_INTERVAL: Duration = Duration::from_secs(1);

/// Set when the agent stops, for the thread that reads events.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Everything that can fail because of another program or a wrong option, opened before anything is written.
struct Listeners {
    metrics: Option<TcpListener>,
    health: Option<TcpListener>,
    dns: Option<DnsServer>,
}

/// `helper` is the process of `namespaces`, if there is one. The agent ends when it ends, because only a new agent can start
/// another.
pub async fn run(
    mut settings: AgentSettings,
    namespaces: NamespaceOpener,
    helper: Option<Child>,
) -> anyhow::Result<()> {
    let namespaces = Arc::new(namespaces);
    check_access(&settings).await?;
    if !settings.fixed_addresses {
        settings.rules.own_addresses = interface::own_addresses().context("cannot read the interfaces' addresses")?;
    }
    let dns_addresses = settings.listeners.dns.as_ref().map_or(0, |dns| 1 + dns.views.len());
    let budget = DescriptorBudget::raise(dns_addresses);
    let listeners = bind(&settings).await?;
    let health = Arc::new(Health::new(settings.sync_period));
    let shared = shared_stores(&settings);
    let (refusals, posted_refusals) = mpsc::channel(REFUSAL_CAPACITY);
    let mut agent = Agent::open(settings.clone(), shared.clone(), refusals, namespaces.clone())?;
    let (report_sender, reports) = settings.report_interval.map(report_channel).unzip();
    agent.set_report_sender(report_sender);
    agent.set_dns(listeners.dns.as_ref().map(DnsServer::updater));
    let socket = socket::bind(&settings.listeners.socket)?;
    let event_reader = agent.reconciler.program.event_reader(shared.dropped_events.clone())?;
    let redirect_reader = match agent.redirects.reader()? {
        Some(reader) => Some((reader, agent.reconciler.program.suspensions()?, agent.redirects.health.clone())),
        None => None,
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        node = %settings.rules.node_name,
        cgroup = %settings.kernel.cgroup.display(),
        start = ?agent.reconciler.program.start,
        "starting"
    );
    settings.cluster_list.clusters.iter().for_each(|cluster| warn_of_service_address(&cluster.source));
    let (sender, inbox) = std::sync::mpsc::channel();
    let (events, _) = broadcast::channel(EVENT_CAPACITY);
    let (programmed, is_programmed) = watch::channel(false);
    let reach_query = agent.reach_query();
    let packet_path = PacketPath::new(&agent, &settings, health.clone(), is_programmed.clone());
    let udp_flows = packet_path.is_some().then(udp_flows::channel);
    let udp_flow_sweeper = udp_flows.map(|(reporter, sweeper)| {
        agent.set_udp_flow_reporter(reporter);
        sweeper
    });
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let loop_health = health.clone();
    tasks.spawn_blocking(move || {
        main_loop::run(agent, &inbox, &loop_health, &programmed).context("the main loop failed")
    });
    let (event_sender, subscribers, root) = (sender.clone(), events.clone(), settings.kernel.cgroup.clone());
    tasks.spawn_blocking(move || event_task::run(&event_reader, root, &event_sender, &subscribers, &STOPPING));
    if let Some((reader, map, redirects)) = redirect_reader {
        tasks.spawn_blocking(move || redirect_health::run(&reader, &map, &redirects, &STOPPING));
    }
    let context = SourceContext {
        main_loop: sender.clone(),
        health: health.clone(),
        cluster_ids: shared.cluster_ids.clone(),
        tokens: shared.tokens.clone(),
        token_renew_fraction: settings.token_renew_fraction,
        snapshots: shared.snapshots.clone(),
        #[cfg(feature = "outside")]
        traffic: shared.traffic.clone(),
        feedback: Feedback::new(is_programmed, posted_refusals),
        reports,
    };
    if let Some(packet_path) = packet_path {
        tasks.spawn(packet_path.run());
    }
    if let Some(sweeper) = udp_flow_sweeper {
        tasks.spawn(sweeper.run());
    }
    tasks.spawn(supervisor::supervise(settings.cluster_list.clone(), settings.reload.clone(), context));
    if settings.listeners.health_check_node_ports {
        tasks.spawn(health_check::serve(shared.health_checks.clone(), health.clone(), budget));
    }
    let rate = ProbeRate { interval: settings.probe_interval, per_second: reach::MAX_PROBES_PER_SECOND };
    let reach_sender = sender.clone();
    tasks.spawn(reach::run(rate, reach_query, move |update| reach_sender.send(Message::Reach(update)).is_ok()));
    if let Some(snapshots) = shared.snapshots.clone() {
        tasks.spawn(snapshots.write_periodically());
    }
    let socket_context =
        SocketContext::new(sender.clone(), events, shared.dropped_events.clone(), settings.kernel.event_level);
    tasks.spawn(socket::serve(socket, socket_context));
    if let Some(listener) = listeners.metrics {
        tasks.spawn(http::serve_metrics(listener, sender.clone()));
    }
    if let Some(listener) = listeners.health {
        tasks.spawn(http::serve_health(listener, health));
    }
    if let Some(dns) = listeners.dns {
        tasks.spawn(dns.serve());
    }
    if let Some(helper) = helper {
        tasks.spawn(watch_helper(helper));
    }
    tasks.spawn(stop_signal());
    let first = tasks.join_next().await;
    // The main loop ends between two changes, never during one. The kernel keeps serving.
    let _ = sender.send(Message::Stop);
    let _ = std::fs::remove_file(&settings.listeners.socket);
    STOPPING.store(true, Ordering::Relaxed);
    tasks.shutdown().await;
    shared.snapshots.iter().for_each(|snapshots| snapshots.flush());
    crate::view::remove_view_cgroups(&settings.kernel.cgroup);
    first.map_or(Ok(()), |joined| joined.context("a task of the agent panicked")?)
}

async fn watch_helper(mut helper: Child) -> anyhow::Result<()> {
    loop {
        if let Some(status) = helper.try_wait().context("cannot wait for the namespace helper")? {
            anyhow::bail!("the namespace helper ended ({status}); the next agent starts another");
        }
        tokio::time::sleep(HELPER_INTERVAL).await;
    }
}

fn shared_stores(settings: &AgentSettings) -> SharedStores {
    let cluster_ids = Arc::new(ClusterIdStore::new(&settings.state_dir));
    SharedStores {
        snapshots: SnapshotStore::open(settings.snapshot.clone(), &cluster_ids),
        cluster_ids,
        tokens: Default::default(),
        traffic: Arc::default(),
        health_checks: Arc::default(),
        dropped_events: Arc::default(),
    }
}

/// Checks the credentials at the start, so that a typing error in an option ends the agent at once. In a list of clusters
/// an error concerns one cluster only, and is retried.
async fn check_access(settings: &AgentSettings) -> anyhow::Result<()> {
    for cluster in settings.cluster_list.clusters.iter().filter(|_| settings.reload.is_none()) {
        if let SourceSettings::Server(server) = &cluster.source {
            let checked = server.access.check().await;
            match server.access {
                Access::Kubeconfig { .. } => checked.context("--kubeconfig")?,
                Access::InCluster { .. } => checked?,
            }
        }
    }
    Ok(())
}

async fn bind(settings: &AgentSettings) -> anyhow::Result<Listeners> {
    // Another agent uses the same ports, too: this error explains more than "address in use".
    PinDir::check_free(&settings.kernel.pin_dir)?;
    let metrics = bind_address(settings.listeners.metrics_address, "--metrics-bind-address").await?;
    let health = bind_address(settings.listeners.health_address, "--healthz-bind-address").await?;
    // A host with a list of clusters has to serve after a boot even if an interface for DNS appears later.
    let retry = settings.reload.is_some();
    let dns = DnsServer::bind(settings.listeners.dns.as_ref(), &settings.cluster_list.clusters, retry).await?;
    Ok(Listeners { metrics, health, dns })
}

async fn bind_address(address: Option<SocketAddr>, option: &str) -> anyhow::Result<Option<TcpListener>> {
    match address {
        Some(address) => Ok(Some(http::bind(address, option).await?)),
        None => Ok(None),
    }
}

/// Only a Node reports, and only to its own cluster, which is the first one.
fn report_channel(period: Duration) -> (watch::Sender<Option<RolloutReport>>, ReportSettings) {
    let (sender, what) = watch::channel(None);
    (sender, ReportSettings { report: what, period })
}

async fn stop_signal() -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! { _ = term.recv() => {} _ = int.recv() => {} }
    tracing::info!("stopping; the kernel keeps serving from its tables (`beeline cleanup` detaches the programs)");
    Ok(())
}

/// The agent must not need an address to start that it provides itself.
fn warn_of_service_address(source: &SourceSettings) {
    if let SourceSettings::Server(server) = source
        && server.access.is_service()
    {
        tracing::warn!(
            "the API server is reached at its service address, which this agent provides itself: set --api-server if \
             kube-proxy does not run on this node"
        );
    }
}
