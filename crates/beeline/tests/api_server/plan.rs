//! `beeline plan` for the objects that an API server has now.

use crate::cluster::{API, Cluster, SERVICES, with_cluster};
use serde_json::{Value, json};
use std::process::{Command, Output};

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

fn plan(kubeconfig: &str, args: &[&str]) -> Output {
    let own = ["plan", "--kubeconfig", kubeconfig, "--node-source", "watch"];
    Command::new(BEELINE).args(own).args(args).output().unwrap()
}

/// The exit code and the error message.
fn failure(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn row<'a>(plan: &'a Value, address: &str) -> &'a Value {
    plan.as_array().unwrap().iter().find(|row| row["address"] == address).unwrap_or_else(|| panic!("{address}: {plan}"))
}

#[test]
fn plan_uses_the_current_objects() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_node("node-2", "172.31.0.12", json!([])).await;
        cluster.create_service("web", "10.96.1.1").await;
        cluster.patch(&format!("{SERVICES}/web"), json!({ "spec": { "internalTrafficPolicy": "Local" } })).await;
        cluster.create_slice("web", "web-1", &["10.244.1.2"]).await;
        let kubeconfig = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
        let kubeconfig = kubeconfig.to_str().unwrap().to_owned();
        let planned = |node: &str| -> Value {
            let output = plan(&kubeconfig, &["--node-name", node, "-o", "json"]);
            assert!(output.status.success(), "{}", failure(&output).1);
            serde_json::from_slice(&output.stdout).unwrap()
        };
        assert_eq!(row(&planned("node-1"), "10.96.1.1")["backends"], json!(["10.244.1.2:8080"]), "the local endpoint");
        assert_eq!(row(&planned("node-2"), "10.96.1.1")["backends"], json!([]), "another node has no local endpoint");
        let table = plan(&kubeconfig, &["--node-name", "node-1"]);
        assert!(String::from_utf8_lossy(&table.stdout).contains("default/web"), "{table:?}");
        errors_name_their_cause(cluster, &kubeconfig).await;
    });
}

async fn errors_name_their_cause(cluster: &mut Cluster<'_>, kubeconfig: &str) {
    let (code, text) = failure(&plan(kubeconfig, &["--node-name", "node-9"]));
    assert!(code == Some(3) && text.contains("no Node node-9") && text.contains("kubectl get nodes"), "{text}");
    let (code, text) = failure(&plan("/nowhere/config", &["--node-name", "node-1"]));
    assert!(code == Some(1) && text.contains("kubeconfig /nowhere/config"), "{text}");
    let (code, text) = failure(&plan(kubeconfig, &["--node-name", "node-1", "--context", "other"]));
    assert!(code == Some(1) && text.contains("other"), "{text}");
    let (code, text) = failure(&plan(kubeconfig, &["--node-name", "node-1", "--manifests", "/tmp"]));
    assert!(code == Some(2) && text.contains("give one of them"), "{text}");
    let unauthenticated = cluster.path("unauthenticated");
    std::fs::copy(kubeconfig, &unauthenticated).unwrap();
    let text = std::fs::read_to_string(&unauthenticated).unwrap().replace("tokenFile", "unknown");
    std::fs::write(&unauthenticated, text).unwrap();
    let (code, text) = failure(&plan(&unauthenticated, &["--node-name", "node-1"]));
    assert!(code == Some(1) && text.contains("cannot be listed") && text.contains("(40"), "{text}");
    cluster.stop_api();
    let (code, text) = failure(&plan(kubeconfig, &["--node-name", "node-1"]));
    assert!(code == Some(1) && text.contains(API) && text.contains("cannot be listed"), "{text}");
}
