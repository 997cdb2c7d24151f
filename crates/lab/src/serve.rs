//! Servers that say who they are. One thread and one epoll per server, so that an idle connection blocks nobody and
//! a storm of tens of thousands of dials a second is served by one core.

use std::{
    collections::HashMap,
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
use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, epoll, eventfd},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{answer, identity::unmapped, netns::Namespace};

/// What to serve where. An answer tells the address it was bound to, so every address gets a socket of its own.
#[derive(Clone, Debug)]
pub struct Service {
    name: String,
    addresses: Vec<SocketAddr>,
    tcp: bool,
    udp: bool,
    banner: bool,
    protocol: Protocol,
}

impl Service {
    /// TCP and UDP on each address. A request gets one line in answer, an HTTP request gets it as its body.
    pub fn new(name: impl Into<String>, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let (name, addresses) = (name.into(), addresses.into_iter().collect());
        Service { name, addresses, tcp: true, udp: true, banner: false, protocol: Protocol::TCP }
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
        Service { protocol: Protocol::MPTCP, ..self }
    }

    /// Listens when it returns.
    pub fn start(self, namespace: &Namespace) -> Result<Server> {
        ensure!(!self.addresses.is_empty(), "service {} has no address", self.name);
        let sources = namespace.run_in(|| self.bind())??;
        let (hits, stop) = (Arc::new(Hits::default()), eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut turn = Turn::new(self, sources, hits.clone(), &stop)?;
        let thread = thread::spawn(move || turn.run());
        Ok(Server { hits, stop, thread: Some(thread) })
    }

    fn bind(&self) -> Result<Vec<Source>> {
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
        let socket = Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(self.protocol))?;
        socket.set_reuse_address(true)?; // A server that comes back must not wait for TIME_WAIT.
        socket.bind(&at.into())?;
        socket.listen(4096)?;
        Ok(socket)
    }
}

/// What was asked of a server since its start.
#[derive(Debug, Default)]
pub struct Hits {
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

#[derive(Debug)]
enum Source {
    Listener(Socket),
    Datagrams(UdpSocket, SocketAddr),
    Connection { socket: Socket, at: SocketAddr, peer: SocketAddr },
}

/// The token of the server's wish to stop; sources count from 0.
const STOP: u64 = u64::MAX;

/// The state of a server's thread.
struct Turn {
    service: Service,
    epoll: OwnedFd,
    sources: HashMap<u64, Source>,
    next: u64,
    hits: Arc<Hits>,
}

impl Turn {
    fn new(service: Service, bound: Vec<Source>, hits: Arc<Hits>, stop: &OwnedFd) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let mut turn = Turn { service, epoll, sources: HashMap::new(), next: 0, hits };
        bound.into_iter().try_for_each(|source| turn.add(source))?;
        Ok(turn)
    }

    fn add(&mut self, source: Source) -> Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(self.next), epoll::EventFlags::IN);
        match &source {
            Source::Listener(socket) | Source::Connection { socket, .. } => {
                epoll::add(&self.epoll, socket, data, flags)?
            }
            Source::Datagrams(socket, _) => epoll::add(&self.epoll, socket, data, flags)?,
        }
        self.sources.insert(self.next, source);
        self.next += 1;
        Ok(())
    }

    fn run(&mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            if let Err(error) = epoll::wait(&self.epoll, spare_capacity(&mut events), None)
                && error != rustix::io::Errno::INTR
            {
                return eprintln!("lab: server {} ends: {error}", self.service.name);
            }
            for event in &events {
                match event.data.u64() {
                    STOP => return,
                    token => self.serve(token),
                }
            }
        }
    }

    fn serve(&mut self, token: u64) {
        // Taken out and put back, so that accepting may add to the table.
        let Some(mut source) = self.sources.remove(&token) else { return };
        let keep = match &mut source {
            Source::Listener(listener) => self.accept(listener),
            Source::Datagrams(socket, at) => self.reply(socket, *at),
            Source::Connection { socket, at, peer } => self.converse(socket, *at, *peer),
        };
        if keep {
            self.sources.insert(token, source);
        }
    }

    fn accept(&mut self, listener: &Socket) -> bool {
        for _ in 0..64 {
            let Ok((socket, peer)) = listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) else { break };
            self.hits.connections.fetch_add(1, Ordering::Relaxed);
            let ends = (socket.local_addr().ok().and_then(|at| at.as_socket()), peer.as_socket());
            let (Some(at), Some(peer)) = ends else { continue };
            let (at, peer) = (unmapped(at), unmapped(peer));
            if self.service.banner {
                self.hits.requests.fetch_add(1, Ordering::Relaxed);
                let _ = socket.send(&answer::line(&self.service.name, at, peer));
            } else if let Err(error) = self.add(Source::Connection { socket, at, peer }) {
                eprintln!("lab: server {} drops a connection: {error:#}", self.service.name);
            }
        }
        true
    }

    fn reply(&self, socket: &UdpSocket, at: SocketAddr) -> bool {
        let mut request = [0; 2048];
        for _ in 0..64 {
            let Ok((_, peer)) = socket.recv_from(&mut request) else { break };
            self.hits.datagrams.fetch_add(1, Ordering::Relaxed);
            let _ = socket.send_to(&answer::line(&self.service.name, at, peer), peer);
        }
        true
    }

    /// One read is one request: clients of the lab, and curl, send theirs in one piece. False: the peer has gone.
    fn converse(&self, socket: &mut Socket, at: SocketAddr, peer: SocketAddr) -> bool {
        let mut request = [0; 4096];
        match io::Read::read(socket, &mut request) {
            Ok(0) => false,
            Ok(count) => {
                self.hits.requests.fetch_add(1, Ordering::Relaxed);
                socket.send(&answer::to(&request[..count], &self.service.name, at, peer)).is_ok()
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}
