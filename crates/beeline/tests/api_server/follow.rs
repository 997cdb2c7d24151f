//! What the API server says becomes facts, and so does every change of it.

use crate::cluster::{Cluster, NODES, SERVICES, SLICES, with_cluster};
use crate::listener::Listener;
use beeline_cluster::{Nodes, STARTUP_TAINT, Server};
use beeline_model::fact::Policy;
use serde_json::json;

#[test]
fn lists_watches_and_converts() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_node("node-2", "172.31.0.12", json!([])).await;
        cluster.create_service("web", "10.96.1.1").await;
        cluster.create_slice("web", "web-1", &["10.244.1.2"]).await;
        cluster.create_service("headless", "None").await;
        let mut listener = cluster.listen();
        listener.until_synced().await;
        assert!(listener.has_service("web") && !listener.has_service("headless"));
        // The server makes it itself, a while after it answers.
        listener.until("the server's own service", |l| l.has_service("kubernetes")).await;
        assert_eq!(listener.endpoints("web-1"), ["10.244.1.2"]);
        assert_eq!(listener.said.nodes.len(), 1, "only our own node is asked for");
        a_change_in_place(cluster, &mut listener).await;
        labels_that_come_and_go(cluster, &mut listener).await;
        types_that_change(cluster, &mut listener).await;
        our_node_changes(cluster, &mut listener).await;
        all_nodes(cluster).await;
        an_object_that_is_refused(cluster, &mut listener).await;
        the_startup_taint(cluster).await;
    });
}

async fn a_change_in_place(cluster: &Cluster<'_>, listener: &mut Listener) {
    let web = format!("{SERVICES}/web");
    let endpoints = json!([{ "addresses": ["10.244.1.9"] }, { "addresses": ["10.244.1.8"] }]);
    let meta = json!({ "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z" } });
    cluster.patch(&format!("{SLICES}/web-1"), json!({ "metadata": meta, "endpoints": endpoints })).await;
    listener.until("the endpoints change", |l| l.endpoints("web-1") == ["10.244.1.9", "10.244.1.8"]).await;
    assert!(listener.last.heard.is_some() && listener.last.triggers.len() == 1, "{:?}", listener.last);
    let spec = json!({
        "internalTrafficPolicy": "Local",
        "sessionAffinity": "ClientIP",
        "ports": [{ "name": "http", "port": 81 }, { "name": "dns", "port": 53, "protocol": "UDP" }],
        "ipFamilyPolicy": "PreferDualStack",
    });
    cluster.patch(&web, json!({ "spec": spec })).await;
    let changed = |l: &Listener| {
        let web = l.said.services.values().find(|s| s.name.name() == "web").unwrap();
        web.internal == Policy::Local
            && web.affinity == Some(10_800)
            && web.cluster_ips.len() == 2
            && web.ports.iter().map(|p| p.port).eq([81, 53])
    };
    listener.until("ports, families, policy and affinity change", changed).await;
}

async fn labels_that_come_and_go(cluster: &Cluster<'_>, listener: &mut Listener) {
    let proxy = "service.kubernetes.io/service-proxy-name";
    let label = |key: &str, value: serde_json::Value| json!({ "metadata": { "labels": { key: value } } });
    cluster.patch(&format!("{SERVICES}/web"), label(proxy, json!("other"))).await;
    listener.until("another proxy's service goes", |l| !l.has_service("web")).await;
    cluster.patch(&format!("{SERVICES}/web"), label(proxy, json!(null))).await;
    listener.until("it comes back", |l| l.has_service("web")).await;
    let headless = "service.kubernetes.io/headless";
    cluster.patch(&format!("{SLICES}/web-1"), label(headless, json!(""))).await;
    listener.until("a headless slice goes", |l| l.endpoints("web-1").is_empty()).await;
    cluster.patch(&format!("{SLICES}/web-1"), label(headless, json!(null))).await;
    listener.until("it comes back", |l| l.endpoints("web-1").len() == 2).await;
}

