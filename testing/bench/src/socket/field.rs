//! The network: a namespace of pods that answers at every pod's address, and one namespace per node, each behind a pair
//! of veths of its own. All nodes have the same way to the pods.

use std::{os::fd::OwnedFd, sync::Arc};

use anyhow::Result;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::world::{POD_PORT, PODS, SERVICE_PORT};
use crate::ground::Netns;

/// Who listens in the namespace of pods, whatever the address.
pub struct Server {
    pod: OwnedFd,
    /// A pod at the port that services use: dialled directly it is no service, but its port says that it might be.
    lookalike: OwnedFd,
}

impl Server {
    fn bind() -> Result<Self> {
        Ok(Self { pod: listen(POD_PORT)?, lookalike: listen(SERVICE_PORT)? })
    }

    pub fn accept(&self, port: u16) -> rustix::io::Result<OwnedFd> {
        rustix::net::accept(if port == SERVICE_PORT { &self.lookalike } else { &self.pod })
    }
}

fn listen(port: u16) -> Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

pub struct Field {
    pods: Netns,
    pub server: Arc<Server>,
    nodes: u32,
}

impl Field {
    /// Leaves the calling thread in the namespace of pods.
    pub fn lay() -> Result<Self> {
        let pods = Netns::create("beeline-bench-pods")?;
        pods.ip(&format!("route add local {PODS} dev lo"))?;
        pods.enter()?;
        Ok(Self { server: Arc::new(Server::bind()?), pods, nodes: 0 })
    }

    /// A node with a way to the pods.
    pub fn node(&mut self, name: &str) -> Result<Arc<Netns>> {
        let node = Netns::create(&format!("beeline-bench-{name}"))?;
        let (number, pods) = (self.nodes, self.pods.name());
        self.nodes += 1;
        node.ip(&format!("link add eth0 type veth peer name node{number} netns {pods}"))?;
        node.ip(&format!("address add 172.30.{number}.2/24 dev eth0"))?;
        self.pods.ip(&format!("address add 172.30.{number}.1/24 dev node{number}"))?;
        self.pods.ip(&format!("link set node{number} up"))?;
        node.ip("link set eth0 up")?;
        node.ip(&format!("route add default via 172.30.{number}.1"))?;
        Ok(Arc::new(node))
    }
}
