//! Sockets of a child process: thin wrappers around the system calls that return the exact errno.

use std::{
    io::{IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny},
};
use socket2::{Domain, Protocol, Type};

use crate::{
    errno::Errno,
    protocol::{CallMethod, SocketFamily, SocketOption, SocketType},
    sys,
};

/// Time limit of a call unless the caller sets one. A lost packet must fail a test, not hang it.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Socket(socket2::Socket);

pub(crate) fn open(family: SocketFamily, socket_type: SocketType) -> Result<Socket, Errno> {
    let (domain, icmp) = match family {
        SocketFamily::V4 => (Domain::IPV4, Protocol::ICMPV4),
        SocketFamily::V6 => (Domain::IPV6, Protocol::ICMPV6),
    };
    let (kind, protocol) = match socket_type {
        SocketType::Tcp => (Type::STREAM, Protocol::TCP),
        SocketType::Mptcp => (Type::STREAM, Protocol::MPTCP),
        SocketType::Udp => (Type::DGRAM, Protocol::UDP),
        SocketType::Ping => (Type::DGRAM, icmp),
        SocketType::Raw => (Type::RAW, icmp),
    };
    let socket = Socket(socket2::Socket::new(domain, kind, Some(protocol))?);
    socket.set(SocketOption::TimeoutMs(DEFAULT_TIMEOUT.as_millis() as u64))?;
    Ok(socket)
}

impl Socket {
    pub fn set(&self, option: SocketOption) -> Result<(), Errno> {
        match option {
            SocketOption::Device(name) => self.0.bind_device(Some(name.as_bytes()))?,
            SocketOption::FastOpenConnect => sys::fastopen_connect(&self.0)?,
            SocketOption::Linger0 => self.0.set_linger(Some(Duration::ZERO))?,
            SocketOption::Nonblocking(on) => self.0.set_nonblocking(on)?,
            SocketOption::TimeoutMs(ms) => {
                self.0.set_read_timeout(Some(Duration::from_millis(ms)))?;
                self.0.set_write_timeout(Some(Duration::from_millis(ms)))?;
            }
        }
        Ok(())
    }

    fn timeout(&self) -> Result<Duration, Errno> {
        Ok(self.0.read_timeout()?.unwrap_or(DEFAULT_TIMEOUT))
    }

    pub fn bind(&self, to: SocketAddr) -> Result<(), Errno> {
        Ok(self.0.bind(&to.into())?)
    }

    pub fn connect(&self, to: SocketAddr, method: CallMethod) -> Result<(), Errno> {
        match method {
            CallMethod::Uring => Ok(sys::uring_connect(&self.0, &to.into(), self.timeout()?)?),
            CallMethod::Call | CallMethod::Message => Ok(self.0.connect(&to.into())?),
        }
    }

    pub fn disconnect(&self) -> Result<(), Errno> {
        Ok(rustix::net::connect_unspec(&self.0)?)
    }

    pub fn send(&self, to: Option<SocketAddr>, bytes: &[u8], method: CallMethod) -> Result<usize, Errno> {
        match (method, to) {
            (CallMethod::Call, None) => Ok(self.0.send(bytes)?),
            (CallMethod::Call, Some(to)) => Ok(self.0.send_to(bytes, &to.into())?),
            (CallMethod::Uring, to) => {
                Ok(sys::uring_sendmsg(&self.0, to.map(Into::into).as_ref(), bytes, self.timeout()?)?)
            }
            (CallMethod::Message, to) => self.send_message(to, bytes),
        }
    }

    fn send_message(&self, to: Option<SocketAddr>, bytes: &[u8]) -> Result<usize, Errno> {
        let (parts, mut control) = ([IoSlice::new(bytes)], SendAncillaryBuffer::default());
        Ok(match to {
            Some(to) => rustix::net::sendmsg_addr(&self.0, &to, &parts, &mut control, SendFlags::NOSIGNAL)?,
            None => rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)?,
        })
    }

    pub fn send_from(&self, source: IpAddr, to: SocketAddr, bytes: &[u8]) -> Result<usize, Errno> {
        Ok(sys::send_from(&self.0, source, &to.into(), bytes)?)
    }

    pub fn fast_open(&self, to: SocketAddr, bytes: &[u8]) -> Result<usize, Errno> {
        Ok(self.0.send_to_with_flags(bytes, &to.into(), libc::MSG_FASTOPEN)?)
    }

    pub fn receive(&self, method: CallMethod) -> Result<(Option<SocketAddr>, Vec<u8>), Errno> {
        let mut bytes = vec![0; 4096];
        let (count, from) = match method {
            CallMethod::Call => {
                let (count, _, from) = rustix::net::recvfrom(&self.0, &mut bytes[..], RecvFlags::empty())?;
                (count, from.and_then(to_socket_addr))
            }
            CallMethod::Message => self.receive_message(&mut bytes)?,
            CallMethod::Uring => {
                let (count, from) = sys::uring_recvmsg(&self.0, &mut bytes, self.timeout()?)?;
                (count, from.as_socket())
            }
        };
        bytes.truncate(count);
        Ok((from, bytes))
    }

    fn receive_message(&self, bytes: &mut [u8]) -> Result<(usize, Option<SocketAddr>), Errno> {
        let (mut parts, mut control) = ([IoSliceMut::new(bytes)], RecvAncillaryBuffer::default());
        let received = rustix::net::recvmsg(&self.0, &mut parts, &mut control, RecvFlags::empty())?;
        Ok((received.bytes, received.address.and_then(to_socket_addr)))
    }

    /// Returns whether the socket became ready within `ms`, and SO_ERROR.
    pub fn poll(&self, write: bool, ms: u32) -> Result<(bool, Option<Errno>), Errno> {
        let flags = if write { PollFlags::OUT } else { PollFlags::IN };
        let limit = Timespec { tv_sec: (ms / 1000).into(), tv_nsec: i64::from(ms % 1000) * 1_000_000 };
        let ready = poll(&mut [PollFd::new(&self.0, flags)], Some(&limit))? > 0;
        Ok((ready, self.0.take_error()?.map(Errno::from)))
    }

    pub fn peer(&self) -> Result<SocketAddr, Errno> {
        self.0.peer_addr()?.as_socket().ok_or(Errno::EAFNOSUPPORT)
    }

    pub fn local(&self) -> Result<SocketAddr, Errno> {
        self.0.local_addr()?.as_socket().ok_or(Errno::EAFNOSUPPORT)
    }

    pub fn cookie(&self) -> Result<u64, Errno> {
        Ok(self.0.cookie()?)
    }
}

fn to_socket_addr(address: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(address).ok()
}
