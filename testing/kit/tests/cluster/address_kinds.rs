//! Every kind of Service address, dialled from pods and nodes over IPv4 and IPv6.

use serde_json::json;

use crate::fixture::{ClusterFixture, assert_servers, client, host_port, server, service, wait_until};

#[test]
fn every_kind_of_address_is_resolved() {
    let fixture = ClusterFixture::new("kind");
    fixture.apply(&[
        server("web-1", 1),
        server("web-2", 2),
        client("client-1", 1),
        client("client-3", 3),
        service("web", json!({ "type": "LoadBalancer", "externalIPs": ["203.0.113.77"] })),
    ]);
    fixture.wait_ready(&["web-1", "web-2", "client-1", "client-3"]);
    fixture.wait_for_endpoints("web", 2);
    wait_until("the Service has a load-balancer address", || {
        !fixture.get("service", "web")["status"]["loadBalancer"]["ingress"].is_null()
    });
    let object = fixture.get("service", "web");
    let node_port = object["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    let mut addresses: Vec<String> = fixture.cluster_ips("web").iter().map(|ip| host_port(ip, 80)).collect();
    for ingress in object["status"]["loadBalancer"]["ingress"].as_array().unwrap() {
        addresses.push(host_port(ingress["ip"].as_str().unwrap(), 80));
    }
    addresses.push("203.0.113.77:80".into());
    for node in fixture.cluster.nodes() {
        addresses.extend(node.addresses().iter().map(|address| host_port(&address.to_string(), node_port)));
    }
    assert!(addresses.len() >= 2 + 1 + 1 + 6, "{addresses:?}");
    for address in &addresses {
        assert_servers(
            &fixture.dial("client-1", address, 16),
            &["web-1", "web-2"],
            &format!("{address} from a pod beside a backend"),
        );
        assert_servers(
            &fixture.dial("client-3", address, 16),
            &["web-1", "web-2"],
            &format!("{address} from a pod on another node"),
        );
        assert_servers(&fixture.dial_from_node(3, address, 16), &["web-1", "web-2"], &format!("{address} from a node"));
    }
    for ip in fixture.cluster_ips("web") {
        let answers: Vec<String> = (0..4).map(|_| fixture.send("client-3", &ip, 80)).collect();
        assert!(answers.iter().all(|name| name == "web-1" || name == "web-2"), "{ip}: {answers:?}");
    }
}

#[test]
fn services_without_endpoints_and_unknown_ports_are_refused() {
    let fixture = ClusterFixture::new("refused");
    fixture.apply(&[client("client", 1), service("empty", json!({}))]);
    fixture.wait_ready(&["client"]);
    for ip in fixture.cluster_ips("empty") {
        // Exit code 7 means refused; an unanswered packet would be 28.
        assert_servers(&fixture.dial("client", &host_port(&ip, 80), 2), &["failed 7"], "no endpoint");
        assert_servers(&fixture.dial("client", &host_port(&ip, 81), 2), &["failed 7"], "no such port");
    }
}

#[test]
fn the_api_server_and_dns_are_reached_by_their_services() {
    let fixture = ClusterFixture::new("own");
    fixture.apply(&[client("client", 2)]);
    fixture.wait_ready(&["client"]);
    let version = fixture.exec("client", "curl -sk --max-time 5 https://kubernetes.default.svc.cluster.local/version");
    assert!(version.contains("gitVersion"), "{version}");
    let answer = fixture.exec("client", "dig +short +time=2 kubernetes.default.svc.cluster.local");
    assert_eq!(answer.trim(), "10.97.0.1");
    let tcp = fixture.exec("client", "dig +short +tcp +time=2 kubernetes.default.svc.cluster.local");
    assert_eq!(tcp.trim(), "10.97.0.1");
}
