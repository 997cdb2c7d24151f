//! Flows that have the same source port.

use super::fixture::{PacketFixture, Sender};
use super::service::{Dialled, PacketService, TrafficPolicy};
use beeline_harness::packet::{CLIENTS, Flow, FlowProtocol, IpFamily};
use std::collections::BTreeSet;
use std::net::SocketAddr;

const SOURCE_PORT: u16 = 45_000;
const REUSES: usize = 5;

fn for_all_protocols(mut check: impl FnMut(FlowProtocol, IpFamily)) {
    FlowProtocol::ALL.into_iter().for_each(|protocol| IpFamily::ALL.into_iter().for_each(|f| check(protocol, f)));
}

/// 16 clients with one source port dial one frontend. All flows are open at the same time.
pub fn sixteen_clients_with_one_port(fixture: &mut PacketFixture<'_>) {
    let here = PacketService::new("one-port", 62, TrafficPolicy::Cluster).with(fixture.pod(0), "node-1");
    let elsewhere = PacketService::new("one-port-elsewhere", 63, TrafficPolicy::Cluster).with(fixture.pod(2), "node-2");
    fixture.apply_all(&[here.clone(), elsewhere.clone()]);
    for (service, name) in [(&here, "pod-a"), (&elsewhere, "pod-c")] {
        for_all_protocols(|protocol, family| {
            let to = service.address(Dialled::NodePort, family, fixture.network);
            let flows: Vec<Flow> =
                CLIENTS.map(|number| fixture.open(Sender::Client(number), SOURCE_PORT, protocol, to)).collect();
            let sources: BTreeSet<SocketAddr> = flows.iter().filter_map(|flow| source_seen_by(flow, name)).collect();
            assert_eq!(sources.len(), flows.len(), "{protocol:?} {to}: the server saw {sources:?}");
            flows.into_iter().for_each(|flow| flow.reset().unwrap());
        });
    }
}

fn source_seen_by(flow: &Flow, name: &str) -> Option<SocketAddr> {
    let result = flow.ask();
    assert_eq!(result.name(), name, "{:?}: {result:?}", flow.local_address());
    result.seen_source()
}

/// One client port to all frontends of one backend at the same time. Where the source is kept, the flows differ for the
/// backend only if the node changes the port.
pub fn one_port_to_two_frontends(fixture: &mut PacketFixture<'_>) {
    let cluster = PacketService::new("frontends", 64, TrafficPolicy::Cluster).with(fixture.pod(0), "node-1");
    let local = PacketService::new("frontends-local", 65, TrafficPolicy::Local).with(fixture.pod(0), "node-1");
    fixture.apply_all(&[cluster.clone(), local.clone()]);
    for service in [&cluster, &local] {
        for_all_protocols(|protocol, family| {
            let open = |dialled| {
                let to = service.address(dialled, family, fixture.network);
                fixture.open(Sender::Client(10), SOURCE_PORT, protocol, to)
            };
            let flows: Vec<Flow> = Dialled::ALL.into_iter().map(open).collect();
            // A second round shows that a later flow does not take over an earlier one.
            for _ in 0..2 {
                let sources: BTreeSet<_> = flows.iter().filter_map(|flow| source_seen_by(flow, "pod-a")).collect();
                assert_eq!(sources.len(), flows.len(), "{} {protocol:?} {family:?}: {sources:?}", service.name);
            }
            flows.into_iter().for_each(|flow| flow.reset().unwrap());
        });
    }
}

/// A client that opens a connection from a port whose last connection was closed gets the backend again.
pub fn reuse_after_reset(fixture: &mut PacketFixture<'_>) {
    let cluster = PacketService::new("reuse", 66, TrafficPolicy::Cluster).with(fixture.pod(0), "node-1");
    let local = PacketService::new("reuse-local", 67, TrafficPolicy::Local).with(fixture.pod(0), "node-1");
    let services = [cluster, local];
    let _untouched: Vec<_> = services.iter().map(|service| fixture.serve_untouched(service)).collect();
    fixture.apply_all(&services);
    for service in &services {
        for family in IpFamily::ALL {
            let to = service.address(Dialled::LoadBalancer, family, fixture.network);
            for _ in 0..REUSES {
                let flow = fixture.open(Sender::Client(11), SOURCE_PORT, FlowProtocol::Tcp, to);
                source_seen_by(&flow, "pod-a");
                flow.reset().unwrap();
            }
        }
    }
}
