//! UDP flows that live longer than the state of their Service.

use super::driver::DriverKind;
use super::fixture::{NODE_SOCKET, PacketFixture};
use super::service::{PacketService, TrafficPolicy};
use beeline_harness::packet::{Flow, FlowProtocol, FlowResult};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(50);
/// How long a flow must stay unchanged to count as unchanged.
const SETTLE: Duration = Duration::from_secs(2);

#[track_caller]
fn expect_all(flows: &[(String, Flow)], name: &str, when: &str) {
    for (title, flow) in flows {
        let result = flow.ask();
        assert_eq!(result.name(), name, "{when}: {title}: {result:?}");
    }
}

/// Sends on every flow until all are answered by `name`. Returns how long that took.
fn wait_for_all(flows: &[(String, Flow)], name: &str, limit: Duration) -> Duration {
    let start = Instant::now();
    loop {
        let wrong: Vec<String> = flows
            .iter()
            .map(|(title, flow)| (title, flow.ask_once()))
            .filter(|(_, result)| result.name() != name)
            .map(|(title, result)| format!("{title}: {result:?}"))
            .collect();
        if wrong.is_empty() {
            return start.elapsed();
        }
        assert!(start.elapsed() < limit, "not answered by {name} within {limit:?}:\n{}", wrong.join("\n"));
        std::thread::sleep(INTERVAL);
    }
}

pub fn leaves_a_removed_backend(fixture: &mut PacketFixture<'_>) {
    let empty = PacketService::new("udp-removed", 70, TrafficPolicy::Cluster);
    let (a, b) = (empty.clone().with(fixture.pod(0), "node-1"), empty.clone().with(fixture.pod(1), "node-1"));
    fixture.apply(&a);
    let flows = fixture.open_all(FlowProtocol::Udp, &empty);
    expect_all(&flows, "pod-a", "at first");
    fixture.driver.apply(&b.manifest());
    let limit = fixture.driver.kind().change_limit();
    println!("flows left a removed backend after {:?}", wait_for_all(&flows, "pod-b", limit));
}

pub fn stays_on_a_terminating_backend(fixture: &mut PacketFixture<'_>) {
    let service = PacketService::new("udp-terminating", 71, TrafficPolicy::Cluster);
    fixture.apply(&service.clone().with(fixture.pod(0), "node-1"));
    let flows = fixture.open_all(FlowProtocol::Udp, &service);
    expect_all(&flows, "pod-a", "at first");
    let moving = service.with_terminating(fixture.pod(0), "node-1").with(fixture.pod(1), "node-1");
    fixture.apply(&moving);
    let new = fixture.open_all(FlowProtocol::Udp, &moving);
    expect_all(&new, "pod-b", "a new flow while pod-a terminates");
    let end = Instant::now() + SETTLE;
    while Instant::now() < end {
        expect_all(&flows, "pod-a", "an old flow while pod-a terminates");
    }
}

pub fn is_picked_up_by_a_new_service(fixture: &mut PacketFixture<'_>) {
    let service = PacketService::new("udp-late", 72, TrafficPolicy::Cluster).with(fixture.pod(0), "node-1");
    let _untouched = (fixture.serve_untouched(&service), fixture.serve_node_port(&service));
    let flows = fixture.open_all(FlowProtocol::Udp, &service);
    for (title, flow) in &flows {
        let result = flow.ask();
        assert!(["outside", NODE_SOCKET].contains(&result.name()), "before the Service: {title}: {result:?}");
    }
    fixture.driver.apply(&service.manifest());
    let limit = fixture.driver.kind().change_limit();
    println!("flows were picked up after {:?}", wait_for_all(&flows, "pod-a", limit));
}

/// kube-proxy leaves the flow on the backend of the deleted Service.
pub fn ends_with_its_service(fixture: &mut PacketFixture<'_>) {
    let service = PacketService::new("udp-deleted", 73, TrafficPolicy::Cluster).with(fixture.pod(0), "node-1");
    fixture.apply(&service);
    let flows = fixture.open_all(FlowProtocol::Udp, &service);
    expect_all(&flows, "pod-a", "at first");
    fixture.delete(&service);
    std::thread::sleep(SETTLE);
    if fixture.driver.kind() == DriverKind::KubeProxy {
        return expect_all(&flows, "pod-a", "after the Service");
    }
    let alive: Vec<String> = flows
        .iter()
        .map(|(title, flow)| (title, flow.ask()))
        .filter(|(_, result)| matches!(result, FlowResult::Answered(_)))
        .map(|(title, result)| format!("{title}: {result:?}"))
        .collect();
    assert!(alive.is_empty(), "flows outlived their Service:\n{}", alive.join("\n"));
}
