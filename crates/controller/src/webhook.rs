//! The webhook's HTTPS listener. Its certificate can change between two connections.

use crate::admission::AdmissionHandler;
use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
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
    admission: AdmissionHandler,
    stop: watch::Receiver<bool>,
    drain: Duration,
) -> anyhow::Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let app = Router::new().route("/admit", post(admit)).route("/healthz", get(async || "ok")).with_state(admission);
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

async fn admit(
    State(admission): State<AdmissionHandler>,
    Json(review): Json<AdmissionReview<DynamicObject>>,
) -> Response {
    match admission.review(review).await {
        Ok(review) => Json(review).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

pub async fn bind(address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("cannot listen on {address}: choose another --webhook-bind-address"))
}
