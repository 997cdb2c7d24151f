//! Servers that say who they are. One thread and one epoll per server, so that an idle connection blocks nobody and
//! a storm of tens of thousands of dials a second is served by one core.

mod answer;
mod turn;

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

use self::turn::{Source, Turn};
use crate::netns::Namespace;

/// What to serve where. An answer tells the address it was bound to, so every address gets a socket of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Service {
    name: String,
    addresses: Vec<SocketAddr>,
    tcp: bool,
    udp: bool,
    banner: bool,
    mptcp: bool,
}

impl Service {
    /// TCP and UDP on each address. A request gets one line in answer, an HTTP request gets it as its body.
    pub fn new(name: impl Into<String>, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let (name, addresses) = (name.into(), addresses.into_iter().collect());
        Service { name, addresses, tcp: true, udp: true, banner: false, mptcp: false }
    }

    pub fn tcp_only(self) -> Self {
        Service { udp: false, ..self }
    }

    pub fn udp_only(self) -> Self {
        Service { tcp: false, ..self }
    }

    /// TCP: speak first, then close. Saves a storm one round trip per dial.
    pub fn banner(self) -> Self {
        Service { banner: true, ..self }
    }

    /// TCP listeners that accept MPTCP as such (others answer it as plain TCP).
    pub fn mptcp(self) -> Self {
        Service { mptcp: true, ..self }
    }

    /// Served by this process, whose cgroup it has; `Client::serve` serves from another. Listens when it returns.
    pub fn start(self, namespace: &Namespace) -> Result<Server> {
        let sources = namespace.run_in(|| self.bind())??;
        self.run(sources)
    }

    /// In the namespace of the calling thread.
    pub(crate) fn start_here(self) -> Result<Server> {
        let sources = self.bind()?;
        self.run(sources)
    }

    fn run(self, sources: Vec<Source>) -> Result<Server> {
        let (hits, stop) = (Arc::new(Hits::default()), eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut turn = Turn::new(self, sources, hits.clone(), &stop)?;
        let thread = thread::spawn(move || turn.run());
        Ok(Server { hits, stop, thread: Some(thread) })
    }

    fn bind(&self) -> Result<Vec<Source>> {
        ensure!(!self.addresses.is_empty(), "service {} has no address", self.name);
        let mut sources = Vec::new();
        for &at in &self.addresses {
            if self.tcp {
                let listener = self.listen(at).with_context(|| format!("listen on {at} TCP"))?;
                sources.push(Source::Listener(listener));
            }
            if self.udp {
                let socket = UdpSocket::bind(at).with_context(|| format!("listen on {at} UDP"))?;
                socket.set_nonblocking(true)?;
                sources.push(Source::Datagrams(socket, at));
            }
        }
        Ok(sources)
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Socket> {
        let protocol = if self.mptcp { Protocol::MPTCP } else { Protocol::TCP };
        let socket = Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(protocol))?;
        socket.set_reuse_address(true)?; // A server that comes back must not wait for TIME_WAIT.
        socket.bind(&at.into())?;
        socket.listen(4096)?;
        Ok(socket)
    }
}

/// What was asked of a server since its start.
#[derive(Debug, Default)]
struct Hits {
    connections: AtomicU64,
    requests: AtomicU64,
    datagrams: AtomicU64,
}

/// A server that runs. Dropping it closes the listeners and every connection.
#[derive(Debug)]
pub struct Server {
    hits: Arc<Hits>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// TCP connections accepted.
    pub fn connections(&self) -> u64 {
        self.hits.connections.load(Ordering::Relaxed)
    }

    /// Requests answered over TCP.
    pub fn requests(&self) -> u64 {
        self.hits.requests.load(Ordering::Relaxed)
    }

    /// UDP datagrams answered.
    pub fn datagrams(&self) -> u64 {
        self.hits.datagrams.load(Ordering::Relaxed)
    }

    /// All ports are closed when it returns.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.thread.take().map(JoinHandle::join);
    }
}
