//! The agent's metrics: both text formats, agreement with the status, Prometheus naming; and refusals of Services and Nodes
//! that only a running agent shows.

mod fixture;

use fixture::{AgentFixture, TIMEOUT, TestService, wait_until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};

/// The response of `/metrics`, with its head.
fn metrics(fixture: &AgentFixture, accept: &str) -> String {
    let get = || -> std::io::Result<String> {
        let (mut stream, mut text) = (TcpStream::connect((Ipv4Addr::LOCALHOST, 10249))?, String::new());
        stream.write_all(format!("GET /metrics HTTP/1.0\r\nAccept: {accept}\r\n\r\n").as_bytes())?;
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    fixture.network.node().run_in(get).unwrap().unwrap()
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
    let plain = metrics(&fixture, "*/*");
    assert!(plain.contains("content-type: text/plain; version=0.0.4"), "{plain}");
    assert!(plain.contains("# TYPE beeline_udp_sockets_destroyed_total counter\n") && !plain.contains("# EOF"));
    let open = metrics(&fixture, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.contains("# TYPE beeline_udp_sockets_destroyed counter\n") && open.ends_with("# EOF\n"));
    for name in ["beeline_build_info{version=", "process_resident_memory_bytes ", "process_cpu_seconds_total "] {
        assert!(plain.contains(name) && open.contains(name), "{name}: {plain}");
    }
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
    let text = metrics(&fixture, "*/*");
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
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
