//! An HTTP proxy for the API server that answers some requests itself, as older, busy or restarting servers do.

use crate::cluster::Cluster;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// Maps path and query of a request to a response; `None` forwards the request.
type Rule = Box<dyn FnMut(&str) -> Option<(u16, Value)> + Send>;

pub struct InterceptingProxy {
    pub url: String,
}

struct ProxyState {
    client: kube::Client,
    rule: Mutex<Rule>,
}

impl InterceptingProxy {
    pub async fn start(
        cluster: &Cluster<'_>,
        rule: impl FnMut(&str) -> Option<(u16, Value)> + Send + 'static,
    ) -> InterceptingProxy {
        let state = ProxyState { client: cluster.client().await, rule: Mutex::new(Box::new(rule)) };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new().fallback(handle).with_state(Arc::new(state));
        tokio::spawn(async move { axum::serve(listener, app).await });
        InterceptingProxy { url }
    }
}

async fn handle(State(state): State<Arc<ProxyState>>, request: Request) -> Response {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let response = state.rule.lock().unwrap()(&path);
    if let Some((code, body)) = response {
        return (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response();
    }
    let forwarded = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
    match state.client.send(forwarded).await {
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

/// A failure response of an API server.
pub fn failure_status(code: u16, reason: &str, details: Value) -> (u16, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": format!("{reason} by the proxy"), "details": details,
    });
    (code, body)
}
