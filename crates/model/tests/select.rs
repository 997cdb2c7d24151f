//! The selection of endpoints: each rule by example, and invariants for random endpoints.

#[allow(dead_code)]
mod support;

use beeline_model::object::{Endpoint, Hints};
use beeline_model::select::{Candidate, NodeLocation, Selection, Topology, select};
use beeline_model::{Address, Name};
use std::net::IpAddr;
use support::seed::seeds;

const OWN_NODE: &str = "n1";

fn location(zone: Option<&str>) -> NodeLocation {
    NodeLocation { node: OWN_NODE.into(), zone: zone.map(Name::from) }
}

/// `5 ready@n1 zone=east node=n1`: the last number of the address, the state, the node and the hints.
fn candidate(text: &str) -> Candidate {
    let mut words = text.split(' ');
    let last: u8 = words.next().and_then(|w| w.parse().ok()).expect("a number");
    let (state, node) = words.next().and_then(|w| w.split_once('@')).expect("state@node");
    let (ready, serving, terminating) = match state {
        "ready" => (true, true, false),
        "leaving" => (false, true, true),
        "gone" => (false, false, true),
        "starting" => (false, false, false),
        "published" => (true, true, true),
        other => panic!("{other}"),
    };
    let (mut zones, mut nodes) = (Vec::new(), Vec::new());
    for hint in words {
        let (kind, name) = hint.split_once('=').expect("zone= or node=");
        if kind == "zone" { zones.push(name.into()) } else { nodes.push(name.into()) }
    }
    let hints = Some(Box::new(Hints { zones: zones.into(), nodes: nodes.into() }));
    let node: Option<Name> = (!node.is_empty()).then(|| node.into());
    let address = Address::from(IpAddr::from([10, 244, 0, last]));
    let endpoint = Endpoint { address, ready, serving, terminating, node: node.clone(), hints };
    Candidate::new(&endpoint, 80, node.clone(), node.as_deref() == Some(OWN_NODE))
}

fn selected(selection: &Selection, indexes: &[usize]) -> Vec<u8> {
    indexes.iter().map(|i| selection.candidates[*i].address.0[15]).collect()
}

struct Case {
    endpoints: &'static [&'static str],
    zone: Option<&'static str>,
    topology: Topology,
    cluster: &'static [u8],
    local: &'static [u8],
}

#[test]
fn each_rule_selects_the_expected_endpoints() {
    let cases = [
        // No endpoint is ready: no topology, and terminating endpoints that still serve are used, whatever their hints
        // are.
        Case {
            endpoints: &["1 leaving@n1 zone=west", "2 leaving@n2 zone=east", "3 gone@n1", "4 starting@n1"],
            zone: Some("east"),
            topology: Topology::None,
            cluster: &[1, 2],
            local: &[1],
        },
        // All endpoints have node hints, and one names this node.
        Case {
            endpoints: &["1 ready@n1 node=n2", "2 ready@n2 node=n1 node=n3", "3 ready@n3 node=n3"],
            zone: None,
            topology: Topology::SameNode,
            cluster: &[2],
            local: &[1],
        },
        // An endpoint without a node hint disables node hints. Zone hints apply instead.
        Case {
            endpoints: &["1 ready@n1 node=n1 zone=east", "2 ready@n2 zone=east", "3 ready@n3 zone=west node=n1"],
            zone: Some("east"),
            topology: Topology::SameZone,
            cluster: &[1, 2],
            local: &[1],
        },
        // Node hints that name only other nodes do not disable zone hints.
        Case {
            endpoints: &["1 ready@n2 node=n2 zone=east", "2 ready@n3 node=n3 zone=west"],
            zone: Some("west"),
            topology: Topology::SameZone,
            cluster: &[2],
            local: &[],
        },
        // A node without a zone matches no zone hint.
        Case {
            endpoints: &["1 ready@n2 zone=east", "2 ready@n3 zone=west"],
            zone: None,
            topology: Topology::All,
            cluster: &[1, 2],
            local: &[],
        },
        // Hints of endpoints that are not ready are ignored.
        Case {
            endpoints: &["1 ready@n2 zone=east", "2 starting@n3", "3 leaving@n3", "4 ready@n3 zone=west"],
            zone: Some("east"),
            topology: Topology::SameZone,
            cluster: &[1],
            local: &[],
        },
        // An endpoint that is ready and terminating (publishNotReadyAddresses) counts as ready.
        Case {
            endpoints: &["1 published@n1", "2 ready@n2", "3 leaving@n1"],
            zone: None,
            topology: Topology::All,
            cluster: &[1, 2],
            local: &[1],
        },
        // The local set is selected independently: the local endpoint is terminating while others are ready.
        Case {
            endpoints: &["1 leaving@n1", "2 ready@n2"],
            zone: None,
            topology: Topology::All,
            cluster: &[2],
            local: &[1],
        },
    ];
    for case in cases {
        let found = select(case.endpoints.iter().map(|text| candidate(text)).collect(), &location(case.zone));
        let got = (found.topology, selected(&found, &found.cluster), selected(&found, &found.local));
        assert_eq!(got, (case.topology, case.cluster.to_vec(), case.local.to_vec()), "{:?}", case.endpoints);
    }
}

