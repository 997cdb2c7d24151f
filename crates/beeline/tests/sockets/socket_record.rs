//! Socket records in difficult cases: failing connects, direct dials to a pod that is a service's backend, a backend that
//! changes while replies are in flight, and sockets with more translations than their record holds.

use crate::address_kinds::address_forms;
use crate::fixture::{AgentFixture, EndpointSpec, ManifestFile, wait_until};
use crate::socket_calls::{exchange, fixture_with_web, numbered_services, service_addresses, web};
use beeline_harness::{Client, EchoService, Errno, Socket, SocketFamily, SocketType, TestNetwork, mapped};
use std::net::SocketAddr;

/// The addresses of pod-a itself, in the order of `web`.
fn direct(fixture: &AgentFixture, port: u16) -> [SocketAddr; 3] {
    let pod = fixture.network.pod(0);
    [pod.v4(port), pod.v6(port), mapped(pod.v4(port))]
}

fn assert_connect_fails(socket: &Socket<'_>, to: SocketAddr, errno: Errno) {
    assert_eq!(socket.connect(to).unwrap_err().errno(), Some(errno), "{to}");
}

/// After a failed connect the kernel keeps the old connection. The record must be kept too: for getpeername, and to destroy
/// the socket when its backend is removed.
#[test]
fn a_connect_that_fails_leaves_the_socket_as_it_was() {
    let network = TestNetwork::new(1).unwrap();
    let objects =
        [ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]), ManifestFile::service("none", 11)];
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    let none = address_forms("10.96.0.11", "fd00:96::11", 80);
    // Without SO_BROADCAST the kernel itself rejects the connect.
    let broadcast: SocketAddr = "255.255.255.255:80".parse().unwrap();
    let denied = [Some(broadcast), None, Some(mapped(broadcast))];
    let mut sockets = Vec::new();
    for (form, to) in web().into_iter().enumerate() {
        let socket = client.udp(SocketFamily::of(to)).unwrap();
        socket.connect(to).unwrap();
        assert_connect_fails(&socket, none[form], Errno::ECONNREFUSED);
        assert_eq!((socket.peer().unwrap(), exchange(&socket, None)), (to, (to, "pod-a".into())));
        if let Some(denied) = denied[form] {
            assert_connect_fails(&socket, denied, Errno::EACCES);
            assert_eq!((socket.peer().unwrap(), exchange(&socket, None)), (to, (to, "pod-a".into())));
        }
        sockets.push(socket);
    }
    fixture.apply(&ManifestFile::service("web", 10));
    for socket in &sockets {
        wait_until("the socket is destroyed with its backend", || {
            socket.peer().is_err_and(|e| e.errno() == Some(Errno::ENOTCONN))
        });
    }
}

