//! The controller as the chart installs it: it admits policies, publishes their backends and writes their status.
//! Traffic does not depend on it.

use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, assert_servers, host_port, server, wait_until};

/// A pod that is selected by the policy and by no Service.
pub fn selected_pod() -> Value {
    let mut pod = server("selected-3", 3);
    pod["metadata"]["labels"] = json!({ "app": "selected" });
    pod
}

fn policy(name: &str) -> Value {
    let ports = |port: Value| json!([{ "port": port, "protocol": "TCP" }]);
    json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "BalancingPolicy", "metadata": { "name": name },
        "spec": {
            "frontend": { "serviceMatcher": { "serviceName": "web", "toPorts": ports(json!(80)) } },
            "backend": { "serviceEndpoint": {
                "endpointSelector": { "matchLabels": { "app": "selected" } }, "toPorts": ports(json!("http")),
            } },
        },
    })
}

fn condition(policy: &Value, kind: &str) -> (String, String) {
    let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

fn scale(fixture: &ClusterFixture, replicas: &str) {
    let arguments = ["-n", "kube-system", "scale", "deployment/beeline-controller", &format!("--replicas={replicas}")];
    fixture.cluster.kubectl(&arguments).unwrap();
    wait_until(&format!("{replicas} replicas"), || {
        let arguments =
            ["-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/component=controller", "-o", "json"];
        let pods: Value = serde_json::from_str(&fixture.cluster.kubectl(&arguments).unwrap()).unwrap();
        let ready = |pod: &&Value| {
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let all = pods["items"].as_array().unwrap();
        all.len().to_string() == replicas && all.iter().filter(ready).count() == all.len()
    });
}

pub fn serves_policies(fixture: &ClusterFixture, ip: &str) {
    fixture.apply(&[policy("first")]);
    wait_until("the policy is programmed on all nodes", || {
        let policy = fixture.get("balancingpolicy", "first");
        let conditions = ["Accepted", "Programmed"].map(|kind| condition(&policy, kind).0);
        let nodes = &policy["status"]["nodes"];
        conditions == ["True", "True"] && nodes["programmed"] == 3 && policy["status"]["backends"] == 1
    });
    let arguments = ["get", "endpointslices", "-l", "beeline.dev/policy=first", "-o", "json"];
    let slices: Value = serde_json::from_str(&fixture.kubectl(&arguments)).unwrap();
    assert!(!slices["items"].as_array().unwrap().is_empty(), "{slices}");
    assert_servers(
        &fixture.dial("client", &host_port(ip, 80), 8),
        &["selected-3"],
        "balanced to the published backend",
    );

    let error = fixture.try_apply(&[policy("second")]).expect_err("a conflict is refused").to_string();
    assert!(error.contains("first") && error.contains("denied the request"), "{error}");

    scale(fixture, "0");
    assert_servers(&fixture.dial("client", &host_port(ip, 80), 8), &["selected-3"], "without a controller");
    wait_until("a conflicting policy is admitted without a controller", || {
        fixture.try_apply(&[policy("second")]).is_ok()
    });
    assert_servers(
        &fixture.dial("client", &host_port(ip, 80), 8),
        &["selected-3"],
        "the older policy takes precedence",
    );
    scale(fixture, "2");
    wait_until("the younger policy has a conflict", || {
        let policy = fixture.get("balancingpolicy", "second");
        condition(&policy, "Accepted") == ("False".into(), "Conflict".into())
    });
    for name in ["second", "first"] {
        fixture.delete("balancingpolicy", name);
    }
    wait_until("the Service applies again", || {
        fixture.dial("client", &host_port(ip, 80), 8).keys().all(|name| name.starts_with("web"))
    });
}
