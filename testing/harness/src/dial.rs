//! Complete dials, built from the single calls of a `Client`: one kind for every way in which a program reaches an
//! address.

use std::net::SocketAddr;

use anyhow::Result;

use crate::{
    client::{CallError, Client, Socket},
    errno::Errno,
    identity::{ServerIdentity, mapped},
    protocol::{CallMethod, SocketFamily, SocketOption, SocketType},
};

const REQUEST: &[u8] = b"who\n";
const HTTP_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: demo\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialKind {
    Tcp,
    /// connect returns EINPROGRESS, then poll, then a second connect that returns the result of the first.
    TcpNonblocking,
    /// A second connect on a connected socket, which fails with EISCONN.
    TcpTwice,
    TcpUring,
    /// sendto with MSG_FASTOPEN.
    FastOpenSend,
    /// TCP_FASTOPEN_CONNECT: connect returns at once and the first send dials.
    FastOpenConnect,
    Mptcp,
    UdpConnected,
    UdpConnectedUring,
    /// sendto, recvfrom.
    UdpSendTo,
    /// sendmsg, recvmsg.
    UdpSendMsg,
    UdpUring,
    /// An ICMP echo from a connected datagram socket. The answer contains no server name.
    Ping,
    /// An ICMP echo from a raw socket. The answer contains no server name.
    Raw,
}

impl DialKind {
    pub const TCP: [DialKind; 6] = [
        DialKind::Tcp,
        DialKind::TcpNonblocking,
        DialKind::TcpUring,
        DialKind::FastOpenSend,
        DialKind::FastOpenConnect,
        DialKind::Mptcp,
    ];
    pub const UDP: [DialKind; 5] = [
        DialKind::UdpConnected,
        DialKind::UdpConnectedUring,
        DialKind::UdpSendTo,
        DialKind::UdpSendMsg,
        DialKind::UdpUring,
    ];

    fn socket_type(self) -> SocketType {
        match self {
            DialKind::Mptcp => SocketType::Mptcp,
            DialKind::Ping => SocketType::Ping,
            DialKind::Raw => SocketType::Raw,
            kind if DialKind::UDP.contains(&kind) => SocketType::Udp,
            _ => SocketType::Tcp,
        }
    }

    fn method(self) -> CallMethod {
        match self {
            DialKind::TcpUring | DialKind::UdpConnectedUring | DialKind::UdpUring => CallMethod::Uring,
            DialKind::UdpSendMsg => CallMethod::Message,
            _ => CallMethod::Call,
        }
    }
}

/// The address to dial and the kind of socket call.
#[derive(Clone, Debug)]
pub struct DialRequest {
    pub kind: DialKind,
    pub to: SocketAddr,
    request: &'static [u8],
    bind: Option<SocketAddr>,
    options: Vec<SocketOption>,
}

impl DialRequest {
    pub fn new(kind: DialKind, to: SocketAddr) -> Self {
        DialRequest { kind, to, request: REQUEST, bind: None, options: Vec::new() }
    }

    /// Sends an HTTP request instead of a bare line.
    pub fn http(self) -> Self {
        DialRequest { request: HTTP_REQUEST, ..self }
    }

    /// Dials IPv4 through an AF_INET6 socket.
    pub fn mapped(mut self) -> Self {
        self.to = mapped(self.to);
        self
    }

    /// Binds the socket to this address before the dial, such as loopback or another address of the host.
    pub fn bound(mut self, address: SocketAddr) -> Self {
        self.bind = Some(address);
        self
    }

    pub fn device(mut self, name: &str) -> Self {
        self.options.push(SocketOption::Device(name.into()));
        self
    }

    /// Time limit of each call in milliseconds; 2000 unless set.
    pub fn timeout_ms(mut self, ms: u64) -> Self {
        self.options.push(SocketOption::TimeoutMs(ms));
        self
    }
}

/// Result of a dial. Addresses are as the socket reports them: IPv4-mapped ones stay mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DialOutcome {
    /// The call that failed and its errno. The other fields keep what was known before the failure.
    pub error: Option<(&'static str, Errno)>,
    pub local: Option<SocketAddr>,
    /// getpeername(); None on an unconnected socket.
    pub peer: Option<SocketAddr>,
    /// The source address that recvfrom or recvmsg reported.
    pub from: Option<SocketAddr>,
    pub answer: Option<ServerIdentity>,
    /// Duration of the call that dialled: connect, or the send of an unconnected socket.
    pub nanos: u64,
}

