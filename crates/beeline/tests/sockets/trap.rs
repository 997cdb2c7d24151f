//! The traps that one machine can show: sockets that are used in other ways than connect, send, receive, close.

use crate::ground::{Endpoint, Ground, Object};
use crate::kind::{TRANSPORTS, reach, ways};
use beeline_harness::{Client, Dial, Errno, Family, Identity, Kind, Lab, Service, Setting, Socket, Sort, mapped};
use serde_json::json;
use std::net::{IpAddr, SocketAddr};

const WEB: (&str, &str) = ("10.96.0.10", "fd00:96::10");

pub fn web() -> [SocketAddr; 3] {
    ways(WEB.0, WEB.1, 80)
}

/// One service, one backend: pod-a.
pub fn one(lab: Lab, args: &[&str]) -> Ground {
    let web = Object::service("web", 10).at(&[(lab.pod(0), "node-1")]);
    Ground::on(lab, &[web], args)
}

/// Asks who is there; the source that the socket names, and who it was.
pub fn ask(socket: &Socket<'_>, to: Option<SocketAddr>) -> (SocketAddr, String) {
    match to {
        Some(to) => socket.send_to(to, "who\n").unwrap(),
        None => socket.send("who\n").unwrap(),
    };
    let (from, bytes) = socket.receive().unwrap_or_else(|e| panic!("no answer from {to:?}: {e}"));
    let answer: Identity = String::from_utf8(bytes).unwrap().parse().unwrap();
    (from.unwrap(), answer.name)
}

#[test]
fn every_way_to_dial() {
    let ground = one(Lab::new(2).unwrap(), &[]);
    let pod = ground.lab.pod(0);
    let _server = pod.service(8080).mptcp().start(&pod.namespace).unwrap();
    for client in [ground.lab.node().client().unwrap(), ground.lab.pod(1).client().unwrap()] {
        for kind in Kind::TCP.into_iter().chain(Kind::UDP) {
            web().iter().for_each(|to| drop(reach(&client, &Dial::new(kind, *to), &["pod-a"])));
        }
        for to in web() {
            let outcome = client.dial(&Dial::new(Kind::TcpTwice, to)).unwrap();
            assert_eq!(outcome.error, Some(("connect", Errno::EISCONN)), "{to}");
        }
    }
}

#[test]
fn a_refusal_reaches_every_way_to_dial() {
    let ground = Ground::on(Lab::new(1).unwrap(), &[Object::service("none", 10)], &[]);
    let client = ground.lab.node().client().unwrap();
    for kind in Kind::TCP.into_iter().chain(Kind::UDP) {
        for to in web() {
            let outcome = client.dial(&Dial::new(kind, to)).unwrap();
            assert_eq!(outcome.errno(), Some(Errno::ECONNREFUSED), "{kind:?} {to}: {outcome:?}");
        }
    }
}

/// connect(AF_UNSPEC) runs no hook: what the record says must not outlive it.
#[test]
fn after_a_disconnect_the_pod_is_shown_as_itself() {
    let ground = one(Lab::new(1).unwrap(), &[]);
    let pod = ground.lab.pod(0);
    let _server = pod.service(8080).mptcp().start(&pod.namespace).unwrap();
    let client = ground.lab.node().client().unwrap();
    let direct = [pod.v4(8080), pod.v6(8080), mapped(pod.v4(8080))];
    for (to, direct) in web().into_iter().zip(direct) {
        for sort in [Sort::Tcp, Sort::Mptcp, Sort::Udp] {
            let socket = client.socket(Family::of(to), sort).unwrap();
            socket.connect(to).unwrap();
            assert_eq!(socket.peer().unwrap(), to, "{sort:?}");
            socket.disconnect().unwrap();
            assert_eq!(socket.peer().unwrap_err().errno(), Some(Errno::ENOTCONN), "{sort:?} {to}");
            socket.connect(direct).unwrap();
            assert_eq!(socket.peer().unwrap(), direct, "{sort:?}");
        }
        // Connected elsewhere at once, and back.
        let socket = client.udp(Family::of(to)).unwrap();
        for peer in [to, direct, to, direct] {
            socket.connect(peer).unwrap();
            assert_eq!((socket.peer().unwrap(), ask(&socket, None)), (peer, (peer, "pod-a".into())));
        }
        // Connected, let go, and then sent to directly.
        socket.connect(to).unwrap();
        socket.disconnect().unwrap();
        assert_eq!(ask(&socket, Some(direct)).0, direct, "the record of a connection that is no more");
    }
}

