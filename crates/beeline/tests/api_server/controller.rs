//! The controller on a real API server: published slices and nodes, admission, status, leader election and certificates.

mod isolation;

use crate::cluster::{Cluster, TIMEOUT, with_cluster};
use crate::source_reader::SourceReader;
use beeline_cluster::{ApiServerSource, NodeScope, ReportSettings};
use beeline_harness::RunningProgram;
use beeline_model::change::Change;
use beeline_model::object::Object;
use beeline_model::rollout::{DigestTracker, RolloutReport};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");
const POLICIES: &str = "/apis/beeline.dev/v1alpha1/namespaces/default";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

fn balancing() -> String {
    format!("{POLICIES}/balancingpolicies")
}

fn redirects() -> String {
    format!("{POLICIES}/localredirectpolicies")
}

/// A replica of the controller, killed on drop.
struct Controller {
    running: Option<RunningProgram>,
    health: u16,
}

impl Controller {
    fn start(cluster: &Cluster<'_>, number: u16, more: &[&str]) -> Controller {
        let kubeconfig = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
        let (webhook, health) = (format!("127.0.0.1:{}", 9443 + number), 10358 + number);
        let own = [
            "controller",
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
            "--webhook-name",
            "127.0.0.1",
            "--webhook-bind-address",
            &webhook,
            "--healthz-bind-address",
            &format!("127.0.0.1:{health}"),
            "--identity",
            &format!("replica-{number}"),
            "--lease-duration",
            "4s",
            "--shutdown-delay",
            "100ms",
        ];
        let program = cluster.network.node().program(BEELINE).unwrap().args(own).args(more);
        Controller { running: Some(program.spawn().unwrap()), health }
    }

    async fn wait_until_ready(&self) {
        wait_until("the controller is ready", async || {
            http_get(self.health, "/readyz").await.starts_with("HTTP/1.1 200")
        })
        .await;
    }

    async fn is_leader(&self) -> bool {
        http_get(self.health, "/metrics").await.lines().any(|line| line == "beeline_controller_leader 1")
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.running.as_ref().map(RunningProgram::stderr).unwrap_or_default());
        }
    }
}

async fn http_get(port: u16, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let response = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        std::io::Result::Ok(text)
    };
    response.await.unwrap_or_default()
}

async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Installs the custom resource definitions.
async fn install(cluster: &Cluster<'_>) {
    for definition in beeline_cluster::policy::definitions() {
        cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    }
    let listed = async || cluster.request("GET", &balancing(), &json!({})).await.is_ok();
    wait_until("the custom resources are served", listed).await;
}

/// Creates the webhook configuration of the chart, for a controller at this port.
async fn install_webhooks(cluster: &Cluster<'_>, port: u16) {
    let reaches = "has(object.spec.frontend.addressMatcher) || has(object.spec.backend.addressEndpoint) || (has(object.spec.backend.serviceEndpoint) && has(object.spec.backend.serviceEndpoint.namespaceSelector))";
    let hook = |name: &str, failure: &str, condition: String| {
        json!({
            "name": name,
            "clientConfig": { "url": format!("https://127.0.0.1:{port}/admit") },
            "rules": [{
                "apiGroups": ["beeline.dev"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["localredirectpolicies", "balancingpolicies"], "scope": "Namespaced",
            }],
            "failurePolicy": failure,
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"],
            "matchConditions": [
                { "name": "spec-changed", "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec" },
                { "name": "reach", "expression": condition },
            ],
        })
    };
    let webhooks = [
        hook("reach.policies.beeline.dev", "Fail", reaches.into()),
        hook("conflict.policies.beeline.dev", "Ignore", format!("!({reaches})")),
    ];
    cluster.create(HOOKS, json!({ "metadata": { "name": "beeline-controller" }, "webhooks": webhooks })).await;
    wait_until("the CA bundle is written", async || {
        let found = cluster.get(&format!("{HOOKS}/beeline-controller")).await;
        let url = format!("https://127.0.0.1:{port}/admit/");
        found["webhooks"].as_array().unwrap().iter().map(|hook| &hook["clientConfig"]).all(|client| {
            client["caBundle"].is_string() && client["url"].as_str().is_some_and(|at| at.len() == url.len() + 64)
        })
    })
    .await;
}

fn balancing_policy(name: &str, service: &str, app: &str) -> Value {
    json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "BalancingPolicy", "metadata": { "name": name },
        "spec": {
            "frontend": { "serviceMatcher": {
                "serviceName": service, "toPorts": [{ "name": "http", "port": 80, "protocol": "TCP" }] } },
            "backend": { "serviceEndpoint": {
                "endpointSelector": { "matchLabels": { "app": app } },
                "toPorts": [{ "name": "http", "port": "web", "protocol": "TCP" }] } },
        },
    })
}

