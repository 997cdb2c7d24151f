//! One thread per kind of dial, in its node's network namespace and in its cgroup; the conductor gives them turns.
//!
//! All run on one processor: each turn starts with the same switch of threads, whoever had the last one.

use std::{
    net::SocketAddrV4,
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use beeline_model::Protocol;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt, sockopt::Timeout};

use super::{
    field::Server,
    world::{BACKENDS, POD_PORT, SERVICE_PORT, pod_address, service_address},
};
use crate::ground::{Netns, ThreadGroup};

/// What is dialled; which of the many is chosen anew for each dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Service(Protocol),
    /// A pod itself, at a port that no frontend uses.
    Pod,
    /// A pod itself, at the port that services use.
    Lookalike,
}

impl Target {
    fn address(self, services: u32, random: &mut fastrand::Rng) -> SocketAddrV4 {
        match self {
            Self::Service(_) => SocketAddrV4::new(service_address(random.u32(..services)), SERVICE_PORT),
            Self::Pod => SocketAddrV4::new(pod_address(random.u32(..services * BACKENDS)), POD_PORT),
            Self::Lookalike => SocketAddrV4::new(pod_address(random.u32(..services * BACKENDS)), SERVICE_PORT),
        }
    }

    fn socket(self) -> rustix::io::Result<OwnedFd> {
        let kind = if self.is_udp() { SocketType::DGRAM } else { SocketType::STREAM };
        rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)
    }

    fn is_udp(self) -> bool {
        self == Self::Service(Protocol::Udp)
    }

    /// Where it arrives.
    fn port(self) -> u16 {
        if self == Self::Lookalike { SERVICE_PORT } else { POD_PORT }
    }
}

/// Waits for its thread when dropped: what the thread stands on is removed next.
pub struct Dialler {
    turns: Option<mpsc::SyncSender<u32>>,
    times: mpsc::Receiver<Result<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl Dialler {
    pub fn start(
        group: Arc<ThreadGroup>,
        node: Arc<Netns>,
        server: Arc<Server>,
        target: Target,
        services: u32,
    ) -> Self {
        let (turns, turn) = mpsc::sync_channel(0);
        let (answer, times) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            let entered = group.enter().and_then(|()| node.enter());
            let mut client = Client { server, target, services, random: fastrand::Rng::with_seed(1) };
            for dials in turn {
                let time = match &entered {
                    Ok(()) => client.dial_many(dials),
                    Err(error) => Err(anyhow!("{error:#}")),
                };
                if answer.send(time).is_err() {
                    return;
                }
            }
        });
        Self { turns: Some(turns), times, thread: Some(thread) }
    }

    /// So many dials; the nanoseconds that their connect() took together.
    pub fn turn(&self, dials: u32) -> Result<u64> {
        let sent = self.turns.as_ref().and_then(|turns| turns.send(dials).ok());
        sent.context("the dialler is gone")?;
        self.times.recv().context("the dialler is gone")?
    }
}

impl Drop for Dialler {
    fn drop(&mut self) {
        drop(self.turns.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("a dialler panicked");
        }
    }
}

struct Client {
    server: Arc<Server>,
    target: Target,
    services: u32,
    random: fastrand::Rng,
}

impl Client {
    fn dial_many(&mut self, dials: u32) -> Result<u64> {
        (0..dials).map(|_| self.dial()).sum()
    }

    fn dial(&mut self) -> Result<u64> {
        let address = self.target.address(self.services, &mut self.random);
        let socket = self.target.socket()?;
        if !self.target.is_udp() {
            // Closes by reset: no TIME_WAIT, or the ports would run out and every search for one get slower.
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
            // What is not resolved leads nowhere, and must not wait for two minutes.
            sockopt::set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_secs(5)))?;
        }
        let start = Instant::now();
        let connected = rustix::net::connect(&socket, &address);
        let took = start.elapsed().as_nanos() as u64;
        connected.with_context(|| format!("connect to {address}"))?;
        let accepted = if self.target.is_udp() { None } else { Some(self.server.accept(self.target.port())?) };
        drop(socket);
        drop(accepted);
        Ok(took)
    }
}
