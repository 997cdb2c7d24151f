//! Snapshot files: two generations on disk, and every way in which a file can be unusable.

use beeline_agent::snapshot::{
    Clock, ClockReading, LoadRequirements, MAX_SNAPSHOT_BYTES, SnapshotError, SnapshotFiles, SnapshotHeader,
    SnapshotRecorder,
};
use beeline_cluster::{ChangeBatch, Converter, ManifestFormat, ServiceFilter, parse_manifests};
use beeline_model::Address;
use beeline_model::change::Change;
use beeline_model::object::{Node, Object};
use ring::digest::{Context, SHA256};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const UID: &str = "0b2c1f0e-1111-4222-8333-444455556666";

/// Every kind of object that a source delivers.
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

fn objects(cluster: &str) -> Vec<Object> {
    let filter = ServiceFilter { dns_names: true, ..ServiceFilter::default() };
    let snapshot = parse_manifests(OBJECTS.as_bytes(), ManifestFormat::Yaml, &mut Converter::new(cluster, filter));
    assert!(snapshot.refusals.is_empty(), "{:?}", snapshot.refusals);
    let object = |change| match change {
        Change::Upsert(object) => object,
        Change::Delete(key) => panic!("{key} is deleted"),
    };
    snapshot.into_changes().into_iter().map(object).collect()
}

fn node(name: &str) -> Object {
    Object::Node(Node::named("far", name))
}

/// A clock and a host that the test sets and reboots.
#[derive(Clone)]
struct TestClock(Arc<Mutex<ClockReading>>);

impl TestClock {
    fn new() -> TestClock {
        TestClock(Arc::new(Mutex::new(ClockReading { boot_id: "first".into(), uptime: 100, time: 1_800_000_000 })))
    }

    fn advance(&self, seconds: u64) {
        let mut now = self.0.lock().unwrap();
        (now.uptime, now.time) = (now.uptime + seconds, now.time + seconds);
    }

    fn reboot(&self) {
        let mut now = self.0.lock().unwrap();
        (now.boot_id, now.uptime) = ("second".into(), 1);
    }
}

impl Clock for TestClock {
    fn now(&self) -> ClockReading {
        self.0.lock().unwrap().clone()
    }
}

struct Fixture {
    _dir: TempDir,
    files: SnapshotFiles,
    clock: TestClock,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let files = SnapshotFiles { dir: dir.path().join("snapshot"), cluster: "far".into() };
        Fixture { _dir: dir, files, clock: TestClock::new() }
    }

    fn recorder(&self, max_age: Option<Duration>) -> SnapshotRecorder {
        SnapshotRecorder::new(self.files.clone(), max_age, Box::new(self.clock.clone()))
    }

    fn header(&self) -> SnapshotHeader {
        SnapshotHeader { cluster: "far".into(), uid: UID.into(), at: self.clock.now() }
    }

    /// Writes two generations: the older one with one node, the newer one with two.
    fn write_two(&self) {
        for nodes in [&["n1"][..], &["n1", "n2"]] {
            self.files.write(&self.header(), nodes.iter().map(|name| node(name))).unwrap();
            self.clock.advance(60);
        }
    }

    fn requirements(&self) -> LoadRequirements<'static> {
        LoadRequirements { now: self.clock.now(), max_age: None, uid: Some(UID) }
    }

    /// The number of loaded objects, and why files were not used.
    fn load(&self) -> (Option<usize>, Vec<SnapshotError>) {
        let loaded = self.files.load(&self.requirements());
        let errors = loaded.errors.into_iter().map(|(_, error)| error).collect();
        (loaded.snapshot.map(|snapshot| snapshot.objects.len()), errors)
    }
}

fn changes(objects: Vec<Object>) -> Vec<Change> {
    objects.into_iter().map(Change::Upsert).collect()
}

fn complete_batch(objects: Vec<Object>) -> ChangeBatch {
    ChangeBatch { changes: changes(objects), synced: true, complete: true, ..ChangeBatch::default() }
}