fn virtual_address_policy(name: &str, ip: &str) -> Value {
    let mut policy = balancing_policy(name, "web", "web");
    policy["spec"]["frontend"] = json!({ "addressMatcher": {
        "ip": ip, "toPorts": [{ "name": "http", "port": 80, "protocol": "TCP" }] } });
    policy
}

async fn create_pod(cluster: &Cluster<'_>, namespace: &str, name: &str, ip: &str, port: u16) {
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let ports = json!([{ "name": "web", "containerPort": port }]);
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": "web" } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "c", "image": "none", "ports": ports }] },
    });
    cluster.create(&pods, pod).await;
    set_ready(cluster, namespace, name, ip, true).await;
}

async fn set_ready(cluster: &Cluster<'_>, namespace: &str, name: &str, ip: &str, ready: bool) {
    let word = if ready { "True" } else { "False" };
    let status = json!({ "status": {
        "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
        "conditions": [{ "type": "Ready", "status": word }] } });
    cluster.patch(&format!("/api/v1/namespaces/{namespace}/pods/{name}/status"), status).await;
}

async fn create_namespace(cluster: &Cluster<'_>, name: &str, labels: Value) {
    cluster.create("/api/v1/namespaces", json!({ "metadata": { "name": name, "labels": labels } })).await;
}

/// Addresses and ports of the endpoints that are published for a policy.
async fn published(cluster: &Cluster<'_>, policy: &str) -> Vec<(String, u64)> {
    let path = format!(
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=beeline.dev%2Fpolicy%3D{policy}"
    );
    let found = cluster.get(&path).await;
    let mut all = Vec::new();
    for slice in found["items"].as_array().unwrap() {
        assert_eq!(slice["metadata"]["ownerReferences"][0]["name"], policy);
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let ip = endpoint["addresses"][0].as_str().unwrap().to_owned();
            all.push((ip, slice["ports"][0]["port"].as_u64().unwrap()));
        }
    }
    all.sort();
    all
}

async fn wait_until_published(cluster: &Cluster<'_>, policy: &str, wanted: &[(&str, u64)]) {
    let wanted: Vec<(String, u64)> = wanted.iter().map(|(ip, port)| ((*ip).to_owned(), *port)).collect();
    wait_until(&format!("{policy} has {wanted:?}"), async || published(cluster, policy).await == wanted).await;
}

