//! Several sockets at one local port: SO_REUSEPORT groups, and two services with one backend.

use crate::address_kinds::address_forms;
use crate::fixture::{AgentFixture, ManifestFile};
use crate::python;
use crate::socket_calls::{numbered_services, service_addresses};
use beeline_harness::{EchoService, TestNetwork};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn answers(result: &Value, part: &str, count: usize) -> Vec<Vec<Value>> {
    let all = result[part].as_array().unwrap_or_else(|| panic!("no {part} in {result}"));
    assert_eq!(all.len(), count, "{part}: {result}");
    all.iter().map(|answer| answer.as_array().unwrap().clone()).collect()
}

#[test]
fn sockets_of_a_reuseport_group_use_services() {
    const SERVICES: u8 = 20;
    const GROUP: usize = 4;
    let network = TestNetwork::new(2).unwrap();
    let objects = numbered_services(&network, SERVICES);
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let (pod, client) = (fixture.network.pod(0), fixture.network.pod(1));
    let ports = (9000..9000 + u16::from(SERVICES)).flat_map(|port| [pod.v4(port), pod.v6(port)]);
    let _server = EchoService::new("pod-a", ports).start(&pod.namespace).unwrap();
    for (form, own) in [client.v4(0), client.v6(0)].into_iter().enumerate() {
        let service = |n: u8| service_addresses(n)[form].to_string();
        let backend = |n: u8| if form == 0 { pod.v4(9000 + u16::from(n)) } else { pod.v6(9000 + u16::from(n)) };
        let number: BTreeMap<String, u8> = (0..SERVICES).map(|n| (backend(n).to_string(), n)).collect();
        let services: Vec<_> = (0..SERVICES).map(|n| python::pair(service_addresses(n)[form])).collect();
        let args = json!({ "own": python::pair(own), "services": services });
        let result = python::run(client, include_str!("programs/reuse_port.py"), &args);
        for answer in answers(&result, "all_members_use_all_services", GROUP * usize::from(SERVICES)) {
            assert_eq!(answer[1], service(number[answer[2].as_str().unwrap()]), "{answer:?}");
        }
        // The kernel gives an answer to any member of the group. A member that did not use the service has no record of
        // it, and reports the backend.
        let (mut of_sender, mut of_another) = (0, 0);
        for answer in answers(&result, "each_member_uses_its_own_services", usize::from(SERVICES)) {
            let n = number[answer[2].as_str().unwrap()];
            let is_sender = answer[0].as_u64().unwrap() as usize == usize::from(n) % GROUP;
            *(if is_sender { &mut of_sender } else { &mut of_another }) += 1;
            let expected = if is_sender { service(n) } else { backend(n).to_string() };
            assert_eq!(answer[1], expected, "{answer:?}");
        }
        println!(
            "{of_another} of {SERVICES} answers were received by another member than the sender, {of_sender} by it"
        );
        for answer in answers(&result, "connected_members", GROUP) {
            let n = answer[0].as_u64().unwrap() as u8;
            assert_eq!(answer[1..], [json!(service(n)), json!(backend(n).to_string()), json!(service(n))]);
        }
        let tcp = answers(&result, "tcp_members", GROUP);
        (0..).zip(&tcp).for_each(|(n, answer)| assert_eq!(answer[..], [json!(service(n)), json!("pod-a")]));
        let [clients, accepted] = &answers(&result, "tcp_listeners", 2)[..] else { panic!("{result}") };
        assert_eq!((clients.len(), clients), (16, accepted));
    }
}

/// The kernel knows a connection by its four addresses and ports. Two services with one backend give the same four.
#[test]
fn one_local_port_cannot_be_connected_to_one_backend_by_two_services() {
    let network = TestNetwork::new(2).unwrap();
    let service_at = |n: u8| ManifestFile::service(&format!("s{n}"), 10 + n).backed_by(&[(network.pod(0), "node-1")]);
    let objects = [service_at(0), service_at(1)];
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.pod(1);
    let any = address_forms("0.0.0.0", "::", 0);
    for form in 0..3 {
        let services = [service_addresses(0)[form], service_addresses(1)[form]];
        let args = json!({
            "own": python::pair(any[form.min(1)]), "services": services.map(python::pair),
            "reuseaddr": 7100 + form, "reuseport": 7200 + form,
        });
        let result = python::run(client, include_str!("programs/shared_backend.py"), &args);
        let [first, second] = services.map(|service| service.to_string());
        for option in ["reuseaddr", "reuseport"] {
            let expected = json!([null, "EADDRNOTAVAIL", first, "ENOTCONN", "pod-a"]);
            assert_eq!(result[option], expected, "{option}, form {form}");
        }
        assert_eq!(result["unbound"], json!([first, second]));
        // Replies of one backend cannot be told apart: both are reported with the service that was used last.
        assert_eq!(result["udp"], json!([[second, second], [first, first], [first, first]]), "form {form}");
    }
}
