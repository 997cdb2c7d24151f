//! What the table does to conntrack entries with NAT information, which another part creates: here `conntrack -I`, in
//! the product a BPF program.

mod fixture;

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
};

use beeline_harness::{Client, DialKind, DialOutcome, DialRequest, TestHost, TestNetwork};
use beeline_netfilter::{Ensured, Table, TableConfig};
use fixture::{MARK, SERVICE_V4, SERVICE_V6, config, network, nft, open, service};

const CLIENT_PORT: u16 = 4000;
const SERVER_PORT: u16 = 5300;

/// The addresses of one family: the client, the service that it dials, the backend, and the node's address on the
/// backend's side.
struct Flow {
    client: IpAddr,
    service: IpAddr,
    backend: IpAddr,
    node: IpAddr,
}

fn flows(network: &TestNetwork) -> [Flow; 2] {
    let (outside, pod) = (&network.outside, network.pod(0));
    let (v4, v6) = ("10.244.1.1".parse().unwrap(), "fd00:244::1:1".parse().unwrap());
    [
        Flow { client: outside.v4.into(), service: SERVICE_V4, backend: pod.v4.into(), node: v4 },
        Flow { client: outside.v6.into(), service: SERVICE_V6, backend: pod.v6.into(), node: v6 },
    ]
}

/// Creates an entry that translates the destination to the backend and the source to the node.
fn insert(node: &TestHost, flow: &Flow) {
    let bracketed = if flow.backend.is_ipv6() { format!("[{}]", flow.backend) } else { flow.backend.to_string() };
    let text = format!(
        "-I -p udp -s {} -d {} --sport {CLIENT_PORT} --dport 53 -t 100 \
         --src-nat {} --dst-nat {bracketed}:{SERVER_PORT}",
        flow.client, flow.service, flow.node
    );
    let output = node.program("conntrack").unwrap().args(text.split(' ')).run().unwrap();
    assert!(output.status.success(), "conntrack {text}: {}", output.stderr);
}

fn dial(client: &Client, flow: &Flow) -> DialOutcome {
    let request = DialRequest::new(DialKind::UdpConnected, service(flow.service, 53));
    client.dial(&request.bound(SocketAddr::new(flow.client, CLIENT_PORT)).timeout_ms(500)).unwrap()
}

#[test]
fn source_and_destination_are_translated_with_one_nat_chain() {
    let network = network();
    let node = network.node();
    open(node).ensure().unwrap();
    let _server = network.pod(0).serve(SERVER_PORT).unwrap();
    let client = network.outside.client().unwrap();
    for flow in flows(&network) {
        insert(node, &flow);
        let answer = dial(&client, &flow).answer.expect("an answer");
        assert_eq!((answer.name.as_str(), answer.peer.ip()), ("pod-a", flow.node));
    }
}

/// The kernel ignores the NAT information of an entry unless both the nat chain and a `ct` expression are there.
#[test]
fn entries_have_no_effect_without_the_chain_or_without_its_rule() {
    let network = network();
    let node = network.node();
    let _server = network.pod(0).serve(SERVER_PORT).unwrap();
    let client = network.outside.client().unwrap();
    for commands in [
        "",
        "add table inet beeline; add chain inet beeline nat_prerouting { type nat hook prerouting priority -100; }",
    ] {
        nft(node, commands);
        for flow in flows(&network) {
            insert(node, &flow);
            assert_eq!(dial(&client, &flow).answer, None, "{commands}");
        }
        let flushed = node.program("conntrack").unwrap().args(["-F"]).run().unwrap();
        assert!(flushed.status.success(), "{}", flushed.stderr);
    }
}

/// Replacing the table must not leave an instant in which a packet is not translated. Two tables with different marks
/// replace each other.
#[test]
fn replacing_the_table_loses_no_packet_of_an_established_flow() {
    let network = network();
    let node = network.node();
    let other = TableConfig { reject_mark: MARK + 1, ..config() };
    let mut tables = [open(node), node.run_in(|| Table::open(other)).unwrap().unwrap()];
    tables[0].ensure().unwrap();
    let _server = network.pod(0).serve(SERVER_PORT).unwrap();
    let client = network.outside.client().unwrap();
    let flow = &flows(&network)[0];
    insert(node, flow);
    let stop = AtomicBool::new(false);
    let (answered, replaced) = std::thread::scope(|scope| {
        let replacer = scope.spawn(|| replace_until(&stop, &mut tables));
        let answered = (0..2000).filter(|_| dial(&client, flow).name() == "pod-a").count();
        stop.store(true, Ordering::Relaxed);
        (answered, replacer.join().unwrap())
    });
    println!("2000 datagrams while the table was replaced {replaced} times");
    assert_eq!(answered, 2000);
    assert!(replaced > 50, "{replaced}");
}

fn replace_until(stop: &AtomicBool, tables: &mut [Table; 2]) -> usize {
    let mut replaced = 0;
    while !stop.load(Ordering::Relaxed) {
        for table in tables.iter_mut().rev() {
            assert!(matches!(table.ensure().unwrap(), Ensured::Repaired(_)));
            replaced += 1;
        }
    }
    replaced
}