/// Status, reason and message of a condition.
async fn condition(cluster: &Cluster<'_>, path: &str, kind: &str) -> (String, String, String) {
    let found = cluster.get(path).await;
    let all = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let one = all.into_iter().find(|c| c["type"] == kind).unwrap_or_default();
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

async fn wait_for_condition(cluster: &Cluster<'_>, path: &str, kind: &str, status: &str, reason: &str) {
    let what = format!("{path} is {kind} {status} {reason}");
    wait_until(&what, async || {
        let (is, why, _) = condition(cluster, path, kind).await;
        is == status && why == reason
    })
    .await;
}

/// Creates an object as this user; returns the server's message on failure.
async fn create_as(cluster: &Cluster<'_>, user: &str, path: &str, object: &Value) -> Result<(), String> {
    let request = http::Request::post(path).header("content-type", "application/json");
    send_as(cluster, user, request, object).await
}

/// Changes an object as this user; returns the server's message on failure.
async fn patch_as(cluster: &Cluster<'_>, user: &str, path: &str, patch: &Value) -> Result<(), String> {
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    send_as(cluster, user, request, patch).await
}

async fn send_as(
    cluster: &Cluster<'_>,
    user: &str,
    request: http::request::Builder,
    object: &Value,
) -> Result<(), String> {
    let request = request.header("impersonate-user", user).header("impersonate-group", "system:authenticated");
    let request = request.body(serde_json::to_vec(object).unwrap()).unwrap();
    match cluster.client().await.request::<Value>(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(error) => panic!("{error}"),
    }
}

async fn create_refused(cluster: &Cluster<'_>, path: &str, object: &Value) -> String {
    match cluster.request("POST", path, object).await {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn policies_get_slices_and_status() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster).await;
        create_namespace(cluster, "lab", json!({ "team": "a" })).await;
        let controller = Controller::start(cluster, 0, &[]);
        controller.wait_until_ready().await;
        let path = format!("{}/api", balancing());
        cluster.create(&balancing(), balancing_policy("api", "web", "web")).await;
        wait_for_condition(cluster, &path, "Accepted", "False", "ServiceNotFound").await;
        cluster.create_service("web", "10.96.1.1").await;
        wait_for_condition(cluster, &path, "Accepted", "True", "Accepted").await;
        pods_are_followed(cluster, &path).await;
        namespaces_are_followed(cluster).await;
        reports_of_nodes_become_the_programmed_condition(cluster, &path).await;
        a_policy_that_is_created_again_gets_new_slices(cluster, &path).await;
        nodes_are_published(cluster).await;
    });
}

