//! A server before the API server, which answers some requests itself: what older, busy, forgetful and edge servers say.

use crate::cluster::Cluster;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// Path and query of a request to what is said instead of the API server's answer.
type Rule = Box<dyn FnMut(&str) -> Option<(u16, Value)> + Send>;

pub struct Front {
    pub url: String,
}

struct Behind {
    client: kube::Client,
    rule: Mutex<Rule>,
}

impl Front {
    pub async fn of(cluster: &Cluster<'_>, rule: impl FnMut(&str) -> Option<(u16, Value)> + Send + 'static) -> Front {
        let behind = Behind { client: cluster.client().await, rule: Mutex::new(Box::new(rule)) };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new().fallback(pass).with_state(Arc::new(behind));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Front { url }
    }
}

async fn pass(State(behind): State<Arc<Behind>>, request: Request) -> Response {
    let asked = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let own = behind.rule.lock().unwrap()(&asked);
    if let Some((code, body)) = own {
        return (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response();
    }
    let onward = http::Request::get(asked).body(kube::client::Body::empty()).unwrap();
    match behind.client.send(onward).await {
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

/// As API servers say no.
pub fn status(code: u16, reason: &str, details: Value) -> (u16, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": format!("{reason} by the front"), "details": details,
    });
    (code, body)
}
