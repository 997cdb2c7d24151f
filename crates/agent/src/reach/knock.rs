//! One TCP knock at a pod's address. Any answer proves that packets go there and come back: also a reset. A router or
//! firewall that says "unreachable" by ICMP, and silence, prove nothing of the kind.

use beeline_datapath::tcp;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::TcpStream;

/// Long enough for one segment that was lost to be sent again.
pub const SILENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Connected,
    Reset,
    Missed(String),
    /// It did not even leave this host, for a reason that has nothing to do with the way.
    Unable(String),
}

pub async fn knock(at: SocketAddr, silence: Duration) -> Answer {
    let stream = match begin(at) {
        Ok(stream) => stream,
        Err(error) => return without_socket(&error),
    };
    match tokio::time::timeout(silence, stream.writable()).await {
        Err(_) => Answer::Missed(format!("silent for {} s", silence.as_secs_f64())),
        Ok(Err(error)) => Answer::Unable(error.to_string()),
        Ok(Ok(())) => judge(&stream),
    }
}

fn begin(at: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::from(at)) {
        Err(error) if error.raw_os_error() != Some(nix::errno::Errno::EINPROGRESS as i32) => return Err(error),
        _ => {}
    }
    TcpStream::from_std(socket.into())
}

/// The route may have gone since it was looked up: that is a miss like any other.
fn without_socket(error: &io::Error) -> Answer {
    match error.kind() {
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable | ErrorKind::ConnectionRefused => {
            Answer::Missed(error.to_string())
        }
        _ => Answer::Unable(error.to_string()),
    }
}

fn judge(stream: &TcpStream) -> Answer {
    let error = match stream.take_error() {
        Ok(None) => return Answer::Connected,
        Ok(Some(error)) | Err(error) => error,
    };
    // "Port unreachable" by ICMP, which firewalls like to say, is the same error as a reset, but no segment came.
    let answered = || tcp::segments_in(stream.as_fd()).is_ok_and(|segments| segments > 0);
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset if answered() => Answer::Reset,
        ErrorKind::ConnectionRefused => Answer::Missed("port unreachable, said by ICMP".into()),
        _ => Answer::Missed(error.to_string()),
    }
}
