//! Objects are created, changed and deleted while the agents run: all changes take effect without a restart.

use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, assert_servers, client, host_port, pod, server, service, wait_until};

#[test]
fn readiness_decides_unless_not_ready_addresses_are_published() {
    let fixture = ClusterFixture::new("ready");
    let mut probed = server("web-1", 1);
    probed["spec"]["containers"][0]["readinessProbe"] =
        json!({ "exec": { "command": ["test", "-e", "/tmp/ready"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let early = service("early", json!({ "publishNotReadyAddresses": true }));
    fixture.apply(&[probed, client("client", 2), service("web", json!({})), early]);
    fixture.wait_ready(&["client"]);
    let [ip, _] = fixture.cluster_ips("web");
    let [early, _] = fixture.cluster_ips("early");
    wait_until("a published pod that is not ready serves", || {
        fixture.dial("client", &host_port(&early, 80), 1).contains_key("web-1")
    });
    assert_servers(&fixture.dial("client", &host_port(&ip, 80), 2), &["failed 7"], "not ready");
    fixture.exec("web-1", "touch /tmp/ready");
    wait_until("the ready pod serves", || fixture.dial("client", &host_port(&ip, 80), 1).contains_key("web-1"));
    fixture.exec("web-1", "rm /tmp/ready");
    wait_until("the pod that is not ready is refused", || {
        fixture.dial("client", &host_port(&ip, 80), 1).contains_key("failed 7")
    });
}

#[test]
fn named_ports_may_differ_between_pods() {
    let fixture = ClusterFixture::new("named");
    let named = |name: &str, node: u8, port: u16| {
        let mut pod = pod(name, node, &["netexec", &format!("--http-port={port}"), "--udp-port=-1"]);
        pod["metadata"]["labels"] = json!({ "app": "web" });
        pod["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": port }]);
        pod
    };
    fixture.apply(&[
        named("web-1", 1, 8001),
        named("web-2", 2, 8002),
        client("client", 3),
        service("web", json!({ "ports": [{ "name": "http", "port": 80, "targetPort": "http" }] })),
    ]);
    fixture.wait_ready(&["web-1", "web-2", "client"]);
    fixture.wait_for_endpoints("web", 2);
    for ip in fixture.cluster_ips("web") {
        assert_servers(
            &fixture.dial("client", &host_port(&ip, 80), 16),
            &["web-1", "web-2"],
            "each pod at its own port",
        );
    }
}

#[test]
fn manual_slices_and_mirrored_endpoints_are_served() {
    let fixture = ClusterFixture::new("hand");
    fixture.apply(&[
        server("web-1", 1),
        client("client", 2),
        service("many", json!({ "selector": null, "ipFamilyPolicy": "SingleStack" })),
        service("old", json!({ "selector": null, "ipFamilyPolicy": "SingleStack" })),
    ]);
    fixture.wait_ready(&["web-1", "client"]);
    let address = fixture.get("pod", "web-1")["status"]["podIP"].as_str().unwrap().to_owned();
    // 120 endpoints in three slices: one pod and 119 outside addresses.
    let slice = |number: usize, addresses: Vec<String>| {
        let endpoints: Vec<Value> =
            addresses.iter().map(|a| json!({ "addresses": [a], "conditions": { "ready": true } })).collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": format!("many-{number}"), "labels": { "kubernetes.io/service-name": "many" } },
            "ports": [{ "name": "tcp", "port": 8080 }], "endpoints": endpoints,
        })
    };
    let outside = |from: u8| (0..40).map(|i| format!("198.51.100.{}", from + i)).collect::<Vec<_>>();
    let with_pod = [vec![address.clone()], outside(100)[..39].to_vec()].concat();
    fixture.apply(&[slice(1, outside(1)), slice(2, outside(50)), slice(3, with_pod)]);
    let count = || {
        let backends: Value = serde_json::from_str(&fixture.beeline(2, &["backends", "-o", "json"])).unwrap();
        let own = format!("{}/many", fixture.namespace());
        let of_service = |row: &&Value| row.to_string().contains(&own);
        backends.as_array().unwrap().iter().filter(of_service).count()
    };
    wait_until("all endpoints of three slices are programmed", || count() == 120);
    let legacy = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": "old" },
        "subsets": [{ "addresses": [{ "ip": address }], "ports": [{ "name": "tcp", "port": 8080 }] }],
    });
    fixture.apply(&[legacy]);
    let ip = fixture.get("service", "old")["spec"]["clusterIP"].as_str().unwrap().to_owned();
    wait_until("the mirrored Endpoints serve", || fixture.dial("client", &host_port(&ip, 80), 1).contains_key("web-1"));
}

#[test]
fn changes_of_a_service_take_effect() {
    let fixture = ClusterFixture::new("change");
    fixture.apply(&[server("web-1", 1), client("client", 2), service("web", json!({}))]);
    fixture.wait_ready(&["web-1", "client"]);
    fixture.wait_for_endpoints("web", 1);
    let [ip, _] = fixture.cluster_ips("web");
    let reaches = |port: u64| fixture.dial("client", &host_port(&ip, port), 1).contains_key("web-1");
    wait_until("the first port serves", || reaches(80));
    fixture.kubectl(&[
        "patch",
        "service",
        "web",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/spec/ports/0/port","value":8888}]"#,
    ]);
    wait_until("the new port serves", || reaches(8888) && !reaches(80));
    fixture.kubectl(&["label", "service", "web", "service.kubernetes.io/service-proxy-name=other"]);
    wait_until("a Service of another proxy is not resolved", || !reaches(8888));
    fixture.kubectl(&["label", "service", "web", "service.kubernetes.io/service-proxy-name-"]);
    wait_until("the Service is resolved again", || reaches(8888));
    fixture.kubectl(&[
        "patch",
        "service",
        "web",
        "--type=merge",
        "-p",
        r#"{"spec":{"type":"ExternalName","externalName":"example.org","clusterIP":"","clusterIPs":null}}"#,
    ]);
    wait_until("an ExternalName Service is not resolved", || !reaches(8888));
    fixture.kubectl(&[
        "patch",
        "service",
        "web",
        "--type=merge",
        "-p",
        r#"{"spec":{"type":"ClusterIP","externalName":null}}"#,
    ]);
    let ip = fixture.get("service", "web")["spec"]["clusterIP"].as_str().unwrap().to_owned();
    wait_until("the ClusterIP serves again", || fixture.dial("client", &host_port(&ip, 8888), 1).contains_key("web-1"));
}
