//! The agent is stopped, started, killed, resized, and replaced by one whose tables have another layout, while clients dial
//! without pause. No dial may fail, and sockets and clients keep their backends.

mod fixture;

use beeline_datapath::affinity::AffinityTable;
use beeline_datapath::counter::CounterMaps;
use beeline_datapath::reap::SocketRecordReader;
use beeline_datapath::wire;
use beeline_harness::{Client, DialKind, DialRequest, Errno, LoadKind, ProbeConfig, Socket, SocketFamily, test_seed};
use beeline_model::Protocol;
use fixture::{AgentFixture, LoadSummary, PORT, RunningLoad, TestService, wait_until};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Three kinds of clients that dial one service with three backends.
struct RestartTest {
    fixture: AgentFixture,
    web: TestService,
    loads: Vec<RunningLoad>,
}

impl RestartTest {
    fn start(args: &[&str]) -> RestartTest {
        let (mut fixture, web) = (AgentFixture::new(), TestService::new("web", 1));
        let pods = fixture.start_backends("web", 10, 3);
        fixture.write_file("web.yaml", web.manifest(&pods));
        fixture.start(args);
        let (node, pod, targets) = (fixture.network.node(), fixture.network.pod(1), std::slice::from_ref(&web));
        let loads = vec![
            fixture.start_load(node, LoadKind::Tcp, targets),
            fixture.start_load(pod, LoadKind::UdpUnconnected, targets),
            fixture.start_load(node, LoadKind::UdpConnected, targets),
        ];
        RestartTest { fixture, web, loads }
    }

    /// How the agent started: `adopted`, `resized` or `rebuilt`.
    fn start_kind(&self) -> String {
        self.fixture.status()["kernel"]["start"].as_str().unwrap_or_default().to_owned()
    }

    fn finish(self, what: &str) {
        LoadSummary::collect(self.loads).assert_clean(what, 5_000);
    }
}

#[test]
fn a_restart_drops_no_dial_and_applies_changes_made_while_down() {
    let _alone = fixture::run_alone();
    let mut test = RestartTest::start(&[]);
    let (removed, added) = (TestService::new("removed", 2), TestService::new("added", 3));
    let (old, new) = (test.fixture.start_backends("removed", 20, 2), test.fixture.start_backends("added", 30, 2));
    test.fixture.write_file("removed.yaml", removed.manifest(&old));
    let node = |test: &RestartTest, target: &TestService| test.fixture.udp_answer(test.fixture.network.node(), target);
    wait_until("a new service answers", || node(&test, &removed) == "removed");
    let client = test.fixture.network.pod(1).client().unwrap();
    let held = ConnectedSocket::dial(&client, "connected before the stop", (test.web.address, PORT).into());
    let (before, pins) = (test.fixture.rows(), pins(&test.fixture));

    test.fixture.stop();
    for _ in 0..20 {
        assert_eq!(node(&test, &removed), "removed", "without an agent the tables continue to serve");
    }
    let left_by_a_killed_agent = test.fixture.network.cgroup().path().join("beeline-self-test-1");
    std::fs::create_dir(&left_by_a_killed_agent).unwrap();
    std::fs::remove_file(test.fixture.pin_dir().join("records-3/udp_overflow")).unwrap(); // As if this version had added the map.
    test.fixture.start(&[]);
    assert_eq!(test.start_kind(), "adopted");
    assert_eq!(test.fixture.rows(), before, "a start without changes writes nothing");
    let now = self::pins(&test.fixture);
    let moved: Vec<_> = pins.iter().filter(|(path, inode)| now.get(*path) != Some(inode)).collect();
    assert!(moved.len() == 1 && moved[0].0.ends_with("udp_overflow"), "a pin of the same map stays: {moved:?}");
    assert!(!left_by_a_killed_agent.exists(), "the cgroup that a killed agent left is removed");
    held.assert_alive();

    test.fixture.kill();
    test.fixture.remove_file("removed.yaml");
    test.fixture.write_file("added.yaml", added.manifest(&new));
    let moved_aside = test.fixture.manifests().path().with_file_name("moved-aside");
    std::fs::rename(test.fixture.manifests().path(), &moved_aside).unwrap();
    test.fixture.spawn(Path::new(fixture::BEELINE), &[]);
    wait_until("the agent reports the unreadable directory", || test.fixture.status()["source"]["error"].is_string());
    assert_eq!(node(&test, &removed), "removed", "nothing is deleted before the source has synced");
    std::fs::rename(&moved_aside, test.fixture.manifests().path()).unwrap();
    wait_until("a service that was deleted while the agent was down is removed", || node(&test, &removed).is_empty());
    wait_until("a service that was added while the agent was down answers", || node(&test, &added) == "added");
    drop(held);
    drop(client);
    test.finish("stop, start, kill -9, changes while down");
}

