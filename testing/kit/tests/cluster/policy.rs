//! Traffic policies, affinity and topology, as pods on several nodes see them.

use serde_json::json;

use crate::field::{Field, at, client, eventually, only, server, service};

fn three(field: &Field) {
    field.apply(&[server("web-1", 1), server("web-2", 2), client("client-1", 1), client("client-3", 3)]);
}

const PODS: [&str; 4] = ["web-1", "web-2", "client-1", "client-3"];

#[test]
fn internal_local() {
    let field = Field::new("internal");
    three(&field);
    field.apply(&[service("web", json!({ "internalTrafficPolicy": "Local" }))]);
    field.wait_ready(&PODS);
    field.settle("web", 2);
    for ip in field.cluster_ips("web") {
        only(&field.dial("client-1", &at(&ip, 80), 8), &["web-1"], "the own node's pod");
        only(&field.dial("client-3", &at(&ip, 80), 2), &["failed 7"], "no pod on this node");
    }
}

#[test]
fn external_local() {
    let field = Field::new("external");
    three(&field);
    field.apply(&[service("web", json!({ "type": "NodePort", "externalTrafficPolicy": "Local" }))]);
    field.wait_ready(&PODS);
    field.settle("web", 2);
    let port = field.get("service", "web")["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    let nodes = field.cluster.nodes();
    let of = |node: usize, family: usize| at(&nodes[node].addresses()[family].to_string(), port);
    for family in [0, 1] {
        only(&field.dial("client-3", &of(0, family), 8), &["web-1"], "another node's NodePort is that node's");
        only(&field.dial("client-3", &of(1, family), 8), &["web-2"], "another node's NodePort is that node's");
        only(&field.dial("client-1", &of(2, family), 2), &["failed 7"], "a node without a pod");
        only(
            &field.dial("client-3", &of(2, family), 16),
            &["web-1", "web-2"],
            "the own node's NodePort: short circuit",
        );
    }
    for ip in field.cluster_ips("web") {
        only(
            &field.dial("client-3", &at(&ip, 80), 16),
            &["web-1", "web-2"],
            "external policy leaves the ClusterIP alone",
        );
    }
}

#[test]
fn affinity_lasts_until_its_pod_dies() {
    let field = Field::new("affinity");
    three(&field);
    field.apply(&[service("web", json!({ "sessionAffinity": "ClientIP" }))]);
    field.wait_ready(&PODS);
    field.settle("web", 2);
    let [ip, _] = field.cluster_ips("web");
    let first = field.dial("client-3", &at(&ip, 80), 20);
    assert_eq!(first.len(), 1, "one backend for one client: {first:?}");
    let kept = first.keys().next().unwrap().clone();
    let other = if kept == "web-1" { "web-2" } else { "web-1" };
    field.delete("pod", &kept);
    field.settle("web", 1);
    only(&field.dial("client-3", &at(&ip, 80), 10), &[other], "after its pod died");
    field.kubectl(&["wait", "--for=delete", "--timeout=60s", &format!("pod/{kept}")]);
    field.apply(&[server(&kept, if kept == "web-1" { 1 } else { 2 })]);
    field.wait_ready(&[&kept]);
    field.settle("web", 2);
    only(&field.dial("client-3", &at(&ip, 80), 20), &[other], "the second choice is remembered");
}

#[test]
fn hints_keep_traffic_at_home() {
    let field = Field::new("hints");
    three(&field);
    field.apply(&[service("web", json!({ "selector": null, "ipFamilyPolicy": "SingleStack" }))]);
    field.wait_ready(&PODS);
    let address = |pod: &str| field.get("pod", pod)["status"]["podIP"].as_str().unwrap().to_owned();
    let endpoint = |pod: &str, node: &str| {
        json!({ "addresses": [address(pod)], "nodeName": node, "conditions": { "ready": true },
            "hints": { "forNodes": [{ "name": node }], "forZones": [{ "name": "nowhere" }] } })
    };
    field.apply(&[json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "web-hand", "labels": { "kubernetes.io/service-name": "web" } },
        "ports": [{ "name": "tcp", "port": 8080 }],
        "endpoints": [endpoint("web-1", "n1"), endpoint("web-2", "n2")],
    })]);
    field.settle("web", 2);
    let ip = field.get("service", "web")["spec"]["clusterIP"].as_str().unwrap().to_owned();
    eventually("the hint is followed", || field.dial("client-1", &at(&ip, 80), 8).keys().eq(["web-1"]));
    only(&field.dial("client-3", &at(&ip, 80), 16), &["web-1", "web-2"], "no hint names this node");
}
