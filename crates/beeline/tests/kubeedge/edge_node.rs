//! An edge node: missing rights of cloudcore, the services that it reaches, and its behaviour while the cloud is
//! unreachable.

use crate::cloud::Cloud;
use crate::cluster::{SERVICES, TIMEOUT};
use crate::edge::Edge;
use beeline_harness::{EchoServer, Errno, TestNetwork};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Pods on e1, c1 and e2.
const WEB: &str = "10.96.1.1:80";
/// A pod on c1 only.
const CLOUD: &str = "10.96.1.2:80";
/// A pod on e2 only.
const FAR: &str = "10.96.1.3:80";
/// Deleted while the cloud is unreachable.
const OLD: &str = "10.96.1.4:80";
/// Created while the cloud is unreachable.
const NEW: &str = "10.96.1.5:80";

/// Runs the test in the cloud's namespace.
fn with_cloud(test: impl AsyncFnOnce(&mut Cloud<'_>) + Send) {
    let network = TestNetwork::with_nodes(&[1, 1, 1]).unwrap();
    for pods in ["10.244.2.0/24", "10.244.3.0/24", "fd00:244::2:0/112", "fd00:244::3:0/112"] {
        network.node().namespace.ip(&format!("route del {pods}\n")).unwrap();
    }
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { test(&mut Cloud::start(&network).await).await });
    };
    network.outside.namespace.run_in(run).unwrap();
}

/// Creates three nodes with a pod each, and starts a server per pod.
async fn create_objects(cloud: &Cloud<'_>) -> Vec<EchoServer> {
    let network = cloud.cluster.network;
    let edge = json!({ "node-role.kubernetes.io/edge": "" });
    for (name, node, labels) in [("e1", 0, edge.clone()), ("c1", 1, json!({})), ("e2", 2, edge)] {
        cloud.node(name, &network.nodes[node].host.v4.to_string(), labels).await;
    }
    // A port with the name https makes edgecore change a list of slices.
    cloud.service("web", "10.96.1.1", "https", 30080).await;
    cloud.service("cloud", "10.96.1.2", "http", 30081).await;
    cloud.service("far", "10.96.1.3", "http", 30082).await;
    cloud.service("old", "10.96.1.4", "http", 30083).await;
    cloud.pod("pod-a", "e1", &network.pod(0).v4.to_string(), json!({ "web": "yes" })).await;
    let labels = json!({ "web": "yes", "cloud": "yes", "old": "yes" });
    cloud.pod("pod-b", "c1", &network.pod(1).v4.to_string(), labels).await;
    cloud.pod("pod-c", "e2", &network.pod(2).v4.to_string(), json!({ "web": "yes", "far": "yes" })).await;
    network.pods().map(|pod| pod.serve(8080).unwrap()).collect()
}

#[test]
fn an_edge_node_serves_from_the_cache_of_edgecore() {
    with_cloud(async |cloud: &mut Cloud| {
        let _servers = create_objects(cloud).await;
        cloud.start_proxy();
        cloud.grant(&["endpoints"]).await;
        cloud.connect();
        let mut edge = Edge::join(cloud).await;
        edge.start();
        missing_rights_of_cloudcore_are_reported(cloud, &mut edge).await;
        pods_are_reached_directly_or_through_their_node(&edge).await;
        changes_are_followed(cloud, &edge).await;
        edgecore_changes_slices(cloud, &edge).await;
        an_idle_agent_reads_little(&edge).await;
        dials_continue_while_the_cloud_is_unreachable(cloud, &mut edge).await;
        an_agent_starts_while_the_cloud_is_unreachable(&mut edge).await;
        changes_are_applied_when_the_cloud_is_reachable_again(cloud, &edge).await;
    });
}

