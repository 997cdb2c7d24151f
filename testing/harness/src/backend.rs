//! A pod's server as a process of its own, in the pod's namespace and cgroup: it can be killed.

use std::net::SocketAddr;

use anyhow::Result;

use crate::{client::Client, op::Op, place::Place, serve::Service};

/// Lives as long as the value.
#[derive(Debug)]
pub struct Backend {
    name: String,
    _process: Client,
}

impl Backend {
    /// HTTP (or a bare line) over TCP on the one port, UDP on the other, over both families. Answers when it returns.
    pub fn start(place: &Place, tcp: u16, udp: u16) -> Result<Self> {
        let process = place.client()?;
        let both = |port| -> [SocketAddr; 2] { [place.v4(port), place.v6(port)] };
        process.call("serve", &Op::Serve(Service::new(&place.name, both(tcp)).tcp_only().mptcp()))?;
        process.call("serve", &Op::Serve(Service::new(&place.name, both(udp)).udp_only()))?;
        Ok(Backend { name: place.name.clone(), _process: process })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// By SIGKILL.
    pub fn kill(self) {}
}
