//! The agent's socket: one JSON line asks, one answers; `monitor` goes on with a line per event. Root's only.

use crate::owner::Message;
use crate::status::Request;
use anyhow::Context;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, oneshot};

pub fn bind(path: &Path) -> anyhow::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        anyhow::bail!("another agent answers at {}: give this one its own --socket", path.display());
    }
    // Whoever left it behind is dead.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

pub async fn serve(
    listener: UnixListener,
    owner: Sender<Message>,
    events: broadcast::Sender<String>,
    dropped: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let mut open = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.context("the agent's socket")?;
                open.spawn(converse(stream, owner.clone(), events.subscribe(), dropped.clone()));
            }
            Some(_) = open.join_next() => {}
        }
    }
}

async fn converse(
    stream: UnixStream,
    owner: Sender<Message>,
    events: broadcast::Receiver<String>,
    dropped: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        let request = match serde_json::from_str(&line) {
            Ok(Request::Monitor) => return stream_events(write, events, &dropped).await,
            Ok(request) => request,
            Err(error) => {
                write.write_all(format!("{}\n", serde_json::json!({ "error": error.to_string() })).as_bytes()).await?;
                continue;
            }
        };
        let (tx, rx) = oneshot::channel();
        owner.send(Message::Ask(request, tx)).context("the agent is stopping")?;
        write.write_all(format!("{}\n", rx.await?).as_bytes()).await?;
    }
    Ok(())
}

async fn stream_events(
    mut write: tokio::net::unix::OwnedWriteHalf,
    mut events: broadcast::Receiver<String>,
    dropped: &AtomicU64,
) -> anyhow::Result<()> {
    loop {
        let line = match events.recv().await {
            Ok(line) => line,
            // Whoever reads too slowly is told how much it missed.
            Err(broadcast::error::RecvError::Lagged(lost)) => {
                dropped.fetch_add(lost, Ordering::Relaxed);
                serde_json::json!({ "lost": lost }).to_string()
            }
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
        };
        write.write_all(format!("{line}\n").as_bytes()).await?;
    }
}

/// For the CLI: asks an agent. `None`: there is none at this socket.
pub fn ask(path: &Path, request: &Request) -> Option<anyhow::Result<serde_json::Value>> {
    use std::io::{BufRead, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(path).ok()?;
    let mut talk = || -> anyhow::Result<serde_json::Value> {
        stream.set_read_timeout(Some(std::time::Duration::from_secs(10)))?;
        writeln!(stream, "{}", serde_json::to_string(request)?)?;
        let mut line = String::new();
        std::io::BufReader::new(&stream).read_line(&mut line).context("the agent did not answer within 10 s")?;
        Ok(serde_json::from_str(&line)?)
    };
    Some(talk())
}
