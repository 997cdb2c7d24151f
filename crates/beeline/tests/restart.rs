//! Zero gap: the agent is stopped, started, killed, resized, replaced by one whose tables have another layout, and put
//! back, while clients dial without pause. Not one dial may fail, and what sockets and clients had stays theirs.

mod stage;

use beeline_datapath::count::Count;
use beeline_datapath::reap::Surveyor;
use beeline_datapath::record::AffinityTable;
use beeline_datapath::wire;
use beeline_harness::{Client, Dial, Errno, Family, Kind, Socket, StormKind, Watch};
use beeline_model::Protocol;
use stage::{PORT, Stage, Storming, Target, Toll, wait_until};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Three kinds of clients at one service with three backends.
struct Show {
    stage: Stage,
    web: Target,
    storms: Vec<Storming>,
}

impl Show {
    fn begin(args: &[&str]) -> Show {
        let (mut stage, web) = (Stage::new(), Target::new("web", 1));
        let pods = stage.serve("web", 10, 3);
        stage.folder.put("web.yaml", web.manifest(&pods));
        stage.start(args);
        let (node, pod, targets) = (stage.lab.node(), stage.lab.pod(1), std::slice::from_ref(&web));
        let storms = vec![
            stage.storm(node, StormKind::Tcp, targets),
            stage.storm(pod, StormKind::UdpUnconnected, targets),
            stage.storm(node, StormKind::UdpConnected, targets),
        ];
        Show { stage, web, storms }
    }

    fn kind(&self) -> String {
        self.stage.status()["kernel"]["start"].as_str().unwrap_or_default().to_owned()
    }

    fn end(self, what: &str) {
        Toll::of(self.storms).must_be_clean(what, 5_000);
    }
}

