//! Shares: no pod can use up the memory that the BPF programs allocate for all pods.

use crate::address_kinds::assert_resolved;
use crate::agent::web;
use crate::fixture::{AgentFixture, ManifestFile, TIMEOUT, wait_until};
use beeline_datapath::object::LoadConstants;
use beeline_datapath::recount::Recounter;
use beeline_datapath::share::{ShareTable, ShareUsage};
use beeline_harness::{
    Cgroup, Client, DialKind, DialRequest, Errno, LoadConfig, LoadKind, Socket, SocketFamily, TestNetwork, TestProgram,
};
use beeline_model::row::Sizes;
use serde_json::json;
use std::time::{Duration, Instant};

const TCP_RECORD_BYTES: u64 = 320;
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
    let fixture = fixture_with_web(&["--max-record-memory", "1"]);
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

fn fixture_with_web(args: &[&str]) -> AgentFixture {
    let network = TestNetwork::new(1).unwrap();
    let web_service = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]);
    AgentFixture::with_manifests(network, &[web_service], args)
}

fn detach_release_hook(fixture: &AgentFixture) {
    libbpf_rs::Link::open(fixture.link("sock_release")).unwrap().detach().unwrap();
}

#[test]
fn sockets_that_close_without_the_release_hook_do_not_stay_charged() {
    const SOCKETS: usize = 600;
    let mut fixture = fixture_with_web(&["--sync-period", "1s"]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let (many, few) = (share(&fixture, "many"), share(&fixture, "few"));
    let namespace = &fixture.network.node().namespace;
    let client = |cgroups: &[Cgroup]| Client::start(Some(namespace), cgroups.last()).unwrap();
    let (clients, others) = ([client(&many)], [client(&few)]);
    let (kept, _) = send_from_many(&others, 100);
    let tcp = others[0].tcp(SocketFamily::V4).unwrap();
    tcp.connect(web()[0]).unwrap();
    let live = 100 * UDP_RECORD_BYTES + TCP_RECORD_BYTES;
    let (open, _) = send_from_many(&clients, SOCKETS);
    assert_eq!(usage(&fixture).record_bytes, live + SOCKETS as u64 * UDP_RECORD_BYTES);
    assert!(ShareTable::new(&fixture.maps()).unwrap().record_bytes_above_reserves() > 0);
    // While an agent runs, it attaches the hook again.
    detach_release_hook(&fixture);
    drop(open);
    let is_exact = |fixture: &AgentFixture| {
        let table = ShareTable::new(&fixture.maps()).unwrap();
        (table.usage().record_bytes, table.record_bytes_above_reserves()) == (live, 0)
    };
    wait_until("the records of closed sockets are not counted", || is_exact(&fixture));
    fixture.running().wait_for("re-attached", TIMEOUT).unwrap();

    // While no agent runs, nobody does.
    let (open, _) = send_from_many(&clients, SOCKETS);
    fixture.stop();
    detach_release_hook(&fixture);
    drop(open);
    assert_eq!(usage(&fixture).record_bytes, live + SOCKETS as u64 * UDP_RECORD_BYTES, "nothing is taken back");
    fixture.start(&["--sync-period", "1h"]);
    wait_until("the next agent takes the charge back", || is_exact(&fixture));
    drop((kept, tcp));
    wait_until("no record is counted", || usage(&fixture).record_bytes == 0);
}

/// A socket that is opened or closed during a recount must not be taken for an error: the charge would be too low for ever.
#[test]
fn a_recount_beside_sockets_that_open_and_close_changes_no_correct_charge() {
    let fixture = fixture_with_web(&["--sync-period", "1h"]);
    let pod = fixture.network.pod(0);
    let _server = pod.echo_service(8080).banner().start(&pod.namespace).unwrap();
    let cgroups = share(&fixture, "pod");
    let clients = [(); 3].map(|()| Client::start(Some(&fixture.network.node().namespace), cgroups.last()).unwrap());
    let (kept, _) = send_from_many(&clients[..1], 400);
    let live = 400 * UDP_RECORD_BYTES;
    let sizes = Sizes::for_services(16);
    let constants = LoadConstants { shards: 1, ..Default::default() };
    let recounter = Recounter::new(&fixture.maps(), &sizes, 1, constants).unwrap();
    for (client, kind) in clients[1..].iter().zip([LoadKind::UdpUnconnected, LoadKind::Tcp]) {
        let load = LoadConfig { threads: 2, limit_ms: 60_000, ..LoadConfig::new(kind, [web()[0]]) };
        client.start_load(load).unwrap();
    }
    let (start, mut recounts, mut lowest) = (Instant::now(), 0, u64::MAX);
    while start.elapsed() < Duration::from_secs(5) {
        recounter.run().unwrap();
        recounts += 1;
        lowest = lowest.min(usage(&fixture).record_bytes);
    }
    let dials: u64 = clients[1..].iter().map(|client| client.stop_load().unwrap().dials).sum();
    println!("{recounts} recounts beside {dials} dials; lowest charge {lowest} of at least {live} bytes");
    assert!(recounts > 20 && dials > 1000, "{recounts} recounts, {dials} dials");
    assert!(lowest >= live, "{lowest} of {live} bytes were charged during the load");
    wait_until("only the open sockets are counted", || usage(&fixture).record_bytes == live);
    assert_eq!(recounter.run().unwrap(), 0, "nothing is left to correct");
    drop(kept);
    wait_until("no record is counted", || usage(&fixture).record_bytes == 0);
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
