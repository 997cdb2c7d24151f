//! Connected UDP sockets whose backend is removed. `send()` on them runs no hook, so the agent destroys exactly these sockets,
//! in every network namespace.

use crate::address_kinds::address_forms;
use crate::fixture::{AgentFixture, EndpointSpec, ManifestFile, TIMEOUT, wait_until};
use beeline_harness::{Errno, ProbeConfig, Socket, SocketFamily, SocketType, TestNetwork};
use serde_json::json;
use std::net::SocketAddr;
use std::process::Command;

const OLD: (&str, &str) = ("10.96.0.10", "fd00:96::10");
const STAY: (&str, &str) = ("10.96.0.11", "fd00:96::11");

/// Errors of a destroyed socket: of receive and poll, and of a send that comes first and has no destination.
const DESTROYED_ERRORS: [Errno; 2] = [Errno::ECONNABORTED, Errno::EDESTADDRREQ];

fn old() -> [SocketAddr; 3] {
    address_forms(OLD.0, OLD.1, 80)
}

fn stay() -> [SocketAddr; 3] {
    address_forms(STAY.0, STAY.1, 80)
}

fn service(name: &str, number: u8, network: &TestNetwork, pods: &[usize]) -> ManifestFile {
    let at: Vec<_> = pods.iter().map(|n| (network.pod(*n), "node-1")).collect();
    ManifestFile::service(name, number).backed_by(&at)
}

fn is_destroyed(socket: &Socket<'_>) -> bool {
    socket.peer().is_err_and(|e| e.errno() == Some(Errno::ENOTCONN))
}

fn assert_answered(socket: &Socket<'_>, what: &str) {
    socket.send("who\n").unwrap_or_else(|e| panic!("{what}: {e}"));
    socket.receive().unwrap_or_else(|e| panic!("{what}: {e}"));
}

#[test]
fn exactly_the_stale_sockets_are_destroyed() {
    let network = TestNetwork::new(4).unwrap();
    let objects = [service("old", 10, &network, &[0]), service("stay", 11, &network, &[1])];
    let moved = service("old", 10, &network, &[1]);
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let network = &fixture.network;
    let _servers = [network.pod(0).serve(8080).unwrap(), network.pod(1).serve(8080).unwrap()];
    let clients =
        [network.node().client().unwrap(), network.pod(2).client().unwrap(), network.pod(3).client().unwrap()];
    let (mut stale, mut kept) = (Vec::new(), Vec::new());
    for client in &clients {
        for (to, other) in old().into_iter().zip(stay()) {
            let connected = |peers: &[SocketAddr]| {
                let socket = client.udp(SocketFamily::of(to)).unwrap();
                for peer in peers {
                    socket.connect(*peer).unwrap();
                }
                socket
            };
            let direct = if to == old()[1] { network.pod(0).v6(8080) } else { network.pod(0).v4(8080) };
            let direct = if to == old()[2] { beeline_harness::mapped(direct) } else { direct };
            stale.push(connected(&[to]));
            stale.push(connected(&[other, to]));
            kept.push((connected(&[other]), other));
            kept.push((connected(&[to, other]), other));
            kept.push((connected(&[to, direct]), direct));
            let tcp = client.socket(SocketFamily::of(to), SocketType::Tcp).unwrap();
            tcp.connect(to).unwrap();
            kept.push((tcp, to));
        }
    }
    // A socket that sent to the old backend, but never connected.
    let unconnected = clients[0].udp(SocketFamily::V4).unwrap();
    unconnected.send_to(old()[0], "who\n").unwrap();
    assert_eq!(unconnected.receive().unwrap().0, Some(old()[0]));
    stale.iter().for_each(|s| assert_answered(s, "before"));
    let probed = clients[1].udp(SocketFamily::V4).unwrap();
    probed.connect(old()[0]).unwrap();
    probed.start_probe(ProbeConfig { interval_ms: 5, limit_ms: 30_000 }).unwrap();

    let changed = beeline_harness::monotonic_ns();
    fixture.apply(&moved);
    let failure = probed.stop_probe(TIMEOUT.as_millis() as u64).unwrap().failure.expect("the socket is destroyed");
    assert!(DESTROYED_ERRORS.contains(&failure.errno), "{failure:?}");
    println!("destroyed {} ms after the change", (failure.at - changed) / 1_000_000);
    for socket in &stale {
        wait_until("a stale socket is destroyed", || is_destroyed(socket));
        assert_eq!(socket.poll(true, 0).unwrap().1, Some(Errno::ECONNABORTED), "the application gets an error");
    }
    for (socket, peer) in &kept {
        assert_eq!(socket.peer().unwrap(), *peer);
        assert_answered(socket, "a socket that is not stale");
    }
    unconnected.send_to(old()[0], "who\n").unwrap();
    assert_eq!(unconnected.receive().unwrap().0, Some(old()[0]));
    assert_eq!(fixture.json(&["status"])["counts"]["udpSocketsDestroyed"], stale.len() + 1);
    // The application can use the sockets again.
    for (n, socket) in stale.iter().enumerate() {
        socket.connect(old()[n / 2 % 3]).unwrap();
        assert_answered(socket, "connected again");
    }
}

