//! Storms and watches: the tools of the churn and stale-socket tests.

use std::{thread::sleep, time::Duration};

use beeline_harness::{Errno, Family, Lab, Socket, Storm, StormKind, Watch, now};

#[test]
fn a_storm_counts_every_dial() {
    let lab = Lab::new(2).unwrap();
    let server = lab.pod(0).service(80).banner().start(&lab.pod(0).namespace).unwrap();
    let (good, closed) = (lab.pod(0).v4(80), lab.pod(1).v4(80));
    let client = lab.node().client().unwrap();
    for kind in [StormKind::Tcp, StormKind::UdpConnected] {
        let storm = Storm { dials: 1000, threads: 2, ..Storm::new(kind, [good, closed]) };
        client.storm(storm).unwrap();
        let tally = client.storm_wait().unwrap();
        assert_eq!(tally.dials, 1000, "{tally:?}");
        let step = if kind == StormKind::Tcp { "connect" } else { "receive" };
        assert_eq!(tally.answers[&good].get(&format!("pod-a {good}")), Some(&tally.answered()), "{tally:?}");
        assert_eq!(tally.failures[&closed].get(&format!("{step} ECONNREFUSED")), Some(&tally.failed()), "{tally:?}");
    }
    assert_eq!(server.connections() + server.datagrams(), 1000);
}

#[test]
fn a_storm_of_every_kind() {
    let lab = Lab::new(1).unwrap();
    let _server = lab.pod(0).service(80).banner().start(&lab.pod(0).namespace).unwrap();
    let client = lab.node().client().unwrap();
    for kind in [StormKind::Tcp, StormKind::UdpConnected, StormKind::UdpUnconnected] {
        client.storm(Storm { threads: 2, ..Storm::new(kind, [lab.pod(0).v4(80), lab.pod(0).v6(80)]) }).unwrap();
        sleep(Duration::from_secs(1));
        let tally = client.storm_end().unwrap();
        let slowest = Duration::from_nanos(tally.slowest_ns);
        eprintln!("{kind:?}: {:.0} dials/s, slowest {slowest:?}, {} failed", tally.per_second(), tally.failed());
        assert_eq!(tally.failed(), 0, "{tally:?}");
    }
}

/// A starved machine may take its time to find the way and to wake the server.
fn until_answered(socket: &Socket<'_>) {
    let answered = (0..40).any(|_| {
        socket.send("who\n").unwrap();
        socket.poll(false, 250).unwrap().0
    });
    assert!(answered, "nobody answers");
    while socket.poll(false, 50).unwrap().0 {
        socket.receive().unwrap();
    }
}

#[test]
fn a_watch_tells_when_its_server_went() {
    let lab = Lab::new(1).unwrap();
    let server = lab.pod(0).serve(53).unwrap();
    let client = lab.node().client().unwrap();
    for family in [Family::V4, Family::V6] {
        let socket = client.udp(family).unwrap();
        socket.connect(if family == Family::V4 { lab.pod(0).v4(53) } else { lab.pod(0).v6(53) }).unwrap();
        until_answered(&socket);
        socket.watch(Watch { every_ms: 5, limit_ms: 10_000 }).unwrap();
        let watched = socket.watch_end(500).unwrap();
        assert!(watched.failure.is_none() && watched.sent > 5, "{watched:?}");
        // One that is under way is no loss, nor what a starved machine has not answered yet.
        assert!(watched.answers.values().sum::<u64>() * 2 >= watched.sent, "{watched:?}");
    }
    let socket = client.udp(Family::V4).unwrap();
    socket.connect(lab.pod(0).v4(53)).unwrap();
    socket.watch(Watch { every_ms: 5, limit_ms: 10_000 }).unwrap();
    sleep(Duration::from_millis(20));
    let gone = now();
    server.stop();
    let failure = socket.watch_end(5000).unwrap().failure.expect("the port is closed");
    assert_eq!(failure.errno, Errno::ECONNREFUSED);
    assert!(failure.at >= gone && failure.at - gone < 1_000_000_000, "{failure:?} after {gone}");
}
