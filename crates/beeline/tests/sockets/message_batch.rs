//! sendmmsg() and recvmmsg(): one call that sends to many services.

use crate::fixture::AgentFixture;
use crate::python;
use crate::socket_calls::{numbered_services, service_addresses};
use beeline_harness::{EchoService, TestNetwork};
use serde_json::json;

/// Frontends that one UDP socket remembers.
const REMEMBERED: u8 = 134;

#[test]
fn one_sendmmsg_reaches_many_services_and_stops_at_the_first_that_cannot_be_remembered() {
    const SERVICES: u8 = 140;
    let network = TestNetwork::new(1).unwrap();
    let objects = numbered_services(&network, SERVICES);
    let fixture = AgentFixture::with_manifests(network, &objects, &["--max-services", "1024"]);
    let pod = fixture.network.pod(0);
    let ports = (9000..9000 + u16::from(SERVICES)).flat_map(|port| [pod.v4(port), pod.v6(port)]);
    let _server = EchoService::new("pod-a", ports).udp_only().start(&pod.namespace).unwrap();
    for form in 0..3 {
        for count in [8, 16, 100, REMEMBERED, SERVICES] {
            let to: Vec<_> = (0..count).map(|n| python::pair(service_addresses(n)[form])).collect();
            let failed = fixture.stat("send_failed");
            let script = include_str!("programs/sendmmsg.py");
            let result = python::run(fixture.network.node(), script, &json!({ "to": to }));
            let sent = count.min(REMEMBERED);
            // The first call returns the number of messages before the failing one. The error is returned by a call
            // that starts with the failing message.
            let returned = if sent == count { json!([count]) } else { json!([sent, "ENOBUFS"]) };
            assert_eq!(result["returned"], returned, "form {form}, {count} messages");
            let mut answers: Vec<_> = result["answers"].as_array().unwrap().clone();
            answers.sort_by_key(|answer| answer[1].as_str().map(|backend| (backend.len(), backend.to_owned())));
            let expected: Vec<_> = (0..sent)
                .map(|n| {
                    let (port, v6) = (9000 + u16::from(n), form == 1);
                    let backend = if v6 { pod.v6(port) } else { pod.v4(port) };
                    json!([service_addresses(n)[form].to_string(), backend.to_string()])
                })
                .collect();
            assert_eq!(answers, expected, "form {form}, {count} messages");
            // One failure in the first call, which the kernel does not report, and one in the second.
            let failures = if sent == count { 0 } else { 2 };
            assert_eq!(fixture.stat("send_failed") - failed, failures, "form {form}, {count} messages");
        }
    }
}