#[test]
fn every_change_that_removes_a_backend_destroys_its_sockets() {
    let network = TestNetwork::new(2).unwrap();
    let objects = [service("old", 10, &network, &[0])];
    let endpoint = |conditions| EndpointSpec::of(network.pod(0), "node-1").with_conditions(conditions);
    let other = EndpointSpec::of(network.pod(1), "node-1");
    let with =
        |conditions| ManifestFile::service("old", 10).with_endpoints(8080, &[endpoint(conditions), other.clone()]);
    let (first, port) =
        (objects[0].clone(), ManifestFile::service("old", 10).with_endpoints(8081, &[endpoint(json!({}))]));
    let not_serving = with(json!({ "ready": false, "serving": false }));
    let removals = [
        ("not serving", Some(not_serving.clone())),
        ("another port", Some(port)),
        ("no endpoint", Some(ManifestFile::service("old", 10))),
        ("the service deleted", None),
    ];
    // publishNotReadyAddresses (ready and not serving), and a terminating pod that still serves.
    let not_ready = with(json!({ "ready": true, "serving": false, "terminating": true }));
    let ending = with(json!({ "ready": false, "serving": true, "terminating": true }));
    let fixture = AgentFixture::with_manifests(network, &objects, &[]);
    let _servers = [fixture.network.pod(0).serve(8080).unwrap(), fixture.network.pod(1).serve(8080).unwrap()];
    let client = fixture.network.node().client().unwrap();
    let connect = || {
        let socket = client.udp(SocketFamily::V4).unwrap();
        socket.connect(old()[0]).unwrap();
        assert_answered(&socket, "connected");
        socket
    };
    for (what, change) in removals {
        fixture.apply(&first);
        let socket = connect();
        match change {
            Some(object) => fixture.apply(&object),
            None => fixture.delete("old"),
        }
        wait_until(what, || is_destroyed(&socket));
    }
    for serving in [not_ready, ending] {
        fixture.apply(&first);
        let socket = connect();
        fixture.apply(&serving);
        std::thread::sleep(std::time::Duration::from_millis(700));
        assert_answered(&socket, "a backend that still serves");
        // The socket is destroyed when the backend stops serving.
        fixture.apply(&not_serving);
        wait_until("the socket of a backend that stopped serving is destroyed", || is_destroyed(&socket));
    }
}

#[test]
fn renaming_a_port_destroys_no_socket() {
    let network = TestNetwork::new(2).unwrap();
    let (renamed, other) = (service("old", 10, &network, &[0]), service("stay", 11, &network, &[1]));
    let fixture = AgentFixture::with_manifests(network, &[renamed.clone(), other], &[]);
    let _servers = [fixture.network.pod(0).serve(8080).unwrap(), fixture.network.pod(1).serve(8080).unwrap()];
    let client = fixture.network.node().client().unwrap();
    let (kept, control) = (client.udp(SocketFamily::V4).unwrap(), client.udp(SocketFamily::V4).unwrap());
    kept.connect(old()[0]).unwrap();
    control.connect(stay()[0]).unwrap();
    fixture.apply(&renamed.with_udp_port_name("dns"));
    // The control socket is destroyed by a check of all sockets, which then has also checked this socket.
    fixture.apply(&ManifestFile::service("stay", 11));
    wait_until("the control is destroyed", || is_destroyed(&control));
    assert_answered(&kept, "the same backend under another name of its port");
}

/// The process with the socket is in another namespace, and the namespace of the socket has no name any more.
#[test]
fn sockets_in_a_namespace_without_a_process_are_destroyed() {
    let network = TestNetwork::new(2).unwrap();
    let fixture = AgentFixture::with_manifests(network, &[], &[]);
    let network = &fixture.network;
    fixture.apply(&service("old", 10, network, &[0]));
    let _server = network.pod(0).serve(8080).unwrap();
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
        \x20   except OSError as e: print('destroyed', e.errno, flush=True); break\n";
    let name = network.pod(1).namespace.name().to_owned();
    let path = format!("/run/netns/{name}");
    let mut program = network.node().program("python3").unwrap().args(["-", &path]).input(script).spawn().unwrap();
    program.wait_for("answered", TIMEOUT).unwrap();
    let removed = Command::new("ip").args(["netns", "del", &name]).status().unwrap();
    assert!(removed.success());
    fixture.apply(&service("old", 10, network, &[]));
    program.wait_for("destroyed", TIMEOUT).unwrap();
    let errno: i32 = program.stdout().trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(DESTROYED_ERRORS.contains(&Errno(errno)), "{errno}");
    // The test network removes the namespace by its name.
    assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
}
