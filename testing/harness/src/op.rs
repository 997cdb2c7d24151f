//! What a dialling child understands: one `Op` per line of JSON on its stdin, one `Reply` per line on its stdout.
//!
//! The ops are the system calls of a client, one by one, on numbered sockets that live as long as the child. Whole
//! dials (`dial.rs`) are made of them on this side, so a test can change the world between any two calls.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{
    errno::Errno,
    serve::Service,
    storm::{Storm, Tally},
    watch::{Watch, Watched},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    V4,
    /// Dials IPv4 too, through `::ffff:a.b.c.d`.
    V6,
}

impl Family {
    pub fn of(address: SocketAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sort {
    Tcp,
    Mptcp,
    Udp,
    /// An ICMP socket of the datagram kind, as `ping` uses without privileges.
    Ping,
    /// A raw ICMP socket.
    Raw,
}

/// By which system call an op reaches the kernel: the hooks must not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// connect, send/sendto, recvfrom.
    #[default]
    Call,
    /// sendmsg, recvmsg.
    Message,
    /// The same through io_uring.
    Uring,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    /// SO_BINDTODEVICE.
    Device(String),
    FastOpenConnect,
    /// SO_LINGER 0: close sends a reset and leaves no TIME_WAIT.
    Linger0,
    Nonblocking(bool),
    /// For blocking calls; a connect that exceeds it ends with EINPROGRESS, through io_uring with ECANCELED, all
    /// others with EAGAIN.
    TimeoutMs(u64),
}

pub type Slot = u32;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Op {
    Socket {
        family: Family,
        sort: Sort,
    },
    Set {
        slot: Slot,
        setting: Setting,
    },
    Bind {
        slot: Slot,
        to: SocketAddr,
    },
    Connect {
        slot: Slot,
        to: SocketAddr,
        by: By,
    },
    /// connect() with AF_UNSPEC.
    Disconnect {
        slot: Slot,
    },
    /// Without `to`: on a connected socket.
    Send {
        slot: Slot,
        to: Option<SocketAddr>,
        bytes: Vec<u8>,
        by: By,
    },
    /// sendto() with MSG_FASTOPEN: connect and send in one.
    FastOpen {
        slot: Slot,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
    Receive {
        slot: Slot,
        by: By,
    },
    /// Waits until the socket is ready; gives SO_ERROR, which is then cleared.
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
    /// A server in the child's own namespace and cgroup, as a pod's is.
    Serve(Service),
    Hits {
        slot: Slot,
    },
    ServeEnd {
        slot: Slot,
    },
    Storm(Storm),
    /// Ends the storm, now or when its own limit is reached, and gives its tally.
    StormEnd {
        now: bool,
    },
    /// Sends and receives on a connected UDP socket in the background.
    Watch {
        slot: Slot,
        watch: Watch,
    },
    /// Waits up to `ms` for the first error, then ends it.
    WatchEnd {
        slot: Slot,
        ms: u64,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Value {
    Done,
    Slot(Slot),
    /// Bytes sent.
    Count(usize),
    Address(SocketAddr),
    Cookie(u64),
    Received {
        /// None where the kernel names no source (a connected TCP socket).
        from: Option<SocketAddr>,
        bytes: Vec<u8>,
    },
    /// SO_ERROR after a poll, or None if the time ran out or there is none.
    Ready {
        ready: bool,
        error: Option<Errno>,
    },
    Hits {
        connections: u64,
        requests: u64,
        datagrams: u64,
    },
    Tally(Tally),
    Watched(Watched),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// How long the call itself took.
    pub nanos: u64,
    pub result: Result<Value, Errno>,
}
