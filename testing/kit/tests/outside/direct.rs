//! Pods are dialled by their own addresses where they can be reached so: by routes, by a default route that leads there,
//! and where they stand on the host's own network. And what is not ours to resolve even then.

use kit::{Node, host::Road};
use serde_json::{Value, json};

use crate::{
    field::{Field, eventually, server, service},
    stand::{Stand, at, balanced, corners, node_port, pod, served, settle, targets},
};

const PODS: [&str; 2] = ["web-1", "web-2"];

fn services() -> Vec<(&'static str, Value)> {
    let others = json!(["198.51.100.0/24", "fd00:51::/64"]);
    let ours = json!(["172.31.0.0/24", "fd00:31::/64"]);
    vec![
        ("web", json!({"type": "NodePort"})),
        ("plain", json!({})),
        ("sticky", json!({"sessionAffinity": "ClientIP"})),
        ("own", json!({"internalTrafficPolicy": "Local"})),
        ("near", json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"})),
        ("balanced", json!({"type": "LoadBalancer"})),
        ("others", json!({"type": "LoadBalancer", "loadBalancerSourceRanges": others})),
        ("ours", json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ours})),
    ]
}

/// Whatever leads to a Service leads to its pods, with nobody in between.
fn dials_pods(field: &Field, stand: &Stand) {
    for name in ["web", "plain", "balanced", "near"] {
        let targets = targets(field, name);
        stand.reaches_directly(&targets, &PODS);
        for target in corners(&targets) {
            assert_eq!(stand.explain(&target).ways(), ["direct", "direct"], "{name}");
        }
    }
    for name in ["balanced", "near", "ours"] {
        stand.reaches_directly(&balanced(field, name), &PODS);
    }
}

/// Nobody's pod is on this host.
fn refuses_internal_local(field: &Field, stand: &Stand) {
    let targets = targets(field, "own");
    stand.is_refused(&targets);
    for target in corners(&targets) {
        let said = stand.explain(&target);
        assert_eq!(said.verdict(), "refused");
        assert!(said.because().contains("a Local policy holds"), "{}", said.because());
    }
}

/// A nodePort is resolved where any pod will do: also at a node that has none. Under external Local it is that node's.
fn leaves_node_ports_of_local(field: &Field, stand: &Stand) {
    stand.reaches_directly(&node_port(field, "web", 3), &PODS);
    let (with, without) = (node_port(field, "near", 1), node_port(field, "near", 3));
    for target in [corners(&with), corners(&without)].concat() {
        assert_eq!(stand.verdict(&target), "untouched", "{target}");
    }
    stand.reaches_directly(&with, &["web-1"]);
    let tally = stand.dial(&without, 1);
    assert!(tally.answers.is_empty() && tally.failures.len() == without.len(), "{tally:?}");
}

/// The balancer asks who comes, and would not be asked if we resolved.
fn leaves_balancers_that_do_not_want_us(field: &Field, stand: &Stand) {
    let targets = balanced(field, "others");
    for target in corners(&targets) {
        assert_eq!(stand.verdict(&target), "untouched", "{target}");
    }
    let tally = stand.dial(&targets, 1);
    assert!(tally.answers.is_empty() && tally.failures.len() == targets.len(), "{tally:?}");
    stand.reaches_directly(&self::targets(field, "others"), &PODS);
}

#[test]
fn pods_that_are_routed_are_dialled_themselves() {
    let field = served("direct", &services());
    let routed = Stand::outside(1, Road::Static);
    let by_default = Stand::outside(2, Road::Default);
    for (name, node) in [("web-1", 1), ("web-2", 2)] {
        let pods = pod(&field, name);
        let ranges = Node::new(node).unwrap().pods();
        assert_eq!(routed.wait_found(&pods, "direct"), ranges.map(|range| format!("route to {range}")));
        let evidence = by_default.wait_found(&pods, "direct");
        assert!(evidence.iter().all(|text| text.ends_with(" answered")), "{evidence:?}");
    }
    for stand in [&routed, &by_default] {
        dials_pods(&field, stand);
        stand.keeps_its_pod(&targets(&field, "sticky"));
        refuses_internal_local(&field, stand);
    }
    leaves_node_ports_of_local(&field, &routed);
    leaves_balancers_that_do_not_want_us(&field, &routed);
}

struct Routed(Node);

impl Drop for Routed {
    fn drop(&mut self) {
        kit::node::set_routed(self.0).unwrap();
    }
}

#[test]
fn pods_on_the_hosts_own_network_are_dialled_themselves() {
    let field = Field::new("beside");
    let second = Node::new(2).unwrap();
    kit::node::set_macvlan(second).unwrap();
    let _back = Routed(second);
    // containerd reads its settings a moment after they change.
    std::thread::sleep(std::time::Duration::from_secs(2));
    field.apply(&[server("web-1", 1), server("web-2", 2), service("plain", json!({}))]);
    field.wait_ready(&PODS);
    let lone = Stand::outside(1, Road::Lone);
    let (routed, beside) = (pod(&field, "web-1"), pod(&field, "web-2"));
    lone.wait_found(&routed, "node");
    let evidence = lone.wait_found(&beside, "direct");
    assert_eq!(evidence, ["172.31.0.0/24", "fd00:31::/64"].map(|range| format!("route to {range}")));
    settle();
    // No nodePort: the other pod cannot be reached at all, and is left out.
    let targets = targets(&field, "plain");
    lone.reaches_directly(&targets, &["web-2"]);
    for target in corners(&targets) {
        let pod = beside[usize::from(target.at.is_ipv6())];
        assert_eq!(lone.explain(&target).backends(), [std::net::SocketAddr::new(pod, 8080).to_string()]);
    }
    // The pod goes: nothing is left, and that is said at once.
    field.delete("pod", "web-2");
    eventually("the pod is gone", || lone.verdict(&targets[0]) == "refused");
    lone.is_refused(&at(&[targets[0].at.ip()], 80));
}
