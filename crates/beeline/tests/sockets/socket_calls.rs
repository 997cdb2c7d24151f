//! Sockets with unusual call sequences: reconnects, several services per socket, bound sockets, session affinity.

use crate::address_kinds::{TRANSPORTS, address_forms, assert_resolved};
use crate::fixture::{AgentFixture, EndpointSpec, ManifestFile};
use beeline_harness::{
    Client, DialKind, DialRequest, EchoService, Errno, ServerIdentity, Socket, SocketFamily, SocketOption, SocketType,
    TestNetwork, mapped,
};
use serde_json::json;
use std::net::{IpAddr, SocketAddr};

const WEB: (&str, &str) = ("10.96.0.10", "fd00:96::10");

pub fn web() -> [SocketAddr; 3] {
    address_forms(WEB.0, WEB.1, 80)
}

/// One service with one backend, pod-a.
pub fn fixture_with_web(network: TestNetwork, args: &[&str]) -> AgentFixture {
    let web = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]);
    AgentFixture::with_manifests(network, &[web], args)
}

/// Sends a request and returns the source address that the socket reports, and the name of the server.
pub fn exchange(socket: &Socket<'_>, to: Option<SocketAddr>) -> (SocketAddr, String) {
    match to {
        Some(to) => socket.send_to(to, "who\n").unwrap(),
        None => socket.send("who\n").unwrap(),
    };
    let (from, bytes) = socket.receive().unwrap_or_else(|e| panic!("no answer from {to:?}: {e}"));
    let answer: ServerIdentity = String::from_utf8(bytes).unwrap().parse().unwrap();
    (from.unwrap(), answer.name)
}

#[test]
fn every_kind_of_call_is_resolved() {
    let fixture = fixture_with_web(TestNetwork::new(2).unwrap(), &[]);
    let pod = fixture.network.pod(0);
    let _server = pod.echo_service(8080).mptcp().start(&pod.namespace).unwrap();
    for client in [fixture.network.node().client().unwrap(), fixture.network.pod(1).client().unwrap()] {
        for kind in DialKind::TCP.into_iter().chain(DialKind::UDP) {
            web().iter().for_each(|to| drop(assert_resolved(&client, &DialRequest::new(kind, *to), &["pod-a"])));
        }
        for to in web() {
            let outcome = client.dial(&DialRequest::new(DialKind::TcpTwice, to)).unwrap();
            assert_eq!(outcome.error, Some(("connect", Errno::EISCONN)), "{to}");
        }
    }
}

#[test]
fn every_kind_of_call_is_refused() {
    let fixture = AgentFixture::with_manifests(TestNetwork::new(1).unwrap(), &[ManifestFile::service("none", 10)], &[]);
    let client = fixture.network.node().client().unwrap();
    for kind in DialKind::TCP.into_iter().chain(DialKind::UDP) {
        for to in web() {
            let outcome = client.dial(&DialRequest::new(kind, to)).unwrap();
            assert_eq!(outcome.errno(), Some(Errno::ECONNREFUSED), "{kind:?} {to}: {outcome:?}");
        }
    }
}

/// connect(AF_UNSPEC) runs no hook, so the record stays, but must not be used after it.
#[test]
fn after_a_disconnect_the_pod_is_reported_with_its_own_address() {
    let fixture = fixture_with_web(TestNetwork::new(1).unwrap(), &[]);
    let pod = fixture.network.pod(0);
    let _server = pod.echo_service(8080).mptcp().start(&pod.namespace).unwrap();
    let client = fixture.network.node().client().unwrap();
    let direct = [pod.v4(8080), pod.v6(8080), mapped(pod.v4(8080))];
    for (to, direct) in web().into_iter().zip(direct) {
        for socket_type in [SocketType::Tcp, SocketType::Mptcp, SocketType::Udp] {
            let socket = client.socket(SocketFamily::of(to), socket_type).unwrap();
            socket.connect(to).unwrap();
            assert_eq!(socket.peer().unwrap(), to, "{socket_type:?}");
            socket.disconnect().unwrap();
            assert_eq!(socket.peer().unwrap_err().errno(), Some(Errno::ENOTCONN), "{socket_type:?} {to}");
            socket.connect(direct).unwrap();
            assert_eq!(socket.peer().unwrap(), direct, "{socket_type:?}");
        }
        // Connected to another peer without a disconnect, and back.
        let socket = client.udp(SocketFamily::of(to)).unwrap();
        for peer in [to, direct, to, direct] {
            socket.connect(peer).unwrap();
            assert_eq!((socket.peer().unwrap(), exchange(&socket, None)), (peer, (peer, "pod-a".into())));
        }
        // Connected, disconnected, and then a direct send.
        socket.connect(to).unwrap();
        socket.disconnect().unwrap();
        assert_eq!(exchange(&socket, Some(direct)).0, direct, "the record of the former connection is not used");
    }
}

