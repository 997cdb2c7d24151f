//! What the agent reports: refusals in log, status and metrics; dials to closed ports; health in both address families;
//! events that a slow monitor loses; and the state of policies.

mod fixture;

use beeline_harness::{DialKind, DialRequest, LoadKind};
use fixture::{AgentFixture, LoadSummary, TIMEOUT, TestService, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

const CONFLICT: &str = "beeline_refused_objects{reason=\"addressConflict\"}";

/// Two Services want one externalIP at two ports. The one whose name sorts first gets both.
#[test]
fn an_address_conflict_is_logged_once_when_it_begins_and_once_when_it_ends() {
    let _alone = fixture::run_alone();
    let mut fixture = AgentFixture::new();
    for target in [TestService::new("a", 1), TestService::new("b", 2)] {
        fixture.write_file(&format!("{}.yaml", target.name), target.service("  externalIPs: [192.0.2.7]\n"));
    }
    fixture.start(&[]);
    fixture.running().wait_for("belongs to Service test/a", TIMEOUT).unwrap();
    assert_eq!(fixture.metric(CONFLICT), 2);
    // Another change is planned and programmed; the refusals are not logged again.
    let frontends = || fixture.status()["counts"]["frontends"].as_u64();
    let before = frontends();
    fixture.write_file("c.yaml", TestService::new("c", 3).service(""));
    wait_until("Service c is programmed", || frontends() > before);
    fixture.remove_file("b.yaml");
    fixture.running().wait_for("a refusal no longer applies", TIMEOUT).unwrap();
    assert_eq!((fixture.metric(CONFLICT), fixture.refusals()), (0, Vec::new()));
    let log = fixture.stop();
    let count = |words: [&str; 2]| log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    assert_eq!(count(["WARN", "addressConflict"]), 2, "{log}");
    assert_eq!(count(["a refusal no longer applies", "addressConflict"]), 2, "{log}");
}

#[test]
fn a_dial_to_a_port_that_the_cluster_ip_does_not_have_is_counted() {
    let _alone = fixture::run_alone();
    let mut fixture = AgentFixture::new();
    fixture.write_file("a.yaml", TestService::new("a", 1).service(""));
    fixture.start(&[]);
    // The agent's self-test dials a closed port too.
    let before = fixture.metric("beeline_dials_no_port_total");
    let closed = SocketAddr::from((Ipv4Addr::new(10, 96, 0, 1), 81));
    let client = fixture.network.pod(0).client().unwrap();
    for _ in 0..3 {
        client.dial(&DialRequest::new(DialKind::Tcp, closed)).unwrap();
    }
    assert_eq!(fixture.metric("beeline_dials_no_port_total"), before + 3);
    assert_eq!(fixture.status()["counts"]["dialsNoPort"], before + 3);
    fixture.kill();
    assert_eq!(fixture.status()["counts"]["dialsNoPort"], before + 3, "without an agent");
}

/// The status code of an HTTP request from the node.
fn http_status(fixture: &AgentFixture, address: IpAddr, port: u16, path: &str) -> Option<u16> {
    let get = || -> std::io::Result<String> {
        let (mut stream, mut text) = (TcpStream::connect((address, port))?, String::new());
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let response = fixture.network.node().run_in(get).unwrap().ok()?;
    response.split(' ').nth(1)?.parse().ok()
}

#[test]
fn health_checks_are_served_in_both_address_families() {
    let _alone = fixture::run_alone();
    let mut fixture = AgentFixture::new();
    let more = "  type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 32123\n";
    fixture.write_file("a.yaml", TestService::new("a", 1).service(more));
    fixture.start(&[]);
    let own = [fixture.network.node().v4.into(), fixture.network.node().v6.into()];
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for address in own.into_iter().chain(loopback) {
        wait_until("the agent is healthy", || http_status(&fixture, address, 10256, "/healthz") == Some(200));
        assert_eq!(http_status(&fixture, address, 10256, "/livez"), Some(200), "{address}");
        wait_until("the node has no endpoint", || http_status(&fixture, address, 32123, "/") == Some(503));
    }
    fixture.stop();
    fixture.start(&["--healthz-bind-address", "0.0.0.0:10256"]);
    wait_until("the IPv4 address is bound", || http_status(&fixture, loopback[0], 10256, "/livez") == Some(200));
    assert_eq!(http_status(&fixture, loopback[1], 10256, "/livez"), None, "the IPv6 address is not bound");
}

/// A monitor that does not read: the agent buffers a number of events for it, drops the rest and counts them.
#[test]
fn events_for_a_slow_monitor_are_dropped_and_counted() {
    let _alone = fixture::run_alone();
    let (mut fixture, target) = (AgentFixture::new(), TestService::new("a", 1));
    let pods = fixture.start_backends("a", 10, 1);
    fixture.write_file("a.yaml", target.manifest(&pods));
    fixture.start(&["--events", "all"]);
    let mut idle = std::os::unix::net::UnixStream::connect(fixture.socket()).unwrap();
    idle.write_all(b"{\"request\":\"monitor\"}\n").unwrap();
    let load =
        vec![fixture.start_load(fixture.network.node(), LoadKind::UdpUnconnected, std::slice::from_ref(&target))];
    // The agent notices a loss with the next event that it can write: the monitor reads a little now and then.
    let mut buffer = [0; 4096];
    wait_until("events are dropped", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let _ = idle.read(&mut buffer);
        fixture.metric("beeline_event_dropped_total") > 0
    });
    LoadSummary::collect(load).assert_clean("a monitor that does not read", 1_000);
}

/// Policies of the Service test/a: one for its UDP port with a limit, one for TCP, one for a port that it does not have.
/// `pod_port`: the port of the pods that the first one selects.
fn policies(pod_port: u16) -> String {
    let policy = |kind: &str, name: &str, port: Value, backend: Value, config: Value| {
        json!({
            "apiVersion": "beeline.dev/v1alpha1", "kind": kind, "metadata": { "name": name, "namespace": "test" },
            "spec": { "frontend": { "serviceMatcher": { "serviceName": "a", "toPorts": [port] } }, "backend": backend,
                      "config": config },
        })
    };
    let udp = json!({ "name": "u", "port": 80, "protocol": "UDP" });
    let pods = json!({ "endpointSelector": { "matchLabels": { "app": "near" } },
                       "toPorts": [{ "name": "u", "port": pod_port, "protocol": "UDP" }] });
    let limit = json!({ "limit": { "connectsPerSecond": 1, "burst": 1 } });
    let external = |name: &str| {
        let ports = json!([{ "name": name, "port": 80, "protocol": "TCP" }]);
        json!({ "addressEndpoint": { "addresses": ["192.0.2.9"], "toPorts": ports } })
    };
    let port = |name: &str, port: u16| json!({ "name": name, "port": port, "protocol": "TCP" });
    let all = [
        policy("LocalRedirectPolicy", "a", udp, pods, limit),
        policy("BalancingPolicy", "b", port("t", 80), external("t"), json!({})),
        policy("BalancingPolicy", "c", port("x", 99), external("x"), json!({})),
    ];
    all.iter().map(|policy| format!("---\n{policy}\n")).collect()
}

fn pod(name: &str, uid: Option<&str>, ip: &str) -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "test", "uid": uid, "labels": { "app": "near" } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "app", "image": "none" }] },
        "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
                    "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    format!("---\n{pod}\n")
}

