//! Rights that the chart's admission policies ask for, on the real API server: who may write policies that reach beyond
//! their namespace, without any controller; and that an agent's token is good for its own node only.

use crate::cluster::{Cluster, NODES, PATIENCE, program, with_cluster};
use crate::policy::{good_one, install, merge, path_of};
use beeline_cluster::policy::definitions;
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

const AGENT: &str = "system:serviceaccount:kube-system:beeline";
const CONTROLLER: &str = "system:serviceaccount:kube-system:beeline-controller";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";

fn rendered() -> Vec<Value> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart");
    let mut helm = Command::new(program("helm"));
    helm.args(["template", "beeline", chart, "--namespace", "kube-system", "--kube-version", "1.35.0", "--no-hooks"]);
    let output = helm.args(["--set", "clearStartupTaint=true"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let documents = text.split("---\n").filter(|document| document.contains("\nkind: "));
    documents.map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

/// Where it is made; `None`: it takes no part here.
fn place(object: &Value) -> Option<String> {
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
    /// As the token of a pod tells it.
    node: Option<&'a str>,
}

impl User<'_> {
    /// `Err`: the server's message.
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

    /// As if it were created.
    async fn tries(&self, object: &Value) -> Result<Value, String> {
        self.send("POST", &format!("{}?dryRun=All", path_of(object)), object).await
    }
}

async fn give(cluster: &Cluster<'_>, user: &str, role: &str) {
    let binding = json!({
        "metadata": { "name": format!("{user}-{role}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
    });
    cluster.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
}

/// Rights and policies become effective a little later.
async fn until(what: &str, is: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !is().await {
        assert!(start.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn changed(name: &str, patch: &Value) -> Value {
    let mut object = good_one(name);
    merge(&mut object, patch);
    object
}

#[test]
fn rights_hold_without_a_controller() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster, &definitions()).await;
        for object in rendered() {
            if let Some(place) = place(&object) {
                cluster.create(&place, object).await;
            }
        }
        let rules = json!([{ "apiGroups": ["beeline.dev"], "verbs": ["*"],
            "resources": ["localredirectpolicies", "balancingpolicies"] }]);
        let role = json!({ "metadata": { "name": "writer" }, "rules": rules });
        cluster.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await;
        for user in ["alice", "bob"] {
            give(cluster, user, "writer").await;
        }
        give(cluster, "bob", "beeline-clusterscopes").await;
        reach_needs_a_right(cluster).await;
        only_the_part_that_changes_is_asked_about(cluster).await;
        an_agent_speaks_for_its_own_node(cluster).await;
        the_controller_writes_its_own_by_name(cluster).await;
    });
}

async fn reach_needs_a_right(cluster: &Cluster<'_>) {
    let user = |name| User { cluster, name, node: None };
    let (alice, bob) = (user("alice"), user("bob"));
    let addresses = json!({ "addressEndpoint": { "addresses": ["10.0.0.5"], "toPorts": [{ "port": 5432 }] } });
    let service = json!({ "addressMatcher": null, "serviceMatcher": { "serviceName": "web" } });
    let reaching = [
        good_one("virtual"),
        good_one("api"),
        good_one("database"),
        changed("database", &json!({ "spec": { "frontend": service, "backend": addresses } })),
        changed("api", &json!({ "spec": { "frontend": service } })),
    ];
    until("bob has his rights", async || bob.tries(&good_one("virtual")).await.is_ok()).await;
    until("alice has hers", async || alice.tries(&good_one("dns")).await.is_ok()).await;
    for policy in ["virtual", "database"] {
        let is_refused = async || alice.tries(&good_one(policy)).await.is_err();
        until("the admission policies are in force", is_refused).await;
    }
    for object in &reaching {
        let said = alice.tries(object).await.expect_err(&object.to_string());
        assert!(said.contains("\"use\" on \"clusterscopes\""), "{said}");
        bob.tries(object).await.unwrap_or_else(|said| panic!("{said}"));
    }
    for inside in ["dns", "all-ports", "host"] {
        alice.tries(&good_one(inside)).await.unwrap_or_else(|said| panic!("{inside}: {said}"));
    }
}

async fn only_the_part_that_changes_is_asked_about(cluster: &Cluster<'_>) {
    let user = |name| User { cluster, name, node: None };
    let (alice, bob) = (user("alice"), user("bob"));
    let database = good_one("database");
    bob.send("POST", &path_of(&database), &database).await.unwrap();
    let path = format!("{}/database", path_of(&database));
    for fine in [
        json!({ "metadata": { "labels": { "a": "b" } } }),
        json!({ "spec": { "config": { "enableOutCluster": false } } }),
    ] {
        alice.send("PATCH", &path, &fine).await.unwrap_or_else(|said| panic!("{fine}: {said}"));
    }
    for beyond in [
        json!({ "spec": { "frontend": { "addressMatcher": { "ip": "169.254.0.91" } } } }),
        json!({ "spec": { "backend": { "addressEndpoint": { "addresses": ["10.0.0.7"] } } } }),
    ] {
        assert!(alice.send("PATCH", &path, &beyond).await.is_err(), "{beyond}");
        bob.send("PATCH", &path, &beyond).await.unwrap_or_else(|said| panic!("{beyond}: {said}"));
    }
    alice.send("DELETE", &path, &json!({})).await.unwrap();
}

fn lease(node: &str) -> Value {
    json!({ "metadata": { "name": format!("beeline.{node}") }, "spec": { "holderIdentity": node } })
}

async fn an_agent_speaks_for_its_own_node(cluster: &Cluster<'_>) {
    for (node, address) in [("node-1", "172.31.0.11"), ("node-2", "172.31.0.12")] {
        cluster.create_node(node, address, json!([])).await;
    }
    let agent = |node| User { cluster, name: AGENT, node };
    let (own, tokenless) = (agent(Some("node-1")), agent(None));
    let reports = format!("{LEASES}/beeline-reports/leases");
    until("another node's Lease is refused", async || {
        own.send("POST", &format!("{reports}?dryRun=All"), &lease("node-2")).await.is_err()
    })
    .await;
    own.send("POST", &reports, &lease("node-1")).await.unwrap();
    let renewed = json!({ "spec": { "holderIdentity": "again" } });
    own.send("PATCH", &format!("{reports}/beeline.node-1"), &renewed).await.unwrap();
    cluster.create(&reports, lease("node-2")).await;
    let said = own.send("PATCH", &format!("{reports}/beeline.node-2"), &renewed).await.unwrap_err();
    assert!(said.contains("its own node"), "{said}");
    assert!(tokenless.send("PATCH", &format!("{reports}/beeline.node-1"), &renewed).await.is_err());
    for path in [format!("{LEASES}/kube-system/leases"), format!("{LEASES}/kube-node-lease/leases")] {
        assert!(own.send("POST", &path, &lease("node-1")).await.is_err(), "{path}");
    }
    // The API server itself gives every new Node this one.
    let kept = json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" });
    let taints = json!({ "spec": { "taints": [kept] } });
    own.send("PATCH", &format!("{NODES}/node-1"), &taints).await.unwrap();
    let said = own.send("PATCH", &format!("{NODES}/node-2"), &taints).await.unwrap_err();
    assert!(said.contains("its own Node"), "{said}");
    assert!(tokenless.send("PATCH", &format!("{NODES}/node-1"), &taints).await.is_err());
    of_its_node_an_agent_changes_one_taint(cluster, &own).await;
}

async fn of_its_node_an_agent_changes_one_taint(cluster: &Cluster<'_>, agent: &User<'_>) {
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
        let said = agent.send("PATCH", &path, &patch).await.expect_err(&patch.to_string());
        assert!(said.contains("an agent may take the taint") && said.contains(why), "{patch}: {said}");
    }
    agent.send("PATCH", &path, &set(json!([taint(other)]))).await.unwrap();
    let left = cluster.get(&path).await["spec"]["taints"].clone();
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
}

async fn the_controller_writes_its_own_by_name(cluster: &Cluster<'_>) {
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
