//! Tests of the load generator and of the UDP probe.

use std::{thread::sleep, time::Duration};

use beeline_harness::{Errno, LoadConfig, LoadKind, ProbeConfig, Socket, SocketFamily, TestNetwork, monotonic_ns};

#[test]
fn a_load_counts_every_dial() {
    let network = TestNetwork::new(2).unwrap();
    let server = network.pod(0).echo_service(80).banner().start(&network.pod(0).namespace).unwrap();
    let (good, closed) = (network.pod(0).v4(80), network.pod(1).v4(80));
    let client = network.node().client().unwrap();
    for kind in [LoadKind::Tcp, LoadKind::UdpConnected] {
        let config = LoadConfig { dials: 1000, threads: 2, ..LoadConfig::new(kind, [good, closed]) };
        client.start_load(config).unwrap();
        let report = client.finish_load().unwrap();
        assert_eq!(report.dials, 1000, "{report:?}");
        let step = if kind == LoadKind::Tcp { "connect" } else { "receive" };
        assert_eq!(report.answers[&good].get(&format!("pod-a {good}")), Some(&report.answered()), "{report:?}");
        assert_eq!(report.failures[&closed].get(&format!("{step} ECONNREFUSED")), Some(&report.failed()), "{report:?}");
    }
    assert_eq!(server.connections() + server.datagrams(), 1000);
}

#[test]
fn a_load_of_every_kind_fails_no_dial() {
    let network = TestNetwork::new(1).unwrap();
    let _server = network.pod(0).echo_service(80).banner().start(&network.pod(0).namespace).unwrap();
    let client = network.node().client().unwrap();
    for kind in [LoadKind::Tcp, LoadKind::UdpConnected, LoadKind::UdpUnconnected] {
        let targets = [network.pod(0).v4(80), network.pod(0).v6(80)];
        client.start_load(LoadConfig { threads: 2, dials: 2000, ..LoadConfig::new(kind, targets) }).unwrap();
        let report = client.finish_load().unwrap();
        let slowest = Duration::from_nanos(report.slowest_ns);
        eprintln!("{kind:?}: {:.0} dials/s, slowest {slowest:?}, {} failed", report.per_second(), report.failed());
        assert_eq!((report.dials, report.failed()), (2000, 0), "{report:?}");
    }
}

/// Sends until the server answers, which takes a while on a busy machine, and discards the answers.
fn wait_for_answer(socket: &Socket<'_>) {
    let answered = (0..40).any(|_| {
        socket.send("who\n").unwrap();
        socket.poll(false, 250).unwrap().0
    });
    assert!(answered, "the server does not answer");
    while socket.poll(false, 50).unwrap().0 {
        socket.receive().unwrap();
    }
}

#[test]
fn a_probe_records_when_its_server_stopped() {
    let network = TestNetwork::new(1).unwrap();
    let server = network.pod(0).serve(53).unwrap();
    let client = network.node().client().unwrap();
    for family in [SocketFamily::V4, SocketFamily::V6] {
        let socket = client.udp(family).unwrap();
        socket.connect(if family == SocketFamily::V4 { network.pod(0).v4(53) } else { network.pod(0).v6(53) }).unwrap();
        wait_for_answer(&socket);
        socket.start_probe(ProbeConfig { interval_ms: 5, limit_ms: 10_000 }).unwrap();
        let report = socket.stop_probe(500).unwrap();
        assert!(report.failure.is_none() && report.sent > 5, "{report:?}");
        // Datagrams in flight are not lost, and a busy machine answers late.
        assert!(report.answers.values().sum::<u64>() * 2 >= report.sent, "{report:?}");
    }
    let socket = client.udp(SocketFamily::V4).unwrap();
    socket.connect(network.pod(0).v4(53)).unwrap();
    let answered = server.datagrams();
    socket.start_probe(ProbeConfig { interval_ms: 5, limit_ms: 10_000 }).unwrap();
    while server.datagrams() == answered {
        sleep(Duration::from_millis(1));
    }
    let stopped = monotonic_ns();
    server.stop();
    let failure = socket.stop_probe(5000).unwrap().failure.expect("the port is closed");
    assert_eq!(failure.errno, Errno::ECONNREFUSED);
    assert!(failure.at >= stopped && failure.at - stopped < 1_000_000_000, "{failure:?} after {stopped}");
}
