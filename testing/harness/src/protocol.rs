//! Protocol between the harness and its child processes: one `ChildRequest` per line of JSON on the child's stdin, one
//! `ChildResponse` per line on its stdout.
//!
//! Most requests are single system calls on numbered sockets that live as long as the child. The parent builds complete
//! dials (`dial.rs`) from them, so a test can change the cluster between any two calls.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{
    echo_server::EchoService,
    errno::Errno,
    load::{LoadConfig, LoadReport},
    probe::{ProbeConfig, ProbeReport},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketFamily {
    V4,
    /// Also dials IPv4, as `::ffff:a.b.c.d`.
    V6,
}

impl SocketFamily {
    pub fn of(address: SocketAddr) -> Self {
        if address.is_ipv4() { SocketFamily::V4 } else { SocketFamily::V6 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketType {
    Tcp,
    Mptcp,
    Udp,
    /// A datagram ICMP socket, as `ping` uses without privileges.
    Ping,
    /// A raw ICMP socket.
    Raw,
}

/// The system call that carries out a request. The hooks must behave the same for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallMethod {
    /// connect, send/sendto, recvfrom.
    #[default]
    Call,
    /// sendmsg, recvmsg.
    Message,
    /// connect, sendmsg and recvmsg through io_uring.
    Uring,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketOption {
    /// SO_BINDTODEVICE.
    Device(String),
    FastOpenConnect,
    /// SO_LINGER 0: close sends a reset and leaves no TIME_WAIT.
    Linger0,
    Nonblocking(bool),
    /// Time limit of blocking calls. Beyond it connect fails with EINPROGRESS (ECANCELED through io_uring), other calls
    /// with EAGAIN.
    TimeoutMs(u64),
}

pub type Slot = u32;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ChildRequest {
    Socket {
        family: SocketFamily,
        socket_type: SocketType,
    },
    Set {
        slot: Slot,
        option: SocketOption,
    },
    Bind {
        slot: Slot,
        to: SocketAddr,
    },
    Connect {
        slot: Slot,
        to: SocketAddr,
        method: CallMethod,
    },
    /// connect() with AF_UNSPEC.
    Disconnect {
        slot: Slot,
    },
    /// `to` is None on a connected socket.
    Send {
        slot: Slot,
        to: Option<SocketAddr>,
        bytes: Vec<u8>,
        method: CallMethod,
    },
    /// sendmsg() with IP_PKTINFO or IPV6_PKTINFO, which chooses the source address of one datagram.
    SendFrom {
        slot: Slot,
        source: IpAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
    /// sendto() with MSG_FASTOPEN, which connects and sends.
    FastOpen {
        slot: Slot,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
    Receive {
        slot: Slot,
        method: CallMethod,
    },
    /// Waits until the socket is ready, then reads and clears SO_ERROR.
    Poll {
        slot: Slot,
        write: bool,
        ms: u32,
    },
    Peer {
        slot: Slot,
    },
    Local {
        slot: Slot,
    },
    Cookie {
        slot: Slot,
    },
    Close {
        slot: Slot,
    },
    /// Starts an echo server in the child's own namespace and cgroup.
    Serve(EchoService),
    ServerCounts {
        slot: Slot,
    },
    StopServer {
        slot: Slot,
    },
    StartLoad(LoadConfig),
    /// Stops the load, immediately or when its own limit is reached, and returns its report.
    StopLoad {
        now: bool,
    },
    /// Sends and receives on a connected UDP socket in the background.
    StartProbe {
        slot: Slot,
        config: ProbeConfig,
    },
    /// Waits up to `ms` for the first error, then stops the probe.
    StopProbe {
        slot: Slot,
        ms: u64,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ChildValue {
    Done,
    Slot(Slot),
    /// Number of bytes sent.
    Count(usize),
    Address(SocketAddr),
    Cookie(u64),
    Received {
        /// None where the kernel reports no source, as on a connected TCP socket.
        from: Option<SocketAddr>,
        bytes: Vec<u8>,
    },
    /// `error` is SO_ERROR after the poll, or None if there is none or the time ran out.
    Ready {
        ready: bool,
        error: Option<Errno>,
    },
    ServerCounts {
        connections: u64,
        requests: u64,
        datagrams: u64,
    },
    LoadReport(LoadReport),
    ProbeReport(ProbeReport),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildResponse {
    /// Duration of the call itself.
    pub nanos: u64,
    pub result: Result<ChildValue, Errno>,
}
