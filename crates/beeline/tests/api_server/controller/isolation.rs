//! Users who may write in one namespace cannot harm other namespaces.

use super::*;

#[test]
fn one_namespace_cannot_harm_the_others() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster).await;
        cluster.create_service("web", "10.96.1.1").await;
        let controller = Controller::start(cluster, 0, &[]);
        controller.wait_until_ready().await;
        create_pod(cluster, "default", "a", "10.244.1.1", 8080).await;
        cluster.create(&balancing(), balancing_policy("api", "web", "web")).await;
        wait_until_published(cluster, "api", &[("10.244.1.1", 8080)]).await;
        forged_statuses_are_corrected(cluster).await;
        a_service_cannot_take_a_virtual_address(cluster).await;
        slices_that_cannot_be_written_do_not_block_others(cluster, &controller).await;
        idle_connections_are_closed(&controller).await;
    });
}

async fn types(cluster: &Cluster<'_>, path: &str) -> Vec<String> {
    let found = cluster.get(path).await;
    let all = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.iter().map(|c| c["type"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Also if foreign conditions fill the list.
async fn forged_statuses_are_corrected(cluster: &Cluster<'_>) {
    let path = format!("{}/api", balancing());
    let own = ["Accepted".to_owned(), "Programmed".to_owned()];
    wait_until("the status is written", async || types(cluster, &path).await == own).await;
    let forged = |kind: String| {
        json!({
            "type": kind, "status": "True", "reason": "Forged", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let full: Vec<Value> = (0..8).map(|n| forged(format!("Foreign{n}"))).collect();
    let status = json!({ "status": { "conditions": full, "backends": 99, "mode": "hostPort" } });
    cluster.patch(&format!("{path}/status"), status).await;
    wait_until("the status is corrected", async || {
        let status = cluster.get(&path).await["status"].clone();
        types(cluster, &path).await == own && status["backends"] == 1 && status["mode"] == "podEndpoint"
    })
    .await;
}

/// A user who may write a Service may set its load-balancer address. (The API server refuses such externalIPs.)
async fn a_service_cannot_take_a_virtual_address(cluster: &Cluster<'_>) {
    let path = format!("{}/virtual", balancing());
    cluster.create(&balancing(), virtual_address_policy("virtual", "169.254.0.90")).await;
    wait_until_published(cluster, "virtual", &[("10.244.1.1", 8080)]).await;
    cluster.create_service("claimant", "10.96.1.66").await;
    let services = "/api/v1/namespaces/default/services";
    cluster.patch(&format!("{services}/claimant"), json!({ "spec": { "type": "LoadBalancer" } })).await;
    let ingress = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "169.254.0.90" }] } } });
    cluster.patch(&format!("{services}/claimant/status"), ingress).await;
    // A policy for the new port of the Service. Once it is accepted, the controller has also seen the address.
    cluster
        .patch(&format!("{services}/claimant"), json!({ "spec": { "ports": [{ "name": "other", "port": 99 }] } }))
        .await;
    let mut witness = balancing_policy("witness", "claimant", "web");
    witness["spec"]["frontend"]["serviceMatcher"]["toPorts"][0]["port"] = json!(99);
    cluster.create(&balancing(), witness).await;
    wait_for_condition(cluster, &format!("{}/witness", balancing()), "Accepted", "True", "Accepted").await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let (is, why, message) = condition(cluster, &path, "Accepted").await;
        assert_eq!((is.as_str(), why.as_str()), ("True", "Accepted"), "{message}");
        assert_eq!(published(cluster, "virtual").await.len(), 1);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for name in ["virtual", "witness"] {
        cluster.delete(&format!("{}/{name}", balancing())).await;
    }
}

/// A quota of zero slices. A quota takes effect through its status, which a controller of Kubernetes writes; the test writes
/// it because no such controller runs.
async fn slices_that_cannot_be_written_do_not_block_others(cluster: &Cluster<'_>, controller: &Controller) {
    create_namespace(cluster, "a-greedy", json!({})).await;
    let none = json!({ "count/endpointslices.discovery.k8s.io": "0" });
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": none } });
    cluster.create("/api/v1/namespaces/a-greedy/resourcequotas", quota).await;
    let status = json!({ "status": { "hard": none, "used": none } });
    cluster.patch("/api/v1/namespaces/a-greedy/resourcequotas/none/status", status).await;
    create_pod(cluster, "a-greedy", "g", "10.244.9.9", 8080).await;
    for n in 0..40 {
        let service =
            json!({ "metadata": { "name": format!("s{n}") }, "spec": { "ports": [{ "name": "http", "port": 80 }] } });
        cluster.create("/api/v1/namespaces/a-greedy/services", service).await;
        let path = "/apis/beeline.dev/v1alpha1/namespaces/a-greedy/balancingpolicies";
        cluster.create(path, balancing_policy(&format!("p{n}"), &format!("s{n}"), "web")).await;
    }
    let failing = "beeline_controller_failing_slices 40";
    wait_until("all slices fail", async || http_get(controller.health, "/metrics").await.contains(failing)).await;
    create_pod(cluster, "default", "b", "10.244.1.2", 9090).await;
    wait_until_published(cluster, "api", &[("10.244.1.1", 8080), ("10.244.1.2", 9090)]).await;
    wait_for_condition(
        cluster,
        "/apis/beeline.dev/v1alpha1/namespaces/a-greedy/balancingpolicies/p7",
        "Accepted",
        "True",
        "Accepted",
    )
    .await;
    cluster.delete("/api/v1/namespaces/a-greedy/resourcequotas/none").await;
    let none = "beeline_controller_failing_slices 0";
    wait_until("all slices are written", async || http_get(controller.health, "/metrics").await.contains(none)).await;
}

/// Idle connections to both listeners are closed, and other requests are answered meanwhile.
async fn idle_connections_are_closed(controller: &Controller) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut idle = Vec::new();
    for port in [controller.health, 9443] {
        for _ in 0..100 {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
            idle.push(stream);
        }
    }
    controller.wait_until_ready().await;
    for mut stream in idle {
        let mut rest = Vec::new();
        let end = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "an idle connection is not closed");
    }
}
