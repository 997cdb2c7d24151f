//! Conntrack entries of real flows: listed, counted and deleted.

mod fixture;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use beeline_harness::{DialKind, DialRequest, TestHost, TestNetwork};
use beeline_netfilter::conntrack::{Conntrack, ConntrackEntry, FlowTuple, IpProtocol};
use fixture::{nft, open};

const PORT: u16 = 8080;

fn conntrack(host: &TestHost) -> Conntrack {
    host.run_in(Conntrack::open).unwrap().unwrap()
}

fn all(conntrack: &mut Conntrack, protocol: IpProtocol) -> Vec<ConntrackEntry> {
    conntrack.list(protocol, |_| true).unwrap()
}

/// A node that tracks connections, and a pod from which a client dials the node's server over both families.
fn network() -> TestNetwork {
    let network = fixture::network();
    open(network.node()).ensure().unwrap();
    network
}

fn dial(network: &TestNetwork, kind: DialKind, to: SocketAddr) -> SocketAddr {
    let outcome = network.pod(0).client().unwrap().dial(&DialRequest::new(kind, to)).unwrap();
    assert_eq!(outcome.name(), "node-1", "{outcome:?}");
    outcome.local.unwrap()
}

#[test]
fn udp_flows_of_both_families_are_listed_and_deleted() {
    let network = network();
    let node = network.node();
    let _server = node.serve(PORT).unwrap();
    let mut conntrack = conntrack(node);
    assert_eq!(conntrack.usage().unwrap().entries, 0);
    dial(&network, DialKind::Tcp, node.v4(PORT));
    for to in [node.v4(PORT), node.v6(PORT)] {
        let from = dial(&network, DialKind::UdpConnected, to);
        let entry = *all(&mut conntrack, IpProtocol::UDP).iter().find(|entry| entry.original.source == from).unwrap();
        assert_eq!(entry.original, FlowTuple { source: from, destination: to });
        assert_eq!(entry.reply, FlowTuple { source: to, destination: from });
        assert_eq!(entry.protocol, IpProtocol::UDP);
        assert!(entry.status.has_reply() && !entry.status.translates_source());
        assert!(entry.timeout_seconds.is_some_and(|seconds| (1..=180).contains(&seconds)), "{entry:?}");
    }
    assert_eq!(conntrack.usage().unwrap().entries, 3);
    let entries = all(&mut conntrack, IpProtocol::UDP);
    assert_eq!(entries.len(), 2, "the kernel leaves out TCP: {entries:?}");
    for entry in &entries {
        assert!(conntrack.delete(entry).unwrap());
        assert!(!conntrack.delete(entry).unwrap(), "it is gone");
    }
    assert_eq!(all(&mut conntrack, IpProtocol::UDP), []);
    assert_eq!(all(&mut conntrack, IpProtocol::TCP).len(), 1, "other entries are not deleted");
}

#[test]
fn translated_addresses_are_in_the_reply_tuple() {
    let network = network();
    let node = network.node();
    let _server = node.serve(PORT).unwrap();
    nft(
        node,
        &format!(
            "add table ip test; add chain ip test c {{ type nat hook prerouting priority -100; }}
             add rule ip test c udp dport 53 dnat to {}:{PORT}",
            node.v4
        ),
    );
    let service = SocketAddr::new(IpAddr::from([10, 96, 0, 1]), 53);
    dial(&network, DialKind::UdpConnected, service);
    let entries = conntrack(node).list(IpProtocol::UDP, |entry| entry.original.destination == service).unwrap();
    assert_eq!((entries.len(), entries[0].reply.source), (1, node.v4(PORT)));
    assert!(entries[0].status.translates_destination() && !entries[0].status.translates_source());
}

/// More entries than one buffer of 32 KiB can hold.
#[test]
fn thousands_of_entries_are_listed_completely() {
    const FLOWS: u16 = 3000;
    let network = network();
    let (node, to) = (network.node(), network.node().v4(9));
    let send = |port: u16| UdpSocket::bind((network.pod(0).v4, port)).unwrap().send_to(b"x", to).unwrap();
    network.pod(0).run_in(|| (0..FLOWS).map(|index| send(10_000 + index)).sum::<usize>()).unwrap();
    let mut ports: Vec<u16> =
        all(&mut conntrack(node), IpProtocol::UDP).iter().map(|entry| entry.original.source.port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, (10_000..10_000 + FLOWS).collect::<Vec<_>>());
    assert_eq!(conntrack(node).usage().unwrap().entries, u32::from(FLOWS));
}

#[test]
fn the_maximum_is_that_of_the_sysctl() {
    let network = network();
    let read = || std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap();
    let max: u32 = network.node().run_in(read).unwrap().trim().parse().unwrap();
    assert_eq!(conntrack(network.node()).usage().unwrap().max, max);
}
