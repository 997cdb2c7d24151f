//! The grace period of stale UDP sockets: a policy is deleted while requests to its backend are in flight.

use crate::fixture::{AgentFixture, ManifestFile, TIMEOUT, wait_until};
use beeline_harness::{Errno, LoadConfig, LoadKind, LoadReport, SocketFamily, TestHost, TestNetwork};
use serde_json::json;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FRONTEND: &str = "10.96.0.10:80";
/// The backends answer after this time, so that requests are in flight whenever the policy changes.
const DELAY: Duration = Duration::from_millis(300);
const THREADS: usize = 16;

/// A UDP server that answers each datagram after `DELAY`.
struct SlowServer {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl SlowServer {
    fn start(host: &TestHost, port: u16) -> SlowServer {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let socket = host.run_in(|| UdpSocket::bind((host.v4, port))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let (name, stopped, count) = (host.name.clone(), stop.clone(), answered.clone());
        let thread = std::thread::spawn(move || {
            let (mut due, mut buffer) = (std::collections::VecDeque::<(Instant, SocketAddr)>::new(), [0; 64]);
            while !stopped.load(Ordering::Relaxed) {
                match socket.recv_from(&mut buffer) {
                    Ok((_, from)) => due.push_back((Instant::now() + DELAY, from)),
                    Err(e) => assert!(matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused), "{e}"),
                }
                while let Some((_, to)) = due.front().copied().filter(|(at, _)| *at <= Instant::now()) {
                    due.pop_front();
                    count.fetch_add(
                        u64::from(socket.send_to(format!("{name}\n").as_bytes(), to).is_ok()),
                        Ordering::Relaxed,
                    );
                }
            }
        });
        SlowServer { stop, answered, thread: Some(thread) }
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for SlowServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// A LocalRedirectPolicy on the UDP port of the Service `old` to pod-a, and the pod.
fn redirect(pod: &TestHost) -> String {
    let policy = json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "LocalRedirectPolicy", "metadata": { "name": "near", "namespace": "default" },
        "spec": {
            "frontend": { "serviceMatcher": { "serviceName": "old", "toPorts": [{ "name": "udp", "port": 80, "protocol": "UDP" }] } },
            "backend": { "endpointSelector": { "matchLabels": { "app": "near" } },
                         "toPorts": [{ "name": "udp", "port": 8080, "protocol": "UDP" }] },
        },
    });
    format!("{}---\n{policy}\n", pod_manifest(pod))
}

fn pod_manifest(pod: &TestHost) -> String {
    let ip = pod.v4.to_string();
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "near", "namespace": "default", "labels": { "app": "near" } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "app", "image": "none" }] },
        "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
                    "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    format!("---\n{object}\n")
}

