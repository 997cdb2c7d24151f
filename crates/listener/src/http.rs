//! Serves HTTP/1.1 with a limit for connections ([`ConnectionLimiter`]) and a time limit for everything that a peer does, so
//! that slow or idle peers cannot block the listener.

use crate::{AcceptErrors, ConnectionLimiter, ConnectionLimits, ConnectionSlot};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Time limit of the TLS handshake, and of each request's header. The latter also closes idle connections.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum age of a connection. A request in progress is still answered.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(300);
/// Largest request body. A policy has at most 1.5 MB (etcd's limit), an update holds two, and JSON in JSON may double
/// that.
const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct HttpListenerConfig {
    /// What is served, for the log.
    pub name: &'static str,
    pub limiter: ConnectionLimiter<IpAddr>,
    pub keep_alive: bool,
}

impl HttpListenerConfig {
    pub fn new(name: &'static str, limits: ConnectionLimits) -> HttpListenerConfig {
        HttpListenerConfig { name, limiter: ConnectionLimiter::new(limits), keep_alive: true }
    }
}

/// Serves HTTP without TLS until the future is dropped.
pub async fn serve_plain(listener: TcpListener, config: HttpListenerConfig, app: Router) {
    let no_handshake = |stream: TcpStream| std::future::ready(Some(stream));
    serve(listener, config, app, &mut JoinSet::new(), no_handshake).await;
}

/// Accepts connections until the future is dropped. Connections that are open then continue in `connections`. `handshake`
/// prepares a connection, for example with TLS; `None` means that it failed.
pub async fn serve<S, F>(
    listener: TcpListener,
    config: HttpListenerConfig,
    app: Router,
    connections: &mut JoinSet<()>,
    handshake: impl Fn(TcpStream) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Option<S>> + Send + 'static,
{
    let app = app.layer(from_fn(limit_request_time)).layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    let HttpListenerConfig { name, limiter, keep_alive } = config;
    let mut errors = AcceptErrors::new(name);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(slot) = limiter.acquire(peer.ip().to_canonical()).map(Arc::new) else { continue };
                let (number, stream) = (slot.number(), handshake(stream));
                let app = app.clone().layer(Extension(slot.clone()));
                let abort = connections.spawn(async move {
                    if let Ok(Some(stream)) = tokio::time::timeout(HEADER_TIMEOUT, stream).await {
                        serve_connection(stream, app, keep_alive).await;
                    }
                    drop(slot);
                });
                limiter.set_abort(number, abort);
            }
            Err(error) => errors.pause(&error).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Applies the time limit of a request, and marks the connection as busy meanwhile.
async fn limit_request_time(
    Extension(slot): Extension<Arc<ConnectionSlot<IpAddr>>>,
    request: Request,
    next: Next,
) -> Response {
    let timed_out = || (StatusCode::REQUEST_TIMEOUT, "the request exceeded its time limit").into_response();
    slot.set_busy(true);
    let response = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await.unwrap_or_else(|_| timed_out());
    slot.set_busy(false);
    response
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    app: Router,
    keep_alive: bool,
) {
    // Only HTTP/1: detecting the version would wait for the first bytes without a time limit.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(keep_alive);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = &mut connection => served,
        () = tokio::time::sleep(MAX_CONNECTION_AGE) => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(REQUEST_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn start(total: usize, per_peer: usize) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, mut tasks) = (listener.local_addr().unwrap(), JoinSet::new());
        let app = Router::new().route("/ok", get(async || "ok")).route("/echo", post(async |body: String| body));
        tasks.spawn(async move {
            let config = HttpListenerConfig::new("test", ConnectionLimits { total, per_peer });
            serve_plain(listener, HttpListenerConfig { keep_alive: false, ..config }, app).await;
        });
        (address, tasks)
    }

    async fn request(address: SocketAddr, text: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut response = String::new();
        let _ = stream.read_to_string(&mut response).await;
        response
    }

    #[tokio::test]
    async fn connections_without_a_complete_header_are_closed() {
        let (address, _tasks) = start(64, 64).await;
        let mut idle = Vec::new();
        for _ in 0..100 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n").await.unwrap();
            idle.push(stream);
        }
        let response = request(address, "GET /ok HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let response = tokio::time::timeout(4 * HEADER_TIMEOUT, response).await.expect("a slot becomes free");
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        for mut stream in idle {
            let end = tokio::time::timeout(3 * HEADER_TIMEOUT, stream.read_to_end(&mut Vec::new())).await;
            assert!(end.is_ok(), "a connection without a request is still open");
        }
    }

    /// Connects from 127.0.0.`from`.
    async fn connect(from: u8, address: SocketAddr) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, from], 0).into()).unwrap();
        socket.connect(address).await.unwrap()
    }

    /// Opens connections without end, and keeps up to 40 of them open.
    async fn occupy_slots(from: u8, address: SocketAddr, opened: Arc<AtomicUsize>) {
        let mut held = std::collections::VecDeque::new();
        loop {
            let mut stream = connect(from, address).await;
            let _ = stream.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n").await;
            held.push_back(stream);
            if held.len() > 40 {
                held.pop_front();
            }
            opened.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn peers_that_keep_connecting_do_not_block_other_peers() {
        let (address, mut tasks) = start(32, 8).await;
        let opened: Arc<AtomicUsize> = Arc::default();
        (2..10).for_each(|from| drop(tasks.spawn(occupy_slots(from, address, opened.clone()))));
        while opened.load(Ordering::Relaxed) < 500 {
            tokio::task::yield_now().await;
        }
        for n in 0..50 {
            let response = request(address, "GET /ok HTTP/1.1\r\nhost: x\r\n\r\n");
            let response = tokio::time::timeout(HEADER_TIMEOUT, response);
            let response = response.await.unwrap_or_else(|_| panic!("{n}: no response"));
            assert!(response.starts_with("HTTP/1.1 200"), "{n}: {response}");
        }
    }

    #[tokio::test]
    async fn a_body_has_a_size_limit_and_a_time_limit() {
        let (address, _tasks) = start(4, 4).await;
        let header = |length: usize| {
            format!("POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
        };
        let large = format!("{}{}", header(MAX_BODY_BYTES + 1), "x".repeat(MAX_BODY_BYTES + 1));
        let large = request(address, &large).await;
        assert!(large.starts_with("HTTP/1.1 413"), "{large}");
        let slow = tokio::time::timeout(3 * REQUEST_TIMEOUT, request(address, &header(10))).await.expect("a response");
        assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    }
}
