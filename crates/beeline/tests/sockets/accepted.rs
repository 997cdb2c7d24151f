//! Sockets that accept(): they report the client, never a service.

use crate::fixture::{AgentFixture, TIMEOUT};
use crate::python;
use crate::socket_calls::{fixture_with_web, numbered_services, service_addresses, web};
use beeline_harness::{TestNetwork, mapped};
use serde_json::json;
use std::net::SocketAddr;

/// The client has the address and port of a backend that the server dialled by a service, and the listening socket itself
/// was connected to that service before.
#[test]
fn an_accepted_socket_reports_the_client_also_at_the_address_of_a_backend() {
    let network = TestNetwork::new(2).unwrap();
    let objects = numbered_services(&network, 6);
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let (peer, server) = (fixture.network.pod(0), fixture.network.pod(1));
    let script = include_str!("programs/accepted.py");
    for (number, (kind, form)) in
        ["tcp", "mptcp"].into_iter().flat_map(|kind| (0..3).map(move |f| (kind, f))).enumerate()
    {
        let (port, number) = (9000 + number as u16, number as u8);
        let v6 = form == 1;
        let own = if v6 { peer.v6(port) } else { peer.v4(port) };
        let at = if v6 { server.v6(8080 + port) } else { server.v4(8080 + port) };
        let service = service_addresses(number)[form];
        let shown = |address: SocketAddr| if form == 2 { mapped(address) } else { address }.to_string();
        let args = json!({ "role": "peer", "kind": kind, "own": python::pair(own), "server": python::pair(at) });
        let mut dialling = python::start(peer.program("python3").unwrap(), script, &args);
        dialling.wait_for("ready", TIMEOUT).unwrap();
        let listen = if form == 2 { mapped(at) } else { at };
        let args = json!({
            "role": "server", "kind": kind, "service": python::pair(service), "listen": python::pair(listen),
        });
        let accepted = python::run(server, script, &args);
        let expected = json!({
            "dialled": service.to_string(), "before": service.to_string(),
            "accept": shown(own), "peer": shown(own), "local": shown(at),
        });
        assert_eq!(accepted, expected, "{kind}, form {form}");
        let expected = json!({ "local": own.to_string(), "peer": at.to_string() });
        assert_eq!(python::result(dialling), expected, "{kind}, form {form}: a direct dial of the server");
    }
}

#[test]
fn a_pod_that_dials_its_own_service_sees_its_own_address_as_client() {
    let fixture = fixture_with_web(TestNetwork::new(1).unwrap(), &[]);
    let pod = fixture.network.pod(0);
    for (service, own) in web().into_iter().zip([pod.v4(8080), pod.v6(8080), mapped(pod.v4(8080))]) {
        let client = SocketAddr::new(own.ip(), 0);
        let args = json!({
            "service": python::pair(service), "own": python::pair(own), "client": client.ip().to_string(),
        });
        let results = python::run(pod, include_str!("programs/self_dial.py"), &args);
        let results = results.as_array().unwrap();
        assert_eq!(results.len(), 3);
        for result in results {
            assert_eq!(result["service"], service.to_string(), "{result}");
            assert_eq!(result["local"], own.to_string(), "{result}");
            assert_eq!((&result["source"], &result["peer"]), (&result["client"], &result["client"]), "{result}");
        }
    }
}
