//! The whole agent on an API server: what a process on the node finds when it dials.

use crate::cluster::{API, Cluster, NODES, PATIENCE, SERVICES, SLICES, with_cluster};
use beeline_cluster::STARTUP_TAINT;
use beeline_harness::{Dial, Kind, Running};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

/// Removes its pins with it.
pub struct Agent {
    pub running: Option<Running>,
    pub pins: PathBuf,
    pub socket: String,
}

impl Agent {
    pub fn of(cluster: &Cluster) -> Agent {
        let pins = PathBuf::from(format!("/sys/fs/bpf/beeline-api-{}", std::process::id()));
        Agent { running: None, pins, socket: cluster.path("agent.sock") }
    }

    pub fn start(&mut self, cluster: &Cluster, args: &[&str]) -> &mut Running {
        let node = ["--node-name", "node-1"];
        self.start_outside(cluster, &[&node, args].concat())
    }

    /// Who it is stands in its file.
    pub fn start_outside(&mut self, cluster: &Cluster, args: &[&str]) -> &mut Running {
        let node = cluster.lab.node();
        let own = ["agent", "--max-services", "256", "--socket", &self.socket];
        let program = node.program(BEELINE).unwrap().args(own).args(args);
        let program =
            program.args([Path::new("--cgroup"), cluster.lab.cgroup().path(), Path::new("--pin-dir"), &self.pins]);
        self.running.insert(program.spawn().unwrap())
    }

    /// Cleanly; what it pinned stays.
    pub fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.signal(rustix::process::Signal::TERM).unwrap();
        running.finish(PATIENCE).unwrap();
    }

    pub fn status(&self) -> Value {
        let asked = ["status", "-o", "json", "--socket", &self.socket, "--pin-dir", self.pins.to_str().unwrap()];
        let output = std::process::Command::new(BEELINE).args(asked).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.running.as_ref().map(Running::stderr).unwrap_or_default());
        }
        self.running = None;
        let _ = beeline_datapath::program::cleanup(&self.pins);
    }
}

pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub fn dial(cluster: &Cluster, at: &str) -> String {
    let client = cluster.lab.node().client().unwrap();
    client.dial(&Dial::new(Kind::Tcp, at.parse().unwrap())).unwrap().name().to_owned()
}

/// Of a server on this node: the status line and headers, and the body.
fn ask(port: u16, path: &str) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(SocketAddr::from(([172, 31, 0, 11], port)))
        .or_else(|_| TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    Ok((head.to_ascii_lowercase(), body.into()))
}

#[test]
fn serves_what_the_api_server_says() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_service("web", "10.96.1.1").await;
        cluster.create_slice("web", "web-1", &[&cluster.lab.pod(0).v4.to_string()]).await;
        let _a = cluster.lab.pod(0).serve(8080).unwrap();
        let _b = cluster.lab.pod(1).serve(8080).unwrap();
        let kubeconfig = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
        let kubeconfig = kubeconfig.to_str().unwrap().to_owned();
        let mut agent = Agent::of(cluster);
        agent.start(cluster, &["--kubeconfig", &kubeconfig]).wait_for("serving", PATIENCE).unwrap();
        assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a");
        let endpoints = json!([{ "addresses": [cluster.lab.pod(1).v4.to_string()] }]);
        let now = kube_time();
        let meta = json!({ "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": now } });
        cluster.patch(&format!("{SLICES}/web-1"), json!({ "metadata": meta, "endpoints": endpoints })).await;
        until("the other pod answers", || dial(cluster, "10.96.1.1:80") == "pod-b").await;
        let (_, metrics) = ask(10249, "/metrics").unwrap();
        assert!(metrics.contains("kubeproxy_network_programming_duration_seconds_count 1"), "{metrics}");
        a_load_balancer_asks(cluster).await;
        two_services_claim_one_address(cluster, &agent).await;
        an_api_server_that_is_down_at_start(cluster, &mut agent, &kubeconfig).await;
    });
}