/// Services s0, s1, ... Each has its own backend port on pod-a.
pub fn numbered_services(network: &TestNetwork, count: u8) -> Vec<ManifestFile> {
    let objects = (0..count).map(|n| {
        ManifestFile::service(&format!("s{n}"), 10 + n)
            .with_endpoints(9000 + u16::from(n), &[EndpointSpec::of(network.pod(0), "node-1")])
    });
    objects.collect()
}

pub fn service_addresses(number: u8) -> [SocketAddr; 3] {
    address_forms(&format!("10.96.0.{}", 10 + number), &format!("fd00:96::{}", 10 + number), 80)
}

#[test]
fn one_udp_socket_can_use_many_services() {
    let network = TestNetwork::new(2).unwrap();
    let mut objects = numbered_services(&network, 20);
    // The last three have two backends each. The socket keeps the first one it used.
    for (n, object) in objects.iter_mut().enumerate().skip(17) {
        let both = [EndpointSpec::of(network.pod(0), "node-1"), EndpointSpec::of(network.pod(1), "node-1")];
        *object = ManifestFile::service(&format!("s{n}"), 10 + n as u8).with_endpoints(9000 + n as u16, &both);
    }
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let servers = |pod: usize| {
        let pod = fixture.network.pod(pod);
        let ports = (9000..9020).flat_map(|port| [pod.v4(port), pod.v6(port)]);
        EchoService::new(pod.name.clone(), ports).udp_only().start(&pod.namespace).unwrap()
    };
    let _servers = [servers(0), servers(1)];
    let client = fixture.network.node().client().unwrap();
    for form in 0..3 {
        let family = if form == 0 { SocketFamily::V4 } else { SocketFamily::V6 };
        // A few services fit into the record of the socket.
        let socket = client.udp(family).unwrap();
        let before = fixture.stat("record_overflow");
        for n in [0, 1, 0, 1, 5, 0, 6] {
            assert_eq!(exchange(&socket, Some(service_addresses(n)[form])).0, service_addresses(n)[form]);
        }
        assert_eq!(fixture.stat("record_overflow"), before);
        // Many services do not fit, but are reported correctly too.
        let mut kept: Vec<Option<String>> = vec![None; 20];
        for _ in 0..4 {
            for n in 0..20 {
                let (from, name) = exchange(&socket, Some(service_addresses(n)[form]));
                assert_eq!(from, service_addresses(n)[form]);
                let first = kept[usize::from(n)].get_or_insert(name.clone());
                assert_eq!(*first, name, "a socket keeps its backend for a frontend: {}", service_addresses(n)[form]);
            }
        }
        assert!(fixture.stat("record_overflow") > before);
        // All at once; replies may arrive in any order.
        for n in 0..20 {
            socket.send_to(service_addresses(n)[form], "who\n").unwrap();
        }
        let mut from: Vec<SocketAddr> = (0..20).map(|_| socket.receive().unwrap().0.unwrap()).collect();
        from.sort();
        assert_eq!(from, (0..20).map(|n| service_addresses(n)[form]).collect::<Vec<_>>());
    }
    assert_eq!((fixture.stat("send_failed"), fixture.stat("record_failed")), (0, 0));
}

