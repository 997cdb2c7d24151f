//! Policies in a real cluster: they come, change, go and come again under clients that never stop dialling.

use serde_json::{Value, json};

use crate::field::{Field, at, client, eventually, only, server, service};
use crate::storm::Storm;

/// A pod that answers with its name and that no Service selects.
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

struct Ground {
    field: Field,
    ips: [String; 2],
}

impl Ground {
    fn new(name: &str) -> Ground {
        let field = Field::new(name);
        field.define_policies();
        field.apply(&[server("web-1", 1), server("web-2", 2), other("other-1", 1), other("other-3", 3)]);
        field.apply(&[client("client-1", 1), client("client-2", 2), service("web", json!({}))]);
        field.wait_ready(&["web-1", "web-2", "other-1", "other-3", "client-1", "client-2"]);
        field.settle("web", 2);
        let ips = field.cluster_ips("web");
        Ground { field, ips }
    }

    /// Until a client's dials, over both families, are answered by these and no others.
    fn answered(&self, client: &str, names: &[&str], what: &str) {
        for ip in &self.ips {
            let mut last = Default::default();
            eventually(&format!("{what} ({client} at {ip})"), || {
                last = self.field.dial(client, &at(ip, 80), 12);
                last.keys().map(String::as_str).eq(names.iter().copied())
            });
            only(&last, names, what);
        }
    }
}

#[test]
fn redirects_and_balancing_come_change_and_go() {
    let ground = Ground::new("steer");
    let field = &ground.field;
    let ways: Vec<String> = ground.ips.iter().map(|ip| at(ip, 80)).collect();
    let storms = ["client-1", "client-2"].map(|client| Storm::start(field, client, &ways));

    field.apply(&[redirect("near", "other")]);
    ground.answered("client-1", &["other-1"], "redirected to the pod on its own node");
    ground.answered("client-2", &["web-1", "web-2"], "no such pod on n2: the Service");

    field.apply(&[balance("far", web(), pods("podEndpoint", json!("http")))]);
    ground.answered("client-2", &["other-1", "other-3"], "balanced");
    ground.answered("client-1", &["other-1"], "a redirect goes before balancing");

    // The redirect's pod leaves: its label is gone, and it comes again.
    field.kubectl(&["label", "pod", "other-1", "app-"]);
    ground.answered("client-1", &["other-3"], "without a local pod: balanced");
    field.kubectl(&["label", "pod", "other-1", "app=other"]);
    ground.answered("client-1", &["other-1"], "redirected again");

    field.delete("localredirectpolicy", "near");
    ground.answered("client-1", &["other-1", "other-3"], "the redirect is gone: balanced");
    field.apply(&[redirect("near", "web")]);
    ground.answered("client-1", &["web-1"], "made again under its name, with other pods");
    field.delete("balancingpolicy", "far");
    field.delete("localredirectpolicy", "near");
    ground.answered("client-1", &["web-1", "web-2"], "nothing but the Service");
    ground.answered("client-2", &["web-1", "web-2"], "nothing but the Service");
    storms.into_iter().for_each(|storm| storm.stop().must_be_clean("policies came, changed and went"));
}

#[test]
fn a_virtual_address_leads_to_pods_host_ports_and_outside_addresses() {
    let ground = Ground::new("virtual");
    let field = &ground.field;
    let to = |port: u16| json!([{ "port": port, "protocol": "TCP" }]);
    let at_virtual = |ip: &str| json!({ "addressMatcher": { "ip": ip, "toPorts": to(80) } });
    let addresses: Vec<String> = ["web-1", "web-2"]
        .map(|pod| field.get("pod", pod)["status"]["podIP"].as_str().expect("an address").to_owned())
        .to_vec();
    let mut host = other("host-2", 2);
    host["metadata"]["labels"] = json!({ "app": "host" });
    host["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": 8080, "hostPort": 30080 }]);
    field.apply(&[host]);
    field.wait_ready(&["host-2"]);
    let on_hosts = json!({ "serviceEndpoint": {
        "endpointSelector": { "matchLabels": { "app": "host" } }, "redirectMode": "hostPort",
        "toPorts": [{ "port": "http", "protocol": "TCP" }],
    } });
    let outside = json!({ "addressEndpoint": { "addresses": addresses, "toPorts": to(8080) } });
    field.apply(&[
        balance("outside", at_virtual("169.254.0.90"), outside),
        balance("pods", at_virtual("169.254.0.91"), pods("podEndpoint", json!(8080))),
        balance("hosts", at_virtual("169.254.0.92"), on_hosts),
        balance("nobody", at_virtual("169.254.0.93"), pods("hostPort", json!("http"))),
    ]);
    eventually("the virtual addresses", || {
        field.dial("client-2", "169.254.0.90:80", 1).keys().all(|who| who.starts_with("web"))
    });
    only(&field.dial("client-2", "169.254.0.90:80", 16), &["web-1", "web-2"], "outside addresses");
    eventually("the pods", || field.dial("client-2", "169.254.0.91:80", 1).keys().all(|who| who.starts_with("other")));
    only(&field.dial("client-2", "169.254.0.91:80", 16), &["other-1", "other-3"], "pods");
    eventually("the host ports", || field.dial("client-1", "169.254.0.92:80", 1).contains_key("host-2"));
    // Pods without a host port of that name are left out: nothing remains, and a virtual address is refused.
    eventually("the refusal", || field.dial("client-2", "169.254.0.93:80", 1).contains_key("failed 7"));
    let told = field.beeline(2, &["policies", "nobody"]);
    assert!(told.contains("backends   0"), "{told}");
    let left_out = told.lines().find(|line| line.starts_with("left out") && line.contains("pod "));
    assert!(left_out.is_some_and(|line| line.contains("hostPort")), "{told}");
}

#[test]
fn a_thousand_policies_at_once() {
    let ground = Ground::new("many");
    let field = &ground.field;
    let storm = Storm::start(field, "client-1", &[at(&ground.ips[0], 80)]);
    let ip = |i: usize| format!("169.254.{}.{}", 1 + i / 250, 1 + i % 250);
    let web = field.get("pod", "web-1")["status"]["podIP"].as_str().unwrap().to_owned();
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
    field.apply(&all);
    for i in [0, 500, 999] {
        eventually("the last of them", || field.dial("client-1", &at(&ip(i), 80), 1).contains_key("web-1"));
    }
    field.kubectl(&["delete", "balancingpolicies", "--all", "--wait=false"]);
    eventually("none of them", || !field.dial("client-1", &at(&ip(999), 80), 1).contains_key("web-1"));
    storm.stop().must_be_clean("a thousand policies came and went");
}
