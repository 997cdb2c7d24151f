//! The child's sockets: thin calls that give the exact errno.

use std::{io::IoSlice, io::IoSliceMut, net::SocketAddr, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny},
};
use socket2::{Domain, Protocol, Type};

use crate::{
    errno::Errno,
    op::{By, Family, Setting, Sort},
    sys,
};

/// No call waits longer than this unless told to: a lost packet must fail a test, not hang it.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) struct Socket(socket2::Socket);

pub(crate) fn open(family: Family, sort: Sort) -> Result<Socket, Errno> {
    let (domain, icmp) = match family {
        Family::V4 => (Domain::IPV4, Protocol::ICMPV4),
        Family::V6 => (Domain::IPV6, Protocol::ICMPV6),
    };
    let (kind, protocol) = match sort {
        Sort::Tcp => (Type::STREAM, Protocol::TCP),
        Sort::Mptcp => (Type::STREAM, Protocol::MPTCP),
        Sort::Udp => (Type::DGRAM, Protocol::UDP),
        Sort::Ping => (Type::DGRAM, icmp),
        Sort::Raw => (Type::RAW, icmp),
    };
    let socket = Socket(socket2::Socket::new(domain, kind, Some(protocol))?);
    socket.set(Setting::TimeoutMs(PATIENCE.as_millis() as u64))?;
    Ok(socket)
}

impl Socket {
    pub fn set(&self, setting: Setting) -> Result<(), Errno> {
        match setting {
            Setting::Device(name) => self.0.bind_device(Some(name.as_bytes()))?,
            Setting::FastOpenConnect => sys::fastopen_connect(&self.0)?,
            Setting::Linger0 => self.0.set_linger(Some(Duration::ZERO))?,
            Setting::Nonblocking(on) => self.0.set_nonblocking(on)?,
            Setting::TimeoutMs(ms) => {
                self.0.set_read_timeout(Some(Duration::from_millis(ms)))?;
                self.0.set_write_timeout(Some(Duration::from_millis(ms)))?;
            }
        }
        Ok(())
    }

    fn patience(&self) -> Result<Duration, Errno> {
        Ok(self.0.read_timeout()?.unwrap_or(PATIENCE))
    }

    pub fn bind(&self, to: SocketAddr) -> Result<(), Errno> {
        Ok(self.0.bind(&to.into())?)
    }

    pub fn connect(&self, to: SocketAddr, by: By) -> Result<(), Errno> {
        match by {
            By::Uring => Ok(sys::uring_connect(&self.0, &to.into(), self.patience()?)?),
            By::Call | By::Message => Ok(self.0.connect(&to.into())?),
        }
    }

    pub fn disconnect(&self) -> Result<(), Errno> {
        Ok(rustix::net::connect_unspec(&self.0)?)
    }

    pub fn send(&self, to: Option<SocketAddr>, bytes: &[u8], by: By) -> Result<usize, Errno> {
        match (by, to) {
            (By::Call, None) => Ok(self.0.send(bytes)?),
            (By::Call, Some(to)) => Ok(self.0.send_to(bytes, &to.into())?),
            (By::Uring, to) => Ok(sys::uring_sendmsg(&self.0, to.map(Into::into).as_ref(), bytes, self.patience()?)?),
            (By::Message, to) => self.send_message(to, bytes),
        }
    }

    fn send_message(&self, to: Option<SocketAddr>, bytes: &[u8]) -> Result<usize, Errno> {
        let (parts, mut control) = ([IoSlice::new(bytes)], SendAncillaryBuffer::default());
        Ok(match to {
            Some(to) => rustix::net::sendmsg_addr(&self.0, &to, &parts, &mut control, SendFlags::NOSIGNAL)?,
            None => rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)?,
        })
    }

    pub fn fast_open(&self, to: SocketAddr, bytes: &[u8]) -> Result<usize, Errno> {
        Ok(self.0.send_to_with_flags(bytes, &to.into(), libc::MSG_FASTOPEN)?)
    }

    pub fn receive(&self, by: By) -> Result<(Option<SocketAddr>, Vec<u8>), Errno> {
        let mut bytes = vec![0; 4096];
        let (count, from) = match by {
            By::Call => {
                let (count, _, from) = rustix::net::recvfrom(&self.0, &mut bytes[..], RecvFlags::empty())?;
                (count, from.and_then(known))
            }
            By::Message => self.receive_message(&mut bytes)?,
            By::Uring => {
                let (count, from) = sys::uring_recvmsg(&self.0, &mut bytes, self.patience()?)?;
                (count, from.as_socket())
            }
        };
        bytes.truncate(count);
        Ok((from, bytes))
    }

    fn receive_message(&self, bytes: &mut [u8]) -> Result<(usize, Option<SocketAddr>), Errno> {
        let (mut parts, mut control) = ([IoSliceMut::new(bytes)], RecvAncillaryBuffer::default());
        let got = rustix::net::recvmsg(&self.0, &mut parts, &mut control, RecvFlags::empty())?;
        Ok((got.bytes, got.address.and_then(known)))
    }

    /// Whether it became ready in time, and SO_ERROR.
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

fn known(address: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(address).ok()
}