/// Beside the first, each has a backend of its own at pod-a.
pub fn many(lab: &Lab, count: u8) -> Vec<Object> {
    let objects = (0..count).map(|n| {
        Object::service(&format!("s{n}"), 10 + n).endpoints(9000 + u16::from(n), &[Endpoint::of(lab.pod(0), "node-1")])
    });
    objects.collect()
}

pub fn at(number: u8) -> [SocketAddr; 3] {
    ways(&format!("10.96.0.{}", 10 + number), &format!("fd00:96::{}", 10 + number), 80)
}

#[test]
fn one_udp_socket_and_many_services() {
    let lab = Lab::new(2).unwrap();
    let mut objects = many(&lab, 20);
    // The last three have two backends each: the socket keeps the one that it met first.
    for (n, object) in objects.iter_mut().enumerate().skip(17) {
        let both = [Endpoint::of(lab.pod(0), "node-1"), Endpoint::of(lab.pod(1), "node-1")];
        *object = Object::service(&format!("s{n}"), 10 + n as u8).endpoints(9000 + n as u16, &both);
    }
    let ground = Ground::on(lab, &objects, &[]);
    let servers = |pod: usize| {
        let pod = ground.lab.pod(pod);
        let ports = (9000..9020).flat_map(|port| [pod.v4(port), pod.v6(port)]);
        Service::new(pod.name.clone(), ports).udp_only().start(&pod.namespace).unwrap()
    };
    let _servers = [servers(0), servers(1)];
    let client = ground.lab.node().client().unwrap();
    for way in 0..3 {
        let family = if way == 0 { Family::V4 } else { Family::V6 };
        // Few services fit into the socket's own record.
        let socket = client.udp(family).unwrap();
        let before = ground.stat("record_overflow");
        for n in [0, 1, 0, 1, 5, 0, 6] {
            assert_eq!(ask(&socket, Some(at(n)[way])).0, at(n)[way]);
        }
        assert_eq!(ground.stat("record_overflow"), before);
        // Many do not, and are shown all the same.
        let mut kept: Vec<Option<String>> = vec![None; 20];
        for _ in 0..4 {
            for n in 0..20 {
                let (from, name) = ask(&socket, Some(at(n)[way]));
                assert_eq!(from, at(n)[way]);
                let first = kept[usize::from(n)].get_or_insert(name.clone());
                assert_eq!(*first, name, "one socket keeps its backend for one frontend: {}", at(n)[way]);
            }
        }
        assert!(ground.stat("record_overflow") > before);
        // All at once, answers in any order.
        for n in 0..20 {
            socket.send_to(at(n)[way], "who\n").unwrap();
        }
        let mut from: Vec<SocketAddr> = (0..20).map(|_| socket.receive().unwrap().0.unwrap()).collect();
        from.sort();
        assert_eq!(from, (0..20).map(|n| at(n)[way]).collect::<Vec<_>>());
    }
    assert_eq!((ground.stat("send_failed"), ground.stat("record_failed")), (0, 0));
}

