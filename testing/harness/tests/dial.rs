//! Direct dials of every kind without BPF programs.

use std::{fs, net::SocketAddr};

use beeline_harness::{DialKind, DialRequest, Errno, SocketFamily, SocketOption, SocketType, TestNetwork, mapped};

const PORT: u16 = 8080;

fn addresses(network: &TestNetwork) -> [SocketAddr; 3] {
    let pod = network.pod(0);
    [pod.v4(PORT), pod.v6(PORT), mapped(pod.v4(PORT))]
}

#[test]
fn every_kind_of_dial_reaches_the_pod() {
    let network = TestNetwork::new(1).unwrap();
    let _server = network.pod(0).echo_service(PORT).mptcp().start(&network.pod(0).namespace).unwrap();
    let client = network.node().client().unwrap();
    for kind in DialKind::TCP.into_iter().chain(DialKind::UDP) {
        for to in addresses(&network) {
            let outcome = client.dial(&DialRequest::new(kind, to)).unwrap();
            let what = format!("{kind:?} {to}: {outcome:?}");
            assert_eq!((outcome.errno(), outcome.name()), (None, "pod-a"), "{what}");
            assert_eq!(outcome.server_address().map(mapped), Some(mapped(to)), "{what}");
            let connected = !matches!(kind, DialKind::UdpSendTo | DialKind::UdpSendMsg | DialKind::UdpUring);
            assert_eq!(outcome.peer, connected.then_some(to), "{what}");
            if DialKind::UDP.contains(&kind) {
                assert_eq!(outcome.from, Some(to), "{what}");
            }
            assert!(outcome.nanos > 0, "{what}");
        }
    }
}

/// The kernel's counters show that Fast Open and MPTCP were used without a fallback.
#[test]
fn fast_open_and_mptcp_do_not_fall_back() {
    let network = TestNetwork::new(1).unwrap();
    let _server = network.pod(0).echo_service(PORT).mptcp().start(&network.pod(0).namespace).unwrap();
    let client = network.node().client().unwrap();
    let count = |name| {
        counter(&network.pod(0).run_in(|| fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap(), name)
    };
    for (kind, name) in [
        (DialKind::FastOpenSend, "TCPFastOpenPassive"),
        (DialKind::FastOpenConnect, "TCPFastOpenPassive"),
        (DialKind::Mptcp, "MPCapableACKRX"),
    ] {
        let before = count(name);
        assert_eq!(client.dial(&DialRequest::new(kind, network.pod(0).v4(PORT))).unwrap().name(), "pod-a");
        assert_eq!(count(name), before + 1, "{kind:?}");
    }
}

/// Reads a counter of /proc/net/netstat, which has pairs of lines with names and values.
fn counter(table: &str, name: &str) -> u64 {
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(' ').collect()).collect();
    let pair = lines.chunks(2).find_map(|pair| Some(pair[1][pair[0].iter().position(|word| *word == name)?]));
    pair.unwrap_or_else(|| panic!("no counter {name}")).parse().unwrap()
}

#[test]
fn a_server_in_a_pod_answers_from_its_own_cgroup() {
    let network = TestNetwork::new(1).unwrap();
    let pod = network.pod(0).client().unwrap();
    let served = pod.serve(network.pod(0).echo_service(PORT)).unwrap();
    let client = network.node().client().unwrap();
    for to in addresses(&network) {
        assert_eq!(client.dial(&DialRequest::new(DialKind::Tcp, to)).unwrap().name(), "pod-a");
        assert_eq!(client.dial(&DialRequest::new(DialKind::UdpSendTo, to)).unwrap().name(), "pod-a");
    }
    assert_eq!(served.counts().unwrap(), (3, 3, 3));
    drop(served);
    let outcome = client.dial(&DialRequest::new(DialKind::Tcp, network.pod(0).v4(PORT))).unwrap();
    assert_eq!(outcome.errno(), Some(Errno::ECONNREFUSED));
}

#[test]
fn a_second_connect_fails_with_eisconn() {
    let network = TestNetwork::new(1).unwrap();
    let _server = network.pod(0).serve(PORT).unwrap();
    let client = network.node().client().unwrap();
    for to in addresses(&network) {
        let outcome = client.dial(&DialRequest::new(DialKind::TcpTwice, to)).unwrap();
        assert_eq!(outcome.error, Some(("connect", Errno::EISCONN)));
    }
}

#[test]
fn a_closed_port_refuses() {
    let network = TestNetwork::new(1).unwrap();
    let client = network.node().client().unwrap();
    for to in addresses(&network) {
        for kind in
            [DialKind::Tcp, DialKind::TcpNonblocking, DialKind::TcpUring, DialKind::Mptcp, DialKind::FastOpenSend]
        {
            let outcome = client.dial(&DialRequest::new(kind, to)).unwrap();
            assert_eq!(outcome.errno(), Some(Errno::ECONNREFUSED), "{kind:?} {to} {outcome:?}");
        }
        let outcome = client.dial(&DialRequest::new(DialKind::UdpConnected, to)).unwrap();
        assert_eq!(outcome.error, Some(("receive", Errno::ECONNREFUSED)), "{to}");
    }
}

