//! Unreachable pods are dialled by their nodes' nodePorts, which the nodes' kube-proxy serves.

use kit::{NodeId, address_plan::SERVICES, host::HostRoute, load::DialTarget};
use serde_json::{Value, json};

use crate::{
    fixture::{ClusterFixture, server, wait_until},
    outside_agent::{
        OutsideAgent, UnreadyNode, fixture_with_services, load_balancer_targets, names, node_port, pod_addresses,
        targets, two_of,
    },
};

const PODS: [&str; 3] = ["web-1", "web-2", "web-3"];

fn services() -> Vec<(&'static str, Value)> {
    let bare = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false});
    vec![
        ("web", json!({"type": "NodePort"})),
        ("near", json!({"type": "NodePort", "externalTrafficPolicy": "Local"})),
        ("sticky", json!({"type": "NodePort", "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"})),
        ("plain", json!({})),
        ("bare", bare),
        // Its endpoints stay ready when their node is not.
        ("early", json!({"type": "NodePort", "publishNotReadyAddresses": true})),
    ]
}

/// Creates two pods on n1 and one on n2.
fn fixture_with_pods(name: &str) -> ClusterFixture {
    let fixture = fixture_with_services(name, &services());
    fixture.apply(&[server("web-3", 1)]);
    fixture.wait_ready(&PODS);
    fixture.wait_for_endpoints("web", 3);
    fixture
}

/// Addresses of these nodes with the nodePort of the target's protocol.
fn nodes(fixture: &ClusterFixture, service: &str, target: &DialTarget, numbers: &[u8]) -> Vec<String> {
    let of = |number: &u8| {
        let all = node_port(fixture, service, *number);
        let own = |one: &&DialTarget| one.protocol == target.protocol && one.at.is_ipv4() == target.at.is_ipv4();
        all.iter().find(own).unwrap().at.to_string()
    };
    numbers.iter().map(of).collect()
}

/// All pods answer, and none sees this host's address, because a node is in between.
fn assert_dials_use_nodes(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let targets = targets(fixture, "web");
    let report = agent.dial(&targets, 40);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    for target in &targets {
        assert_eq!(names(&report, target).into_iter().collect::<Vec<_>>(), PODS, "{target}");
        let own = format!(" {}", agent.address(target));
        assert!(report.servers(target).iter().all(|who| !who.ends_with(&own)), "{target}: {report:?}");
    }
    for target in two_of(&targets) {
        let explanation = agent.explain(&target);
        assert_eq!(explanation.backends(), nodes(fixture, "web", &target, &[1, 1, 2]), "weighted by pods");
        let hop = "the node may forward it (externalTrafficPolicy Cluster)";
        assert!(explanation.paths().iter().all(|path| path.starts_with("by its node, ") && path.ends_with(hop)));
    }
}

/// With externalTrafficPolicy Local the pod's own node is dialled: the pod sees this host, and pods are used evenly.
fn assert_dials_use_the_pods_own_node(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let targets = targets(fixture, "near");
    let report = agent.dial(&targets, 150);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    for target in &targets {
        let counts = &report.answers[&target.to_string()];
        let own = agent.address(target);
        assert_eq!(counts.keys().cloned().collect::<Vec<_>>(), PODS.map(|pod| format!("{pod} sees {own}")));
        // 50 each, plus or minus six standard deviations.
        assert!(counts.values().all(|count| (15..=85).contains(count)), "by weight: {counts:?}");
    }
    for target in two_of(&targets) {
        let explanation = agent.explain(&target);
        assert_eq!(explanation.backends(), nodes(fixture, "near", &target, &[1, 1, 2]));
        assert!(explanation.paths().iter().all(|path| path.starts_with("by its node, ") && !path.contains("forward")));
    }
}

/// Without a nodePort dials are refused, and the refusal has a reason.
fn assert_refused_without_node_port(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let targets = targets(fixture, "plain");
    agent.assert_refused(&targets);
    for target in two_of(&targets) {
        let explanation = agent.explain(&target);
        assert_eq!(explanation.verdict(), "refused");
        assert_eq!(explanation.paths(), vec!["unreachable: no nodePort and pods are not routed"; 3], "{target}");
    }
    let refused = agent.refusals(&format!("{}/plain", fixture.namespace()));
    let is_expected = |(reason, text): &(String, String)| {
        reason == "unreachable"
            && text.contains("no nodePort and pods are not routed; dials to the ClusterIP are refused")
    };
    assert!(refused.len() == 4 && refused.iter().all(is_expected), "two protocols, two families: {refused:?}");
}

/// A dial to a nodePort is left to that node.
fn assert_node_ports_are_untouched(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let targets = node_port(fixture, "web", 3);
    let report = agent.dial(&targets, 10);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    for target in two_of(&targets) {
        assert_eq!(agent.verdict(&target), "untouched");
    }
}

