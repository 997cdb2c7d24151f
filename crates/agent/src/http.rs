//! The HTTP servers: `/metrics` and `/proxyMode`, and `/healthz` and `/livez`.

use crate::descriptor::{HEALTH_LIMITS, METRICS_LIMITS};
use crate::health::{Health, HealthEndpoint};
use crate::listen::listen;
use crate::main_loop::Message;
use anyhow::Context;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use beeline_listener::http::{HttpListenerConfig, serve_plain};
use beeline_metrics::MetricsFormat;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub async fn bind(at: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    listen(at).await.with_context(|| {
        format!("cannot listen on {at}: if kube-proxy runs here, use --beside-kube-proxy; else set another {option}")
    })
}

pub async fn serve_health(listener: TcpListener, health: Arc<Health>) -> anyhow::Result<()> {
    let app = Router::new().route("/healthz", get(healthz)).route("/livez", get(livez)).with_state(health);
    serve_plain(listener, HttpListenerConfig::new("health", HEALTH_LIMITS), app).await;
    anyhow::bail!("the health server ended")
}

pub async fn serve_metrics(listener: TcpListener, main_loop: Sender<Message>) -> anyhow::Result<()> {
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/proxyMode", get(async || "beeline"))
        .with_state(Arc::new(main_loop));
    serve_plain(listener, HttpListenerConfig::new("metrics", METRICS_LIMITS), app).await;
    anyhow::bail!("the metrics server ended")
}

fn report(health: &Health, endpoint: HealthEndpoint, healthy: bool) -> Response {
    health.count_response(endpoint, healthy);
    let code = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")], Json(health.report(healthy))).into_response()
}

async fn healthz(State(health): State<Arc<Health>>) -> Response {
    report(&health, HealthEndpoint::Healthz, health.is_healthy())
}

async fn livez(State(health): State<Arc<Health>>) -> Response {
    report(&health, HealthEndpoint::Livez, health.is_live())
}

async fn metrics(State(main_loop): State<Arc<Sender<Message>>>, headers: HeaderMap) -> Response {
    let format = MetricsFormat::negotiate(&headers);
    let (tx, rx) = oneshot::channel();
    let sent = main_loop.send(Message::Metrics(format, tx)).is_ok();
    match rx.await {
        Ok(text) if sent => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping").into_response(),
    }
}
