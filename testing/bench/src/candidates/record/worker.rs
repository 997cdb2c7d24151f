//! One thread per candidate, in a cgroup of its own; the conductor gives them turns, one at a time.
//!
//! A thread each, because a socket takes the cgroup of the thread that creates it, and moving a thread waits for a grace
//! period. All run on one processor: each turn starts with the same switch of threads, whoever had the last one.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::ground::{Netns, ThreadGroup};

pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 96, 0, 1), 80);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
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

/// What is dialled: a TCP listener and a UDP socket on one port of the loopback.
pub struct Server {
    tcp: OwnedFd,
    udp: OwnedFd,
    pub address: SocketAddrV4,
}

impl Server {
    pub fn bind() -> Result<Self> {
        let tcp = Protocol::Tcp.socket()?;
        rustix::net::bind(&tcp, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        rustix::net::listen(&tcp, 64)?;
        let address = local(&tcp)?;
        let udp = Protocol::Udp.socket()?;
        rustix::net::bind(&udp, &address)?;
        Ok(Self { tcp, udp, address })
    }
}

fn local(socket: &OwnedFd) -> Result<SocketAddrV4> {
    SocketAddrV4::try_from(rustix::net::getsockname(socket)?).context("a socket without an IPv4 address")
}

#[derive(Debug, Clone, Copy)]
pub enum Turn {
    /// One dial, each system call timed by itself.
    Dial(Protocol),
    /// Many dials, timed as one: this sees what the kernel puts off (freeing by RCU, softirq).
    Block(Protocol, u32),
    /// One datagram from the server to a socket that was connected before.
    Receive,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// connect() or recvfrom() alone; for a block, the mean per dial.
    pub call: u64,
    /// socket(), connect() and close() together.
    pub whole: u64,
}

pub struct Worker {
    turns: mpsc::SyncSender<Turn>,
    times: mpsc::Receiver<Result<Times>>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub fn start(group: ThreadGroup, netns: Arc<Netns>, server: Arc<Server>, dialled: SocketAddrV4) -> Self {
        let (turns, turn) = mpsc::sync_channel(0);
        let (answer, times) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            let entered = group.enter().and_then(|()| netns.enter());
            let mut client = Client { server, dialled, listening: None };
            for turn in turn {
                let times = match &entered {
                    Ok(()) => client.take(turn),
                    Err(error) => Err(anyhow!("{error:#}")),
                };
                if answer.send(times).is_err() {
                    return;
                }
            }
        });
        Self { turns, times, thread }
    }

    pub fn turn(&self, turn: Turn) -> Result<Times> {
        self.turns.send(turn).map_err(|_| anyhow!("the worker is gone"))?;
        self.times.recv().context("the worker is gone")?
    }

    pub fn stop(self) -> Result<()> {
        drop(self.turns);
        self.thread.join().map_err(|_| anyhow!("the worker panicked"))
    }
}

struct Client {
    server: Arc<Server>,
    dialled: SocketAddrV4,
    /// A UDP socket that keeps its record over many datagrams, opened by the first of them.
    listening: Option<OwnedFd>,
}

impl Client {
    fn take(&mut self, turn: Turn) -> Result<Times> {
        match turn {
            Turn::Dial(protocol) => self.dial(protocol),
            Turn::Block(protocol, dials) => self.block(protocol, dials),
            Turn::Receive => self.receive(),
        }
    }

    fn dial(&self, protocol: Protocol) -> Result<Times> {
        let (socket, opened) = timed(|| protocol.socket());
        let socket = socket?;
        if protocol == Protocol::Tcp {
            // Closes by reset: no TIME_WAIT, or the ports would run out and every search for one get slower.
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        }
        let (connected, call) = timed(|| rustix::net::connect(&socket, &self.dialled));
        connected.context("connect")?;
        let accepted = match protocol {
            Protocol::Tcp => Some(rustix::net::accept(&self.server.tcp)?),
            Protocol::Udp => None,
        };
        let ((), closed) = timed(|| drop(socket));
        drop(accepted);
        Ok(Times { call, whole: opened + call + closed })
    }

    fn block(&self, protocol: Protocol, dials: u32) -> Result<Times> {
        let start = Instant::now();
        for _ in 0..dials {
            self.dial(protocol)?;
        }
        let each = start.elapsed().as_nanos() as u64 / u64::from(dials);
        Ok(Times { call: each, whole: each })
    }

    fn receive(&mut self) -> Result<Times> {
        let mut buffer = [0; 64];
        let socket = match self.listening.take() {
            Some(socket) => socket,
            None => self.listen()?,
        };
        rustix::net::sendto(&self.server.udp, &buffer, SendFlags::empty(), &local(&socket)?)?;
        let (received, call) = timed(|| rustix::net::recvfrom(&socket, &mut buffer[..], RecvFlags::DONTWAIT));
        let (_, _, from) = received.context("recvfrom")?;
        let from = from.and_then(|address| SocketAddrV4::try_from(address).ok());
        // What is fast because its record is gone is no candidate.
        ensure!(from == Some(self.dialled), "dialled {}, answered by {from:?}", self.dialled);
        self.listening = Some(socket);
        Ok(Times { call, whole: call })
    }

    fn listen(&self) -> Result<OwnedFd> {
        let socket = Protocol::Udp.socket()?;
        rustix::net::connect(&socket, &self.dialled)?;
        Ok(socket)
    }
}

fn timed<T>(call: impl FnOnce() -> T) -> (T, u64) {
    let start = Instant::now();
    let result = call();
    (result, start.elapsed().as_nanos() as u64)
}
