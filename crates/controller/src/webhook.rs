//! The webhook's HTTPS listener. Its certificate can change between two connections. It answers only at a path with a
//! current token ([`crate::webhook_token`]), which the API server knows; everybody else gets an empty 404.

use crate::admission::AdmissionHandler;
use crate::webhook_token::WebhookTokens;
use anyhow::Context;
use axum::extract::{FromRequest, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use beeline_listener::ConnectionLimits;
use beeline_listener::http::{self, HttpListenerConfig};
use kube::api::DynamicObject;
use kube::core::admission::AdmissionReview;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Each API server keeps a few connections, and all API servers may have the same source address.
const LIMITS: ConnectionLimits = ConnectionLimits { total: 1024, per_peer: 256 };

/// The certificate that new connections get.
#[derive(Debug, Default)]
pub struct ServingCertificate(RwLock<Option<Arc<CertifiedKey>>>);

impl ServingCertificate {
    pub fn set(&self, chain: &str, key: &str) -> anyhow::Result<()> {
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let key = CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(key));
        Ok(())
    }

    pub fn is_set(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Accepts connections until `drain` after `stop`. Requests in progress are then still answered.
pub async fn serve(
    listener: TcpListener,
    certificate: Arc<ServingCertificate>,
    webhook: WebhookContext,
    stop: watch::Receiver<bool>,
    drain: Duration,
) -> anyhow::Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let app = router(webhook);
    let handshake = move |stream: TcpStream| {
        let accepted = acceptor.accept(stream);
        async move { accepted.await.ok() }
    };
    let (config, mut connections) = (HttpListenerConfig::new("webhook", LIMITS), JoinSet::new());
    tokio::select! {
        () = http::serve(listener, config, app, &mut connections, handshake) => {}
        () = drained(stop, drain) => {}
    }
    std::future::pending().await
}

/// Completes `drain` after `stop`, because requests may be routed here until then.
async fn drained(mut stop: watch::Receiver<bool>, drain: Duration) {
    let _ = stop.wait_for(|stop| *stop).await;
    tokio::time::sleep(drain).await;
}

#[derive(Clone)]
pub struct WebhookContext {
    pub admission: AdmissionHandler,
    pub tokens: Arc<WebhookTokens>,
}

fn router(webhook: WebhookContext) -> Router {
    Router::new().fallback(answer).with_state(webhook)
}

/// The token is checked before the body is read.
async fn answer(State(webhook): State<WebhookContext>, request: Request) -> Response {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    if request.method() != Method::POST || !webhook.tokens.accepts(request.uri().path(), now) {
        return StatusCode::NOT_FOUND.into_response();
    }
    match Json::<AdmissionReview<DynamicObject>>::from_request(request, &()).await {
        Ok(Json(review)) => match webhook.admission.review(review).await {
            Ok(review) => Json(review).into_response(),
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
        },
        Err(rejection) => rejection.into_response(),
    }
}

pub async fn bind(address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("cannot listen on {address}: choose another --webhook-bind-address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_state::tests::{settings, state_with};
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Serves the webhook without TLS, and returns its address.
    async fn start(tokens: Arc<WebhookTokens>) -> (std::net::SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, mut tasks) = (listener.local_addr().unwrap(), JoinSet::new());
        // No SubjectAccessReview is needed here, so nobody answers at this address.
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        let admission = AdmissionHandler::new(client, state_with(&settings()));
        let app = router(WebhookContext { admission, tokens });
        tasks.spawn(http::serve_plain(listener, HttpListenerConfig::new("webhook", LIMITS), app));
        (address, tasks)
    }

    async fn request(address: std::net::SocketAddr, method: &str, path: &str, body: &str) -> String {
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json");
        let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut response = String::new();
        let _ = stream.read_to_string(&mut response).await;
        response
    }

    /// A policy that stays in its namespace, so that no SubjectAccessReview is needed.
    fn review() -> String {
        let port = json!({ "port": 80, "protocol": "TCP" });
        let spec = json!({
            "frontend": { "serviceMatcher": { "serviceName": "web", "toPorts": [port] } },
            "backend": { "serviceEndpoint": { "endpointSelector": {}, "toPorts": [port] } },
        });
        let kind = json!({ "group": "beeline.dev", "version": "v1alpha1", "kind": "BalancingPolicy" });
        let resource = json!({ "group": "beeline.dev", "version": "v1alpha1", "resource": "balancingpolicies" });
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "1", "kind": kind, "resource": resource, "name": "x", "namespace": "default",
                "operation": "CREATE", "userInfo": { "username": "alice" },
                "object": {
                    "apiVersion": "beeline.dev/v1alpha1", "kind": "BalancingPolicy",
                    "metadata": { "name": "x", "namespace": "default" }, "spec": spec,
                },
            },
        })
        .to_string()
    }

    #[tokio::test]
    async fn only_a_request_with_the_token_is_answered() {
        let tokens = Arc::new(WebhookTokens::default());
        tokens.set_key(b"key");
        let (address, _tasks) = start(tokens.clone()).await;
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap();
        let path = tokens.path(now).unwrap();
        let answered = request(address, "POST", &path, &review()).await;
        assert!(answered.starts_with("HTTP/1.1 200") && answered.contains("\"allowed\":true"), "{answered}");
        let wrong = format!("/admit/{}", "0".repeat(64));
        for (method, path) in
            [("POST", "/admit"), ("POST", &*wrong), ("POST", "/"), ("GET", "/healthz"), ("GET", &*path)]
        {
            let response = request(address, method, path, &review()).await;
            assert!(response.starts_with("HTTP/1.1 404"), "{method} {path}: {response}");
            let (head, body) = response.split_once("\r\n\r\n").unwrap();
            assert!(body.is_empty() && !head.contains("server:"), "{method} {path}: {response}");
        }
        let invalid = request(address, "POST", &path, "not JSON").await;
        assert!(invalid.starts_with("HTTP/1.1 4"), "{invalid}");
    }
}
