//! Dials: from every kind of socket, to every kind of address, and those that must be refused.

use std::net::SocketAddr;

use beeline_harness::{Example, Expect, Kind, Trial, mapped};

use crate::check::Checks;

pub fn at(address: &str) -> SocketAddr {
    address.parse().expect("a literal")
}

/// The backend's answer, and the dialled address by getpeername (recvfrom, recvmsg).
pub fn sockets(example: &Example, checks: &mut Checks) {
    let (web, dns) = (at("10.96.0.10:80"), at("10.96.0.53:53"));
    let tcp = Kind::TCP.map(|kind| (kind, [web, at("[fd00:96::10]:80"), mapped(web)]));
    let udp = Kind::UDP.map(|kind| (kind, [dns, at("[fd00:96::53]:53"), mapped(dns)]));
    for (kind, addresses) in tcp.into_iter().chain(udp) {
        for to in addresses {
            checks.dial(&example.client, "socket", Trial::new(kind, to, Expect::any(example.names())));
        }
    }
}

pub fn addresses(example: &Example, checks: &mut Checks) {
    let pods = || Expect::any(example.names());
    for (what, to, expect) in [
        ("nodePort", "172.31.0.11:30080", pods()),
        ("nodePort", "[fd00:31::11]:30080", pods()),
        ("nodePort of another node", "172.31.0.12:30080", pods()),
        ("load balancer", "203.0.113.10:80", pods()),
        ("external IP", "198.51.100.10:80", pods()),
        ("affinity", "10.96.0.20:80", Expect::same(example.names())),
        ("Local policy", "10.96.0.30:514", Expect::any(["pod-b"])),
        ("no service", "10.244.2.2:8080", Expect::any(["pod-d"])),
    ] {
        checks.dial(&example.client, what, Trial::new(Kind::Tcp, at(to), expect));
    }
}

/// Exactly ECONNREFUSED, by the call that dials.
pub fn refusals(example: &Example, checks: &mut Checks) {
    let closed = at("10.96.0.40:80");
    for (what, kind, to) in [
        ("no endpoints", Kind::Tcp, closed),
        ("no endpoints", Kind::Tcp, mapped(closed)),
        ("no such port", Kind::Tcp, at("10.96.0.10:81")),
        ("no such port", Kind::Tcp, at("[fd00:96::10]:81")),
        ("no such port", Kind::UdpConnected, at("10.96.0.53:54")),
        ("no such port", Kind::UdpSendTo, at("10.96.0.53:54")),
        ("no such port", Kind::UdpSendMsg, at("[fd00:96::53]:54")),
    ] {
        checks.dial(&example.client, what, Trial::new(kind, to, Expect::Refused));
    }
}
