//! The event loop of an echo server: one thread with one epoll instance over listeners, UDP sockets and connections.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
};

use anyhow::Result;
use rustix::{buffer::spare_capacity, event::epoll};
use socket2::Socket;

use super::{Counters, EchoService, response};
use crate::identity::unmapped;

#[derive(Debug)]
pub(super) enum Source {
    Listener(Socket),
    Datagrams(UdpSocket, SocketAddr),
    Connection { socket: Socket, at: SocketAddr, peer: SocketAddr },
}

/// Epoll token of the stop event. Sources are numbered from 0.
const STOP: u64 = u64::MAX;

/// State of a server's thread.
pub(super) struct EventLoop {
    service: EchoService,
    epoll: OwnedFd,
    sources: HashMap<u64, Source>,
    next: u64,
    counters: Arc<Counters>,
}

impl EventLoop {
    pub fn new(service: EchoService, bound: Vec<Source>, counters: Arc<Counters>, stop: &OwnedFd) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let mut event_loop = EventLoop { service, epoll, sources: HashMap::new(), next: 0, counters };
        bound.into_iter().try_for_each(|source| event_loop.add(source))?;
        Ok(event_loop)
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

    pub fn run(&mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            if let Err(error) = epoll::wait(&self.epoll, spare_capacity(&mut events), None)
                && error != rustix::io::Errno::INTR
            {
                return eprintln!("harness: echo server {} stopped: epoll_wait: {error}", self.service.name);
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
        // Removed and inserted again, because accept() adds to the table.
        let Some(mut source) = self.sources.remove(&token) else { return };
        let keep_source = match &mut source {
            Source::Listener(listener) => self.accept(listener),
            Source::Datagrams(socket, at) => self.reply(socket, *at),
            Source::Connection { socket, at, peer } => self.respond(socket, *at, *peer),
        };
        if keep_source {
            self.sources.insert(token, source);
        }
    }

    fn accept(&mut self, listener: &Socket) -> bool {
        for _ in 0..64 {
            let Ok((socket, peer)) = listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) else { break };
            self.counters.connections.fetch_add(1, Ordering::Relaxed);
            let addresses = (socket.local_addr().ok().and_then(|at| at.as_socket()), peer.as_socket());
            let (Some(at), Some(peer)) = addresses else { continue };
            let (at, peer) = (unmapped(at), unmapped(peer));
            if self.service.banner {
                self.counters.requests.fetch_add(1, Ordering::Relaxed);
                let _ = socket.send(&response::line(&self.service.name, at, peer));
            } else if let Err(error) = self.add(Source::Connection { socket, at, peer }) {
                eprintln!("harness: echo server {} dropped a connection: {error:#}", self.service.name);
            }
        }
        true
    }

    fn reply(&self, socket: &UdpSocket, at: SocketAddr) -> bool {
        let mut request = [0; 2048];
        for _ in 0..64 {
            let Ok((_, peer)) = socket.recv_from(&mut request) else { break };
            self.counters.datagrams.fetch_add(1, Ordering::Relaxed);
            let _ = socket.send_to(&response::line(&self.service.name, at, peer), peer);
        }
        true
    }

    /// Treats one read as one request: the harness clients and curl send a request in one piece. Returns false once the
    /// peer has closed the connection.
    fn respond(&self, socket: &mut Socket, at: SocketAddr, peer: SocketAddr) -> bool {
        let mut request = [0; 4096];
        match io::Read::read(socket, &mut request) {
            Ok(0) => false,
            Ok(count) => {
                self.counters.requests.fetch_add(1, Ordering::Relaxed);
                socket.send(&response::build(&request[..count], &self.service.name, at, peer)).is_ok()
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}
