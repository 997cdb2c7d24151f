//! ICMP messages of a translated flow: port unreachable, and packet too big in both directions.

use super::fixture::{PacketFixture, Sender};
use super::service::{Dialled, PacketService, TrafficPolicy};
use beeline_harness::TestHost;
use beeline_harness::packet::{IpFamily, TransferServer, transfer};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

const TRANSFER_PORT: u16 = 8090;
const BYTES: usize = 200_000;
const SMALL_MTU: u16 = 1300;
const TIMEOUT: Duration = Duration::from_secs(3);

/// A backend on this node with its source translated, one elsewhere, and one with the source kept.
fn services(fixture: &PacketFixture<'_>, name: &str, first: u8) -> [(PacketService, usize); 3] {
    let new = |kind: &str, number, policy| {
        PacketService::new(&format!("{name}-{kind}"), number, policy).with_target_port(TRANSFER_PORT)
    };
    [
        (new("here", first, TrafficPolicy::Cluster).with(fixture.pod(0), "node-1"), 0),
        (new("elsewhere", first + 1, TrafficPolicy::Cluster).with(fixture.pod(2), "node-2"), 2),
        (new("local", first + 2, TrafficPolicy::Local).with(fixture.pod(0), "node-1"), 0),
    ]
}

/// A client sends a datagram and closes its socket. The answer of the backend causes an ICMP error, which must reach the
/// backend. The other direction is in `flows.txt`: closed-here and the like.
pub fn errors_reach_the_backend(fixture: &mut PacketFixture<'_>) {
    let services = services(fixture, "error", 90);
    fixture.apply_all(&services.clone().map(|(service, _)| service));
    for (service, pod) in &services {
        for family in IpFamily::ALL {
            let to = service.address(Dialled::LoadBalancer, family, fixture.network);
            let pod = fixture.pod(*pod);
            let at = SocketAddr::new(family.of(pod.v4, pod.v6), TRANSFER_PORT);
            let server = pod.run_in(|| UdpSocket::bind(at)).unwrap().unwrap();
            server.set_read_timeout(Some(TIMEOUT)).unwrap();
            let source = (fixture.source(Sender::Client(10), to), 0);
            let client = fixture.network.client.run_in(|| UdpSocket::bind(source)).unwrap().unwrap();
            client.send_to(b"request", to).unwrap();
            let peer = server.recv_from(&mut [0; 16]).unwrap_or_else(|e| panic!("{} {to}: {e}", service.name)).1;
            drop(client);
            server.connect(peer).unwrap();
            server.send(b"response").unwrap();
            let error = server.recv(&mut [0; 16]).expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{} {to}: {error}", service.name);
        }
    }
}

/// TCP fills packets of the MTU that both ends have. A hop behind the node, or before it, has a smaller one.
pub fn path_mtu_both_directions(fixture: &mut PacketFixture<'_>) {
    let _servers: Vec<TransferServer> = [0, 2]
        .map(|pod| fixture.pod(pod))
        .map(|pod| TransferServer::start(&pod.namespace, &[pod.v4(TRANSFER_PORT), pod.v6(TRANSFER_PORT)]).unwrap())
        .into();
    let (requests, responses) = (services(fixture, "request", 93), services(fixture, "response", 96));
    let all = requests.iter().chain(&responses).map(|(service, _)| service.clone());
    fixture.apply_all(&all.collect::<Vec<_>>());
    let cluster = &fixture.network.cluster;
    // The hop of a request is the node of the pod, that of a response is the router.
    for (service, pod) in &requests {
        let (node, pod) = (&cluster.nodes[pod / 2].host, fixture.pod(*pod));
        let route = |verb: &str| format!("route {verb} {}/32 dev cni0 mtu {SMALL_MTU}\n", pod.v4);
        let route6 = |verb: &str| format!("route {verb} {}/128 dev cni0 mtu {SMALL_MTU}\n", pod.v6);
        node.namespace.ip(&(route("replace") + &route6("replace"))).unwrap();
        check_transfers(fixture, service, node, (BYTES, 1));
        node.namespace.ip(&(route("del") + &route6("del"))).unwrap();
    }
    let router = &fixture.network.router;
    let (v4, v6) = beeline_harness::packet::client_address(0);
    let small = format!("dev client0 mtu {SMALL_MTU}");
    // The kernel's own IPv6 route to the link has the metric 256.
    router.namespace.ip(&format!("route replace {v4}/24 {small}\nroute replace {v6}/64 {small} metric 256\n")).unwrap();
    for (service, _) in &responses {
        check_transfers(fixture, service, router, (1, BYTES));
    }
}

fn check_transfers(fixture: &PacketFixture<'_>, service: &PacketService, hop: &TestHost, (up, down): (usize, usize)) {
    for family in IpFamily::ALL {
        let to = service.address(Dialled::LoadBalancer, family, fixture.network);
        let source = fixture.source(Sender::Client(10), to);
        let before = packets_too_big(hop, family);
        let result = transfer(&fixture.network.client.namespace, source, to, up, down);
        result.unwrap_or_else(|e| panic!("{} {family:?}, {up} bytes there and {down} back: {e:#}", service.name));
        let sent = packets_too_big(hop, family) - before;
        assert!(sent > 0, "{} {family:?}: {} sent no ICMP message, so the test shows nothing", service.name, hop.name);
    }
}

/// Number of ICMP messages "fragmentation needed" or "packet too big" that the host has sent. IPv4 counts them among all
/// "destination unreachable" messages.
fn packets_too_big(host: &TestHost, family: IpFamily) -> u64 {
    let file = if family == IpFamily::V4 { "snmp" } else { "snmp6" };
    let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let text = host.run_in(read).unwrap();
    let value = match family {
        IpFamily::V6 => text.lines().find_map(|line| line.strip_prefix("Icmp6OutPktTooBigs")),
        IpFamily::V4 => {
            let mut lines = text.lines().filter(|line| line.starts_with("Icmp:"));
            let names = lines.next().unwrap().split_whitespace();
            let mut pairs = names.zip(lines.next().unwrap().split_whitespace());
            pairs.find(|(name, _)| *name == "OutDestUnreachs").map(|(_, value)| value)
        }
    };
    value.unwrap_or_else(|| panic!("no counter in {file}")).trim().parse().unwrap()
}