#[test]
fn two_addresses_of_one_backend_last_dialled_wins() {
    let lab = Lab::new(2).unwrap();
    let place = |n: u8, pod: usize| Object::service(&format!("s{n}"), 10 + n).at(&[(lab.pod(pod), "node-1")]);
    let (first, second, moved) = (place(0, 0), place(1, 1), place(1, 0));
    let ground = Ground::on(lab, &[first, second], &[]);
    let _servers = [ground.lab.pod(0).serve(8080).unwrap(), ground.lab.pod(1).serve(8080).unwrap()];
    let client = ground.lab.node().client().unwrap();
    let sockets: Vec<Socket<'_>> = at(0).iter().map(|to| client.udp(Family::of(*to)).unwrap()).collect();
    for (way, socket) in sockets.iter().enumerate() {
        assert_eq!(ask(socket, Some(at(0)[way])), (at(0)[way], "pod-a".into()));
        assert_eq!(ask(socket, Some(at(1)[way])), (at(1)[way], "pod-b".into()));
    }
    // The second service moves to the backend of the first.
    ground.apply(&moved);
    for (way, socket) in sockets.iter().enumerate() {
        for n in [1, 0, 1, 1, 0, 0, 1] {
            assert_eq!(ask(socket, Some(at(n)[way])), (at(n)[way], "pod-a".into()), "way {way}");
        }
        // The same through a connection.
        socket.connect(at(0)[way]).unwrap();
        assert_eq!((ask(socket, None).0, socket.peer().unwrap()), (at(0)[way], at(0)[way]));
        assert_eq!(ask(socket, Some(at(1)[way])).0, at(1)[way]);
        assert_eq!(socket.peer().unwrap(), at(0)[way]);
        socket.connect(at(1)[way]).unwrap();
        assert_eq!((ask(socket, None).0, socket.peer().unwrap()), (at(1)[way], at(1)[way]));
    }
}

/// A frontend keeps its backend even where another one leads there and is shown.
#[test]
fn a_shared_backend_is_kept_by_both() {
    let lab = Lab::new(2).unwrap();
    let place = |n: u8, pods: &[usize]| {
        let at: Vec<_> = pods.iter().map(|pod| (lab.pod(*pod), "node-1")).collect();
        Object::service(&format!("s{n}"), 10 + n).at(&at)
    };
    let objects = [place(0, &[0, 1]), place(1, &[0]), place(2, &[1])];
    let ground = Ground::on(lab, &objects, &[]);
    let _servers = [ground.lab.pod(0).serve(8080).unwrap(), ground.lab.pod(1).serve(8080).unwrap()];
    let client = ground.lab.node().client().unwrap();
    for way in 0..3 {
        let socket = client.udp(Family::of(at(0)[way])).unwrap();
        let first = ask(&socket, Some(at(0)[way]));
        for _ in 0..8 {
            assert_eq!(ask(&socket, Some(at(1)[way])), (at(1)[way], "pod-a".into()));
            assert_eq!(ask(&socket, Some(at(2)[way])), (at(2)[way], "pod-b".into()));
            assert_eq!(ask(&socket, Some(at(0)[way])), first);
        }
    }
}

/// sendto() with the very address that the socket is connected to must not go to another backend: the kernel would drop
/// its answer.
#[test]
fn sendto_on_a_connected_socket_stays_with_its_backend() {
    let lab = Lab::new(2).unwrap();
    let web = Object::service("web", 10).at(&[(lab.pod(0), "node-1"), (lab.pod(1), "node-1")]);
    let ground = Ground::on(lab, &[web], &[]);
    let _servers = [ground.lab.pod(0).serve(8080).unwrap(), ground.lab.pod(1).serve(8080).unwrap()];
    let client = ground.lab.node().client().unwrap();
    for to in self::web() {
        for _ in 0..4 {
            let socket = client.udp(Family::of(to)).unwrap();
            socket.connect(to).unwrap();
            let (_, name) = ask(&socket, None);
            (0..4).for_each(|_| assert_eq!(ask(&socket, Some(to)), (to, name.clone())));
        }
    }
}

