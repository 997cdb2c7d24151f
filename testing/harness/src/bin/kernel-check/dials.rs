//! Dials from every kind of socket to every kind of address, and dials that must be refused.

use std::net::SocketAddr;

use beeline_harness::{DialCheck, DialKind, ExampleCluster, Expected, mapped};

use crate::check::Checks;

pub fn at(address: &str) -> SocketAddr {
    address.parse().expect("a literal")
}

/// Checks that a backend answers and that getpeername, recvfrom or recvmsg reports the dialled address.
pub fn sockets(example: &ExampleCluster, checks: &mut Checks) {
    let (web, dns) = (at("10.96.0.10:80"), at("10.96.0.53:53"));
    let tcp = DialKind::TCP.map(|kind| (kind, [web, at("[fd00:96::10]:80"), mapped(web)]));
    let udp = DialKind::UDP.map(|kind| (kind, [dns, at("[fd00:96::53]:53"), mapped(dns)]));
    for (kind, addresses) in tcp.into_iter().chain(udp) {
        for to in addresses {
            checks.dial(&example.client, "socket", DialCheck::new(kind, to, Expected::any(example.names())));
        }
    }
}

pub fn addresses(example: &ExampleCluster, checks: &mut Checks) {
    let pods = || Expected::any(example.names());
    for (what, to, expected) in [
        ("nodePort", "172.31.0.11:30080", pods()),
        ("nodePort", "[fd00:31::11]:30080", pods()),
        ("nodePort of another node", "172.31.0.12:30080", pods()),
        ("load balancer", "203.0.113.10:80", pods()),
        ("external IP", "198.51.100.10:80", pods()),
        ("affinity", "10.96.0.20:80", Expected::same(example.names())),
        ("Local policy", "10.96.0.30:514", Expected::any(["pod-b"])),
        ("no service", "10.244.2.2:8080", Expected::any(["pod-d"])),
    ] {
        checks.dial(&example.client, what, DialCheck::new(DialKind::Tcp, at(to), expected));
    }
}

/// Checks that the call that dials fails with ECONNREFUSED.
pub fn refusals(example: &ExampleCluster, checks: &mut Checks) {
    let closed = at("10.96.0.40:80");
    for (what, kind, to) in [
        ("no endpoints", DialKind::Tcp, closed),
        ("no endpoints", DialKind::Tcp, mapped(closed)),
        ("no such port", DialKind::Tcp, at("10.96.0.10:81")),
        ("no such port", DialKind::Tcp, at("[fd00:96::10]:81")),
        ("no such port", DialKind::UdpConnected, at("10.96.0.53:54")),
        ("no such port", DialKind::UdpSendTo, at("10.96.0.53:54")),
        ("no such port", DialKind::UdpSendMsg, at("[fd00:96::53]:54")),
    ] {
        checks.dial(&example.client, what, DialCheck::new(kind, to, Expected::Refused));
    }
}
