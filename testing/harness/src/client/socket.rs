//! One socket in a child process of the harness.

use std::net::{IpAddr, SocketAddr};

use super::{Client, Result, unexpected};
use crate::{
    errno::Errno,
    probe::{ProbeConfig, ProbeReport},
    protocol::{CallMethod, ChildRequest, ChildValue, Slot, SocketOption},
};

/// Closed on drop. Methods that dial or send return the duration of the call in nanoseconds.
#[derive(Debug)]
pub struct Socket<'c> {
    pub(super) client: &'c Client,
    pub(super) slot: Slot,
}

impl Socket<'_> {
    pub fn set(&self, option: SocketOption) -> Result<()> {
        self.client.call("setsockopt", &ChildRequest::Set { slot: self.slot, option }).map(drop)
    }

    pub fn bind(&self, to: SocketAddr) -> Result<()> {
        self.client.call("bind", &ChildRequest::Bind { slot: self.slot, to }).map(drop)
    }

    pub fn connect(&self, to: SocketAddr) -> Result<u64> {
        self.connect_with(to, CallMethod::Call)
    }

    pub fn connect_with(&self, to: SocketAddr, method: CallMethod) -> Result<u64> {
        self.client.call("connect", &ChildRequest::Connect { slot: self.slot, to, method }).map(|(_, nanos)| nanos)
    }

    /// connect() with AF_UNSPEC.
    pub fn disconnect(&self) -> Result<()> {
        self.client.call("disconnect", &ChildRequest::Disconnect { slot: self.slot }).map(drop)
    }

    /// send() on a connected socket.
    pub fn send(&self, bytes: impl AsRef<[u8]>) -> Result<u64> {
        self.send_with(None, bytes, CallMethod::Call)
    }

    pub fn send_to(&self, to: SocketAddr, bytes: impl AsRef<[u8]>) -> Result<u64> {
        self.send_with(Some(to), bytes, CallMethod::Call)
    }

    pub fn send_with(&self, to: Option<SocketAddr>, bytes: impl AsRef<[u8]>, method: CallMethod) -> Result<u64> {
        let request = ChildRequest::Send { slot: self.slot, to, bytes: bytes.as_ref().to_vec(), method };
        self.client.call("send", &request).map(|(_, nanos)| nanos)
    }

    /// sendmsg() with IP_PKTINFO or IPV6_PKTINFO: `source` is the source address of this datagram.
    pub fn send_from(&self, source: IpAddr, to: SocketAddr, bytes: impl AsRef<[u8]>) -> Result<u64> {
        let request = ChildRequest::SendFrom { slot: self.slot, source, to, bytes: bytes.as_ref().to_vec() };
        self.client.call("send", &request).map(|(_, nanos)| nanos)
    }

    /// sendto() with MSG_FASTOPEN.
    pub fn fast_open(&self, to: SocketAddr, bytes: impl AsRef<[u8]>) -> Result<u64> {
        let request = ChildRequest::FastOpen { slot: self.slot, to, bytes: bytes.as_ref().to_vec() };
        self.client.call("connect", &request).map(|(_, nanos)| nanos)
    }

    /// Returns the source address that the kernel reports, and the bytes.
    pub fn receive(&self) -> Result<(Option<SocketAddr>, Vec<u8>)> {
        self.receive_with(CallMethod::Call)
    }

    pub fn receive_with(&self, method: CallMethod) -> Result<(Option<SocketAddr>, Vec<u8>)> {
        match self.client.call("receive", &ChildRequest::Receive { slot: self.slot, method })? {
            (ChildValue::Received { from, bytes }, _) => Ok((from, bytes)),
            other => Err(unexpected(other)),
        }
    }

    /// Returns whether the socket became ready within `ms`, and SO_ERROR.
    pub fn poll(&self, write: bool, ms: u32) -> Result<(bool, Option<Errno>)> {
        match self.client.call("poll", &ChildRequest::Poll { slot: self.slot, write, ms })? {
            (ChildValue::Ready { ready, error }, _) => Ok((ready, error)),
            other => Err(unexpected(other)),
        }
    }

    pub fn peer(&self) -> Result<SocketAddr> {
        self.address("getpeername", ChildRequest::Peer { slot: self.slot })
    }

    pub fn local(&self) -> Result<SocketAddr> {
        self.address("getsockname", ChildRequest::Local { slot: self.slot })
    }

    fn address(&self, step: &'static str, request: ChildRequest) -> Result<SocketAddr> {
        match self.client.call(step, &request)? {
            (ChildValue::Address(address), _) => Ok(address),
            other => Err(unexpected(other)),
        }
    }

    pub fn cookie(&self) -> Result<u64> {
        match self.client.call("cookie", &ChildRequest::Cookie { slot: self.slot })? {
            (ChildValue::Cookie(cookie), _) => Ok(cookie),
            other => Err(unexpected(other)),
        }
    }

    /// Sends and receives in the background on a connected UDP socket, until the first error.
    pub fn start_probe(&self, config: ProbeConfig) -> Result<()> {
        self.client.call("probe", &ChildRequest::StartProbe { slot: self.slot, config }).map(drop)
    }

    /// Waits up to `ms` for the first error, then stops the probe.
    pub fn stop_probe(&self, ms: u64) -> Result<ProbeReport> {
        match self.client.call("probe", &ChildRequest::StopProbe { slot: self.slot, ms })? {
            (ChildValue::ProbeReport(report), _) => Ok(report),
            other => Err(unexpected(other)),
        }
    }
}

impl Drop for Socket<'_> {
    fn drop(&mut self) {
        let _ = self.client.exchange(&ChildRequest::Close { slot: self.slot });
    }
}
