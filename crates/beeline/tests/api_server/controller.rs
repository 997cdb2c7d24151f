//! The controller on a real API server: what it publishes, admits and says, and what happens without it.

mod attack;

use crate::cluster::{Cluster, PATIENCE, with_cluster};
use crate::listener::Listener;
use beeline_cluster::{Nodes, Reports, Server};
use beeline_harness::Running;
use beeline_model::fact::Fact;
use beeline_model::report::{Report, Tally};
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

/// A replica; killed with it, as a crash would.
struct Controller {
    running: Option<Running>,
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
            "--webhook-address",
            &webhook,
            "--health-address",
            &format!("127.0.0.1:{health}"),
            "--identity",
            &format!("replica-{number}"),
            "--lease-duration",
            "4s",
            "--drain",
            "100ms",
        ];
        let program = cluster.lab.node().program(BEELINE).unwrap().args(own).args(more);
        Controller { running: Some(program.spawn().unwrap()), health }
    }

    async fn until_ready(&self) {
        until("the controller is ready", async || ask(self.health, "/readyz").await.starts_with("HTTP/1.1 200")).await;
    }

    async fn leads(&self) -> bool {
        ask(self.health, "/metrics").await.contains("beeline_controller_leader 1")
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.running.as_ref().map(Running::stderr).unwrap_or_default());
        }
    }
}

async fn ask(port: u16, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        std::io::Result::Ok(text)
    };
    asked.await.unwrap_or_default()
}

