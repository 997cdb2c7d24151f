//! The webhook's listener: HTTPS with a certificate that may change between two connections.

use crate::admission::Admission;
use crate::listen::{self, Room};
use crate::seat::Size;
use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
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

/// API servers keep a few each, and may all stand behind one address.
const ROOM: Room = Room { size: Size { all: 1024, per_peer: 256 }, keep: true };

/// What is shown to whoever connects.
#[derive(Debug, Default)]
pub struct Shown(RwLock<Option<Arc<CertifiedKey>>>);

impl Shown {
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

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Until some time after `stop`; then what is under way is answered, and nothing new is taken.
pub async fn serve(
    listener: TcpListener,
    shown: Arc<Shown>,
    admission: Admission,
    stop: watch::Receiver<bool>,
    drain: Duration,
) -> anyhow::Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_cert_resolver(shown);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let app = Router::new().route("/admit", post(admit)).route("/healthz", get(async || "ok")).with_state(admission);
    let open = move |stream: TcpStream| {
        let accepted = acceptor.accept(stream);
        async move { accepted.await.ok() }
    };
    let mut connections = JoinSet::new();
    tokio::select! {
        () = listen::serve(listener, ROOM, app, &mut connections, open) => {}
        () = end(stop, drain) => {}
    }
    std::future::pending().await
}

/// So long after the signal requests may still be sent here.
async fn end(mut stop: watch::Receiver<bool>, drain: Duration) {
    let _ = stop.wait_for(|stop| *stop).await;
    tokio::time::sleep(drain).await;
}

async fn admit(State(admission): State<Admission>, Json(review): Json<AdmissionReview<DynamicObject>>) -> Response {
    match admission.review(review).await {
        Ok(review) => Json(review).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why.to_string()).into_response(),
    }
}

pub async fn bind(at: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(at).await.with_context(|| format!("cannot listen on {at}: choose another --webhook-address"))
}
