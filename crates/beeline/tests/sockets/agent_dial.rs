//! The dials of the agent to its API servers are exempt from the hooks at every address that a Service chose for itself.

use crate::address_kinds::{address_forms, assert_resolved};
use crate::fixture::{AgentFixture, ManifestFile};
use beeline_harness::{DialKind, DialRequest, TestNetwork};
use beeline_model::row::AGENT_SOCKET_PRIORITY;
use std::net::SocketAddr;

/// The name of the server that answers a TCP dial from a socket with this priority.
fn answer(fixture: &AgentFixture, to: SocketAddr, priority: u32) -> String {
    let family = if to.is_ipv4() { "AF_INET" } else { "AF_INET6" };
    let script = format!(
        "import socket\n\
         s = socket.socket(socket.{family}, socket.SOCK_STREAM)\n\
         s.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, {priority})\n\
         s.settimeout(5)\n\
         s.connect(('{}', {}))\n\
         s.sendall(b'hello\\n')\n\
         print(s.recv(200).decode().split()[0])\n",
        to.ip(),
        to.port()
    );
    let output = fixture.network.node().program("python3").unwrap().args(["-c", &script]).run().unwrap();
    assert!(output.status.success(), "{to}: {output:?}");
    output.stdout.trim().to_owned()
}

#[test]
fn the_agents_dials_are_resolved_at_cluster_ips_only() {
    let network = TestNetwork::new(1).unwrap();
    let greedy = ManifestFile::service("greedy", 10)
        .with_external(30080, &["203.0.113.7", "2001:db8::7"], &["198.51.100.7", "2001:db8::17"])
        .backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[greedy], &[]);
    let _pod = fixture.network.pod(0).serve(8080).unwrap();
    let claimed: Vec<SocketAddr> = [("198.51.100.7", "2001:db8::17"), ("203.0.113.7", "2001:db8::7")]
        .iter()
        .flat_map(|(v4, v6)| address_forms(v4, v6, 80)[..2].to_vec())
        .collect();
    let _api_servers = fixture.serve_outside(&claimed);
    let client = fixture.network.node().client().unwrap();
    for to in claimed {
        assert_resolved(&client, &DialRequest::new(DialKind::Tcp, to), &["pod-a"]);
        assert_eq!(answer(&fixture, to, 6), "pod-a", "{to} with an ordinary priority");
        assert_eq!(answer(&fixture, to, AGENT_SOCKET_PRIORITY), "outside", "{to} dialled by the agent");
    }
    let cluster_ips = &address_forms("10.96.0.10", "fd00:96::10", 80)[..2];
    for to in cluster_ips {
        assert_eq!(
            answer(&fixture, *to, AGENT_SOCKET_PRIORITY),
            "pod-a",
            "{to} may be the address of default/kubernetes"
        );
    }
}
