//! Responses of older, busy or restarting API servers and of edge caches.

use crate::cluster::{Cluster, with_cluster};
use crate::intercepting_proxy::{InterceptingProxy, failure_status};
use crate::source_reader::SourceReader;
use beeline_cluster::ApiServerSource;
use serde_json::json;
use std::time::{Duration, Instant};

/// Before Kubernetes 1.31 this field selector is not supported.
#[test]
fn headless_services_are_filtered_if_the_server_does_not_support_the_selector() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_service("web", "10.96.1.1").await;
        cluster.create_service("headless", "None").await;
        let unsupported =
            |path: &str| path.contains("spec.clusterIP").then(|| failure_status(400, "BadRequest", json!({})));
        let proxy = InterceptingProxy::start(cluster, unsupported).await;
        let mut reader =
            SourceReader::start(ApiServerSource { access: cluster.access(&[&proxy.url]), ..cluster.server() });
        reader.wait_until_synced().await;
        assert!(reader.has_service("web") && !reader.has_service("headless"));
        cluster.create_service("later", "10.96.1.2").await;
        cluster.create_service("later-headless", "None").await;
        reader.wait_until("the watch works", |r| r.has_service("later")).await;
        assert!(!reader.has_service("later-headless"));
    });
}

#[test]
fn retry_after_of_a_busy_server_is_respected() {
    with_cluster(async |cluster: &mut Cluster| {
        let mut failures = vec![
            failure_status(429, "TooManyRequests", json!({ "retryAfterSeconds": 3 })),
            failure_status(503, "ServiceUnavailable", json!({})),
            failure_status(500, "InternalError", json!({})),
        ];
        let busy = move |path: &str| if path.contains("/services") { failures.pop() } else { None };
        let proxy = InterceptingProxy::start(cluster, busy).await;
        let start = Instant::now();
        let mut reader =
            SourceReader::start(ApiServerSource { access: cluster.access(&[&proxy.url]), ..cluster.server() });
        reader
            .wait_until("the error is reported", |r| r.last.error.as_deref().is_some_and(|e| e.contains("(429)")))
            .await;
        assert!(!reader.last.synced);
        reader.wait_until_synced().await;
        assert!(start.elapsed() > Duration::from_secs(3), "after {:?}", start.elapsed());
    });
}

#[test]
fn an_unknown_resource_version_causes_a_new_list() {
    with_cluster(async |cluster: &mut Cluster| {
        let mut lists = 0;
        let unknown_version = move |path: &str| {
            lists += u32::from(path.contains("/services") && !path.contains("watch=true"));
            let fails = lists == 1 && path.contains("/services") && path.contains("watch=true");
            fails.then(|| failure_status(504, "Timeout", json!({})))
        };
        let proxy = InterceptingProxy::start(cluster, unknown_version).await;
        let mut reader =
            SourceReader::start(ApiServerSource { access: cluster.access(&[&proxy.url]), ..cluster.server() });
        let refused = |r: &SourceReader| r.last.error.as_deref().is_some_and(|why| why.contains("(504)"));
        reader.wait_until("the watch is rejected", refused).await;
        reader.wait_until_synced().await;
        cluster.create_service("web", "10.96.1.1").await;
        reader.wait_until("the watch works", |r| r.has_service("web")).await;
    });
}

/// An edge cache without data responds with 200 and an empty list without a version.
#[test]
fn a_list_without_a_resource_version_is_rejected() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_service("web", "10.96.1.1").await;
        let mut requests = 0;
        let empty = move |path: &str| {
            requests += u32::from(path.contains("/services"));
            let is_empty = path.contains("/services") && requests < 4;
            is_empty.then(|| (200, json!({ "kind": "ServiceList", "metadata": {}, "items": [] })))
        };
        let proxy = InterceptingProxy::start(cluster, empty).await;
        let mut reader =
            SourceReader::start(ApiServerSource { access: cluster.access(&[&proxy.url]), ..cluster.server() });
        reader
            .wait_until("the error is reported", |r| {
                r.last.error.as_deref().is_some_and(|e| e.contains("resourceVersion"))
            })
            .await;
        assert!(!reader.last.synced);
        reader.wait_until_synced().await;
        assert!(reader.has_service("web"));
    });
}

/// A starting API server may not serve its custom resources yet. If the first 404 counted, a restarted agent would remove
/// the rows of the policies.
#[test]
fn one_not_found_does_not_remove_policies() {
    with_cluster(async |cluster: &mut Cluster| {
        let redirect = json!({
            "metadata": { "name": "a", "namespace": "default", "uid": "u", "generation": 1 },
            "spec": { "frontend": { "serviceMatcher": { "serviceName": "web" } },
                      "backend": { "endpointSelector": {}, "toPorts": [{ "port": 80, "protocol": "TCP" }] } },
        });
        let mut requests = 0;
        let late = move |path: &str| {
            if !path.contains("/localredirectpolicies") {
                return None;
            }
            requests += 1;
            let list = json!({ "metadata": { "resourceVersion": "7" }, "items": [redirect] });
            Some(if requests == 1 { failure_status(404, "NotFound", json!({})) } else { (200, list) })
        };
        let proxy = InterceptingProxy::start(cluster, late).await;
        let mut reader =
            SourceReader::start(ApiServerSource { access: cluster.access(&[&proxy.url]), ..cluster.server() });
        reader.wait_until("everything is listed", |r| r.last.synced).await;
        assert_eq!(reader.state.policies.len(), 1);
    });
}

/// Requests may be forbidden for a short time while a server starts. If that counted as "no policies", their rows would be
/// removed.
#[test]
fn a_temporary_denial_does_not_remove_policies() {
    with_cluster(async |cluster: &mut Cluster| {
        let redirect = json!({
            "metadata": { "name": "a", "namespace": "default", "uid": "u", "generation": 1 },
            "spec": { "frontend": { "serviceMatcher": { "serviceName": "web" } },
                      "backend": { "endpointSelector": {}, "toPorts": [{ "port": 80, "protocol": "TCP" }] } },
        });
        let start = Instant::now();
        let denies = move |path: &str| {
            let policies = path.contains("/localredirectpolicies");
            match start.elapsed().as_millis() {
                0..1500 => Some(failure_status(403, "Forbidden", json!({}))),
                1500..3000 if policies => Some(failure_status(403, "Forbidden", json!({}))),
                3000..4500 if policies => Some(failure_status(404, "NotFound", json!({}))),
                _ if policies => Some((200, json!({ "metadata": { "resourceVersion": "7" }, "items": [redirect] }))),
                _ => None,
            }
        };
        let proxy = InterceptingProxy::start(cluster, denies).await;
        let mut reader =
            SourceReader::start(ApiServerSource { access: cluster.access(&[&proxy.url]), ..cluster.server() });
        reader.wait_until("Services are served", |r| r.last.synced).await;
        assert!(start.elapsed() < Duration::from_secs(20), "after {:?}", start.elapsed());
        let is_complete = |r: &SourceReader| {
            assert!(!r.last.complete || r.state.policies.len() == 1, "the policies were removed");
            r.last.complete
        };
        // The other kind does not exist, which discovery confirms.
        reader.wait_until("all kinds are known", is_complete).await;
    });
}
