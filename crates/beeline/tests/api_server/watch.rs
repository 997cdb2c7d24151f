//! Objects of the API server, and their changes, become changes of the model.

use crate::cluster::{Cluster, NODES, SERVICES, SLICES, with_cluster};
use crate::source_reader::SourceReader;
use beeline_cluster::{ApiServerSource, NodeScope, STARTUP_TAINT};
use beeline_model::object::TrafficPolicy;
use serde_json::json;

#[test]
fn objects_are_listed_watched_and_converted() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_node("node-2", "172.31.0.12", json!([])).await;
        cluster.create_service("web", "10.96.1.1").await;
        cluster.create_slice("web", "web-1", &["10.244.1.2"]).await;
        cluster.create_service("headless", "None").await;
        let mut reader = cluster.start_reader();
        reader.wait_until_synced().await;
        assert!(reader.has_service("web") && !reader.has_service("headless"));
        // The API server creates this Service itself, some time after it is ready.
        reader.wait_until("the server's own service", |r| r.has_service("kubernetes")).await;
        assert_eq!(reader.endpoints("web-1"), ["10.244.1.2"]);
        assert_eq!(reader.state.nodes.len(), 1, "only the own node is watched");
        changed_fields_are_followed(cluster, &mut reader).await;
        label_changes_add_and_remove_objects(cluster, &mut reader).await;
        only_namespaces_with_the_exclusion_label_are_known(cluster, &mut reader).await;
        service_type_changes_are_followed(cluster, &mut reader).await;
        changes_of_the_own_node_are_followed(cluster, &mut reader).await;
        all_nodes_can_be_watched(cluster).await;
        a_refused_object_gets_an_event(cluster, &mut reader).await;
        the_startup_taint_is_removed_after_programming(cluster).await;
    });
}

async fn changed_fields_are_followed(cluster: &Cluster<'_>, reader: &mut SourceReader) {
    let web = format!("{SERVICES}/web");
    let endpoints = json!([{ "addresses": ["10.244.1.9"] }, { "addresses": ["10.244.1.8"] }]);
    let meta = json!({ "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z" } });
    cluster.patch(&format!("{SLICES}/web-1"), json!({ "metadata": meta, "endpoints": endpoints })).await;
    reader.wait_until("the endpoints change", |r| r.endpoints("web-1") == ["10.244.1.9", "10.244.1.8"]).await;
    assert!(reader.last.received_at.is_some() && reader.last.trigger_times.len() == 1, "{:?}", reader.last);
    let spec = json!({
        "internalTrafficPolicy": "Local",
        "sessionAffinity": "ClientIP",
        "ports": [{ "name": "http", "port": 81 }, { "name": "dns", "port": 53, "protocol": "UDP" }],
        "ipFamilyPolicy": "PreferDualStack",
    });
    cluster.patch(&web, json!({ "spec": spec })).await;
    let changed = |r: &SourceReader| {
        let web = r.state.services.values().find(|s| s.name.name() == "web").unwrap();
        web.internal == TrafficPolicy::Local
            && web.affinity == Some(10_800)
            && web.cluster_ips.len() == 2
            && web.ports.iter().map(|p| p.port).eq([81, 53])
    };
    reader.wait_until("ports, families, policy and affinity change", changed).await;
}

async fn label_changes_add_and_remove_objects(cluster: &Cluster<'_>, reader: &mut SourceReader) {
    let proxy = "service.kubernetes.io/service-proxy-name";
    let label = |key: &str, value: serde_json::Value| json!({ "metadata": { "labels": { key: value } } });
    cluster.patch(&format!("{SERVICES}/web"), label(proxy, json!("other"))).await;
    reader.wait_until("a service of another proxy is removed", |r| !r.has_service("web")).await;
    cluster.patch(&format!("{SERVICES}/web"), label(proxy, json!(null))).await;
    reader.wait_until("it is added again", |r| r.has_service("web")).await;
    let headless = "service.kubernetes.io/headless";
    cluster.patch(&format!("{SLICES}/web-1"), label(headless, json!(""))).await;
    reader.wait_until("a headless slice is removed", |r| r.endpoints("web-1").is_empty()).await;
    cluster.patch(&format!("{SLICES}/web-1"), label(headless, json!(null))).await;
    reader.wait_until("it is added again", |r| r.endpoints("web-1").len() == 2).await;
}

async fn only_namespaces_with_the_exclusion_label_are_known(cluster: &Cluster<'_>, reader: &mut SourceReader) {
    let label = |value: serde_json::Value| json!({ "metadata": { "labels": { "beeline.dev/resolve": value } } });
    assert_eq!(reader.state.namespaces.len(), 0, "of all namespaces of the cluster");
    cluster.patch("/api/v1/namespaces/default", label(json!("off"))).await;
    let excluded = |r: &SourceReader| r.state.namespaces.keys().any(|(_, name)| &**name == "default");
    reader.wait_until("a namespace with the label is added", excluded).await;
    cluster.patch("/api/v1/namespaces/default", label(json!(null))).await;
    reader.wait_until("it is removed", |r| r.state.namespaces.is_empty()).await;
}

