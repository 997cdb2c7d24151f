//! Probes a pod's address by opening a TCP connection. Any TCP answer, also a reset, proves that packets reach the address
//! and come back. An ICMP error from a router or firewall, or no answer, does not.

use beeline_datapath::tcp;
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::TcpStream;

/// Long enough for the retransmission of one lost segment.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    Connected,
    Reset,
    /// No TCP answer, with the reason.
    NoAnswer(String),
    /// The probe was not sent, for a reason that says nothing about the path.
    LocalError(String),
}

pub async fn probe(address: SocketAddr, timeout: Duration) -> ProbeResult {
    let stream = match start_connect(address) {
        Ok(stream) => stream,
        Err(error) => return connect_error(&error),
    };
    match tokio::time::timeout(timeout, stream.writable()).await {
        Err(_) => ProbeResult::NoAnswer(format!("no answer within {} s", timeout.as_secs_f64())),
        Ok(Err(error)) => ProbeResult::LocalError(error.to_string()),
        Ok(Ok(())) => connect_result(&stream),
    }
}

fn start_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::from(address)) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => return Err(error),
        _ => {}
    }
    TcpStream::from_std(socket.into())
}

/// The route may have been removed since it was looked up, so "unreachable" counts as no answer.
fn connect_error(error: &io::Error) -> ProbeResult {
    match error.kind() {
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable | ErrorKind::ConnectionRefused => {
            ProbeResult::NoAnswer(error.to_string())
        }
        _ => ProbeResult::LocalError(error.to_string()),
    }
}

fn connect_result(stream: &TcpStream) -> ProbeResult {
    let error = match stream.take_error() {
        Ok(None) => return ProbeResult::Connected,
        Ok(Some(error)) | Err(error) => error,
    };
    // An ICMP "port unreachable", which firewalls often send, gives the same error as a reset, but no segment arrived.
    let segment_arrived = || tcp::segments_in(stream.as_fd()).is_ok_and(|segments| segments > 0);
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset if segment_arrived() => ProbeResult::Reset,
        ErrorKind::ConnectionRefused => ProbeResult::NoAnswer("port unreachable (ICMP)".into()),
        _ => ProbeResult::NoAnswer(error.to_string()),
    }
}
