//! What an agent tells of itself: what the plan refuses, dials that no service port counts, its health in both families,
//! events that nobody took, and what became of policies.

mod stage;

use beeline_harness::{Dial, Kind, StormKind};
use serde_json::{Value, json};
use stage::{PATIENCE, Stage, Target, Toll, wait_until};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

const CONFLICT: &str = "beeline_refused_objects{reason=\"addressConflict\"}";

/// By its name `a` goes before `b`, at both of its ports.
#[test]
fn a_conflict_is_said_once_when_it_comes_and_once_when_it_goes() {
    let _alone = stage::alone();
    let mut stage = Stage::new();
    for target in [Target::new("a", 1), Target::new("b", 2)] {
        stage.folder.put(&format!("{}.yaml", target.name), target.service("  externalIPs: [192.0.2.7]\n"));
    }
    stage.start(&[]);
    stage.agent().wait_for("belongs to Service stage/a", PATIENCE).unwrap();
    assert_eq!(stage.metric(CONFLICT), 2);
    // More is planned, and what was said is not said again.
    stage.folder.put("c.yaml", Target::new("c", 3).service(""));
    wait_until("c is there", || stage.status()["counts"]["services"] == 3);
    std::thread::sleep(std::time::Duration::from_millis(500));
    stage.folder.remove("b.yaml");
    stage.agent().wait_for("no longer refused", PATIENCE).unwrap();
    assert_eq!((stage.metric(CONFLICT), stage.refusals()), (0, Vec::new()));
    let log = stage.stop();
    let lines = |words: [&str; 2]| log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    assert_eq!(lines(["WARN", "addressConflict"]), 2, "{log}");
    assert_eq!(lines(["no longer refused", "addressConflict"]), 2, "{log}");
}

#[test]
fn a_dial_to_a_port_that_the_cluster_ip_does_not_have_is_counted() {
    let _alone = stage::alone();
    let mut stage = Stage::new();
    stage.folder.put("a.yaml", Target::new("a", 1).service(""));
    stage.start(&[]);
    // The agent's own first dial is one of these.
    let before = stage.metric("beeline_dials_no_port_total");
    let closed = SocketAddr::from((Ipv4Addr::new(10, 96, 0, 1), 81));
    let client = stage.lab.pod(0).client().unwrap();
    for _ in 0..3 {
        client.dial(&Dial::new(Kind::Tcp, closed)).unwrap();
    }
    assert_eq!(stage.metric("beeline_dials_no_port_total"), before + 3);
    assert_eq!(stage.status()["counts"]["dialsNoPort"], before + 3);
    stage.kill();
    assert_eq!(stage.status()["counts"]["dialsNoPort"], before + 3, "without an agent");
}

/// The code of the answer, asked inside the node.
fn code(stage: &Stage, address: IpAddr, port: u16, path: &str) -> Option<u16> {
    let ask = || -> std::io::Result<String> {
        let (mut stream, mut text) = (TcpStream::connect((address, port))?, String::new());
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let answer = stage.lab.node().run_in(ask).unwrap().ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

#[test]
fn health_and_load_balancer_probes_answer_in_both_families() {
    let _alone = stage::alone();
    let mut stage = Stage::new();
    let more = "  type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 32123\n";
    stage.folder.put("a.yaml", Target::new("a", 1).service(more));
    stage.start(&[]);
    let own = [stage.lab.node().v4.into(), stage.lab.node().v6.into()];
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for address in own.into_iter().chain(loopback) {
        wait_until("it is healthy", || code(&stage, address, 10256, "/healthz") == Some(200));
        assert_eq!(code(&stage, address, 10256, "/livez"), Some(200), "{address}");
        wait_until("no endpoint is here", || code(&stage, address, 32123, "/") == Some(503));
    }
    stage.stop();
    stage.start(&["--health-address", "0.0.0.0:10256"]);
    wait_until("IPv4 is asked for", || code(&stage, loopback[0], 10256, "/livez") == Some(200));
    assert_eq!(code(&stage, loopback[1], 10256, "/livez"), None, "and IPv6 is not");
}

/// One that asks for events and never reads them: the agent keeps so many for it, and counts the rest.
#[test]
fn events_that_nobody_takes_are_dropped_and_counted() {
    let _alone = stage::alone();
    let (mut stage, target) = (Stage::new(), Target::new("a", 1));
    let pods = stage.serve("a", 10, 1);
    stage.folder.put("a.yaml", target.manifest(&pods));
    stage.start(&["--events", "all"]);
    let mut idle = std::os::unix::net::UnixStream::connect(&stage.place()[3]).unwrap();
    idle.write_all(b"{\"ask\":\"monitor\"}\n").unwrap();
    let storms = vec![stage.storm(stage.lab.node(), StormKind::UdpUnconnected, std::slice::from_ref(&target))];
    // It writes until its socket is full, and falls behind by as much as is kept; then it counts as it is read from.
    let mut seen = [0; 4096];
    wait_until("it has fallen behind", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let _ = idle.read(&mut seen);
        stage.metric("beeline_event_dropped_total") > 0
    });
    Toll::of(storms).must_be_clean("a monitor that does not read", 1_000);
}

/// Policies of the Service stage/a: one for its UDP port with a limit, one for TCP, one for a port that it does not have.
fn policies(near: u16) -> String {
    let policy = |kind: &str, name: &str, port: Value, backend: Value, config: Value| {
        json!({
            "apiVersion": "beeline.dev/v1alpha1", "kind": kind, "metadata": { "name": name, "namespace": "stage" },
            "spec": { "frontend": { "serviceMatcher": { "serviceName": "a", "toPorts": [port] } }, "backend": backend,
                      "config": config },
        })
    };
    let udp = json!({ "name": "u", "port": 80, "protocol": "UDP" });
    let pods = json!({ "endpointSelector": { "matchLabels": { "app": "near" } },
                       "toPorts": [{ "name": "u", "port": near, "protocol": "UDP" }] });
    let limit = json!({ "limit": { "connectsPerSecond": 1, "burst": 1 } });
    let out = |name: &str| {
        let ports = json!([{ "name": name, "port": 80, "protocol": "TCP" }]);
        json!({ "addressEndpoint": { "addresses": ["192.0.2.9"], "toPorts": ports } })
    };
    let port = |name: &str, port: u16| json!({ "name": name, "port": port, "protocol": "TCP" });
    let all = [
        policy("LocalRedirectPolicy", "a", udp, pods, limit),
        policy("BalancingPolicy", "b", port("t", 80), out("t"), json!({})),
        policy("BalancingPolicy", "c", port("x", 99), out("x"), json!({})),
    ];
    all.iter().map(|policy| format!("---\n{policy}\n")).collect()
}

fn pod(name: &str, uid: Option<&str>, ip: &str) -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "stage", "uid": uid, "labels": { "app": "near" } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "app", "image": "none" }] },
        "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
                    "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    format!("---\n{pod}\n")
}

