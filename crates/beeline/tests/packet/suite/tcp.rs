//! TCP connections that live longer than their backend's place in the Service, and than the Service.

use super::fixture::{PacketFixture, Sender};
use super::service::{Dialled, PacketService, TrafficPolicy};
use beeline_harness::packet::{Flow, FlowProtocol, FlowResult, IpFamily};

#[track_caller]
fn expect_all(flows: &[(String, Flow, String)], when: &str) {
    for (title, flow, name) in flows {
        let result = flow.ask();
        assert_eq!(result.name(), name, "{when}: {title}: {result:?}");
    }
}

/// Removal of the backend, deletion of the Service, and a restart of the program do not end a connection.
pub fn survives_removal(fixture: &mut PacketFixture<'_>) {
    let here = PacketService::new("tcp-here", 74, TrafficPolicy::Cluster).with(fixture.pod(0), "node-1");
    let elsewhere = PacketService::new("tcp-elsewhere", 75, TrafficPolicy::Cluster).with(fixture.pod(2), "node-2");
    let local = PacketService::new("tcp-local", 76, TrafficPolicy::Local).with(fixture.pod(0), "node-1");
    let services = [(here, "pod-a"), (elsewhere, "pod-c"), (local, "pod-a")];
    fixture.apply_all(&services.clone().map(|(service, _)| service));
    let named = |(service, name): &(PacketService, &str)| -> Vec<(String, Flow, String)> {
        fixture
            .open_all(FlowProtocol::Tcp, service)
            .into_iter()
            .map(|(title, flow)| (title, flow, (*name).to_owned()))
            .collect()
    };
    let flows: Vec<_> = services.iter().flat_map(named).collect();
    expect_all(&flows, "at first");
    fixture.apply_all(&services.clone().map(|(service, _)| service.without_endpoints()));
    for (service, _) in &services {
        let to = service.address(Dialled::NodePort, IpFamily::V4, fixture.network);
        let result = fixture.dial(Sender::Client(10), FlowProtocol::Tcp, to);
        assert_eq!(result, FlowResult::Refused, "a new connection to {} without backends", service.name);
    }
    expect_all(&flows, "after the removal of the backend");
    services.iter().for_each(|(service, _)| fixture.driver.delete(&service.manifest()));
    fixture.wait_until_programmed();
    expect_all(&flows, "after the deletion of the Service");
    fixture.driver.kill();
    expect_all(&flows, "while no program runs");
    fixture.driver.start();
    fixture.wait_until_programmed();
    expect_all(&flows, "after a restart");
}
