//! A flow of packets to an echo server: a TCP connection, or a connected UDP socket.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

use crate::{errno::Errno, identity::ServerIdentity, netns::NetworkNamespace};

/// The kernel sends a SYN at 0, 1 and 3 s, so a dropped flow has lost three packets and not one.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(3_500);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// A dropped UDP flow has lost this many datagrams.
const DATAGRAMS: usize = 4;
const DATAGRAM_TIMEOUT: Duration = Duration::from_millis(600);
const REQUEST: &[u8] = b"who\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowProtocol {
    Tcp,
    Udp,
}

impl FlowProtocol {
    pub const ALL: [FlowProtocol; 2] = [FlowProtocol::Tcp, FlowProtocol::Udp];
}

/// What a client sees of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowResult {
    Answered(ServerIdentity),
    /// ECONNREFUSED: a reset or an ICMP message.
    Refused,
    /// Nothing came back to several packets.
    Dropped,
    Failed(Errno),
}

impl FlowResult {
    /// The name of the server that answered; empty without an answer.
    pub fn name(&self) -> &str {
        match self {
            FlowResult::Answered(server) => &server.name,
            _ => "",
        }
    }

    /// The source address that the server saw.
    pub fn seen_source(&self) -> Option<SocketAddr> {
        match self {
            FlowResult::Answered(server) => Some(server.peer),
            _ => None,
        }
    }

    fn of_error(error: &io::Error) -> FlowResult {
        match error.kind() {
            ErrorKind::ConnectionRefused => FlowResult::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => FlowResult::Dropped,
            _ => FlowResult::Failed(error.raw_os_error().map_or(Errno::EINVAL, Errno)),
        }
    }
}

/// An open flow. The socket stays in the namespace in which it was created.
#[derive(Debug)]
pub struct Flow {
    socket: Socket,
    protocol: FlowProtocol,
}

impl Flow {
    /// Opens a flow, asks once and closes it.
    pub fn dial(from: &NetworkNamespace, protocol: FlowProtocol, source: IpAddr, to: SocketAddr) -> Result<FlowResult> {
        Ok(match Flow::open(from, protocol, (source, 0).into(), to)? {
            Ok(flow) => flow.ask(),
            Err(result) => result,
        })
    }

    /// Opens a flow from this source address. Port 0 stands for any port. The inner result is an error if the connection
    /// cannot be made; a UDP flow always opens.
    pub fn open(
        from: &NetworkNamespace,
        protocol: FlowProtocol,
        source: SocketAddr,
        to: SocketAddr,
    ) -> Result<std::result::Result<Flow, FlowResult>> {
        let kind = if protocol == FlowProtocol::Tcp { Type::STREAM } else { Type::DGRAM };
        let socket = from.run_in(|| Socket::new(Domain::for_address(to), kind, None))??;
        // Flows to two destinations may have the same source port.
        socket.set_reuse_address(true)?;
        socket.bind(&source.into()).with_context(|| format!("cannot bind to {source}"))?;
        let connected = match protocol {
            FlowProtocol::Tcp => socket.connect_timeout(&to.into(), CONNECT_TIMEOUT),
            FlowProtocol::Udp => socket.connect(&to.into()),
        };
        if let Err(error) = connected {
            return Ok(Err(FlowResult::of_error(&error)));
        }
        let limit = if protocol == FlowProtocol::Tcp { ANSWER_TIMEOUT } else { DATAGRAM_TIMEOUT };
        socket.set_read_timeout(Some(limit))?;
        Ok(Ok(Flow { socket, protocol }))
    }

    /// Asks the server for its identity. A UDP request is repeated until an answer or an error comes.
    pub fn ask(&self) -> FlowResult {
        let attempts = if self.protocol == FlowProtocol::Tcp { 1 } else { DATAGRAMS };
        let mut result = FlowResult::Dropped;
        for _ in 0..attempts {
            result = self.ask_once();
            if result != FlowResult::Dropped {
                break;
            }
        }
        result
    }

    /// Sends one request and waits for the answer.
    pub fn ask_once(&self) -> FlowResult {
        match self.exchange() {
            Ok(server) => FlowResult::Answered(server),
            Err(error) => FlowResult::of_error(&error),
        }
    }

    fn exchange(&self) -> io::Result<ServerIdentity> {
        let mut line = [0; 256];
        (&self.socket).write_all(REQUEST)?;
        let count = (&self.socket).read(&mut line)?;
        if count == 0 {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let text = String::from_utf8_lossy(&line[..count]).into_owned();
        text.trim().parse().map_err(|error| io::Error::other(format!("{error:#}")))
    }

    pub fn local_address(&self) -> Result<SocketAddr> {
        self.socket.local_addr()?.as_socket().context("an IP socket")
    }

    /// Closes a TCP connection with a reset, so that its port can be used again at once.
    pub fn reset(self) -> Result<()> {
        Ok(self.socket.set_linger(Some(Duration::ZERO))?)
    }
}