fn assert_pods_are_unreachable(fixture: &ClusterFixture, agent: &OutsideAgent, evidence: &str) {
    let pods = PODS.map(|name| pod_addresses(fixture, name)).concat();
    let found = agent.wait_for_reachability(&pods, "node");
    assert!(found.iter().all(|text| text.starts_with(evidence)), "{found:?}");
}

#[test]
fn unrouted_pods_are_dialled_by_their_nodes() {
    let fixture = fixture_with_pods("by-node");
    let (blackhole, isolated) =
        (OutsideAgent::outside(1, HostRoute::Blackhole), OutsideAgent::outside(2, HostRoute::Isolated));
    assert_pods_are_unreachable(&fixture, &blackhole, "3 probes without an answer, the last to ");
    assert_pods_are_unreachable(&fixture, &isolated, "no route");
    for agent in [&blackhole, &isolated] {
        assert_dials_use_nodes(&fixture, agent);
        assert_dials_use_the_pods_own_node(&fixture, agent);
        agent.assert_affinity(&targets(&fixture, "sticky"));
        assert_refused_without_node_port(&fixture, agent);
        assert_node_ports_are_untouched(&fixture, agent);
    }
    assert_outside_address_annotation_is_used(&fixture, &isolated);
    assert_load_balancer_is_left_to_the_network(&fixture, &blackhole);
    assert_routed_service_is_left_to_the_network(&fixture, &isolated);
    assert_unready_nodes_are_not_used(&fixture, &isolated);
}

/// The annotation beeline.dev/outside-address replaces a node's address; here n1 gets the address of n3.
fn assert_outside_address_annotation_is_used(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let targets = targets(fixture, "web");
    let assert_backends = |numbers: &[u8]| {
        for target in two_of(&targets) {
            let wanted = nodes(fixture, "web", &target, numbers);
            wait_until(&format!("{target} by {wanted:?}"), || agent.explain(&target).backends() == wanted);
        }
        let report = agent.dial(&targets, 10);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
    };
    let [v4, v6] = NodeId::new(3).unwrap().addresses();
    let annotate = |what: &str| drop(fixture.cluster.kubectl(&["annotate", "node", "n1", what]).unwrap());
    annotate(&format!("beeline.dev/outside-address={v4},{v6}"));
    assert_backends(&[2, 3, 3]);
    annotate("beeline.dev/outside-address-");
    assert_backends(&[1, 1, 2]);
}

/// A load-balancer address without reachable backends is left to the network.
fn assert_load_balancer_is_left_to_the_network(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let targets = load_balancer_targets(fixture, "bare");
    // The network's load balancer needs a moment to route the address.
    wait_until("the network's load balancer serves the address", || agent.dial(&targets, 10).failures.is_empty());
    for target in two_of(&targets) {
        assert_eq!(agent.verdict(&target), "untouched", "{target}");
    }
    agent.assert_refused(&self::targets(fixture, "bare"));
}

/// If a route leads to the Service range, Services that cannot be resolved are left to that route.
fn assert_routed_service_is_left_to_the_network(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let route = |verb: &str| {
        for (range, via) in SERVICES.iter().zip(NodeId::new(3).unwrap().addresses()) {
            agent.outside.run(&["ip", "route", verb, range, "via", &via.to_string()]).unwrap();
        }
    };
    let targets = targets(fixture, "plain");
    route("add");
    for target in two_of(&targets) {
        wait_until(&format!("{target} is left to the route"), || agent.verdict(&target) == "untouched");
    }
    let report = agent.dial(&targets, 10);
    assert!(report.failures.is_empty(), "kube-proxy of n3 answers: {:?}", report.failures);
    assert_dials_use_nodes(fixture, agent);
    route("del");
    for target in two_of(&targets) {
        wait_until(&format!("{target} is refused again"), || agent.verdict(&target) == "refused");
    }
    agent.assert_refused(&targets);
}

fn assert_unready_nodes_are_not_used(fixture: &ClusterFixture, agent: &OutsideAgent) {
    let targets = targets(fixture, "early");
    let assert_backends = |numbers: &[u8], when: &str| {
        for target in two_of(&targets) {
            let wanted = nodes(fixture, "early", &target, numbers);
            wait_until(&format!("{when}: {target} by {wanted:?}"), || agent.explain(&target).backends() == wanted);
        }
        let report = agent.dial(&targets, 20);
        assert!(report.failures.is_empty(), "{when}: {:?}", report.failures);
    };
    assert_backends(&[1, 1, 2], "both nodes are ready");
    let first = UnreadyNode::make(fixture, 1);
    assert_backends(&[2], "n1 is not ready");
    let second = UnreadyNode::make(fixture, 2);
    assert_backends(&[1, 1, 2], "no node is ready: all are used");
    drop(first);
    assert_backends(&[1], "only n1 is ready");
    drop(second);
    assert_backends(&[1, 1, 2], "both nodes are ready again");
}