async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !so().await {
        assert!(start.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The custom resources, and an agent's start of the webhook's configuration as the chart has it, at this port.
async fn install(cluster: &Cluster<'_>) {
    for definition in beeline_cluster::policy::definitions() {
        cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    }
    let listed = async || cluster.request("GET", &balancing(), &json!({})).await.is_ok();
    until("the custom resources are served", listed).await;
}

async fn install_hooks(cluster: &Cluster<'_>, port: u16) {
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
    until("the authority is written", async || {
        let found = cluster.get(&format!("{HOOKS}/beeline-controller")).await;
        found["webhooks"].as_array().unwrap().iter().all(|hook| hook["clientConfig"]["caBundle"].is_string())
    })
    .await;
}

fn blp(name: &str, service: &str, app: &str) -> Value {
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

fn virtual_blp(name: &str, ip: &str) -> Value {
    let mut policy = blp(name, "web", "web");
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

/// Addresses and ports of what is published for a policy, and its owner's uid.
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

async fn is_published(cluster: &Cluster<'_>, policy: &str, wanted: &[(&str, u64)]) {
    let wanted: Vec<(String, u64)> = wanted.iter().map(|(ip, port)| ((*ip).to_owned(), *port)).collect();
    until(&format!("{policy} has {wanted:?}"), async || published(cluster, policy).await == wanted).await;
}

/// Status, reason and message of a condition.
async fn condition(cluster: &Cluster<'_>, path: &str, kind: &str) -> (String, String, String) {
    let found = cluster.get(path).await;
    let all = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let one = all.into_iter().find(|c| c["type"] == kind).unwrap_or_default();
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

async fn has_condition(cluster: &Cluster<'_>, path: &str, kind: &str, status: &str, reason: &str) {
    let what = format!("{path} is {kind} {status} {reason}");
    until(&what, async || {
        let (is, why, _) = condition(cluster, path, kind).await;
        is == status && why == reason
    })
    .await;
}

/// What the API server answers to a user.
async fn create_as(cluster: &Cluster<'_>, user: &str, path: &str, object: &Value) -> Result<(), String> {
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.header("impersonate-user", user).header("impersonate-group", "system:authenticated");
    let request = request.body(serde_json::to_vec(object).unwrap()).unwrap();
    match cluster.client().await.request::<Value>(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(error) => panic!("{path}: {error}"),
    }
}

async fn refused(cluster: &Cluster<'_>, path: &str, object: &Value) -> String {
    match cluster.request("POST", path, object).await {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn publishes_what_policies_choose_and_says_how_they_fare() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster).await;
        create_namespace(cluster, "lab", json!({ "team": "a" })).await;
        let controller = Controller::start(cluster, 0, &[]);
        controller.until_ready().await;
        let path = format!("{}/api", balancing());
        cluster.create(&balancing(), blp("api", "web", "web")).await;
        has_condition(cluster, &path, "Accepted", "False", "ServiceNotFound").await;
        cluster.create_service("web", "10.96.1.1").await;
        has_condition(cluster, &path, "Accepted", "True", "Accepted").await;
        pods_are_followed(cluster, &path).await;
        namespaces_are_followed(cluster).await;
        nodes_report(cluster, &path).await;
        made_again(cluster, &path).await;
        nodes_are_published(cluster).await;
    });
}

async fn pods_are_followed(cluster: &Cluster<'_>, path: &str) {
    create_pod(cluster, "default", "a", "10.244.1.1", 8080).await;
    create_pod(cluster, "default", "b", "10.244.1.2", 9090).await;
    is_published(cluster, "api", &[("10.244.1.1", 8080), ("10.244.1.2", 9090)]).await;
    set_ready(cluster, "default", "b", "10.244.1.2", false).await;
    is_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
    set_ready(cluster, "default", "b", "10.244.1.2", true).await;
    is_published(cluster, "api", &[("10.244.1.1", 8080), ("10.244.1.2", 9090)]).await;
    cluster.patch("/api/v1/namespaces/default/pods/b", json!({ "metadata": { "labels": { "app": "other" } } })).await;
    is_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
    until("one backend is counted", async || cluster.get(path).await["status"]["backends"] == 1).await;
    // Somebody else's hands are corrected.
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let found = cluster.get(&format!("{slices}?labelSelector=beeline.dev%2Fpolicy%3Dapi")).await;
    let name = found["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
    cluster.patch(&format!("{slices}/{name}"), json!({ "endpoints": [{ "addresses": ["192.0.2.66"] }] })).await;
    is_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
    cluster.delete(&format!("{slices}/{name}")).await;
    is_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
}

async fn namespaces_are_followed(cluster: &Cluster<'_>) {
    cluster.create_service("other", "10.96.1.2").await;
    let mut wide = blp("wide", "other", "web");
    wide["spec"]["backend"]["serviceEndpoint"]["namespaceSelector"] = json!({ "matchLabels": { "team": "a" } });
    cluster.create(&balancing(), wide).await;
    create_pod(cluster, "lab", "c", "10.244.2.1", 8080).await;
    is_published(cluster, "wide", &[("10.244.2.1", 8080)]).await;
    cluster.patch("/api/v1/namespaces/default", json!({ "metadata": { "labels": { "team": "a" } } })).await;
    is_published(cluster, "wide", &[("10.244.1.1", 8080), ("10.244.2.1", 8080)]).await;
    cluster.patch("/api/v1/namespaces/lab", json!({ "metadata": { "labels": { "team": "b" } } })).await;
    is_published(cluster, "wide", &[("10.244.1.1", 8080)]).await;
    cluster.delete(&format!("{}/wide", balancing())).await;
    is_published(cluster, "wide", &[]).await;
}

/// The agent's own way of reporting, with what its facts add up to.
async fn nodes_report(cluster: &Cluster<'_>, path: &str) {
    cluster.create_node("node-1", "172.31.0.11", json!([])).await;
    cluster.create("/api/v1/namespaces", json!({ "metadata": { "name": "beeline-reports" } })).await;
    has_condition(cluster, path, "Programmed", "False", "Pending").await;
    let (reports, what) = watch::channel::<Option<Report>>(None);
    let period = Duration::from_millis(500);
    let server = Server { reports: Some(Reports { what, period }), ..cluster.server() };
    let mut listener = Listener::to(server);
    listener.until("the policy is known", |l| l.last.synced && l.said.policies.len() == 1).await;
    let mut tally = Tally::default();
    for policy in listener.said.policies.values() {
        tally.apply(&Fact::Policy(policy.clone()));
    }
    reports.send_replace(Some(tally.report(Vec::new())));
    has_condition(cluster, path, "Programmed", "True", "Programmed").await;
    assert_eq!(cluster.get(path).await["status"]["nodes"]["text"], "1/1");
    let failing =
        beeline_model::report::Failing { policy: "BalancingPolicy default/api".into(), reason: "full".into() };
    reports.send_replace(Some(tally.report(vec![failing])));
    has_condition(cluster, path, "Programmed", "False", "Failing").await;
    assert!(condition(cluster, path, "Programmed").await.2.contains("node-1 (full)"));
    reports.send_replace(Some(tally.report(Vec::new())));
    has_condition(cluster, path, "Programmed", "True", "Programmed").await;
    // Another generation, of which the node has not said anything.
    let merge = json!({ "spec": { "config": { "enableOutCluster": false } } });
    cluster.patch(path, merge).await;
    has_condition(cluster, path, "Programmed", "False", "Pending").await;
    let seen = cluster.get(path).await;
    assert_eq!(seen["status"]["observedGeneration"], seen["metadata"]["generation"]);
}

async fn made_again(cluster: &Cluster<'_>, path: &str) {
    let before = cluster.get(path).await["metadata"]["uid"].clone();
    cluster.delete(path).await;
    is_published(cluster, "api", &[]).await;
    cluster.create(&balancing(), blp("api", "web", "web")).await;
    is_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=beeline.dev%2Fpolicy%3Dapi";
    let owner = cluster.get(slices).await["items"][0]["metadata"]["ownerReferences"][0]["uid"].clone();
    let now = cluster.get(path).await["metadata"]["uid"].clone();
    assert!(owner == now && now != before, "{before} {now} {owner}");
    has_condition(cluster, path, "Accepted", "True", "Accepted").await;
    assert_eq!(cluster.get(path).await["status"]["observedGeneration"], 1);
}

async fn nodes_are_published(cluster: &Cluster<'_>) {
    cluster.create_node("node-2", "172.31.0.12", json!([])).await;
    let server = Server { nodes: Nodes::Controller, ..cluster.server() };
    let mut listener = Listener::to(server);
    let has = |l: &Listener, name: &str| l.said.nodes.keys().any(|(_, node)| &**node == name);
    listener.until("the other node is known", |l| has(l, "node-1") && has(l, "node-2")).await;
    let entry = json!({ "metadata": { "annotations": { "beeline.dev/entry-address": "10.9.0.2" } } });
    cluster.patch("/api/v1/nodes/node-2", entry).await;
    listener.until("its entry is known", |l| l.said.nodes.values().any(|node| node.entry.len() == 1)).await;
    // What is said of nodes elsewhere is not believed.
    let forged = json!({
        "metadata": { "name": "forged", "labels": { "beeline.dev/nodes": "InternalIP" } },
        "addressType": "IPv4", "ports": [],
        "endpoints": [{ "addresses": ["192.0.2.1"], "nodeName": "node-9" }],
    });
    cluster.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", forged).await;
    listener.until("it is refused", |l| l.said.refusals.iter().any(|r| r.reason == "wrongNamespace")).await;
    assert!(!has(&listener, "node-9"));
    cluster.delete("/api/v1/nodes/node-2").await;
    listener.until("the node is gone", |l| !has(l, "node-2")).await;
}

#[test]
fn refuses_what_needs_other_objects_to_tell() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster).await;
        cluster.create_service("web", "10.96.1.1").await;
        let controller = Controller::start(cluster, 0, &[]);
        controller.until_ready().await;
        install_hooks(cluster, 9443).await;
        cluster.create(&balancing(), blp("first", "web", "web")).await;
        has_condition(cluster, &format!("{}/first", balancing()), "Accepted", "True", "Accepted").await;
        conflicts(cluster).await;
        virtual_addresses(cluster).await;
        rights(cluster).await;
        without_a_controller(cluster, controller).await;
    });
}

