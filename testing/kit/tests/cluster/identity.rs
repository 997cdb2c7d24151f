//! Events name the pod that dialled, and its container.

use std::process::Stdio;

use kit::{Node, Place};
use serde_json::{Value, json};

use crate::field::{Field, at, client, eventually, service};

#[test]
fn events_name_the_pod() {
    let field = Field::new("identity");
    field.apply(&[client("teller", 1), service("nobody", json!({}))]);
    field.wait_ready(&["teller"]);
    let [ip, _] = field.cluster_ips("nobody");
    let beeline = kit::agent::binary(None).unwrap();
    let mut command = field.cluster.command(Place::Node(Node::new(1).unwrap())).unwrap();
    let own = format!("{}/nobody", field.namespace());
    command.arg(beeline).args(["monitor", "-o", "json", "--count", "1", "--service", &own]);
    let mut monitor = command.stdout(Stdio::piped()).spawn().unwrap();
    eventually("an event of the dial", || {
        field.dial("teller", &at(&ip, 80), 1);
        monitor.try_wait().unwrap().is_some()
    });
    let output = monitor.wait_with_output().unwrap();
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(event["namespace"], field.namespace(), "{event}");
    assert_eq!((&event["pod"], &event["container"]), (&json!("teller"), &json!("main")), "{event}");
    assert_eq!((&event["process"], &event["reason"]), (&json!("curl"), &json!("noEndpoint")), "{event}");
}

#[test]
fn a_pod_may_be_left_alone() {
    let field = Field::new("alone");
    let mut mesh = client("mesh", 1);
    mesh["metadata"]["annotations"] = json!({ "beeline.dev/resolve": "off" });
    field.apply(&[mesh, client("plain", 1), service("nobody", json!({}))]);
    field.wait_ready(&["mesh", "plain"]);
    let [ip, _] = field.cluster_ips("nobody");
    // Who is resolved for is refused at once; who is not sends packets that nobody answers.
    assert!(field.dial("plain", &at(&ip, 80), 1).contains_key("failed 7"));
    let alone = field.dial("mesh", &at(&ip, 80), 1);
    assert!(!alone.contains_key("failed 7"), "{alone:?}");
}
