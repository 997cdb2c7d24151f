//! A day of an edge node: what it may not read, what it serves, and what it does while the cloud is away.

use crate::cloud::Cloud;
use crate::cluster::{PATIENCE, SERVICES};
use crate::edge::Edge;
use beeline_harness::{Errno, Lab, Server};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Pods on e1, c1 and e2.
const WEB: &str = "10.96.1.1:80";
/// A pod on c1 only.
const CLOUD: &str = "10.96.1.2:80";
/// A pod on e2 only.
const FAR: &str = "10.96.1.3:80";
/// Deleted while the edge is cut off.
const OLD: &str = "10.96.1.4:80";
/// Made while the edge is cut off.
const NEW: &str = "10.96.1.5:80";

/// Runs the test in the cloud's namespace.
fn with_cloud(test: impl AsyncFnOnce(&mut Cloud<'_>) + Send) {
    let lab = Lab::with_nodes(&[1, 1, 1]).unwrap();
    for pods in ["10.244.2.0/24", "10.244.3.0/24", "fd00:244::2:0/112", "fd00:244::3:0/112"] {
        lab.node().namespace.ip(&format!("route del {pods}\n")).unwrap();
    }
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { test(&mut Cloud::start(&lab).await).await });
    };
    lab.outside.namespace.run_in(run).unwrap();
}

/// Three nodes with a pod each, and who answers there.
async fn furnish(cloud: &Cloud<'_>) -> Vec<Server> {
    let lab = cloud.cluster.lab;
    let edge = json!({ "node-role.kubernetes.io/edge": "" });
    for (name, node, labels) in [("e1", 0, edge.clone()), ("c1", 1, json!({})), ("e2", 2, edge)] {
        cloud.node(name, &lab.nodes[node].host.v4.to_string(), labels).await;
    }
    // A port named https is what spoils a list of slices.
    cloud.service("web", "10.96.1.1", "https", 30080).await;
    cloud.service("cloud", "10.96.1.2", "http", 30081).await;
    cloud.service("far", "10.96.1.3", "http", 30082).await;
    cloud.service("old", "10.96.1.4", "http", 30083).await;
    cloud.pod("pod-a", "e1", &lab.pod(0).v4.to_string(), json!({ "web": "yes" })).await;
    let labels = json!({ "web": "yes", "cloud": "yes", "old": "yes" });
    cloud.pod("pod-b", "c1", &lab.pod(1).v4.to_string(), labels).await;
    cloud.pod("pod-c", "e2", &lab.pod(2).v4.to_string(), json!({ "web": "yes", "far": "yes" })).await;
    lab.pods().map(|pod| pod.serve(8080).unwrap()).collect()
}

#[test]
fn an_edge_node_of_kubeedge() {
    with_cloud(async |cloud: &mut Cloud| {
        let _servers = furnish(cloud).await;
        cloud.start_proxy();
        cloud.grant(&["endpoints"]).await;
        cloud.connect();
        let mut edge = Edge::join(cloud).await;
        edge.start();
        cloudcore_may_not_read_everything(cloud, &mut edge).await;
        each_pod_by_its_way(&edge).await;
        changes_are_followed(cloud, &edge).await;
        slices_are_spoilt_on_the_way(cloud, &edge).await;
        little_is_carried(&edge).await;
        cut_off(cloud, &mut edge).await;
        started_while_cut_off(&mut edge).await;
        back(cloud, &edge).await;
    });
}

