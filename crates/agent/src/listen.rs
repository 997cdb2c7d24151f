//! Listening where both families are served: `[::]` means both, whatever the host's bindv6only says, and where the host has
//! no IPv6 it means IPv4.

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::TcpListener;

const BACKLOG: i32 = 1024;

pub async fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    if at.ip() != Ipv6Addr::UNSPECIFIED {
        return TcpListener::bind(at).await;
    }
    match both(at) {
        Err(error) if is_without_v6(&error) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, at.port())).await,
        bound => bound,
    }
}

/// A kernel without IPv6, or one where it is switched off.
fn is_without_v6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].iter().any(|none| error.raw_os_error() == Some(none.raw_os_error()))
}

fn both(at: SocketAddr) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn an_address_of_one_family_is_of_that_family() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok());
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_err());
    }

    #[test]
    fn only_the_want_of_ipv6_is_a_reason_for_ipv4_alone() {
        assert!(is_without_v6(&rustix::io::Errno::AFNOSUPPORT.into()));
        assert!(!is_without_v6(&rustix::io::Errno::ADDRINUSE.into()));
        assert!(!is_without_v6(&rustix::io::Errno::ACCESS.into()));
    }
}
