//! Checks every line of `flows.txt`.

use super::driver::DriverKind;
use super::expectation::table;
use super::fixture::{PacketFixture, Sender};
use super::matrix::{all_protocols, check_flows};
use super::service::{CLOSED_PORT, Dialled, PORT, PacketService, TrafficPolicy};
use beeline_harness::EchoService;
use beeline_harness::packet::{FrontendRange, IpFamily, PacketNetwork, client_address};
use serde_json::json;
use std::net::SocketAddr;

const FLOWS: &str = include_str!("flows.txt");
/// A port of the pods that nothing listens on.
const UNUSED_TARGET: u16 = 8099;
/// Number of an address of the service range that no Service has.
const UNALLOCATED: u8 = 190;

fn services(network: &PacketNetwork) -> Vec<PacketService> {
    let (a, c, vm) = (network.cluster.pod(0), network.cluster.pod(2), &network.vm);
    let (v4, v6) = client_address(10);
    let ranges = json!({ "loadBalancerSourceRanges": [format!("{v4}/32"), format!("{v6}/128")] });
    let cluster = |name, number| PacketService::new(name, number, TrafficPolicy::Cluster);
    let local = |name, number| PacketService::new(name, number, TrafficPolicy::Local);
    vec![
        cluster("plain", 50).with(a, "node-1"),
        cluster("ranges", 51).with(a, "node-1").with_spec(ranges),
        cluster("hairpin", 52).with(vm, "node-1"),
        local("hairpin-local", 53).with(vm, "node-1"),
        cluster("closed-here", 54).with(a, "node-1").with_target_port(UNUSED_TARGET),
        local("closed-local", 55).with(a, "node-1").with_target_port(UNUSED_TARGET),
        cluster("closed-elsewhere", 56).with(c, "node-2").with_target_port(UNUSED_TARGET),
    ]
}

/// Parses the column `dialled`.
fn address(text: &str, service: &PacketService, family: IpFamily, network: &PacketNetwork) -> SocketAddr {
    let (host, port) = text.split_once(':').unwrap_or((text, ""));
    let mut address = match (host, Dialled::parse(host)) {
        (_, Some(dialled)) => service.address(dialled, family, network),
        ("second-node-address", _) => (network.node_second(family), 0).into(),
        ("unallocated", _) => {
            let (v4, v6) = FrontendRange::ClusterIp.address(UNALLOCATED);
            (family.of(v4, v6), PORT).into()
        }
        _ => panic!("flows.txt: unknown address {text}"),
    };
    match port {
        "" => {}
        "node-port" => address.set_port(service.node_port()),
        "closed-port" => address.set_port(CLOSED_PORT),
        _ => panic!("flows.txt: unknown port {text}"),
    }
    address
}

pub fn check(fixture: &mut PacketFixture<'_>) {
    let network = fixture.network;
    let services = services(network);
    let untouched = services.iter().flat_map(|s| [fixture.serve_untouched(s), fixture.serve_untouched_ports(s)]);
    let _untouched: Vec<_> = untouched.chain(services.iter().map(|s| fixture.serve_node_port(s))).collect();
    let outside = &network.cluster.outside;
    let unallocated = PacketNetwork::frontends(UNALLOCATED, PORT);
    let _unallocated = EchoService::new(&outside.name, unallocated).start(&outside.namespace).unwrap();
    fixture.apply_all(&services);
    let rows = table(FLOWS);
    let flows = rows[1..].iter().flat_map(|row| {
        let [name, from, dialled, expected, kube_proxy] = row[..] else { panic!("flows.txt: {row:?}") };
        let is_different = fixture.driver.kind() == DriverKind::KubeProxy && kube_proxy != "same";
        let expected = if is_different { kube_proxy } else { expected };
        let service = services.iter().find(|service| service.name == name);
        let service = service.unwrap_or_else(|| panic!("flows.txt: unknown service {name}"));
        let to = |family| address(dialled, service, family, network);
        all_protocols(&row.join(" "), Sender::parse(from), expected, to)
    });
    check_flows(fixture, &flows.collect::<Vec<_>>());
}