/// Runs a due or final write. Returns whether there was one.
fn write(recorder: &mut SnapshotRecorder) -> bool {
    let job = recorder.due_write(UID).or_else(|| recorder.final_write(UID));
    job.map(|job| recorder.record_write(&job, job.run())).is_some()
}

#[test]
fn every_object_is_loaded_as_it_was_written() {
    let (fixture, objects) = (Fixture::new(), objects("far"));
    assert!(objects.len() >= 7, "{objects:?}");
    let bytes = fixture.files.write(&fixture.header(), objects.iter().cloned()).unwrap();
    assert!(bytes > 500, "{bytes}");
    fixture.clock.advance(90);
    let snapshot = fixture.files.load(&fixture.requirements()).snapshot.unwrap();
    assert_eq!((snapshot.objects, &*snapshot.header.uid, snapshot.age), (objects, UID, Duration::from_secs(90)));
}

#[test]
fn only_the_agents_user_can_read_the_files() {
    let fixture = Fixture::new();
    fixture.write_two();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&fixture.files.path()), 0o600);
    assert_eq!(mode(&fixture.files.previous_path()), 0o600);
    assert_eq!(mode(&fixture.files.dir), 0o700);
    let names = std::fs::read_dir(&fixture.files.dir).unwrap().count();
    assert_eq!(names, 2, "no temporary file is left");
}

/// Loads after `damage` was applied to the newer of two generations.
fn load_damaged(damage: impl FnOnce(&Path)) -> (Option<usize>, Vec<SnapshotError>) {
    let fixture = Fixture::new();
    fixture.write_two();
    assert!(matches!(fixture.load(), (Some(2), errors) if errors.is_empty()));
    damage(&fixture.files.path());
    fixture.load()
}

fn rewrite(path: &Path, change: impl FnOnce(String) -> String) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, change(text)).unwrap();
}

#[test]
fn a_damaged_file_falls_back_to_the_previous_generation_with_an_error() {
    let truncated = load_damaged(|path| rewrite(path, |text| text[..text.len() - 20].into()));
    assert!(matches!(truncated, (Some(1), ref e) if matches!(e[..], [SnapshotError::Checksum])), "{truncated:?}");
    let modified = load_damaged(|path| rewrite(path, |text| text.replace("n2", "n9")));
    assert!(matches!(modified, (Some(1), ref e) if matches!(e[..], [SnapshotError::Checksum])), "{modified:?}");
    let other_uid = load_damaged(|path| rewrite(path, |text| text.replace(UID, &UID.replace('0', "1"))));
    assert!(matches!(other_uid, (Some(1), ref e) if matches!(e[..], [SnapshotError::Checksum])), "{other_uid:?}");
    let empty = load_damaged(|path| std::fs::write(path, "").unwrap());
    assert!(matches!(empty, (Some(1), ref e) if matches!(e[..], [SnapshotError::Version(_)])), "{empty:?}");
    let binary = load_damaged(|path| std::fs::write(path, [0xff; 100]).unwrap());
    assert!(matches!(binary, (Some(1), ref e) if matches!(e[..], [SnapshotError::Checksum])), "{binary:?}");
    let version =
        load_damaged(|path| rewrite(path, |text| text.replacen("beeline-snapshot 1", "beeline-snapshot 2", 1)));
    assert!(matches!(version, (Some(1), ref e) if matches!(e[..], [SnapshotError::Version(_)])), "{version:?}");
    let missing = load_damaged(|path| std::fs::remove_file(path).unwrap());
    assert!(matches!(missing, (Some(1), ref e) if matches!(e[..], [SnapshotError::Missing])), "{missing:?}");
}

