//! The last good facts on disk: two generations, and everything that a file can be that it should not.

use beeline_agent::snapshot::{Clock, Flaw, Header, LARGEST, Memory, Moment, Place, Terms};
use beeline_cluster::{Batch, Claim, Convert, Format, Snapshot, parse};
use beeline_model::fact::{Fact, Node};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const UID: &str = "0b2c1f0e-1111-4222-8333-444455556666";

/// Every kind of fact that a source says.
const OBJECTS: &str = "
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z'},
 spec: {type: LoadBalancer, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd00:96::1'], externalIPs: [192.0.2.7],
  sessionAffinity: ClientIP, internalTrafficPolicy: Local, loadBalancerSourceRanges: [192.0.2.0/24],
  ports: [{name: http, port: 80, nodePort: 30080}, {name: dns, port: 53, protocol: UDP}]},
 status: {loadBalancer: {ingress: [{ip: 192.0.2.9}]}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}},
 ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.244.1.2], nodeName: n1, hints: {forZones: [{name: z}]},
  conditions: {ready: false, serving: true, terminating: true}}]}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: z}},
 status: {addresses: [{type: InternalIP, address: 192.0.2.11}, {type: ExternalIP, address: '2001:db8::1'}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop, uid: 7c6b2a55-aaaa-4bbb-8ccc-121212121212,
 labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]},
 status: {podIP: 10.244.1.2, podIPs: [{ip: 10.244.1.2}]}}
---
{apiVersion: beeline.dev/v1alpha1, kind: LocalRedirectPolicy, metadata: {name: near, namespace: shop},
 spec: {frontend: {serviceMatcher: {serviceName: web}}, backend: {endpointSelector: {matchLabels: {app: web}},
  toPorts: [{port: 8080}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: pets, namespace: shop}, spec: {clusterIP: None, ports: [{name: db, port: 5432}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: out, namespace: shop}, spec: {type: ExternalName, externalName: example.org}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {name: pets-1, namespace: shop,
 labels: {kubernetes.io/service-name: pets, service.kubernetes.io/headless: ''}}, ports: [{name: db, port: 5432}],
 endpoints: [{addresses: [10.244.1.3]}, {addresses: [10.244.1.4], hostname: pet-1}]}
---
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16]}}
";

fn facts(cluster: &str) -> Vec<Fact> {
    let claim = Claim { names: true, ..Claim::default() };
    let snapshot = parse(OBJECTS.as_bytes(), Format::Yaml, &mut Convert::new(cluster, claim));
    assert!(snapshot.refusals.is_empty(), "{:?}", snapshot.refusals);
    snapshot.into_facts()
}

/// A clock that tests turn, and a host that they boot.
#[derive(Clone)]
struct Hand(Arc<Mutex<Moment>>);

impl Hand {
    fn new() -> Hand {
        Hand(Arc::new(Mutex::new(Moment { boot_id: "first".into(), uptime: 100, time: 1_800_000_000 })))
    }

    fn pass(&self, seconds: u64) {
        let mut now = self.0.lock().unwrap();
        (now.uptime, now.time) = (now.uptime + seconds, now.time + seconds);
    }

    fn boot(&self) {
        let mut now = self.0.lock().unwrap();
        (now.boot_id, now.uptime) = ("second".into(), 1);
    }
}

impl Clock for Hand {
    fn now(&self) -> Moment {
        self.0.lock().unwrap().clone()
    }
}

struct Desk {
    _dir: TempDir,
    place: Place,
    hand: Hand,
}

impl Desk {
    fn new() -> Desk {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { dir: dir.path().join("snapshot"), cluster: "far".into() };
        Desk { _dir: dir, place, hand: Hand::new() }
    }

    fn memory(&self, max_age: Option<Duration>) -> Memory {
        Memory::new(self.place.clone(), max_age, Box::new(self.hand.clone()))
    }

    fn header(&self) -> Header {
        Header { cluster: "far".into(), uid: UID.into(), at: self.hand.now() }
    }

    /// Two generations: the older one with one node, the newer one with two.
    fn write_two(&self) {
        for nodes in [&["n1"][..], &["n1", "n2"]] {
            let facts = nodes.iter().map(|name| Fact::Node(Node::named("far", name)));
            self.place.write(&self.header(), facts).unwrap();
            self.hand.pass(60);
        }
    }

    fn terms(&self) -> Terms<'static> {
        Terms { now: self.hand.now(), max_age: None, uid: Some(UID) }
    }

    /// How many facts can be had, and what was wrong with the files that were passed over.
    fn load(&self) -> (Option<usize>, Vec<Flaw>) {
        let loaded = self.place.load(&self.terms());
        (loaded.recalled.map(|recalled| recalled.facts.len()), loaded.flaws.into_iter().map(|(_, flaw)| flaw).collect())
    }
}

