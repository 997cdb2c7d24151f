//! One thread per kind of dial, in its node's network namespace and cgroup. The main thread requests dials from them in
//! turn.
//!
//! All threads run on one processor, so every request starts with the same context switch.

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
    network::PodServer,
    objects::{BACKENDS, POD_PORT, SERVICE_PORT, pod_address, service_address},
};
use crate::isolation::{BenchNamespace, ThreadGroup};

/// Kind of address to dial. The address is chosen at random for each dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketTarget {
    Service(Protocol),
    /// A pod's address with a port that no frontend uses.
    Pod,
    /// A pod's address with the port that Services use.
    PodAtServicePort,
}

impl SocketTarget {
    fn address(self, services: u32, random: &mut fastrand::Rng) -> SocketAddrV4 {
        match self {
            Self::Service(_) => SocketAddrV4::new(service_address(random.u32(..services)), SERVICE_PORT),
            Self::Pod => SocketAddrV4::new(pod_address(random.u32(..services * BACKENDS)), POD_PORT),
            Self::PodAtServicePort => SocketAddrV4::new(pod_address(random.u32(..services * BACKENDS)), SERVICE_PORT),
        }
    }

    fn socket(self) -> rustix::io::Result<OwnedFd> {
        let kind = if self.is_udp() { SocketType::DGRAM } else { SocketType::STREAM };
        rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)
    }

    fn is_udp(self) -> bool {
        self == Self::Service(Protocol::Udp)
    }

    /// Port at which the server accepts the connection.
    fn port(self) -> u16 {
        if self == Self::PodAtServicePort { SERVICE_PORT } else { POD_PORT }
    }
}

/// Joins its thread when dropped, because the thread's namespace and cgroup are removed afterwards.
pub struct DialThread {
    requests: Option<mpsc::SyncSender<u32>>,
    times: mpsc::Receiver<Result<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl DialThread {
    pub fn start(
        group: Arc<ThreadGroup>,
        node: Arc<BenchNamespace>,
        server: Arc<PodServer>,
        target: SocketTarget,
        services: u32,
    ) -> Self {
        let (requests, received) = mpsc::sync_channel(0);
        let (answer, times) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            let entered = group.enter().and_then(|()| node.enter());
            let mut client = Client { server, target, services, random: fastrand::Rng::with_seed(1) };
            for dials in received {
                let time = match &entered {
                    Ok(()) => client.dial_many(dials),
                    Err(error) => Err(anyhow!("{error:#}")),
                };
                if answer.send(time).is_err() {
                    return;
                }
            }
        });
        Self { requests: Some(requests), times, thread: Some(thread) }
    }

    /// Makes this many dials and returns the total duration of their connect() calls in nanoseconds.
    pub fn dial(&self, dials: u32) -> Result<u64> {
        let sent = self.requests.as_ref().and_then(|requests| requests.send(dials).ok());
        sent.context("the dialling thread has ended")?;
        self.times.recv().context("the dialling thread has ended")?
    }
}

impl Drop for DialThread {
    fn drop(&mut self) {
        drop(self.requests.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("a dialling thread panicked");
        }
    }
}

struct Client {
    server: Arc<PodServer>,
    target: SocketTarget,
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
            // Closes with a reset. Ports in TIME_WAIT would make the search for a free port slower.
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
            // A dial that is not resolved must not wait for two minutes.
            sockopt::set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_secs(5)))?;
        }
        let start = Instant::now();
        let connected = rustix::net::connect(&socket, &address);
        let took = start.elapsed().as_nanos() as u64;
        connected.with_context(|| format!("cannot connect to {address}"))?;
        let accepted = if self.target.is_udp() { None } else { Some(self.server.accept(self.target.port())?) };
        drop(socket);
        drop(accepted);
        Ok(took)
    }
}
