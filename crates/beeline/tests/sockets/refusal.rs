//! Refused dials, untouched dials, and loadBalancerSourceRanges.

use crate::address_kinds::{TRANSPORTS, address_forms, assert_resolved};
use crate::fixture::{AgentFixture, ManifestFile, wait_until};
use beeline_harness::{Client, DialKind, DialRequest, EchoService, Errno, SocketFamily, SocketType, TestNetwork};
use serde_json::json;
use std::net::{IpAddr, SocketAddr};

fn assert_refused(client: &Client, to: SocketAddr, why: &str) {
    for kind in TRANSPORTS {
        let outcome = client.dial(&DialRequest::new(kind, to)).unwrap();
        let step = if kind == DialKind::UdpSendTo { "send" } else { "connect" };
        assert_eq!(outcome.error, Some((step, Errno::ECONNREFUSED)), "{why}: {kind:?} {to}: {outcome:?}");
    }
}

/// Checks that the host which really has the address answers.
pub fn assert_untouched(client: &Client, to: SocketAddr, server: &str) {
    for kind in TRANSPORTS {
        let outcome = client.dial(&DialRequest::new(kind, to)).unwrap();
        assert_eq!((outcome.errno(), outcome.name()), (None, server), "{kind:?} {to}: {outcome:?}");
    }
}

fn local_services(network: &TestNetwork) -> [ManifestFile; 2] {
    let at = [(network.pod(0), "node-1")];
    let elsewhere = [(network.pod(2), "node-2")];
    [
        ManifestFile::service("external", 12)
            .with_external(30082, &["203.0.113.3", "2001:db8::3"], &[])
            .with_spec(json!({ "externalTrafficPolicy": "Local" }))
            .backed_by(&at),
        ManifestFile::service("internal", 13)
            .with_spec(json!({ "internalTrafficPolicy": "Local" }))
            .backed_by(&elsewhere),
    ]
}

/// Frontends with the traffic policy Local and no local endpoint.
fn frontends_without_local_endpoint() -> Vec<SocketAddr> {
    [address_forms("10.96.0.13", "fd00:96::13", 80), address_forms("172.31.0.12", "fd00:31::12", 30082)].concat()
}

#[test]
fn only_services_without_usable_endpoint_or_port_are_refused() {
    let network = TestNetwork::with_nodes(&[2, 1]).unwrap();
    let web = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]);
    let none =
        ManifestFile::service("none", 11).with_external(30090, &["203.0.113.9", "2001:db8::9"], &["198.51.100.9"]);
    let [external, internal] = local_services(&network);
    let fixture = AgentFixture::with_manifests(network, &[web, none, external, internal], &[]);
    let client = fixture.network.node().client().unwrap();
    let free = address_forms("10.96.0.99", "fd00:96::99", 80);
    let _outside = fixture.serve_outside(&free[..2]);
    for (why, v4, v6, port) in [
        ("no endpoint", "10.96.0.11", "fd00:96::11", 80),
        ("no endpoint, NodePort", "172.31.0.11", "fd00:31::11", 30090),
        ("no endpoint, other node's NodePort", "172.31.0.12", "fd00:31::12", 30090),
        ("no endpoint, load balancer", "203.0.113.9", "2001:db8::9", 80),
        ("a known ClusterIP without that port", "10.96.0.10", "fd00:96::10", 81),
    ] {
        address_forms(v4, v6, port).iter().for_each(|to| assert_refused(&client, *to, why));
    }
    frontends_without_local_endpoint().iter().for_each(|to| assert_refused(&client, *to, "empty Local"));
    free.iter().for_each(|to| assert_untouched(&client, *to, "outside"));
    let counters = fixture.counters("default/internal/tcp/TCP");
    assert_eq!((counters.refused, counters.no_local, counters.dials), (3, 3, 0));
}

#[test]
fn no_local_endpoint_action_drop_leaves_dials_untouched() {
    let network = TestNetwork::with_nodes(&[2, 1]).unwrap();
    let objects = local_services(&network);
    let fixture = AgentFixture::with_manifests(network, &objects, &["--no-local-endpoint-action=drop"]);
    let client = fixture.network.node().client().unwrap();
    let (at, node) =
        (address_forms("10.96.0.13", "fd00:96::13", 80), address_forms("172.31.0.12", "fd00:31::12", 30082));
    let _outside = fixture.serve_outside(&at[..2]);
    let _node = EchoService::new("node-2", node[..2].to_vec()).start(&fixture.network.nodes[1].host.namespace).unwrap();
    at.iter().for_each(|to| assert_untouched(&client, *to, "outside"));
    node.iter().for_each(|to| assert_untouched(&client, *to, "node-2"));
    assert_eq!(fixture.json(&["explain", "10.96.0.13:80"])["verdict"], "untouched", "as in the kernel");
    let other_process = fixture.json(&["explain", "10.96.0.13:80", "--from", &std::process::id().to_string()]);
    assert!(other_process["because"].as_str().is_some_and(|why| why.contains("is not below")), "{other_process}");
    // A service without any endpoint is refused nevertheless.
    fixture.apply(&ManifestFile::service("internal", 13).with_spec(json!({ "internalTrafficPolicy": "Local" })));
    at.iter().for_each(|to| assert_refused(&client, *to, "no endpoint"));
}