async fn pods_are_followed(cluster: &Cluster<'_>, path: &str) {
    create_pod(cluster, "default", "a", "10.244.1.1", 8080).await;
    create_pod(cluster, "default", "b", "10.244.1.2", 9090).await;
    wait_until_published(cluster, "api", &[("10.244.1.1", 8080), ("10.244.1.2", 9090)]).await;
    set_ready(cluster, "default", "b", "10.244.1.2", false).await;
    wait_until_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
    set_ready(cluster, "default", "b", "10.244.1.2", true).await;
    wait_until_published(cluster, "api", &[("10.244.1.1", 8080), ("10.244.1.2", 9090)]).await;
    cluster.patch("/api/v1/namespaces/default/pods/b", json!({ "metadata": { "labels": { "app": "other" } } })).await;
    wait_until_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
    wait_until("one backend is counted", async || cluster.get(path).await["status"]["backends"] == 1).await;
    // Changes by others are corrected.
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let found = cluster.get(&format!("{slices}?labelSelector=beeline.dev%2Fpolicy%3Dapi")).await;
    let name = found["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
    cluster.patch(&format!("{slices}/{name}"), json!({ "endpoints": [{ "addresses": ["192.0.2.66"] }] })).await;
    wait_until_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
    cluster.delete(&format!("{slices}/{name}")).await;
    wait_until_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
}

async fn namespaces_are_followed(cluster: &Cluster<'_>) {
    cluster.create_service("other", "10.96.1.2").await;
    let mut wide = balancing_policy("wide", "other", "web");
    wide["spec"]["backend"]["serviceEndpoint"]["namespaceSelector"] = json!({ "matchLabels": { "team": "a" } });
    cluster.create(&balancing(), wide).await;
    create_pod(cluster, "lab", "c", "10.244.2.1", 8080).await;
    wait_until_published(cluster, "wide", &[("10.244.2.1", 8080)]).await;
    cluster.patch("/api/v1/namespaces/default", json!({ "metadata": { "labels": { "team": "a" } } })).await;
    wait_until_published(cluster, "wide", &[("10.244.1.1", 8080), ("10.244.2.1", 8080)]).await;
    cluster.patch("/api/v1/namespaces/lab", json!({ "metadata": { "labels": { "team": "b" } } })).await;
    wait_until_published(cluster, "wide", &[("10.244.1.1", 8080)]).await;
    cluster.delete(&format!("{}/wide", balancing())).await;
    wait_until_published(cluster, "wide", &[]).await;
}

/// Reports as an agent does, with the digest of its objects.
async fn reports_of_nodes_become_the_programmed_condition(cluster: &Cluster<'_>, path: &str) {
    cluster.create_node("node-1", "172.31.0.11", json!([])).await;
    cluster.create("/api/v1/namespaces", json!({ "metadata": { "name": "beeline-reports" } })).await;
    wait_for_condition(cluster, path, "Programmed", "False", "Pending").await;
    let message = condition(cluster, path, "Programmed").await.2;
    assert_eq!(message, "waiting for the reports of 1 of 1 nodes: node-1");
    let (reports, report) = watch::channel::<Option<RolloutReport>>(None);
    let period = Duration::from_millis(500);
    let server = ApiServerSource { reports: Some(ReportSettings { report, period }), ..cluster.server() };
    let mut reader = SourceReader::start(server);
    reader.wait_until("the policy is read", |r| r.last.synced && r.state.policies.len() == 1).await;
    let mut digests = DigestTracker::default();
    for policy in reader.state.policies.values() {
        digests.apply(&Change::Upsert(Object::Policy(policy.clone())));
    }
    reports.send_replace(Some(digests.report(Vec::new())));
    wait_for_condition(cluster, path, "Programmed", "True", "Programmed").await;
    assert_eq!(cluster.get(path).await["status"]["nodes"]["text"], "1/1");
    let failing =
        beeline_model::rollout::FailingPolicy { policy: "BalancingPolicy default/api".into(), reason: "full".into() };
    reports.send_replace(Some(digests.report(vec![failing])));
    wait_for_condition(cluster, path, "Programmed", "False", "Failing").await;
    assert!(condition(cluster, path, "Programmed").await.2.contains("node-1 (full)"));
    reports.send_replace(Some(digests.report(Vec::new())));
    wait_for_condition(cluster, path, "Programmed", "True", "Programmed").await;
    // A new generation that the node has not reported yet.
    let merge = json!({ "spec": { "config": { "enableOutCluster": false } } });
    cluster.patch(path, merge).await;
    wait_for_condition(cluster, path, "Programmed", "False", "Pending").await;
    let seen = cluster.get(path).await;
    assert_eq!(seen["status"]["observedGeneration"], seen["metadata"]["generation"]);
}

async fn a_policy_that_is_created_again_gets_new_slices(cluster: &Cluster<'_>, path: &str) {
    let before = cluster.get(path).await["metadata"]["uid"].clone();
    cluster.delete(path).await;
    wait_until_published(cluster, "api", &[]).await;
    cluster.create(&balancing(), balancing_policy("api", "web", "web")).await;
    wait_until_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=beeline.dev%2Fpolicy%3Dapi";
    let owner = cluster.get(slices).await["items"][0]["metadata"]["ownerReferences"][0]["uid"].clone();
    let now = cluster.get(path).await["metadata"]["uid"].clone();
    assert!(owner == now && now != before, "{before} {now} {owner}");
    wait_for_condition(cluster, path, "Accepted", "True", "Accepted").await;
    assert_eq!(cluster.get(path).await["status"]["observedGeneration"], 1);
}

async fn nodes_are_published(cluster: &Cluster<'_>) {
    cluster.create_node("node-2", "172.31.0.12", json!([])).await;
    let server = ApiServerSource { nodes: NodeScope::Controller, ..cluster.server() };
    let mut reader = SourceReader::start(server);
    let has = |r: &SourceReader, name: &str| r.state.nodes.keys().any(|(_, node)| &**node == name);
    reader.wait_until("both nodes are read", |r| has(r, "node-1") && has(r, "node-2")).await;
    let entry = json!({ "metadata": { "annotations": { "beeline.dev/entry-address": "10.9.0.2" } } });
    cluster.patch("/api/v1/nodes/node-2", entry).await;
    reader.wait_until("the entry address is read", |r| r.state.nodes.values().any(|node| node.entry.len() == 1)).await;
    // Node slices in other namespaces are refused.
    let forged = json!({
        "metadata": { "name": "forged", "labels": { "beeline.dev/nodes": "InternalIP" } },
        "addressType": "IPv4", "ports": [],
        "endpoints": [{ "addresses": ["192.0.2.1"], "nodeName": "node-9" }],
    });
    cluster.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", forged).await;
    reader.wait_until("the slice is refused", |r| r.state.refusals.iter().any(|r| r.reason == "wrongNamespace")).await;
    assert!(!has(&reader, "node-9"));
    cluster.delete("/api/v1/nodes/node-2").await;
    reader.wait_until("the deleted node is removed", |r| !has(r, "node-2")).await;
}

#[test]
fn the_webhook_refuses_conflicts_and_missing_rights() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster).await;
        cluster.create_service("web", "10.96.1.1").await;
        let controller = Controller::start(cluster, 0, &[]);
        controller.wait_until_ready().await;
        install_webhooks(cluster, 9443).await;
        a_request_without_the_token_is_not_answered(cluster).await;
        cluster.create(&balancing(), balancing_policy("first", "web", "web")).await;
        wait_for_condition(cluster, &format!("{}/first", balancing()), "Accepted", "True", "Accepted").await;
        conflicts(cluster).await;
        virtual_addresses(cluster).await;
        rights(cluster).await;
        without_a_controller(cluster, controller).await;
    });
}