/// Every pinned map with its inode, which distinguishes pins.
fn pins(fixture: &AgentFixture) -> BTreeMap<PathBuf, u64> {
    let folders = std::fs::read_dir(fixture.pin_dir()).unwrap().flatten().map(|e| e.path()).filter(|p| p.is_dir());
    let maps = folders.filter(|p| !p.ends_with("links")).flat_map(|p| std::fs::read_dir(p).unwrap().flatten());
    maps.map(|e| (e.path(), e.metadata().unwrap().ino())).collect()
}

#[test]
fn a_file_that_becomes_invalid_while_the_agent_is_down_removes_nothing() {
    let _alone = fixture::run_alone();
    let mut test = RestartTest::start(&[]);
    let (invalid, removed) = (TestService::new("invalid", 2), TestService::new("removed", 3));
    let (old, removed_pods) =
        (test.fixture.start_backends("invalid", 20, 2), test.fixture.start_backends("removed", 30, 2));
    test.fixture.write_file("invalid.yaml", invalid.manifest(&old));
    test.fixture.write_file("removed.yaml", removed.manifest(&removed_pods));
    let answers = |test: &RestartTest, target: &TestService| {
        test.fixture.udp_answer(test.fixture.network.node(), target) == target.name
    };
    wait_until("both answer", || answers(&test, &invalid) && answers(&test, &removed));
    test.fixture.kill();
    test.fixture.write_file("invalid.yaml", "kind: Service\nmetadata: [");
    test.fixture.remove_file("removed.yaml");
    test.fixture.start(&[]);
    assert_eq!(test.fixture.refusals().iter().filter(|(reason, _)| reason == "syntax").count(), 1);
    assert!(answers(&test, &invalid), "its rows stay in the kernel, because its deletion is not known");
    test.fixture.write_file("invalid.yaml", invalid.manifest(&old[..1]));
    wait_until("the deleted service is removed once every file is readable", || !answers(&test, &removed));
    assert!(answers(&test, &invalid));
    test.finish("an invalid file at the start");
}

/// Checks that session affinity keeps the client at one backend, and returns its address.
fn affinity_backend(client: &Client, target: &TestService) -> SocketAddr {
    let dial = DialRequest::new(DialKind::UdpSendTo, (target.address, PORT).into());
    let at: Vec<_> =
        (0..10).map(|_| client.dial(&dial).unwrap().server_address().expect("the service answers")).collect();
    assert!(at.iter().all(|one| *one == at[0]), "affinity: {at:?}");
    at[0]
}

#[test]
fn resizing_tables_keeps_ids_counters_and_affinity() {
    let _alone = fixture::run_alone();
    let mut test = RestartTest::start(&["--max-services", "64"]);
    let sticky = TestService::new("sticky", 2);
    let pods = test.fixture.start_backends("sticky", 40, 20);
    let file = format!("{}---\n{}", sticky.service("  sessionAffinity: ClientIP\n"), sticky.slice(&pods));
    test.fixture.write_file("sticky.yaml", file);
    wait_until("the service answers", || test.fixture.udp_answer(test.fixture.network.node(), &sticky) == "sticky");
    let client = test.fixture.network.pod(1).client().unwrap();
    let at = affinity_backend(&client, &sticky);
    let dials = |test: &RestartTest| {
        let (rows, maps) = (test.fixture.rows(), test.fixture.maps());
        let count = CounterMaps::new(&maps).unwrap();
        let affinity = AffinityTable::new(&maps).unwrap().rows().unwrap().len();
        (rows.names.ids().map(|owner| count.of_owner(owner).dials).sum::<u64>(), affinity)
    };
    for size in ["512", "32"] {
        let (before, (counted, affinities)) = (test.fixture.rows(), dials(&test));
        assert!(counted > 0 && affinities > 0);
        test.fixture.stop();
        test.fixture.start(&["--max-services", size]);
        assert_eq!(test.start_kind(), "resized", "--max-services {size}");
        assert_eq!(test.fixture.rows(), before, "every row keeps its id");
        let (now, kept) = dials(&test);
        assert!(
            now >= counted && kept >= affinities,
            "{now} dials counted after {counted}, {kept} of {affinities} affinities"
        );
        assert_eq!(affinity_backend(&client, &sticky), at, "--max-services {size}");
        assert_eq!(test.fixture.table_dirs().len(), 1, "the old tables are removed");
    }
    drop(client);
    test.finish("larger and smaller tables");
}