async fn missing_rights_of_cloudcore_are_reported(cloud: &Cloud<'_>, edge: &mut Edge<'_>) {
    edge.wait_until("the error names the manifest to apply", |edge| {
        edge.error().contains("deploy/edge/cloudcore.yaml")
    })
    .await;
    let why = edge.error();
    assert!(
        why.contains("http://127.0.0.1:10550 /api/v1/endpoints: the cloud is reachable but returns nothing"),
        "{why}"
    );
    assert_ne!(edge.status()["synced"], json!(true));
    let empty = edge.get("/api/v1/endpoints").unwrap();
    assert_eq!((&empty["items"], &empty["metadata"]), (&json!([]), &Value::Null), "200 with an empty list");
    cloud.apply(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/edge/cloudcore.yaml"));
    edge.wait_until("the source is synced", |edge| edge.status()["synced"] == json!(true) && edge.error().is_empty())
        .await;
}

async fn pods_are_reached_directly_or_through_their_node(edge: &Edge<'_>) {
    edge.wait_until("the node of the cloud answers", |edge| edge.dial(CLOUD).is_ok()).await;
    assert_eq!(edge.answers(CLOUD), ["pod-b"]);
    assert_eq!(
        edge.answers(WEB),
        ["pod-a", "pod-b"],
        "its own pod and the one in the cloud, not the one on the other edge node"
    );
    let message = edge.explain(WEB).to_string();
    for part in ["10.244.1.2:8080", "172.31.0.12:30080", "on another edge node, where no service proxy runs"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert_eq!(edge.dial(FAR), Err(Errno::ECONNREFUSED), "e2 runs no proxy: {}", edge.explain(FAR));
}

async fn changes_are_followed(cloud: &Cloud<'_>, edge: &Edge<'_>) {
    cloud.label("pod-a", "web", false).await;
    edge.wait_until("a removed pod is not used", |edge| edge.answers(WEB) == ["pod-b"]).await;
    cloud.label("pod-a", "web", true).await;
    edge.wait_until("an added pod is used", |edge| edge.answers(WEB) == ["pod-a", "pod-b"]).await;
}

/// EndpointSlices from edgecore are wrong, which is why the agent reads v1 Endpoints.
async fn edgecore_changes_slices(cloud: &Cloud<'_>, edge: &Edge<'_>) {
    cloud.grant_slices().await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let of = |list: &Value, service: &str| -> Value {
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|s| s["metadata"]["labels"]["kubernetes.io/service-name"] == service);
        found.unwrap_or(Value::Null)
    };
    edge.wait_until("slices can be listed", |edge| edge.get(path).is_some_and(|list| !of(&list, "web").is_null()))
        .await;
    let (seen, real) = (of(&edge.get(path).unwrap(), "web"), of(&cloud.cluster.get(path).await, "web"));
    assert_eq!(seen["endpoints"][0]["addresses"], json!(["127.0.0.1"]), "{seen}");
    assert_eq!((&seen["ports"][0]["port"], &real["ports"][0]["port"]), (&json!(10550), &json!(8080)));
    assert_eq!(real["endpoints"].as_array().map(Vec::len), Some(3));
    let endpoints = edge.get("/api/v1/namespaces/default/endpoints/web").unwrap();
    assert_eq!(endpoints["subsets"][0]["addresses"].as_array().map(Vec::len), Some(3), "{endpoints}");
}

/// Without changes the agent only checks whether the cloud is reachable.
async fn an_idle_agent_reads_little(edge: &Edge<'_>) {
    // The last change may arrive late, and failed requests of the start are repeated after 30 s.
    let (mut before, mut quiet) = (0, 0);
    edge.wait_until("no more data is read", |edge| {
        std::thread::sleep(Duration::from_secs(8));
        let now = edge.status()["bytes"].as_u64().unwrap();
        quiet = if now - std::mem::replace(&mut before, now) < 200 { quiet + 1 } else { 0 };
        quiet == 5
    })
    .await;
    let (read, sent) = (edge.status()["bytes"].as_u64().unwrap(), edge.bytes_on_link());
    tokio::time::sleep(Duration::from_secs(45)).await;
    let (read, sent) = (edge.status()["bytes"].as_u64().unwrap() - read, edge.bytes_on_link() - sent);
    println!("in 45 s: {read} bytes read from the cache, {sent} bytes over the link, including those of KubeEdge");
    assert!(read > 0 && read < 600, "{read} bytes read in 45 s");
}

fn both() -> Vec<String> {
    vec!["pod-a".into(), "pod-b".into()]
}

/// Dials continue, independent of changes in the cloud.
async fn dials_continue_while_the_cloud_is_unreachable(cloud: &mut Cloud<'_>, edge: &mut Edge<'_>) {
    assert_eq!(edge.answers(OLD), ["pod-b"]);
    edge.wait_until("the snapshot is written", |edge| edge.status()["snapshot"]["ageSeconds"].is_u64()).await;
    cloud.disconnect();
    let start = Instant::now();
    cloud.cluster.delete(&format!("{SERVICES}/old")).await;
    cloud.service("new", "10.96.1.5", "http", 30084).await;
    cloud.label("pod-b", "new", true).await;
    cloud.label("pod-a", "web", false).await;
    let mut dials = 0;
    while !edge.error().contains("the cloud cannot be reached") {
        // The Service is deleted in the cloud, but the edge node does not know.
        assert_eq!(edge.explain(OLD)["verdict"], "resolved");
        assert_eq!((edge.answers(WEB), edge.answers(CLOUD)), (both(), vec!["pod-b".into()]));
        dials += 120;
        assert!(start.elapsed() < TIMEOUT, "the lost connection is not reported: {:#}", edge.status());
    }
    println!(
        "the lost connection is reported after {:.1} s; {dials} dials, none failed",
        start.elapsed().as_secs_f32()
    );
    edge.kill();
    assert_eq!(edge.answers(WEB), ["pod-a", "pod-b"], "the pinned tables serve");
}

async fn an_agent_starts_while_the_cloud_is_unreachable(edge: &mut Edge<'_>) {
    edge.remove_pins();
    assert!(edge.dial(CLOUD).is_err(), "no program is attached");
    edge.start().wait_for("serving", TIMEOUT).unwrap();
    edge.wait_until("the snapshot is served", |edge| edge.status()["snapshotTime"].is_string()).await;
    assert_eq!((edge.answers(WEB), edge.answers(CLOUD)), (both(), vec!["pod-b".into()]));
    edge.wait_until("the error is reported", |edge| edge.error().contains("the cloud cannot be reached")).await;
    edge.remove_pins();
    edge.remove_snapshot();
    edge.start().wait_for("serving", TIMEOUT).unwrap();
    edge.wait_until("the database of edgecore is served", |edge| edge.dial(WEB).is_ok()).await;
    assert_eq!((&edge.status()["snapshotTime"], edge.answers(WEB).len()), (&Value::Null, 2));
}

async fn changes_are_applied_when_the_cloud_is_reachable_again(cloud: &mut Cloud<'_>, edge: &Edge<'_>) {
    let before = cloud.cluster.get(&format!("{SERVICES}/new")).await;
    assert_eq!(before["spec"]["clusterIP"], json!("10.96.1.5"));
    cloud.connect();
    edge.wait_until("a Service that was created meanwhile answers", |edge| {
        edge.dial(NEW).is_ok_and(|name| name == "pod-b")
    })
    .await;
    edge.wait_until("a Service that was deleted meanwhile is removed", |edge| {
        edge.explain(OLD)["verdict"] != "resolved"
    })
    .await;
    edge.wait_until("a pod that was removed meanwhile is not used", |edge| edge.answers(WEB) == ["pod-b"]).await;
    edge.wait_until("there is no error", |edge| edge.error().is_empty()).await;
    cloud.label("pod-a", "web", true).await;
    edge.wait_until("changes are followed again", |edge| edge.answers(WEB) == ["pod-a", "pod-b"]).await;
}