/// The API server calls the path that the configuration names. The controller corrects a wrong path.
async fn a_request_without_the_token_is_not_answered(cluster: &Cluster<'_>) {
    let (path, policy) = (format!("{HOOKS}/beeline-controller"), virtual_address_policy("v", "169.254.0.90"));
    let dry_run = async || cluster.request("POST", &format!("{}?dryRun=All", balancing()), &policy).await;
    wait_until("a wrong token is not answered", async || {
        let mut configuration = cluster.get(&path).await;
        for hook in configuration["webhooks"].as_array_mut().unwrap() {
            hook["clientConfig"]["url"] = json!(format!("https://127.0.0.1:9443/admit/{}", "0".repeat(64)));
        }
        // The controller may have written the configuration meanwhile.
        let _ = cluster.request("PUT", &path, &configuration).await;
        matches!(dry_run().await, Err(kube::Error::Api(status)) if status.message.contains("failed calling webhook")
            && status.message.contains("could not find the requested resource"))
    })
    .await;
    wait_until("the right token is answered again", async || dry_run().await.is_ok()).await;
}

async fn conflicts(cluster: &Cluster<'_>) {
    let message = create_refused(cluster, &balancing(), &balancing_policy("second", "web", "web")).await;
    let wanted = "BalancingPolicy default/second: BalancingPolicy default/first already matches the Service default/web, port 80/TCP";
    assert!(message.contains(wanted), "{message}");
    let mut redirect = balancing_policy("third", "web", "web");
    redirect["kind"] = json!("LocalRedirectPolicy");
    redirect["spec"]["backend"] = json!({
        "endpointSelector": { "matchLabels": { "app": "web" } },
        "toPorts": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    });
    let message = create_refused(cluster, &redirects(), &redirect).await;
    assert!(message.contains("BalancingPolicy default/first already matches the Service default/web"), "{message}");
    // A policy for a Service that does not exist yet is accepted, and so is a change of the same policy.
    cluster.create(&balancing(), balancing_policy("later", "not-there", "web")).await;
    let patch = json!({ "spec": { "config": { "enableOutCluster": false } } });
    cluster.patch(&format!("{}/first", balancing()), patch).await;
}