async fn conflicts(cluster: &Cluster<'_>) {
    let said = refused(cluster, &balancing(), &blp("second", "web", "web")).await;
    let wanted = "BalancingPolicy default/second: BalancingPolicy default/first is for the Service default/web, port 80/TCP already";
    assert!(said.contains(wanted), "{said}");
    let mut redirect = blp("third", "web", "web");
    redirect["kind"] = json!("LocalRedirectPolicy");
    redirect["spec"]["backend"] = json!({
        "endpointSelector": { "matchLabels": { "app": "web" } },
        "toPorts": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    });
    let said = refused(cluster, &redirects(), &redirect).await;
    assert!(said.contains("BalancingPolicy default/first is for the Service default/web"), "{said}");
    // Services that do not exist yet are no hindrance, and neither is a change of the same policy.
    cluster.create(&balancing(), blp("later", "not-there", "web")).await;
    let patch = json!({ "spec": { "config": { "enableOutCluster": false } } });
    cluster.patch(&format!("{}/first", balancing()), patch).await;
}

async fn virtual_addresses(cluster: &Cluster<'_>) {
    let said = refused(cluster, &balancing(), &virtual_blp("v", "10.1.2.3")).await;
    assert!(said.contains("virtual address 10.1.2.3") && said.contains("--virtual-ranges"), "{said}");
    let said = refused(cluster, &balancing(), &virtual_blp("v", "169.254.169.254")).await;
    assert!(said.contains("metadata"), "{said}");
    cluster.create_node("node-7", "169.254.7.7", json!([])).await;
    until("the node's address is known", async || {
        let path = format!("{}?dryRun=All", balancing());
        matches!(cluster.request("POST", &path, &virtual_blp("v", "169.254.7.7")).await,
            Err(kube::Error::Api(status)) if status.message.contains("is the address of Node node-7: choose another"))
    })
    .await;
    cluster.create(&balancing(), virtual_blp("v", "169.254.0.90")).await;
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
    // Every right in her namespace is not this one.
    let all = json!([{ "apiGroups": ["*"], "verbs": ["*"], "resources": ["*"] }]);
    cluster.create(&format!("{rbac}/clusterroles"), json!({ "metadata": { "name": "owner" }, "rules": all })).await;
    cluster.create(&format!("{rbac}/namespaces/default/rolebindings"), bind("owner")).await;
    let own = blp("alices", "alices", "web");
    until("alice may write policies", async || create_as(cluster, "alice", &balancing(), &own).await.is_ok()).await;
    let said = create_as(cluster, "alice", &balancing(), &virtual_blp("reach", "169.254.0.91")).await.unwrap_err();
    assert!(said.contains("alice has no right to that") && said.contains("clusterscopes"), "{said}");
    let mut wide = blp("wide", "wide", "web");
    wide["spec"]["backend"]["serviceEndpoint"]["namespaceSelector"] = json!({});
    let said = create_as(cluster, "alice", &balancing(), &wide).await.unwrap_err();
    assert!(said.contains("pods of other namespaces"), "{said}");
    let mut outside = blp("outside", "outside", "web");
    outside["spec"]["backend"] = json!({ "addressEndpoint": {
        "addresses": ["192.0.2.1"], "toPorts": [{ "name": "http", "port": 80, "protocol": "TCP" }] } });
    let said = create_as(cluster, "alice", &balancing(), &outside).await.unwrap_err();
    assert!(said.contains("addressEndpoint leads to addresses"), "{said}");
    let use_it = rule(json!(["use"]), json!(["clusterscopes"]));
    cluster.create(&format!("{rbac}/clusterroles"), json!({ "metadata": { "name": "scope" }, "rules": use_it })).await;
    cluster.create(&format!("{rbac}/clusterrolebindings"), bind("scope")).await;
    until("alice may reach", async || create_as(cluster, "alice", &balancing(), &wide).await.is_ok()).await;
    create_as(cluster, "alice", &balancing(), &outside).await.unwrap();
}

