//! Answers that are not what was asked for.

use crate::cluster::{Cluster, with_cluster};
use crate::front::{Front, status};
use crate::listener::Listener;
use beeline_cluster::Server;
use serde_json::json;
use std::time::{Duration, Instant};

/// Before 1.31 this field cannot be selected by.
#[test]
fn an_older_server_cannot_leave_out_headless_services() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_service("web", "10.96.1.1").await;
        cluster.create_service("headless", "None").await;
        let unknown = |asked: &str| asked.contains("spec.clusterIP").then(|| status(400, "BadRequest", json!({})));
        let front = Front::of(cluster, unknown).await;
        let mut listener = Listener::to(Server { access: cluster.access(&[&front.url]), ..cluster.server() });
        listener.until_synced().await;
        assert!(listener.has_service("web") && !listener.has_service("headless"));
        cluster.create_service("later", "10.96.1.2").await;
        cluster.create_service("later-headless", "None").await;
        listener.until("the watch stands", |l| l.has_service("later")).await;
        assert!(!listener.has_service("later-headless"));
    });
}

#[test]
fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
    with_cluster(async |cluster: &mut Cluster| {
        let mut left = vec![
            status(429, "TooManyRequests", json!({ "retryAfterSeconds": 3 })),
            status(503, "ServiceUnavailable", json!({})),
            status(500, "InternalError", json!({})),
        ];
        let busy = move |asked: &str| if asked.contains("/services") { left.pop() } else { None };
        let front = Front::of(cluster, busy).await;
        let start = Instant::now();
        let mut listener = Listener::to(Server { access: cluster.access(&[&front.url]), ..cluster.server() });
        listener.until("it says why", |l| l.last.error.as_deref().is_some_and(|e| e.contains("(429)"))).await;
        assert!(!listener.last.synced);
        listener.until_synced().await;
        assert!(start.elapsed() > Duration::from_secs(3), "after {:?}", start.elapsed());
    });
}

#[test]
fn a_version_that_the_server_does_not_have_is_not_asked_for_again() {
    with_cluster(async |cluster: &mut Cluster| {
        let mut lists = 0;
        let forgetful = move |asked: &str| {
            lists += u32::from(asked.contains("/services") && !asked.contains("watch=true"));
            let old = lists == 1 && asked.contains("/services") && asked.contains("watch=true");
            old.then(|| status(504, "Timeout", json!({})))
        };
        let front = Front::of(cluster, forgetful).await;
        let mut listener = Listener::to(Server { access: cluster.access(&[&front.url]), ..cluster.server() });
        let refused = |l: &Listener| l.last.error.as_deref().is_some_and(|why| why.contains("(504)"));
        listener.until("it will not go on from there", refused).await;
        listener.until_synced().await;
        cluster.create_service("web", "10.96.1.1").await;
        listener.until("the watch stands", |l| l.has_service("web")).await;
    });
}

/// An edge cache that has nothing yet says 200, and nothing.
#[test]
fn a_list_without_a_version_is_no_list() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_service("web", "10.96.1.1").await;
        let mut asked_for = 0;
        let empty = move |asked: &str| {
            asked_for += u32::from(asked.contains("/services"));
            let nothing = asked.contains("/services") && asked_for < 4;
            nothing.then(|| (200, json!({ "kind": "ServiceList", "metadata": {}, "items": [] })))
        };
        let front = Front::of(cluster, empty).await;
        let mut listener = Listener::to(Server { access: cluster.access(&[&front.url]), ..cluster.server() });
        listener.until("it is said", |l| l.last.error.as_deref().is_some_and(|e| e.contains("resourceVersion"))).await;
        assert!(!listener.last.synced);
        listener.until_synced().await;
        assert!(listener.has_service("web"));
    });
}

/// A server that starts may not have read its definitions yet: with the first answer believed, a restarted agent would take
/// the policies' rows away.
#[test]
fn what_is_missing_once_may_be_there_a_moment_later() {
    with_cluster(async |cluster: &mut Cluster| {
        let redirect = json!({
            "metadata": { "name": "a", "namespace": "default", "uid": "u", "generation": 1 },
            "spec": { "frontend": { "serviceMatcher": { "serviceName": "web" } },
                      "backend": { "endpointSelector": {}, "toPorts": [{ "port": 80, "protocol": "TCP" }] } },
        });
        let mut looks = 0;
        let late = move |asked: &str| {
            if !asked.contains("/localredirectpolicies") {
                return None;
            }
            looks += 1;
            let list = json!({ "metadata": { "resourceVersion": "7" }, "items": [redirect] });
            Some(if looks == 1 { status(404, "NotFound", json!({})) } else { (200, list) })
        };
        let front = Front::of(cluster, late).await;
        let mut listener = Listener::to(Server { access: cluster.access(&[&front.url]), ..cluster.server() });
        listener.until("everything is listed", |l| l.last.synced).await;
        assert_eq!(listener.said.policies.len(), 1);
    });
}

/// Rights that are gone for a moment, as while a server starts: whoever believed that there are no policies would take
/// their rows away.
#[test]
fn whoever_is_denied_for_a_moment_takes_no_policy_for_gone() {
    with_cluster(async |cluster: &mut Cluster| {
        let redirect = json!({
            "metadata": { "name": "a", "namespace": "default", "uid": "u", "generation": 1 },
            "spec": { "frontend": { "serviceMatcher": { "serviceName": "web" } },
                      "backend": { "endpointSelector": {}, "toPorts": [{ "port": 80, "protocol": "TCP" }] } },
        });
        let start = Instant::now();
        let denies = move |asked: &str| {
            let policies = asked.contains("/localredirectpolicies");
            match start.elapsed().as_millis() {
                0..1500 => Some(status(403, "Forbidden", json!({}))),
                1500..3000 if policies => Some(status(403, "Forbidden", json!({}))),
                3000..4500 if policies => Some(status(404, "NotFound", json!({}))),
                _ if policies => Some((200, json!({ "metadata": { "resourceVersion": "7" }, "items": [redirect] }))),
                _ => None,
            }
        };
        let front = Front::of(cluster, denies).await;
        let mut listener = Listener::to(Server { access: cluster.access(&[&front.url]), ..cluster.server() });
        listener.until("Services are served", |l| l.last.synced).await;
        assert!(start.elapsed() < Duration::from_secs(20), "after {:?}", start.elapsed());
        let whole = |l: &Listener| {
            assert!(!l.last.whole || l.said.policies.len() == 1, "policies are taken for gone");
            l.last.whole
        };
        // The other kind is really not there: discovery says so.
        listener.until("all is known", whole).await;
    });
}
