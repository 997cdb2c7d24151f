//! Policies are created, changed and deleted while clients dial in a loop.

use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, assert_servers, client, host_port, server, service, wait_until};
use crate::load::LoadGenerator;

/// A pod that answers with its name and is not selected by the Service.
fn other(name: &str, node: u8) -> Value {
    let mut pod = server(name, node);
    pod["metadata"]["labels"] = json!({ "app": "other" });
    pod
}

fn redirect(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "LocalRedirectPolicy", "metadata": { "name": name },
        "spec": {
            "frontend": { "serviceMatcher": { "serviceName": "web", "toPorts": [{ "name": "tcp", "port": 80, "protocol": "TCP" }] } },
            "backend": {
                "endpointSelector": { "matchLabels": { "app": app } },
                "toPorts": [{ "name": "tcp", "port": "http", "protocol": "TCP" }],
            },
        },
    })
}

fn balance(name: &str, frontend: Value, backend: Value) -> Value {
    json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "BalancingPolicy", "metadata": { "name": name },
        "spec": { "frontend": frontend, "backend": backend },
    })
}

fn web() -> Value {
    json!({ "serviceMatcher": { "serviceName": "web", "toPorts": [{ "port": 80, "protocol": "TCP" }] } })
}

fn pods(mode: &str, port: Value) -> Value {
    json!({ "serviceEndpoint": {
        "endpointSelector": { "matchLabels": { "app": "other" } }, "redirectMode": mode,
        "toPorts": [{ "port": port, "protocol": "TCP" }],
    } })
}

struct PolicyFixture {
    fixture: ClusterFixture,
    ips: [String; 2],
}

impl PolicyFixture {
    fn new(name: &str) -> PolicyFixture {
        let fixture = ClusterFixture::new(name);
        fixture.define_policies();
        fixture.apply(&[server("web-1", 1), server("web-2", 2), other("other-1", 1), other("other-3", 3)]);
        fixture.apply(&[client("client-1", 1), client("client-2", 2), service("web", json!({}))]);
        fixture.wait_ready(&["web-1", "web-2", "other-1", "other-3", "client-1", "client-2"]);
        fixture.wait_for_endpoints("web", 2);
        let ips = fixture.cluster_ips("web");
        PolicyFixture { fixture, ips }
    }

    /// Waits until exactly these servers answer a client's dials over both families.
    fn wait_for_servers(&self, client: &str, names: &[&str], what: &str) {
        for ip in &self.ips {
            let mut last = Default::default();
            wait_until(&format!("{what} ({client} at {ip})"), || {
                last = self.fixture.dial(client, &host_port(ip, 80), 12);
                last.keys().map(String::as_str).eq(names.iter().copied())
            });
            assert_servers(&last, names, what);
        }
    }
}

#[test]
fn creating_and_deleting_policies_redirects_without_failures() {
    let policies = PolicyFixture::new("steer");
    let fixture = &policies.fixture;
    let addresses: Vec<String> = policies.ips.iter().map(|ip| host_port(ip, 80)).collect();
    let loads = ["client-1", "client-2"].map(|client| LoadGenerator::start(fixture, client, &addresses));

    fixture.apply(&[redirect("near", "other")]);
    policies.wait_for_servers("client-1", &["other-1"], "redirected to the pod on its own node");
    policies.wait_for_servers("client-2", &["web-1", "web-2"], "n2 has no such pod: the Service applies");

    fixture.apply(&[balance("far", web(), pods("podEndpoint", json!("http")))]);
    policies.wait_for_servers("client-2", &["other-1", "other-3"], "balanced");
    policies.wait_for_servers("client-1", &["other-1"], "a LocalRedirectPolicy precedes a BalancingPolicy");

    // The label of the redirect's pod is removed and added again.
    fixture.kubectl(&["label", "pod", "other-1", "app-"]);
    policies.wait_for_servers("client-1", &["other-3"], "without a local pod the BalancingPolicy applies");
    fixture.kubectl(&["label", "pod", "other-1", "app=other"]);
    policies.wait_for_servers("client-1", &["other-1"], "redirected again");

    fixture.delete("localredirectpolicy", "near");
    policies.wait_for_servers("client-1", &["other-1", "other-3"], "without the redirect the BalancingPolicy applies");
    fixture.apply(&[redirect("near", "web")]);
    policies.wait_for_servers("client-1", &["web-1"], "a redirect of the same name with other pods");
    fixture.delete("balancingpolicy", "far");
    fixture.delete("localredirectpolicy", "near");
    policies.wait_for_servers("client-1", &["web-1", "web-2"], "only the Service applies");
    policies.wait_for_servers("client-2", &["web-1", "web-2"], "only the Service applies");
    loads.into_iter().for_each(|load| load.stop().assert_no_failures("policies created, changed and deleted"));
}

