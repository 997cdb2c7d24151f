//! A host or a pod of the test network, with a network namespace, a cgroup and its addresses.

use std::{
    ffi::OsStr,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Result;

use crate::{
    cgroup::Cgroup,
    client::Client,
    echo_server::{EchoServer, EchoService},
    netns::NetworkNamespace,
    program::TestProgram,
};

#[derive(Debug)]
pub struct TestHost {
    pub name: String,
    pub namespace: NetworkNamespace,
    pub cgroup: Cgroup,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl TestHost {
    pub fn v4(&self, port: u16) -> SocketAddr {
        (self.v4, port).into()
    }

    pub fn v6(&self, port: u16) -> SocketAddr {
        (self.v6, port).into()
    }

    /// Starts a client process on this host.
    pub fn client(&self) -> Result<Client> {
        Client::start(Some(&self.namespace), Some(&self.cgroup))
    }

    /// Prepares an external program (curl, python3, dig, an agent) in this namespace and cgroup.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Result<TestProgram> {
        TestProgram::new(program, Some(&self.namespace), Some(&self.cgroup))
    }

    /// Serves TCP, HTTP and UDP on this port of both addresses, and answers with the host's name. The server runs in
    /// this process, whose sockets are not in the host's cgroup: its replies pass no hook that a test attached there.
    pub fn serve(&self, port: u16) -> Result<EchoServer> {
        self.echo_service(port).start(&self.namespace)
    }

    /// The service that `serve` starts, for callers that change it before the start.
    pub fn echo_service(&self, port: u16) -> EchoService {
        EchoService::new(&self.name, [self.v4(port), self.v6(port)])
    }

    /// Adds addresses of the node's pod range (`10.244.1.0/24`, `fd00:244::1:0/112`), so that one pod can stand for a
    /// hundred backends.
    pub fn add_addresses(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
        let line = |address: IpAddr| match address {
            IpAddr::V4(v4) => format!("addr add {v4}/32 dev eth0\n"),
            IpAddr::V6(v6) => format!("addr add {v6}/128 dev eth0 nodad\n"),
        };
        self.namespace.ip(&addresses.into_iter().map(line).collect::<String>())
    }

    /// Runs `work` in the host's network namespace, in this process.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.namespace.run_in(work)
    }
}
