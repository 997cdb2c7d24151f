//! API servers that end, forget, fall silent or lose objects.

use crate::cluster::{API, Cluster, with_cluster};
use crate::listener::Listener;
use crate::proxy::Proxy;
use beeline_cluster::Server;
use serde_json::json;
use std::time::Duration;

#[test]
fn an_api_server_that_ends_and_comes_back() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_service("stays", "10.96.1.1").await;
        cluster.create_service("lost", "10.96.1.2").await;
        let mut listener = cluster.listen();
        listener.until_synced().await;
        cluster.stop_api();
        listener.until("the outage is known", |l| l.last.error.is_some()).await;
        assert!(listener.last.synced && listener.has_service("stays"), "what was said before holds");
        cluster.start_api().await;
        listener.until("it is back", |l| l.last.error.is_none()).await;
        cluster.create_service("later", "10.96.1.3").await;
        listener.until("the watch goes on", |l| l.has_service("later")).await;
        lost_while_it_was_down(cluster, &mut listener).await;
    });
}

/// The object goes behind the API server's back and its history with it: 410, and a list that does not name it.
async fn lost_while_it_was_down(cluster: &mut Cluster<'_>, listener: &mut Listener) {
    cluster.stop_api();
    listener.until("the outage is known", |l| l.last.error.is_some()).await;
    let base64_key = "L3JlZ2lzdHJ5L3NlcnZpY2VzL3NwZWNzL2RlZmF1bHQvbG9zdA=="; // /registry/services/specs/default/lost
    let deleted = cluster.etcd("/v3/kv/deleterange", json!({ "key": base64_key })).await;
    assert_eq!(deleted["deleted"], "1", "{deleted}");
    cluster.compact().await;
    assert!(listener.has_service("lost"), "nobody has said so yet");
    cluster.start_api().await;
    listener.until("what the list does not name is gone", |l| !l.has_service("lost")).await;
    assert!(listener.has_service("stays") && listener.has_service("later") && listener.has_service("kubernetes"));
    listener.until("all is well", |l| l.last.error.is_none()).await;
    cluster.create_service("after", "10.96.1.4").await;
    listener.until("the watch goes on", |l| l.has_service("after")).await;
}

#[test]
fn a_server_that_falls_silent() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        let proxy = Proxy::before("127.0.0.1:6443").await;
        let patience = Duration::from_secs(2);
        // The second server is the way out.
        let access = cluster.access(&[&proxy.url, API]);
        let mut listener = Listener::to(Server { access, patience, ..cluster.server() });
        listener.until_synced().await;
        assert_eq!(listener.last.server.as_deref(), Some(proxy.url.as_str()));
        proxy.freeze(true);
        cluster.create_service("web", "10.96.1.1").await;
        listener.until("the other server tells", |l| l.has_service("web")).await;
        assert_eq!(listener.last.server.as_deref(), Some(API));
    });
}

#[test]
fn one_server_that_hangs_and_thaws() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        let proxy = Proxy::before("127.0.0.1:6443").await;
        let access = cluster.access(&[&proxy.url]);
        let mut listener = Listener::to(Server { access, patience: Duration::from_secs(2), ..cluster.server() });
        listener.until_synced().await;
        proxy.freeze(true);
        listener.until("the silence is noticed", |l| l.last.error.is_some()).await;
        cluster.create_service("web", "10.96.1.1").await;
        proxy.freeze(false);
        listener.until("it goes on", |l| l.has_service("web") && l.last.error.is_none()).await;
    });
}
