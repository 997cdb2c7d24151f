//! The admission policies of the chart, on a real API server and without a controller: which users may write policies that
//! affect other namespaces, and that an agent's token is limited to its own node.

use crate::cluster::{Cluster, NODES, TIMEOUT, program, with_cluster};
use crate::policy::{install, merge, path_of, valid_policy};
use beeline_cluster::policy::definitions;
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

const AGENT: &str = "system:serviceaccount:kube-system:beeline";
const CONTROLLER: &str = "system:serviceaccount:kube-system:beeline-controller";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";

fn rendered_chart() -> Vec<Value> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart");
    let mut helm = Command::new(program("helm"));
    helm.args(["template", "beeline", chart, "--namespace", "kube-system", "--kube-version", "1.35.0", "--no-hooks"]);
    let output = helm.args(["--set", "clearStartupTaint=true"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let documents = text.split("---\n").filter(|document| document.contains("\nkind: "));
    documents.map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

/// The API path to create the object; `None` if the test does not need it.
fn collection_path(object: &Value) -> Option<String> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    Some(match object["kind"].as_str()? {
        "Namespace" => "/api/v1/namespaces".into(),
        "ClusterRole" => format!("{rbac}/clusterroles"),
        "ClusterRoleBinding" => format!("{rbac}/clusterrolebindings"),
        "Role" => format!("{rbac}/namespaces/{namespace}/roles"),
        "RoleBinding" => format!("{rbac}/namespaces/{namespace}/rolebindings"),
        "Lease" => format!("{LEASES}/{namespace}/leases"),
        "Secret" => format!("/api/v1/namespaces/{namespace}/secrets"),
        "ValidatingAdmissionPolicy" => "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies".into(),
        "ValidatingAdmissionPolicyBinding" => {
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings".into()
        }
        _ => return None,
    })
}

struct User<'a> {
    cluster: &'a Cluster<'a>,
    name: &'a str,
    /// The node in the token of a pod.
    node: Option<&'a str>,
}

impl User<'_> {
    /// Returns the server's message if the request is forbidden or invalid.
    async fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let mut request = http::Request::builder().method(method).uri(path).header("content-type", kind);
        request = request.header("Impersonate-User", self.name).header("Impersonate-Group", "system:authenticated");
        if let Some(node) = self.node {
            request = request.header("Impersonate-Extra-authentication.kubernetes.io%2fnode-name", node);
        }
        let body = if method == "GET" { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        match self.cluster.client().await.request(request.body(body).unwrap()).await {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) if [403, 422].contains(&status.code) => Err(status.message),
            Err(error) => panic!("{method} {path} by {}: {error}", self.name),
        }
    }

    /// Creates the object as a dry run.
    async fn dry_run(&self, object: &Value) -> Result<Value, String> {
        self.send("POST", &format!("{}?dryRun=All", path_of(object)), object).await
    }
}

async fn bind_role(cluster: &Cluster<'_>, user: &str, role: &str) {
    let binding = json!({
        "metadata": { "name": format!("{user}-{role}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
    });
    cluster.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
}

/// Waits, because rights and admission policies take effect with a delay.
async fn wait_until(what: &str, condition: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn changed(name: &str, patch: &Value) -> Value {
    let mut object = valid_policy(name);
    merge(&mut object, patch);
    object
}

#[test]
fn admission_policies_apply_without_a_controller() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster, &definitions()).await;
        for object in rendered_chart() {
            if let Some(path) = collection_path(&object) {
                cluster.create(&path, object).await;
            }
        }
        let rules = json!([{ "apiGroups": ["beeline.dev"], "verbs": ["*"],
            "resources": ["localredirectpolicies", "balancingpolicies"] }]);
        let role = json!({ "metadata": { "name": "writer" }, "rules": rules });
        cluster.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await;
        for user in ["alice", "bob"] {
            bind_role(cluster, user, "writer").await;
        }
        bind_role(cluster, "bob", "beeline-clusterscopes").await;
        policies_beyond_the_namespace_need_a_right(cluster).await;
        every_change_of_the_spec_needs_the_right(cluster).await;
        an_agent_may_write_only_for_its_own_node(cluster).await;
        the_controller_may_write_only_its_own_objects(cluster).await;
    });
}