/// Deletes the policy while `THREADS` clients each have a request in flight, and returns what the clients saw.
fn delete_the_policy_under_load(grace_period: &str) -> (LoadReport, u64) {
    let network = TestNetwork::new(3).unwrap();
    let service = ManifestFile::service("old", 10).backed_by(&[(network.pod(1), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[service], &["--udp-grace-period", grace_period]);
    let (near, far) = (fixture.network.pod(0), fixture.network.pod(1));
    let servers = [SlowServer::start(near, 8080), SlowServer::start(far, 8080)];
    fixture.write_file("policy.yaml", redirect(near));
    fixture.wait_until_programmed();
    let client = fixture.network.pod(2).client().unwrap();
    let targets: [SocketAddr; 1] = [FRONTEND.parse().unwrap()];
    let load = LoadConfig { threads: THREADS, ..LoadConfig::new(LoadKind::UdpConnected, targets) };
    client.start_load(load).unwrap();
    wait_until("the policy's backend answers", || servers[0].answered() >= THREADS as u64);
    fixture.write_file("policy.yaml", pod_manifest(near));
    wait_until("the Service's backend answers", || servers[1].answered() >= 2 * THREADS as u64);
    let report = client.stop_load().unwrap();
    let destroyed = fixture.status()["counts"]["udpSocketsDestroyed"].as_u64().unwrap();
    (report, destroyed)
}

#[test]
fn answers_in_flight_arrive_when_a_policy_is_deleted() {
    let (report, destroyed) = delete_the_policy_under_load("10s");
    println!("grace period 10s: {} of {} answers lost, {destroyed} sockets destroyed", report.failed(), report.dials);
    assert_eq!(report.failed(), 0, "{report:?}");
    assert_eq!(report.answers.values().next().unwrap().len(), 2, "both backends answered: {report:?}");
}

/// The counter-test: without the grace period the same change loses answers.
#[test]
fn without_a_grace_period_answers_in_flight_are_lost() {
    let (report, destroyed) = delete_the_policy_under_load("off");
    println!("no grace period: {} of {} answers lost, {destroyed} sockets destroyed", report.failed(), report.dials);
    assert!(report.failed() > 0 && destroyed > 0, "{report:?}");
}

/// The backend answers all the time, and nothing else changes.
#[test]
fn a_stale_socket_is_destroyed_when_its_grace_period_ends() {
    let network = TestNetwork::new(3).unwrap();
    let service = ManifestFile::service("old", 10).backed_by(&[(network.pod(1), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[service], &["--udp-grace-period", "300ms"]);
    let near = fixture.network.pod(0);
    let _server = near.serve(8080).unwrap();
    fixture.write_file("policy.yaml", redirect(near));
    fixture.wait_until_programmed();
    let client = fixture.network.pod(2).client().unwrap();
    let socket = client.udp(SocketFamily::V4).unwrap();
    socket.connect(FRONTEND.parse().unwrap()).unwrap();
    fixture.write_file("policy.yaml", pod_manifest(near));
    wait_until("the socket is destroyed", || socket.peer().is_err_and(|e| e.errno() == Some(Errno::ENOTCONN)));
    let destroyed = || fixture.status()["counts"]["udpSocketsDestroyed"].as_u64();
    wait_until("the agent counts the socket", || destroyed() == Some(1));
}

/// The socket is destroyed as soon as its backend is gone; and the calls on it then fail with these errors.
#[test]
fn a_stale_socket_is_destroyed_when_its_backend_is_gone() {
    let network = TestNetwork::new(3).unwrap();
    let service = ManifestFile::service("old", 10).backed_by(&[(network.pod(1), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[service], &["--udp-grace-period", "1m"]);
    let near = fixture.network.pod(0);
    let _server = near.serve(8080).unwrap();
    fixture.write_file("policy.yaml", redirect(near));
    fixture.wait_until_programmed();
    let client = fixture.network.pod(2).client().unwrap();
    let connect = || {
        let socket = client.udp(SocketFamily::V4).unwrap();
        socket.connect(FRONTEND.parse().unwrap()).unwrap();
        socket.send("who\n").unwrap();
        socket.receive().unwrap();
        socket
    };
    let sockets = [connect(), connect(), connect(), connect()];
    fixture.write_file("policy.yaml", pod_manifest(near));
    fixture.wait_until_programmed();
    for socket in &sockets {
        socket.send("who\n").unwrap();
        socket.receive().expect("the old backend answers in the grace period");
    }
    let started = Instant::now();
    // The pod is not ready any more: its sockets do not wait for the end of the grace period. The removal of another UDP
    // backend makes the agent search.
    fixture.write_file("policy.yaml", pod_manifest(near).replace("\"True\"", "\"False\""));
    fixture.apply(&ManifestFile::service("old", 10));
    let gone = |n: usize| sockets[n].peer().is_err_and(|e| e.errno() == Some(Errno::ENOTCONN));
    wait_until("the sockets are destroyed", || (0..sockets.len()).all(gone));
    assert!(started.elapsed() < TIMEOUT);
    let (send, receive) = (sockets[0].send("who\n").map(drop), sockets[1].receive().map(drop));
    println!("send: {send:?}, receive: {receive:?}");
    assert_eq!(send.unwrap_err().errno(), Some(Errno::EDESTADDRREQ));
    assert_eq!(receive.unwrap_err().errno(), Some(Errno::ECONNABORTED));
    assert_eq!(sockets[2].poll(false, 0).unwrap(), (true, Some(Errno::ECONNABORTED)));
    assert_eq!(sockets[2].send("who\n").map(drop).unwrap_err().errno(), Some(Errno::EDESTADDRREQ));
    // The order does not matter: a send does not consume the error that the next receive reports.
    assert_eq!(sockets[0].receive().map(drop).unwrap_err().errno(), Some(Errno::ECONNABORTED));
    sockets[3].connect(FRONTEND.parse().unwrap()).expect_err("the Service has no backend");
}
