//! Session affinity by source address.

use super::fixture::{PacketFixture, Sender};
use super::service::{Dialled, PacketService, TrafficPolicy};
use beeline_harness::packet::{CLIENTS, FlowProtocol, IpFamily};
use serde_json::json;
use std::time::Duration;

/// Seconds of the Service whose affinity expires during the test.
const SHORT_TIMEOUT: u64 = 4;

fn service(fixture: &PacketFixture<'_>, name: &str, number: u8, seconds: u64) -> PacketService {
    let affinity = json!({
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": seconds } },
    });
    let service = PacketService::new(name, number, TrafficPolicy::Cluster).with_spec(affinity);
    service.with(fixture.pod(0), "node-1").with(fixture.pod(1), "node-1").with(fixture.pod(2), "node-2")
}

/// The backend of each client, at one address of the Service.
fn backends(
    fixture: &PacketFixture<'_>,
    service: &PacketService,
    dialled: Dialled,
    protocol: FlowProtocol,
    family: IpFamily,
) -> Vec<String> {
    let to = service.address(dialled, family, fixture.network);
    let name = |number| {
        let result = fixture.dial(Sender::Client(number), protocol, to);
        assert!(!result.name().is_empty(), "{dialled:?} {protocol:?} {family:?} from client {number}: {result:?}");
        result.name().to_owned()
    };
    CLIENTS.map(name).collect()
}

pub fn external_addresses_share_a_client(fixture: &mut PacketFixture<'_>) {
    let service = service(fixture, "affinity", 60, 3600);
    fixture.apply(&service);
    let pairs: Vec<_> =
        FlowProtocol::ALL.into_iter().flat_map(|protocol| IpFamily::ALL.map(|family| (protocol, family))).collect();
    let first: Vec<Vec<String>> = pairs
        .iter()
        .map(|&(protocol, family)| backends(fixture, &service, Dialled::NodePort, protocol, family))
        .collect();
    for names in &first {
        assert!(names.iter().any(|name| *name != names[0]), "16 clients have one backend: {names:?}");
    }
    let check = |fixture: &PacketFixture<'_>, when: &str| {
        for (&(protocol, family), expected) in pairs.iter().zip(&first) {
            for dialled in Dialled::EXTERNAL {
                let found = backends(fixture, &service, dialled, protocol, family);
                assert_eq!(&found, expected, "{when}: {dialled:?} {protocol:?} {family:?}");
            }
        }
    };
    check(fixture, "before a restart");
    fixture.driver.kill();
    fixture.driver.start();
    fixture.wait_until_programmed();
    check(fixture, "after a restart");
}

pub fn connections_renew_and_silence_expires(fixture: &mut PacketFixture<'_>) {
    let service = service(fixture, "short-affinity", 61, SHORT_TIMEOUT);
    fixture.apply(&service);
    let dial = |fixture: &PacketFixture<'_>| {
        backends(fixture, &service, Dialled::LoadBalancer, FlowProtocol::Tcp, IpFamily::V4)
    };
    let first = dial(fixture);
    // In total longer than the timeout, with pauses that are shorter.
    for pause in 0..4 {
        std::thread::sleep(Duration::from_secs(SHORT_TIMEOUT / 2));
        assert_eq!(dial(fixture), first, "after pause {pause}");
    }
    std::thread::sleep(Duration::from_secs(SHORT_TIMEOUT + 2));
    // All 16 clients get their old one of three backends again by chance once in 40 million runs.
    assert_ne!(dial(fixture), first, "the affinity does not expire");
}
