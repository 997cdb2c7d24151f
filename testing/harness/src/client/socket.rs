//! One socket of a dialling child.

use std::net::SocketAddr;

use super::{Client, Result, odd};
use crate::{
    errno::Errno,
    op::{By, Op, Setting, Slot, Value},
    watch::{Watch, Watched},
};

/// Closed on drop. Calls that take time give their nanoseconds.
#[derive(Debug)]
pub struct Socket<'c> {
    pub(super) client: &'c Client,
    pub(super) slot: Slot,
}

impl Socket<'_> {
    pub fn set(&self, setting: Setting) -> Result<()> {
        self.client.call("setsockopt", &Op::Set { slot: self.slot, setting }).map(drop)
    }

    pub fn bind(&self, to: SocketAddr) -> Result<()> {
        self.client.call("bind", &Op::Bind { slot: self.slot, to }).map(drop)
    }

    pub fn connect(&self, to: SocketAddr) -> Result<u64> {
        self.connect_by(to, By::Call)
    }

    pub fn connect_by(&self, to: SocketAddr, by: By) -> Result<u64> {
        self.client.call("connect", &Op::Connect { slot: self.slot, to, by }).map(|(_, nanos)| nanos)
    }

    /// connect() with AF_UNSPEC.
    pub fn disconnect(&self) -> Result<()> {
        self.client.call("disconnect", &Op::Disconnect { slot: self.slot }).map(drop)
    }

    /// On a connected socket, by send().
    pub fn send(&self, bytes: impl AsRef<[u8]>) -> Result<u64> {
        self.send_by(None, bytes, By::Call)
    }

    pub fn send_to(&self, to: SocketAddr, bytes: impl AsRef<[u8]>) -> Result<u64> {
        self.send_by(Some(to), bytes, By::Call)
    }

    pub fn send_by(&self, to: Option<SocketAddr>, bytes: impl AsRef<[u8]>, by: By) -> Result<u64> {
        let op = Op::Send { slot: self.slot, to, bytes: bytes.as_ref().to_vec(), by };
        self.client.call("send", &op).map(|(_, nanos)| nanos)
    }

    /// sendto() with MSG_FASTOPEN.
    pub fn fast_open(&self, to: SocketAddr, bytes: impl AsRef<[u8]>) -> Result<u64> {
        let op = Op::FastOpen { slot: self.slot, to, bytes: bytes.as_ref().to_vec() };
        self.client.call("connect", &op).map(|(_, nanos)| nanos)
    }

    /// The source that the kernel names, and the bytes.
    pub fn receive(&self) -> Result<(Option<SocketAddr>, Vec<u8>)> {
        self.receive_by(By::Call)
    }

    pub fn receive_by(&self, by: By) -> Result<(Option<SocketAddr>, Vec<u8>)> {
        match self.client.call("receive", &Op::Receive { slot: self.slot, by })? {
            (Value::Received { from, bytes }, _) => Ok((from, bytes)),
            other => Err(odd(other)),
        }
    }

    /// Whether it became ready in time, and SO_ERROR.
    pub fn poll(&self, write: bool, ms: u32) -> Result<(bool, Option<Errno>)> {
        match self.client.call("poll", &Op::Poll { slot: self.slot, write, ms })? {
            (Value::Ready { ready, error }, _) => Ok((ready, error)),
            other => Err(odd(other)),
        }
    }

    pub fn peer(&self) -> Result<SocketAddr> {
        self.address("getpeername", Op::Peer { slot: self.slot })
    }

    pub fn local(&self) -> Result<SocketAddr> {
        self.address("getsockname", Op::Local { slot: self.slot })
    }

    fn address(&self, step: &'static str, op: Op) -> Result<SocketAddr> {
        match self.client.call(step, &op)? {
            (Value::Address(address), _) => Ok(address),
            other => Err(odd(other)),
        }
    }

    pub fn cookie(&self) -> Result<u64> {
        match self.client.call("cookie", &Op::Cookie { slot: self.slot })? {
            (Value::Cookie(cookie), _) => Ok(cookie),
            other => Err(odd(other)),
        }
    }

    /// Sends and receives in the background, on a connected UDP socket, until the first error.
    pub fn watch(&self, watch: Watch) -> Result<()> {
        self.client.call("watch", &Op::Watch { slot: self.slot, watch }).map(drop)
    }

    /// Waits up to `ms` for the first error, then ends the watch.
    pub fn watch_end(&self, ms: u64) -> Result<Watched> {
        match self.client.call("watch", &Op::WatchEnd { slot: self.slot, ms })? {
            (Value::Watched(watched), _) => Ok(watched),
            other => Err(odd(other)),
        }
    }
}

impl Drop for Socket<'_> {
    fn drop(&mut self) {
        let _ = self.client.exchange(&Op::Close { slot: self.slot });
    }
}
