//! A BalancingPolicy applies on hosts outside too, unless `enableOutCluster` is false.

use kit::{host::HostRoute, load::DialTarget};
use serde_json::{Value, json};

use crate::{
    fixture::{ClusterFixture, wait_until},
    outside_agent::{OutsideAgent, fixture_with_services, names, pod_addresses, targets},
};

const PODS: [&str; 2] = ["web-1", "web-2"];

/// A policy that balances a Service to one pod's addresses.
fn policy(fixture: &ClusterFixture, service: &str, out_cluster: bool) -> Value {
    let ports = json!([{"name": "tcp", "port": 80, "protocol": "TCP"}, {"name": "udp", "port": 80, "protocol": "UDP"}]);
    let mut to = ports.clone();
    (to[0]["port"], to[1]["port"]) = (8080.into(), 8080.into());
    json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "BalancingPolicy", "metadata": {"name": service},
        "spec": {
            "frontend": {"serviceMatcher": {"serviceName": service, "toPorts": ports}},
            "backend": {"addressEndpoint": {"addresses": pod_addresses(fixture, "web-2"), "toPorts": to}},
            "config": {"enableOutCluster": out_cluster},
        },
    })
}

fn is_answered_by(agent: &OutsideAgent, targets: &[DialTarget], pods: &[&str]) -> bool {
    let report = agent.dial(targets, 16);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    targets.iter().all(|target| names(&report, target).iter().eq(pods.iter()))
}

#[test]
fn policies_apply_outside_if_enable_out_cluster_is_set() {
    let fixture = fixture_with_services("policy", &[("web", json!({})), ("inside", json!({}))]);
    fixture.define_policies();
    let agent = OutsideAgent::outside(1, HostRoute::Static);
    let [web, inside] = ["web", "inside"].map(|name| targets(&fixture, name));
    wait_until("both Services are resolved", || {
        is_answered_by(&agent, &web, &PODS) && is_answered_by(&agent, &inside, &PODS)
    });
    fixture.apply(&[policy(&fixture, "web", true), policy(&fixture, "inside", false)]);
    wait_until("the policy is in effect", || is_answered_by(&agent, &web, &["web-2"]));
    assert!(is_answered_by(&agent, &inside, &PODS), "a policy without enableOutCluster does not apply outside");
    let output = agent.agent().run(&["policies"]).unwrap();
    assert!(output.contains(&format!("{}/web", fixture.namespace())), "{output}");
    fixture.delete("balancingpolicy", "web");
    wait_until("the Service applies again", || is_answered_by(&agent, &web, &PODS));
}
