//! Snapshots of a host outside the cluster: it starts without an API server, after a reboot (nothing is pinned), and with
//! damaged or foreign snapshot files.

use crate::cluster::{Cluster, TIMEOUT, with_cluster};
use beeline_harness::{DialKind, DialRequest, RunningProgram};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

/// An agent on a host outside the cluster, with its state directory. Its pins are removed on drop.
struct Host {
    running: Option<RunningProgram>,
    pins: PathBuf,
    socket: String,
    state: String,
    kubeconfig: String,
}

impl Host {
    fn new(cluster: &Cluster) -> Host {
        let kubeconfig = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
        Host {
            running: None,
            pins: PathBuf::from(format!("/sys/fs/bpf/beeline-snapshot-{}", std::process::id())),
            socket: cluster.path("host.sock"),
            state: cluster.path("state"),
            kubeconfig: kubeconfig.to_str().unwrap().to_owned(),
        }
    }

    fn snapshot(&self, name: &str) -> PathBuf {
        Path::new(&self.state).join("snapshot").join(name)
    }

    fn start(&mut self, cluster: &Cluster, args: &[&str]) -> &mut RunningProgram {
        let snapshot = format!("{}/snapshot", self.state);
        let own = ["agent", "--host-role", "outside", "--pod-access", "direct", "--kubeconfig", &self.kubeconfig];
        let disk = ["--state-dir", &self.state, "--snapshot-dir", &snapshot, "--max-services", "256"];
        let program = cluster.network.node().program(BEELINE).unwrap().args(own).args(disk).args(args);
        let program = program.args(["--socket", &self.socket]);
        let program =
            program.args([Path::new("--cgroup"), cluster.network.cgroup().path(), Path::new("--pin-dir"), &self.pins]);
        self.running.insert(program.spawn().unwrap())
    }

    fn status(&self) -> Value {
        let args = ["status", "-o", "json", "--socket", &self.socket, "--pin-dir", self.pins.to_str().unwrap()];
        let output = std::process::Command::new(BEELINE).args(args).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        status["clusters"][0].clone()
    }

    /// Sends SIGKILL. The pins stay.
    fn kill(&mut self) {
        self.running.take().unwrap().kill().unwrap();
    }

    /// Stops the agent and removes its pins, as a reboot does.
    fn reboot(&mut self) {
        let running = self.running.take().unwrap();
        running.signal(rustix::process::Signal::TERM).unwrap();
        running.finish(TIMEOUT).unwrap();
        beeline_datapath::program::cleanup(&self.pins).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.running.as_ref().map(RunningProgram::stderr).unwrap_or_default());
        }
        self.running = None;
        let _ = beeline_datapath::program::cleanup(&self.pins);
    }
}

async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn dial(cluster: &Cluster, at: &str) -> Option<String> {
    let client = cluster.network.node().client().unwrap();
    let outcome = client.dial(&DialRequest::new(DialKind::Tcp, at.parse().unwrap())).unwrap();
    Some(outcome.name().to_owned()).filter(|name| !name.is_empty())
}

async fn create_objects(cluster: &Cluster<'_>) {
    cluster.create_node("node-1", "172.31.0.11", json!([])).await;
    for (name, ip) in [("kept", "10.96.1.1"), ("deleted", "10.96.1.2")] {
        cluster.create_service(name, ip).await;
        cluster.create_slice(name, &format!("{name}-1"), &[&cluster.network.pod(0).v4.to_string()]).await;
    }
}

/// Deletes a Service in etcd, as if it were deleted while this host is offline.
async fn delete_service(cluster: &Cluster<'_>, base64_key: &str) {
    let deleted = cluster.etcd("/v3/kv/deleterange", json!({ "key": base64_key })).await;
    assert_eq!(deleted["deleted"], "1", "{deleted}");
}

/// /registry/services/specs/default/deleted in base64.
const DELETED: &str = "L3JlZ2lzdHJ5L3NlcnZpY2VzL3NwZWNzL2RlZmF1bHQvZGVsZXRlZA==";