/// A client that dials a service, and then its pods directly, must not get the service's address for the pods' replies.
#[test]
fn a_directly_dialled_pod_is_reported_with_its_own_address() {
    let fixture = fixture_with_web(TestNetwork::new(1).unwrap(), &[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    for (to, pod) in web().into_iter().zip(direct(&fixture, 8080)) {
        let socket = client.udp(SocketFamily::of(to)).unwrap();
        for peer in [to, pod, pod, to, to, pod] {
            assert_eq!(exchange(&socket, Some(peer)), (peer, "pod-a".into()));
        }
        exchange(&socket, Some(to));
        socket.connect(pod).unwrap();
        assert_eq!((socket.peer().unwrap(), exchange(&socket, None).0), (pod, pod));
        // The service is dialled again. A plain send() must not change the record.
        socket.connect(to).unwrap();
        for _ in 0..3 {
            assert_eq!((socket.peer().unwrap(), exchange(&socket, None).0), (to, to));
        }
    }
}

/// Replies that arrive after the frontend has changed its backend still have the address of the frontend.
#[test]
fn a_late_reply_of_the_former_backend_has_the_frontend_address() {
    let network = TestNetwork::new(2).unwrap();
    let web_at = |pod: usize| ManifestFile::service("web", 10).backed_by(&[(network.pod(pod), "node-1")]);
    let objects = [web_at(0), web_at(1)];
    let fixture = AgentFixture::with_manifests(network, &objects[..1], &[]);
    let _servers = [fixture.network.pod(0).serve(8080).unwrap(), fixture.network.pod(1).serve(8080).unwrap()];
    let client = fixture.network.node().client().unwrap();
    let sockets = web().map(|to| client.udp(SocketFamily::of(to)).unwrap());
    for (socket, to) in sockets.iter().zip(web()) {
        socket.send_to(to, "who\n").unwrap();
    }
    // More changes than the record has entries, so that old entries are reused.
    for round in 1..12 {
        fixture.apply(&objects[round % 2]);
        let now = ["pod-a", "pod-b"][round % 2];
        for (socket, to) in sockets.iter().zip(web()) {
            socket.send_to(to, "who\n").unwrap();
            let (from, _) = socket.receive().unwrap();
            assert_eq!(from, Some(to), "the reply of the former backend, round {round}");
            socket.send_to(to, "who\n").unwrap();
            let (from, bytes) = socket.receive().unwrap();
            assert_eq!(from, Some(to), "{now} in round {round}");
            assert!(String::from_utf8(bytes).unwrap().starts_with(now));
        }
    }
    assert_eq!(fixture.stat("record_overflow"), 0, "one frontend fits into the record");
}

/// Overflow entries are written only when they change, and record entries of removed backends are reused.
#[test]
fn overflow_entries_are_written_once_and_entries_of_removed_backends_are_reused() {
    let network = TestNetwork::new(1).unwrap();
    let objects = numbered_services(&network, 16);
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let pod = fixture.network.pod(0);
    let ports = (9000..9016).flat_map(|port| [pod.v4(port), pod.v6(port)]);
    let _server = EchoService::new("pod-a", ports).udp_only().start(&pod.namespace).unwrap();
    let client = fixture.network.node().client().unwrap();
    for form in 0..3 {
        let socket = client.udp(SocketFamily::of(service_addresses(0)[form])).unwrap();
        let check = |n: u8| {
            assert_eq!(
                exchange(&socket, Some(service_addresses(n)[form])),
                (service_addresses(n)[form], "pod-a".into())
            )
        };
        let before = fixture.stat("record_overflow");
        (0..10).for_each(check);
        assert_eq!(fixture.stat("record_overflow") - before, 3);
        (0..3).for_each(|_| (0..10).for_each(check));
        assert_eq!(fixture.stat("record_overflow") - before, 3, "unchanged entries are not written again");
        // A direct dial to a backend in an overflow entry, and then to its service.
        for _ in 0..2 {
            let pod = direct(&fixture, 9009)[form];
            assert_eq!(exchange(&socket, Some(pod)).0, pod);
            check(9);
        }
        let before = fixture.stat("record_overflow");
        (0..3).for_each(|n| fixture.delete(&format!("s{n}")));
        (10..13).for_each(check);
        (3..13).for_each(check);
        assert_eq!(fixture.stat("record_overflow"), before, "three entries are reused");
        (13..16).for_each(check);
        assert!(fixture.stat("record_overflow") > before);
        (0..3).for_each(|n| fixture.apply(&objects[n]));
    }
}

/// Records of MPTCP connections must not be evicted by later connections.
#[test]
fn an_mptcp_record_survives_thousands_of_later_connections() {
    let fixture = fixture_with_web(TestNetwork::new(1).unwrap(), &[]);
    let pod = fixture.network.pod(0);
    let _server = pod.echo_service(8080).mptcp().start(&pod.namespace).unwrap();
    let client = fixture.network.node().client().unwrap();
    let sockets = web().map(|to| {
        let socket = client.socket(SocketFamily::of(to), SocketType::Mptcp).unwrap();
        socket.connect(to).unwrap();
        (socket, to)
    });
    for _ in 0..6000 {
        let socket = client.socket(SocketFamily::V4, SocketType::Mptcp).unwrap();
        socket.set(beeline_harness::SocketOption::Linger0).unwrap();
        socket.connect(web()[0]).unwrap();
    }
    for (socket, to) in &sockets {
        assert_eq!(socket.peer().unwrap(), *to);
    }
}

/// The service `last` has port 9100, which `numbered_services` does not use.
#[test]
fn a_direct_connect_after_many_services_is_reported_with_the_pod_address() {
    let network = TestNetwork::new(1).unwrap();
    let mut objects = numbered_services(&network, 10);
    objects.push(ManifestFile::service("last", 40).with_endpoints(9100, &[EndpointSpec::of(network.pod(0), "node-1")]));
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let pod = fixture.network.pod(0);
    let ports = (9000..9010).chain([9100]).flat_map(|port| [pod.v4(port), pod.v6(port)]);
    let _server = EchoService::new("pod-a", ports).udp_only().start(&pod.namespace).unwrap();
    let client = fixture.network.node().client().unwrap();
    let last = address_forms("10.96.0.40", "fd00:96::40", 80);
    for (form, last) in last.into_iter().enumerate() {
        let socket = client.udp(SocketFamily::of(last)).unwrap();
        (0..10).for_each(|n| drop(exchange(&socket, Some(service_addresses(n)[form]))));
        assert_eq!(exchange(&socket, Some(last)).0, last);
        let pod = direct(&fixture, 9100)[form];
        socket.connect(pod).unwrap();
        assert_eq!((socket.peer().unwrap(), exchange(&socket, None).0), (pod, pod));
    }
}

/// Forwarders for DNS and QUIC talk to many services through each of many sockets. No conversation may lose its backend or
/// the address that is reported for replies because of other sockets.
#[test]
fn thousands_of_sockets_that_use_twelve_services_each_keep_every_conversation() {
    const SERVICES: u8 = 12;
    const SOCKETS: usize = 800;
    let network = TestNetwork::new(2).unwrap();
    let pods = [EndpointSpec::of(network.pod(0), "node-1"), EndpointSpec::of(network.pod(1), "node-1")];
    let object = |n| ManifestFile::service(&format!("s{n}"), 10 + n).with_endpoints(9000 + u16::from(n), &pods);
    let objects: Vec<ManifestFile> = (0..SERVICES).map(object).collect();
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let serve = |pod: usize| {
        let pod = fixture.network.pod(pod);
        let ports = (9000..9000 + u16::from(SERVICES)).map(|port| pod.v4(port));
        EchoService::new(pod.name.clone(), ports).udp_only().start(&pod.namespace).unwrap()
    };
    let _servers = [serve(0), serve(1)];
    let clients: Vec<Client> = (0..3).map(|_| fixture.network.node().client().unwrap()).collect();
    let sockets = clients.iter().flat_map(|client| (0..SOCKETS).map(|_| client.udp(SocketFamily::V4).unwrap()));
    let sockets: Vec<Socket<'_>> = sockets.collect();
    let talk = |socket: &Socket<'_>, n: u8| exchange(socket, Some(service_addresses(n)[0]));
    let first: Vec<Vec<_>> = sockets.iter().map(|s| (0..SERVICES).map(|n| talk(s, n)).collect()).collect();
    let (mut wrong, mut moved, mut answers) = (0, 0, 0);
    for (socket, first) in sockets.iter().zip(&first) {
        for n in 0..SERVICES {
            let (now, before) = (talk(socket, n), &first[usize::from(n)]);
            answers += 2;
            wrong += [&now, before].iter().filter(|(from, _)| *from != service_addresses(n)[0]).count();
            moved += usize::from(now.1 != before.1);
        }
    }
    println!("{wrong} of {answers} answers from a wrong address, {moved} of {} conversations moved", answers / 2);
    assert_eq!((wrong, moved), (0, 0), "of {answers} answers");
}

/// A socket that uses more services than its records hold gets an error, and its other conversations go on.
#[test]
fn a_send_that_cannot_be_remembered_fails_and_the_others_go_on() {
    const SERVICES: u8 = 140;
    let network = TestNetwork::new(1).unwrap();
    let objects = numbered_services(&network, SERVICES);
    let fixture = AgentFixture::with_manifests(network, &objects, &["--max-services", "1024"]);
    let pod = fixture.network.pod(0);
    let ports = (9000..9000 + u16::from(SERVICES)).map(|port| pod.v4(port));
    let _server = EchoService::new("pod-a", ports).udp_only().start(&pod.namespace).unwrap();
    let client = fixture.network.node().client().unwrap();
    let socket = client.udp(SocketFamily::V4).unwrap();
    let send = |n: u8| socket.send_to(service_addresses(n)[0], "who\n").map_err(|error| error.errno());
    // Seven in the record, 127 in the overflow block.
    for n in 0..134 {
        assert_eq!(exchange(&socket, Some(service_addresses(n)[0])).0, service_addresses(n)[0]);
    }
    (134..SERVICES).for_each(|n| assert_eq!(send(n).unwrap_err(), Some(Errno::ENOBUFS), "service {n}"));
    for n in 0..134 {
        assert_eq!(exchange(&socket, Some(service_addresses(n)[0])).0, service_addresses(n)[0]);
    }
    assert_eq!(fixture.stat("send_failed"), u64::from(SERVICES) - 134);
}
