//! A host outside that remembers: it starts where no API server answers, after a reboot (nothing is pinned) and with files
//! on its disk that are not what they should be.

use crate::cluster::{Cluster, PATIENCE, with_cluster};
use beeline_harness::{Dial, Kind, Running};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

/// An agent on a host that is no Node, with its disk. Removes its pins with it.
struct Host {
    running: Option<Running>,
    pins: PathBuf,
    socket: String,
    state: String,
    kubeconfig: String,
}

impl Host {
    fn of(cluster: &Cluster) -> Host {
        let kubeconfig = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
        Host {
            running: None,
            pins: PathBuf::from(format!("/sys/fs/bpf/beeline-memory-{}", std::process::id())),
            socket: cluster.path("host.sock"),
            state: cluster.path("state"),
            kubeconfig: kubeconfig.to_str().unwrap().to_owned(),
        }
    }

    fn snapshot(&self, name: &str) -> PathBuf {
        Path::new(&self.state).join("snapshot").join(name)
    }

    fn start(&mut self, cluster: &Cluster, args: &[&str]) -> &mut Running {
        let snapshot = format!("{}/snapshot", self.state);
        let own = ["agent", "--stand", "outside", "--pods", "direct", "--kubeconfig", &self.kubeconfig];
        let disk = ["--state-dir", &self.state, "--snapshot-dir", &snapshot, "--max-services", "256"];
        let program = cluster.lab.node().program(BEELINE).unwrap().args(own).args(disk).args(args);
        let program = program.args(["--socket", &self.socket]);
        let program =
            program.args([Path::new("--cgroup"), cluster.lab.cgroup().path(), Path::new("--pin-dir"), &self.pins]);
        self.running.insert(program.spawn().unwrap())
    }

    fn status(&self) -> Value {
        let asked = ["status", "-o", "json", "--socket", &self.socket, "--pin-dir", self.pins.to_str().unwrap()];
        let output = std::process::Command::new(BEELINE).args(asked).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        status["clusters"][0].clone()
    }

    /// Stops it cleanly, and what it pinned goes as with a reboot.
    fn reboot(&mut self) {
        let running = self.running.take().unwrap();
        running.signal(rustix::process::Signal::TERM).unwrap();
        running.finish(PATIENCE).unwrap();
        beeline_datapath::program::cleanup(&self.pins).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.running.as_ref().map(Running::stderr).unwrap_or_default());
        }
        self.running = None;
        let _ = beeline_datapath::program::cleanup(&self.pins);
    }
}

async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn dial(cluster: &Cluster, at: &str) -> Option<String> {
    let client = cluster.lab.node().client().unwrap();
    let outcome = client.dial(&Dial::new(Kind::Tcp, at.parse().unwrap())).unwrap();
    Some(outcome.name().to_owned()).filter(|name| !name.is_empty())
}

async fn fill(cluster: &Cluster<'_>) {
    cluster.create_node("node-1", "172.31.0.11", json!([])).await;
    for (name, ip) in [("stays", "10.96.1.1"), ("goes", "10.96.1.2")] {
        cluster.create_service(name, ip).await;
        cluster.create_slice(name, &format!("{name}-1"), &[&cluster.lab.pod(0).v4.to_string()]).await;
    }
}

/// Behind the API server's back, as if somebody had deleted it while this host was offline.
async fn delete_service(cluster: &Cluster<'_>, base64_key: &str) {
    let deleted = cluster.etcd("/v3/kv/deleterange", json!({ "key": base64_key })).await;
    assert_eq!(deleted["deleted"], "1", "{deleted}");
}

/// /registry/services/specs/default/goes
const GOES: &str = "L3JlZ2lzdHJ5L3NlcnZpY2VzL3NwZWNzL2RlZmF1bHQvZ29lcw==";

#[test]
fn a_host_that_reboots_offline_serves_what_it_remembers() {
    with_cluster(async |cluster: &mut Cluster| {
        fill(cluster).await;
        let _server = cluster.lab.pod(0).serve(8080).unwrap();
        let mut host = Host::of(cluster);
        host.start(cluster, &[]).wait_for("serving", PATIENCE).unwrap();
        assert_eq!(dial(cluster, "10.96.1.1:80").as_deref(), Some("pod-a"));
        until("it is on disk", || host.snapshot("local.facts").exists()).await;
        until("status says so", || host.status()["snapshot"]["ageSeconds"].is_u64()).await;
        host.reboot();
        cluster.stop_api();
        host.start(cluster, &[]);
        until("it tells what it remembers", || !host.status()["remembered"].is_null()).await;
        until("and serves it", || dial(cluster, "10.96.1.1:80").as_deref() == Some("pod-a")).await;
        assert_eq!(dial(cluster, "10.96.1.2:80").as_deref(), Some("pod-a"));
        let status = host.status();
        assert!(status["snapshot"]["ageSeconds"].is_u64() && status["error"].is_string(), "{status}");
        assert_eq!((&status["services"], &status["rangesFrom"]), (&json!(3), &json!("snapshot")), "{status}");
        let metrics = metrics(10249);
        assert!(metrics.contains("beeline_snapshot_age_seconds{cluster=\"local\"} "), "{metrics}");
        delete_service(cluster, GOES).await;
        the_api_server_comes_back(cluster, &host).await;
    });
}

