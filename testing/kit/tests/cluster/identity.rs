//! Events contain the client's pod and container, and a pod can be excluded by annotation.

use std::process::Stdio;

use kit::{Location, NodeId};
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, client, host_port, service, wait_until};

#[test]
fn events_contain_the_clients_pod() {
    let fixture = ClusterFixture::new("identity");
    fixture.apply(&[client("dialler", 1), service("empty", json!({}))]);
    fixture.wait_ready(&["dialler"]);
    let [ip, _] = fixture.cluster_ips("empty");
    let beeline = kit::agent::binary(None).unwrap();
    let mut command = fixture.cluster.command(Location::Node(NodeId::new(1).unwrap())).unwrap();
    let own = format!("{}/empty", fixture.namespace());
    command.arg(beeline).args(["monitor", "-o", "json", "--count", "1", "--service", &own]);
    let mut monitor = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("monitor prints an event", || {
        fixture.dial("dialler", &host_port(&ip, 80), 1);
        monitor.try_wait().unwrap().is_some()
    });
    let output = monitor.wait_with_output().unwrap();
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(event["namespace"], fixture.namespace(), "{event}");
    assert_eq!((&event["pod"], &event["container"]), (&json!("dialler"), &json!("main")), "{event}");
    assert_eq!((&event["process"], &event["reason"]), (&json!("curl"), &json!("noEndpoint")), "{event}");
}

#[test]
fn a_pod_with_resolve_off_is_not_resolved() {
    let fixture = ClusterFixture::new("excluded");
    let mut mesh = client("mesh", 1);
    mesh["metadata"]["annotations"] = json!({ "beeline.dev/resolve": "off" });
    fixture.apply(&[mesh, client("plain", 1), service("empty", json!({}))]);
    fixture.wait_ready(&["mesh", "plain"]);
    let [ip, _] = fixture.cluster_ips("empty");
    // A resolved dial is refused at once; the packets of an excluded pod are not answered.
    assert!(fixture.dial("plain", &host_port(&ip, 80), 1).contains_key("failed 7"));
    let counts = fixture.dial("mesh", &host_port(&ip, 80), 1);
    assert!(!counts.contains_key("failed 7"), "{counts:?}");
}
