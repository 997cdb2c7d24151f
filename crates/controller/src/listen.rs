//! Listeners that nobody can sit on: so many connections, and a time for everything that a peer does. Whoever is slower
//! is hung up on; the next one waits in the kernel until a place is free.

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Until TLS speaks, and until a request's head is there: also of a connection that is kept.
pub const HEAD: Duration = Duration::from_secs(5);
/// For a whole request.
const REQUEST: Duration = Duration::from_secs(10);
/// A connection's life; what is under way is answered.
const LIFE: Duration = Duration::from_secs(300);
/// A policy is a few kilobytes, an update holds two.
const BODY: usize = 1024 * 1024;

/// Accepts until it is dropped; what is under way then goes on in `connections`. `open` makes of a connection what is
/// spoken over; `None`: it failed.
pub async fn serve<S, F>(
    listener: TcpListener,
    places: usize,
    app: Router,
    connections: &mut JoinSet<()>,
    open: impl Fn(TcpStream) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Option<S>> + Send + 'static,
{
    let app = app.layer(from_fn(within)).layer(DefaultBodyLimit::max(BODY));
    let places = Arc::new(Semaphore::new(places));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (open, app) = (open(stream), app.clone());
                connections.spawn(async move {
                    if let Ok(Some(stream)) = tokio::time::timeout(HEAD, open).await {
                        speak(stream, app).await;
                    }
                    drop(place);
                });
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

async fn within(request: Request, next: Next) -> Response {
    let late = || (StatusCode::REQUEST_TIMEOUT, "the request took too long").into_response();
    tokio::time::timeout(REQUEST, next.run(request)).await.unwrap_or_else(|_| late())
}

async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, app: Router) {
    // Of one version only: to find out which, the first bytes would be waited for without end.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
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

    async fn start(places: usize) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, mut tasks) = (listener.local_addr().unwrap(), JoinSet::new());
        let app = Router::new().route("/ok", get(async || "ok")).route("/eat", post(async |body: String| body));
        tasks.spawn(async move {
            let open = |stream: TcpStream| std::future::ready(Some(stream));
            serve(listener, places, app, &mut JoinSet::new(), open).await;
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
        let (at, _tasks) = start(64).await;
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

    #[tokio::test]
    async fn a_body_has_a_size_and_a_time() {
        let (at, _tasks) = start(4).await;
        let head = |length: usize| {
            format!("POST /eat HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
        };
        let large = ask(at, &format!("{}{}", head(BODY + 1), "x".repeat(BODY + 1))).await;
        assert!(large.starts_with("HTTP/1.1 413"), "{large}");
        let slow = tokio::time::timeout(3 * REQUEST, ask(at, &head(10))).await.expect("it ends");
        assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    }
}