#[test]
fn a_file_that_others_may_write_is_not_used() {
    let writable = load_damaged(|path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap());
    assert!(
        matches!(writable, (Some(1), ref e) if matches!(e[..], [SnapshotError::Exposed { mode: 0o666, .. }])),
        "{writable:?}"
    );
    let other_owner = load_damaged(|path| std::os::unix::fs::chown(path, Some(12_345), None).unwrap());
    assert!(
        matches!(other_owner, (Some(1), ref e) if matches!(e[..], [SnapshotError::Exposed { owner: 12_345, .. }])),
        "{other_owner:?}"
    );
    let link = load_damaged(|path| {
        std::fs::rename(path, path.with_extension("elsewhere")).unwrap();
        symlink(path.with_extension("elsewhere"), path).unwrap();
    });
    assert!(matches!(link, (Some(1), ref e) if matches!(e[..], [SnapshotError::NotAFile])), "{link:?}");
    let directory = load_damaged(|path| {
        std::fs::remove_file(path).unwrap();
        std::fs::create_dir(path).unwrap();
    });
    assert!(matches!(directory, (Some(1), ref e) if matches!(e[..], [SnapshotError::NotAFile])), "{directory:?}");
    let size = MAX_SNAPSHOT_BYTES + 1;
    let large = load_damaged(|path| std::fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap());
    assert!(matches!(large, (Some(1), ref e) if matches!(e[..], [SnapshotError::TooLarge(_)])), "{large:?}");
}

/// Replaces the objects of a file and makes the checksum match.
fn forge_objects(path: &Path, lines: &str) {
    rewrite(path, |text| {
        let header = text.lines().nth(1).unwrap();
        let rest = format!("{header}\n{lines}\n");
        let mut checksum = Context::new(&SHA256);
        checksum.update(format!("beeline-snapshot 1\n{rest}").as_bytes());
        let hex: String = checksum.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("beeline-snapshot 1 {hex}\n{rest}")
    });
}