#[test]
fn a_shared_backend_is_reported_with_the_last_dialled_address() {
    let network = TestNetwork::new(2).unwrap();
    let service_at =
        |n: u8, pod: usize| ManifestFile::service(&format!("s{n}"), 10 + n).backed_by(&[(network.pod(pod), "node-1")]);
    let (first, second, moved) = (service_at(0, 0), service_at(1, 1), service_at(1, 0));
    let fixture = AgentFixture::with_manifests(network, &[first, second], &[]);
    let _servers = [fixture.network.pod(0).serve(8080).unwrap(), fixture.network.pod(1).serve(8080).unwrap()];
    let client = fixture.network.node().client().unwrap();
    let sockets: Vec<Socket<'_>> =
        service_addresses(0).iter().map(|to| client.udp(SocketFamily::of(*to)).unwrap()).collect();
    for (form, socket) in sockets.iter().enumerate() {
        assert_eq!(exchange(socket, Some(service_addresses(0)[form])), (service_addresses(0)[form], "pod-a".into()));
        assert_eq!(exchange(socket, Some(service_addresses(1)[form])), (service_addresses(1)[form], "pod-b".into()));
    }
    // The second service moves to the backend of the first.
    fixture.apply(&moved);
    for (form, socket) in sockets.iter().enumerate() {
        for n in [1, 0, 1, 1, 0, 0, 1] {
            assert_eq!(
                exchange(socket, Some(service_addresses(n)[form])),
                (service_addresses(n)[form], "pod-a".into()),
                "form {form}"
            );
        }
        // The same through a connection.
        socket.connect(service_addresses(0)[form]).unwrap();
        assert_eq!(
            (exchange(socket, None).0, socket.peer().unwrap()),
            (service_addresses(0)[form], service_addresses(0)[form])
        );
        assert_eq!(exchange(socket, Some(service_addresses(1)[form])).0, service_addresses(1)[form]);
        assert_eq!(socket.peer().unwrap(), service_addresses(0)[form]);
        socket.connect(service_addresses(1)[form]).unwrap();
        assert_eq!(
            (exchange(socket, None).0, socket.peer().unwrap()),
            (service_addresses(1)[form], service_addresses(1)[form])
        );
    }
}

/// A frontend keeps its backend also if another frontend uses the same backend and is reported for it.
#[test]
fn two_frontends_keep_a_shared_backend() {
    let network = TestNetwork::new(2).unwrap();
    let service_at = |n: u8, pods: &[usize]| {
        let at: Vec<_> = pods.iter().map(|pod| (network.pod(*pod), "node-1")).collect();
        ManifestFile::service(&format!("s{n}"), 10 + n).backed_by(&at)
    };
    let objects = [service_at(0, &[0, 1]), service_at(1, &[0]), service_at(2, &[1])];
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let _servers = [fixture.network.pod(0).serve(8080).unwrap(), fixture.network.pod(1).serve(8080).unwrap()];
    let client = fixture.network.node().client().unwrap();
    for form in 0..3 {
        let socket = client.udp(SocketFamily::of(service_addresses(0)[form])).unwrap();
        let first = exchange(&socket, Some(service_addresses(0)[form]));
        for _ in 0..8 {
            assert_eq!(
                exchange(&socket, Some(service_addresses(1)[form])),
                (service_addresses(1)[form], "pod-a".into())
            );
            assert_eq!(
                exchange(&socket, Some(service_addresses(2)[form])),
                (service_addresses(2)[form], "pod-b".into())
            );
            assert_eq!(exchange(&socket, Some(service_addresses(0)[form])), first);
        }
    }
}

/// sendto() with the address that the socket is connected to must not use another backend, because the kernel would drop
/// its reply.
#[test]
fn sendto_on_a_connected_socket_stays_with_its_backend() {
    let network = TestNetwork::new(2).unwrap();
    let web = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1"), (network.pod(1), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web], &[]);
    let _servers = [fixture.network.pod(0).serve(8080).unwrap(), fixture.network.pod(1).serve(8080).unwrap()];
    let client = fixture.network.node().client().unwrap();
    for to in self::web() {
        for _ in 0..4 {
            let socket = client.udp(SocketFamily::of(to)).unwrap();
            socket.connect(to).unwrap();
            let (_, name) = exchange(&socket, None);
            (0..4).for_each(|_| assert_eq!(exchange(&socket, Some(to)), (to, name.clone())));
        }
    }
}

