//! Every kind of address x TCP, connected and unconnected UDP x IPv4, IPv6 and IPv4 through AF_INET6.

use crate::ground::{Ground, Object};
use beeline_harness::{Client, Dial, Kind, Outcome, mapped, unmapped};
use serde_json::json;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

pub const TRANSPORTS: [Kind; 3] = [Kind::Tcp, Kind::UdpConnected, Kind::UdpSendTo];

/// The three ways to dial the v4 and v6 twins of one address.
pub fn ways(v4: &str, v6: &str, port: u16) -> [SocketAddr; 3] {
    let at = |text: &str| SocketAddr::new(text.parse::<IpAddr>().unwrap(), port);
    [at(v4), at(v6), mapped(at(v4))]
}

pub fn is_connected(kind: Kind) -> bool {
    !matches!(kind, Kind::UdpSendTo | Kind::UdpSendMsg | Kind::UdpUring)
}

/// Dials and checks what every resolved dial has in common: somebody of `pods` answered, at its own address of the same
/// family, and the socket shows what was dialled.
pub fn reach(client: &Client, dial: &Dial, pods: &[&str]) -> Outcome {
    let outcome = client.dial(dial).unwrap();
    let what = format!("{:?} {}: {outcome:?}", dial.kind, dial.to);
    assert_eq!(outcome.errno(), None, "{what}");
    assert!(pods.contains(&outcome.name()), "{what}");
    assert_eq!(outcome.at().unwrap().is_ipv4(), unmapped(dial.to).is_ipv4(), "{what}");
    assert_ne!(outcome.at(), Some(unmapped(dial.to)), "{what}");
    assert_eq!(outcome.peer, is_connected(dial.kind).then_some(dial.to), "getpeername: {what}");
    if Kind::UDP.contains(&dial.kind) {
        assert_eq!(outcome.from, Some(dial.to), "recvfrom: {what}");
    }
    outcome
}

#[test]
fn every_kind_of_address() {
    let lab = beeline_harness::Lab::with_nodes(&[2, 1]).unwrap();
    let at = [(lab.pod(0), "node-1"), (lab.pod(2), "node-2")];
    let external = |name, number, node_port: u16, digit: u8| {
        let (balancers, ips) = (
            [format!("203.0.113.{digit}"), format!("2001:db8::{digit}")],
            [format!("198.51.100.{digit}"), format!("2001:db8:1::{digit}")],
        );
        let (balancers, ips) = (balancers.each_ref().map(String::as_str), ips.each_ref().map(String::as_str));
        Object::service(name, number).external(node_port, &balancers, &ips).at(&at)
    };
    let objects = [
        external("web", 10, 30080, 1),
        external("local", 11, 30081, 2).spec(json!({ "externalTrafficPolicy": "Local" })),
    ];
    let ground = Ground::on(lab, &objects, &[]);
    let lab = &ground.lab;
    let _servers = [lab.pod(0).serve(8080).unwrap(), lab.pod(2).serve(8080).unwrap()];
    let all = ["pod-a", "pod-c"];
    let (own, other) = (("172.31.0.11", "fd00:31::11"), ("172.31.0.12", "fd00:31::12"));
    let addresses = [
        ("clusterIP", ("10.96.0.10", "fd00:96::10"), 80, &all[..]),
        ("nodePort, own", own, 30080, &all[..]),
        ("nodePort, other node, Cluster", other, 30080, &all[..]),
        ("loadBalancer", ("203.0.113.1", "2001:db8::1"), 80, &all[..]),
        ("externalIP", ("198.51.100.1", "2001:db8:1::1"), 80, &all[..]),
        ("clusterIP of external Local", ("10.96.0.11", "fd00:96::11"), 80, &all[..]),
        ("nodePort, own, Local: the short circuit", own, 30081, &all[..]),
        ("nodePort, other node, Local: that node's", other, 30081, &all[1..]),
        ("loadBalancer, Local", ("203.0.113.2", "2001:db8::2"), 80, &all[..]),
        ("externalIP, Local", ("198.51.100.2", "2001:db8:1::2"), 80, &all[..]),
    ];
    let clients = [lab.node().client().unwrap(), lab.pod(1).client().unwrap()];
    for (name, (v4, v6), port, pods) in addresses {
        let mut seen = BTreeSet::new();
        for kind in TRANSPORTS {
            for to in ways(v4, v6, port) {
                for client in &clients {
                    seen.insert(reach(client, &Dial::new(kind, to), pods).name().to_owned());
                }
            }
        }
        assert_eq!(seen.len(), pods.len(), "{name}: in 18 dials each backend is met, but {seen:?}");
    }
}
