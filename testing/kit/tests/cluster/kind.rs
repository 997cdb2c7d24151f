//! Every kind of address that a socket can see, from pods and from nodes, on three nodes and in both families.

use serde_json::json;

use crate::field::{Field, at, client, eventually, only, server, service};

#[test]
fn every_kind_of_address() {
    let field = Field::new("kind");
    field.apply(&[
        server("web-1", 1),
        server("web-2", 2),
        client("client-1", 1),
        client("client-3", 3),
        service("web", json!({ "type": "LoadBalancer", "externalIPs": ["203.0.113.77"] })),
    ]);
    field.wait_ready(&["web-1", "web-2", "client-1", "client-3"]);
    field.settle("web", 2);
    eventually("a load-balancer address", || {
        !field.get("service", "web")["status"]["loadBalancer"]["ingress"].is_null()
    });
    let object = field.get("service", "web");
    let node_port = object["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    let mut ways: Vec<String> = field.cluster_ips("web").iter().map(|ip| at(ip, 80)).collect();
    for ingress in object["status"]["loadBalancer"]["ingress"].as_array().unwrap() {
        ways.push(at(ingress["ip"].as_str().unwrap(), 80));
    }
    ways.push("203.0.113.77:80".into());
    for node in field.cluster.nodes() {
        ways.extend(node.addresses().iter().map(|address| at(&address.to_string(), node_port)));
    }
    assert!(ways.len() >= 2 + 1 + 1 + 6, "{ways:?}");
    for way in &ways {
        only(&field.dial("client-1", way, 16), &["web-1", "web-2"], &format!("{way} from a pod beside a backend"));
        only(&field.dial("client-3", way, 16), &["web-1", "web-2"], &format!("{way} from a pod elsewhere"));
        only(&field.dial_from_node(3, way, 16), &["web-1", "web-2"], &format!("{way} from a node"));
    }
    for ip in field.cluster_ips("web") {
        let answers: Vec<String> = (0..4).map(|_| field.send("client-3", &ip, 80)).collect();
        assert!(answers.iter().all(|name| name == "web-1" || name == "web-2"), "{ip}: {answers:?}");
    }
}

#[test]
fn a_port_that_is_not_there_is_refused() {
    let field = Field::new("refused");
    field.apply(&[client("client", 1), service("nobody", json!({}))]);
    field.wait_ready(&["client"]);
    for ip in field.cluster_ips("nobody") {
        // 7: refused at once, not 28: a packet that nobody answers.
        only(&field.dial("client", &at(&ip, 80), 2), &["failed 7"], "no endpoint");
        only(&field.dial("client", &at(&ip, 81), 2), &["failed 7"], "no such port");
    }
}

#[test]
fn the_api_server_and_dns_by_their_services() {
    let field = Field::new("own");
    field.apply(&[client("client", 2)]);
    field.wait_ready(&["client"]);
    let version = field.exec("client", "curl -sk --max-time 5 https://kubernetes.default.svc.cluster.local/version");
    assert!(version.contains("gitVersion"), "{version}");
    let answer = field.exec("client", "dig +short +time=2 kubernetes.default.svc.cluster.local");
    assert_eq!(answer.trim(), "10.97.0.1");
    let tcp = field.exec("client", "dig +short +tcp +time=2 kubernetes.default.svc.cluster.local");
    assert_eq!(tcp.trim(), "10.97.0.1");
}