#[test]
fn a_host_that_reboots_offline_serves_from_its_snapshot() {
    with_cluster(async |cluster: &mut Cluster| {
        create_objects(cluster).await;
        let _server = cluster.network.pod(0).serve(8080).unwrap();
        let mut host = Host::new(cluster);
        host.start(cluster, &[]).wait_for("serving", TIMEOUT).unwrap();
        assert_eq!(dial(cluster, "10.96.1.1:80").as_deref(), Some("pod-a"));
        wait_until("the snapshot is written", || host.snapshot("local.snapshot").exists()).await;
        wait_until("the status has the snapshot's age", || host.status()["snapshot"]["ageSeconds"].is_u64()).await;
        host.reboot();
        cluster.stop_api();
        host.start(cluster, &[]);
        wait_until("the status has the time of the snapshot", || !host.status()["snapshotTime"].is_null()).await;
        wait_until("the snapshot is served", || dial(cluster, "10.96.1.1:80").as_deref() == Some("pod-a")).await;
        assert_eq!(dial(cluster, "10.96.1.2:80").as_deref(), Some("pod-a"));
        let status = host.status();
        assert!(status["snapshot"]["ageSeconds"].is_u64() && status["error"].is_string(), "{status}");
        assert_eq!((&status["services"], &status["rangesFrom"]), (&json!(3), &json!("snapshot")), "{status}");
        let metrics = metrics(10249);
        assert!(metrics.contains("beeline_snapshot_age_seconds{cluster=\"local\"} "), "{metrics}");
        delete_service(cluster, DELETED).await;
        the_snapshot_is_replaced_when_the_api_server_is_back(cluster, &host).await;
    });
}