#[test]
fn duplicate_addresses_keep_the_best_state() {
    let select = |texts: &[&str]| select(texts.iter().map(|text| candidate(text)).collect(), &location(None));
    for (texts, cluster) in [
        (&["1 published@n1", "1 starting@n1"][..], &[][..]),
        (&["1 leaving@n1", "1 ready@n1"], &[1]),
        (&["1 starting@n1", "1 ready@n1"], &[1]),
        (&["1 gone@n1", "1 leaving@n1"], &[1]),
    ] {
        for order in [texts.to_vec(), texts.iter().rev().copied().collect()] {
            let found = select(&order);
            assert_eq!((found.candidates.len(), selected(&found, &found.cluster)), (1, cluster.to_vec()), "{order:?}");
        }
    }
    let found = select(&["1 ready@", "1 ready@n1"]);
    assert_eq!(selected(&found, &found.local), [1], "the endpoint that names its node is used");
}

#[test]
fn the_invariants_hold_for_random_endpoints() {
    let states = ["ready", "leaving", "gone", "starting", "published"];
    for seed in seeds(0..20_000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut endpoints = Vec::new();
        for last in 1..=rng.u8(0..7) {
            let mut text = format!("{last} {}@n{}", states[rng.usize(..states.len())], rng.u8(1..4));
            for hint in ["zone=east", "zone=west", "node=n1", "node=n2"] {
                if rng.bool() {
                    text += &format!(" {hint}");
                }
            }
            endpoints.push(candidate(&text));
        }
        let here = location([None, Some("east")][usize::from(rng.bool())]);
        let found = select(endpoints.clone(), &here);
        let members = |indexes: &[usize]| indexes.iter().map(|i| &found.candidates[*i]).cloned().collect::<Vec<_>>();
        for set in [members(&found.cluster), members(&found.local)] {
            let ready = set.iter().filter(|c| c.ready).count();
            assert!(ready == 0 || ready == set.len(), "ready and terminating endpoints are never mixed: {set:?}");
            assert!(set.iter().all(|c| c.ready || c.serving && c.terminating));
        }
        assert_eq!(found.any, !found.cluster.is_empty(), "the cluster set is empty only if no endpoint could serve");
        assert!(members(&found.local).iter().all(|c| c.local));
        assert_eq!(
            selected(&found, &found.local),
            found.node_sets().get(OWN_NODE).map_or(vec![], |set| selected(&found, set))
        );
        rng.shuffle(&mut endpoints);
        let again = select(endpoints, &here);
        assert_eq!((again.cluster, again.local, again.candidates), (found.cluster, found.local, found.candidates));
    }
}