/// A hostNetwork pod whose address and port are another service's NodePort: a plain send() on the connected socket runs
/// the send hook with that address where the socket is AF_INET6 and the peer IPv4.
#[test]
fn a_send_on_a_connected_socket_is_not_a_new_dial() {
    let network = TestNetwork::new(1).unwrap();
    let web = ManifestFile::service("web", 10).with_endpoints(30090, &[EndpointSpec::of(network.node(), "node-1")]);
    let other =
        ManifestFile::service("other", 11).with_external(30090, &[], &[]).backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web, other], &[]);
    let _servers = [fixture.network.pod(0).serve(8080).unwrap(), fixture.network.node().serve(30090).unwrap()];
    let client = fixture.network.node().client().unwrap();
    for to in self::web() {
        let socket = client.udp(SocketFamily::of(to)).unwrap();
        socket.connect(to).unwrap();
        for _ in 0..3 {
            assert_eq!(exchange(&socket, None), (to, "node-1".into()), "{to}");
            assert_eq!(socket.peer().unwrap(), to);
        }
    }
    assert_eq!(fixture.counters("default/other/udp/UDP").dials, 0);
}

#[test]
fn a_socket_bound_to_loopback_is_untouched_and_a_bound_device_is_kept() {
    let fixture = fixture_with_web(TestNetwork::new(1).unwrap(), &[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let _outside = fixture.serve_outside(&web()[..2]);
    let client = fixture.network.node().client().unwrap();
    let before = fixture.stat("bound_loopback");
    for kind in TRANSPORTS {
        for (to, from) in web().into_iter().zip(["127.0.0.1", "::1", "::ffff:127.0.0.1"]) {
            let from = SocketAddr::new(from.parse::<IpAddr>().unwrap(), 0);
            let outcome = client.dial(&DialRequest::new(kind, to).bound(from).timeout_ms(200)).unwrap();
            // Without Beeline such a packet has no route or gets no answer. ECONNREFUSED would come from Beeline.
            assert!(outcome.error.is_some_and(|(_, errno)| errno != Errno::ECONNREFUSED), "{kind:?} {to}: {outcome:?}");
            assert_ne!(outcome.name(), "pod-a");
        }
        for to in web() {
            assert_resolved(&client, &DialRequest::new(kind, to).device("cni0"), &["pod-a"]);
            let outcome = client.dial(&DialRequest::new(kind, to).device("lo").timeout_ms(200)).unwrap();
            assert_eq!(outcome.name(), "", "the socket stays bound to its device: {kind:?} {to}: {outcome:?}");
        }
    }
    assert!(fixture.stat("bound_loopback") >= before + 9);
    assert_eq!(fixture.counters("default/web/tcp/TCP").dials, 6);
}

#[test]
fn raw_and_ping_sockets_are_untouched() {
    let fixture = fixture_with_web(TestNetwork::new(1).unwrap(), &[]);
    let _outside = fixture.serve_outside(&web()[..2]);
    let client = fixture.network.node().client().unwrap();
    for kind in [DialKind::Ping, DialKind::Raw] {
        for to in &web()[..2] {
            // The kernel ignores port 80, which only the hook sees. An echo may be lost during neighbour discovery.
            let dial = DialRequest::new(kind, *to).timeout_ms(500);
            let outcome = (0..6).map(|_| client.dial(&dial).unwrap()).find(|o| o.error.is_none());
            let outcome = outcome.unwrap_or_else(|| panic!("{kind:?} {to}: no echo reply"));
            assert_eq!(outcome.peer.map(|p| p.ip()), Some(to.ip()), "{kind:?} {to}: {outcome:?}");
            assert_eq!(outcome.from.map(|p| p.ip()), Some(to.ip()), "{kind:?} {to}: {outcome:?}");
        }
    }
}

#[test]
fn without_localhost_node_ports_the_unspecified_address_is_untouched() {
    let network = TestNetwork::new(1).unwrap();
    let web = ManifestFile::service("web", 10).with_external(30080, &[], &[]).backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web], &[]);
    let loopback = address_forms("127.0.0.1", "::1", 30080);
    let _own = EchoService::new("own", loopback[..2].to_vec()).start(&fixture.network.node().namespace).unwrap();
    let client = fixture.network.node().client().unwrap();
    for to in address_forms("0.0.0.0", "::", 30080).into_iter().chain(loopback) {
        for kind in TRANSPORTS {
            assert_eq!(client.dial(&DialRequest::new(kind, to)).unwrap().name(), "own", "{kind:?} {to}");
        }
    }
}