/// Only the deleted Service is removed; no other dial fails.
async fn the_snapshot_is_replaced_when_the_api_server_is_back(cluster: &mut Cluster<'_>, host: &Host) {
    let (stop, failed, dialled) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let client = cluster.network.node().client().unwrap();
    let (over, misses, count) = (stop.clone(), failed.clone(), dialled.clone());
    let load = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let outcome = client.dial(&DialRequest::new(DialKind::Tcp, "10.96.1.1:80".parse().unwrap())).unwrap();
            misses.fetch_add(usize::from(outcome.name() != "pod-a"), Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    cluster.start_api().await;
    wait_until("the source is synced", || {
        host.status()["snapshotTime"].is_null() && host.status()["synced"] == json!(true)
    })
    .await;
    wait_until("the deleted service is removed", || dial(cluster, "10.96.1.2:80").is_none()).await;
    stop.store(true, Ordering::Relaxed);
    load.join().unwrap();
    let (failed, dialled) = (failed.load(Ordering::Relaxed), dialled.load(Ordering::Relaxed));
    assert!(dialled > 100 && failed == 0, "{failed} of {dialled} dials failed");
    assert_eq!(host.status()["services"], json!(2));
}

/// The agent is killed after a change that is in the kernel's tables and not yet in the snapshot, and starts again while the
/// API server is away.
#[test]
fn tables_that_are_newer_than_the_snapshot_stay_until_the_api_server_answers() {
    with_cluster(async |cluster: &mut Cluster| {
        create_objects(cluster).await;
        let _servers = [0, 1].map(|pod| cluster.network.pod(pod).serve(8080).unwrap());
        let mut host = Host::new(cluster);
        host.start(cluster, &[]).wait_for("serving", TIMEOUT).unwrap();
        assert_eq!(dial(cluster, "10.96.1.1:80").as_deref(), Some("pod-a"));
        let (current, old) = (host.snapshot("local.snapshot"), host.snapshot("old"));
        wait_until("the snapshot is written", || current.exists()).await;
        std::fs::copy(&current, &old).unwrap();
        let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        let endpoints = json!([{ "addresses": [cluster.network.pod(1).v4.to_string()] }]);
        cluster.patch(&format!("{slices}/kept-1"), json!({ "endpoints": endpoints })).await;
        cluster.delete("/api/v1/namespaces/default/services/deleted").await;
        wait_until("the change is programmed", || dial(cluster, "10.96.1.1:80").as_deref() == Some("pod-b")).await;
        wait_until("the deletion is programmed", || dial(cluster, "10.96.1.2:80").is_none()).await;
        host.kill();
        // The agent may have written the change meanwhile; the test needs the older file.
        for name in ["local.snapshot", "local.snapshot.previous"] {
            std::fs::copy(&old, host.snapshot(name)).unwrap();
        }
        cluster.stop_api();
        host.start(cluster, &[]);
        wait_until("the snapshot is read", || !host.status()["snapshotTime"].is_null()).await;
        let kept = (0..20).filter(|_| dial(cluster, "10.96.1.1:80").as_deref() == Some("pod-b")).count();
        println!("{} of 20 dials reached the endpoint of the older snapshot", 20 - kept);
        assert_eq!((kept, dial(cluster, "10.96.1.2:80")), (20, None), "the newer rows stay");
        cluster.start_api().await;
        wait_until("the source is synced", || host.status()["snapshotTime"].is_null()).await;
        assert_eq!(dial(cluster, "10.96.1.1:80").as_deref(), Some("pod-b"));
        assert_eq!((dial(cluster, "10.96.1.2:80"), &host.status()["services"]), (None, &json!(2)));
    });
}

fn metrics(port: u16) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Changes the snapshot with `damage`, starts the host offline, and returns its status.
async fn start_with_damage(cluster: &Cluster<'_>, host: &mut Host, args: &[&str], damage: impl FnOnce(&Path)) -> Value {
    let (original, current) = (host.snapshot("original"), host.snapshot("local.snapshot"));
    for path in [current.clone(), host.snapshot("local.snapshot.previous")] {
        std::fs::copy(&original, path).unwrap();
    }
    damage(&current);
    host.start(cluster, args);
    wait_until("the snapshot is read", || {
        let status = host.status();
        !status["snapshotTime"].is_null()
            || status["snapshot"]["rejected"].as_array().is_some_and(|all| !all.is_empty())
    })
    .await;
    let status = host.status();
    if status["snapshotTime"].is_null() {
        assert_eq!(dial(cluster, "10.96.1.1:80"), None);
    } else {
        wait_until("the snapshot is served", || dial(cluster, "10.96.1.1:80").as_deref() == Some("pod-a")).await;
    }
    host.reboot();
    status
}

#[test]
fn damaged_old_and_foreign_snapshots_are_rejected_with_a_reason() {
    with_cluster(async |cluster: &mut Cluster| {
        create_objects(cluster).await;
        let _server = cluster.network.pod(0).serve(8080).unwrap();
        let mut host = Host::new(cluster);
        host.start(cluster, &[]).wait_for("serving", TIMEOUT).unwrap();
        wait_until("the snapshot is written", || host.snapshot("local.snapshot").exists()).await;
        host.reboot();
        cluster.stop_api();
        std::fs::copy(host.snapshot("local.snapshot"), host.snapshot("original")).unwrap();
        let rejected = |status: &Value| status["snapshot"]["rejected"].to_string();
        let modified = start_with_damage(cluster, &mut host, &[], |path| {
            let text = std::fs::read_to_string(path).unwrap();
            std::fs::write(path, text.replace("10.244.1.2", "10.244.1.9")).unwrap();
        })
        .await;
        assert!(rejected(&modified).contains("checksum") && !modified["snapshotTime"].is_null(), "{modified}");
        let truncated = start_with_damage(cluster, &mut host, &[], |path| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        })
        .await;
        assert!(rejected(&truncated).contains("truncated") && !truncated["snapshotTime"].is_null(), "{truncated}");
        let old = start_with_damage(cluster, &mut host, &["--snapshot-max-age", "1ms"], |_| {}).await;
        assert!(rejected(&old).contains("--snapshot-max-age") && old["snapshotTime"].is_null(), "{old}");
        // The state directory has the UID of another cluster.
        let uid = Path::new(&host.state).join("clusters/local/uid");
        std::fs::write(&uid, "11111111-2222-4333-8444-555555555555\n").unwrap();
        let foreign = start_with_damage(cluster, &mut host, &[], |_| {}).await;
        assert!(rejected(&foreign).contains("another cluster") && foreign["snapshotTime"].is_null(), "{foreign}");
    });
}
