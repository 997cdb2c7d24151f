//! A BalancingPolicy holds on hosts outside, too, unless it says that it does not (`enableOutCluster`).

use kit::{host::Road, storm::Target};
use serde_json::{Value, json};

use crate::{
    field::{Field, eventually},
    stand::{Stand, names, pod, served, targets},
};

const PODS: [&str; 2] = ["web-1", "web-2"];

/// Sends a Service to one pod, by its addresses.
fn policy(field: &Field, service: &str, out_cluster: bool) -> Value {
    let ports = json!([{"name": "tcp", "port": 80, "protocol": "TCP"}, {"name": "udp", "port": 80, "protocol": "UDP"}]);
    let mut to = ports.clone();
    (to[0]["port"], to[1]["port"]) = (8080.into(), 8080.into());
    json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "BalancingPolicy", "metadata": {"name": service},
        "spec": {
            "frontend": {"serviceMatcher": {"serviceName": service, "toPorts": ports}},
            "backend": {"addressEndpoint": {"addresses": pod(field, "web-2"), "toPorts": to}},
            "config": {"enableOutCluster": out_cluster},
        },
    })
}

fn answer(stand: &Stand, targets: &[Target], pods: &[&str]) -> bool {
    let tally = stand.dial(targets, 16);
    assert!(tally.failures.is_empty(), "{:?}", tally.failures);
    targets.iter().all(|target| names(&tally, target).iter().eq(pods.iter()))
}

#[test]
fn policies_hold_outside_unless_they_say_otherwise() {
    let field = served("policy", &[("web", json!({})), ("inside", json!({}))]);
    field.define_policies();
    let stand = Stand::outside(1, Road::Static);
    let [web, inside] = ["web", "inside"].map(|name| targets(&field, name));
    eventually("as Services", || answer(&stand, &web, &PODS) && answer(&stand, &inside, &PODS));
    field.apply(&[policy(&field, "web", true), policy(&field, "inside", false)]);
    eventually("the policy holds", || answer(&stand, &web, &["web-2"]));
    assert!(answer(&stand, &inside, &PODS), "one that is for the cluster only has no part here");
    let said = stand.resolver().ask(&["policies"]).unwrap();
    assert!(said.contains(&format!("{}/web", field.namespace())), "{said}");
    field.delete("balancingpolicy", "web");
    eventually("as a Service again", || answer(&stand, &web, &PODS));
}