fn batch(facts: Vec<Fact>) -> Batch {
    Batch { facts, synced: true, whole: true, ..Batch::default() }
}

#[test]
fn every_fact_comes_back_as_it_was() {
    let (desk, facts) = (Desk::new(), facts("far"));
    assert!(facts.len() >= 7, "{facts:?}");
    let bytes = desk.place.write(&desk.header(), facts.iter().cloned()).unwrap();
    assert!(bytes > 500, "{bytes}");
    desk.hand.pass(90);
    let recalled = desk.place.load(&desk.terms()).recalled.unwrap();
    assert_eq!((recalled.facts, &*recalled.header.uid, recalled.age), (facts, UID, Duration::from_secs(90)));
}

#[test]
fn only_this_user_can_read_it() {
    let desk = Desk::new();
    desk.write_two();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&desk.place.path()), 0o600);
    assert_eq!(mode(&desk.place.path_before()), 0o600);
    assert_eq!(mode(&desk.place.dir), 0o700);
    let names = std::fs::read_dir(&desk.place.dir).unwrap().count();
    assert_eq!(names, 2, "nothing else is left behind");
}

/// Something is done to the newer generation: what then?
fn spoil(what: impl FnOnce(&Path)) -> (Option<usize>, Vec<Flaw>) {
    let desk = Desk::new();
    desk.write_two();
    assert!(matches!(desk.load(), (Some(2), flaws) if flaws.is_empty()));
    what(&desk.place.path());
    desk.load()
}

fn rewrite(path: &Path, change: impl FnOnce(String) -> String) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, change(text)).unwrap();
}

#[test]
fn a_bad_file_gives_way_to_the_generation_before_with_a_reason() {
    let truncated = spoil(|path| rewrite(path, |text| text[..text.len() - 20].into()));
    assert!(matches!(truncated, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::Checksum])), "{truncated:?}");
    let forged = spoil(|path| rewrite(path, |text| text.replace("n2", "n9")));
    assert!(matches!(forged, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::Checksum])), "{forged:?}");
    let renamed = spoil(|path| rewrite(path, |text| text.replace(UID, &UID.replace('0', "1"))));
    assert!(matches!(renamed, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::Checksum])), "{renamed:?}");
    let empty = spoil(|path| std::fs::write(path, "").unwrap());
    assert!(matches!(empty, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::Version(_)])), "{empty:?}");
    let binary = spoil(|path| std::fs::write(path, [0xff; 100]).unwrap());
    assert!(matches!(binary, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::Checksum])), "{binary:?}");
    let other = spoil(|path| rewrite(path, |text| text.replacen("beeline-snapshot 1", "beeline-snapshot 2", 1)));
    assert!(matches!(other, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::Version(_)])), "{other:?}");
    let gone = spoil(|path| std::fs::remove_file(path).unwrap());
    assert!(matches!(gone, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::Missing])), "{gone:?}");
}

#[test]
fn a_file_that_others_may_write_is_not_believed() {
    let open = spoil(|path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap());
    assert!(
        matches!(open, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::Exposed { mode: 0o666, .. }])),
        "{open:?}"
    );
    let foreign = spoil(|path| std::os::unix::fs::chown(path, Some(12_345), None).unwrap());
    assert!(
        matches!(foreign, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::Exposed { owner: 12_345, .. }])),
        "{foreign:?}"
    );
    let link = spoil(|path| {
        std::fs::rename(path, path.with_extension("elsewhere")).unwrap();
        symlink(path.with_extension("elsewhere"), path).unwrap();
    });
    assert!(matches!(link, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::NoFile])), "{link:?}");
    let folder = spoil(|path| {
        std::fs::remove_file(path).unwrap();
        std::fs::create_dir(path).unwrap();
    });
    assert!(matches!(folder, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::NoFile])), "{folder:?}");
    let huge = spoil(|path| std::fs::File::options().write(true).open(path).unwrap().set_len(LARGEST + 1).unwrap());
    assert!(matches!(huge, (Some(1), ref flaws) if matches!(flaws[..], [Flaw::TooLarge(_)])), "{huge:?}");
}