#[test]
fn a_file_with_a_forged_checksum_cannot_contain_objects_that_no_source_delivers() {
    let fixture = Fixture::new();
    let load_objects = |objects: Vec<Object>| {
        fixture.files.write(&fixture.header(), objects.into_iter()).unwrap();
        let loaded = fixture.files.load(&fixture.requirements());
        let errors: Vec<String> = loaded.errors.into_iter().map(|(_, error)| error.to_string()).collect();
        (loaded.snapshot.is_some(), errors)
    };
    let (used, errors) = load_objects(vec![Object::Node(Node::named("near", "n1"))]);
    assert!(!used && errors[0].contains("line 3") && errors[0].contains("near"), "{errors:?}");
    let mut service = objects("far").into_iter().find_map(|object| match object {
        Object::Service(service) => Some(service),
        _ => None,
    });
    let loopback: Address = "127.0.0.1".parse::<std::net::IpAddr>().unwrap().into();
    service.iter_mut().for_each(|service| service.external_ips = [loopback].into());
    let (used, errors) = load_objects(service.into_iter().map(Object::Service).collect());
    assert!(!used && errors[0].contains("127.0.0.1"), "{errors:?}");
    fixture.files.write(&fixture.header(), [node("n1")].into_iter()).unwrap();
    let line = serde_json::to_string(&node("n2")).unwrap();
    forge_objects(&fixture.files.path(), &line);
    assert_eq!(fixture.files.load(&fixture.requirements()).snapshot.unwrap().objects, [node("n2")]);
    forge_objects(&fixture.files.path(), r#"{"Delete":{"Node":{"cluster":"far","name":"n1"}}}"#);
    let loaded = fixture.files.load(&fixture.requirements());
    assert!(matches!(loaded.errors[0].1, SnapshotError::Object { line: 3, .. }), "a deletion: {loaded:?}");
}

#[test]
fn the_snapshot_of_another_cluster_with_the_same_name_is_not_used() {
    let fixture = Fixture::new();
    fixture.write_two();
    let requirements = LoadRequirements { uid: Some("another"), ..fixture.requirements() };
    let loaded = fixture.files.load(&requirements);
    assert!(loaded.snapshot.is_none() && loaded.errors.len() == 2);
    assert!(loaded.errors.iter().all(|(_, error)| matches!(error, SnapshotError::OtherUid { .. })), "{loaded:?}");
    let other = SnapshotFiles { cluster: "near".into(), ..fixture.files.clone() };
    std::fs::copy(fixture.files.path(), other.path()).unwrap();
    let loaded = other.load(&fixture.requirements());
    assert!(matches!(&loaded.errors[0].1, SnapshotError::Cluster(name) if name == "far"), "{loaded:?}");
}

#[test]
fn the_age_counts_across_a_reboot_and_is_limited() {
    let fixture = Fixture::new();
    fixture.write_two();
    fixture.clock.advance(3_000);
    fixture.clock.reboot();
    let max_age = |seconds| LoadRequirements { max_age: Some(Duration::from_secs(seconds)), ..fixture.requirements() };
    assert_eq!(fixture.files.load(&max_age(4_000)).snapshot.unwrap().age, Duration::from_secs(3_060));
    let loaded = fixture.files.load(&max_age(3_000));
    assert!(loaded.snapshot.is_none() && matches!(loaded.errors[0].1, SnapshotError::TooOld { .. }), "{loaded:?}");
}

#[test]
fn an_interrupted_write_leaves_a_usable_file() {
    let fixture = Fixture::new();
    fixture.write_two();
    // Between the two renames: the newer file has become the previous one, and the newest has not been renamed yet.
    std::fs::rename(fixture.files.path(), fixture.files.previous_path()).unwrap();
    std::fs::write(fixture.files.dir.join("far.snapshot.new"), "beeline-snap").unwrap();
    assert!(matches!(fixture.load(), (Some(2), ref e) if matches!(e[..], [SnapshotError::Missing])));
    fixture.files.write(&fixture.header(), std::iter::empty()).unwrap();
    assert!(matches!(fixture.load(), (Some(0), ref e) if e.is_empty()));
}

#[test]
fn writes_are_rate_limited_and_only_a_complete_list_is_written() {
    let fixture = Fixture::new();
    let mut recorder = fixture.recorder(None);
    recorder.apply(&ChangeBatch { changes: changes(objects("far")), synced: true, ..ChangeBatch::default() });
    assert!(recorder.due_write(UID).is_none() && recorder.final_write(UID).is_none(), "the list is not complete");
    recorder.apply(&complete_batch(Vec::new()));
    let mut written = 0;
    for second in 0..300 {
        if second % 2 == 0 {
            recorder.apply(&complete_batch(vec![node(&format!("n{second}"))]));
        }
        if let Some(job) = recorder.due_write(UID) {
            let result = job.run();
            recorder.record_write(&job, result);
            written += 1;
        }
        fixture.clock.advance(1);
    }
    assert_eq!(written, 60, "every five seconds");
    let job = recorder.due_write(UID).expect("there are changes since the last write");
    let result = job.run();
    recorder.record_write(&job, result);
    // As if the snapshot were large: 320 KiB are written after 10 s at the earliest, 100 MiB after 10 minutes.
    for (bytes, interval) in [(10 * 32 * 1024, 10), (100 << 20, 600)] {
        recorder.record_write(&job, Ok(bytes));
        recorder.apply(&complete_batch(vec![node(&format!("large-{bytes}"))]));
        fixture.clock.advance(interval - 1);
        assert!(recorder.due_write(UID).is_none(), "{bytes} bytes after less than {interval} s");
        fixture.clock.advance(1);
        let job = recorder.due_write(UID).expect("the interval has passed");
        let result = job.run();
        recorder.record_write(&job, result);
    }
    fixture.clock.advance(3_500);
    assert!(recorder.due_write(UID).is_none(), "nothing has changed");
    fixture.clock.advance(200);
    assert!(recorder.due_write(UID).is_some(), "an unchanged snapshot is written once an hour to refresh its age");
}

#[test]
fn the_last_changes_are_written_when_the_agent_stops() {
    let fixture = Fixture::new();
    let mut recorder = fixture.recorder(None);
    recorder.apply(&complete_batch(objects("far")));
    assert!(write(&mut recorder));
    recorder.apply(&complete_batch(vec![node("last")]));
    assert!(recorder.due_write(UID).is_none());
    let job = recorder.final_write(UID).unwrap();
    let result = job.run();
    recorder.record_write(&job, result);
    assert!(recorder.final_write(UID).is_none());
    fixture.clock.advance(5);
    let loaded = fixture.recorder(None).load(Some(UID)).unwrap();
    assert!(loaded.objects.contains(&node("last")));
    assert_eq!(recorder.status().age_seconds, Some(5));
}

#[test]
fn a_failed_write_is_reported_and_retried() {
    let fixture = Fixture::new();
    std::fs::write(&fixture.files.dir, "a file in place of the directory").unwrap();
    let mut recorder = fixture.recorder(None);
    recorder.apply(&complete_batch(objects("far")));
    assert!(write(&mut recorder));
    let status = recorder.status();
    assert!(status.error.is_some_and(|error| error.contains("far.snapshot")) && status.age_seconds.is_none());
    assert!(recorder.due_write(UID).is_none(), "the retry waits");
    fixture.clock.advance(30);
    std::fs::remove_file(&fixture.files.dir).unwrap();
    let job = recorder.due_write(UID).unwrap();
    let result = job.run();
    recorder.record_write(&job, result);
    assert_eq!((recorder.status().error, recorder.status().age_seconds), (None, Some(0)));
}

#[test]
fn rejected_files_are_reported_until_a_new_one_is_written() {
    let fixture = Fixture::new();
    fixture.write_two();
    std::fs::write(fixture.files.path(), "forged").unwrap();
    let mut recorder = fixture.recorder(None);
    assert_eq!(recorder.load(Some(UID)).unwrap().objects.len(), 1);
    let rejected = recorder.status().rejected;
    let expected = |text: &String| text.contains("far.snapshot: ") && text.contains("forged");
    assert!(rejected.len() == 1 && expected(&rejected[0]), "{rejected:?}");
    recorder.apply(&complete_batch(objects("far")));
    assert!(write(&mut recorder));
    assert!(recorder.status().rejected.is_empty());
}

#[test]
fn a_cluster_counts_as_listed_once_any_source_listed_it() {
    let fixture = Fixture::new();
    let mut recorder = fixture.recorder(None);
    recorder.apply(&ChangeBatch { changes: changes(objects("far")), ..ChangeBatch::default() });
    assert!(!recorder.is_listed(), "the list is not finished");
    recorder.apply(&complete_batch(Vec::new()));
    recorder.start_source();
    assert!(recorder.is_listed(), "objects of the first source are still served after another one took over");
}

#[test]
fn the_age_grows_while_no_source_confirms_the_objects() {
    let fixture = Fixture::new();
    let mut recorder = fixture.recorder(Some(Duration::from_secs(24 * 3600)));
    let failed = |objects| ChangeBatch {
        changes: changes(objects),
        error: Some("no route".into()),
        ..complete_batch(Vec::new())
    };
    recorder.apply(&complete_batch(objects("far")));
    assert!(write(&mut recorder));
    fixture.clock.advance(7_000);
    assert!(write(&mut recorder), "a healthy source confirms its objects until now");
    recorder.apply(&failed(Vec::new()));
    for _ in 0..72 {
        fixture.clock.advance(3_600);
        assert!(!write(&mut recorder), "the API server does not answer");
    }
    assert_eq!(recorder.status().age_seconds, Some(72 * 3_600), "since the last confirmation");
    fixture.clock.reboot();
    let mut rebooted = fixture.recorder(Some(Duration::from_secs(24 * 3600)));
    assert!(rebooted.load(Some(UID)).is_none(), "three days are more than the maximum age");
    // One kind cannot be read, and the other kinds still deliver changes.
    recorder.apply(&failed(vec![node("new")]));
    fixture.clock.advance(40);
    assert!(write(&mut recorder));
    assert_eq!(recorder.status().age_seconds, Some(40));
    recorder.apply(&complete_batch(Vec::new()));
    fixture.clock.advance(3_600);
    assert!(write(&mut recorder));
    assert_eq!(recorder.status().age_seconds, Some(0), "the source can be read again");
    // A list from the database of an edge cache may lack objects of the cloud, so it confirms nothing.
    recorder.apply(&ChangeBatch { changes: changes(vec![node("old")]), synced: true, ..ChangeBatch::default() });
    fixture.clock.advance(600);
    assert!(write(&mut recorder));
    assert_eq!(recorder.status().age_seconds, Some(600));
}
