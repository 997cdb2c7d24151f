//! `/metrics` and `/proxyMode` on loopback, `/healthz` and `/livez` on all addresses of both families.

use crate::health::{Health, Page};
use crate::listen::listen;
use crate::owner::Message;
use anyhow::Context;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub async fn bind(at: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    listen(at).await.with_context(|| {
        format!("cannot listen on {at}: if kube-proxy runs here, use --beside-kube-proxy; else choose another {option}")
    })
}

pub async fn serve_health(listener: TcpListener, health: Arc<Health>) -> anyhow::Result<()> {
    let app = Router::new().route("/healthz", get(healthz)).route("/livez", get(livez)).with_state(health);
    axum::serve(listener, app).await.context("the health listener")
}

pub async fn serve_metrics(listener: TcpListener, owner: Sender<Message>) -> anyhow::Result<()> {
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/proxyMode", get(async || "beeline"))
        .with_state(Arc::new(owner));
    axum::serve(listener, app).await.context("the metrics listener")
}

fn report(health: &Health, page: Page, healthy: bool) -> Response {
    health.answered(page, healthy);
    let code = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")], Json(health.report(healthy))).into_response()
}

async fn healthz(State(health): State<Arc<Health>>) -> Response {
    report(&health, Page::Healthz, health.is_healthy())
}

async fn livez(State(health): State<Arc<Health>>) -> Response {
    report(&health, Page::Livez, health.is_live())
}

async fn metrics(State(owner): State<Arc<Sender<Message>>>) -> Response {
    let (tx, rx) = oneshot::channel();
    let asked = owner.send(Message::Metrics(tx)).is_ok();
    match rx.await {
        Ok(text) if asked => {
            ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
                .into_response()
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping").into_response(),
    }
}
