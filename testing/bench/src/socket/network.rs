//! Network of the bench: one namespace with all pods, and one namespace per node, connected by a veth pair each.

use std::{os::fd::OwnedFd, sync::Arc};

use anyhow::Result;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::objects::{POD_PORT, PODS, SERVICE_PORT};
use crate::isolation::BenchNamespace;

/// Listeners for all pod addresses.
pub struct PodServer {
    pod: OwnedFd,
    /// Listener at the port that Services use. A direct dial to it is not a Service, but its port is in use by
    /// Services.
    service_port: OwnedFd,
}

impl PodServer {
    fn bind() -> Result<Self> {
        Ok(Self { pod: listen(POD_PORT)?, service_port: listen(SERVICE_PORT)? })
    }

    pub fn accept(&self, port: u16) -> rustix::io::Result<OwnedFd> {
        rustix::net::accept(if port == SERVICE_PORT { &self.service_port } else { &self.pod })
    }
}

fn listen(port: u16) -> Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

pub struct PodNetwork {
    pods: BenchNamespace,
    pub server: Arc<PodServer>,
    nodes: u32,
}

impl PodNetwork {
    /// Creates the pods' namespace and moves the calling thread into it.
    pub fn create() -> Result<Self> {
        let pods = BenchNamespace::create("beeline-bench-pods")?;
        pods.ip(&format!("route add local {PODS} dev lo"))?;
        pods.enter()?;
        Ok(Self { server: Arc::new(PodServer::bind()?), pods, nodes: 0 })
    }

    /// Creates a node with a route to the pods.
    pub fn node(&mut self, name: &str) -> Result<Arc<BenchNamespace>> {
        let node = BenchNamespace::create(&format!("beeline-bench-{name}"))?;
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
