//! One thread per candidate, in a cgroup of its own, which works on request.
//!
//! Each candidate has a thread, because a socket belongs to the cgroup of the thread that creates it, and moving a
//! thread waits for a grace period. All threads run on one processor, so every request starts with the same context
//! switch.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::isolation::{BenchNamespace, ThreadGroup};

pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 96, 0, 1), 80);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketProtocol {
    Tcp,
    Udp,
}

impl SocketProtocol {
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    fn socket(self) -> rustix::io::Result<OwnedFd> {
        let kind = match self {
            Self::Tcp => SocketType::STREAM,
            Self::Udp => SocketType::DGRAM,
        };
        rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)
    }
}

/// A TCP listener and a UDP socket on one port of the loopback device.
pub struct LoopbackServer {
    tcp: OwnedFd,
    udp: OwnedFd,
    pub address: SocketAddrV4,
}

impl LoopbackServer {
    pub fn bind() -> Result<Self> {
        let tcp = SocketProtocol::Tcp.socket()?;
        rustix::net::bind(&tcp, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        rustix::net::listen(&tcp, 64)?;
        let address = local(&tcp)?;
        let udp = SocketProtocol::Udp.socket()?;
        rustix::net::bind(&udp, &address)?;
        Ok(Self { tcp, udp, address })
    }
}

fn local(socket: &OwnedFd) -> Result<SocketAddrV4> {
    SocketAddrV4::try_from(rustix::net::getsockname(socket)?).context("a socket without an IPv4 address")
}

#[derive(Debug, Clone, Copy)]
pub enum WorkRequest {
    /// One dial, with each system call timed.
    Dial(SocketProtocol),
    /// Many dials, timed together, which includes deferred work of the kernel (RCU, softirq).
    Block(SocketProtocol, u32),
    /// One datagram from the server to a socket that was connected before.
    Receive,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct CallTimes {
    /// Duration of connect() or recvfrom(); for a block the mean per dial.
    pub call: u64,
    /// Duration of socket(), connect() and close().
    pub total: u64,
}

pub struct Worker {
    requests: mpsc::SyncSender<WorkRequest>,
    times: mpsc::Receiver<Result<CallTimes>>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub fn start(
        group: ThreadGroup,
        netns: Arc<BenchNamespace>,
        server: Arc<LoopbackServer>,
        dialled: SocketAddrV4,
    ) -> Self {
        let (requests, received) = mpsc::sync_channel(0);
        let (answer, times) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            let entered = group.enter().and_then(|()| netns.enter());
            let mut client = Client { server, dialled, listening: None };
            for request in received {
                let times = match &entered {
                    Ok(()) => client.handle(request),
                    Err(error) => Err(anyhow!("{error:#}")),
                };
                if answer.send(times).is_err() {
                    return;
                }
            }
        });
        Self { requests, times, thread }
    }

    pub fn request(&self, request: WorkRequest) -> Result<CallTimes> {
        self.requests.send(request).map_err(|_| anyhow!("the worker has ended"))?;
        self.times.recv().context("the worker has ended")?
    }

    pub fn stop(self) -> Result<()> {
        drop(self.requests);
        self.thread.join().map_err(|_| anyhow!("the worker panicked"))
    }
}

struct Client {
    server: Arc<LoopbackServer>,
    dialled: SocketAddrV4,
    /// A UDP socket whose record is used for many datagrams; opened by the first one.
    listening: Option<OwnedFd>,
}

impl Client {
    fn handle(&mut self, request: WorkRequest) -> Result<CallTimes> {
        match request {
            WorkRequest::Dial(protocol) => self.dial(protocol),
            WorkRequest::Block(protocol, dials) => self.block(protocol, dials),
            WorkRequest::Receive => self.receive(),
        }
    }

    fn dial(&self, protocol: SocketProtocol) -> Result<CallTimes> {
        let (socket, opened) = timed(|| protocol.socket());
        let socket = socket?;
        if protocol == SocketProtocol::Tcp {
            // Closes with a reset. Ports in TIME_WAIT would make the search for a free port slower.
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        }
        let (connected, call) = timed(|| rustix::net::connect(&socket, &self.dialled));
        connected.context("connect")?;
        let accepted = match protocol {
            SocketProtocol::Tcp => Some(rustix::net::accept(&self.server.tcp)?),
            SocketProtocol::Udp => None,
        };
        let ((), closed) = timed(|| drop(socket));
        drop(accepted);
        Ok(CallTimes { call, total: opened + call + closed })
    }

    fn block(&self, protocol: SocketProtocol, dials: u32) -> Result<CallTimes> {
        let start = Instant::now();
        for _ in 0..dials {
            self.dial(protocol)?;
        }
        let each = start.elapsed().as_nanos() as u64 / u64::from(dials);
        Ok(CallTimes { call: each, total: each })
    }

    fn receive(&mut self) -> Result<CallTimes> {
        let mut buffer = [0; 64];
        let socket = match self.listening.take() {
            Some(socket) => socket,
            None => self.listen()?,
        };
        rustix::net::sendto(&self.server.udp, &buffer, SendFlags::empty(), &local(&socket)?)?;
        let (received, call) = timed(|| rustix::net::recvfrom(&socket, &mut buffer[..], RecvFlags::DONTWAIT));
        let (_, _, from) = received.context("recvfrom")?;
        let from = from.and_then(|address| SocketAddrV4::try_from(address).ok());
        // A candidate that lost its record must not count as fast.
        ensure!(from == Some(self.dialled), "dialled {}, answered by {from:?}", self.dialled);
        self.listening = Some(socket);
        Ok(CallTimes { call, total: call })
    }

    fn listen(&self) -> Result<OwnedFd> {
        let socket = SocketProtocol::Udp.socket()?;
        rustix::net::connect(&socket, &self.dialled)?;
        Ok(socket)
    }
}

fn timed<T>(call: impl FnOnce() -> T) -> (T, u64) {
    let start = Instant::now();
    let result = call();
    (result, start.elapsed().as_nanos() as u64)
}
