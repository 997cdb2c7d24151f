//! A Deployment is restarted while clients dial in a loop.

use serde_json::json;

use crate::fixture::{ClusterFixture, IMAGE, client, host_port, service, wait_until};
use crate::load::LoadGenerator;

#[test]
fn a_rollout_fails_no_dial() {
    let fixture = ClusterFixture::new("rollout");
    let container = json!({
        "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
        // The server continues for a while after SIGTERM, during which its endpoint is removed from the slices.
        "args": ["netexec", "--http-port=8080", "--udp-port=-1", "--delay-shutdown=4"],
        "readinessProbe": { "httpGet": { "path": "/hostname", "port": 8080 }, "periodSeconds": 1 },
    });
    fixture.apply(&[
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
    fixture.wait_ready(&["client-1", "client-3"]);
    fixture.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    fixture.wait_for_endpoints("web", 3);
    let addresses: Vec<String> = fixture.cluster_ips("web").iter().map(|ip| host_port(ip, 80)).collect();
    let loads = ["client-1", "client-3"].map(|pod| LoadGenerator::start(&fixture, pod, &addresses));
    fixture.kubectl(&["rollout", "restart", "deployment/web"]);
    fixture.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    wait_until("the old pods have ended", || {
        fixture.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]).lines().count() == 3
    });
    loads.into_iter().for_each(|load| load.stop().assert_no_failures("rollout"));
}
