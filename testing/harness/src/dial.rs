//! Whole dials, made of the single calls of a `Client`: every way in which a program can reach an address.

use std::net::SocketAddr;

use anyhow::Result;

use crate::{
    client::{CallError, Client, Socket},
    errno::Errno,
    identity::{Identity, mapped},
    op::{By, Family, Setting, Sort},
};

const ASK: &[u8] = b"who\n";
const ASK_HTTP: &[u8] = b"GET / HTTP/1.1\r\nHost: demo\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    /// connect gives EINPROGRESS, poll, and connect once more (which tells the end of the first).
    TcpNonblocking,
    /// connect on a socket that is already connected; the errno of the second is EISCONN.
    TcpTwice,
    TcpUring,
    /// sendto with MSG_FASTOPEN.
    FastOpenSend,
    /// TCP_FASTOPEN_CONNECT: connect returns at once, the first send dials.
    FastOpenConnect,
    Mptcp,
    UdpConnected,
    UdpConnectedUring,
    /// sendto, recvfrom.
    UdpSendTo,
    /// sendmsg, recvmsg.
    UdpSendMsg,
    UdpUring,
    /// An ICMP echo from a connected datagram socket, and from a raw one: nobody answers with an identity.
    Ping,
    Raw,
}

impl Kind {
    pub const TCP: [Kind; 6] =
        [Kind::Tcp, Kind::TcpNonblocking, Kind::TcpUring, Kind::FastOpenSend, Kind::FastOpenConnect, Kind::Mptcp];
    pub const UDP: [Kind; 5] =
        [Kind::UdpConnected, Kind::UdpConnectedUring, Kind::UdpSendTo, Kind::UdpSendMsg, Kind::UdpUring];

    fn sort(self) -> Sort {
        match self {
            Kind::Mptcp => Sort::Mptcp,
            Kind::Ping => Sort::Ping,
            Kind::Raw => Sort::Raw,
            kind if Kind::UDP.contains(&kind) => Sort::Udp,
            _ => Sort::Tcp,
        }
    }

    fn by(self) -> By {
        match self {
            Kind::TcpUring | Kind::UdpConnectedUring | Kind::UdpUring => By::Uring,
            Kind::UdpSendMsg => By::Message,
            _ => By::Call,
        }
    }
}

/// What to dial, and from what kind of socket.
#[derive(Clone, Debug)]
pub struct Dial {
    pub kind: Kind,
    pub to: SocketAddr,
    ask: &'static [u8],
    bind: Option<SocketAddr>,
    settings: Vec<Setting>,
}

impl Dial {
    pub fn new(kind: Kind, to: SocketAddr) -> Self {
        Dial { kind, to, ask: ASK, bind: None, settings: Vec::new() }
    }

    /// Asks by an HTTP request.
    pub fn http(self) -> Self {
        Dial { ask: ASK_HTTP, ..self }
    }

    /// IPv4 through an AF_INET6 socket.
    pub fn mapped(mut self) -> Self {
        self.to = mapped(self.to);
        self
    }

    /// Bound to this address before the dial (loopback, another of the host's addresses).
    pub fn bound(mut self, address: SocketAddr) -> Self {
        self.bind = Some(address);
        self
    }

    pub fn device(mut self, name: &str) -> Self {
        self.settings.push(Setting::Device(name.into()));
        self
    }

    /// How long each call may take; 2 s unless set.
    pub fn patience_ms(mut self, ms: u64) -> Self {
        self.settings.push(Setting::TimeoutMs(ms));
        self
    }
}

/// What came of a dial. Addresses are as the socket shows them: mapped ones stay mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The call that failed, and how; what was learned before it is kept.
    pub error: Option<(&'static str, Errno)>,
    pub local: Option<SocketAddr>,
    /// getpeername; None on an unconnected socket.
    pub peer: Option<SocketAddr>,
    /// The source that recvfrom or recvmsg named.
    pub from: Option<SocketAddr>,
    pub answer: Option<Identity>,
    /// Of the call that dialled: connect, or the send of an unconnected socket.
    pub nanos: u64,
}

