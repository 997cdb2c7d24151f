//! The test network for packets from outside a node.
//!
//! ```text
//!   client 192.0.2.10-25 ── router ──┬── node-1 172.31.0.11, .111 ──┬── pod-a 10.244.1.2
//!          fd00:c::10-25             │                              ├── pod-b 10.244.1.3
//!                                    │                              └── vm    10.244.101.2 (routed, device vm0)
//!   outside 172.31.0.1 ──────────────┼── node-2 172.31.0.12 ─────────── pod-c 10.244.2.2
//! ```
//!
//! The router sends the ranges of ClusterIPs, load-balancer addresses and externalIPs to node-1. The default route of
//! node-1 leads to the outside host, which has all these addresses: what node-1 does not translate is answered there by
//! a server of the test, so it is distinguished from a dropped packet.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;

use super::address::{self, FrontendRange, IpFamily, NODE_SECOND, client_address};
use crate::{
    TestHost, TestNetwork,
    addressing::{FORWARD, host_address, node_link_of, pod_address},
};

/// Settings of all hosts: the path back may differ from the path there, and no host changes its routes.
const ROUTING: &[(&str, &str)] = &[
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
];

/// Fields are dropped in this order.
#[derive(Debug)]
pub struct PacketNetwork {
    /// A host with 16 source addresses, behind the router.
    pub client: TestHost,
    pub router: TestHost,
    /// A host behind a link of node-1, with an address of the pod ranges: a virtual machine or a sandboxed pod.
    pub vm: TestHost,
    /// node-1 with pod-a and pod-b, node-2 with pod-c, and the outside host.
    pub cluster: TestNetwork,
}

impl PacketNetwork {
    pub fn new() -> Result<Self> {
        let cluster = TestNetwork::with_nodes(&[2, 1])?;
        let outside = &cluster.outside.namespace;
        let router = host(&cluster, "router", host_address(2))?;
        router.namespace.sysctl(FORWARD)?;
        outside.ip(&node_link_of("router", router.namespace.name()))?;
        let client = host(&cluster, "client", client_address(address::CLIENTS.start))?;
        router
            .namespace
            .ip(&format!("link add client0 type veth peer name eth0 netns {}\n", client.namespace.name()))?;
        router.namespace.ip(&address::router())?;
        client.namespace.ip(&address::client())?;
        let vm = host(&cluster, "vm", address::vm_address())?;
        cluster.node().namespace.ip(&address::vm_link(vm.namespace.name()))?;
        vm.namespace.ip(&address::vm())?;
        let network = PacketNetwork { client, router, vm, cluster };
        network.configure_cluster()?;
        Ok(network)
    }

    fn configure_cluster(&self) -> Result<()> {
        let (second4, second6) = host_address(NODE_SECOND);
        let hosts = self.cluster.nodes.iter().map(|node| &node.host).chain([&self.cluster.outside]);
        for host in hosts {
            host.namespace.sysctl(ROUTING)?;
            host.namespace.ip(&address::route_to_client())?;
        }
        let node = &self.cluster.node().namespace;
        node.ip(&format!("addr add {second4}/24 dev eth0\naddr add {second6}/64 dev eth0 nodad\n"))?;
        self.cluster.nodes[1].host.namespace.ip(&address::route_to_vm())?;
        // A local route is enough for the kernel to receive packets, but not to bind an IPv6 socket.
        self.cluster.outside.namespace.sysctl(&[("ipv6/ip_nonlocal_bind", "1")])?;
        self.cluster.outside.namespace.ip(&(address::route_to_vm() + &address::local_frontends()))
    }

    /// The devices of node-1 through which packets arrive from hosts below no hook.
    pub fn devices(&self) -> [&'static str; 2] {
        ["eth0", "vm0"]
    }

    /// The addresses that a masqueraded packet of node-1 may have.
    pub fn node_addresses(&self) -> Vec<IpAddr> {
        let pairs = [host_address(11), host_address(NODE_SECOND), pod_address(1, 1)];
        pairs.into_iter().flat_map(|(v4, v6)| [IpAddr::from(v4), v6.into()]).collect()
    }

    /// An address of node-1 at which no NodePort is served by default.
    pub fn node_second(&self, family: IpFamily) -> IpAddr {
        let (v4, v6) = host_address(NODE_SECOND);
        family.of(v4, v6)
    }

    /// The frontend addresses with this number and port, in both families.
    pub fn frontends(number: u8, port: u16) -> impl Iterator<Item = SocketAddr> {
        let pairs = FrontendRange::ALL.into_iter().map(move |range| range.address(number));
        pairs.flat_map(move |(v4, v6)| [SocketAddr::from((v4, port)), SocketAddr::from((v6, port))])
    }
}

fn host(cluster: &TestNetwork, name: &str, address: (std::net::Ipv4Addr, std::net::Ipv6Addr)) -> Result<TestHost> {
    let host = cluster.add_host(name, address)?;
    host.namespace.sysctl(ROUTING)?;
    Ok(host)
}
