//! A pod's server as a process of its own in the pod's namespace and cgroup, so that a test can kill it.

use std::net::SocketAddr;

use anyhow::Result;

use crate::{client::Client, echo_server::EchoService, protocol::ChildRequest, test_host::TestHost};

/// Runs as long as the value lives.
#[derive(Debug)]
pub struct BackendProcess {
    name: String,
    _process: Client,
}

impl BackendProcess {
    /// Serves HTTP (or a bare line) over TCP on port `tcp` and UDP on port `udp`, over IPv4 and IPv6. The server
    /// answers when this returns.
    pub fn start(host: &TestHost, tcp: u16, udp: u16) -> Result<Self> {
        let process = host.client()?;
        let both = |port| -> [SocketAddr; 2] { [host.v4(port), host.v6(port)] };
        process.call("serve", &ChildRequest::Serve(EchoService::new(&host.name, both(tcp)).tcp_only().mptcp()))?;
        process.call("serve", &ChildRequest::Serve(EchoService::new(&host.name, both(udp)).udp_only()))?;
        Ok(BackendProcess { name: host.name.clone(), _process: process })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kills the server by SIGKILL.
    pub fn kill(self) {}
}