/// What is gone goes, and nothing else for a moment.
async fn the_api_server_comes_back(cluster: &mut Cluster<'_>, host: &Host) {
    let (stop, failed, dialled) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let client = cluster.lab.node().client().unwrap();
    let (over, misses, count) = (stop.clone(), failed.clone(), dialled.clone());
    let storm = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let outcome = client.dial(&Dial::new(Kind::Tcp, "10.96.1.1:80".parse().unwrap())).unwrap();
            misses.fetch_add(usize::from(outcome.name() != "pod-a"), Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    cluster.start_api().await;
    until("it is heard", || host.status()["remembered"].is_null() && host.status()["synced"] == json!(true)).await;
    until("what was deleted is gone", || dial(cluster, "10.96.1.2:80").is_none()).await;
    stop.store(true, Ordering::Relaxed);
    storm.join().unwrap();
    let (failed, dialled) = (failed.load(Ordering::Relaxed), dialled.load(Ordering::Relaxed));
    assert!(dialled > 100 && failed == 0, "{failed} of {dialled} dials failed");
    assert_eq!(host.status()["services"], json!(2));
}

fn metrics(port: u16) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// What is on its disk is spoilt, and the host starts offline.
async fn start_with(cluster: &Cluster<'_>, host: &mut Host, args: &[&str], spoil: impl FnOnce(&Path)) -> Value {
    let (kept, now) = (host.snapshot("kept"), host.snapshot("local.facts"));
    for path in [now.clone(), host.snapshot("local.facts.before")] {
        std::fs::copy(&kept, path).unwrap();
    }
    spoil(&now);
    host.start(cluster, args);
    until("it has looked at its disk", || {
        let status = host.status();
        !status["remembered"].is_null() || status["snapshot"]["unfit"].as_array().is_some_and(|all| !all.is_empty())
    })
    .await;
    let status = host.status();
    if status["remembered"].is_null() {
        assert_eq!(dial(cluster, "10.96.1.1:80"), None);
    } else {
        until("it serves", || dial(cluster, "10.96.1.1:80").as_deref() == Some("pod-a")).await;
    }
    host.reboot();
    status
}

#[test]
fn forged_and_foreign_snapshots_are_refused_with_a_reason() {
    with_cluster(async |cluster: &mut Cluster| {
        fill(cluster).await;
        let _server = cluster.lab.pod(0).serve(8080).unwrap();
        let mut host = Host::of(cluster);
        host.start(cluster, &[]).wait_for("serving", PATIENCE).unwrap();
        until("it is on disk", || host.snapshot("local.facts").exists()).await;
        host.reboot();
        cluster.stop_api();
        std::fs::copy(host.snapshot("local.facts"), host.snapshot("kept")).unwrap();
        let unfit = |status: &Value| status["snapshot"]["unfit"].to_string();
        let forged = start_with(cluster, &mut host, &[], |path| {
            let text = std::fs::read_to_string(path).unwrap();
            std::fs::write(path, text.replace("10.244.1.2", "10.244.1.9")).unwrap();
        })
        .await;
        assert!(unfit(&forged).contains("checksum") && !forged["remembered"].is_null(), "{forged}");
        let truncated = start_with(cluster, &mut host, &[], |path| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        })
        .await;
        assert!(unfit(&truncated).contains("cut short") && !truncated["remembered"].is_null(), "{truncated}");
        let old = start_with(cluster, &mut host, &["--snapshot-max-age", "1ms"], |_| {}).await;
        assert!(unfit(&old).contains("--snapshot-max-age") && old["remembered"].is_null(), "{old}");
        // The disk of another host, put into this one: a cluster that this one has never met.
        let uid = Path::new(&host.state).join("clusters/local/uid");
        std::fs::write(&uid, "11111111-2222-4333-8444-555555555555\n").unwrap();
        let foreign = start_with(cluster, &mut host, &[], |_| {}).await;
        assert!(unfit(&foreign).contains("another cluster") && foreign["remembered"].is_null(), "{foreign}");
    });
}
