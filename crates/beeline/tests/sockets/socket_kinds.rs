//! Kinds of sockets that differ from plain TCP and UDP: IPV6_V6ONLY, UDP-Lite, the error queue, and tunnels of the kernel.

use crate::fixture::{AgentFixture, EndpointSpec, ManifestFile, TIMEOUT};
use crate::python;
use crate::socket_calls::{fixture_with_web, web};
use beeline_harness::{SocketFamily, TestNetwork, mapped};
use serde_json::{Value, json};

#[test]
fn a_v6only_socket_gets_the_error_of_the_kernel_for_ipv4() {
    let fixture = fixture_with_web(TestNetwork::new(1).unwrap(), &[]);
    let pod = fixture.network.pod(0);
    let _server = pod.serve(8080).unwrap();
    let [_, v6, mapped_service] = web();
    // The pod's own address is no service: the kernel alone decides.
    let to = [mapped_service, mapped(pod.v4(8080)), v6];
    for host in [fixture.network.node(), pod] {
        let dial = |v6only: u8| {
            let args = json!({ "v6only": v6only, "to": to.map(python::pair) });
            python::run(host, include_str!("programs/v6only.py"), &args)
        };
        assert_eq!(dial(0), json!(to.map(|address| [address.to_string(), address.to_string(), address.to_string()])));
        let denied = ["ENETUNREACH"; 3].map(str::to_owned);
        assert_eq!(dial(1), json!([denied, denied, [v6.to_string(), v6.to_string(), v6.to_string()]]));
    }
}

#[test]
fn udp_lite_sockets_are_untouched() {
    let fixture = fixture_with_web(TestNetwork::new(1).unwrap(), &[]);
    let _pod = fixture.network.pod(0).serve(8080).unwrap();
    // A UDP server at the same addresses would answer if UDP-Lite were resolved as UDP and came back.
    let _outside = fixture.serve_outside(&web()[..2]);
    let script = include_str!("programs/udp_lite.py");
    for at in &web()[..2] {
        let args = |role: &str| json!({ "role": role, "at": python::pair(*at) });
        let outside = fixture.network.outside.program("python3").unwrap();
        let mut server = python::start(outside, script, &args("server"));
        if !std::fs::read_to_string("/proc/net/protocols").unwrap().contains("UDP-Lite") {
            // Linux removed UDP-Lite.
            let result = python::result(server);
            assert_eq!(result, json!({ "errno": "EPROTONOSUPPORT" }));
            assert_eq!(python::run(fixture.network.node(), script, &args("client")), result);
            continue;
        }
        server.wait_for("ready", TIMEOUT).unwrap();
        let answer = json!({ "name": "outside", "client": "-", "from": at.to_string() });
        let expected = json!({ "connected": answer, "peer": at.to_string(), "unconnected": answer });
        assert_eq!(python::run(fixture.network.node(), script, &args("client")), expected, "{at}");
    }
    assert_eq!(fixture.counters("default/web/udp/UDP").dials, 0);
}

/// The kernel fills the name of a message in the error queue without a hook: it is the destination of the packet.
#[test]
fn the_error_queue_reports_the_backend() {
    let network = TestNetwork::new(1).unwrap();
    let closed = ManifestFile::service("web", 10).with_endpoints(8099, &[EndpointSpec::of(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[closed], &[]);
    let pod = fixture.network.pod(0);
    for (service, backend) in web().into_iter().zip([pod.v4(8099), pod.v6(8099), mapped(pod.v4(8099))]) {
        let args = json!({ "to": python::pair(service) });
        let result = python::run(fixture.network.node(), include_str!("programs/error_queue.py"), &args);
        for kind in ["connected", "unconnected"] {
            let entry: &Value = &result[kind];
            assert_eq!((&entry["errno"], &entry["is_queue"]), (&json!("ECONNREFUSED"), &json!(true)), "{result}");
            assert_eq!(entry["name"], backend.to_string(), "{service}, {kind}: {result}");
            let offender = entry["offender"].as_str().unwrap();
            assert!(offender.contains(&backend.ip().to_string()), "{service}, {kind}: {result}");
        }
        assert_eq!((&result["peer"], &result["plain"]), (&json!(service.to_string()), &json!("ECONNREFUSED")));
    }
}

/// A tunnel of the kernel sends from a socket of the kernel, which runs no hook.
#[test]
fn a_vxlan_tunnel_sends_to_the_service_address_itself() {
    let fixture = fixture_with_web(TestNetwork::new(2).unwrap(), &[]);
    let _pod = fixture.network.pod(0).serve(8080).unwrap();
    let at = web()[0];
    // This host has the service's address, but no server of its own there.
    fixture.network.outside.namespace.ip(&format!("addr replace {}/32 dev bridge0\n", at.ip())).unwrap();
    let script = include_str!("programs/receive_one.py");
    for host in [fixture.network.node(), fixture.network.pod(1)] {
        let outside = fixture.network.outside.program("python3").unwrap();
        let mut server = python::start(outside, script, &json!({ "at": python::pair(at) }));
        server.wait_for("ready", TIMEOUT).unwrap();
        let tunnel = format!(
            "link add vx0 type vxlan id 7 remote {} dstport {}\naddr add 192.0.2.1/24 dev vx0\nlink set vx0 up\n\
             neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev vx0\n",
            at.ip(),
            at.port()
        );
        // The tunnel is created by a program in a cgroup that Beeline serves.
        let created = host.program("ip").unwrap().args(["-batch", "-"]).input(tunnel).run().unwrap();
        assert!(created.status.success(), "{created:?}");
        let client = host.client().unwrap();
        client.udp(SocketFamily::V4).unwrap().send_to("192.0.2.2:9".parse().unwrap(), "through the tunnel").unwrap();
        // Flags and number of the VXLAN header.
        assert_eq!(python::result(server), json!({ "first": "0800000000000700" }), "{}", host.name);
    }
    assert_eq!(fixture.counters("default/web/udp/UDP").dials, 0);
}
