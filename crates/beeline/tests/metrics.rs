//! The metrics of agent and controller: both text formats, agreement with the status, Prometheus naming; and refusals of
//! Services and Nodes that only a running agent shows.

mod fixture;

use fixture::{AgentFixture, BEELINE, TIMEOUT, TestService, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};

const AGENT: u16 = 10249;
const CONTROLLER: u16 = 10358;

/// The response of `/metrics` at this port of the node, with its head.
fn get(fixture: &AgentFixture, port: u16, accept: &str) -> std::io::Result<String> {
    let get = || -> std::io::Result<String> {
        let (mut stream, mut text) = (TcpStream::connect((Ipv4Addr::LOCALHOST, port))?, String::new());
        stream.write_all(format!("GET /metrics HTTP/1.0\r\nAccept: {accept}\r\n\r\n").as_bytes())?;
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    fixture.network.node().run_in(get).unwrap()
}

/// Plain text by default, OpenMetrics on request; both with this counter or gauge, build and process metrics.
fn check_formats(fixture: &AgentFixture, port: u16, metric: &str) {
    let plain = get(fixture, port, "*/*").unwrap();
    assert!(plain.contains("content-type: text/plain; version=0.0.4"), "{plain}");
    assert!(plain.contains(&format!("# TYPE {metric} ")) && !plain.contains("# EOF"), "{plain}");
    let open = get(fixture, port, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5").unwrap();
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    let family = metric.strip_suffix("_total").unwrap_or(metric);
    assert!(open.contains(&format!("# TYPE {family} ")) && open.ends_with("# EOF\n"), "{open}");
    for name in ["beeline_build_info{version=", "process_resident_memory_bytes ", "process_cpu_seconds_total "] {
        assert!(plain.contains(name) && open.contains(name), "{name}: {plain}");
    }
}

fn with_services() -> AgentFixture {
    let mut fixture = AgentFixture::new();
    for (name, last) in [("a", 1), ("b", 2)] {
        fixture.write_file(
            &format!("{name}.yaml"),
            TestService::new(name, last).manifest(&[Ipv4Addr::new(10, 244, 1, 9)]),
        );
    }
    fixture.start(&[]);
    fixture
}

#[test]
fn metrics_are_plain_text_unless_open_metrics_is_requested() {
    let _alone = fixture::run_alone();
    let fixture = with_services();
    check_formats(&fixture, AGENT, "beeline_udp_sockets_destroyed_total");
}

/// The controller serves its metrics also while its API server does not answer.
#[test]
fn metrics_of_the_controller_have_the_same_formats_and_names() {
    let _alone = fixture::run_alone();
    let (fixture, dir) = (AgentFixture::new(), tempfile::tempdir().unwrap());
    let kubeconfig = dir.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{ "name": "a", "cluster": { "server": "https://127.0.0.1:1" } }],
        "users": [{ "name": "a", "user": { "token": "none" } }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let args = ["controller", "--webhook-bind-address", "127.0.0.1:9443", "--kubeconfig", kubeconfig.to_str().unwrap()];
    let _controller = fixture.network.node().program(BEELINE).unwrap().args(args).spawn().unwrap();
    wait_until("the controller listens", || get(&fixture, CONTROLLER, "*/*").is_ok());
    check_formats(&fixture, CONTROLLER, "beeline_controller_leader");
    check_with_promtool(&get(&fixture, CONTROLLER, "*/*").unwrap());
}

#[test]
fn metrics_and_status_count_the_same() {
    let _alone = fixture::run_alone();
    let fixture = with_services();
    let counts = &fixture.status()["counts"];
    for (metric, count) in [
        ("beeline_frontends", "frontends"),
        ("beeline_frontend_rows", "frontendRows"),
        ("beeline_sets", "sets"),
        ("beeline_backends", "backends"),
        ("beeline_services{cluster=\"local\"}", "services"),
        ("beeline_pending_services{cluster=\"local\"}", "pending"),
    ] {
        assert_eq!(Some(fixture.metric(metric)), counts[count].as_u64(), "{metric}");
    }
    assert_eq!(counts["frontends"], 4, "two Services with one TCP and one UDP port each");
}

#[test]
fn promtool_reports_no_problem() {
    let _alone = fixture::run_alone();
    let fixture = with_services();
    check_with_promtool(&get(&fixture, AGENT, "*/*").unwrap());
}

fn check_with_promtool(response: &str) {
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing: install the Debian package prometheus");
    promtool.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let complaints = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && complaints.trim().is_empty(), "{complaints}");
}

/// The refusals with this reason.
fn refusals(fixture: &AgentFixture, reason: &str) -> Vec<Value> {
    let refusals = fixture.status()["refusals"].as_array().unwrap().clone();
    refusals.into_iter().filter(|refusal| refusal["reason"] == reason).collect()
}

fn node(name: &str) -> String {
    format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nstatus: {{addresses: []}}\n")
}

#[test]
fn a_wrong_node_name_beside_node_manifests_is_reported_until_the_node_appears() {
    let _alone = fixture::run_alone();
    let mut fixture = with_services();
    assert!(refusals(&fixture, "nodeNotFound").is_empty(), "without Node manifests no Node is expected");
    fixture.write_file("other.yaml", node("another-node"));
    fixture.running().wait_for("check --node-name", TIMEOUT).unwrap();
    let reported = refusals(&fixture, "nodeNotFound");
    assert!(reported.len() == 1 && reported[0]["subject"] == "Node node-1", "{reported:?}");
    fixture.write_file("own.yaml", node("node-1"));
    wait_until("the Node is found", || refusals(&fixture, "nodeNotFound").is_empty());
}

#[test]
fn a_service_of_sctp_alone_is_refused() {
    let _alone = fixture::run_alone();
    let mut fixture = AgentFixture::new();
    let sctp =
        TestService::new("s", 3).service("").replace("TCP", "SCTP").replace("- {name: u, port: 80, protocol: UDP}", "");
    fixture.write_file("s.yaml", sctp.replace("  \n", ""));
    fixture.write_file("a.yaml", TestService::new("a", 1).service(""));
    fixture.start(&[]);
    let reported = refusals(&fixture, "unsupportedProtocol");
    assert!(reported.len() == 1 && reported[0]["subject"] == "Service test/s", "{reported:?}");
}