/// Policies that are not used for a dial, and why.
fn skipped_policies(fixture: &AgentFixture, dial: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let explanation = fixture.json(&["explain", dial]);
    let all = explanation["skippedPolicies"].as_array().unwrap_or_else(|| panic!("{explanation}"));
    all.iter().map(|one| (text(&one["policy"]), text(&one["why"]))).collect()
}

#[test]
fn explain_and_policies_show_limits_and_unused_policies() {
    let _alone = fixture::run_alone();
    let (mut fixture, target) = (AgentFixture::new(), TestService::new("a", 1));
    let (far, near) = (fixture.start_backends("a", 10, 1), fixture.start_backends("near", 20, 1));
    fixture.write_file("a.yaml", target.manifest(&far));
    let pods =
        [pod("without-uid", None, &near[0].to_string()), pod("without-cgroup", Some(&"4f2a".repeat(8)), "10.244.1.99")];
    fixture.write_file("p.yaml", pods.concat() + &policies(fixture::target_port("near")));
    fixture.start(&[]);
    wait_until("a policy redirects", || fixture.udp_answer(fixture.network.node(), &target) == "near");

    // The limit is one connection per second: the second dial is over it, and `explain` reads the kernel's bucket.
    wait_until("the limit is reached", || {
        assert!(!fixture.udp_answer(fixture.network.node(), &target).is_empty());
        let explanation = fixture.json(&["explain", "10.96.0.1:80/UDP"]);
        let order = explanation["order"].as_array().unwrap();
        assert_eq!(order.len(), 2, "{explanation}");
        let is_empty = order[0]["tokens"] == 0;
        assert_eq!(is_empty, order[0]["outcome"] == "skipped: over its limit", "{explanation}");
        is_empty && order[1]["outcome"] == "one of its backends is picked"
    });
    let other = |name: &str, why: &str| (format!("BalancingPolicy test/{name}"), why.to_owned());
    let other_ports = "it applies to other ports";
    assert_eq!(skipped_policies(&fixture, "10.96.0.1:80/UDP"), [other("b", other_ports), other("c", other_ports)]);
    let closed = skipped_policies(&fixture, "10.96.0.1:99/TCP");
    let [redirect, b, c] = &closed[..] else { panic!("{closed:?}") };
    assert_eq!((&*redirect.1, b), (other_ports, &other("b", other_ports)));
    assert!(c.0.ends_with("test/c") && c.1.starts_with("not accepted") && c.1.contains("99"), "{c:?}");

    let states = fixture.json(&["policies", "test/a"]);
    assert_eq!(
        (states.as_array().map(Vec::len), &states[0]["withoutCgroup"]),
        (Some(1), &json!(["test/without-cgroup"]))
    );
    assert_eq!(fixture.status()["counts"]["policies"], json!({ "total": 3, "active": 2, "refused": 1, "waiting": 0 }));
    let dials = |kind: &str| {
        let labels =
            format!("kind=\"{kind}\",cluster=\"local\",namespace=\"test\",service=\"a\",port=\"u\",protocol=\"UDP\"");
        fixture.metric(&format!("beeline_dials_total{{{labels}}}"))
    };
    assert!(dials("localRedirect") > 0 && dials("service") > 0);
}