#[test]
fn a_virtual_address_is_resolved_to_pods_host_ports_or_outside_addresses() {
    let policies = PolicyFixture::new("virtual");
    let fixture = &policies.fixture;
    let to = |port: u16| json!([{ "port": port, "protocol": "TCP" }]);
    let at_virtual = |ip: &str| json!({ "addressMatcher": { "ip": ip, "toPorts": to(80) } });
    let addresses: Vec<String> = ["web-1", "web-2"]
        .map(|pod| fixture.get("pod", pod)["status"]["podIP"].as_str().expect("an address").to_owned())
        .to_vec();
    let mut host = other("host-2", 2);
    host["metadata"]["labels"] = json!({ "app": "host" });
    host["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": 8080, "hostPort": 30080 }]);
    fixture.apply(&[host]);
    fixture.wait_ready(&["host-2"]);
    let on_hosts = json!({ "serviceEndpoint": {
        "endpointSelector": { "matchLabels": { "app": "host" } }, "redirectMode": "hostPort",
        "toPorts": [{ "port": "http", "protocol": "TCP" }],
    } });
    let outside = json!({ "addressEndpoint": { "addresses": addresses, "toPorts": to(8080) } });
    fixture.apply(&[
        balance("outside", at_virtual("169.254.0.90"), outside),
        balance("pods", at_virtual("169.254.0.91"), pods("podEndpoint", json!(8080))),
        balance("hosts", at_virtual("169.254.0.92"), on_hosts),
        balance("empty", at_virtual("169.254.0.93"), pods("hostPort", json!("http"))),
    ]);
    wait_until("the virtual address is resolved", || {
        fixture.dial("client-2", "169.254.0.90:80", 1).keys().all(|name| name.starts_with("web"))
    });
    assert_servers(&fixture.dial("client-2", "169.254.0.90:80", 16), &["web-1", "web-2"], "outside addresses");
    wait_until("the policy's pods answer", || {
        fixture.dial("client-2", "169.254.0.91:80", 1).keys().all(|name| name.starts_with("other"))
    });
    assert_servers(&fixture.dial("client-2", "169.254.0.91:80", 16), &["other-1", "other-3"], "pods");
    wait_until("the host ports answer", || fixture.dial("client-1", "169.254.0.92:80", 1).contains_key("host-2"));
    // Pods without a host port of that name are skipped. Without backends a virtual address is refused.
    wait_until("the virtual address is refused", || {
        fixture.dial("client-2", "169.254.0.93:80", 1).contains_key("failed 7")
    });
    let output = fixture.beeline(2, &["policies", "empty"]);
    assert!(output.contains("backends   0"), "{output}");
    let left_out = output.lines().find(|line| line.starts_with("left out") && line.contains("pod "));
    assert!(left_out.is_some_and(|line| line.contains("hostPort")), "{output}");
}

#[test]
fn a_thousand_policies_take_effect() {
    let policies = PolicyFixture::new("many");
    let fixture = &policies.fixture;
    let load = LoadGenerator::start(fixture, "client-1", &[host_port(&policies.ips[0], 80)]);
    let ip = |i: usize| format!("169.254.{}.{}", 1 + i / 250, 1 + i % 250);
    let web = fixture.get("pod", "web-1")["status"]["podIP"].as_str().unwrap().to_owned();
    let policy = |i: usize| {
        let ports = |port: u16| json!([{ "port": port, "protocol": "TCP" }]);
        let frontend = json!({ "addressMatcher": { "ip": ip(i), "toPorts": ports(80) } });
        balance(
            &format!("p{i}"),
            frontend,
            json!({ "addressEndpoint": { "addresses": [web], "toPorts": ports(8080) } }),
        )
    };
    let all: Vec<Value> = (0..1000).map(policy).collect();
    fixture.apply(&all);
    for i in [0, 500, 999] {
        wait_until("the policy is in effect", || {
            fixture.dial("client-1", &host_port(&ip(i), 80), 1).contains_key("web-1")
        });
    }
    fixture.kubectl(&["delete", "balancingpolicies", "--all", "--wait=false"]);
    wait_until("the policies are deleted", || {
        !fixture.dial("client-1", &host_port(&ip(999), 80), 1).contains_key("web-1")
    });
    load.stop().assert_no_failures("a thousand policies created and deleted");
}