/// A hostNetwork pod whose address and port are another service's NodePort: a plain send() on the connected socket runs
/// the send hook with that address where the socket is AF_INET6 and the peer IPv4.
#[test]
fn a_connected_send_is_no_new_dial() {
    let lab = Lab::new(1).unwrap();
    let web = Object::service("web", 10).endpoints(30090, &[Endpoint::of(lab.node(), "node-1")]);
    let other = Object::service("other", 11).external(30090, &[], &[]).at(&[(lab.pod(0), "node-1")]);
    let ground = Ground::on(lab, &[web, other], &[]);
    let _servers = [ground.lab.pod(0).serve(8080).unwrap(), ground.lab.node().serve(30090).unwrap()];
    let client = ground.lab.node().client().unwrap();
    for to in self::web() {
        let socket = client.udp(Family::of(to)).unwrap();
        socket.connect(to).unwrap();
        for _ in 0..3 {
            assert_eq!(ask(&socket, None), (to, "node-1".into()), "{to}");
            assert_eq!(socket.peer().unwrap(), to);
        }
    }
    assert_eq!(ground.counters("default/other/udp/UDP").dials, 0);
}

#[test]
fn a_socket_bound_to_loopback_or_a_device() {
    let ground = one(Lab::new(1).unwrap(), &[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let _outside = ground.outside(&web()[..2]);
    let client = ground.lab.node().client().unwrap();
    let before = ground.stat("bound_loopback");
    for kind in TRANSPORTS {
        for (to, from) in web().into_iter().zip(["127.0.0.1", "::1", "::ffff:127.0.0.1"]) {
            let from = SocketAddr::new(from.parse::<IpAddr>().unwrap(), 0);
            let outcome = client.dial(&Dial::new(kind, to).bound(from).patience_ms(200)).unwrap();
            // Without us such a packet leaves by no route, or nobody answers it; a refusal would be ours.
            assert!(outcome.error.is_some_and(|(_, errno)| errno != Errno::ECONNREFUSED), "{kind:?} {to}: {outcome:?}");
            assert_ne!(outcome.name(), "pod-a");
        }
        for to in web() {
            reach(&client, &Dial::new(kind, to).device("cni0"), &["pod-a"]);
            let outcome = client.dial(&Dial::new(kind, to).device("lo").patience_ms(200)).unwrap();
            assert_eq!(outcome.name(), "", "the device is kept: {kind:?} {to}: {outcome:?}");
        }
    }
    assert!(ground.stat("bound_loopback") >= before + 9);
    assert_eq!(ground.counters("default/web/tcp/TCP").dials, 6);
}

#[test]
fn raw_and_ping_sockets_are_left_alone() {
    let ground = one(Lab::new(1).unwrap(), &[]);
    let _outside = ground.outside(&web()[..2]);
    let client = ground.lab.node().client().unwrap();
    for kind in [Kind::Ping, Kind::Raw] {
        for to in &web()[..2] {
            // Port 80 for the hook's sake; the kernel ignores it, and pings what it was told to.
            // An echo may be lost while neighbours are found.
            let dial = Dial::new(kind, *to).patience_ms(500);
            let outcome = (0..6).map(|_| client.dial(&dial).unwrap()).find(|o| o.error.is_none());
            let outcome = outcome.unwrap_or_else(|| panic!("{kind:?} {to}: no echo"));
            assert_eq!(outcome.peer.map(|p| p.ip()), Some(to.ip()), "{kind:?} {to}: {outcome:?}");
            assert_eq!(outcome.from.map(|p| p.ip()), Some(to.ip()), "{kind:?} {to}: {outcome:?}");
        }
    }
}

#[test]
fn without_localhost_node_ports_the_any_address_is_left_alone() {
    let lab = Lab::new(1).unwrap();
    let web = Object::service("web", 10).external(30080, &[], &[]).at(&[(lab.pod(0), "node-1")]);
    let ground = Ground::on(lab, &[web], &[]);
    let loopback = ways("127.0.0.1", "::1", 30080);
    let _own = Service::new("own", loopback[..2].to_vec()).start(&ground.lab.node().namespace).unwrap();
    let client = ground.lab.node().client().unwrap();
    for to in ways("0.0.0.0", "::", 30080).into_iter().chain(loopback) {
        for kind in TRANSPORTS {
            assert_eq!(client.dial(&Dial::new(kind, to)).unwrap().name(), "own", "{kind:?} {to}");
        }
    }
}

fn affine(lab: &Lab, seconds: u32, pods: &[usize]) -> Object {
    let config = json!({
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": seconds } },
    });
    let at: Vec<_> = pods.iter().map(|n| (lab.pod(*n), "node-1")).collect();
    Object::service("web", 10).external(30080, &["203.0.113.1", "2001:db8::1"], &["198.51.100.1"]).spec(config).at(&at)
}

#[test]
fn a_client_is_kept_to_its_backend() {
    let lab = Lab::new(4).unwrap();
    let pods = ["pod-a", "pod-b", "pod-c"];
    let (all, short) = (affine(&lab, 60, &[0, 1, 2]), affine(&lab, 1, &[0, 1, 2]));
    let without = |gone: usize| affine(&lab, 60, &[0, 1, 2].into_iter().filter(|n| *n != gone).collect::<Vec<_>>());
    let without: Vec<Object> = (0..3).map(without).collect();
    let ground = Ground::on(lab, &[all], &[]);
    let _servers: Vec<_> = (0..3).map(|n| ground.lab.pod(n).serve(8080).unwrap()).collect();
    let client = ground.lab.node().client().unwrap();
    let names = |client: &Client, kind| -> Vec<String> {
        let to = [web()[0], web()[2], "172.31.0.11:30080".parse().unwrap(), "203.0.113.1:80".parse().unwrap()];
        to.iter().map(|to| reach(client, &Dial::new(kind, *to), &pods).name().to_owned()).collect()
    };
    // One client, one service port, whichever address.
    let first = names(&client, Kind::Tcp)[0].clone();
    (0..3).for_each(|_| assert_eq!(names(&client, Kind::Tcp), vec![first.clone(); 4]));
    assert_eq!(ground.counters("default/web/tcp/TCP").affinity_hits, 15);
    // UDP is another service port, another pod another client.
    let udp = names(&client, Kind::UdpConnected);
    assert_eq!(names(&client, Kind::UdpSendTo), vec![udp[0].clone(); 4]);
    let other = ground.lab.pod(3).client().unwrap();
    let others = names(&other, Kind::Tcp);
    assert_eq!(others, vec![others[0].clone(); 4]);
    // Its backend goes: another, which is kept then, also when the first is back.
    let gone = pods.iter().position(|p| *p == first).unwrap();
    ground.apply(&without[gone]);
    let second = names(&client, Kind::Tcp)[0].clone();
    assert_ne!(second, first);
    assert_eq!(names(&client, Kind::Tcp), vec![second.clone(); 4]);
    // It expires: no hit after a second, a hit right after.
    ground.apply(&short);
    names(&client, Kind::Tcp);
    let hits = || ground.counters("default/web/tcp/TCP").affinity_hits;
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let before = hits();
    reach(&client, &Dial::new(Kind::Tcp, web()[0]), &pods);
    assert_eq!(hits(), before);
    reach(&client, &Dial::new(Kind::Tcp, web()[0]), &pods);
    assert_eq!(hits(), before + 1);
}

/// A dial of TCP Fast Open, or one that the kernel makes by itself, is none of `reach`'s; this one asks the kernel.
#[test]
fn fast_open_carries_its_data_to_the_pod() {
    let ground = one(Lab::new(1).unwrap(), &[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    let passive = || {
        let text =
            ground.lab.pod(0).run_in(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        let found = lines.chunks(2).find_map(|p| Some(p[1][p[0].iter().position(|w| *w == "TCPFastOpenPassive")?]));
        found.unwrap().parse::<u64>().unwrap()
    };
    for kind in [Kind::FastOpenSend, Kind::FastOpenConnect] {
        for to in web() {
            let before = passive();
            reach(&client, &Dial::new(kind, to), &["pod-a"]);
            assert_eq!(passive(), before + 1, "{kind:?} {to}");
        }
    }
    // A socket that is reset at close leaves nothing behind that a later dial could meet.
    let socket = client.tcp(Family::V4).unwrap();
    socket.set(Setting::Linger0).unwrap();
    socket.fast_open(web()[0], "who\n").unwrap();
    assert_eq!(socket.peer().unwrap(), web()[0]);
}
