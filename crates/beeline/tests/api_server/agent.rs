//! An agent with an API server as its source: dials, health checks, events, the startup taint, and a late API server.

use crate::cluster::{API, Cluster, NODES, SERVICES, SLICES, TIMEOUT, with_cluster};
use beeline_cluster::STARTUP_TAINT;
use beeline_harness::{DialKind, DialRequest, RunningProgram};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

/// An agent process. Its pins are removed on drop.
pub struct TestAgent {
    pub running: Option<RunningProgram>,
    pub pins: PathBuf,
    pub socket: String,
}

impl TestAgent {
    pub fn new(cluster: &Cluster) -> TestAgent {
        let pins = PathBuf::from(format!("/sys/fs/bpf/beeline-api-{}", std::process::id()));
        TestAgent { running: None, pins, socket: cluster.path("agent.sock") }
    }

    pub fn start(&mut self, cluster: &Cluster, args: &[&str]) -> &mut RunningProgram {
        let node = ["--node-name", "node-1"];
        self.start_outside(cluster, &[&node, args].concat())
    }

    /// Starts the agent without a node name; the configuration file has its role.
    pub fn start_outside(&mut self, cluster: &Cluster, args: &[&str]) -> &mut RunningProgram {
        let node = cluster.network.node();
        let own = ["agent", "--max-services", "256", "--socket", &self.socket];
        let program = node.program(BEELINE).unwrap().args(own).args(args);
        let program =
            program.args([Path::new("--cgroup"), cluster.network.cgroup().path(), Path::new("--pin-dir"), &self.pins]);
        self.running.insert(program.spawn().unwrap())
    }

    /// Sends SIGTERM and waits. The pins stay.
    pub fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.signal(rustix::process::Signal::TERM).unwrap();
        running.finish(TIMEOUT).unwrap();
    }

    pub fn status(&self) -> Value {
        let args = ["status", "-o", "json", "--socket", &self.socket, "--pin-dir", self.pins.to_str().unwrap()];
        let output = std::process::Command::new(BEELINE).args(args).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.running.as_ref().map(RunningProgram::stderr).unwrap_or_default());
        }
        self.running = None;
        let _ = beeline_datapath::program::cleanup(&self.pins);
    }
}

pub async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub fn dial(cluster: &Cluster, at: &str) -> String {
    let client = cluster.network.node().client().unwrap();
    client.dial(&DialRequest::new(DialKind::Tcp, at.parse().unwrap())).unwrap().name().to_owned()
}

/// Sends an HTTP request to this node. Returns the status line with the headers, and the body.
fn http_get(port: u16, path: &str) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(SocketAddr::from(([172, 31, 0, 11], port)))
        .or_else(|_| TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    Ok((head.to_ascii_lowercase(), body.into()))
}

#[test]
fn an_agent_follows_the_api_server() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_service("web", "10.96.1.1").await;
        cluster.create_slice("web", "web-1", &[&cluster.network.pod(0).v4.to_string()]).await;
        let _a = cluster.network.pod(0).serve(8080).unwrap();
        let _b = cluster.network.pod(1).serve(8080).unwrap();
        let kubeconfig = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
        let kubeconfig = kubeconfig.to_str().unwrap().to_owned();
        let mut agent = TestAgent::new(cluster);
        agent.start(cluster, &["--kubeconfig", &kubeconfig]).wait_for("serving", TIMEOUT).unwrap();
        assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a");
        let endpoints = json!([{ "addresses": [cluster.network.pod(1).v4.to_string()] }]);
        let now = kube_time();
        let meta = json!({ "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": now } });
        cluster.patch(&format!("{SLICES}/web-1"), json!({ "metadata": meta, "endpoints": endpoints })).await;
        wait_until("the other pod answers", || dial(cluster, "10.96.1.1:80") == "pod-b").await;
        let (_, metrics) = http_get(10249, "/metrics").unwrap();
        assert!(metrics.contains("kubeproxy_network_programming_duration_seconds_count 1"), "{metrics}");
        health_check_node_port_counts_local_endpoints(cluster).await;
        the_younger_of_two_services_with_one_address_is_refused(cluster, &agent).await;
        an_agent_starts_without_the_api_server(cluster, &mut agent, &kubeconfig).await;
    });
}