/// It is one of a list, so the agent goes on without it: what is told to the cluster is told whenever that comes.
#[test]
fn a_node_whose_kubeconfig_comes_late_loses_its_taint() {
    with_cluster(async |cluster: &mut Cluster| {
        let taint = json!([{ "key": STARTUP_TAINT, "effect": "NoSchedule" }]);
        cluster.create_node("node-1", "172.31.0.11", taint).await;
        let (config, late) = (cluster.path("beeline.yaml"), cluster.path("late"));
        std::fs::write(&config, json!({ "clusters": [{ "name": "home", "kubeconfig": late }] }).to_string()).unwrap();
        let mut agent = Agent::of(cluster);
        let state = cluster.path("state");
        agent.start(cluster, &["--config", &config, "--state-dir", &state, "--clear-startup-taint"]);
        let error = |agent: &Agent| agent.status()["clusters"][0]["error"].as_str().map(str::to_owned);
        until("it says what is missing", || error(&agent).is_some_and(|why| why.contains(&late))).await;
        let kubeconfig = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
        std::fs::rename(kubeconfig, &late).unwrap();
        let start = Instant::now();
        while cluster.get(&format!("{NODES}/node-1")).await["spec"]["taints"].to_string().contains(STARTUP_TAINT) {
            assert!(start.elapsed() < PATIENCE, "the taint stays");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

fn kube_time() -> String {
    jiff::Timestamp::now().to_string()
}

async fn a_load_balancer_asks(cluster: &Cluster<'_>) {
    let spec =
        json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{ "name": "http", "port": 80 }] });
    cluster.create(SERVICES, json!({ "metadata": { "name": "lb" }, "spec": spec })).await;
    cluster.create_slice("lb", "lb-1", &["10.244.1.2", "10.244.1.3"]).await;
    let lb = cluster.get(&format!("{SERVICES}/lb")).await;
    let port = u16::try_from(lb["spec"]["healthCheckNodePort"].as_u64().unwrap()).unwrap();
    let says = |code: &str| ask(port, "/").is_ok_and(|(head, _)| head.starts_with(&format!("http/1.0 {code}")));
    until("two local endpoints", || says("200")).await;
    let (head, body) = ask(port, "/anything").unwrap();
    assert!(head.contains("x-load-balancing-endpoint-weight: 2") && head.contains("nosniff"), "{head}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        body,
        json!({ "service": { "namespace": "default", "name": "lb" }, "localEndpoints": 2, "serviceProxyHealthy": true })
    );
    let away = json!({ "endpoints": [{ "addresses": ["10.244.2.2"], "nodeName": "node-2" }] });
    cluster.patch(&format!("{SLICES}/lb-1"), away).await;
    until("none is here any more", || says("503")).await;
    cluster.delete(&format!("{SERVICES}/lb")).await;
    until("nobody listens any more", || ask(port, "/").is_err()).await;
}

/// Each for itself is fine; the younger is told on its own object, and only that one.
async fn two_services_claim_one_address(cluster: &Cluster<'_>, agent: &Agent) {
    for name in ["older", "younger"] {
        let spec = json!({ "externalIPs": ["192.0.2.7"], "ports": [{ "name": "http", "port": 80 }] });
        cluster.create(SERVICES, json!({ "metadata": { "name": name }, "spec": spec })).await;
        // Creation times have no fractions.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let refused = || agent.status()["refusals"].as_array().cloned().unwrap_or_default();
    until("the younger is refused", || refused().iter().any(|r| r["subject"] == "Service default/younger")).await;
    let events = async |name: &str| {
        let path = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}");
        cluster.get(&path).await["items"].as_array().cloned().unwrap_or_default()
    };
    let start = Instant::now();
    while events("younger").await.is_empty() {
        assert!(start.elapsed() < PATIENCE, "no Event about the conflict");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (event, younger) = (&events("younger").await[0], cluster.get(&format!("{SERVICES}/younger")).await);
    assert_eq!((&event["reason"], &event["type"]), (&json!("AddressConflict"), &json!("Warning")), "{event}");
    assert_eq!(event["involvedObject"]["uid"], younger["metadata"]["uid"], "{event}");
    assert!(event["message"].as_str().unwrap().contains("default/older"), "{event}");
    assert!(events("older").await.is_empty());
    cluster.delete(&format!("{SERVICES}/older")).await;
    until("the younger has the address now", || refused().is_empty()).await;
    cluster.delete(&format!("{SERVICES}/younger")).await;
}

async fn an_api_server_that_is_down_at_start(cluster: &mut Cluster<'_>, agent: &mut Agent, kubeconfig: &str) {
    agent.running = None;
    cluster.stop_api();
    agent.start(cluster, &["--kubeconfig", kubeconfig]);
    until("it says that it waits", || {
        let source = &agent.status()["source"];
        source["synced"] == json!(false) && source["error"].as_str().is_some_and(|e| e.contains(API))
    })
    .await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-b", "what is pinned serves");
    let (live, ready) = (ask(10256, "/livez").unwrap().0, ask(10256, "/healthz").unwrap().0);
    assert!(live.starts_with("http/1.0 200") && ready.starts_with("http/1.0 503"), "{live} {ready}");
    cluster.start_api().await;
    until("it is synced", || agent.status()["source"]["synced"] == json!(true)).await;
    let healthy = || ask(10256, "/healthz").is_ok_and(|(head, _)| head.starts_with("http/1.0 200"));
    until("it is healthy", healthy).await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-b");
}
