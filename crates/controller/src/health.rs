//! Health and metrics: alive, ready to answer the API server, and how much there is to do.

use crate::listen::{self, Room};
use crate::seat::Size;
use crate::webhook::Shown;
use crate::world::World;
use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A kubelet and a few that scrape, each with a connection for each question: so nobody holds one.
const ROOM: Room = Room { size: Size { all: 256, per_peer: 16 }, keep: false };

#[derive(Clone)]
pub struct Health {
    pub world: Arc<Mutex<World>>,
    pub shown: Arc<Shown>,
    pub leader: watch::Receiver<bool>,
    pub stop: watch::Receiver<bool>,
}

pub async fn bind(at: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(at).await.with_context(|| format!("cannot listen on {at}: choose another --health-address"))
}

pub async fn serve(listener: TcpListener, health: Health) -> anyhow::Result<()> {
    let app = Router::new()
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health);
    let open = |stream: TcpStream| std::future::ready(Some(stream));
    listen::serve(listener, ROOM, app, &mut JoinSet::new(), open).await;
    anyhow::bail!("the health listener ended")
}

/// Ready is who can answer admissions: it knows the cluster and has a certificate. Whether it leads does not matter.
async fn ready(State(health): State<Health>) -> Response {
    let (synced, error) = {
        let world = health.world.lock().unwrap_or_else(PoisonError::into_inner);
        (world.synced, world.error.clone())
    };
    let not = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    match () {
        () if *health.stop.borrow() => not("it ends".into()),
        () if !synced => not(format!("the cluster is not read yet: {}", error.unwrap_or_else(|| "wait".into()))),
        () if !health.shown.is_set() => not("there is no certificate yet: the leader makes it".into()),
        () => "ok".into_response(),
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    let counts = health.world.lock().unwrap_or_else(PoisonError::into_inner).counts();
    let mut registry = Registry::default();
    let mut gauge = |name: &str, help: &str, value: usize| {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    gauge("beeline_controller_leader", "Whether this replica writes", usize::from(*health.leader.borrow()));
    gauge("beeline_controller_policies", "Policies known", counts.policies);
    gauge("beeline_controller_slices", "EndpointSlices of backends that should be", counts.slices);
    gauge("beeline_controller_nodes", "Nodes known", counts.nodes);
    gauge("beeline_controller_unwritten_slices", "EndpointSlices that wait to be written", counts.unwritten_slices);
    gauge("beeline_controller_failing_slices", "EndpointSlices whose last write failed", counts.failing_slices);
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