/// The cluster is in a list, so the agent starts without its kubeconfig. Once the kubeconfig exists, the agent removes the
/// taint.
#[test]
fn the_startup_taint_is_removed_when_the_kubeconfig_comes_late() {
    with_cluster(async |cluster: &mut Cluster| {
        let taint = json!([{ "key": STARTUP_TAINT, "effect": "NoSchedule" }]);
        cluster.create_node("node-1", "172.31.0.11", taint).await;
        let (config, late) = (cluster.path("beeline.yaml"), cluster.path("late"));
        std::fs::write(&config, json!({ "clusters": [{ "name": "home", "kubeconfig": late }] }).to_string()).unwrap();
        let mut agent = TestAgent::new(cluster);
        let state = cluster.path("state");
        agent.start(cluster, &["--config", &config, "--state-dir", &state, "--clear-startup-taint"]);
        let error = |agent: &TestAgent| agent.status()["clusters"][0]["error"].as_str().map(str::to_owned);
        wait_until("the status names the missing file", || error(&agent).is_some_and(|why| why.contains(&late))).await;
        let kubeconfig = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
        std::fs::rename(kubeconfig, &late).unwrap();
        let start = Instant::now();
        while cluster.get(&format!("{NODES}/node-1")).await["spec"]["taints"].to_string().contains(STARTUP_TAINT) {
            assert!(start.elapsed() < TIMEOUT, "the startup taint is not removed");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

fn kube_time() -> String {
    jiff::Timestamp::now().to_string()
}

async fn health_check_node_port_counts_local_endpoints(cluster: &Cluster<'_>) {
    let spec =
        json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{ "name": "http", "port": 80 }] });
    cluster.create(SERVICES, json!({ "metadata": { "name": "lb" }, "spec": spec })).await;
    cluster.create_slice("lb", "lb-1", &["10.244.1.2", "10.244.1.3"]).await;
    let lb = cluster.get(&format!("{SERVICES}/lb")).await;
    let port = u16::try_from(lb["spec"]["healthCheckNodePort"].as_u64().unwrap()).unwrap();
    let responds =
        |code: &str| http_get(port, "/").is_ok_and(|(head, _)| head.starts_with(&format!("http/1.0 {code}")));
    wait_until("two local endpoints", || responds("200")).await;
    let (head, body) = http_get(port, "/anything").unwrap();
    assert!(head.contains("x-load-balancing-endpoint-weight: 2") && head.contains("nosniff"), "{head}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        body,
        json!({ "service": { "namespace": "default", "name": "lb" }, "localEndpoints": 2, "serviceProxyHealthy": true })
    );
    let away = json!({ "endpoints": [{ "addresses": ["10.244.2.2"], "nodeName": "node-2" }] });
    cluster.patch(&format!("{SLICES}/lb-1"), away).await;
    wait_until("there is no local endpoint any more", || responds("503")).await;
    cluster.delete(&format!("{SERVICES}/lb")).await;
    wait_until("the port is closed", || http_get(port, "/").is_err()).await;
}

/// Only the younger Service gets an Event about the conflict.
async fn the_younger_of_two_services_with_one_address_is_refused(cluster: &Cluster<'_>, agent: &TestAgent) {
    for name in ["older", "younger"] {
        let spec = json!({ "externalIPs": ["192.0.2.7"], "ports": [{ "name": "http", "port": 80 }] });
        cluster.create(SERVICES, json!({ "metadata": { "name": name }, "spec": spec })).await;
        // Creation timestamps have a resolution of one second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let refused = || agent.status()["refusals"].as_array().cloned().unwrap_or_default();
    wait_until("the younger is refused", || refused().iter().any(|r| r["subject"] == "Service default/younger")).await;
    let events = async |name: &str| {
        let path = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}");
        cluster.get(&path).await["items"].as_array().cloned().unwrap_or_default()
    };
    let start = Instant::now();
    while events("younger").await.is_empty() {
        assert!(start.elapsed() < TIMEOUT, "no Event about the conflict");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (event, younger) = (&events("younger").await[0], cluster.get(&format!("{SERVICES}/younger")).await);
    assert_eq!((&event["reason"], &event["type"]), (&json!("AddressConflict"), &json!("Warning")), "{event}");
    assert_eq!(event["involvedObject"]["uid"], younger["metadata"]["uid"], "{event}");
    assert!(event["message"].as_str().unwrap().contains("default/older"), "{event}");
    assert!(events("older").await.is_empty());
    cluster.delete(&format!("{SERVICES}/older")).await;
    wait_until("the younger Service gets the address", || refused().is_empty()).await;
    cluster.delete(&format!("{SERVICES}/younger")).await;
}

async fn an_agent_starts_without_the_api_server(cluster: &mut Cluster<'_>, agent: &mut TestAgent, kubeconfig: &str) {
    agent.running = None;
    cluster.stop_api();
    agent.start(cluster, &["--kubeconfig", kubeconfig]);
    wait_until("the status reports that the API server is unreachable", || {
        let source = &agent.status()["source"];
        source["synced"] == json!(false) && source["error"].as_str().is_some_and(|e| e.contains(API))
    })
    .await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-b", "the pinned tables serve");
    let (live, ready) = (http_get(10256, "/livez").unwrap().0, http_get(10256, "/healthz").unwrap().0);
    assert!(live.starts_with("http/1.0 200") && ready.starts_with("http/1.0 503"), "{live} {ready}");
    cluster.start_api().await;
    wait_until("the source is synced", || agent.status()["source"]["synced"] == json!(true)).await;
    let healthy = || http_get(10256, "/healthz").is_ok_and(|(head, _)| head.starts_with("http/1.0 200"));
    wait_until("the agent is healthy", healthy).await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-b");
}