fn pause() {
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn stop_start_kill_and_changes_while_down() {
    let _alone = stage::alone();
    let mut show = Show::begin(&[]);
    let (leaves, comes) = (Target::new("leaves", 2), Target::new("comes", 3));
    let (old, new) = (show.stage.serve("leaves", 20, 2), show.stage.serve("comes", 30, 2));
    show.stage.folder.put("leaves.yaml", leaves.manifest(&old));
    let node = |show: &Show, target: &Target| show.stage.ask(show.stage.lab.node(), target);
    wait_until("a new service answers", || node(&show, &leaves) == "leaves");
    let client = show.stage.lab.pod(1).client().unwrap();
    let held = Held::dial(&client, "before the stop", (show.web.address, PORT).into());
    let (before, pins) = (show.stage.rows(), pins(&show.stage));

    show.stage.stop();
    pause();
    assert_eq!(node(&show, &leaves), "leaves", "without an agent the tables serve on");
    let killed_in_its_self_test = show.stage.lab.cgroup().path().join("beeline-self-test-1");
    std::fs::create_dir(&killed_in_its_self_test).unwrap();
    std::fs::remove_file(show.stage.pin_dir.join("records-1/overflow")).unwrap(); // As if it were new in this version.
    show.stage.start(&[]);
    assert_eq!(show.kind(), "adopted");
    assert_eq!(show.stage.rows(), before, "a start that changes nothing writes nothing");
    let now = self::pins(&show.stage);
    let moved: Vec<_> = pins.iter().filter(|(path, inode)| now.get(*path) != Some(inode)).collect();
    assert!(moved.len() == 1 && moved[0].0.ends_with("overflow"), "a pin that is right stays: {moved:?}");
    assert!(!killed_in_its_self_test.exists(), "what a killed agent left is swept");
    held.must_live();

    show.stage.kill();
    show.stage.folder.remove("leaves.yaml");
    show.stage.folder.put("comes.yaml", comes.manifest(&new));
    let aside = show.stage.folder.0.with_file_name("gone");
    std::fs::rename(&show.stage.folder.0, &aside).unwrap();
    show.stage.spawn(Path::new(stage::BEELINE), &[]);
    wait_until("the agent says what it cannot read", || show.stage.status()["source"]["error"].is_string());
    assert_eq!(node(&show, &leaves), "leaves", "nothing is deleted before the source has synced");
    std::fs::rename(&aside, &show.stage.folder.0).unwrap();
    wait_until("what was removed meanwhile is gone", || node(&show, &leaves).is_empty());
    wait_until("what came meanwhile is there", || node(&show, &comes) == "comes");
    drop(held);
    drop(client);
    show.end("stop, start, kill -9, changes while down");
}

/// Every pinned map, with what tells one pin from another.
fn pins(stage: &Stage) -> BTreeMap<PathBuf, u64> {
    let folders = std::fs::read_dir(&stage.pin_dir).unwrap().flatten().map(|e| e.path()).filter(|p| p.is_dir());
    let maps = folders.filter(|p| !p.ends_with("links")).flat_map(|p| std::fs::read_dir(p).unwrap().flatten());
    maps.map(|e| (e.path(), e.metadata().unwrap().ino())).collect()
}

#[test]
fn a_file_that_breaks_while_nobody_looks_takes_nothing_away() {
    let _alone = stage::alone();
    let mut show = Show::begin(&[]);
    let (torn, leaves) = (Target::new("torn", 2), Target::new("leaves", 3));
    let (old, gone) = (show.stage.serve("torn", 20, 2), show.stage.serve("leaves", 30, 2));
    show.stage.folder.put("torn.yaml", torn.manifest(&old));
    show.stage.folder.put("leaves.yaml", leaves.manifest(&gone));
    let answers = |show: &Show, target: &Target| show.stage.ask(show.stage.lab.node(), target) == target.name;
    wait_until("both answer", || answers(&show, &torn) && answers(&show, &leaves));
    show.stage.kill();
    show.stage.folder.put("torn.yaml", "kind: Service\nmetadata: [");
    show.stage.folder.remove("leaves.yaml");
    show.stage.start(&[]);
    assert_eq!(show.stage.refusals().iter().filter(|(reason, _)| reason == "syntax").count(), 1);
    assert!(answers(&show, &torn), "it is still in the kernel, and nobody said that it should go");
    show.stage.folder.put("torn.yaml", torn.manifest(&old[..1]));
    wait_until("what was removed goes once every file can be read", || !answers(&show, &leaves));
    assert!(answers(&show, &torn));
    show.end("a broken file at the start");
}

/// A client that is kept to one of the backends, whatever happens around it.
fn kept_at(client: &Client, target: &Target) -> SocketAddr {
    let dial = Dial::new(Kind::UdpSendTo, (target.address, PORT).into());
    let at: Vec<_> = (0..10).map(|_| client.dial(&dial).unwrap().at().expect("an answer")).collect();
    assert!(at.iter().all(|one| *one == at[0]), "affinity: {at:?}");
    at[0]
}

#[test]
fn other_sizes_keep_ids_counters_and_affinity() {
    let _alone = stage::alone();
    let mut show = Show::begin(&["--max-services", "64"]);
    let sticky = Target::new("sticky", 2);
    let pods = show.stage.serve("sticky", 40, 20);
    let file = format!("{}---\n{}", sticky.service("  sessionAffinity: ClientIP\n"), sticky.slice(&pods));
    show.stage.folder.put("sticky.yaml", file);
    wait_until("it answers", || show.stage.ask(show.stage.lab.node(), &sticky) == "sticky");
    let client = show.stage.lab.pod(1).client().unwrap();
    let at = kept_at(&client, &sticky);
    let dials = |show: &Show| {
        let (rows, maps) = (show.stage.rows(), show.stage.maps());
        let count = Count::new(&maps).unwrap();
        let affinity = AffinityTable::new(&maps).unwrap().rows().unwrap().len();
        (rows.names.ids().map(|owner| count.of_owner(owner).dials).sum::<u64>(), affinity)
    };
    for size in ["512", "32"] {
        let (before, (counted, remembered)) = (show.stage.rows(), dials(&show));
        assert!(counted > 0 && remembered > 0);
        show.stage.stop();
        show.stage.start(&["--max-services", size]);
        assert_eq!(show.kind(), "resized", "--max-services {size}");
        assert_eq!(show.stage.rows(), before, "every row has its place and id");
        let (now, still) = dials(&show);
        assert!(now >= counted && still >= remembered, "{now} dials counted after {counted}, {still} clients kept");
        assert_eq!(kept_at(&client, &sticky), at, "--max-services {size}");
        assert_eq!(show.stage.generations().len(), 1, "the old tables are gone");
    }
    drop(client);
    show.end("bigger and smaller tables");
}

#[test]
fn killed_at_any_moment_of_a_resize_or_an_upgrade() {
    let _alone = stage::alone();
    let (other, own) = (other_layout(), Path::new(stage::BEELINE));
    let mut show = Show::begin(&["--max-services", "64"]);
    let mut rng = fastrand::Rng::with_seed(6);
    let kills = if stage::is_long() { 100 } else { 20 };
    for number in 0..kills {
        show.stage.kill();
        let binary = if number % 3 == 0 { &other } else { own };
        show.stage.spawn(binary, &["--max-services", if number % 2 == 0 { "512" } else { "64" }]);
        std::thread::sleep(Duration::from_millis(rng.u64(..500)));
    }
    show.stage.kill();
    show.stage.start(&[]);
    assert_eq!(show.stage.generations().len(), 1, "{:?}", show.stage.generations());
    show.end(&format!("{kills} kills in the middle of resizes and upgrades"));
}

fn other_layout() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let binary = root.join("target/other-layout/beeline");
    assert!(
        binary.exists(),
        "{} is missing: `make other-layout` builds it, `make test` does so first",
        binary.display()
    );
    binary
}

