//! Changes while the program does not run.

use super::driver::DriverKind;
use super::fixture::{PacketFixture, Sender};
use super::service::{Dialled, PacketService, TrafficPolicy};
use beeline_harness::packet::{FlowProtocol, FlowResult, IpFamily};

/// Whether kube-proxy 1.35.8 serves the endpoint after the first and after the second restart. This is what it was seen
/// to do; the cause is not known. Beeline serves it after both.
const SERVED_BY_KUBE_PROXY: [bool; 2] = [true, false];

/// An endpoint left, the program was killed, and the endpoint came back while no program ran.
pub fn returned_endpoint_is_served(fixture: &mut PacketFixture<'_>) {
    for (number, by_kube_proxy) in (77..).zip(SERVED_BY_KUBE_PROXY) {
        let name = format!("returned-{number}");
        let service = PacketService::new(&name, number, TrafficPolicy::Cluster).with(fixture.pod(0), "node-1");
        let to = service.address(Dialled::NodePort, IpFamily::V4, fixture.network);
        let dial = |fixture: &PacketFixture<'_>| fixture.dial(Sender::Client(10), FlowProtocol::Tcp, to);
        fixture.apply(&service);
        assert_eq!(dial(fixture).name(), "pod-a", "{name} at first");
        fixture.apply(&service.without_endpoints());
        assert_eq!(dial(fixture), FlowResult::Refused, "{name} without endpoints");
        fixture.driver.kill();
        fixture.driver.apply(&service.manifest());
        fixture.driver.start();
        fixture.wait_until_programmed();
        let is_served = by_kube_proxy || fixture.driver.kind() == DriverKind::Beeline;
        let result = dial(fixture);
        assert_eq!(result.name() == "pod-a", is_served, "{name} after the restart: {result:?}");
    }
}