async fn virtual_addresses(cluster: &Cluster<'_>) {
    let message = create_refused(cluster, &balancing(), &virtual_address_policy("v", "10.1.2.3")).await;
    let ranges = "outside the allowed ranges 169.254.0.0/16, fd00:bee::/48 (--virtual-address-cidrs)";
    assert!(message.contains("virtual address 10.1.2.3") && message.contains(ranges), "{message}");
    let message = create_refused(cluster, &balancing(), &virtual_address_policy("v", "10.96.1.1")).await;
    assert!(message.contains("is the ClusterIP of Service default/web: use serviceMatcher"), "{message}");
    let mut endpoint = balancing_policy("endpoint", "other", "web");
    endpoint["spec"]["backend"] = json!({ "addressEndpoint": {
        "addresses": ["10.96.1.1"], "toPorts": [{ "name": "http", "port": 80, "protocol": "TCP" }] } });
    let message = create_refused(cluster, &balancing(), &endpoint).await;
    assert!(message.contains("addressEndpoint 10.96.1.1 is the ClusterIP of Service default/web"), "{message}");
    let message = create_refused(cluster, &balancing(), &virtual_address_policy("v", "169.254.169.254")).await;
    assert!(message.contains("metadata"), "{message}");
    cluster.create_node("node-7", "169.254.7.7", json!([])).await;
    wait_until("the node's address is known", async || {
        let path = format!("{}?dryRun=All", balancing());
        matches!(cluster.request("POST", &path, &virtual_address_policy("v", "169.254.7.7")).await,
            Err(kube::Error::Api(status)) if status.message.contains("is the address of Node node-7: choose another"))
    })
    .await;
    cluster.create(&balancing(), virtual_address_policy("v", "169.254.0.90")).await;
}

async fn rights(cluster: &Cluster<'_>) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rule = |verbs: Value, resources: Value| json!([{ "apiGroups": ["beeline.dev"], "verbs": verbs, "resources": resources }]);
    let bind = |name: &str| {
        json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io" }],
        })
    };
    let write = rule(json!(["*"]), json!(["balancingpolicies", "localredirectpolicies"]));
    cluster.create(&format!("{rbac}/clusterroles"), json!({ "metadata": { "name": "writer" }, "rules": write })).await;
    cluster.create(&format!("{rbac}/clusterrolebindings"), bind("writer")).await;
    // All rights in the user's own namespace do not include this right.
    let all = json!([{ "apiGroups": ["*"], "verbs": ["*"], "resources": ["*"] }]);
    cluster.create(&format!("{rbac}/clusterroles"), json!({ "metadata": { "name": "owner" }, "rules": all })).await;
    cluster.create(&format!("{rbac}/namespaces/default/rolebindings"), bind("owner")).await;
    let own = balancing_policy("alices", "alices", "web");
    wait_until("alice may write policies", async || create_as(cluster, "alice", &balancing(), &own).await.is_ok())
        .await;
    let message =
        create_as(cluster, "alice", &balancing(), &virtual_address_policy("reach", "169.254.0.91")).await.unwrap_err();
    assert!(message.contains("alice has no right to that") && message.contains("clusterscopes"), "{message}");
    let mut wide = balancing_policy("wide", "wide", "web");
    wide["spec"]["backend"]["serviceEndpoint"]["namespaceSelector"] = json!({});
    let message = create_as(cluster, "alice", &balancing(), &wide).await.unwrap_err();
    assert!(message.contains("pods of other namespaces"), "{message}");
    let mut outside = balancing_policy("outside", "outside", "web");
    outside["spec"]["backend"] = json!({ "addressEndpoint": {
        "addresses": ["192.0.2.1"], "toPorts": [{ "name": "http", "port": 80, "protocol": "TCP" }] } });
    let message = create_as(cluster, "alice", &balancing(), &outside).await.unwrap_err();
    assert!(message.contains("addressEndpoint uses addresses"), "{message}");
    // She may edit policies, but not one with a virtual address: it would lead to pods of her choice in all namespaces.
    let repointed = json!({ "spec": { "backend": { "serviceEndpoint": {
        "endpointSelector": { "matchLabels": { "app": "hers" } } } } } });
    let path = format!("{}/v", balancing());
    let message = patch_as(cluster, "alice", &path, &repointed).await.unwrap_err();
    assert!(message.contains("alice has no right to that"), "{message}");
    let labels = json!({ "metadata": { "labels": { "a": "b" } } });
    patch_as(cluster, "alice", &path, &labels).await.unwrap();
    let use_it = rule(json!(["use"]), json!(["clusterscopes"]));
    cluster.create(&format!("{rbac}/clusterroles"), json!({ "metadata": { "name": "scope" }, "rules": use_it })).await;
    cluster.create(&format!("{rbac}/clusterrolebindings"), bind("scope")).await;
    wait_until("alice has the right", async || create_as(cluster, "alice", &balancing(), &wide).await.is_ok()).await;
    create_as(cluster, "alice", &balancing(), &outside).await.unwrap();
}