/// A UDP socket that was connected before an upgrade.
struct Held<'c> {
    what: &'static str,
    dialled: SocketAddr,
    socket: Socket<'c>,
}

impl Held<'_> {
    fn dial<'c>(client: &'c Client, what: &'static str, dialled: SocketAddr) -> Held<'c> {
        let socket = client.udp(Family::V4).unwrap();
        socket.connect(dialled).unwrap();
        let held = Held { what, dialled, socket };
        held.must_live();
        held
    }

    fn must_live(&self) {
        let Held { what, dialled, socket } = self;
        socket.send("who\n").unwrap_or_else(|e| panic!("{what}: {e}"));
        let (_, bytes) = socket.receive().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(!bytes.is_empty(), "{what}");
        assert_eq!(socket.peer().unwrap(), *dialled, "{what}: the address that it dialled is shown");
    }

    /// Its backend has gone: it is destroyed, so that the application dials anew.
    fn must_die(&self) {
        self.socket.watch(Watch { every_ms: 20, limit_ms: 20_000 }).unwrap();
        let failure = self.socket.watch_end(20_000).unwrap().failure;
        let failure = failure.unwrap_or_else(|| panic!("{}: still there", self.what));
        // A receive tells the abort; a send, if it comes first, that the socket is no longer connected.
        let aborted = [Errno::ECONNABORTED, Errno::EDESTADDRREQ].contains(&failure.errno);
        assert!(aborted, "{}: {failure:?}", self.what);
    }
}

/// New tables number everything anew. A socket from before that sends something then is marked with the new epoch, and
/// nothing in it may be taken for an id of the new tables.
#[test]
fn a_socket_that_sends_after_a_rebuild_is_spared() {
    let _alone = stage::alone();
    let mut stage = Stage::new();
    let (dns, web) = (Target::new("dns", 1), Target::new("web", 2));
    let (stays, goes) = (stage.serve("dns", 20, 1), stage.serve("web", 30, 2));
    let fill: Vec<Target> = (0..40).map(|n| Target::new(&format!("a{n}"), 100 + n)).collect();
    fill.iter().for_each(|t| stage.folder.put(&format!("{}.yaml", t.name), t.manifest(&stays)));
    stage.start(&["--max-services", "64"]);
    stage.folder.put("dns.yaml", dns.manifest(&stays));
    stage.folder.put("web.yaml", web.manifest(&goes[..1]));
    wait_until("both answer", || [&dns, &web].iter().all(|t| stage.ask(stage.lab.node(), t) == t.name));
    let client = stage.lab.pod(1).client().unwrap();
    let held = Held::dial(&client, "from before", (dns.address, PORT).into());

    stage.kill();
    fill.iter().for_each(|t| stage.folder.remove(&format!("{}.yaml", t.name)));
    stage.start(&["--max-services", "16"]);
    assert_eq!(stage.status()["kernel"]["start"], "rebuilt", "the old rows do not fit");
    held.socket.send_to((web.address, PORT).into(), "who\n").unwrap();
    let victim = Held::dial(&client, "whose backend goes", (web.address, PORT).into());
    stage.folder.put("web.yaml", web.manifest(&goes[1..]));
    victim.must_die();
    held.must_live();
    drop((held, victim));
}