impl DialOutcome {
    pub fn errno(&self) -> Option<Errno> {
        self.error.map(|(_, errno)| errno)
    }

    /// The address of the server that answered.
    pub fn server_address(&self) -> Option<SocketAddr> {
        self.answer.as_ref().map(|answer| answer.address)
    }

    /// The name of the server that answered, or "" if none did.
    pub fn name(&self) -> &str {
        self.answer.as_ref().map_or("", |answer| &answer.name)
    }
}

impl Client {
    /// Dials and requests the server's name. An errno is part of the outcome; an error means that the harness failed.
    pub fn dial(&self, dial: &DialRequest) -> Result<DialOutcome> {
        let mut outcome = DialOutcome::default();
        match self.attempt(dial, &mut outcome) {
            Err(CallError::Os { step, errno }) => outcome.error = Some((step, errno)),
            Err(CallError::Child(error)) => return Err(error),
            Ok(()) => {}
        }
        Ok(outcome)
    }

    fn attempt(&self, dial: &DialRequest, outcome: &mut DialOutcome) -> Result<(), CallError> {
        let socket = self.socket(SocketFamily::of(dial.to), dial.kind.socket_type())?;
        dial.options.iter().try_for_each(|option| socket.set(option.clone()))?;
        dial.bind.map_or(Ok(()), |address| socket.bind(address))?;
        outcome.nanos = send_request(&socket, dial)?;
        // Read before the answer, so that a dial whose answer is lost still reports its peer.
        outcome.local = socket.local().ok();
        outcome.peer = socket.peer().ok();
        let (from, bytes) = socket.receive_with(dial.kind.method())?;
        outcome.from = from;
        outcome.answer = body(&String::from_utf8_lossy(&bytes)).parse().ok();
        Ok(())
    }
}

/// The body of an HTTP response. Any other answer is returned as it is.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or(answer, |(_, body)| body)
}

/// Dials and sends the request. Returns the duration of the dialling call in nanoseconds.
fn send_request(socket: &Socket<'_>, dial: &DialRequest) -> Result<u64, CallError> {
    let (to, method) = (dial.to, dial.kind.method());
    match dial.kind {
        DialKind::FastOpenSend => return socket.fast_open(to, dial.request),
        DialKind::UdpSendTo | DialKind::UdpSendMsg | DialKind::UdpUring => {
            return socket.send_with(Some(to), dial.request, method);
        }
        DialKind::FastOpenConnect => socket.set(SocketOption::FastOpenConnect)?,
        _ => {}
    }
    let nanos = match dial.kind {
        DialKind::TcpNonblocking => connect_nonblocking(socket, to)?,
        _ => socket.connect_with(to, method)?,
    };
    if dial.kind == DialKind::TcpTwice {
        socket.connect(to)?;
    }
    match dial.kind {
        DialKind::Ping | DialKind::Raw => socket.send(echo_request(to))?,
        _ => socket.send_with(None, dial.request, method)?,
    };
    Ok(nanos)
}

fn connect_nonblocking(socket: &Socket<'_>, to: SocketAddr) -> Result<u64, CallError> {
    socket.set(SocketOption::Nonblocking(true))?;
    match socket.connect(to) {
        Err(error) if error.errno() == Some(Errno::EINPROGRESS) => {}
        other => return other, // A hook refuses without EINPROGRESS.
    }
    match socket.poll(true, 2000)? {
        (_, Some(errno)) => return Err(CallError::Os { step: "connect", errno }),
        (false, None) => return Err(CallError::Os { step: "poll", errno: Errno::ETIMEDOUT }),
        (true, None) => {}
    }
    let nanos = socket.connect(to)?;
    socket.set(SocketOption::Nonblocking(false))?;
    Ok(nanos)
}

/// An ICMP echo request. The IPv4 checksum matches these bytes, because a raw socket sends them unchanged. A ping
/// socket overwrites the checksum and the id, and the kernel fills in the IPv6 checksum.
fn echo_request(to: SocketAddr) -> [u8; 8] {
    if to.is_ipv4() { [8, 0, 0xf7, 0xfd, 0, 1, 0, 1] } else { [128, 0, 0, 0, 0, 1, 0, 1] }
}
