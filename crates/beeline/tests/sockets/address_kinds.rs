//! Every kind of service address, by TCP, connected and unconnected UDP, over IPv4, IPv6 and IPv4 through AF_INET6.

use crate::fixture::{AgentFixture, ManifestFile};
use beeline_harness::{Client, DialKind, DialOutcome, DialRequest, mapped, unmapped};
use serde_json::json;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

pub const TRANSPORTS: [DialKind; 3] = [DialKind::Tcp, DialKind::UdpConnected, DialKind::UdpSendTo];

/// The three forms of a dual-stack address: IPv4, IPv6, and IPv4-mapped.
pub fn address_forms(v4: &str, v6: &str, port: u16) -> [SocketAddr; 3] {
    let at = |text: &str| SocketAddr::new(text.parse::<IpAddr>().unwrap(), port);
    [at(v4), at(v6), mapped(at(v4))]
}

pub fn is_connected(kind: DialKind) -> bool {
    !matches!(kind, DialKind::UdpSendTo | DialKind::UdpSendMsg | DialKind::UdpUring)
}

/// Dials, and checks that one of `pods` answered at its own address of the same family, and that the socket reports the
/// dialled address.
pub fn assert_resolved(client: &Client, dial: &DialRequest, pods: &[&str]) -> DialOutcome {
    let outcome = client.dial(dial).unwrap();
    let what = format!("{:?} {}: {outcome:?}", dial.kind, dial.to);
    assert_eq!(outcome.errno(), None, "{what}");
    assert!(pods.contains(&outcome.name()), "{what}");
    assert_eq!(outcome.server_address().unwrap().is_ipv4(), unmapped(dial.to).is_ipv4(), "{what}");
    assert_ne!(outcome.server_address(), Some(unmapped(dial.to)), "{what}");
    assert_eq!(outcome.peer, is_connected(dial.kind).then_some(dial.to), "getpeername: {what}");
    if DialKind::UDP.contains(&dial.kind) {
        assert_eq!(outcome.from, Some(dial.to), "recvfrom: {what}");
    }
    outcome
}

#[test]
fn every_kind_of_address_is_resolved() {
    let network = beeline_harness::TestNetwork::with_nodes(&[2, 1]).unwrap();
    let at = [(network.pod(0), "node-1"), (network.pod(2), "node-2")];
    let external = |name, number, node_port: u16, digit: u8| {
        let (balancers, ips) = (
            [format!("203.0.113.{digit}"), format!("2001:db8::{digit}")],
            [format!("198.51.100.{digit}"), format!("2001:db8:1::{digit}")],
        );
        let (balancers, ips) = (balancers.each_ref().map(String::as_str), ips.each_ref().map(String::as_str));
        ManifestFile::service(name, number).with_external(node_port, &balancers, &ips).backed_by(&at)
    };
    let objects = [
        external("web", 10, 30080, 1),
        external("local", 11, 30081, 2).with_spec(json!({ "externalTrafficPolicy": "Local" })),
    ];
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let network = &fixture.network;
    let _servers = [network.pod(0).serve(8080).unwrap(), network.pod(2).serve(8080).unwrap()];
    let all = ["pod-a", "pod-c"];
    let (own, other) = (("172.31.0.11", "fd00:31::11"), ("172.31.0.12", "fd00:31::12"));
    let addresses = [
        ("clusterIP", ("10.96.0.10", "fd00:96::10"), 80, &all[..]),
        ("nodePort, own", own, 30080, &all[..]),
        ("nodePort, other node, Cluster", other, 30080, &all[..]),
        ("loadBalancer", ("203.0.113.1", "2001:db8::1"), 80, &all[..]),
        ("externalIP", ("198.51.100.1", "2001:db8:1::1"), 80, &all[..]),
        ("clusterIP of external Local", ("10.96.0.11", "fd00:96::11"), 80, &all[..]),
        ("nodePort, own, Local: all endpoints from inside", own, 30081, &all[..]),
        ("nodePort, other node, Local: endpoints of that node", other, 30081, &all[1..]),
        ("loadBalancer, Local", ("203.0.113.2", "2001:db8::2"), 80, &all[..]),
        ("externalIP, Local", ("198.51.100.2", "2001:db8:1::2"), 80, &all[..]),
    ];
    let clients = [network.node().client().unwrap(), network.pod(1).client().unwrap()];
    for (name, (v4, v6), port, pods) in addresses {
        let mut seen = BTreeSet::new();
        for kind in TRANSPORTS {
            for to in address_forms(v4, v6, port) {
                for client in &clients {
                    seen.insert(assert_resolved(client, &DialRequest::new(kind, to), pods).name().to_owned());
                }
            }
        }
        assert_eq!(seen.len(), pods.len(), "{name}: 18 dials must reach each backend, but reached {seen:?}");
    }
}
