//! Packets with the mark are refused as real clients see it, TCP and UDP, IPv4 and IPv6, and leave no conntrack entry.
//! A rule of the test sets the mark before the chain `reject`, in place of a BPF program.

mod fixture;

use beeline_harness::{Client, DialKind, DialRequest, Errno, TestHost, TestNetwork};
use beeline_netfilter::table::RuleCounter;
use fixture::{MARK, SERVICE_V4, SERVICE_V6, network, nft, open, service};
use std::net::SocketAddr;

const KINDS: [DialKind; 3] = [DialKind::Tcp, DialKind::TcpNonblocking, DialKind::UdpConnected];

fn mark_service_packets(node: &TestHost) {
    nft(
        node,
        &format!(
            "add table inet test; add chain inet test set_mark {{ type filter hook prerouting priority -350; }}
             add rule inet test set_mark ip daddr {SERVICE_V4} meta mark set {MARK}
             add rule inet test set_mark ip6 daddr {SERVICE_V6} meta mark set {MARK}"
        ),
    );
}

fn dial(client: &Client, kind: DialKind, to: SocketAddr) -> Option<Errno> {
    client.dial(&DialRequest::new(kind, to).timeout_ms(1000)).unwrap().errno()
}

/// The conntrack entries of the node, as `conntrack -L` prints them.
fn entries(node: &TestHost) -> String {
    let list = |family| node.program("conntrack").unwrap().args(["-L", "-f", family]).run().unwrap().stdout;
    ["ipv4", "ipv6"].map(list).concat()
}

fn outside_client(network: &TestNetwork) -> Client {
    network.outside.client().unwrap()
}

#[test]
fn marked_packets_are_refused_at_once_and_leave_no_conntrack_entry() {
    let network = network();
    let mut table = open(network.node());
    table.ensure().unwrap();
    mark_service_packets(network.node());
    let client = outside_client(&network);
    for address in [SERVICE_V4, SERVICE_V6] {
        for kind in KINDS {
            assert_eq!(dial(&client, kind, service(address, 80)), Some(Errno::ECONNREFUSED), "{kind:?} to {address}");
        }
    }
    assert_eq!(entries(network.node()), "");
    let counters = table.counters().unwrap();
    let packets = |rule: &str| counters.iter().find(|counter| counter.rule == rule).map(|counter| counter.packets);
    assert_eq!((packets("reject-tcp"), packets("reject-other"), packets("dnat")), (Some(4), Some(2), Some(0)));
}

/// Without the table the same dials end otherwise, so the test above shows what the table does.
#[test]
fn the_same_dials_are_not_refused_without_the_table() {
    let network = network();
    mark_service_packets(network.node());
    let client = outside_client(&network);
    for address in [SERVICE_V4, SERVICE_V6] {
        let errno = dial(&client, DialKind::UdpConnected, service(address, 80));
        assert!(errno.is_some_and(|errno| errno != Errno::ECONNREFUSED), "{address}: {errno:?}");
    }
}

#[test]
fn unmarked_packets_and_packets_with_another_mark_pass() {
    let network = network();
    let node = network.node();
    open(node).ensure().unwrap();
    let _server = network.pod(0).serve(8080).unwrap();
    let pods = "route add 10.244.1.0/24 via 172.31.0.11\nroute add fd00:244::1:0/112 via fd00:31::11\n";
    network.outside.namespace.ip(pods).unwrap();
    let client = outside_client(&network);
    let answers = || {
        for to in [network.pod(0).v4(8080), network.pod(0).v6(8080)] {
            for kind in KINDS {
                assert_eq!(client.dial(&DialRequest::new(kind, to)).unwrap().name(), "pod-a", "{kind:?} to {to}");
            }
        }
    };
    answers();
    let other = MARK | 1 << 31;
    nft(
        node,
        &format!(
            "add table inet test; add chain inet test set_mark {{ type filter hook prerouting priority -350; }}
             add rule inet test set_mark meta mark set {other}"
        ),
    );
    answers();
    assert_eq!(open(node).counters().unwrap().iter().map(|counter: &RuleCounter| counter.packets).sum::<u64>(), 0);
}