async fn types_that_change(cluster: &Cluster<'_>, listener: &mut Listener) {
    let web = format!("{SERVICES}/web");
    let name = json!({
        "type": "ExternalName", "externalName": "example.org", "clusterIP": null, "clusterIPs": null,
        "ipFamilies": null, "ipFamilyPolicy": null,
    });
    cluster.patch(&web, json!({ "spec": name })).await;
    listener.until("ExternalName is not for us", |l| !l.has_service("web")).await;
    cluster.patch(&web, json!({ "spec": { "type": "NodePort", "externalName": null } })).await;
    let node_port = |l: &Listener| {
        let web = l.said.services.values().find(|s| s.name.name() == "web");
        web.is_some_and(|web| web.ports.iter().all(|port| port.node_port > 0))
    };
    listener.until("it comes back as a NodePort", node_port).await;
}

async fn our_node_changes(cluster: &Cluster<'_>, listener: &mut Listener) {
    let zone = json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": "z1" } } });
    cluster.patch(&format!("{NODES}/node-1"), zone).await;
    let own = |l: &Listener| l.said.nodes.values().next().cloned().unwrap();
    listener.until("the zone is known", |l| own(l).zone.as_deref() == Some("z1")).await;
    let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "172.31.0.99" }] } });
    cluster.patch(&format!("{NODES}/node-1/status"), status).await;
    listener.until("the address is another", |l| own(l).addresses[0].1.to_string() == "172.31.0.99").await;
    let taint = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    cluster.patch(&format!("{NODES}/node-1"), json!({ "spec": { "taints": taint } })).await;
    listener.until("it is about to go", |l| !own(l).eligible).await;
}

async fn all_nodes(cluster: &Cluster<'_>) {
    let mut listener = Listener::to(Server { nodes: Nodes::Watch, ..cluster.server() });
    listener.until_synced().await;
    assert_eq!(listener.said.nodes.len(), 2);
    cluster.delete(&format!("{NODES}/node-2")).await;
    listener.until("a node goes", |l| l.said.nodes.len() == 1).await;
}

/// The API server accepts an endpoint address with a zone index or in odd forms only where it does not look; a port name
/// of a slice that is no label is one of those places.
async fn an_object_that_is_refused(cluster: &Cluster<'_>, listener: &mut Listener) {
    let slice = json!({
        "metadata": { "name": "odd", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["10.244.1.7"] }],
        "ports": [{ "name": "http", "port": 8080 }, { "name": "none" }],
    });
    cluster.create(SLICES, slice).await;
    listener.until("it is refused", |l| !l.said.refusals.is_empty()).await;
    assert_eq!(listener.endpoints("odd"), ["10.244.1.7"], "the rest of it is served");
    let refusal = &listener.said.refusals[0];
    assert_eq!((refusal.subject.as_str(), refusal.reason), ("EndpointSlice default/odd", "badPort"));
    for _ in 0..600 {
        let events = cluster.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=odd").await;
        if let Some(event) = events["items"].as_array().and_then(|all| all.first()) {
            assert_eq!((event["reason"].as_str(), event["type"].as_str()), (Some("BadPort"), Some("Warning")));
            assert_eq!(event["involvedObject"]["kind"], "EndpointSlice");
            cluster.delete(&format!("{SLICES}/odd")).await;
            return listener.until("with the object goes its refusal", |l| l.said.refusals.is_empty()).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("no Event about the refused object");
}

async fn the_startup_taint(cluster: &Cluster<'_>) {
    let own = json!({ "key": STARTUP_TAINT, "effect": "NoSchedule" });
    let other = json!({ "key": "example.org/other", "effect": "NoSchedule" });
    let node = format!("{NODES}/node-1");
    cluster.patch(&node, json!({ "spec": { "taints": [own, other] } })).await;
    let mut listener = Listener::to(Server { clear_taint: true, ..cluster.server() });
    listener.until_synced().await;
    let taints = async || cluster.get(&node).await["spec"]["taints"].as_array().map_or(0, Vec::len);
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(taints().await, 2, "nothing is programmed yet");
    listener.programmed.send_replace(true);
    for _ in 0..600 {
        if taints().await == 1 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the start-up taint is still there");
}
