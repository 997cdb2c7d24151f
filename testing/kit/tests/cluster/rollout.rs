//! A Deployment rolls out while clients dial without pause.

use serde_json::json;

use crate::field::{Field, IMAGE, at, client, service};
use crate::storm::Storm;

#[test]
fn a_rollout_fails_no_dial() {
    let field = Field::new("rollout");
    let container = json!({
        "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
        // On its way out it serves for a while, as a server should: that is when endpoints leave the slices.
        "args": ["netexec", "--http-port=8080", "--udp-port=-1", "--delay-shutdown=4"],
        "readinessProbe": { "httpGet": { "path": "/hostname", "port": 8080 }, "periodSeconds": 1 },
    });
    field.apply(&[
        client("client-1", 1),
        client("client-3", 3),
        service("web", json!({ "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] })),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
            "spec": {
                "replicas": 3, "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "terminationGracePeriodSeconds": 10, "containers": [container] },
                },
            },
        }),
    ]);
    field.wait_ready(&["client-1", "client-3"]);
    field.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    field.settle("web", 3);
    let ways: Vec<String> = field.cluster_ips("web").iter().map(|ip| at(ip, 80)).collect();
    let storms = ["client-1", "client-3"].map(|pod| Storm::start(&field, pod, &ways));
    field.kubectl(&["rollout", "restart", "deployment/web"]);
    field.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    std::thread::sleep(std::time::Duration::from_secs(6));
    storms.into_iter().for_each(|storm| storm.stop().must_be_clean("rollout"));
}
