//! Pods that cannot be reached are dialled by their nodes' nodePorts, which the nodes' kube-proxy answers.

use kit::{Node, host::Road, plan::SERVICES, storm::Target};
use serde_json::{Value, json};

use crate::{
    field::{Field, eventually, server},
    stand::{Stand, Unready, balanced, corners, names, node_port, pod, served, targets},
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
        // Its pods stay in the set whatever their node says.
        ("early", json!({"type": "NodePort", "publishNotReadyAddresses": true})),
    ]
}

/// Two pods on n1, one on n2.
fn ground(name: &str) -> Field {
    let field = served(name, &services());
    field.apply(&[server("web-3", 1)]);
    field.wait_ready(&PODS);
    field.settle("web", 3);
    field
}

/// The nodes by which a target is dialled, with the nodePort of its protocol.
fn nodes(field: &Field, service: &str, target: &Target, numbers: &[u8]) -> Vec<String> {
    let of = |number: &u8| {
        let all = node_port(field, service, *number);
        let own = |one: &&Target| one.protocol == target.protocol && one.at.is_ipv4() == target.at.is_ipv4();
        all.iter().find(own).unwrap().at.to_string()
    };
    numbers.iter().map(of).collect()
}

/// Everybody answers, and nobody sees this host: a node is in between, and hops as it likes.
fn dials_nodes(field: &Field, stand: &Stand) {
    let targets = targets(field, "web");
    let tally = stand.dial(&targets, 40);
    assert!(tally.failures.is_empty(), "{:?}", tally.failures);
    for target in &targets {
        assert_eq!(names(&tally, target).into_iter().collect::<Vec<_>>(), PODS, "{target}");
        let own = format!(" {}", stand.address(target));
        assert!(tally.who(target).iter().all(|who| !who.ends_with(&own)), "{target}: {tally:?}");
    }
    for target in corners(&targets) {
        let said = stand.explain(&target);
        assert_eq!(said.backends(), nodes(field, "web", &target, &[1, 1, 2]), "weighted by pods");
        let hop = "the node may hop again (external Cluster)";
        assert!(said.ways().iter().all(|way| way.starts_with("by its node, ") && way.ends_with(hop)));
    }
}

/// The pod's own node serves it: it sees this host, and each pod has its share.
fn dials_the_pods_own_node(field: &Field, stand: &Stand) {
    let targets = targets(field, "near");
    let tally = stand.dial(&targets, 150);
    assert!(tally.failures.is_empty(), "{:?}", tally.failures);
    for target in &targets {
        let counts = &tally.answers[&target.to_string()];
        let own = stand.address(target);
        assert_eq!(counts.keys().cloned().collect::<Vec<_>>(), PODS.map(|pod| format!("{pod} sees {own}")));
        // 50 each, six standard deviations around.
        assert!(counts.values().all(|count| (15..=85).contains(count)), "by weight: {counts:?}");
    }
    for target in corners(&targets) {
        let said = stand.explain(&target);
        assert_eq!(said.backends(), nodes(field, "near", &target, &[1, 1, 2]));
        assert!(said.ways().iter().all(|way| way.starts_with("by its node, ") && !way.contains("hop")));
    }
}

/// There is nothing to dial: refused, with the reason.
fn refuses_without_a_node_port(field: &Field, stand: &Stand) {
    let targets = targets(field, "plain");
    stand.is_refused(&targets);
    for target in corners(&targets) {
        let said = stand.explain(&target);
        assert_eq!(said.verdict(), "refused");
        assert_eq!(said.ways(), vec!["unreachable: no nodePort and pods not routed"; 3], "{target}");
    }
    let refused = stand.refusals(&format!("{}/plain", field.namespace()));
    let said = |(reason, text): &(String, String)| {
        reason == "unreachable" && text.contains("no nodePort and pods not routed; dials to the ClusterIP are refused")
    };
    assert!(refused.len() == 4 && refused.iter().all(said), "two protocols, two families: {refused:?}");
}

/// A nodePort that is dialled as such is that node's own business.
fn leaves_node_ports(field: &Field, stand: &Stand) {
    let targets = node_port(field, "web", 3);
    let tally = stand.dial(&targets, 10);
    assert!(tally.failures.is_empty(), "{:?}", tally.failures);
    for target in corners(&targets) {
        assert_eq!(stand.verdict(&target), "untouched");
    }
}

fn finds_that_pods_are_not_reached(field: &Field, stand: &Stand, evidence: &str) {
    let pods = PODS.map(|name| pod(field, name)).concat();
    let found = stand.wait_found(&pods, "node");
    assert!(found.iter().all(|text| text.starts_with(evidence)), "{found:?}");
}