/// A walk over the kernel's records pauses now and then, and goes on at the same place of a list that has become shorter
/// meanwhile: somebody is passed over. Who is passed over at a start would be left at a dead backend for good.
#[test]
fn a_walk_over_the_sockets_passes_over_nobody() {
    let _alone = stage::alone();
    let show = Show::begin(&[]);
    let client = show.stage.lab.pod(1).client().unwrap();
    let dialled: SocketAddr = (show.web.address, PORT).into();
    let connect = |_| {
        let socket = client.udp(Family::V4).unwrap();
        socket.connect(dialled).unwrap();
        socket
    };
    let held: Vec<Socket> = (0..400).map(connect).collect();
    let netns = u32::try_from(std::fs::metadata(format!("/proc/{}/ns/net", client.pid())).unwrap().ino()).unwrap();
    let (maps, walks) = (show.stage.maps(), 300);
    let surveyor = Surveyor::new(&maps).unwrap();
    let seen = |_| {
        let all = surveyor.all().unwrap();
        let ours =
            all.iter().filter(|s| s.protocol == Protocol::Udp && s.dialled_port == PORT && s.netns_inode == netns);
        ours.map(|socket| socket.cookie).collect::<BTreeSet<_>>()
    };
    let walked: Vec<BTreeSet<u64>> = (0..walks).map(seen).collect();
    let all: BTreeMap<u64, usize> = walked.iter().flatten().fold(BTreeMap::new(), |mut all, cookie| {
        *all.entry(*cookie).or_default() += 1;
        all
    });
    let missed: usize = all.values().filter(|times| **times > walks / 2).map(|times| walks - times).sum();
    assert_eq!(missed, 0, "of {} sockets in {walks} walks", held.len());
    drop(held);
    drop(client);
    // Walks are short: it is they that count here.
    Toll::of(show.storms).must_be_clean("walks over the sockets", 500);
}

#[test]
fn another_layout_and_back() {
    let _alone = stage::alone();
    let other = other_layout();
    let mut show = Show::begin(&[]);
    let (dns, node_port) = (Target::new("dns", 2), 30_053);
    let pods = show.stage.serve("dns", 20, 2);
    let write = |show: &Show, pods: &[Ipv4Addr]| {
        let service =
            dns.service("  type: NodePort\n").replace("{name: u,", &format!("{{name: u, nodePort: {node_port},"));
        show.stage.folder.put("dns.yaml", format!("{service}---\n{}", dns.slice(pods)));
    };
    write(&show, &pods);
    wait_until("it answers", || show.stage.ask(show.stage.lab.node(), &dns) == "dns");
    let client = show.stage.lab.pod(1).client().unwrap();
    let (cluster, node): (SocketAddr, SocketAddr) = ((dns.address, PORT).into(), show.stage.lab.node().v4(node_port));
    let binaries = [(other.as_path(), 1000 + wire::LAYOUT), (Path::new(stage::BEELINE), wire::LAYOUT)];
    for (binary, layout) in binaries {
        write(&show, &pods);
        wait_until("both backends are back", || show.stage.status()["counts"]["backends"] == 10);
        let held: Vec<Held> = [("by ClusterIP", cluster), ("by NodePort", node)]
            .into_iter()
            .flat_map(|(what, at)| (0..8).map(move |_| (what, at)))
            .map(|(what, at)| Held::dial(&client, what, at))
            .collect();
        let answers = |held: &Held| {
            held.socket.send("who\n").unwrap();
            String::from_utf8(held.socket.receive().unwrap().1).unwrap()
        };
        let leaver = format!("dns {}:", pods[0]);
        let (leaving, staying): (Vec<Held>, Vec<Held>) =
            held.into_iter().partition(|h| answers(h).starts_with(&leaver));

        show.stage.kill();
        write(&show, &pods[1..]); // While nobody looks.
        show.stage.start_binary(binary, &[]);
        let status = show.stage.status();
        assert_eq!((&status["kernel"]["layout"], &status["kernel"]["start"]), (&layout.into(), &"rebuilt".into()));
        leaving.iter().for_each(Held::must_die);
        std::thread::sleep(Duration::from_secs(1));
        staying.iter().for_each(Held::must_live);
        println!("layout {layout}: {} sockets destroyed with their backend, {} lived on", leaving.len(), staying.len());
        assert_eq!(show.stage.generations().len(), 1, "the old tables are gone: {:?}", show.stage.generations());

        write(&show, &pods[..1]); // And by the new one.
        staying.iter().for_each(Held::must_die);
    }
    drop(client);
    show.end("to another layout and back");
}
