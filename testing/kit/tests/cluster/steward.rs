//! The controller as the chart installs it: it publishes, judges and reports, and traffic never waits for it.

use serde_json::{Value, json};

use crate::field::{Field, at, eventually, only, server};

/// A pod that no Service selects.
pub fn chosen() -> Value {
    let mut pod = server("chosen-3", 3);
    pod["metadata"]["labels"] = json!({ "app": "chosen" });
    pod
}

fn policy(name: &str) -> Value {
    let ports = |port: Value| json!([{ "port": port, "protocol": "TCP" }]);
    json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "BalancingPolicy", "metadata": { "name": name },
        "spec": {
            "frontend": { "serviceMatcher": { "serviceName": "web", "toPorts": ports(json!(80)) } },
            "backend": { "serviceEndpoint": {
                "endpointSelector": { "matchLabels": { "app": "chosen" } }, "toPorts": ports(json!("http")),
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

fn scale(field: &Field, replicas: &str) {
    let words = ["-n", "kube-system", "scale", "deployment/beeline-controller", &format!("--replicas={replicas}")];
    field.cluster.kubectl(&words).unwrap();
    eventually(&format!("{replicas} replicas"), || {
        let words = ["-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/component=controller", "-o", "json"];
        let pods: Value = serde_json::from_str(&field.cluster.kubectl(&words).unwrap()).unwrap();
        let ready = |pod: &&Value| {
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let all = pods["items"].as_array().unwrap();
        all.len().to_string() == replicas && all.iter().filter(ready).count() == all.len()
    });
}

pub fn keeps_policies(field: &Field, ip: &str) {
    field.apply(&[policy("first")]);
    eventually("the policy's status", || {
        let policy = field.get("balancingpolicy", "first");
        let both = ["Accepted", "Programmed"].map(|kind| condition(&policy, kind).0);
        let nodes = &policy["status"]["nodes"];
        both == ["True", "True"] && nodes["programmed"] == 3 && policy["status"]["backends"] == 1
    });
    let words = ["get", "endpointslices", "-l", "beeline.dev/policy=first", "-o", "json"];
    let slices: Value = serde_json::from_str(&field.kubectl(&words)).unwrap();
    assert!(!slices["items"].as_array().unwrap().is_empty(), "{slices}");
    only(&field.dial("client", &at(ip, 80), 8), &["chosen-3"], "balanced as published");

    let told = field.try_apply(&[policy("second")]).expect_err("a conflict is refused").to_string();
    assert!(told.contains("first") && told.contains("denied the request"), "{told}");

    scale(field, "0");
    only(&field.dial("client", &at(ip, 80), 8), &["chosen-3"], "without a controller");
    eventually("a conflict is taken while nobody judges", || field.try_apply(&[policy("second")]).is_ok());
    only(&field.dial("client", &at(ip, 80), 8), &["chosen-3"], "the older one wins");
    scale(field, "2");
    eventually("the loser's status", || {
        let policy = field.get("balancingpolicy", "second");
        condition(&policy, "Accepted") == ("False".into(), "Conflict".into())
    });
    for name in ["second", "first"] {
        field.delete("balancingpolicy", name);
    }
    eventually("the Service", || field.dial("client", &at(ip, 80), 8).keys().all(|who| who.starts_with("web")));
}
