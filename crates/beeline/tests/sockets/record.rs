//! What a socket remembers, where it could be wrong: connects that fail, direct dials of a pod that a service led to, a
//! backend that changes while answers are under way, and sockets that outgrow their record.

use crate::ground::{Endpoint, Ground, Object, eventually};
use crate::kind::ways;
use crate::trap::{ask, at, many, one, web};
use beeline_harness::{Errno, Family, Lab, Service, Socket, Sort, mapped};
use std::net::SocketAddr;

/// The three ways to dial pod-a itself, in the order of `web`.
fn direct(ground: &Ground, port: u16) -> [SocketAddr; 3] {
    let pod = ground.lab.pod(0);
    [pod.v4(port), pod.v6(port), mapped(pod.v4(port))]
}

fn fails(socket: &Socket<'_>, to: SocketAddr, errno: Errno) {
    assert_eq!(socket.connect(to).unwrap_err().errno(), Some(errno), "{to}");
}

/// The kernel keeps the connection that there was, and so must the record: for what is shown, and for the day when its
/// backend goes.
#[test]
fn a_connect_that_fails_leaves_the_socket_as_it_was() {
    let lab = Lab::new(1).unwrap();
    let objects = [Object::service("web", 10).at(&[(lab.pod(0), "node-1")]), Object::service("none", 11)];
    let ground = Ground::on(lab, &objects, &[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    let none = ways("10.96.0.11", "fd00:96::11", 80);
    // Without SO_BROADCAST the kernel itself says no.
    let broadcast: SocketAddr = "255.255.255.255:80".parse().unwrap();
    let denied = [Some(broadcast), None, Some(mapped(broadcast))];
    let mut sockets = Vec::new();
    for (way, to) in web().into_iter().enumerate() {
        let socket = client.udp(Family::of(to)).unwrap();
        socket.connect(to).unwrap();
        fails(&socket, none[way], Errno::ECONNREFUSED);
        assert_eq!((socket.peer().unwrap(), ask(&socket, None)), (to, (to, "pod-a".into())));
        if let Some(denied) = denied[way] {
            fails(&socket, denied, Errno::EACCES);
            assert_eq!((socket.peer().unwrap(), ask(&socket, None)), (to, (to, "pod-a".into())));
        }
        sockets.push(socket);
    }
    ground.apply(&Object::service("web", 10));
    for socket in &sockets {
        eventually("it is destroyed with its backend", || {
            socket.peer().is_err_and(|e| e.errno() == Some(Errno::ENOTCONN))
        });
    }
}

/// Whoever joins by a service and then talks to its pods must not see the service in their answers.
#[test]
fn a_pod_that_is_dialled_directly_is_shown_as_itself() {
    let ground = one(Lab::new(1).unwrap(), &[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    for (to, pod) in web().into_iter().zip(direct(&ground, 8080)) {
        let socket = client.udp(Family::of(to)).unwrap();
        for peer in [to, pod, pod, to, to, pod] {
            assert_eq!(ask(&socket, Some(peer)), (peer, "pod-a".into()));
        }
        ask(&socket, Some(to));
        socket.connect(pod).unwrap();
        assert_eq!((socket.peer().unwrap(), ask(&socket, None).0), (pod, pod));
        // And by the service again, which a plain send() must not undo.
        socket.connect(to).unwrap();
        for _ in 0..3 {
            assert_eq!((socket.peer().unwrap(), ask(&socket, None).0), (to, to));
        }
    }
}

/// Answers that come after the frontend has moved to another backend are still the frontend's.
#[test]
fn a_late_answer_of_the_former_backend() {
    let lab = Lab::new(2).unwrap();
    let place = |pod: usize| Object::service("web", 10).at(&[(lab.pod(pod), "node-1")]);
    let objects = [place(0), place(1)];
    let ground = Ground::on(lab, &objects[..1], &[]);
    let _servers = [ground.lab.pod(0).serve(8080).unwrap(), ground.lab.pod(1).serve(8080).unwrap()];
    let client = ground.lab.node().client().unwrap();
    let sockets = web().map(|to| client.udp(Family::of(to)).unwrap());
    for (socket, to) in sockets.iter().zip(web()) {
        socket.send_to(to, "who\n").unwrap();
    }
    // More often than the record has entries: the oldest is used again.
    for turn in 1..12 {
        ground.apply(&objects[turn % 2]);
        let now = ["pod-a", "pod-b"][turn % 2];
        for (socket, to) in sockets.iter().zip(web()) {
            socket.send_to(to, "who\n").unwrap();
            let (from, _) = socket.receive().unwrap();
            assert_eq!(from, Some(to), "the answer of the former backend, turn {turn}");
            socket.send_to(to, "who\n").unwrap();
            let (from, bytes) = socket.receive().unwrap();
            assert_eq!(from, Some(to), "{now} in turn {turn}");
            assert!(String::from_utf8(bytes).unwrap().starts_with(now));
        }
    }
    assert_eq!(ground.stat("record_overflow"), 0, "one frontend needs no more than its record");
}

/// Rows beyond the record are written when they change, and the record's own entries are given to the living.
#[test]
fn what_overflows_is_written_once_and_entries_of_the_dead_are_used_again() {
    let lab = Lab::new(1).unwrap();
    let objects = many(&lab, 16);
    let ground = Ground::on(lab, &objects, &[]);
    let pod = ground.lab.pod(0);
    let ports = (9000..9016).flat_map(|port| [pod.v4(port), pod.v6(port)]);
    let _server = Service::new("pod-a", ports).udp_only().start(&pod.namespace).unwrap();
    let client = ground.lab.node().client().unwrap();
    for way in 0..3 {
        let socket = client.udp(Family::of(at(0)[way])).unwrap();
        let say = |n: u8| assert_eq!(ask(&socket, Some(at(n)[way])), (at(n)[way], "pod-a".into()));
        let before = ground.stat("record_overflow");
        (0..10).for_each(say);
        assert_eq!(ground.stat("record_overflow") - before, 3);
        (0..3).for_each(|_| (0..10).for_each(say));
        assert_eq!(ground.stat("record_overflow") - before, 3, "what is right is not written again");
        // A direct dial of one that overflowed, and the service again.
        for _ in 0..2 {
            let pod = direct(&ground, 9009)[way];
            assert_eq!(ask(&socket, Some(pod)).0, pod);
            say(9);
        }
        let before = ground.stat("record_overflow");
        (0..3).for_each(|n| ground.delete(&format!("s{n}")));
        (10..13).for_each(say);
        (3..13).for_each(say);
        assert_eq!(ground.stat("record_overflow"), before, "three entries were free to take");
        (13..16).for_each(say);
        assert!(ground.stat("record_overflow") > before);
        (0..3).for_each(|n| ground.apply(&objects[n]));
    }
}

/// Connections of MPTCP are no rarer to be remembered than others.
#[test]
fn an_mptcp_connection_is_not_forgotten_for_thousands_of_later_ones() {
    let ground = one(Lab::new(1).unwrap(), &[]);
    let pod = ground.lab.pod(0);
    let _server = pod.service(8080).mptcp().start(&pod.namespace).unwrap();
    let client = ground.lab.node().client().unwrap();
    let held = web().map(|to| {
        let socket = client.socket(Family::of(to), Sort::Mptcp).unwrap();
        socket.connect(to).unwrap();
        (socket, to)
    });
    for _ in 0..6000 {
        let socket = client.socket(Family::V4, Sort::Mptcp).unwrap();
        socket.set(beeline_harness::Setting::Linger0).unwrap();
        socket.connect(web()[0]).unwrap();
    }
    for (socket, to) in &held {
        assert_eq!(socket.peer().unwrap(), *to);
    }
}

/// Kept out of the way of `many`, whose first backend stands at 9000.
#[test]
fn a_direct_connect_among_many_services() {
    let lab = Lab::new(1).unwrap();
    let mut objects = many(&lab, 10);
    objects.push(Object::service("last", 40).endpoints(9100, &[Endpoint::of(lab.pod(0), "node-1")]));
    let ground = Ground::on(lab, &objects, &[]);
    let pod = ground.lab.pod(0);
    let ports = (9000..9010).chain([9100]).flat_map(|port| [pod.v4(port), pod.v6(port)]);
    let _server = Service::new("pod-a", ports).udp_only().start(&pod.namespace).unwrap();
    let client = ground.lab.node().client().unwrap();
    let last = ways("10.96.0.40", "fd00:96::40", 80);
    for (way, last) in last.into_iter().enumerate() {
        let socket = client.udp(Family::of(last)).unwrap();
        (0..10).for_each(|n| drop(ask(&socket, Some(at(n)[way]))));
        assert_eq!(ask(&socket, Some(last)).0, last);
        let pod = direct(&ground, 9100)[way];
        socket.connect(pod).unwrap();
        assert_eq!((socket.peer().unwrap(), ask(&socket, None).0), (pod, pod));
    }
}