async fn policies_beyond_the_namespace_need_a_right(cluster: &Cluster<'_>) {
    let user = |name| User { cluster, name, node: None };
    let (alice, bob) = (user("alice"), user("bob"));
    let addresses = json!({ "addressEndpoint": { "addresses": ["10.0.0.5"], "toPorts": [{ "port": 5432 }] } });
    let service = json!({ "addressMatcher": null, "serviceMatcher": { "serviceName": "web" } });
    let beyond_namespace = [
        valid_policy("virtual"),
        valid_policy("api"),
        valid_policy("database"),
        changed("database", &json!({ "spec": { "frontend": service, "backend": addresses } })),
        changed("api", &json!({ "spec": { "frontend": service } })),
    ];
    wait_until("bob has the right", async || bob.dry_run(&valid_policy("virtual")).await.is_ok()).await;
    wait_until("alice may write policies", async || alice.dry_run(&valid_policy("dns")).await.is_ok()).await;
    for policy in ["virtual", "database"] {
        let is_refused = async || alice.dry_run(&valid_policy(policy)).await.is_err();
        wait_until("the admission policies are in force", is_refused).await;
    }
    for object in &beyond_namespace {
        let message = alice.dry_run(object).await.expect_err(&object.to_string());
        assert!(message.contains("\"use\" on \"clusterscopes\""), "{message}");
        bob.dry_run(object).await.unwrap_or_else(|message| panic!("{message}"));
    }
    for inside in ["dns", "all-ports", "host"] {
        alice.dry_run(&valid_policy(inside)).await.unwrap_or_else(|message| panic!("{inside}: {message}"));
    }
}