async fn service_type_changes_are_followed(cluster: &Cluster<'_>, reader: &mut SourceReader) {
    let web = format!("{SERVICES}/web");
    let name = json!({
        "type": "ExternalName", "externalName": "example.org", "clusterIP": null, "clusterIPs": null,
        "ipFamilies": null, "ipFamilyPolicy": null,
    });
    cluster.patch(&web, json!({ "spec": name })).await;
    reader.wait_until("an ExternalName service is removed", |r| !r.has_service("web")).await;
    cluster.patch(&web, json!({ "spec": { "type": "NodePort", "externalName": null } })).await;
    let node_port = |r: &SourceReader| {
        let web = r.state.services.values().find(|s| s.name.name() == "web");
        web.is_some_and(|web| web.ports.iter().all(|port| port.node_port > 0))
    };
    reader.wait_until("it is added as a NodePort service", node_port).await;
}

async fn changes_of_the_own_node_are_followed(cluster: &Cluster<'_>, reader: &mut SourceReader) {
    let zone = json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": "z1" } } });
    cluster.patch(&format!("{NODES}/node-1"), zone).await;
    let own = |r: &SourceReader| r.state.nodes.values().next().cloned().unwrap();
    reader.wait_until("the zone changes", |r| own(r).zone.as_deref() == Some("z1")).await;
    let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "172.31.0.99" }] } });
    cluster.patch(&format!("{NODES}/node-1/status"), status).await;
    reader.wait_until("the address changes", |r| own(r).addresses[0].1.to_string() == "172.31.0.99").await;
    let taint = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    cluster.patch(&format!("{NODES}/node-1"), json!({ "spec": { "taints": taint } })).await;
    reader.wait_until("the node is not eligible any more", |r| !own(r).eligible).await;
}

async fn all_nodes_can_be_watched(cluster: &Cluster<'_>) {
    let mut reader = SourceReader::start(ApiServerSource { nodes: NodeScope::Watch, ..cluster.server() });
    reader.wait_until_synced().await;
    assert_eq!(reader.state.nodes.len(), 2);
    cluster.delete(&format!("{NODES}/node-2")).await;
    reader.wait_until("a deleted node is removed", |r| r.state.nodes.len() == 1).await;
}

/// The API server validates most fields itself. A port without a number is one of the few errors that it accepts.
async fn a_refused_object_gets_an_event(cluster: &Cluster<'_>, reader: &mut SourceReader) {
    let slice = json!({
        "metadata": { "name": "odd", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["10.244.1.7"] }],
        "ports": [{ "name": "http", "port": 8080 }, { "name": "none" }],
    });
    cluster.create(SLICES, slice).await;
    reader.wait_until("the object is refused", |r| !r.state.refusals.is_empty()).await;
    assert_eq!(reader.endpoints("odd"), ["10.244.1.7"], "the valid part of the object is used");
    let refusal = &reader.state.refusals[0];
    assert_eq!(
        (refusal.subject.to_string().as_str(), refusal.reason.as_str()),
        ("EndpointSlice default/odd", "badPort")
    );
    for _ in 0..600 {
        let events = cluster.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=odd").await;
        if let Some(event) = events["items"].as_array().and_then(|all| all.first()) {
            assert_eq!((event["reason"].as_str(), event["type"].as_str()), (Some("BadPort"), Some("Warning")));
            assert_eq!(event["involvedObject"]["kind"], "EndpointSlice");
            cluster.delete(&format!("{SLICES}/odd")).await;
            return reader.wait_until("the refusal ends with the object", |r| r.state.refusals.is_empty()).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("no Event about the refused object");
}

async fn the_startup_taint_is_removed_after_programming(cluster: &Cluster<'_>) {
    let own = json!({ "key": STARTUP_TAINT, "effect": "NoSchedule" });
    let other = json!({ "key": "example.org/other", "effect": "NoSchedule" });
    let node = format!("{NODES}/node-1");
    cluster.patch(&node, json!({ "spec": { "taints": [own, other] } })).await;
    let mut reader = SourceReader::start(ApiServerSource { clear_taint: true, ..cluster.server() });
    reader.wait_until_synced().await;
    let taints = async || cluster.get(&node).await["spec"]["taints"].as_array().map_or(0, Vec::len);
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(taints().await, 2, "the taint stays until the node is programmed");
    reader.programmed.send_replace(true);
    for _ in 0..600 {
        if taints().await == 1 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the startup taint was not removed");
}