#[test]
fn an_agent_killed_during_a_resize_or_an_upgrade_drops_no_dial() {
    let _alone = fixture::run_alone();
    let (other, own) = (other_layout_binary(), Path::new(fixture::BEELINE));
    let mut test = RestartTest::start(&["--max-services", "64"]);
    let mut rng = fastrand::Rng::with_seed(test_seed(6));
    let kills = if fixture::is_long() { 100 } else { 20 };
    for number in 0..kills {
        test.fixture.kill();
        let binary = if number % 3 == 0 { &other } else { own };
        test.fixture.spawn(binary, &["--max-services", if number % 2 == 0 { "512" } else { "64" }]);
        std::thread::sleep(Duration::from_millis(rng.u64(..500)));
    }
    test.fixture.kill();
    test.fixture.start(&[]);
    assert_eq!(test.fixture.table_dirs().len(), 1, "{:?}", test.fixture.table_dirs());
    test.finish(&format!("{kills} kills during resizes and upgrades"));
}

/// A build of `beeline` whose tables have another layout.
fn other_layout_binary() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let binary = root.join("target/other-layout/beeline");
    assert!(binary.exists(), "{} is missing: run `make other-layout` first (`make test` does so)", binary.display());
    binary
}

/// A UDP socket that was connected before a restart.
struct ConnectedSocket<'c> {
    what: &'static str,
    dialled: SocketAddr,
    socket: Socket<'c>,
}

impl ConnectedSocket<'_> {
    fn dial<'c>(client: &'c Client, what: &'static str, dialled: SocketAddr) -> ConnectedSocket<'c> {
        let socket = client.udp(SocketFamily::V4).unwrap();
        socket.connect(dialled).unwrap();
        let held = ConnectedSocket { what, dialled, socket };
        held.assert_alive();
        held
    }

    fn assert_alive(&self) {
        let ConnectedSocket { what, dialled, socket } = self;
        socket.send("who\n").unwrap_or_else(|e| panic!("{what}: {e}"));
        let (_, bytes) = socket.receive().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(!bytes.is_empty(), "{what}");
        assert_eq!(socket.peer().unwrap(), *dialled, "{what}: getpeername returns the dialled address");
    }

    /// Waits until the socket is destroyed because its backend is gone.
    fn assert_destroyed(&self) {
        self.socket.start_probe(ProbeConfig { interval_ms: 20, limit_ms: 20_000 }).unwrap();
        let failure = self.socket.stop_probe(20_000).unwrap().failure;
        let failure = failure.unwrap_or_else(|| panic!("{}: the socket was not destroyed", self.what));
        // A receive reports the abort. A send that comes first reports that the socket is not connected.
        let aborted = [Errno::ECONNABORTED, Errno::EDESTADDRREQ].contains(&failure.errno);
        assert!(aborted, "{}: {failure:?}", self.what);
    }
}

/// New tables assign new ids. When a socket from before the rebuild sends, its record gets the new epoch. The old ids in
/// the record must then not be used with the new tables.
#[test]
fn a_socket_that_sends_after_a_rebuild_is_not_destroyed() {
    let _alone = fixture::run_alone();
    let mut fixture = AgentFixture::new();
    let (dns, web) = (TestService::new("dns", 1), TestService::new("web", 2));
    let (dns_pods, web_pods) = (fixture.start_backends("dns", 20, 1), fixture.start_backends("web", 30, 2));
    let others: Vec<TestService> = (0..40).map(|n| TestService::new(&format!("a{n}"), 100 + n)).collect();
    others.iter().for_each(|t| fixture.write_file(&format!("{}.yaml", t.name), t.manifest(&dns_pods)));
    fixture.start(&["--max-services", "64"]);
    fixture.write_file("dns.yaml", dns.manifest(&dns_pods));
    fixture.write_file("web.yaml", web.manifest(&web_pods[..1]));
    wait_until("both answer", || [&dns, &web].iter().all(|t| fixture.udp_answer(fixture.network.node(), t) == t.name));
    let client = fixture.network.pod(1).client().unwrap();
    let kept = ConnectedSocket::dial(&client, "connected before the rebuild", (dns.address, PORT).into());

    fixture.kill();
    others.iter().for_each(|t| fixture.remove_file(&format!("{}.yaml", t.name)));
    fixture.start(&["--max-services", "16"]);
    assert_eq!(fixture.status()["kernel"]["start"], "rebuilt", "the old rows do not fit");
    kept.socket.send_to((web.address, PORT).into(), "who\n").unwrap();
    let stale = ConnectedSocket::dial(&client, "connected to a removed backend", (web.address, PORT).into());
    fixture.write_file("web.yaml", web.manifest(&web_pods[1..]));
    stale.assert_destroyed();
    kept.assert_alive();
    drop((kept, stale));
}