async fn cloudcore_may_not_read_everything(cloud: &Cloud<'_>, edge: &mut Edge<'_>) {
    edge.until("it says what to do", |edge| edge.error().contains("deploy/edge/cloudcore.yaml")).await;
    let why = edge.error();
    assert!(why.contains("http://127.0.0.1:10550 /api/v1/endpoints: the cloud is reached and gives nothing"), "{why}");
    assert_ne!(edge.status()["synced"], json!(true));
    let empty = edge.ask("/api/v1/endpoints").unwrap();
    assert_eq!((&empty["items"], &empty["metadata"]), (&json!([]), &Value::Null), "200, and no answer");
    cloud.apply(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/edge/cloudcore.yaml"));
    edge.until("it is synced", |edge| edge.status()["synced"] == json!(true) && edge.error().is_empty()).await;
}

async fn each_pod_by_its_way(edge: &Edge<'_>) {
    edge.until("the node of the cloud answers", |edge| edge.dial(CLOUD).is_ok()).await;
    assert_eq!(edge.answers(CLOUD), ["pod-b"]);
    assert_eq!(edge.answers(WEB), ["pod-a", "pod-b"], "its own and the cloud's, and not the other edge's");
    let said = edge.explain(WEB).to_string();
    for part in ["10.244.1.2:8080", "172.31.0.12:30080", "on another edge node, where nothing proxies"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert_eq!(edge.dial(FAR), Err(Errno::ECONNREFUSED), "nothing proxies at e2: {}", edge.explain(FAR));
}

async fn changes_are_followed(cloud: &Cloud<'_>, edge: &Edge<'_>) {
    cloud.label("pod-a", "web", false).await;
    edge.until("a pod left", |edge| edge.answers(WEB) == ["pod-b"]).await;
    cloud.label("pod-a", "web", true).await;
    edge.until("a pod came", |edge| edge.answers(WEB) == ["pod-a", "pod-b"]).await;
}

/// Why v1 Endpoints are read.
async fn slices_are_spoilt_on_the_way(cloud: &Cloud<'_>, edge: &Edge<'_>) {
    cloud.grant_slices().await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let of = |list: &Value, service: &str| -> Value {
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|s| s["metadata"]["labels"]["kubernetes.io/service-name"] == service);
        found.unwrap_or(Value::Null)
    };
    edge.until("slices can be listed", |edge| edge.ask(path).is_some_and(|list| !of(&list, "web").is_null())).await;
    let (seen, real) = (of(&edge.ask(path).unwrap(), "web"), of(&cloud.cluster.get(path).await, "web"));
    assert_eq!(seen["endpoints"][0]["addresses"], json!(["127.0.0.1"]), "{seen}");
    assert_eq!((&seen["ports"][0]["port"], &real["ports"][0]["port"]), (&json!(10550), &json!(8080)));
    assert_eq!(real["endpoints"].as_array().map(Vec::len), Some(3));
    let endpoints = edge.ask("/api/v1/namespaces/default/endpoints/web").unwrap();
    assert_eq!(endpoints["subsets"][0]["addresses"].as_array().map(Vec::len), Some(3), "{endpoints}");
}

/// Nothing changes meanwhile: what the agent reads is only whether the cloud is there.
async fn little_is_carried(edge: &Edge<'_>) {
    // The last change may be told late, and what could not be read at the start is tried again after 30 s.
    let (mut before, mut quiet) = (0, 0);
    edge.until("nothing more comes", |edge| {
        std::thread::sleep(Duration::from_secs(8));
        let now = edge.status()["bytes"].as_u64().unwrap();
        quiet = if now - std::mem::replace(&mut before, now) < 200 { quiet + 1 } else { 0 };
        quiet == 5
    })
    .await;
    let (read, carried) = (edge.status()["bytes"].as_u64().unwrap(), edge.carried());
    tokio::time::sleep(Duration::from_secs(45)).await;
    let (read, carried) = (edge.status()["bytes"].as_u64().unwrap() - read, edge.carried() - carried);
    println!("in 45 s: {read} bytes read from the cache, {carried} bytes over the link, KubeEdge's own included");
    assert!(read > 0 && read < 600, "{read} bytes read in 45 s");
}

fn both() -> Vec<String> {
    vec!["pod-a".into(), "pod-b".into()]
}

/// Dials go on, whatever changes in the cloud.
async fn cut_off(cloud: &mut Cloud<'_>, edge: &mut Edge<'_>) {
    assert_eq!(edge.answers(OLD), ["pod-b"]);
    edge.until("it is remembered", |edge| edge.status()["snapshot"]["ageSeconds"].is_u64()).await;
    cloud.disconnect();
    let start = Instant::now();
    cloud.cluster.delete(&format!("{SERVICES}/old")).await;
    cloud.service("new", "10.96.1.5", "http", 30084).await;
    cloud.label("pod-b", "new", true).await;
    cloud.label("pod-a", "web", false).await;
    let mut dials = 0;
    while !edge.error().contains("the cloud cannot be reached") {
        // What is deleted in the cloud is not served there any more; here nobody knows.
        assert_eq!(edge.explain(OLD)["verdict"], "resolved");
        assert_eq!((edge.answers(WEB), edge.answers(CLOUD)), (both(), vec!["pod-b".into()]));
        dials += 120;
        assert!(start.elapsed() < PATIENCE, "the cut is not noticed: {:#}", edge.status());
    }
    println!("the cut is noticed after {:.1} s; {dials} dials, none failed", start.elapsed().as_secs_f32());
    edge.kill();
    assert_eq!(edge.answers(WEB), ["pod-a", "pod-b"], "what is pinned serves");
}

async fn started_while_cut_off(edge: &mut Edge<'_>) {
    edge.forget();
    assert!(edge.dial(CLOUD).is_err(), "nothing of ours is left");
    edge.start().wait_for("serving", PATIENCE).unwrap();
    edge.until("what is remembered serves", |edge| edge.status()["remembered"].is_string()).await;
    assert_eq!((edge.answers(WEB), edge.answers(CLOUD)), (both(), vec!["pod-b".into()]));
    edge.until("why is told", |edge| edge.error().contains("the cloud cannot be reached")).await;
    edge.forget();
    edge.forget_snapshot();
    edge.start().wait_for("serving", PATIENCE).unwrap();
    edge.until("the cache's database serves", |edge| edge.dial(WEB).is_ok()).await;
    assert_eq!((&edge.status()["remembered"], edge.answers(WEB).len()), (&Value::Null, 2));
}

async fn back(cloud: &mut Cloud<'_>, edge: &Edge<'_>) {
    let before = cloud.cluster.get(&format!("{SERVICES}/new")).await;
    assert_eq!(before["spec"]["clusterIP"], json!("10.96.1.5"));
    cloud.connect();
    edge.until("what was made meanwhile serves", |edge| edge.dial(NEW).is_ok_and(|name| name == "pod-b")).await;
    edge.until("what was deleted meanwhile is gone", |edge| edge.explain(OLD)["verdict"] != "resolved").await;
    edge.until("a pod left meanwhile", |edge| edge.answers(WEB) == ["pod-b"]).await;
    edge.until("all is well", |edge| edge.error().is_empty()).await;
    cloud.label("pod-a", "web", true).await;
    edge.until("changes are followed again", |edge| edge.answers(WEB) == ["pod-a", "pod-b"]).await;
}