async fn every_change_of_the_spec_needs_the_right(cluster: &Cluster<'_>) {
    let user = |name| User { cluster, name, node: None };
    let (alice, bob) = (user("alice"), user("bob"));
    let database = valid_policy("database");
    bob.send("POST", &path_of(&database), &database).await.unwrap();
    let path = format!("{}/database", path_of(&database));
    let labels = json!({ "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } } });
    alice.send("PATCH", &path, &labels).await.unwrap_or_else(|message| panic!("{message}"));
    for denied in [
        json!({ "spec": { "frontend": { "addressMatcher": { "ip": "169.254.0.91" } } } }),
        json!({ "spec": { "backend": { "addressEndpoint": { "addresses": ["10.0.0.7"] } } } }),
        json!({ "spec": { "backend": { "addressEndpoint": null, "serviceEndpoint": {
            "endpointSelector": { "matchLabels": { "app": "mine" } }, "toPorts": [{ "port": 5432 }] } } } }),
        json!({ "spec": { "config": { "enableOutCluster": false } } }),
    ] {
        let message = alice.send("PATCH", &path, &denied).await.expect_err(&denied.to_string());
        assert!(message.contains("\"use\" on \"clusterscopes\""), "{message}");
        bob.send("PATCH", &path, &denied).await.unwrap_or_else(|message| panic!("{denied}: {message}"));
    }
    // A policy that no longer reaches beyond its namespace needs no right.
    let inside =
        json!({ "spec": { "frontend": { "addressMatcher": null, "serviceMatcher": { "serviceName": "web" } } } });
    alice.send("PATCH", &path, &inside).await.unwrap_or_else(|message| panic!("{message}"));
    alice.send("DELETE", &path, &json!({})).await.unwrap();
}

fn lease(node: &str) -> Value {
    json!({ "metadata": { "name": format!("beeline.{node}") }, "spec": { "holderIdentity": node } })
}

async fn an_agent_may_write_only_for_its_own_node(cluster: &Cluster<'_>) {
    for (node, address) in [("node-1", "172.31.0.11"), ("node-2", "172.31.0.12")] {
        cluster.create_node(node, address, json!([])).await;
    }
    let agent = |node| User { cluster, name: AGENT, node };
    let (own, without_node) = (agent(Some("node-1")), agent(None));
    let reports = format!("{LEASES}/beeline-reports/leases");
    wait_until("another node's Lease is refused", async || {
        own.send("POST", &format!("{reports}?dryRun=All"), &lease("node-2")).await.is_err()
    })
    .await;
    own.send("POST", &reports, &lease("node-1")).await.unwrap();
    let renewed = json!({ "spec": { "holderIdentity": "again" } });
    own.send("PATCH", &format!("{reports}/beeline.node-1"), &renewed).await.unwrap();
    cluster.create(&reports, lease("node-2")).await;
    let message = own.send("PATCH", &format!("{reports}/beeline.node-2"), &renewed).await.unwrap_err();
    assert!(message.contains("its own node"), "{message}");
    assert!(without_node.send("PATCH", &format!("{reports}/beeline.node-1"), &renewed).await.is_err());
    for path in [format!("{LEASES}/kube-system/leases"), format!("{LEASES}/kube-node-lease/leases")] {
        assert!(own.send("POST", &path, &lease("node-1")).await.is_err(), "{path}");
    }
    // The API server adds this taint to every new Node.
    let kept = json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" });
    let taints = json!({ "spec": { "taints": [kept] } });
    own.send("PATCH", &format!("{NODES}/node-1"), &taints).await.unwrap();
    let message = own.send("PATCH", &format!("{NODES}/node-2"), &taints).await.unwrap_err();
    assert!(message.contains("its own Node"), "{message}");
    assert!(without_node.send("PATCH", &format!("{NODES}/node-1"), &taints).await.is_err());
    an_agent_may_only_remove_the_startup_taint(cluster, &own).await;
}

async fn an_agent_may_only_remove_the_startup_taint(cluster: &Cluster<'_>, agent: &User<'_>) {
    let path = format!("{NODES}/node-1");
    let (own, other) = ("beeline.dev/not-ready", "example.org/other");
    let taint = |key: &str| json!({ "key": key, "value": "", "effect": "NoSchedule" });
    let set = |taints: Value| json!({ "spec": { "taints": taints } });
    let before = json!({
        "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } },
        "spec": { "taints": [taint(own), taint(other)] },
    });
    cluster.patch(&path, before).await;
    for (patch, why) in [
        (json!({ "metadata": { "labels": { "a": "c" } } }), "labels"),
        (json!({ "metadata": { "labels": { "node-role.kubernetes.io/control-plane": "" } } }), "labels"),
        (json!({ "metadata": { "annotations": { "c": null } } }), "labels"),
        (json!({ "metadata": { "finalizers": ["example.org/never"] } }), "labels"),
        (json!({ "spec": { "unschedulable": true } }), "spec"),
        (json!({ "spec": { "providerID": "aws:///x" } }), "spec"),
        (set(json!([])), "spec"),
        (set(json!([taint(own)])), "spec"),
        (set(json!([taint(other), taint("example.org/new")])), "spec"),
        (set(json!([{ "key": other, "effect": "NoExecute" }])), "spec"),
    ] {
        let message = agent.send("PATCH", &path, &patch).await.expect_err(&patch.to_string());
        assert!(message.contains("an agent may only remove the taint") && message.contains(why), "{patch}: {message}");
    }
    agent.send("PATCH", &path, &set(json!([taint(other)]))).await.unwrap();
    let left = cluster.get(&path).await["spec"]["taints"].clone();
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
}

async fn the_controller_may_write_only_its_own_objects(cluster: &Cluster<'_>) {
    let controller = User { cluster, name: CONTROLLER, node: None };
    let leases = format!("{LEASES}/kube-system/leases");
    let mut lease = controller.send("GET", &format!("{leases}/beeline-controller"), &Value::Null).await.unwrap();
    lease["spec"] = json!({ "holderIdentity": "replica-1" });
    controller.send("PUT", &format!("{leases}/beeline-controller"), &lease).await.unwrap();
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let tls = format!("{secrets}/beeline-controller-tls");
    let secret = controller.send("GET", &tls, &Value::Null).await.unwrap();
    controller.send("PUT", &tls, &secret).await.unwrap();
    let made = json!({ "metadata": { "name": "other" } });
    for (method, path) in [("POST", leases.clone()), ("GET", leases), ("POST", secrets.into()), ("GET", secrets.into())]
    {
        assert!(controller.send(method, &path, &made).await.is_err(), "{method} {path}");
    }
    let reports = format!("{LEASES}/beeline-reports/leases");
    controller.send("GET", &reports, &Value::Null).await.unwrap();
    controller.send("DELETE", &format!("{reports}/beeline.node-2"), &json!({})).await.unwrap();
    assert!(controller.send("POST", &reports, &made).await.is_err());
}