/// The kernel's iterator over socket records pauses, and continues at the same position of a list that may have become
/// shorter, so that it skips a record. A stale socket that is skipped at the start would never be destroyed.
#[test]
fn listing_socket_records_skips_no_socket() {
    let _alone = fixture::run_alone();
    let test = RestartTest::start(&[]);
    let client = test.fixture.network.pod(1).client().unwrap();
    let dialled: SocketAddr = (test.web.address, PORT).into();
    let connect = |_| {
        let socket = client.udp(SocketFamily::V4).unwrap();
        socket.connect(dialled).unwrap();
        socket
    };
    let sockets: Vec<Socket> = (0..400).map(connect).collect();
    let netns = u32::try_from(std::fs::metadata(format!("/proc/{}/ns/net", client.pid())).unwrap().ino()).unwrap();
    let (maps, passes) = (test.fixture.maps(), 300);
    let reader = SocketRecordReader::new(&maps).unwrap();
    let list = |_| {
        let all = reader.all().unwrap();
        let ours =
            all.iter().filter(|s| s.protocol == Protocol::Udp && s.dialled_port == PORT && s.netns_inode == netns);
        ours.map(|socket| socket.cookie).collect::<BTreeSet<_>>()
    };
    let listed: Vec<BTreeSet<u64>> = (0..passes).map(list).collect();
    let all: BTreeMap<u64, usize> = listed.iter().flatten().fold(BTreeMap::new(), |mut all, cookie| {
        *all.entry(*cookie).or_default() += 1;
        all
    });
    let missed: usize = all.values().filter(|times| **times > passes / 2).map(|times| passes - times).sum();
    assert_eq!(missed, 0, "of {} sockets in {passes} passes", sockets.len());
    drop(sockets);
    drop(client);
    // The listings take little time, so the load makes few dials.
    LoadSummary::collect(test.loads).assert_clean("listing the sockets", 500);
}

#[test]
fn an_upgrade_to_another_layout_and_back_drops_no_dial() {
    let _alone = fixture::run_alone();
    let other = other_layout_binary();
    let mut test = RestartTest::start(&[]);
    let (dns, node_port) = (TestService::new("dns", 2), 30_053);
    let pods = test.fixture.start_backends("dns", 20, 2);
    let write = |test: &RestartTest, pods: &[Ipv4Addr]| {
        let service =
            dns.service("  type: NodePort\n").replace("{name: u,", &format!("{{name: u, nodePort: {node_port},"));
        test.fixture.write_file("dns.yaml", format!("{service}---\n{}", dns.slice(pods)));
    };
    write(&test, &pods);
    wait_until("the service answers", || test.fixture.udp_answer(test.fixture.network.node(), &dns) == "dns");
    let client = test.fixture.network.pod(1).client().unwrap();
    let (cluster, node): (SocketAddr, SocketAddr) =
        ((dns.address, PORT).into(), test.fixture.network.node().v4(node_port));
    let binaries = [(other.as_path(), 1000 + wire::LAYOUT), (Path::new(fixture::BEELINE), wire::LAYOUT)];
    for (binary, layout) in binaries {
        write(&test, &pods);
        wait_until("both backends are programmed", || test.fixture.status()["counts"]["backends"] == 10);
        let held: Vec<ConnectedSocket> = [("by ClusterIP", cluster), ("by NodePort", node)]
            .into_iter()
            .flat_map(|(what, at)| (0..8).map(move |_| (what, at)))
            .map(|(what, at)| ConnectedSocket::dial(&client, what, at))
            .collect();
        let answer = |connected: &ConnectedSocket| {
            connected.socket.send("who\n").unwrap();
            String::from_utf8(connected.socket.receive().unwrap().1).unwrap()
        };
        let removed = format!("dns {}:", pods[0]);
        let (stale, kept): (Vec<ConnectedSocket>, Vec<ConnectedSocket>) =
            held.into_iter().partition(|socket| answer(socket).starts_with(&removed));

        test.fixture.kill();
        write(&test, &pods[1..]); // While no agent runs.
        test.fixture.start_binary(binary, &[]);
        let status = test.fixture.status();
        assert_eq!((&status["kernel"]["layout"], &status["kernel"]["start"]), (&layout.into(), &"rebuilt".into()));
        // One pass destroys all stale sockets. Once they are destroyed, it has spared the others.
        stale.iter().for_each(ConnectedSocket::assert_destroyed);
        kept.iter().for_each(ConnectedSocket::assert_alive);
        println!("layout {layout}: {} sockets of the removed backend destroyed, {} kept", stale.len(), kept.len());
        assert_eq!(test.fixture.table_dirs().len(), 1, "the old tables are removed: {:?}", test.fixture.table_dirs());

        write(&test, &pods[..1]); // While the new agent runs.
        kept.iter().for_each(ConnectedSocket::assert_destroyed);
    }
    drop(client);
    test.finish("to another layout and back");
}
