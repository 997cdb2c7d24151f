//! The network, the servers and the driver of one test.

use super::driver::Driver;
use super::manifest::{EndpointSpec, ManifestFile};
use super::service::{CLOSED_PORT, Dialled, PORT, PacketService, TARGET_PORT};
use beeline_harness::packet::{Flow, FlowProtocol, FlowResult, FrontendRange, IpFamily, PacketNetwork, client_address};
use beeline_harness::{EchoServer, EchoService, TestHost};
use serde_json::json;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Name of the servers that listen on nodePorts. A hostNetwork backend on node-1 has another name.
pub const NODE_SOCKET: &str = "node-1-socket";
/// Timeout of all waits; long, because the machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Services with numbers above this one are those of [`PacketFixture::wait_until_programmed`].
const FIRST_BARRIER: u8 = 200;

/// Where a flow starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client with this number as its source address.
    Client(u8),
    Vm,
}

impl Sender {
    /// Parses `client`, `client-N` or `vm`.
    pub fn parse(text: &str) -> Sender {
        match text.split_once('-') {
            None if text == "client" => Sender::Client(10),
            None if text == "vm" => Sender::Vm,
            Some(("client", number)) => Sender::Client(number.parse().expect("client-N")),
            _ => panic!("{text}: expected client, client-N or vm"),
        }
    }

    pub fn host(self, network: &PacketNetwork) -> &TestHost {
        match self {
            Sender::Client(_) => &network.client,
            Sender::Vm => &network.vm,
        }
    }

    /// The sender's address in the family of the destination.
    pub fn source(self, network: &PacketNetwork, to: SocketAddr) -> IpAddr {
        let (v4, v6) = match self {
            Sender::Client(number) => client_address(number),
            Sender::Vm => (network.vm.v4, network.vm.v6),
        };
        if to.is_ipv4() { v4.into() } else { v6.into() }
    }
}

/// Fields are dropped in this order.
pub struct PacketFixture<'a> {
    _servers: Vec<EchoServer>,
    pub driver: &'a mut dyn Driver,
    pub network: &'a PacketNetwork,
    /// Number of calls of [`PacketFixture::wait_until_programmed`].
    barriers: u8,
}

impl<'a> PacketFixture<'a> {
    /// Starts the echo servers.
    pub fn new(network: &'a PacketNetwork, driver: &'a mut dyn Driver) -> PacketFixture<'a> {
        let hosts = network.cluster.pods().chain(network.cluster.nodes.iter().map(|node| &node.host));
        let servers = hosts.chain([&network.vm]).map(|host| host.serve(TARGET_PORT).unwrap()).collect();
        PacketFixture { _servers: servers, driver, network, barriers: 0 }
    }

    /// The objects that must exist before the driver starts.
    pub fn nodes(network: &PacketNetwork) -> Vec<ManifestFile> {
        network.cluster.nodes.iter().map(|node| ManifestFile::node(&node.host)).collect()
    }

    pub fn pod(&self, index: usize) -> &'a TestHost {
        self.network.cluster.pod(index)
    }

    // ---- objects ----

    /// Writes a Service and waits until it is programmed.
    pub fn apply(&mut self, service: &PacketService) {
        self.apply_all(std::slice::from_ref(service));
    }

    pub fn apply_all(&mut self, services: &[PacketService]) {
        services.iter().for_each(|service| self.driver.apply(&service.manifest()));
        self.wait_until_programmed();
    }

    pub fn delete(&mut self, service: &PacketService) {
        self.driver.delete(&service.manifest());
        self.wait_until_programmed();
    }

    /// Waits until all changes so far are in effect: adds one more Service after the others, and waits until it is in
    /// effect. It is a new Service each time, because kube-proxy may not serve an endpoint that returns after a restart.
    pub fn wait_until_programmed(&mut self) {
        self.barriers += 1;
        let (number, pod) = (FIRST_BARRIER + self.barriers, self.pod(0));
        let barrier = ManifestFile::service(&format!("barrier-{number}"), number)
            .with_spec(json!({ "ipFamilyPolicy": "RequireDualStack" }))
            .with_endpoints(TARGET_PORT, &[EndpointSpec::of(pod, "node-1")]);
        self.driver.apply(&barrier);
        let (v4, v6) = FrontendRange::ClusterIp.address(number);
        let end = Instant::now() + TIMEOUT;
        // Both families: kube-proxy programs them separately.
        for family in IpFamily::ALL {
            let at = SocketAddr::new(family.of(v4, v6), PORT);
            while self.dial(Sender::Vm, FlowProtocol::Tcp, at).name() != pod.name {
                assert!(Instant::now() < end, "{} is not in effect: {}", barrier.name, self.driver.log());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    // ---- flows ----

    pub fn source(&self, from: Sender, to: SocketAddr) -> IpAddr {
        from.source(self.network, to)
    }

    pub fn dial(&self, from: Sender, protocol: FlowProtocol, to: SocketAddr) -> FlowResult {
        Flow::dial(&from.host(self.network).namespace, protocol, self.source(from, to), to).unwrap()
    }

    /// Opens a flow that must succeed. Port 0 stands for any source port.
    #[track_caller]
    pub fn open(&self, from: Sender, port: u16, protocol: FlowProtocol, to: SocketAddr) -> Flow {
        let source = (self.source(from, to), port).into();
        let flow = Flow::open(&from.host(self.network).namespace, protocol, source, to).unwrap();
        flow.unwrap_or_else(|result| panic!("{from:?} port {port} to {to} {protocol:?}: {result:?}"))
    }

    /// Opens a flow from the client and from the vm to every address of the Service, each with a title.
    pub fn open_all(&self, protocol: FlowProtocol, service: &PacketService) -> Vec<(String, Flow)> {
        let mut flows = Vec::new();
        for (from, dialled) in [Sender::Client(10), Sender::Vm].into_iter().flat_map(|f| Dialled::ALL.map(|d| (f, d))) {
            for family in IpFamily::ALL {
                let to = service.address(dialled, family, self.network);
                let title = format!("{} {from:?} {dialled:?} {family:?}", service.name);
                flows.push((title, self.open(from, 0, protocol, to)));
            }
        }
        flows
    }

    // ---- servers that answer flows that node-1 did not touch ----

    /// A server outside that has the frontend addresses of this Service.
    pub fn serve_untouched(&self, service: &PacketService) -> EchoServer {
        let addresses = PacketNetwork::frontends(service.number, PORT);
        let outside = &self.network.cluster.outside;
        EchoService::new(&outside.name, addresses).start(&outside.namespace).unwrap()
    }

    /// As [`PacketFixture::serve_untouched`], at the nodePort and at a closed port.
    pub fn serve_untouched_ports(&self, service: &PacketService) -> EchoServer {
        let ports = [service.node_port(), CLOSED_PORT];
        let addresses = ports.into_iter().flat_map(|port| PacketNetwork::frontends(service.number, port));
        let outside = &self.network.cluster.outside;
        EchoService::new(&outside.name, addresses).start(&outside.namespace).unwrap()
    }

    /// A server of node-1 that listens on the nodePort at all addresses of the uplink.
    pub fn serve_node_port(&self, service: &PacketService) -> EchoServer {
        let node = self.network.cluster.node();
        let second = IpFamily::ALL.map(|family| self.network.node_second(family));
        let addresses = [IpAddr::from(node.v4), node.v6.into()].into_iter().chain(second);
        let sockets = addresses.map(|address| SocketAddr::from((address, service.node_port())));
        EchoService::new(NODE_SOCKET, sockets).start(&node.namespace).unwrap()
    }
}
