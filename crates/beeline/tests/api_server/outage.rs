//! Failures of the API server: restarts, lost history, lost objects, and connections without any response.

use crate::cluster::{API, Cluster, with_cluster};
use crate::proxy::Proxy;
use crate::source_reader::SourceReader;
use beeline_cluster::ApiServerSource;
use serde_json::json;
use std::time::Duration;

#[test]
fn the_source_continues_after_a_restart_of_the_api_server() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_service("stays", "10.96.1.1").await;
        cluster.create_service("lost", "10.96.1.2").await;
        let mut reader = cluster.start_reader();
        reader.wait_until_synced().await;
        cluster.stop_api();
        reader.wait_until("the outage is reported", |r| r.last.error.is_some()).await;
        assert!(reader.last.synced && reader.has_service("stays"), "the last known state stays in effect");
        cluster.start_api().await;
        reader.wait_until("the error ends", |r| r.last.error.is_none()).await;
        cluster.create_service("later", "10.96.1.3").await;
        reader.wait_until("the watch continues", |r| r.has_service("later")).await;
        objects_deleted_during_an_outage_are_removed(cluster, &mut reader).await;
    });
}

/// The object and its history are deleted in etcd. The watch gets 410, and the new list lacks the object.
async fn objects_deleted_during_an_outage_are_removed(cluster: &mut Cluster<'_>, reader: &mut SourceReader) {
    cluster.stop_api();
    reader.wait_until("the outage is reported", |r| r.last.error.is_some()).await;
    let base64_key = "L3JlZ2lzdHJ5L3NlcnZpY2VzL3NwZWNzL2RlZmF1bHQvbG9zdA=="; // /registry/services/specs/default/lost
    let deleted = cluster.etcd("/v3/kv/deleterange", json!({ "key": base64_key })).await;
    assert_eq!(deleted["deleted"], "1", "{deleted}");
    cluster.compact().await;
    assert!(reader.has_service("lost"), "the deletion is not known yet");
    cluster.start_api().await;
    reader.wait_until("an object that is not in the list is removed", |r| !r.has_service("lost")).await;
    assert!(reader.has_service("stays") && reader.has_service("later") && reader.has_service("kubernetes"));
    reader.wait_until("there is no error", |r| r.last.error.is_none()).await;
    cluster.create_service("after", "10.96.1.4").await;
    reader.wait_until("the watch continues", |r| r.has_service("after")).await;
}

#[test]
fn a_server_that_stops_responding_is_replaced_by_the_next_one() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        let proxy = Proxy::start("127.0.0.1:6443").await;
        let idle_timeout = Duration::from_secs(2);
        // The second server still responds.
        let access = cluster.access(&[&proxy.url, API]);
        let mut reader = SourceReader::start(ApiServerSource { access, idle_timeout, ..cluster.server() });
        reader.wait_until_synced().await;
        assert_eq!(reader.last.server.as_deref(), Some(proxy.url.as_str()));
        proxy.freeze(true);
        cluster.create_service("web", "10.96.1.1").await;
        reader.wait_until("the change comes from the other server", |r| r.has_service("web")).await;
        assert_eq!(reader.last.server.as_deref(), Some(API));
    });
}

#[test]
fn the_only_server_is_used_again_when_it_responds() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        let proxy = Proxy::start("127.0.0.1:6443").await;
        let access = cluster.access(&[&proxy.url]);
        let mut reader =
            SourceReader::start(ApiServerSource { access, idle_timeout: Duration::from_secs(2), ..cluster.server() });
        reader.wait_until_synced().await;
        proxy.freeze(true);
        reader.wait_until("the missing response is noticed", |r| r.last.error.is_some()).await;
        cluster.create_service("web", "10.96.1.1").await;
        proxy.freeze(false);
        reader.wait_until("the watch continues", |r| r.has_service("web") && r.last.error.is_none()).await;
    });
}