#[test]
fn who_forges_the_checksum_too_still_says_nothing_about_others() {
    let desk = Desk::new();
    let try_facts = |facts: Vec<Fact>| {
        desk.place.write(&desk.header(), facts.into_iter()).unwrap();
        let loaded = desk.place.load(&desk.terms());
        (loaded.recalled.is_some(), loaded.flaws.into_iter().map(|(_, flaw)| flaw.to_string()).collect::<Vec<_>>())
    };
    let (used, flaws) = try_facts(vec![Fact::Node(Node::named("near", "n1"))]);
    assert!(!used && flaws[0].contains("line 3") && flaws[0].contains("near"), "{flaws:?}");
    let (used, flaws) = try_facts(vec![Fact::NodeGone { cluster: "far".into(), name: "n1".into() }]);
    assert!(!used && flaws[0].contains("not what is gone"), "{flaws:?}");
    let mut service = facts("far").into_iter().find_map(|fact| match fact {
        Fact::Service(service) => Some(service),
        _ => None,
    });
    service
        .iter_mut()
        .for_each(|service| service.external_ips = ["127.0.0.1".parse::<std::net::IpAddr>().unwrap().into()].into());
    let (used, flaws) = try_facts(service.into_iter().map(Fact::Service).collect());
    assert!(!used && flaws[0].contains("127.0.0.1"), "{flaws:?}");
}

#[test]
fn another_cluster_under_the_same_name_is_not_used() {
    let desk = Desk::new();
    desk.write_two();
    let terms = Terms { uid: Some("another"), ..desk.terms() };
    let loaded = desk.place.load(&terms);
    assert!(loaded.recalled.is_none() && loaded.flaws.len() == 2);
    assert!(loaded.flaws.iter().all(|(_, flaw)| matches!(flaw, Flaw::ForeignUid { .. })), "{loaded:?}");
    let other = Place { cluster: "near".into(), ..desk.place.clone() };
    std::fs::copy(desk.place.path(), other.path()).unwrap();
    let loaded = other.load(&desk.terms());
    assert!(matches!(&loaded.flaws[0].1, Flaw::Cluster(name) if name == "far"), "{loaded:?}");
}

#[test]
fn age_counts_across_a_reboot_and_has_an_end() {
    let desk = Desk::new();
    desk.write_two();
    desk.hand.pass(3_000);
    desk.hand.boot();
    let most = |seconds| Terms { max_age: Some(Duration::from_secs(seconds)), ..desk.terms() };
    assert_eq!(desk.place.load(&most(4_000)).recalled.unwrap().age, Duration::from_secs(3_060));
    let loaded = desk.place.load(&most(3_000));
    assert!(loaded.recalled.is_none() && matches!(loaded.flaws[0].1, Flaw::TooOld { .. }), "{loaded:?}");
}

#[test]
fn a_write_that_was_cut_short_costs_nothing() {
    let desk = Desk::new();
    desk.write_two();
    // Between the two renames: the newer one has moved away and the newest has not come.
    std::fs::rename(desk.place.path(), desk.place.path_before()).unwrap();
    std::fs::write(desk.place.dir.join("far.facts.new"), "beeline-snap").unwrap();
    assert!(matches!(desk.load(), (Some(2), ref flaws) if matches!(flaws[..], [Flaw::Missing])));
    desk.place.write(&desk.header(), std::iter::empty()).unwrap();
    assert!(matches!(desk.load(), (Some(0), ref flaws) if flaws.is_empty()));
}

#[test]
fn written_seldom_and_only_what_is_good() {
    let desk = Desk::new();
    let mut memory = desk.memory(None);
    memory.take(&Batch { facts: facts("far"), synced: true, ..Batch::default() });
    assert!(memory.due(UID).is_none() && memory.last(UID).is_none(), "the source has not said everything");
    memory.take(&batch(Vec::new()));
    let mut written = 0;
    for second in 0..300 {
        if second % 2 == 0 {
            memory.take(&batch(vec![Fact::Node(Node::named("far", &format!("n{second}")))]));
        }
        if let Some(job) = memory.due(UID) {
            let result = job.run();
            memory.settle(&job, result);
            written += 1;
        }
        desk.hand.pass(1);
    }
    assert_eq!(written, 60, "every five seconds, whatever comes");
    let job = memory.due(UID).expect("two changes have come since");
    let result = job.run();
    memory.settle(&job, result);
    // As if it were of a large cluster: a third of a mebibyte takes its ten seconds, a hundred of them ten minutes.
    for (bytes, least) in [(10 * 32 * 1024, 10), (100 << 20, 600)] {
        memory.settle(&job, Ok(bytes));
        memory.take(&batch(vec![Fact::Node(Node::named("far", &format!("large-{bytes}")))]));
        desk.hand.pass(least - 1);
        assert!(memory.due(UID).is_none(), "{bytes} bytes are not written sooner");
        desk.hand.pass(1);
        let job = memory.due(UID).expect("now they are");
        let result = job.run();
        memory.settle(&job, result);
    }
    desk.hand.pass(3_500);
    assert!(memory.due(UID).is_none(), "nothing has changed");
    desk.hand.pass(200);
    assert!(memory.due(UID).is_some(), "but once an hour, so that its age means something");
}