#[test]
fn a_dial_to_an_unresolved_service_address_times_out() {
    let network = TestNetwork::new(1).unwrap();
    let client = network.pod(0).client().unwrap();
    for to in ["10.96.0.10:80", "[fd00:96::10]:80"] {
        let dial = DialRequest::new(DialKind::Tcp, to.parse().unwrap()).timeout_ms(200);
        assert_eq!(client.dial(&dial).unwrap().error, Some(("connect", Errno::EINPROGRESS)), "{to}");
        let dial = DialRequest::new(DialKind::TcpUring, to.parse().unwrap()).timeout_ms(200);
        assert_eq!(client.dial(&dial).unwrap().error, Some(("connect", Errno::ECANCELED)), "{to}");
        let dial = DialRequest::new(DialKind::UdpSendTo, to.parse().unwrap()).timeout_ms(200);
        assert_eq!(client.dial(&dial).unwrap().error, Some(("receive", Errno::EAGAIN)), "{to}");
    }
}

#[test]
fn icmp_echo_requests_are_answered() {
    let network = TestNetwork::new(1).unwrap();
    let client = network.node().client().unwrap();
    for kind in [DialKind::Ping, DialKind::Raw] {
        // ICMP ignores the port, but without one the kernel reports no peer.
        for to in [network.pod(0).v4(PORT), network.pod(0).v6(PORT)] {
            let outcome = client.dial(&DialRequest::new(kind, to)).unwrap();
            assert_eq!(outcome.error, None, "{kind:?} {to} {outcome:?}");
            assert_eq!(outcome.peer.map(|peer| peer.ip()), Some(to.ip()), "{kind:?} {outcome:?}");
            assert_eq!(outcome.from.map(|from| from.ip()), Some(to.ip()));
        }
    }
}

#[test]
fn bound_sockets_and_the_unspecified_address_work_as_in_linux() {
    let network = TestNetwork::new(1).unwrap();
    let local: [SocketAddr; 2] = ["127.0.0.1:9090".parse().unwrap(), "[::1]:9090".parse().unwrap()];
    let pod = network.pod(0);
    let _pod_server = pod.serve(PORT).unwrap();
    let _local_server = beeline_harness::EchoService::new("local", local).start(&network.node().namespace).unwrap();
    let client = network.node().client().unwrap();
    let dial = |dial: DialRequest| client.dial(&dial).unwrap();

    for any in ["0.0.0.0:9090", "[::]:9090"] {
        let outcome = dial(DialRequest::new(DialKind::Tcp, any.parse().unwrap()));
        assert_eq!(outcome.name(), "local", "{any} {outcome:?}");
    }
    let outcome = dial(DialRequest::new(DialKind::Tcp, local[0]).bound("127.0.0.9:0".parse().unwrap()));
    assert_eq!(outcome.answer.unwrap().peer.ip().to_string(), "127.0.0.9");
    // The kernel has no route from a loopback source to another host; a resolved dial would fail in the same way.
    let outcome =
        dial(DialRequest::new(DialKind::Tcp, pod.v4(PORT)).bound("127.0.0.1:0".parse().unwrap()).timeout_ms(200));
    assert!(outcome.error.is_some(), "{outcome:?}");
    for to in [pod.v4(PORT), pod.v6(PORT)] {
        assert_eq!(dial(DialRequest::new(DialKind::Tcp, to).device("cni0")).name(), "pod-a");
        assert!(dial(DialRequest::new(DialKind::Tcp, to).device("lo").timeout_ms(200)).error.is_some());
    }
}

#[test]
fn one_unconnected_socket_sends_to_several_servers() {
    let network = TestNetwork::new(2).unwrap();
    let _servers = [network.pod(0).serve(PORT).unwrap(), network.pod(1).serve(PORT).unwrap()];
    let client = network.node().client().unwrap();
    let socket = client.udp(SocketFamily::V6).unwrap();
    for turn in 0..4 {
        let to = mapped(network.pod(turn % 2).v4(PORT));
        socket.send_to(to, "who").unwrap();
        assert_eq!(socket.receive().unwrap().0, Some(to));
    }
    assert!(socket.cookie().unwrap() > 0);
}

#[test]
fn a_disconnected_socket_can_connect_again() {
    let network = TestNetwork::new(2).unwrap();
    let _servers = [network.pod(0).serve(PORT).unwrap(), network.pod(1).serve(PORT).unwrap()];
    let client = network.node().client().unwrap();
    for socket_type in [SocketType::Tcp, SocketType::Udp] {
        let socket = client.socket(SocketFamily::V4, socket_type).unwrap();
        socket.set(SocketOption::Linger0).unwrap();
        socket.connect(network.pod(0).v4(PORT)).unwrap();
        assert_eq!(socket.peer().unwrap(), network.pod(0).v4(PORT));
        socket.disconnect().unwrap();
        assert_eq!(socket.peer().unwrap_err().errno(), Some(Errno::ENOTCONN));
        socket.connect(network.pod(1).v4(PORT)).unwrap();
        assert_eq!(socket.peer().unwrap(), network.pod(1).v4(PORT));
    }
}

#[test]
fn a_v6_socket_connected_to_a_mapped_address_can_send() {
    let network = TestNetwork::new(1).unwrap();
    let _server = network.pod(0).serve(PORT).unwrap();
    let client = network.node().client().unwrap();
    let (socket, to) = (client.udp(SocketFamily::V6).unwrap(), mapped(network.pod(0).v4(PORT)));
    socket.connect(to).unwrap();
    for _ in 0..3 {
        socket.send("who").unwrap();
        assert_eq!(socket.receive().unwrap().0, Some(to));
        assert_eq!(socket.peer().unwrap(), to);
    }
}
