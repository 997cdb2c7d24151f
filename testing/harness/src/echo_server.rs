//! Echo servers that answer with their name. Each server is one thread with one epoll instance, so that an idle
//! connection blocks no other and one core serves tens of thousands of dials a second.

mod event_loop;
mod response;

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use self::event_loop::{EventLoop, Source};
use crate::netns::NetworkNamespace;

/// Name and addresses of an echo server. A response contains the address its socket is bound to, so every address gets
/// a socket of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EchoService {
    name: String,
    addresses: Vec<SocketAddr>,
    tcp: bool,
    udp: bool,
    banner: bool,
    mptcp: bool,
}

impl EchoService {
    /// Serves TCP and UDP on each address. The response is one line; for an HTTP request that line is the body.
    pub fn new(name: impl Into<String>, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let (name, addresses) = (name.into(), addresses.into_iter().collect());
        EchoService { name, addresses, tcp: true, udp: true, banner: false, mptcp: false }
    }

    pub fn tcp_only(self) -> Self {
        EchoService { udp: false, ..self }
    }

    pub fn udp_only(self) -> Self {
        EchoService { tcp: false, ..self }
    }

    /// The TCP server sends its line first and closes, which saves a load test one round trip per dial.
    pub fn banner(self) -> Self {
        EchoService { banner: true, ..self }
    }

    /// TCP listeners accept MPTCP. Other listeners fall back to plain TCP.
    pub fn mptcp(self) -> Self {
        EchoService { mptcp: true, ..self }
    }

    /// Serves from this process and its cgroup; `Client::serve` serves from a child. The server listens when this
    /// returns.
    pub fn start(self, namespace: &NetworkNamespace) -> Result<EchoServer> {
        let sources = namespace.run_in(|| self.bind())??;
        self.run(sources)
    }

    /// Serves in the network namespace of the calling thread.
    pub(crate) fn start_here(self) -> Result<EchoServer> {
        let sources = self.bind()?;
        self.run(sources)
    }

    fn run(self, sources: Vec<Source>) -> Result<EchoServer> {
        let (counters, stop) =
            (Arc::new(Counters::default()), eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut event_loop = EventLoop::new(self, sources, counters.clone(), &stop)?;
        let thread = thread::spawn(move || event_loop.run());
        Ok(EchoServer { counters, stop, thread: Some(thread) })
    }

    fn bind(&self) -> Result<Vec<Source>> {
        ensure!(!self.addresses.is_empty(), "echo service {} has no address", self.name);
        let mut sources = Vec::new();
        for &at in &self.addresses {
            if self.tcp {
                let listener = self.listen(at).with_context(|| format!("cannot listen on {at} TCP"))?;
                sources.push(Source::Listener(listener));
            }
            if self.udp {
                let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at} UDP"))?;
                socket.set_nonblocking(true)?;
                sources.push(Source::Datagrams(socket, at));
            }
        }
        Ok(sources)
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Socket> {
        let protocol = if self.mptcp { Protocol::MPTCP } else { Protocol::TCP };
        let socket = Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(protocol))?;
        socket.set_reuse_address(true)?; // A restarted server must not wait for TIME_WAIT.
        socket.bind(&at.into())?;
        socket.listen(4096)?;
        Ok(socket)
    }
}

/// Requests of a server since its start.
#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    requests: AtomicU64,
    datagrams: AtomicU64,
}

/// A running echo server. Dropping it closes the listeners and every connection.
#[derive(Debug)]
pub struct EchoServer {
    counters: Arc<Counters>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// Number of accepted TCP connections.
    pub fn connections(&self) -> u64 {
        self.counters.connections.load(Ordering::Relaxed)
    }

    /// Number of requests answered over TCP.
    pub fn requests(&self) -> u64 {
        self.counters.requests.load(Ordering::Relaxed)
    }

    /// Number of UDP datagrams answered.
    pub fn datagrams(&self) -> u64 {
        self.counters.datagrams.load(Ordering::Relaxed)
    }

    /// All ports are closed when this returns.
    pub fn stop(self) {}
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.thread.take().map(JoinHandle::join);
    }
}