#[test]
fn at_a_clean_stop_the_last_word_is_written() {
    let desk = Desk::new();
    let mut memory = desk.memory(None);
    memory.take(&batch(facts("far")));
    let job = memory.due(UID).unwrap();
    let result = job.run();
    memory.settle(&job, result);
    memory.take(&batch(vec![Fact::Node(Node::named("far", "last"))]));
    assert!(memory.due(UID).is_none());
    let job = memory.last(UID).unwrap();
    let result = job.run();
    memory.settle(&job, result);
    assert!(memory.last(UID).is_none());
    desk.hand.pass(5);
    let recalled = desk.memory(None).recall(Some(UID)).unwrap();
    let mut snapshot = Snapshot::default();
    recalled.facts.into_iter().for_each(|fact| snapshot.apply(fact));
    assert!(snapshot.nodes.contains_key(&("far".into(), "last".into())));
    assert_eq!(memory.report().age_seconds, Some(5));
}

#[test]
fn a_disk_that_cannot_be_written_is_told_and_tried_again() {
    let desk = Desk::new();
    std::fs::write(&desk.place.dir, "in the way").unwrap();
    let mut memory = desk.memory(None);
    memory.take(&batch(facts("far")));
    let job = memory.due(UID).unwrap();
    let result = job.run();
    memory.settle(&job, result);
    let report = memory.report();
    assert!(report.error.is_some_and(|why| why.contains("far.facts")) && report.age_seconds.is_none());
    assert!(memory.due(UID).is_none(), "not at once");
    desk.hand.pass(30);
    std::fs::remove_file(&desk.place.dir).unwrap();
    let job = memory.due(UID).unwrap();
    let result = job.run();
    memory.settle(&job, result);
    assert_eq!((memory.report().error, memory.report().age_seconds), (None, Some(0)));
}

#[test]
fn what_was_unfit_is_reported_until_a_good_one_is_written() {
    let desk = Desk::new();
    desk.write_two();
    std::fs::write(desk.place.path(), "forged").unwrap();
    let mut memory = desk.memory(None);
    assert_eq!(memory.recall(Some(UID)).unwrap().facts.len(), 1);
    let unfit = memory.report().unfit;
    assert!(unfit.len() == 1 && unfit[0].contains("far.facts: ") && unfit[0].contains("forged"), "{unfit:?}");
    memory.take(&batch(facts("far")));
    let job = memory.due(UID).unwrap();
    let result = job.run();
    memory.settle(&job, result);
    assert!(memory.report().unfit.is_empty());
}

#[test]
fn who_is_heard_needs_no_one_to_stand_in() {
    let desk = Desk::new();
    let mut memory = desk.memory(None);
    memory.take(&Batch { facts: facts("far"), ..Batch::default() });
    assert!(!memory.is_heard(), "half a list means nothing");
    memory.take(&batch(Vec::new()));
    memory.begin();
    assert!(memory.is_heard(), "another one speaks for it: what the first one said still serves");
}

#[test]
fn facts_grow_old_while_nobody_can_confirm_them() {
    let desk = Desk::new();
    let mut memory = desk.memory(Some(Duration::from_secs(24 * 3600)));
    let write = |memory: &mut Memory| {
        let job = memory.due(UID).or_else(|| memory.last(UID));
        job.map(|job| memory.settle(&job, job.run())).is_some()
    };
    let error = |facts| Batch { facts, error: Some("no route".into()), ..batch(Vec::new()) };
    memory.take(&batch(facts("far")));
    assert!(write(&mut memory));
    desk.hand.pass(7_000);
    assert!(write(&mut memory), "it is well: what it said holds until now");
    memory.take(&error(Vec::new()));
    for _ in 0..72 {
        desk.hand.pass(3_600);
        assert!(!write(&mut memory), "the API server is away");
    }
    assert_eq!(memory.report().age_seconds, Some(72 * 3_600), "since it was last heard");
    desk.hand.boot();
    assert!(desk.memory(Some(Duration::from_secs(24 * 3600))).recall(Some(UID)).is_none(), "three days are too old");
    // One kind cannot be read, and the others go on.
    memory.take(&error(vec![Fact::Node(Node::named("far", "new"))]));
    desk.hand.pass(40);
    assert!(write(&mut memory));
    assert_eq!(memory.report().age_seconds, Some(40));
    memory.take(&batch(Vec::new()));
    desk.hand.pass(3_600);
    assert!(write(&mut memory));
    assert_eq!(memory.report().age_seconds, Some(0), "it can be read again");
    // From the database of an edge cache: it may have lost what the cloud has.
    memory.take(&Batch { facts: vec![Fact::Node(Node::named("far", "old"))], synced: true, ..Batch::default() });
    desk.hand.pass(600);
    assert!(write(&mut memory));
    assert_eq!(memory.report().age_seconds, Some(600));
}
