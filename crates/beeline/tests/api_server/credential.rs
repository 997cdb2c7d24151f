//! Credentials that change while the source runs.

use crate::cluster::{API, Cluster, TOKEN, with_cluster};
use crate::source_reader::SourceReader;
use beeline_cluster::{Access, ApiServerSource};
use serde_json::json;

#[test]
fn a_replaced_token_is_used() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        let mut reader = cluster.start_reader();
        reader.wait_until_synced().await;
        // The old token is not valid any more, and the new one is not in the file yet.
        cluster.stop_api();
        cluster.set_tokens(&["second-token"]);
        cluster.start_api().await;
        reader
            .wait_until("the token is rejected", |r| r.last.error.as_deref().is_some_and(|e| e.contains("(401)")))
            .await;
        cluster.write_account("second-token");
        cluster.create_service("web", "10.96.1.1").await;
        reader.wait_until("the new token is accepted", |r| r.last.error.is_none() && r.has_service("web")).await;
    });
}

#[test]
fn a_replaced_client_certificate_is_used() {
    with_cluster(async |cluster: &mut Cluster| {
        let copy = |name: &str| {
            std::fs::copy(cluster.path(&format!("{name}.crt")), cluster.path("agent.crt")).unwrap();
            std::fs::copy(cluster.path(&format!("{name}.key")), cluster.path("agent.key")).unwrap();
        };
        copy("first");
        let (certificate, key) = (cluster.path("agent.crt"), cluster.path("agent.key"));
        let path = cluster.write_kubeconfig(json!({ "client-certificate": certificate, "client-key": key }));
        let access = Access::Kubeconfig { path, context: None };
        let mut reader = SourceReader::start(ApiServerSource { access, ..cluster.server() });
        reader.wait_until_synced().await;
        cluster.make_identity("second");
        cluster.trust_identity("second");
        copy("second");
        cluster.stop_api();
        cluster.start_api().await;
        cluster.create_service("web", "10.96.1.1").await;
        reader.wait_until("the new certificate is accepted", |r| r.last.error.is_none() && r.has_service("web")).await;
    });
}

#[test]
fn servers_are_tried_in_order() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.write_account(TOKEN);
        let access = cluster.access(&["https://127.0.0.1:1", API]);
        let mut reader = SourceReader::start(ApiServerSource { access, ..cluster.server() });
        reader.wait_until_synced().await;
        assert_eq!(reader.last.server.as_deref(), Some(API));
        assert!(reader.has_service("kubernetes"));
    });
}
