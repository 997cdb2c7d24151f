//! Connected UDP sockets whose backend goes: `send()` on them never meets a hook again, so they are destroyed, in every
//! network namespace, and nothing else is.

use crate::ground::{Endpoint, Ground, Object, PATIENCE, eventually};
use crate::kind::ways;
use beeline_harness::{Errno, Family, Lab, Socket, Sort, Watch};
use serde_json::json;
use std::net::SocketAddr;
use std::process::Command;

const OLD: (&str, &str) = ("10.96.0.10", "fd00:96::10");
const STAY: (&str, &str) = ("10.96.0.11", "fd00:96::11");

/// What a destroyed socket says: by receive or poll, or by a send that comes first and no longer has an address.
const TOLD: [Errno; 2] = [Errno::ECONNABORTED, Errno::EDESTADDRREQ];

fn old() -> [SocketAddr; 3] {
    ways(OLD.0, OLD.1, 80)
}

fn stay() -> [SocketAddr; 3] {
    ways(STAY.0, STAY.1, 80)
}

fn service(name: &str, number: u8, lab: &Lab, pods: &[usize]) -> Object {
    let at: Vec<_> = pods.iter().map(|n| (lab.pod(*n), "node-1")).collect();
    Object::service(name, number).at(&at)
}

fn is_destroyed(socket: &Socket<'_>) -> bool {
    socket.peer().is_err_and(|e| e.errno() == Some(Errno::ENOTCONN))
}

fn works(socket: &Socket<'_>, what: &str) {
    socket.send("who\n").unwrap_or_else(|e| panic!("{what}: {e}"));
    socket.receive().unwrap_or_else(|e| panic!("{what}: {e}"));
}

#[test]
fn exactly_the_stale_sockets_are_destroyed() {
    let lab = Lab::new(4).unwrap();
    let objects = [service("old", 10, &lab, &[0]), service("stay", 11, &lab, &[1])];
    let moved = service("old", 10, &lab, &[1]);
    let ground = Ground::on(lab, &objects, &[]);
    let lab = &ground.lab;
    let _servers = [lab.pod(0).serve(8080).unwrap(), lab.pod(1).serve(8080).unwrap()];
    let clients = [lab.node().client().unwrap(), lab.pod(2).client().unwrap(), lab.pod(3).client().unwrap()];
    let (mut stale, mut spared) = (Vec::new(), Vec::new());
    for client in &clients {
        for (to, other) in old().into_iter().zip(stay()) {
            let connected = |peers: &[SocketAddr]| {
                let socket = client.udp(Family::of(to)).unwrap();
                for peer in peers {
                    socket.connect(*peer).unwrap();
                }
                socket
            };
            let direct = if to == old()[1] { lab.pod(0).v6(8080) } else { lab.pod(0).v4(8080) };
            let direct = if to == old()[2] { beeline_harness::mapped(direct) } else { direct };
            stale.push(connected(&[to]));
            stale.push(connected(&[other, to]));
            spared.push((connected(&[other]), other));
            spared.push((connected(&[to, other]), other));
            spared.push((connected(&[to, direct]), direct));
            let tcp = client.socket(Family::of(to), Sort::Tcp).unwrap();
            tcp.connect(to).unwrap();
            spared.push((tcp, to));
        }
    }
    // One that had sent to the old backend, and never connected.
    let unconnected = clients[0].udp(Family::V4).unwrap();
    unconnected.send_to(old()[0], "who\n").unwrap();
    assert_eq!(unconnected.receive().unwrap().0, Some(old()[0]));
    stale.iter().for_each(|s| works(s, "before"));
    let watched = clients[1].udp(Family::V4).unwrap();
    watched.connect(old()[0]).unwrap();
    watched.watch(Watch { every_ms: 5, limit_ms: 30_000 }).unwrap();

    let changed = beeline_harness::now();
    ground.apply(&moved);
    let failure = watched.watch_end(PATIENCE.as_millis() as u64).unwrap().failure.expect("it is cut off");
    assert!(TOLD.contains(&failure.errno), "{failure:?}");
    println!("destroyed {} ms after the change", (failure.at - changed) / 1_000_000);
    for socket in &stale {
        eventually("a stale socket is destroyed", || is_destroyed(socket));
        assert_eq!(socket.poll(true, 0).unwrap().1, Some(Errno::ECONNABORTED), "the application is told");
    }
    for (socket, peer) in &spared {
        assert_eq!(socket.peer().unwrap(), *peer);
        works(socket, "a socket that is not stale");
    }
    unconnected.send_to(old()[0], "who\n").unwrap();
    assert_eq!(unconnected.receive().unwrap().0, Some(old()[0]));
    assert_eq!(ground.json(&["status"])["counts"]["udpSocketsDestroyed"], stale.len() + 1);
    // What the application does next, works.
    for (n, socket) in stale.iter().enumerate() {
        socket.connect(old()[n / 2 % 3]).unwrap();
        works(socket, "dialled anew");
    }
}