#[test]
fn localhost_node_ports_are_served_only_in_the_host_namespace() {
    let network = TestNetwork::with_nodes(&[2, 1]).unwrap();
    let web = ManifestFile::service("web", 10).with_external(30080, &[], &[]).backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web], &["--nodeport-addresses=localhost"]);
    let network = &fixture.network;
    let _server = network.pod(0).serve(8080).unwrap();
    let loopback = address_forms("127.0.0.1", "::1", 30080);
    let host = network.node().client().unwrap();
    let pod = network.pod(1).client().unwrap();
    let _own = EchoService::new("own", loopback[..2].to_vec()).start(&network.pod(1).namespace).unwrap();
    for to in loopback.into_iter().chain(address_forms("127.0.0.9", "::1", 30080)) {
        TRANSPORTS.iter().for_each(|kind| drop(assert_resolved(&host, &DialRequest::new(*kind, to), &["pod-a"])));
    }
    loopback.iter().for_each(|to| assert_untouched(&pod, *to, "own"));
    // The kernel treats 0.0.0.0 and :: as loopback.
    for to in address_forms("0.0.0.0", "::", 30080) {
        for kind in TRANSPORTS {
            assert_eq!(host.dial(&DialRequest::new(kind, to)).unwrap().name(), "pod-a", "{kind:?} {to}");
            assert_eq!(pod.dial(&DialRequest::new(kind, to)).unwrap().name(), "own", "{kind:?} {to}");
        }
    }
}

#[test]
fn source_ranges_restrict_only_the_load_balancer_address() {
    let network = TestNetwork::with_nodes(&[2, 1]).unwrap();
    let ranges = json!({ "loadBalancerSourceRanges": ["172.31.0.11/32 ", " fd00:31::11/128", "10.244.1.3/32"] });
    let web =
        ManifestFile::service("web", 10).with_external(30080, &["203.0.113.1", "2001:db8::1"], &[]).with_spec(ranges);
    let web = web.backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web], &[]);
    let network = &fixture.network;
    let _server = network.pod(0).serve(8080).unwrap();
    let at = address_forms("203.0.113.1", "2001:db8::1", 80);
    let _outside = fixture.serve_outside(&at[..2]);
    let (host, pod) = (network.node().client().unwrap(), network.pod(1).client().unwrap());
    for kind in TRANSPORTS {
        at.iter().for_each(|to| drop(assert_resolved(&host, &DialRequest::new(kind, *to), &["pod-a"])));
        let bound =
            |to: SocketAddr, ip: &str| DialRequest::new(kind, to).bound(SocketAddr::new(ip.parse().unwrap(), 0));
        assert_resolved(&pod, &bound(at[0], "10.244.1.3"), &["pod-a"]);
        assert_resolved(&pod, &bound(at[2], "::ffff:10.244.1.3"), &["pod-a"]);
        for (client, to, ip) in [
            (&host, at[0], "10.244.1.1"),
            (&host, at[1], "fd00:244::1:1"),
            (&host, at[2], "::ffff:10.244.1.1"),
            (&pod, at[1], "fd00:244::1:3"),
        ] {
            let outcome = client.dial(&bound(to, ip)).unwrap();
            assert_eq!(outcome.errno(), Some(Errno::ECONNREFUSED), "{kind:?} {to} from {ip}: {outcome:?}");
        }
    }
    // The source address of an unbound socket in a pod that the agent does not know is unknown, so the dial is left
    // untouched.
    let before = fixture.stat("source_unknown");
    at.iter().for_each(|to| assert_untouched(&pod, *to, "outside"));
    assert_eq!(fixture.stat("source_unknown") - before, 9);
    // Other addresses of the service are not restricted.
    for to in address_forms("172.31.0.11", "fd00:31::11", 30080) {
        assert_resolved(&pod, &DialRequest::new(DialKind::Tcp, to), &["pod-a"]);
    }
    let counters = fixture.counters("default/web/tcp/TCP");
    assert_eq!((counters.source_denied, counters.refused), (4, 4));
}

