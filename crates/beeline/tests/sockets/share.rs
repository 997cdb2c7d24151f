//! Shares: no pod can use up the memory that the BPF programs allocate for all pods.

use crate::address_kinds::assert_resolved;
use crate::agent::web;
use crate::fixture::{AgentFixture, ManifestFile, wait_until};
use beeline_datapath::share::{ShareTable, ShareUsage};
use beeline_harness::{Cgroup, Client, DialKind, DialRequest, Errno, Socket, SocketFamily, TestNetwork, TestProgram};
use serde_json::json;
use std::time::Duration;

const UDP_RECORD_BYTES: u64 = 704;
const RESERVE: u64 = 256 << 10;

/// A cgroup at the level of shares, which without pods is two levels below the agent's cgroup.
fn share(fixture: &AgentFixture, name: &str) -> Vec<Cgroup> {
    let outer = fixture.network.cgroup().child(name).unwrap();
    let inner = outer.child("share").unwrap();
    vec![outer, inner]
}

fn fixture_with_affinity(seconds: u32, args: &[&str]) -> AgentFixture {
    let network = TestNetwork::new(3).unwrap();
    let affinity = json!({
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": seconds } },
    });
    let pods: Vec<_> = (0..3).map(|n| (network.pod(n), "node-1")).collect();
    let web = ManifestFile::service("web", 10).with_spec(affinity).backed_by(&pods);
    AgentFixture::with_manifests(network, &[web], args)
}

fn usage(fixture: &AgentFixture) -> ShareUsage {
    ShareTable::new(&fixture.maps()).unwrap().usage()
}

/// Sends a datagram to the service from this many sockets. Returns the sockets of the sends that succeeded.
fn send_from_many<'a>(clients: &'a [Client], sockets: usize) -> (Vec<Socket<'a>>, Vec<Option<Errno>>) {
    let (mut open, mut errors) = (Vec::new(), Vec::new());
    for client in clients {
        for _ in 0..sockets / clients.len() {
            let socket = client.udp(SocketFamily::V4).unwrap();
            match socket.send_to(web()[0], "who\n") {
                Ok(_) => open.push(socket),
                Err(error) => errors.push(error.errno()),
            }
        }
    }
    (open, errors)
}

#[test]
fn sockets_of_one_pod_leave_room_for_the_sockets_of_others() {
    let network = TestNetwork::new(1).unwrap();
    let web_service = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web_service], &["--max-record-memory", "1"]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let (many, few) = (share(&fixture, "many"), share(&fixture, "few"));
    let client = |cgroups: &[Cgroup]| Client::start(Some(&fixture.network.node().namespace), cgroups.last()).unwrap();
    let clients: Vec<Client> = (0..4).map(|_| client(&many)).collect();
    let (open, errors) = send_from_many(&clients, 2400);
    // One share gets half of the limit, beside its reserve.
    let allowed = ((1 << 19) + RESERVE) / UDP_RECORD_BYTES;
    assert_eq!((open.len() as u64, errors.len() as u64), (allowed, 2400 - allowed));
    assert!(errors.iter().all(|errno| *errno == Some(Errno::ENOBUFS)), "{errors:?}");
    assert_eq!(usage(&fixture).record_bytes, allowed * UDP_RECORD_BYTES);
    // A connection needs no record to work; getpeername then returns the backend.
    let tcp = clients[0].tcp(SocketFamily::V4).unwrap();
    tcp.connect(web()[0]).unwrap();
    assert_eq!(tcp.peer().unwrap(), fixture.network.pod(0).v4(8080));
    drop(tcp);
    // Another pod is not affected.
    let others = [client(&few)];
    let (open_others, errors) = send_from_many(&others, 600);
    println!("{} of 600 sends of another pod failed", errors.len());
    assert_eq!((open_others.len(), errors.len()), (600, 0));
    assert_eq!(usage(&fixture).record_bytes, (allowed + 600) * UDP_RECORD_BYTES);
    // The memory is free again when the sockets are closed.
    drop(open);
    drop(clients);
    let bytes = || usage(&fixture).record_bytes;
    wait_until("the records of closed sockets are not counted", || bytes() == 600 * UDP_RECORD_BYTES);
    drop(open_others);
    wait_until("no record is counted", || bytes() == 0);
    assert_eq!(ShareTable::new(&fixture.maps()).unwrap().record_bytes_above_reserves(), 0);
    let again = [client(&many)];
    assert_eq!(send_from_many(&again, 100).0.len(), 100);
}

