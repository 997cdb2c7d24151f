//! Direct dials of every kind, without any BPF: what a client sees when nothing is resolved.

use std::{fs, net::SocketAddr};

use beeline_harness::{Dial, Errno, Family, Kind, Lab, Setting, Sort, mapped};

const PORT: u16 = 8080;

fn addresses(lab: &Lab) -> [SocketAddr; 3] {
    let pod = lab.pod(0);
    [pod.v4(PORT), pod.v6(PORT), mapped(pod.v4(PORT))]
}

#[test]
fn every_kind_reaches_the_pod() {
    let lab = Lab::new(1).unwrap();
    let _server = lab.pod(0).service(PORT).mptcp().start(&lab.pod(0).namespace).unwrap();
    let client = lab.node().client().unwrap();
    for kind in Kind::TCP.into_iter().chain(Kind::UDP) {
        for to in addresses(&lab) {
            let outcome = client.dial(&Dial::new(kind, to)).unwrap();
            let what = format!("{kind:?} {to}: {outcome:?}");
            assert_eq!((outcome.errno(), outcome.name()), (None, "pod-a"), "{what}");
            assert_eq!(outcome.at().map(mapped), Some(mapped(to)), "{what}");
            let connected = !matches!(kind, Kind::UdpSendTo | Kind::UdpSendMsg | Kind::UdpUring);
            assert_eq!(outcome.peer, connected.then_some(to), "{what}");
            if Kind::UDP.contains(&kind) {
                assert_eq!(outcome.from, Some(to), "{what}");
            }
            assert!(outcome.nanos > 0, "{what}");
        }
    }
}

/// The kernel's own counters: the kinds above were what they claim to be, and fell back to nothing.
#[test]
fn fast_open_and_mptcp_are_real() {
    let lab = Lab::new(1).unwrap();
    let _server = lab.pod(0).service(PORT).mptcp().start(&lab.pod(0).namespace).unwrap();
    let client = lab.node().client().unwrap();
    let count = |name| {
        counter(&lab.pod(0).run_in(|| fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap(), name)
    };
    for (kind, name) in [
        (Kind::FastOpenSend, "TCPFastOpenPassive"),
        (Kind::FastOpenConnect, "TCPFastOpenPassive"),
        (Kind::Mptcp, "MPCapableACKRX"),
    ] {
        let before = count(name);
        assert_eq!(client.dial(&Dial::new(kind, lab.pod(0).v4(PORT))).unwrap().name(), "pod-a");
        assert_eq!(count(name), before + 1, "{kind:?}");
    }
}

/// /proc/net/netstat has pairs of lines: names, then values.
fn counter(table: &str, name: &str) -> u64 {
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(' ').collect()).collect();
    let pair = lines.chunks(2).find_map(|pair| Some(pair[1][pair[0].iter().position(|word| *word == name)?]));
    pair.unwrap_or_else(|| panic!("no counter {name}")).parse().unwrap()
}

#[test]
fn a_server_in_a_pod_answers_from_its_own_cgroup() {
    let lab = Lab::new(1).unwrap();
    let pod = lab.pod(0).client().unwrap();
    let served = pod.serve(lab.pod(0).service(PORT)).unwrap();
    let client = lab.node().client().unwrap();
    for to in addresses(&lab) {
        assert_eq!(client.dial(&Dial::new(Kind::Tcp, to)).unwrap().name(), "pod-a");
        assert_eq!(client.dial(&Dial::new(Kind::UdpSendTo, to)).unwrap().name(), "pod-a");
    }
    assert_eq!(served.hits().unwrap(), (3, 3, 3));
    drop(served);
    let outcome = client.dial(&Dial::new(Kind::Tcp, lab.pod(0).v4(PORT))).unwrap();
    assert_eq!(outcome.errno(), Some(Errno::ECONNREFUSED));
}

#[test]
fn a_second_connect_is_refused_as_such() {
    let lab = Lab::new(1).unwrap();
    let _server = lab.pod(0).serve(PORT).unwrap();
    let client = lab.node().client().unwrap();
    for to in addresses(&lab) {
        let outcome = client.dial(&Dial::new(Kind::TcpTwice, to)).unwrap();
        assert_eq!(outcome.error, Some(("connect", Errno::EISCONN)));
    }
}

#[test]
fn a_closed_port_says_so() {
    let lab = Lab::new(1).unwrap();
    let client = lab.node().client().unwrap();
    for to in addresses(&lab) {
        for kind in [Kind::Tcp, Kind::TcpNonblocking, Kind::TcpUring, Kind::Mptcp, Kind::FastOpenSend] {
            let outcome = client.dial(&Dial::new(kind, to)).unwrap();
            assert_eq!(outcome.errno(), Some(Errno::ECONNREFUSED), "{kind:?} {to} {outcome:?}");
        }
        let outcome = client.dial(&Dial::new(Kind::UdpConnected, to)).unwrap();
        assert_eq!(outcome.error, Some(("receive", Errno::ECONNREFUSED)), "{to}");
    }
}