async fn without_a_controller(cluster: &Cluster<'_>, controller: Controller) {
    drop(controller);
    cluster.create(&balancing(), blp("second", "web", "web")).await;
    let said = refused(cluster, &balancing(), &virtual_blp("v2", "169.254.0.92")).await;
    assert!(said.contains("failed calling webhook \"reach.policies.beeline.dev\""), "{said}");
    // What is there can be deleted, and labelled, at any time.
    cluster.patch(&format!("{}/v", balancing()), json!({ "metadata": { "labels": { "x": "y" } } })).await;
    cluster.delete(&format!("{}/v", balancing())).await;
    let controller = Controller::start(cluster, 0, &[]);
    controller.until_ready().await;
    has_condition(cluster, &format!("{}/second", balancing()), "Accepted", "False", "Conflict").await;
    let (_, _, message) = condition(cluster, &format!("{}/second", balancing()), "Accepted").await;
    assert!(message.contains("Conflict at 80/TCP (BalancingPolicy default/first is older)"), "{message}");
    cluster.delete(&format!("{}/first", balancing())).await;
    has_condition(cluster, &format!("{}/second", balancing()), "Accepted", "True", "Accepted").await;
}

#[test]
fn another_takes_over_and_certificates_change_under_load() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster).await;
        cluster.create_service("web", "10.96.1.1").await;
        let life = ["--certificate-life", "36s"];
        let first = Controller::start(cluster, 0, &life);
        first.until_ready().await;
        let second = Controller::start(cluster, 1, &life);
        second.until_ready().await;
        assert!(first.leads().await && !second.leads().await);
        // Who does not lead answers, too.
        install_hooks(cluster, 9444).await;
        cluster.create(&balancing(), blp("first", "web", "web")).await;
        until("the other replica knows it", async || asks_well(cluster).await.is_ok()).await;
        certificates_change(cluster).await;
        drop(first);
        create_pod(cluster, "default", "a", "10.244.1.1", 8080).await;
        is_published(cluster, "first", &[("10.244.1.1", 8080)]).await;
        assert!(second.leads().await);
    });
}

/// A conflict is refused by us, and by nothing else: an API server that cannot reach or verify us would let it pass.
async fn asks_well(cluster: &Cluster<'_>) -> Result<(), String> {
    match cluster.request("POST", &format!("{}?dryRun=All", balancing()), &blp("second", "web", "web")).await {
        Err(kube::Error::Api(status)) if status.message.contains("is for the Service default/web") => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

async fn certificates_change(cluster: &Cluster<'_>) {
    let secret = "/api/v1/namespaces/kube-system/secrets/beeline-controller-tls";
    let (mut seen, mut asked, start) = (std::collections::BTreeSet::new(), 0, Instant::now());
    while seen.len() < 3 {
        assert!(start.elapsed() < PATIENCE, "{} certificates after {PATIENCE:?}", seen.len());
        seen.insert(cluster.get(secret).await["data"]["tls.crt"].as_str().unwrap_or_default().to_owned());
        // A new connection each, so that the certificate is really looked at, is the API server's business: it keeps
        // its connections for a while, and opens others as they go.
        asks_well(cluster).await.unwrap_or_else(|said| panic!("after {asked} good answers: {said}"));
        asked += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(asked > 50, "{asked} admissions");
}
