//! Listeners that nobody can sit on: so many connections in all and for each peer ([`crate::seat`]), and a time for
//! everything that a peer does. Whoever is slower is hung up on.

use crate::seat::{Seat, Seats, Size};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Until TLS speaks, and until a request's head is there: also of a connection that is kept.
pub const HEAD: Duration = Duration::from_secs(5);
/// For a whole request.
const REQUEST: Duration = Duration::from_secs(10);
/// A connection's life; what is under way is answered.
const LIFE: Duration = Duration::from_secs(300);
/// A policy has 1.5 MB at most (what etcd takes), an update holds two, and JSON in JSON may double that.
const BODY: usize = 8 * 1024 * 1024;

/// How a listener is used.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub size: Size,
    /// Whether a connection may be used again.
    pub keep: bool,
}

/// Accepts until it is dropped; what is under way then goes on in `connections`. `open` makes of a connection what is
/// spoken over; `None`: it failed.
pub async fn serve<S, F>(
    listener: TcpListener,
    room: Room,
    app: Router,
    connections: &mut JoinSet<()>,
    open: impl Fn(TcpStream) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Option<S>> + Send + 'static,
{
    let app = app.layer(from_fn(within)).layer(DefaultBodyLimit::max(BODY));
    let seats = Seats::new(room.size);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(seat) = seats.sit(peer.ip()).map(Arc::new) else { continue };
                let (number, opened) = (seat.number(), open(stream));
                let app = app.clone().layer(Extension(seat.clone()));
                let end = connections.spawn(async move {
                    if let Ok(Some(stream)) = tokio::time::timeout(HEAD, opened).await {
                        speak(stream, app, room.keep).await;
                    }
                    drop(seat);
                });
                seats.set_end(number, end);
            }
            // Too many open files, a connection that was reset: nothing that ends the listener.
            Err(error) => {
                tracing::warn!("cannot accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn within(Extension(seat): Extension<Arc<Seat>>, request: Request, next: Next) -> Response {
    let late = || (StatusCode::REQUEST_TIMEOUT, "the request took too long").into_response();
    seat.set_busy(true);
    let answer = tokio::time::timeout(REQUEST, next.run(request)).await.unwrap_or_else(|_| late());
    seat.set_busy(false);
    answer
}

async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, app: Router, keep: bool) {
    // Of one version only: to find out which, the first bytes would be waited for without end.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).keep_alive(keep);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = &mut connection => served,
        () = tokio::time::sleep(LIFE) => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(REQUEST, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        tracing::debug!("a connection: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn start(all: usize, per_peer: usize) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, mut tasks) = (listener.local_addr().unwrap(), JoinSet::new());
        let app = Router::new().route("/ok", get(async || "ok")).route("/eat", post(async |body: String| body));
        tasks.spawn(async move {
            let open = |stream: TcpStream| std::future::ready(Some(stream));
            let room = Room { size: Size { all, per_peer }, keep: false };
            serve(listener, room, app, &mut JoinSet::new(), open).await;
        });
        (at, tasks)
    }

    async fn ask(at: SocketAddr, text: &str) -> String {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn whoever_says_nothing_is_hung_up_on() {
        let (at, _tasks) = start(64, 64).await;
        let mut idle = Vec::new();
        for _ in 0..100 {
            let mut stream = TcpStream::connect(at).await.unwrap();
            stream.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n").await.unwrap();
            idle.push(stream);
        }
        let good = ask(at, "GET /ok HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let good = tokio::time::timeout(4 * HEAD, good).await.expect("places become free");
        assert!(good.starts_with("HTTP/1.1 200"), "{good}");
        for mut stream in idle {
            let end = tokio::time::timeout(3 * HEAD, stream.read_to_end(&mut Vec::new())).await;
            assert!(end.is_ok(), "a connection without a request still stands");
        }
    }

    /// Loopback has many addresses.
    async fn connect(from: u8, at: SocketAddr) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, from], 0).into()).unwrap();
        socket.connect(at).await.unwrap()
    }

    /// Takes every place it can get, and again, without end.
    async fn sit_down(from: u8, at: SocketAddr, turns: Arc<std::sync::atomic::AtomicUsize>) {
        let mut held = std::collections::VecDeque::new();
        loop {
            let mut stream = connect(from, at).await;
            let _ = stream.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n").await;
            held.push_back(stream);
            if held.len() > 40 {
                held.pop_front();
            }
            turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn whoever_goes_on_taking_places_keeps_nobody_out() {
        let (at, mut tasks) = start(32, 8).await;
        let turns: Arc<std::sync::atomic::AtomicUsize> = Arc::default();
        (2..10).for_each(|from| drop(tasks.spawn(sit_down(from, at, turns.clone()))));
        while turns.load(std::sync::atomic::Ordering::Relaxed) < 500 {
            tokio::task::yield_now().await;
        }
        for n in 0..50 {
            let good = ask(at, "GET /ok HTTP/1.1\r\nhost: x\r\n\r\n");
            let good = tokio::time::timeout(HEAD, good).await.unwrap_or_else(|_| panic!("{n}: nobody answers"));
            assert!(good.starts_with("HTTP/1.1 200"), "{n}: {good}");
        }
    }

    #[tokio::test]
    async fn a_body_has_a_size_and_a_time() {
        let (at, _tasks) = start(4, 4).await;
        let head = |length: usize| {
            format!("POST /eat HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
        };
        let large = ask(at, &format!("{}{}", head(BODY + 1), "x".repeat(BODY + 1))).await;
        assert!(large.starts_with("HTTP/1.1 413"), "{large}");
        let slow = tokio::time::timeout(3 * REQUEST, ask(at, &head(10))).await.expect("it ends");
        assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    }
}