#[test]
fn pods_that_are_not_routed_are_dialled_by_their_nodes() {
    let field = ground("by-node");
    let (blind, lone) = (Stand::outside(1, Road::Blind), Stand::outside(2, Road::Lone));
    finds_that_pods_are_not_reached(&field, &blind, "3 misses, the last at ");
    finds_that_pods_are_not_reached(&field, &lone, "there is no route");
    for stand in [&blind, &lone] {
        dials_nodes(&field, stand);
        dials_the_pods_own_node(&field, stand);
        stand.keeps_its_pod(&targets(&field, "sticky"));
        refuses_without_a_node_port(&field, stand);
        leaves_node_ports(&field, stand);
    }
    dials_the_address_that_a_node_is_given(&field, &lone);
    leaves_a_balancer_to_the_network(&field, &blind);
    leaves_a_routed_service_to_the_network(&field, &lone);
    nodes_that_are_not_ready_leave(&field, &lone);
}

/// As where its own address is not reached from outside: here the third node answers for the first.
fn dials_the_address_that_a_node_is_given(field: &Field, stand: &Stand) {
    let targets = targets(field, "web");
    let leads_to = |numbers: &[u8]| {
        for target in corners(&targets) {
            let wanted = nodes(field, "web", &target, numbers);
            eventually(&format!("{target} by {wanted:?}"), || stand.explain(&target).backends() == wanted);
        }
        let tally = stand.dial(&targets, 10);
        assert!(tally.failures.is_empty(), "{:?}", tally.failures);
    };
    let [v4, v6] = Node::new(3).unwrap().addresses();
    let annotate = |what: &str| drop(field.cluster.kubectl(&["annotate", "node", "n1", what]).unwrap());
    annotate(&format!("beeline.dev/outside-address={v4},{v6}"));
    leads_to(&[2, 3, 3]);
    annotate("beeline.dev/outside-address-");
    leads_to(&[1, 1, 2]);
}

/// Nothing behind this address can be reached from here, but the network knows it.
fn leaves_a_balancer_to_the_network(field: &Field, stand: &Stand) {
    let targets = balanced(field, "bare");
    // It is the network that leads there, over whichever node: a dial that goes wrong there is none of ours.
    eventually("the network leads there", || stand.dial(&targets, 10).failures.is_empty());
    for target in corners(&targets) {
        assert_eq!(stand.verdict(&target), "untouched", "{target}");
    }
    stand.is_refused(&self::targets(field, "bare"));
}

/// Services announced by a node, by a route as BGP would bring it: what cannot be resolved is left to it.
fn leaves_a_routed_service_to_the_network(field: &Field, stand: &Stand) {
    let route = |verb: &str| {
        for (range, via) in SERVICES.iter().zip(Node::new(3).unwrap().addresses()) {
            stand.outside.run(&["ip", "route", verb, range, "via", &via.to_string()]).unwrap();
        }
    };
    let targets = targets(field, "plain");
    route("add");
    for target in corners(&targets) {
        eventually(&format!("{target} is left to its route"), || stand.verdict(&target) == "untouched");
    }
    let tally = stand.dial(&targets, 10);
    assert!(tally.failures.is_empty(), "the third node's kube-proxy answers: {:?}", tally.failures);
    dials_nodes(field, stand);
    route("del");
    for target in corners(&targets) {
        eventually(&format!("{target} is refused again"), || stand.verdict(&target) == "refused");
    }
    stand.is_refused(&targets);
}

fn nodes_that_are_not_ready_leave(field: &Field, stand: &Stand) {
    let targets = targets(field, "early");
    let leads_to = |numbers: &[u8], when: &str| {
        for target in corners(&targets) {
            let wanted = nodes(field, "early", &target, numbers);
            eventually(&format!("{when}: {target} by {wanted:?}"), || stand.explain(&target).backends() == wanted);
        }
        let tally = stand.dial(&targets, 20);
        assert!(tally.failures.is_empty(), "{when}: {:?}", tally.failures);
    };
    leads_to(&[1, 1, 2], "both nodes are ready");
    let first = Unready::make(field, 1);
    leads_to(&[2], "the first is not");
    let second = Unready::make(field, 2);
    leads_to(&[1, 1, 2], "none is: all stay");
    drop(first);
    leads_to(&[1], "the first is again, and alone");
    drop(second);
    leads_to(&[1, 1, 2], "both are");
}