fn passed_over(stage: &Stage, dial: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let told = stage.cli(&["explain", dial]);
    let all = told["passedOver"].as_array().unwrap_or_else(|| panic!("{told}"));
    all.iter().map(|one| (text(&one["policy"]), text(&one["why"]))).collect()
}

#[test]
fn policies_are_explained() {
    let _alone = stage::alone();
    let (mut stage, target) = (Stage::new(), Target::new("a", 1));
    let (far, near) = (stage.serve("a", 10, 1), stage.serve("near", 20, 1));
    stage.folder.put("a.yaml", target.manifest(&far));
    let pods = [pod("warm", None, &near[0].to_string()), pod("cold", Some(&"4f2a".repeat(8)), "10.244.1.99")];
    stage.folder.put("p.yaml", pods.concat() + &policies(stage::target_port("near")));
    stage.start(&[]);
    wait_until("a policy redirects", || stage.ask(stage.lab.node(), &target) == "near");

    // A token a second: whoever dials at once after another is over the limit, and told so from the kernel's own bucket.
    wait_until("the limit is met", || {
        assert!(!stage.ask(stage.lab.node(), &target).is_empty());
        let told = stage.cli(&["explain", "10.96.0.1:80/UDP"]);
        let order = told["order"].as_array().unwrap();
        assert_eq!(order.len(), 2, "{told}");
        let spent = order[0]["tokens"] == 0;
        assert_eq!(spent, order[0]["outcome"] == "passed over: over its limit", "{told}");
        spent && order[1]["outcome"] == "one of its backends is picked"
    });
    let other = |name: &str, why: &str| (format!("BalancingPolicy stage/{name}"), why.to_owned());
    let elsewhere = "it is about other ports";
    assert_eq!(passed_over(&stage, "10.96.0.1:80/UDP"), [other("b", elsewhere), other("c", elsewhere)]);
    let closed = passed_over(&stage, "10.96.0.1:99/TCP");
    let [redirect, b, c] = &closed[..] else { panic!("{closed:?}") };
    assert_eq!((&*redirect.1, b), (elsewhere, &other("b", elsewhere)));
    assert!(c.0.ends_with("stage/c") && c.1.starts_with("not accepted") && c.1.contains("99"), "{c:?}");

    let states = stage.cli(&["policies", "stage/a"]);
    assert_eq!((states.as_array().map(Vec::len), &states[0]["withoutCgroup"]), (Some(1), &json!(["stage/cold"])));
    assert_eq!(stage.status()["counts"]["policies"], json!({ "all": 3, "here": 2, "refused": 1, "waiting": 0 }));
    let dials = |kind: &str| {
        let labels =
            format!("kind=\"{kind}\",cluster=\"local\",namespace=\"stage\",service=\"a\",port=\"u\",protocol=\"UDP\"");
        stage.metric(&format!("beeline_dials_total{{{labels}}}"))
    };
    assert!(dials("localRedirect") > 0 && dials("service") > 0);
}
