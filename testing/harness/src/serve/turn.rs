//! The thread of a server: one epoll over its listeners, its UDP sockets and its connections.

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

use super::{Hits, Service, answer};
use crate::identity::unmapped;

#[derive(Debug)]
pub(super) enum Source {
    Listener(Socket),
    Datagrams(UdpSocket, SocketAddr),
    Connection { socket: Socket, at: SocketAddr, peer: SocketAddr },
}

/// The token of the server's wish to stop; sources count from 0.
const STOP: u64 = u64::MAX;

/// The state of a server's thread.
pub(super) struct Turn {
    service: Service,
    epoll: OwnedFd,
    sources: HashMap<u64, Source>,
    next: u64,
    hits: Arc<Hits>,
}

impl Turn {
    pub fn new(service: Service, bound: Vec<Source>, hits: Arc<Hits>, stop: &OwnedFd) -> Result<Self> {
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

    pub fn run(&mut self) {
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
