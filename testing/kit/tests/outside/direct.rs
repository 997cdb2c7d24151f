//! Pods are dialled by their own addresses where they are reachable: by routes, by a default route, or on the host's
//! own network. Some addresses are not resolved even then.

use kit::{NodeId, host::HostRoute, load::DialTarget};
use serde_json::{Value, json};

use crate::{
    fixture::{ClusterFixture, server, service, wait_until},
    outside_agent::{
        OutsideAgent, fixture_with_services, load_balancer_targets, node_port, pod_addresses, targets, targets_at,
        two_of,
    },
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

/// Every address of a Service is resolved to its pods.
fn assert_dials_reach_pods(fixture: &ClusterFixture, agent: &OutsideAgent) {
    for name in ["web", "plain", "balanced", "near"] {
        let targets = targets(fixture, name);
        agent.assert_direct(&targets, &PODS);
        for target in two_of(&targets) {
            assert_eq!(agent.explain(&target).paths(), ["direct", "direct"], "{name}");
        }
    }
    for name in ["balanced", "near", "ours"] {
        agent.assert_direct(&load_balancer_targets(fixture, name), &PODS);
    }
}

/// internalTrafficPolicy Local is refused, because no pod runs on this host.
fn assert_internal_local_is_refused(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let targets = targets(fixture, "own");
    agent.assert_refused(&targets);
    for target in two_of(&targets) {
        let explanation = agent.explain(&target);
        assert_eq!(explanation.verdict(), "refused");
        assert!(explanation.because().contains("the traffic policy is Local"), "{}", explanation.because());
    }
}

/// A nodePort is resolved where any pod may serve it. With externalTrafficPolicy Local it is left to that node.
fn assert_local_node_ports_are_untouched(fixture: &ClusterFixture, agent: &OutsideAgent) {
    agent.assert_direct(&node_port(fixture, "web", 3), &PODS);
    let (with, without) = (node_port(fixture, "near", 1), node_port(fixture, "near", 3));
    for target in [two_of(&with), two_of(&without)].concat() {
        assert_eq!(agent.verdict(&target), "untouched", "{target}");
    }
    agent.assert_direct(&with, &["web-1"]);
    let report = agent.dial(&without, 1);
    assert!(report.answers.is_empty() && report.failures.len() == without.len(), "{report:?}");
}

/// A load balancer whose source ranges exclude this host is not resolved, because the load balancer would refuse it.
fn assert_excluded_load_balancers_are_untouched(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let targets = load_balancer_targets(fixture, "others");
    for target in two_of(&targets) {
        assert_eq!(agent.verdict(&target), "untouched", "{target}");
    }
    let report = agent.dial(&targets, 1);
    assert!(report.answers.is_empty() && report.failures.len() == targets.len(), "{report:?}");
    agent.assert_direct(&self::targets(fixture, "others"), &PODS);
}

#[test]
fn routed_pods_are_dialled_directly() {
    let fixture = fixture_with_services("direct", &services());
    let routed = OutsideAgent::outside(1, HostRoute::Static);
    let by_default = OutsideAgent::outside(2, HostRoute::Default);
    for (name, node) in [("web-1", 1), ("web-2", 2)] {
        let pods = pod_addresses(&fixture, name);
        let ranges = NodeId::new(node).unwrap().pods();
        assert_eq!(routed.wait_for_reachability(&pods, "direct"), ranges.map(|range| format!("route to {range}")));
        let evidence = by_default.wait_for_reachability(&pods, "direct");
        assert!(evidence.iter().all(|text| text.ends_with(" answered")), "{evidence:?}");
    }
    for agent in [&routed, &by_default] {
        assert_dials_reach_pods(&fixture, agent);
        agent.assert_affinity(&targets(&fixture, "sticky"));
        assert_internal_local_is_refused(&fixture, agent);
    }
    assert_local_node_ports_are_untouched(&fixture, &routed);
    assert_excluded_load_balancers_are_untouched(&fixture, &routed);
}

struct RestoreRouted(NodeId);

impl Drop for RestoreRouted {
    fn drop(&mut self) {
        kit::node::set_routed(self.0).unwrap();
    }
}

#[test]
fn pods_on_the_hosts_own_network_are_dialled_directly() {
    let fixture = ClusterFixture::new("macvlan");
    let second = NodeId::new(2).unwrap();
    kit::node::set_macvlan(second).unwrap();
    let _restore = RestoreRouted(second);
    fixture.apply(&[server("web-1", 1), service("plain", json!({}))]);
    fixture.create_macvlan_pod(server("web-2", 2));
    fixture.wait_ready(&PODS);
    let isolated = OutsideAgent::outside(1, HostRoute::Isolated);
    let (routed, macvlan) = (pod_addresses(&fixture, "web-1"), pod_addresses(&fixture, "web-2"));
    isolated.wait_for_reachability(&routed, "node");
    let evidence = isolated.wait_for_reachability(&macvlan, "direct");
    assert_eq!(evidence, ["172.31.0.0/24", "fd00:31::/64"].map(|range| format!("route to {range}")));
    // The Service has no nodePort, so the routed pod is unreachable and not used.
    let targets = targets(&fixture, "plain");
    let expected = |target: &DialTarget| {
        vec![std::net::SocketAddr::new(macvlan[usize::from(target.at.is_ipv6())], 8080).to_string()]
    };
    wait_until("only the macvlan pod is used", || {
        two_of(&targets).iter().all(|target| isolated.explain(target).backends() == expected(target))
    });
    isolated.assert_direct(&targets, &["web-2"]);
    // Without the pod no backend is left, and dials are refused.
    fixture.delete("pod", "web-2");
    wait_until("the deleted pod is not used", || isolated.verdict(&targets[0]) == "refused");
    isolated.assert_refused(&targets_at(&[targets[0].at.ip()], 80));
}