fn service_with_affinity(network: &TestNetwork, seconds: u32, pods: &[usize]) -> ManifestFile {
    let config = json!({
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": seconds } },
    });
    let at: Vec<_> = pods.iter().map(|n| (network.pod(*n), "node-1")).collect();
    ManifestFile::service("web", 10)
        .with_external(30080, &["203.0.113.1", "2001:db8::1"], &["198.51.100.1"])
        .with_spec(config)
        .backed_by(&at)
}

#[test]
fn session_affinity_keeps_a_client_at_its_backend() {
    let network = TestNetwork::new(4).unwrap();
    let pods = ["pod-a", "pod-b", "pod-c"];
    let (all, short) =
        (service_with_affinity(&network, 60, &[0, 1, 2]), service_with_affinity(&network, 1, &[0, 1, 2]));
    let without = |removed: usize| {
        service_with_affinity(&network, 60, &[0, 1, 2].into_iter().filter(|n| *n != removed).collect::<Vec<_>>())
    };
    let without: Vec<ManifestFile> = (0..3).map(without).collect();
    let fixture = AgentFixture::with_manifests(network, &[all], &[]);
    let _servers: Vec<_> = (0..3).map(|n| fixture.network.pod(n).serve(8080).unwrap()).collect();
    let client = fixture.network.node().client().unwrap();
    let names = |client: &Client, kind| -> Vec<String> {
        let to = [web()[0], web()[2], "172.31.0.11:30080".parse().unwrap(), "203.0.113.1:80".parse().unwrap()];
        to.iter().map(|to| assert_resolved(client, &DialRequest::new(kind, *to), &pods).name().to_owned()).collect()
    };
    // One client and one service port, through every address of the service.
    let first = names(&client, DialKind::Tcp)[0].clone();
    (0..3).for_each(|_| assert_eq!(names(&client, DialKind::Tcp), vec![first.clone(); 4]));
    assert_eq!(fixture.counters("default/web/tcp/TCP").affinity_hits, 15);
    // UDP is another service port, and another pod is another client.
    let udp = names(&client, DialKind::UdpConnected);
    assert_eq!(names(&client, DialKind::UdpSendTo), vec![udp[0].clone(); 4]);
    let other = fixture.network.pod(3).client().unwrap();
    let others = names(&other, DialKind::Tcp);
    assert_eq!(others, vec![others[0].clone(); 4]);
    // After its backend is removed the client gets another one, and keeps it.
    let removed = pods.iter().position(|p| *p == first).unwrap();
    fixture.apply(&without[removed]);
    let second = names(&client, DialKind::Tcp)[0].clone();
    assert_ne!(second, first);
    assert_eq!(names(&client, DialKind::Tcp), vec![second.clone(); 4]);
    // Affinity expires: no hit after a second without dials, and a hit directly afterwards.
    fixture.apply(&short);
    names(&client, DialKind::Tcp);
    let hits = || fixture.counters("default/web/tcp/TCP").affinity_hits;
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let before = hits();
    assert_resolved(&client, &DialRequest::new(DialKind::Tcp, web()[0]), &pods);
    assert_eq!(hits(), before);
    assert_resolved(&client, &DialRequest::new(DialKind::Tcp, web()[0]), &pods);
    assert_eq!(hits(), before + 1);
}

/// `assert_resolved` cannot see whether TCP Fast Open was used, so this test reads the counter of the kernel.
#[test]
fn tcp_fast_open_carries_its_data_to_the_pod() {
    let fixture = fixture_with_web(TestNetwork::new(1).unwrap(), &[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    let passive_opens = || {
        let text = fixture
            .network
            .pod(0)
            .run_in(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap())
            .unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        let found = lines.chunks(2).find_map(|p| Some(p[1][p[0].iter().position(|w| *w == "TCPFastOpenPassive")?]));
        found.unwrap().parse::<u64>().unwrap()
    };
    for kind in [DialKind::FastOpenSend, DialKind::FastOpenConnect] {
        for to in web() {
            let before = passive_opens();
            assert_resolved(&client, &DialRequest::new(kind, to), &["pod-a"]);
            assert_eq!(passive_opens(), before + 1, "{kind:?} {to}");
        }
    }
    // A socket that is reset at close leaves no record for later sockets.
    let socket = client.tcp(SocketFamily::V4).unwrap();
    socket.set(SocketOption::Linger0).unwrap();
    socket.fast_open(web()[0], "who\n").unwrap();
    assert_eq!(socket.peer().unwrap(), web()[0]);
}
