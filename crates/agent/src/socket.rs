//! The agent's Unix socket: one JSON request per line, one JSON response per line. A monitor request is answered by a
//! stream of events. Only root may connect. A request has a limit of size and of time, and connections have a limit in total
//! and per process, because each is a file descriptor of the agent.

use crate::descriptor::SOCKET_LIMITS;
use crate::event_level::{EventLevels, StreamId};
use crate::main_loop::Message;
use anyhow::Context;
use beeline_api::{AttributedEvent, EventFilter, MonitorLine, Request, Response};
use beeline_datapath::control::EventLevel;
use beeline_listener::{AcceptErrors, ConnectionLimiter, ConnectionSlot};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, oneshot};
use tokio::time::timeout;

/// Largest request, with its line end. The longest one names a service port.
const MAX_REQUEST_BYTES: usize = 16 * 1024;
/// Time limit for a request to arrive, and for a response to be read. A monitor may read as slowly as it wants.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Accepts connections until the future is dropped. No error ends it.
pub async fn serve(listener: UnixListener, context: SocketContext) -> anyhow::Result<()> {
    let limiter = ConnectionLimiter::new(SOCKET_LIMITS);
    let mut errors = AcceptErrors::new("the agent's socket");
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let Some(slot) = limiter.acquire(peer_process(&stream)) else { continue };
                    let number = slot.number();
                    let abort = connections.spawn(context.clone().serve_connection(stream, slot));
                    limiter.set_abort(number, abort);
                }
                Err(error) => errors.pause(&error).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The process that connected; 0 if it is in another PID namespace.
fn peer_process(stream: &UnixStream) -> i32 {
    stream.peer_cred().ok().and_then(|credentials| credentials.pid()).unwrap_or(0)
}

type Slot = ConnectionSlot<i32>;

impl SocketContext {
    async fn serve_connection(self, stream: UnixStream, slot: Slot) -> anyhow::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut reader = BufReader::new(read);
        while let Some(line) = timeout(IDLE_TIMEOUT, read_request(&mut reader)).await?? {
            slot.set_busy(true);
            let response = match line {
                RequestLine::TooLong => {
                    let error = format!("the request is longer than {MAX_REQUEST_BYTES} bytes");
                    return write_response(&mut write, &Response::Error(error)).await;
                }
                RequestLine::Complete(line) => match serde_json::from_slice(&line) {
                    Ok(Request::Monitor { filter, level }) => return self.monitor(reader, write, filter, level).await,
                    Ok(request) => self.respond(request).await?,
                    Err(error) => Response::Error(format!("invalid request: {error}")),
                },
            };
            write_response(&mut write, &response).await?;
            slot.set_busy(false);
        }
        Ok(())
    }

    async fn respond(&self, request: Request) -> anyhow::Result<Response> {
        if let Request::SetEventLevel { level } = &request {
            return match level.parse::<EventLevel>() {
                Ok(level) => {
                    self.change_levels(|levels| levels.set_base(level)).1.await?;
                    Ok(Response::EventLevel(level.to_string()))
                }
                Err(error) => Ok(Response::Error(error)),
            };
        }
        let (tx, rx) = oneshot::channel();
        self.main_loop.send(Message::Request(request, tx)).context("the agent is stopping")?;
        Ok(rx.await?)
    }

    async fn monitor(
        &self,
        reader: BufReader<OwnedReadHalf>,
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
        let _stream = self.open_stream(level);
        tokio::select! {
            ended = self.stream_events(write, events, &filter) => ended,
            () = closed(reader) => Ok(()),
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

    /// Counts the stream, so that the kernel reports events while it is open.
    fn open_stream(&self, level: Option<EventLevel>) -> OpenStream {
        let (id, _) = self.change_levels(|levels| levels.add_stream(level));
        OpenStream { context: self.clone(), id }
    }

    /// Changes the levels, and has the main loop write the result into the kernel, in the order of the changes. The receiver
    /// completes when it is written.
    fn change_levels<T>(&self, change: impl FnOnce(&mut EventLevels) -> T) -> (T, oneshot::Receiver<()>) {
        let (done, written) = oneshot::channel();
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut levels);
        // Sent while the lock is held, or an older state could be written last.
        let _ = self.main_loop.send(Message::EventLevel(levels.state(), done));
        (result, written)
    }
}

/// Ends the stream's level, and the kernel's reports with the last stream.
struct OpenStream {
    context: SocketContext,
    id: StreamId,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.context.change_levels(|levels| levels.remove_stream(self.id));
    }
}

enum RequestLine {
    Complete(Vec<u8>),
    TooLong,
}

/// Reads one line; `None` at the end of the stream. Not more than the limit is ever held in memory.
async fn read_request(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<RequestLine>> {
    let mut line = Vec::new();
    reader.take(MAX_REQUEST_BYTES as u64 + 1).read_until(b'\n', &mut line).await?;
    Ok(match line.len() {
        0 => None,
        length if length > MAX_REQUEST_BYTES => Some(RequestLine::TooLong),
        _ => Some(RequestLine::Complete(line)),
    })
}

/// Returns when the client has closed the connection. A monitor sends nothing after its request; what it sends is dropped.
async fn closed(mut reader: BufReader<OwnedReadHalf>) {
    let mut dropped = [0; 4096];
    while reader.read(&mut dropped).await.is_ok_and(|size| size > 0) {}
}

async fn write_response(write: &mut OwnedWriteHalf, response: &Response) -> anyhow::Result<()> {
    timeout(IDLE_TIMEOUT, write_line(write, response)).await?
}

async fn write_line(write: &mut OwnedWriteHalf, value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    Ok(write.write_all(line.as_bytes()).await?)
}