#[test]
fn an_address_that_nobody_resolves_is_lost() {
    let lab = Lab::new(1).unwrap();
    let client = lab.pod(0).client().unwrap();
    for to in ["10.96.0.10:80", "[fd00:96::10]:80"] {
        let dial = Dial::new(Kind::Tcp, to.parse().unwrap()).patience_ms(200);
        assert_eq!(client.dial(&dial).unwrap().error, Some(("connect", Errno::EINPROGRESS)), "{to}");
        let dial = Dial::new(Kind::TcpUring, to.parse().unwrap()).patience_ms(200);
        assert_eq!(client.dial(&dial).unwrap().error, Some(("connect", Errno::ECANCELED)), "{to}");
        let dial = Dial::new(Kind::UdpSendTo, to.parse().unwrap()).patience_ms(200);
        assert_eq!(client.dial(&dial).unwrap().error, Some(("receive", Errno::EAGAIN)), "{to}");
    }
}

#[test]
fn echo_sockets_are_answered() {
    let lab = Lab::new(1).unwrap();
    let client = lab.node().client().unwrap();
    for kind in [Kind::Ping, Kind::Raw] {
        // The port means nothing to ICMP, but without one the kernel shows no peer.
        for to in [lab.pod(0).v4(PORT), lab.pod(0).v6(PORT)] {
            let outcome = client.dial(&Dial::new(kind, to)).unwrap();
            assert_eq!(outcome.error, None, "{kind:?} {to} {outcome:?}");
            assert_eq!(outcome.peer.map(|peer| peer.ip()), Some(to.ip()), "{kind:?} {outcome:?}");
            assert_eq!(outcome.from.map(|from| from.ip()), Some(to.ip()));
        }
    }
}

#[test]
fn bound_sockets_and_the_address_that_means_loopback() {
    let lab = Lab::new(1).unwrap();
    let local: [SocketAddr; 2] = ["127.0.0.1:9090".parse().unwrap(), "[::1]:9090".parse().unwrap()];
    let pod = lab.pod(0);
    let _far = pod.serve(PORT).unwrap();
    let _near = beeline_harness::Service::new("near", local).start(&lab.node().namespace).unwrap();
    let client = lab.node().client().unwrap();
    let dial = |dial: Dial| client.dial(&dial).unwrap();

    for any in ["0.0.0.0:9090", "[::]:9090"] {
        let outcome = dial(Dial::new(Kind::Tcp, any.parse().unwrap()));
        assert_eq!(outcome.name(), "near", "{any} {outcome:?}");
    }
    let outcome = dial(Dial::new(Kind::Tcp, local[0]).bound("127.0.0.9:0".parse().unwrap()));
    assert_eq!(outcome.answer.unwrap().peer.ip().to_string(), "127.0.0.9");
    // The kernel finds no route from loopback to elsewhere: what a resolved dial from there would meet as well.
    let outcome = dial(Dial::new(Kind::Tcp, pod.v4(PORT)).bound("127.0.0.1:0".parse().unwrap()).patience_ms(200));
    assert!(outcome.error.is_some(), "{outcome:?}");
    for to in [pod.v4(PORT), pod.v6(PORT)] {
        assert_eq!(dial(Dial::new(Kind::Tcp, to).device("cni0")).name(), "pod-a");
        assert!(dial(Dial::new(Kind::Tcp, to).device("lo").patience_ms(200)).error.is_some());
    }
}

#[test]
fn one_unconnected_socket_talks_to_many() {
    let lab = Lab::new(2).unwrap();
    let _servers = [lab.pod(0).serve(PORT).unwrap(), lab.pod(1).serve(PORT).unwrap()];
    let client = lab.node().client().unwrap();
    let socket = client.udp(Family::V6).unwrap();
    for turn in 0..4 {
        let to = mapped(lab.pod(turn % 2).v4(PORT));
        socket.send_to(to, "who").unwrap();
        assert_eq!(socket.receive().unwrap().0, Some(to));
    }
    assert!(socket.cookie().unwrap() > 0);
}

#[test]
fn a_disconnected_socket_can_dial_again() {
    let lab = Lab::new(2).unwrap();
    let _servers = [lab.pod(0).serve(PORT).unwrap(), lab.pod(1).serve(PORT).unwrap()];
    let client = lab.node().client().unwrap();
    for sort in [Sort::Tcp, Sort::Udp] {
        let socket = client.socket(Family::V4, sort).unwrap();
        socket.set(Setting::Linger0).unwrap();
        socket.connect(lab.pod(0).v4(PORT)).unwrap();
        assert_eq!(socket.peer().unwrap(), lab.pod(0).v4(PORT));
        socket.disconnect().unwrap();
        assert_eq!(socket.peer().unwrap_err().errno(), Some(Errno::ENOTCONN));
        socket.connect(lab.pod(1).v4(PORT)).unwrap();
        assert_eq!(socket.peer().unwrap(), lab.pod(1).v4(PORT));
    }
}

#[test]
fn a_connected_v6_socket_with_a_mapped_peer_sends_plainly() {
    let lab = Lab::new(1).unwrap();
    let _server = lab.pod(0).serve(PORT).unwrap();
    let client = lab.node().client().unwrap();
    let (socket, to) = (client.udp(Family::V6).unwrap(), mapped(lab.pod(0).v4(PORT)));
    socket.connect(to).unwrap();
    for _ in 0..3 {
        socket.send("who").unwrap();
        assert_eq!(socket.receive().unwrap().0, Some(to));
        assert_eq!(socket.peer().unwrap(), to);
    }
}
