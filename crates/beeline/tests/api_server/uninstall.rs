//! `deploy/detach-wait`, the last step of `helm uninstall`: it waits for the nodes, and deletes the EndpointSlices that the
//! controller published.

use crate::cluster::{Cluster, TOKEN, with_cluster};
use serde_json::{Value, json};
use std::process::Command;

const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets";

async fn create_slice(cluster: &Cluster<'_>, namespace: &str, name: &str, manager: &str) {
    let labels = json!({ "endpointslice.kubernetes.io/managed-by": manager });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": name, "labels": labels }, "endpoints": [{ "addresses": ["192.0.2.1"] }], "ports": [],
    });
    cluster.create(&format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"), slice).await;
}

async fn slice_names(cluster: &Cluster<'_>) -> Vec<String> {
    let list = cluster.get("/apis/discovery.k8s.io/v1/endpointslices").await;
    let names = list["items"].as_array().unwrap().iter().map(|slice| slice["metadata"]["name"].as_str().unwrap());
    let mut names: Vec<String> = names.filter(|name| *name != "kubernetes").map(str::to_owned).collect();
    names.sort();
    names
}

async fn create_daemon_set(cluster: &Cluster<'_>, ready: u32) {
    let labels = json!({ "app": "detach" });
    let pod = json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let spec = json!({ "selector": { "matchLabels": labels }, "template": pod });
    let metadata = json!({ "name": "beeline-detach" });
    let object = json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec });
    cluster.create(DAEMON_SETS, object).await;
    let status = json!({
        "observedGeneration": 1, "desiredNumberScheduled": 3, "numberReady": ready,
        "currentNumberScheduled": 3, "numberMisscheduled": 0,
    });
    cluster.patch(&format!("{DAEMON_SETS}/beeline-detach/status"), json!({ "status": status })).await;
}

fn detach_wait(cluster: &Cluster<'_>, token: &str) -> (bool, String) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/detach-wait");
    let mut command = Command::new(script);
    command.args(["kube-system", "beeline-detach", "3", "https://127.0.0.1:1", &cluster.url()]);
    let output = command.env("BEELINE_ACCOUNT", cluster.write_account(token)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn uninstalling_deletes_the_published_slices_in_every_namespace() {
    with_cluster(async |cluster| {
        let namespace = |name: &str| -> Value { json!({ "metadata": { "name": name } }) };
        cluster.create("/api/v1/namespaces", namespace("shop")).await;
        create_daemon_set(cluster, 3).await;
        let create_all = async || {
            create_slice(cluster, "kube-system", "beeline-nodes-0", "beeline.dev").await;
            create_slice(cluster, "kube-system", "beeline-nodes-1", "beeline.dev").await;
            create_slice(cluster, "shop", "api-1", "beeline.dev").await;
        };
        create_slice(cluster, "shop", "foreign", "endpointslice-controller.k8s.io").await;
        create_all().await;
        let (succeeded, text) = detach_wait(cluster, TOKEN);
        assert!(succeeded && text.contains("detached on 3 of 3 nodes"), "{text}");
        assert_eq!(slice_names(cluster).await, ["foreign"], "{text}");

        // A node that does not answer keeps the command from succeeding, but not from deleting the slices.
        create_all().await;
        cluster.delete(&format!("{DAEMON_SETS}/beeline-detach")).await;
        create_daemon_set(cluster, 2).await;
        let (succeeded, text) = detach_wait(cluster, TOKEN);
        assert!(!succeeded && text.contains("detached on 2 of 3 nodes after 3 s"), "{text}");
        assert_eq!(slice_names(cluster).await, ["foreign"], "{text}");

        let (succeeded, text) = detach_wait(cluster, "not-a-token");
        assert!(!succeeded && text.contains("kubectl delete endpointslices --all-namespaces"), "{text}");
    });
}