/// ::/1 covers IPv4-mapped addresses, in which form IPv4 addresses are stored, but no IPv4 address.
#[test]
fn an_ipv6_source_range_does_not_allow_ipv4_addresses() {
    let network = TestNetwork::new(1).unwrap();
    let ranges = json!({ "loadBalancerSourceRanges": ["192.0.2.0/24", "::/1", "8000::/1"] });
    let web =
        ManifestFile::service("web", 10).with_external(30080, &["203.0.113.1", "2001:db8::1"], &[]).with_spec(ranges);
    let web = web.backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web], &[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    let [v4, v6, mapped] = address_forms("203.0.113.1", "2001:db8::1", 80);
    [v4, mapped].iter().for_each(|to| assert_refused(&client, *to, "172.31.0.11 is in no range"));
    TRANSPORTS.iter().for_each(|kind| drop(assert_resolved(&client, &DialRequest::new(*kind, v6), &["pod-a"])));
}

const POD_UID: &str = "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b10";

/// pod-a is a backend behind a load-balancer address that accepts only these source ranges.
fn restricted_fixture(ranges: &[&str], more: &[ManifestFile], network: TestNetwork) -> AgentFixture {
    let ranges = json!({ "loadBalancerSourceRanges": ranges });
    let web =
        ManifestFile::service("web", 10).with_external(30080, &["203.0.113.1", "2001:db8::1"], &[]).with_spec(ranges);
    let web = web.backed_by(&[(network.pod(0), "node-1")]);
    AgentFixture::with_manifests(network, &[&[web], more].concat(), &[])
}

#[test]
fn source_ranges_use_the_address_of_the_pod_that_dials() {
    let network = TestNetwork::new(2).unwrap();
    let pod = ManifestFile::pod("cart", POD_UID, &"4f".repeat(32), json!({})).with_pod_addresses(network.pod(1));
    let (allowed, denied) = (network.pod(1).v4.to_string() + "/32", "fd00:dead::/32");
    let fixture = restricted_fixture(&[&allowed, denied], std::slice::from_ref(&pod), network);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let node_cgroup = &fixture.network.node().cgroup;
    let (kubepods, at) = (node_cgroup.child("kubepods").unwrap(), address_forms("203.0.113.1", "2001:db8::1", 80));
    let cgroup = kubepods.child(&format!("pod{POD_UID}")).unwrap();
    let container = cgroup.child("app").unwrap();
    let client = Client::start(Some(&fixture.network.pod(1).namespace), Some(&container)).unwrap();
    let dial = |to| client.dial(&DialRequest::new(DialKind::Tcp, to).timeout_ms(200)).unwrap();
    wait_until("the address of the pod is known by its cgroup", || dial(at[0]).name() == "pod-a");
    for kind in TRANSPORTS {
        assert_resolved(&client, &DialRequest::new(kind, at[0]), &["pod-a"]);
        assert_resolved(&client, &DialRequest::new(kind, at[2]), &["pod-a"]);
        let refused = client.dial(&DialRequest::new(kind, at[1])).unwrap();
        assert_eq!(refused.errno(), Some(Errno::ECONNREFUSED), "{kind:?}: the IPv6 address of the pod is in no range");
    }
    // A pod without an address, because it has ended, has no source address.
    fixture.apply(&ManifestFile::pod("cart", POD_UID, &"4f".repeat(32), json!({})));
    let before = fixture.stat("source_unknown");
    wait_until("the address of the pod is unknown again", || {
        dial(at[0]);
        fixture.stat("source_unknown") > before
    });
}

/// IP_PKTINFO chooses the source address of one datagram, whatever the socket is bound to.
#[test]
fn source_ranges_use_the_source_address_of_the_datagram() {
    let fixture = restricted_fixture(&["10.244.1.1/32", "fd00:244::1:1/128"], &[], TestNetwork::new(1).unwrap());
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let host = fixture.network.node().client().unwrap();
    let [v4, v6, _] = address_forms("203.0.113.1", "2001:db8::1", 80);
    for (to, allowed, denied) in [(v4, "10.244.1.1", "172.31.0.11"), (v6, "fd00:244::1:1", "fd00:31::11")] {
        let [allowed, denied]: [IpAddr; 2] = [allowed, denied].map(|ip| ip.parse().unwrap());
        for (bound, source, is_allowed) in [
            (None, allowed, true),
            (None, denied, false),
            (Some(denied), allowed, true),
            (Some(allowed), denied, false),
        ] {
            let socket = host.socket(SocketFamily::of(to), SocketType::Udp).unwrap();
            bound.map_or(Ok(()), |ip| socket.bind(SocketAddr::new(ip, 0))).unwrap();
            let sent = socket.send_from(source, to, b"who\n");
            let errno = sent.err().and_then(|error| error.errno());
            let expected = if is_allowed { None } else { Some(Errno::ECONNREFUSED) };
            assert_eq!(errno, expected, "bound to {bound:?}, source {source}, to {to}");
            // A socket that is bound to another address than the source receives no answer.
            if is_allowed && bound.is_none() {
                assert_eq!(socket.receive().unwrap().0, Some(to));
            }
        }
    }
}