async fn without_a_controller(cluster: &Cluster<'_>, controller: Controller) {
    drop(controller);
    cluster.create(&balancing(), balancing_policy("second", "web", "web")).await;
    let message = create_refused(cluster, &balancing(), &virtual_address_policy("v2", "169.254.0.92")).await;
    assert!(message.contains("failed calling webhook \"reach.policies.beeline.dev\""), "{message}");
    // Existing policies can be deleted and labelled at any time.
    cluster.patch(&format!("{}/v", balancing()), json!({ "metadata": { "labels": { "x": "y" } } })).await;
    cluster.delete(&format!("{}/v", balancing())).await;
    let controller = Controller::start(cluster, 0, &[]);
    controller.wait_until_ready().await;
    wait_for_condition(cluster, &format!("{}/second", balancing()), "Accepted", "False", "Conflict").await;
    let (_, _, message) = condition(cluster, &format!("{}/second", balancing()), "Accepted").await;
    assert!(message.contains("Conflict at 80/TCP (BalancingPolicy default/first is older)"), "{message}");
    cluster.delete(&format!("{}/first", balancing())).await;
    wait_for_condition(cluster, &format!("{}/second", balancing()), "Accepted", "True", "Accepted").await;
}

#[test]
fn another_replica_takes_over_and_certificates_change_under_load() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster).await;
        cluster.create_service("web", "10.96.1.1").await;
        let life = ["--certificate-lifetime", "36s"];
        let first = Controller::start(cluster, 0, &life);
        first.wait_until_ready().await;
        let second = Controller::start(cluster, 1, &life);
        second.wait_until_ready().await;
        assert!(first.is_leader().await && !second.is_leader().await);
        // A replica that is not the leader answers too.
        install_webhooks(cluster, 9444).await;
        cluster.create(&balancing(), balancing_policy("first", "web", "web")).await;
        wait_until("the other replica refuses the conflict", async || check_webhook(cluster).await.is_ok()).await;
        certificates_change(cluster).await;
        drop(first);
        create_pod(cluster, "default", "a", "10.244.1.1", 8080).await;
        wait_until_published(cluster, "first", &[("10.244.1.1", 8080)]).await;
        assert!(second.is_leader().await);
    });
}

/// Checks that a conflict is refused by the webhook. An API server that cannot reach or verify it would accept the policy.
async fn check_webhook(cluster: &Cluster<'_>) -> Result<(), String> {
    match cluster
        .request("POST", &format!("{}?dryRun=All", balancing()), &balancing_policy("second", "web", "web"))
        .await
    {
        Err(kube::Error::Api(status)) if status.message.contains("already matches the Service default/web") => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

async fn certificates_change(cluster: &Cluster<'_>) {
    let secret = "/api/v1/namespaces/kube-system/secrets/beeline-controller-tls";
    let (mut certificates, mut admissions, start) = (std::collections::BTreeSet::new(), 0, Instant::now());
    while certificates.len() < 3 {
        assert!(start.elapsed() < TIMEOUT, "{} certificates after {TIMEOUT:?}", certificates.len());
        certificates.insert(cluster.get(secret).await["data"]["tls.crt"].as_str().unwrap_or_default().to_owned());
        // The API server opens new connections from time to time, and verifies the certificate on each of them.
        check_webhook(cluster).await.unwrap_or_else(|message| panic!("after {admissions} admissions: {message}"));
        admissions += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(admissions > 50, "{admissions} admissions");
}
