//! The rights of a host's account: everything that an agent outside the cluster needs, and nothing else.

use super::host::Host;
use crate::cluster::{Cluster, SERVICES, with_cluster};
use crate::policy::install;
use beeline_cluster::policy::definitions;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ACCOUNTS: &str = "/api/v1/namespaces/beeline-hosts/serviceaccounts";
const FOLLOWED: [&str; 5] = [
    "/api/v1/services",
    "/api/v1/nodes",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/networking.k8s.io/v1/servicecidrs",
    "/apis/beeline.dev/v1alpha1/balancingpolicies",
];

fn token_request() -> Value {
    json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} })
}

#[test]
fn a_host_has_exactly_the_rights_that_it_needs() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster, &definitions()).await;
        let host = Host::new(cluster);
        host.join();
        needed_requests_are_allowed(&host).await;
        other_requests_are_forbidden(cluster, &host).await;
        the_api_server_lists_exactly_these_rules(&host).await;
        foreign_accounts_are_not_changed(cluster, &host).await;
    });
}

async fn needed_requests_are_allowed(host: &Host) {
    for path in FOLLOWED {
        for query in ["limit=1", "watch=1&timeoutSeconds=1"] {
            let (code, message) = host.request("GET", &format!("{path}?{query}"), &Value::Null).await;
            assert_eq!(code, 200, "{path}?{query}: {message}");
        }
    }
    assert_eq!(host.request("GET", "/api/v1/namespaces/kube-system", &Value::Null).await.0, 200);
    assert_eq!(host.request("POST", &format!("{ACCOUNTS}/vm-1/token"), &token_request()).await.0, 200, "its own token");
}

async fn other_requests_are_forbidden(cluster: &Cluster<'_>, host: &Host) {
    cluster.create(ACCOUNTS, json!({ "metadata": { "name": "other" } })).await;
    cluster.create_node("node-1", "172.31.0.11", json!([])).await;
    let service = json!({ "metadata": { "name": "x" }, "spec": { "ports": [{ "port": 80 }] } });
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/beeline-hosts/roles";
    let requests = [
        ("GET", "/api/v1/secrets", Value::Null),
        ("GET", "/api/v1/namespaces/beeline-hosts/secrets", Value::Null),
        ("GET", "/api/v1/pods", Value::Null),
        ("GET", "/api/v1/configmaps", Value::Null),
        ("GET", "/apis/beeline.dev/v1alpha1/localredirectpolicies", Value::Null),
        ("GET", "/api/v1/namespaces", Value::Null),
        ("GET", "/api/v1/namespaces/default", Value::Null),
        ("GET", "/api/v1/nodes/node-1", Value::Null),
        ("GET", ACCOUNTS, Value::Null),
        ("GET", roles, Value::Null),
        ("POST", "/api/v1/namespaces/default/pods/x/exec?command=sh", Value::Null),
        ("POST", "/api/v1/namespaces/default/events", json!({})),
        ("POST", "/apis/coordination.k8s.io/v1/namespaces/beeline-reports/leases", json!({})),
        ("POST", SERVICES, service),
        ("DELETE", "/api/v1/nodes/node-1", Value::Null),
        ("POST", &format!("{ACCOUNTS}/other/token"), token_request()),
        ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/vm-1/token", token_request()),
        ("DELETE", &format!("{ACCOUNTS}/vm-1"), Value::Null),
        ("PUT", &format!("{roles}/vm-1"), json!({})),
    ];
    for (method, path, body) in requests {
        let (code, message) = host.request(method, path, &body).await;
        assert_eq!(code, 403, "{method} {path}: {message}");
    }
}

/// The rules as the API server reports them, so that any further rule is noticed.
async fn the_api_server_lists_exactly_these_rules(host: &Host) {
    let reading: BTreeSet<String> = [
        "/services list watch",
        "/nodes list watch",
        "discovery.k8s.io/endpointslices list watch",
        "networking.k8s.io/servicecidrs list watch",
        "beeline.dev/balancingpolicies list watch",
        "/namespaces[kube-system] get",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(rules(host, "default").await, reading);
    let mut own = reading.clone();
    own.insert("/serviceaccounts/token[vm-1] create".into());
    assert_eq!(rules(host, "beeline-hosts").await, own);
}

async fn rules(host: &Host, namespace: &str) -> BTreeSet<String> {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": { "namespace": namespace },
    });
    let (code, message) = host.request("POST", path, &review).await;
    assert_eq!(code, 200, "{message}");
    let answer: Value = serde_json::from_str(&message).unwrap();
    assert_eq!(answer["status"]["incomplete"], false, "{answer}");
    answer["status"]["resourceRules"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(lines)
        .filter(|line| !is_default_rule(line))
        .collect()
}

/// Rules that every account has.
fn is_default_rule(line: &str) -> bool {
    line.contains("selfsubject")
}

fn lines(rule: &Value) -> Vec<String> {
    let words = |name: &str| {
        let all = rule[name].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let (groups, mut verbs, names) = (words("apiGroups"), words("verbs"), words("resourceNames"));
    verbs.sort();
    let names = if names.is_empty() { String::new() } else { format!("[{}]", names.join(",")) };
    let line = |group: &String, resource: &String| format!("{group}/{resource}{names} {}", verbs.join(" "));
    let resources = words("resources");
    groups.iter().flat_map(|group| resources.iter().map(move |resource| line(group, resource))).collect()
}

/// An account that `beeline grant` did not create is neither changed nor removed.
async fn foreign_accounts_are_not_changed(cluster: &Cluster<'_>, host: &Host) {
    for command in ["grant", "revoke"] {
        let message = super::host::run_failing(&[command, "other", "--kubeconfig", &host.admin]);
        assert!(
            message.contains("serviceaccounts/other") && message.contains("was not created by `beeline grant`"),
            "{message}"
        );
    }
    assert_eq!(cluster.get(&format!("{ACCOUNTS}/other")).await["metadata"]["labels"], Value::Null);
}
