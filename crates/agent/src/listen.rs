//! Binds TCP listeners. `[::]` accepts IPv4 and IPv6, whatever `net.ipv6.bindv6only` is; on a host without IPv6 it accepts
//! IPv4 only.

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::TcpListener;

const BACKLOG: i32 = 1024;

pub async fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    if at.ip() != Ipv6Addr::UNSPECIFIED {
        return TcpListener::bind(at).await;
    }
    match bind_dual_stack(at) {
        Err(error) if is_ipv6_missing(&error) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, at.port())).await,
        bound => bound,
    }
}

/// Whether the kernel has no IPv6, or has it switched off.
fn is_ipv6_missing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn bind_dual_stack(at: SocketAddr) -> io::Result<TcpListener> {
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
    async fn an_ipv4_address_does_not_accept_ipv6() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok());
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_err());
    }

    #[test]
    fn only_missing_ipv6_falls_back_to_ipv4() {
        assert!(is_ipv6_missing(&rustix::io::Errno::AFNOSUPPORT.into()));
        assert!(!is_ipv6_missing(&rustix::io::Errno::ADDRINUSE.into()));
        assert!(!is_ipv6_missing(&rustix::io::Errno::ACCESS.into()));
    }
}
