//! The health and metrics listener: whether the process is alive, whether it can answer admission requests, and how much
//! there is to write.

use crate::cluster_state::SharedState;
use crate::webhook::ServingCertificate;
use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use beeline_listener::ConnectionLimits;
use beeline_listener::http::{self, HttpListenerConfig};
use beeline_metrics::MetricsFormat;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The kubelet and a few scrapers, with a new connection for each request.
const LIMITS: ConnectionLimits = ConnectionLimits { total: 256, per_peer: 16 };

#[derive(Clone)]
pub struct HealthContext {
    pub state: SharedState,
    pub certificate: Arc<ServingCertificate>,
    pub leader: watch::Receiver<bool>,
    pub stop: watch::Receiver<bool>,
    pub commit: &'static str,
}

pub async fn bind(address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("cannot listen on {address}: choose another --healthz-bind-address"))
}

pub async fn serve(listener: TcpListener, context: HealthContext) -> anyhow::Result<()> {
    let app = Router::new()
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(context);
    let config = HttpListenerConfig { keep_alive: false, ..HttpListenerConfig::new("health", LIMITS) };
    http::serve_plain(listener, config, app).await;
    anyhow::bail!("the health listener ended")
}

/// A replica is ready if it can answer admission requests: it has synced and has a certificate. It need not lead.
async fn ready(State(context): State<HealthContext>) -> Response {
    let (synced, error) = context.state.with(|state| (state.synced, state.error.clone()));
    let not_ready = |reason: String| (StatusCode::SERVICE_UNAVAILABLE, reason).into_response();
    match () {
        () if *context.stop.borrow() => not_ready("the controller is shutting down".into()),
        () if !synced => {
            let error = error.unwrap_or_else(|| "listing objects".into());
            not_ready(format!("the controller has not synced with the cluster yet: {error}"))
        }
        () if !context.certificate.is_set() => not_ready("no certificate yet: the leader generates it".into()),
        () => "ok".into_response(),
    }
}

async fn metrics(State(context): State<HealthContext>, headers: HeaderMap) -> Response {
    let counts = context.state.with(|state| state.counts());
    let mut registry = beeline_metrics::registry(context.commit);
    let mut gauge = |name: &str, help: &str, value: usize| {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    let is_leader = usize::from(*context.leader.borrow());
    gauge("beeline_controller_leader", "Whether this replica is the leader: 1 is yes", is_leader);
    gauge("beeline_controller_policies", "Policies in the cluster", counts.policies);
    gauge("beeline_controller_slices", "EndpointSlices that should be published", counts.slices);
    gauge("beeline_controller_nodes", "Nodes in the cluster", counts.nodes);
    gauge("beeline_controller_unwritten_slices", "EndpointSlices that wait to be written", counts.unwritten_slices);
    gauge("beeline_controller_failing_slices", "EndpointSlices whose last write failed", counts.failing_slices);
    let format = MetricsFormat::negotiate(&headers);
    ([(header::CONTENT_TYPE, format.content_type())], format.render(&registry)).into_response()
}