impl Outcome {
    pub fn errno(&self) -> Option<Errno> {
        self.error.map(|(_, errno)| errno)
    }

    /// The address that answered: what the dial became.
    pub fn at(&self) -> Option<SocketAddr> {
        self.answer.as_ref().map(|answer| answer.at)
    }

    /// The name of the server that answered, "" if none did.
    pub fn name(&self) -> &str {
        self.answer.as_ref().map_or("", |answer| &answer.name)
    }
}

impl Client {
    /// Dials and asks who answers. An errno is an outcome; an error is trouble with the lab.
    pub fn dial(&self, dial: &Dial) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        match self.attempt(dial, &mut outcome) {
            Err(CallError::Os { step, errno }) => outcome.error = Some((step, errno)),
            Err(CallError::Child(error)) => return Err(error),
            Ok(()) => {}
        }
        Ok(outcome)
    }

    fn attempt(&self, dial: &Dial, outcome: &mut Outcome) -> Result<(), CallError> {
        let socket = self.socket(Family::of(dial.to), dial.kind.sort())?;
        dial.settings.iter().try_for_each(|setting| socket.set(setting.clone()))?;
        dial.bind.map_or(Ok(()), |address| socket.bind(address))?;
        outcome.nanos = reach(&socket, dial)?;
        // Asked before the answer: a dial whose answer is lost still tells whom it believes to talk to.
        outcome.local = socket.local().ok();
        outcome.peer = socket.peer().ok();
        let (from, bytes) = socket.receive_by(dial.kind.by())?;
        outcome.from = from;
        outcome.answer = body(&String::from_utf8_lossy(&bytes)).parse().ok();
        Ok(())
    }
}

/// Of an HTTP response; any other answer is all body.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or(answer, |(_, body)| body)
}

/// Up to and including the request.
fn reach(socket: &Socket<'_>, dial: &Dial) -> Result<u64, CallError> {
    let (to, by) = (dial.to, dial.kind.by());
    match dial.kind {
        Kind::FastOpenSend => return socket.fast_open(to, dial.ask),
        Kind::UdpSendTo | Kind::UdpSendMsg | Kind::UdpUring => return socket.send_by(Some(to), dial.ask, by),
        Kind::FastOpenConnect => socket.set(Setting::FastOpenConnect)?,
        _ => {}
    }
    let nanos = match dial.kind {
        Kind::TcpNonblocking => nonblocking(socket, to)?,
        _ => socket.connect_by(to, by)?,
    };
    if dial.kind == Kind::TcpTwice {
        socket.connect(to)?;
    }
    match dial.kind {
        Kind::Ping | Kind::Raw => socket.send(echo(to))?,
        _ => socket.send_by(None, dial.ask, by)?,
    };
    Ok(nanos)
}

fn nonblocking(socket: &Socket<'_>, to: SocketAddr) -> Result<u64, CallError> {
    socket.set(Setting::Nonblocking(true))?;
    match socket.connect(to) {
        Err(error) if error.errno() == Some(Errno::EINPROGRESS) => {}
        other => return other, // A refusal by a hook comes at once.
    }
    match socket.poll(true, 2000)? {
        (_, Some(errno)) => return Err(CallError::Os { step: "connect", errno }),
        (false, None) => return Err(CallError::Os { step: "poll", errno: Errno::ETIMEDOUT }),
        (true, None) => {}
    }
    let nanos = socket.connect(to)?;
    socket.set(Setting::Nonblocking(false))?;
    Ok(nanos)
}

/// An ICMP echo request. The checksum of v4 is right for these very bytes (a raw socket sends them as they are);
/// a ping socket overwrites it and the id, and the kernel fills in that of v6.
fn echo(to: SocketAddr) -> [u8; 8] {
    if to.is_ipv4() { [8, 0, 0xf7, 0xfd, 0, 1, 0, 1] } else { [128, 0, 0, 0, 0, 1, 0, 1] }
}
