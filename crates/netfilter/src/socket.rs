//! A netlink socket of netfilter: single requests, dumps, transactions and notifications.
//!
//! The kernel handles a request within `send`, so every answer is queued when `send` returns. The receive timeout only
//! keeps a thread from blocking forever if an answer is missing.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
    netlink::{self, SocketAddrNetlink},
    recv, send, socket_with, sockopt,
};

use crate::{
    attribute::AttributeWriter,
    error::{Error, Result},
    message::{ACK, DUMP, DUMP_INTERRUPTED, NetlinkMessage, NetlinkRequest, messages},
};

/// The kernel never sends longer datagrams: parts of a dump are at most this long, other messages are shorter.
const BUFFER: usize = 32 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens a socket in the network namespace of this thread. `groups` is a mask of multicast groups.
    pub fn open(groups: u32) -> Result<Self> {
        let open = || -> rustix::io::Result<OwnedFd> {
            let protocol = Some(netlink::NETFILTER);
            let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
            bind(&socket, &SocketAddrNetlink::new(0, groups))?;
            Ok(socket)
        };
        let socket =
            open().map_err(|errno| Error::Socket { action: "open a netfilter socket", source: errno.into() })?;
        Ok(NetlinkSocket { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Sends a request and waits until the kernel has acknowledged it.
    pub fn request(&mut self, request: &NetlinkRequest, visit: impl FnMut(NetlinkMessage<'_>)) -> Result<()> {
        self.exchange(request, ACK, visit).map(|_| ())
    }

    /// Visits all objects. Returns whether the list is consistent; if objects changed meanwhile, some may be missing.
    pub fn dump(&mut self, request: &NetlinkRequest, visit: impl FnMut(NetlinkMessage<'_>)) -> Result<bool> {
        self.exchange(request, DUMP, visit)
    }

    fn exchange(
        &mut self,
        request: &NetlinkRequest,
        flags: u16,
        mut visit: impl FnMut(NetlinkMessage<'_>),
    ) -> Result<bool> {
        let sequence = self.reserve(1);
        let mut bytes = Vec::new();
        request.encode(sequence, flags, &mut bytes);
        self.send(request.action, &bytes)?;
        let mut consistent = true;
        loop {
            let length = self.receive(RecvFlags::empty()).map_err(|e| socket_error(request.action, e))?;
            // Messages with another sequence number answer an earlier request that ended with an error.
            for message in messages(&self.buffer[..length]).filter(|message| message.sequence == sequence) {
                consistent &= message.flags & DUMP_INTERRUPTED == 0;
                match message.errno() {
                    Some(0) => return Ok(consistent),
                    Some(errno) => return Err(Error::refused(request.action, errno)),
                    None => visit(message),
                }
            }
        }
    }

    /// Sends all requests as one transaction of this subsystem: either all of them take effect at once, or none does.
    pub fn transact(&mut self, subsystem: i32, requests: &[NetlinkRequest]) -> Result<()> {
        let count = u32::try_from(requests.len()).expect("transactions of this crate are short");
        let first = self.reserve(count + 2);
        let mut bytes = Vec::new();
        batch_limit(subsystem, libc::NFNL_MSG_BATCH_BEGIN).encode(first, 0, &mut bytes);
        for (sequence, request) in (first.wrapping_add(1)..).zip(requests) {
            request.encode(sequence, ACK, &mut bytes);
        }
        batch_limit(subsystem, libc::NFNL_MSG_BATCH_END).encode(first.wrapping_add(count + 1), 0, &mut bytes);
        self.send("start a transaction", &bytes)?;
        self.acknowledgements(first, requests)
    }

    /// Reads all answers to a transaction. The kernel answers every request, also those after the one that failed.
    fn acknowledgements(&mut self, first: u32, requests: &[NetlinkRequest]) -> Result<()> {
        let (mut succeeded, mut failure) = (0, None::<(u32, i32)>);
        loop {
            let length = match self.receive(RecvFlags::DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                other => other.map_err(|e| socket_error("read the answer to a transaction", e))?,
            };
            let in_transaction =
                |message: &NetlinkMessage<'_>| message.sequence.wrapping_sub(first) as usize <= requests.len() + 1;
            for message in messages(&self.buffer[..length]).filter(in_transaction) {
                let index = message.sequence.wrapping_sub(first);
                match message.errno() {
                    Some(0) => succeeded += 1,
                    Some(errno) => failure = Some(failure.map_or((index, errno), |first| first.min((index, errno)))),
                    None => {}
                }
            }
        }
        let action = |index: u32| match requests.get((index as usize).wrapping_sub(1)) {
            Some(request) => request.action,
            None => "commit the transaction",
        };
        match failure {
            Some((index, errno)) => Err(Error::refused(action(index), errno)),
            None if succeeded < requests.len() => Err(Error::Protocol { action: "commit the transaction" }),
            None => Ok(()),
        }
    }

    /// Reads one datagram of notifications without blocking.
    pub fn notifications(&mut self) -> io::Result<impl Iterator<Item = NetlinkMessage<'_>>> {
        let length = self.receive(RecvFlags::DONTWAIT)?;
        Ok(messages(&self.buffer[..length]))
    }

    fn reserve(&mut self, count: u32) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(count);
        first
    }

    fn send(&self, action: &'static str, bytes: &[u8]) -> Result<()> {
        let sent = send(&self.socket, bytes, SendFlags::empty()).map_err(|e| socket_error(action, e.into()))?;
        if sent == bytes.len() { Ok(()) } else { Err(Error::Protocol { action }) }
    }

    fn receive(&mut self, flags: RecvFlags) -> io::Result<usize> {
        loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), flags | RecvFlags::TRUNC) {
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok((_, length)) if length > self.buffer.len() => {
                    return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
                }
                Ok((_, length)) => return Ok(length),
            }
        }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The first or last message of a transaction.
fn batch_limit(subsystem: i32, kind: i32) -> NetlinkRequest {
    NetlinkRequest {
        action: "start a transaction",
        kind: kind as u16,
        flags: 0,
        family: libc::AF_UNSPEC as u8,
        resource: subsystem as u16,
        attributes: AttributeWriter::new(),
    }
}

fn socket_error(action: &'static str, source: io::Error) -> Error {
    Error::Socket { action, source }
}
