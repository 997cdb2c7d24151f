//! Objects that come, change and go while the agents run: all are followed without a restart.

use serde_json::{Value, json};

use crate::field::{Field, at, client, eventually, only, pod, server, service};

#[test]
fn readiness_and_addresses_of_pods_that_are_not_ready() {
    let field = Field::new("ready");
    let mut shy = server("web-1", 1);
    shy["spec"]["containers"][0]["readinessProbe"] =
        json!({ "exec": { "command": ["test", "-e", "/tmp/ready"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let early = service("early", json!({ "publishNotReadyAddresses": true }));
    field.apply(&[shy, client("client", 2), service("web", json!({})), early]);
    field.wait_ready(&["client"]);
    let [ip, _] = field.cluster_ips("web");
    let [early, _] = field.cluster_ips("early");
    eventually("a pod that is not ready serves who asks for it", || {
        field.dial("client", &at(&early, 80), 1).contains_key("web-1")
    });
    only(&field.dial("client", &at(&ip, 80), 2), &["failed 7"], "not ready");
    field.exec("web-1", "touch /tmp/ready");
    eventually("ready", || field.dial("client", &at(&ip, 80), 1).contains_key("web-1"));
    field.exec("web-1", "rm /tmp/ready");
    eventually("not ready again", || field.dial("client", &at(&ip, 80), 1).contains_key("failed 7"));
}

#[test]
fn named_ports_differ_from_pod_to_pod() {
    let field = Field::new("named");
    let named = |name: &str, node: u8, port: u16| {
        let mut pod = pod(name, node, &["netexec", &format!("--http-port={port}"), "--udp-port=-1"]);
        pod["metadata"]["labels"] = json!({ "app": "web" });
        pod["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": port }]);
        pod
    };
    field.apply(&[
        named("web-1", 1, 8001),
        named("web-2", 2, 8002),
        client("client", 3),
        service("web", json!({ "ports": [{ "name": "http", "port": 80, "targetPort": "http" }] })),
    ]);
    field.wait_ready(&["web-1", "web-2", "client"]);
    field.settle("web", 2);
    for ip in field.cluster_ips("web") {
        only(&field.dial("client", &at(&ip, 80), 16), &["web-1", "web-2"], "each at its own port");
    }
}

#[test]
fn hand_written_slices_and_mirrored_endpoints() {
    let field = Field::new("hand");
    field.apply(&[
        server("web-1", 1),
        client("client", 2),
        service("many", json!({ "selector": null, "ipFamilyPolicy": "SingleStack" })),
        service("old", json!({ "selector": null, "ipFamilyPolicy": "SingleStack" })),
    ]);
    field.wait_ready(&["web-1", "client"]);
    let address = field.get("pod", "web-1")["status"]["podIP"].as_str().unwrap().to_owned();
    // 120 endpoints in three slices, of which one pod is real and the others are outside.
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
    field.apply(&[slice(1, outside(1)), slice(2, outside(50)), slice(3, with_pod)]);
    let count = || {
        let backends: Value = serde_json::from_str(&field.beeline(2, &["backends", "-o", "json"])).unwrap();
        let own = format!("{}/many", field.namespace());
        let of = |row: &&Value| row.to_string().contains(&own);
        backends.as_array().unwrap().iter().filter(of).count()
    };
    eventually("all endpoints of three slices", || count() == 120);
    let legacy = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": "old" },
        "subsets": [{ "addresses": [{ "ip": address }], "ports": [{ "name": "tcp", "port": 8080 }] }],
    });
    field.apply(&[legacy]);
    let ip = field.get("service", "old")["spec"]["clusterIP"].as_str().unwrap().to_owned();
    eventually("Endpoints, mirrored", || field.dial("client", &at(&ip, 80), 1).contains_key("web-1"));
}

#[test]
fn services_change_in_place() {
    let field = Field::new("change");
    field.apply(&[server("web-1", 1), client("client", 2), service("web", json!({}))]);
    field.wait_ready(&["web-1", "client"]);
    field.settle("web", 1);
    let [ip, _] = field.cluster_ips("web");
    let reaches = |port: u64| field.dial("client", &at(&ip, port), 1).contains_key("web-1");
    eventually("the first port", || reaches(80));
    field.kubectl(&[
        "patch",
        "service",
        "web",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/spec/ports/0/port","value":8888}]"#,
    ]);
    eventually("another port", || reaches(8888) && !reaches(80));
    field.kubectl(&["label", "service", "web", "service.kubernetes.io/service-proxy-name=other"]);
    eventually("another proxy's", || !reaches(8888));
    field.kubectl(&["label", "service", "web", "service.kubernetes.io/service-proxy-name-"]);
    eventually("ours again", || reaches(8888));
    field.kubectl(&[
        "patch",
        "service",
        "web",
        "--type=merge",
        "-p",
        r#"{"spec":{"type":"ExternalName","externalName":"example.org","clusterIP":"","clusterIPs":null}}"#,
    ]);
    eventually("an ExternalName", || !reaches(8888));
    field.kubectl(&[
        "patch",
        "service",
        "web",
        "--type=merge",
        "-p",
        r#"{"spec":{"type":"ClusterIP","externalName":null}}"#,
    ]);
    let ip = field.get("service", "web")["spec"]["clusterIP"].as_str().unwrap().to_owned();
    eventually("a ClusterIP again", || field.dial("client", &at(&ip, 8888), 1).contains_key("web-1"));
}
