//! Who we are may change while we run.

use crate::cluster::{API, Cluster, TOKEN, with_cluster};
use crate::listener::Listener;
use beeline_cluster::{Access, Server};
use serde_json::json;

#[test]
fn a_token_that_is_replaced() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        let mut listener = cluster.listen();
        listener.until_synced().await;
        // The old token is worth nothing any more, and the new one is not mounted yet.
        cluster.stop_api();
        cluster.set_tokens(&["second-token"]);
        cluster.start_api().await;
        listener.until("it is not known", |l| l.last.error.as_deref().is_some_and(|e| e.contains("(401)"))).await;
        cluster.write_account("second-token");
        cluster.create_service("web", "10.96.1.1").await;
        listener.until("it is known again", |l| l.last.error.is_none() && l.has_service("web")).await;
    });
}

#[test]
fn a_certificate_that_is_replaced() {
    with_cluster(async |cluster: &mut Cluster| {
        let copy = |name: &str| {
            std::fs::copy(cluster.path(&format!("{name}.crt")), cluster.path("agent.crt")).unwrap();
            std::fs::copy(cluster.path(&format!("{name}.key")), cluster.path("agent.key")).unwrap();
        };
        copy("first");
        let (certificate, key) = (cluster.path("agent.crt"), cluster.path("agent.key"));
        let path = cluster.write_kubeconfig(json!({ "client-certificate": certificate, "client-key": key }));
        let access = Access::Kubeconfig { path, context: None };
        let mut listener = Listener::to(Server { access, ..cluster.server() });
        listener.until_synced().await;
        cluster.make_identity("second");
        cluster.trust_identity("second");
        copy("second");
        cluster.stop_api();
        cluster.start_api().await;
        cluster.create_service("web", "10.96.1.1").await;
        listener.until("it is known by the new one", |l| l.last.error.is_none() && l.has_service("web")).await;
    });
}

#[test]
fn servers_are_tried_in_turn() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.write_account(TOKEN);
        let access = cluster.access(&["https://127.0.0.1:1", API]);
        let mut listener = Listener::to(Server { access, ..cluster.server() });
        listener.until_synced().await;
        assert_eq!(listener.last.server.as_deref(), Some(API));
        assert!(listener.has_service("kubernetes"));
    });
}