/// Dials the service from this many network namespaces, one after the other. A process needs no privilege for this: it may
/// create a user namespace first. The connect fails for lack of a route, after the hook.
const DIAL_FROM_NAMESPACES: &str = r"
import ctypes, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(int(sys.argv[1])):
    assert libc.unshare(0x40000000) == 0, ctypes.get_errno()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        s.connect((sys.argv[2], 80))
    except OSError:
        pass
    s.close()
print('done')
";

fn dial_from_namespaces(fixture: &AgentFixture, cgroups: &[Cgroup], count: usize) {
    let namespace = &fixture.network.node().namespace;
    let program = TestProgram::new("python3", Some(namespace), cgroups.last()).unwrap();
    let count = count.to_string();
    let program = program.args(["-c", DIAL_FROM_NAMESPACES, &count, &web()[0].ip().to_string()]);
    let output = program.limit(Duration::from_secs(300)).run().unwrap();
    assert_eq!(output.stdout.trim(), "done", "{output:?}");
}

#[test]
fn one_pod_cannot_evict_the_session_affinity_of_others() {
    const NAMESPACES: usize = 1500;
    let fixture = fixture_with_affinity(3600, &["--max-affinity", "1024"]);
    let _servers: Vec<_> = (0..3).map(|n| fixture.network.pod(n).serve(8080).unwrap()).collect();
    let cgroups: Vec<Vec<Cgroup>> = (0..3).map(|n| share(&fixture, &format!("pod-{n}"))).collect();
    let client = |n: usize| Client::start(Some(&fixture.network.pod(n).namespace), cgroups[n].last()).unwrap();
    let clients: Vec<Client> = (0..3).map(client).collect();
    let all = ["pod-a", "pod-b", "pod-c"];
    let backend =
        |client: &Client, kind| assert_resolved(client, &DialRequest::new(kind, web()[0]), &all).name().to_owned();
    let kinds = [DialKind::Tcp, DialKind::UdpConnected];
    let backends = || clients.iter().flat_map(|client| kinds.map(|kind| backend(client, kind))).collect::<Vec<_>>();
    let first = backends();
    let attacker = share(&fixture, "attacker");
    dial_from_namespaces(&fixture, &attacker, NAMESPACES);
    let lost: usize = (0..3).map(|_| backends().iter().zip(&first).filter(|(now, then)| now != then).count()).sum();
    println!("{lost} of {} dials went to another backend after {NAMESPACES} new clients", 3 * first.len());
    assert_eq!(lost, 0, "of {}", 3 * first.len());
    // The limit of all shares is half of the table, of which one share gets half; its reserve is 1/512.
    let allowed = 1024 / 4 + 1024 / 512;
    assert_eq!(fixture.stat("affinity_full"), NAMESPACES as u64 - allowed);
    assert_eq!(usage(&fixture).affinity_rows, allowed + first.len() as u64);
}

#[test]
fn affinity_rows_are_removed_after_their_timeout_and_with_their_cgroup() {
    let fixture = fixture_with_affinity(2, &["--max-affinity", "1024", "--sync-period", "1s"]);
    let _servers: Vec<_> = (0..3).map(|n| fixture.network.pod(n).serve(8080).unwrap()).collect();
    let rows = || usage(&fixture).affinity_rows;
    let cgroups = share(&fixture, "first");
    dial_from_namespaces(&fixture, &cgroups, 100);
    assert!(fixture.stat("affinity_full") == 0);
    wait_until("expired rows are removed", || rows() == 0);
    // Rows of a removed cgroup do not wait for their timeout.
    let affinity = json!({
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 86400 } },
    });
    let pods: Vec<_> = (0..3).map(|n| (fixture.network.pod(n), "node-1")).collect();
    fixture.apply(&ManifestFile::service("web", 10).with_spec(affinity).backed_by(&pods));
    let kept = Client::start(Some(&fixture.network.pod(0).namespace), cgroups.last()).unwrap();
    assert_resolved(&kept, &DialRequest::new(DialKind::Tcp, web()[0]), &["pod-a", "pod-b", "pod-c"]);
    let removed = share(&fixture, "second");
    dial_from_namespaces(&fixture, &removed, 100);
    assert_eq!(rows(), 101);
    drop(removed);
    wait_until("the rows of the removed cgroup are removed", || rows() == 1);
}