/// The pods are ready, but their node has no entry address.
#[test]
fn explain_says_why_a_policy_has_no_backend() {
    let _alone = fixture::run_alone();
    let mut fixture = AgentFixture::new();
    let proxy = json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "BalancingPolicy", "metadata": { "name": "p", "namespace": "test" },
        "spec": {
            "frontend": { "addressMatcher": { "ip": "169.254.0.90", "toPorts": [{ "port": 80, "protocol": "TCP" }] } },
            "backend": { "serviceEndpoint": {
                "endpointSelector": { "matchLabels": { "app": "near" } }, "redirectMode": "nodeProxy",
                "toPorts": [{ "port": 8080, "protocol": "TCP" }] } },
        },
    });
    fixture.write_file("p.yaml", pod("near", None, "10.244.1.20") + &format!("---\n{proxy}\n"));
    fixture.start(&[]);
    let explain = || fixture.json(&["explain", "169.254.0.90:80/TCP"]);
    wait_until("the virtual address is programmed", || explain()["verdict"] == "refused");
    let explanation = explain();
    let because = explanation["because"].as_str().unwrap();
    let wanted = "BalancingPolicy test/p has no backend: node node-1 has no entry address of family IPv4";
    assert!(because.starts_with(wanted), "{explanation}");
    assert_eq!(fixture.json(&["policies", "test/p"])[0]["backends"], 0);
}
