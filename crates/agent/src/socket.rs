//! The agent's Unix socket: one JSON request per line, one JSON response per line. A monitor request is answered by a
//! stream of events. Only root may connect.

use crate::event_level::{EventLevels, StreamId};
use crate::main_loop::Message;
use anyhow::Context;
use beeline_api::{AttributedEvent, EventFilter, MonitorLine, Request, Response};
use beeline_datapath::control::EventLevel;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, oneshot};

pub fn bind(path: &Path) -> anyhow::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        anyhow::bail!("another agent answers at {}: give this one its own --socket", path.display());
    }
    // No process listens there: a dead agent left the file.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The state that all connections share.
#[derive(Clone)]
pub struct SocketContext {
    main_loop: Sender<Message>,
    events: broadcast::Sender<Arc<AttributedEvent>>,
    /// Counts the events that a slow reader lost.
    dropped: Arc<AtomicU64>,
    levels: Arc<Mutex<EventLevels>>,
}

impl SocketContext {
    /// `level`: the event level in effect.
    pub fn new(
        main_loop: Sender<Message>,
        events: broadcast::Sender<Arc<AttributedEvent>>,
        dropped: Arc<AtomicU64>,
        level: EventLevel,
    ) -> SocketContext {
        SocketContext { main_loop, events, dropped, levels: Arc::new(Mutex::new(EventLevels::new(level))) }
    }
}

pub async fn serve(listener: UnixListener, context: SocketContext) -> anyhow::Result<()> {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.context("cannot accept a connection on the agent's socket")?;
                connections.spawn(context.clone().serve_connection(stream));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

impl SocketContext {
    async fn serve_connection(self, stream: UnixStream) -> anyhow::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        while let Some(line) = lines.next_line().await? {
            let response = match serde_json::from_str(&line) {
                Ok(Request::Monitor { filter, level }) => return self.monitor(lines, write, filter, level).await,
                Ok(request) => self.respond(request).await?,
                Err(error) => Response::Error(format!("invalid request: {error}")),
            };
            write_line(&mut write, &response).await?;
        }
        Ok(())
    }

    async fn respond(&self, request: Request) -> anyhow::Result<Response> {
        if let Request::SetEventLevel { level } = &request
            && let Ok(level) = level.parse()
        {
            self.with_levels(|levels| levels.set_base(level));
        }
        let (tx, rx) = oneshot::channel();
        self.main_loop.send(Message::Request(request, tx)).context("the agent is stopping")?;
        Ok(rx.await?)
    }

    async fn monitor(
        &self,
        lines: Lines<BufReader<OwnedReadHalf>>,
        mut write: OwnedWriteHalf,
        filter: EventFilter,
        level: Option<String>,
    ) -> anyhow::Result<()> {
        // Subscribed before the level changes, or the first events would be missed.
        let events = self.events.subscribe();
        let level = match level.as_deref().map(str::parse).transpose() {
            Ok(level) => level,
            Err(error) => return write_line(&mut write, &MonitorLine::Error { error }).await,
        };
        let _level = level.map(|level| self.raise_level(level));
        tokio::select! {
            ended = self.stream_events(write, events, &filter) => ended,
            () = closed(lines) => Ok(()),
        }
    }

    async fn stream_events(
        &self,
        mut write: OwnedWriteHalf,
        mut events: broadcast::Receiver<Arc<AttributedEvent>>,
        filter: &EventFilter,
    ) -> anyhow::Result<()> {
        loop {
            match events.recv().await {
                Ok(event) if filter.matches(&event) => write_line(&mut write, &*event).await?,
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(lost)) => {
                    self.dropped.fetch_add(lost, Ordering::Relaxed);
                    write_line(&mut write, &MonitorLine::Lost { lost }).await?;
                }
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            }
        }
    }

    fn raise_level(&self, level: EventLevel) -> StreamLevel {
        let id = self.with_levels(|levels| levels.add_stream(level));
        self.apply_level();
        StreamLevel { context: self.clone(), id }
    }

    /// The main loop writes the level into the kernel. Its response is not needed here.
    fn apply_level(&self) {
        let level = self.with_levels(|levels| levels.effective()).to_string();
        let _ = self.main_loop.send(Message::Request(Request::SetEventLevel { level }, oneshot::channel().0));
    }

    fn with_levels<T>(&self, work: impl FnOnce(&mut EventLevels) -> T) -> T {
        work(&mut self.levels.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Restores the event level when the stream ends.
struct StreamLevel {
    context: SocketContext,
    id: StreamId,
}

impl Drop for StreamLevel {
    fn drop(&mut self) {
        self.context.with_levels(|levels| levels.remove_stream(self.id));
        self.context.apply_level();
    }
}

/// Returns when the client has closed the connection. A monitor sends nothing after its request.
async fn closed(mut lines: Lines<BufReader<OwnedReadHalf>>) {
    while let Ok(Some(_)) = lines.next_line().await {}
}

async fn write_line(write: &mut OwnedWriteHalf, value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    Ok(write.write_all(line.as_bytes()).await?)
}
