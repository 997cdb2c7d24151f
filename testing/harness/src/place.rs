//! A place to be: a host or a pod, with a network namespace, a cgroup and its addresses.

use std::{
    ffi::OsStr,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Result;

use crate::{
    cgroup::Cgroup,
    client::Client,
    netns::Namespace,
    serve::{Server, Service},
    spawn::Program,
};

#[derive(Debug)]
pub struct Place {
    pub name: String,
    pub namespace: Namespace,
    pub cgroup: Cgroup,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Place {
    pub fn v4(&self, port: u16) -> SocketAddr {
        (self.v4, port).into()
    }

    pub fn v6(&self, port: u16) -> SocketAddr {
        (self.v6, port).into()
    }

    /// A dialling child in here.
    pub fn client(&self) -> Result<Client> {
        Client::start(Some(&self.namespace), Some(&self.cgroup))
    }

    /// A program that was not written here (curl, python3, dig, an agent), in this namespace and cgroup.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Result<Program> {
        Program::new(program, Some(&self.namespace), Some(&self.cgroup))
    }

    /// TCP, HTTP and UDP on this port of both addresses, answering with the name of the place. It is served by this
    /// process, whose sockets are not in the place's cgroup: replies meet no hook that a test attached there.
    pub fn serve(&self, port: u16) -> Result<Server> {
        self.service(port).start(&self.namespace)
    }

    /// The same, to be changed before its start.
    pub fn service(&self, port: u16) -> Service {
        Service::new(&self.name, [self.v4(port), self.v6(port)])
    }

    /// Further addresses of this place, out of its node's pod range (`10.244.1.0/24`, `fd00:244::1:0/112`): one pod can
    /// be a hundred backends.
    pub fn add_addresses(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
        let line = |address: IpAddr| match address {
            IpAddr::V4(v4) => format!("addr add {v4}/32 dev eth0\n"),
            IpAddr::V6(v6) => format!("addr add {v6}/128 dev eth0 nodad\n"),
        };
        self.namespace.ip(&addresses.into_iter().map(line).collect::<String>())
    }

    /// Runs `work` in the namespace, in this process.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.namespace.run_in(work)
    }
}
