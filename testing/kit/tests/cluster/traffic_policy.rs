//! Traffic policies, session affinity and topology hints, from pods on several nodes.

use serde_json::json;

use crate::fixture::{ClusterFixture, assert_servers, client, host_port, server, service, wait_until};

fn apply_pods(fixture: &ClusterFixture) {
    fixture.apply(&[server("web-1", 1), server("web-2", 2), client("client-1", 1), client("client-3", 3)]);
}

const PODS: [&str; 4] = ["web-1", "web-2", "client-1", "client-3"];

#[test]
fn internal_local_uses_only_pods_of_the_own_node() {
    let fixture = ClusterFixture::new("internal");
    apply_pods(&fixture);
    fixture.apply(&[service("web", json!({ "internalTrafficPolicy": "Local" }))]);
    fixture.wait_ready(&PODS);
    fixture.wait_for_endpoints("web", 2);
    for ip in fixture.cluster_ips("web") {
        assert_servers(&fixture.dial("client-1", &host_port(&ip, 80), 8), &["web-1"], "the node's own pod");
        assert_servers(&fixture.dial("client-3", &host_port(&ip, 80), 2), &["failed 7"], "no pod on the client's node");
    }
}

#[test]
fn external_local_applies_to_other_nodes_nodeports() {
    let fixture = ClusterFixture::new("external");
    apply_pods(&fixture);
    fixture.apply(&[service("web", json!({ "type": "NodePort", "externalTrafficPolicy": "Local" }))]);
    fixture.wait_ready(&PODS);
    fixture.wait_for_endpoints("web", 2);
    let port = fixture.get("service", "web")["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    let nodes = fixture.cluster.nodes();
    let of = |node: usize, family: usize| host_port(&nodes[node].addresses()[family].to_string(), port);
    for family in [0, 1] {
        assert_servers(
            &fixture.dial("client-3", &of(0, family), 8),
            &["web-1"],
            "another node's NodePort leads to that node's pod",
        );
        assert_servers(
            &fixture.dial("client-3", &of(1, family), 8),
            &["web-2"],
            "another node's NodePort leads to that node's pod",
        );
        assert_servers(&fixture.dial("client-1", &of(2, family), 2), &["failed 7"], "a node without a pod");
        assert_servers(
            &fixture.dial("client-3", &of(2, family), 16),
            &["web-1", "web-2"],
            "the own node's NodePort leads to all pods",
        );
    }
    for ip in fixture.cluster_ips("web") {
        assert_servers(
            &fixture.dial("client-3", &host_port(&ip, 80), 16),
            &["web-1", "web-2"],
            "the external policy does not apply to the ClusterIP",
        );
    }
}

#[test]
fn affinity_lasts_until_its_pod_is_deleted() {
    let fixture = ClusterFixture::new("affinity");
    apply_pods(&fixture);
    fixture.apply(&[service("web", json!({ "sessionAffinity": "ClientIP" }))]);
    fixture.wait_ready(&PODS);
    fixture.wait_for_endpoints("web", 2);
    let [ip, _] = fixture.cluster_ips("web");
    let first = fixture.dial("client-3", &host_port(&ip, 80), 20);
    assert_eq!(first.len(), 1, "one backend for one client: {first:?}");
    let backend = first.keys().next().unwrap().clone();
    let other = if backend == "web-1" { "web-2" } else { "web-1" };
    fixture.delete("pod", &backend);
    fixture.wait_for_endpoints("web", 1);
    assert_servers(&fixture.dial("client-3", &host_port(&ip, 80), 10), &[other], "after its pod was deleted");
    fixture.kubectl(&["wait", "--for=delete", "--timeout=60s", &format!("pod/{backend}")]);
    fixture.apply(&[server(&backend, if backend == "web-1" { 1 } else { 2 })]);
    fixture.wait_ready(&[&backend]);
    fixture.wait_for_endpoints("web", 2);
    assert_servers(&fixture.dial("client-3", &host_port(&ip, 80), 20), &[other], "the client keeps its second backend");
}

#[test]
fn topology_hints_keep_traffic_on_the_node() {
    let fixture = ClusterFixture::new("hints");
    apply_pods(&fixture);
    fixture.apply(&[service("web", json!({ "selector": null, "ipFamilyPolicy": "SingleStack" }))]);
    fixture.wait_ready(&PODS);
    let address = |pod: &str| fixture.get("pod", pod)["status"]["podIP"].as_str().unwrap().to_owned();
    let endpoint = |pod: &str, node: &str| {
        json!({ "addresses": [address(pod)], "nodeName": node, "conditions": { "ready": true },
            "hints": { "forNodes": [{ "name": node }], "forZones": [{ "name": "nowhere" }] } })
    };
    fixture.apply(&[json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "web-hand", "labels": { "kubernetes.io/service-name": "web" } },
        "ports": [{ "name": "tcp", "port": 8080 }],
        "endpoints": [endpoint("web-1", "n1"), endpoint("web-2", "n2")],
    })]);
    fixture.wait_for_endpoints("web", 2);
    let ip = fixture.get("service", "web")["spec"]["clusterIP"].as_str().unwrap().to_owned();
    wait_until("the hint takes effect", || fixture.dial("client-1", &host_port(&ip, 80), 8).keys().eq(["web-1"]));
    assert_servers(&fixture.dial("client-3", &host_port(&ip, 80), 16), &["web-1", "web-2"], "no hint names this node");
}