#[test]
fn a_backend_goes_in_other_ways_too() {
    let lab = Lab::new(2).unwrap();
    let objects = [service("old", 10, &lab, &[0])];
    let endpoint = |conditions| Endpoint::of(lab.pod(0), "node-1").conditions(conditions);
    let other = Endpoint::of(lab.pod(1), "node-1");
    let with = |conditions| Object::service("old", 10).endpoints(8080, &[endpoint(conditions), other.clone()]);
    let (first, port) = (objects[0].clone(), Object::service("old", 10).endpoints(8081, &[endpoint(json!({}))]));
    let dead = with(json!({ "ready": false, "serving": false }));
    let goes = [
        ("not serving", Some(dead.clone())),
        ("another port", Some(port)),
        ("no endpoint", Some(Object::service("old", 10))),
        ("the service deleted", None),
    ];
    // publishNotReadyAddresses: ready, and not serving; and a pod that ends, but serves what it has.
    let not_ready = with(json!({ "ready": true, "serving": false, "terminating": true }));
    let ending = with(json!({ "ready": false, "serving": true, "terminating": true }));
    let ground = Ground::on(lab, &objects, &[]);
    let _servers = [ground.lab.pod(0).serve(8080).unwrap(), ground.lab.pod(1).serve(8080).unwrap()];
    let client = ground.lab.node().client().unwrap();
    let connect = || {
        let socket = client.udp(Family::V4).unwrap();
        socket.connect(old()[0]).unwrap();
        works(&socket, "connected");
        socket
    };
    for (what, change) in goes {
        ground.apply(&first);
        let socket = connect();
        match change {
            Some(object) => ground.apply(&object),
            None => ground.delete("old"),
        }
        eventually(what, || is_destroyed(&socket));
    }
    for stays in [not_ready, ending] {
        ground.apply(&first);
        let socket = connect();
        ground.apply(&stays);
        std::thread::sleep(std::time::Duration::from_millis(700));
        works(&socket, "a backend that still serves");
        // In the end it goes as well.
        ground.apply(&dead);
        eventually("the end of a backend that had been spared", || is_destroyed(&socket));
    }
}

#[test]
fn another_name_for_the_port_ends_no_socket() {
    let lab = Lab::new(2).unwrap();
    let (renamed, other) = (service("old", 10, &lab, &[0]), service("stay", 11, &lab, &[1]));
    let ground = Ground::on(lab, &[renamed.clone(), other], &[]);
    let _servers = [ground.lab.pod(0).serve(8080).unwrap(), ground.lab.pod(1).serve(8080).unwrap()];
    let client = ground.lab.node().client().unwrap();
    let (kept, control) = (client.udp(Family::V4).unwrap(), client.udp(Family::V4).unwrap());
    kept.connect(old()[0]).unwrap();
    control.connect(stay()[0]).unwrap();
    ground.apply(&renamed.rename_udp("dns"));
    // A look at the sockets has certainly happened when the other one's backend is gone.
    ground.apply(&Object::service("stay", 11));
    eventually("the control is destroyed", || is_destroyed(&control));
    works(&kept, "the same backend under another name of its port");
}

/// The process that holds the socket stands elsewhere, and the namespace has no name any more.
#[test]
fn a_namespace_without_a_process() {
    let lab = Lab::new(2).unwrap();
    let ground = Ground::on(lab, &[], &[]);
    let lab = &ground.lab;
    ground.apply(&service("old", 10, lab, &[0]));
    let _server = lab.pod(0).serve(8080).unwrap();
    let script = "import ctypes, os, socket, sys\n\
        setns = lambda fd: ctypes.CDLL(None).setns(fd, 0x40000000) == 0 or sys.exit('setns')\n\
        home = os.open('/proc/self/ns/net', 0)\n\
        setns(os.open(sys.argv[1], 0))\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.settimeout(0.1)\n\
        s.connect(('10.96.0.10', 80))\n\
        setns(home)\n\
        print('connected', flush=True)\n\
        while True:\n\
        \x20   try: s.send(b'who'); s.recv(99); print('answered', flush=True)\n\
        \x20   except TimeoutError: pass\n\
        \x20   except OSError as e: print('cut off', e.errno, flush=True); break\n";
    let name = lab.pod(1).namespace.name().to_owned();
    let path = format!("/run/netns/{name}");
    let mut program = lab.node().program("python3").unwrap().args(["-", &path]).input(script).spawn().unwrap();
    program.wait_for("answered", PATIENCE).unwrap();
    let gone = Command::new("ip").args(["netns", "del", &name]).status().unwrap();
    assert!(gone.success());
    ground.apply(&service("old", 10, lab, &[]));
    program.wait_for("cut off", PATIENCE).unwrap();
    let errno: i32 = program.stdout().trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(TOLD.contains(&Errno(errno)), "{errno}");
    // For the lab, which removes it by its name.
    assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
}
