//! Which endpoints: the table of the rule book line by line, and what must hold for any endpoints.

use beeline_model::fact::{Endpoint, Hints};
use beeline_model::select::{Candidate, Place, Selection, Topology, select};
use beeline_model::{Address, Name};
use std::net::IpAddr;

const HERE: &str = "n1";

fn place(zone: Option<&str>) -> Place {
    Place { node: HERE.into(), zone: zone.map(Name::from) }
}

/// `5 ready@n1 zone=east node=n1`: the last number of its address, its state, its node and its hints.
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
    Candidate::new(&endpoint, 80, node.clone(), node.as_deref() == Some(HERE))
}

fn chosen(selection: &Selection, indexes: &[usize]) -> Vec<u8> {
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
fn the_table_of_the_rule_book() {
    let cases = [
        // None ready: no topology, and what still serves on its way out, hints or not.
        Case {
            endpoints: &["1 leaving@n1 zone=west", "2 leaving@n2 zone=east", "3 gone@n1", "4 starting@n1"],
            zone: Some("east"),
            topology: Topology::None,
            cluster: &[1, 2],
            local: &[1],
        },
        // All have node hints and one names us.
        Case {
            endpoints: &["1 ready@n1 node=n2", "2 ready@n2 node=n1 node=n3", "3 ready@n3 node=n3"],
            zone: None,
            topology: Topology::SameNode,
            cluster: &[2],
            local: &[1],
        },
        // One without a node hint switches that level off; zones are asked next.
        Case {
            endpoints: &["1 ready@n1 node=n1 zone=east", "2 ready@n2 zone=east", "3 ready@n3 zone=west node=n1"],
            zone: Some("east"),
            topology: Topology::SameZone,
            cluster: &[1, 2],
            local: &[1],
        },
        // Node hints that name others only do not stop zone hints.
        Case {
            endpoints: &["1 ready@n2 node=n2 zone=east", "2 ready@n3 node=n3 zone=west"],
            zone: Some("west"),
            topology: Topology::SameZone,
            cluster: &[2],
            local: &[],
        },
        // A node without a zone never matches.
        Case {
            endpoints: &["1 ready@n2 zone=east", "2 ready@n3 zone=west"],
            zone: None,
            topology: Topology::All,
            cluster: &[1, 2],
            local: &[],
        },
        // Hints of what is not ready do not count, neither for nor against.
        Case {
            endpoints: &["1 ready@n2 zone=east", "2 starting@n3", "3 leaving@n3", "4 ready@n3 zone=west"],
            zone: Some("east"),
            topology: Topology::SameZone,
            cluster: &[1],
            local: &[],
        },
        // Ready and terminating (publishNotReadyAddresses) is ready.
        Case {
            endpoints: &["1 published@n1", "2 ready@n2", "3 leaving@n1"],
            zone: None,
            topology: Topology::All,
            cluster: &[1, 2],
            local: &[1],
        },
        // The local set is decided on its own: here it leaves while others are ready.
        Case {
            endpoints: &["1 leaving@n1", "2 ready@n2"],
            zone: None,
            topology: Topology::All,
            cluster: &[2],
            local: &[1],
        },
    ];
    for case in cases {
        let found = select(case.endpoints.iter().map(|text| candidate(text)).collect(), &place(case.zone));
        let got = (found.topology, chosen(&found, &found.cluster), chosen(&found, &found.local));
        assert_eq!(got, (case.topology, case.cluster.to_vec(), case.local.to_vec()), "{:?}", case.endpoints);
    }
}

#[test]
fn one_of_each_address_the_livelier_one() {
    let select = |texts: &[&str]| select(texts.iter().map(|text| candidate(text)).collect(), &place(None));
    for (texts, cluster) in [
        (&["1 published@n1", "1 starting@n1"][..], &[][..]),
        (&["1 leaving@n1", "1 ready@n1"], &[1]),
        (&["1 starting@n1", "1 ready@n1"], &[1]),
        (&["1 gone@n1", "1 leaving@n1"], &[1]),
    ] {
        for order in [texts.to_vec(), texts.iter().rev().copied().collect()] {
            let found = select(&order);
            assert_eq!((found.candidates.len(), chosen(&found, &found.cluster)), (1, cluster.to_vec()), "{order:?}");
        }
    }
    let found = select(&["1 ready@", "1 ready@n1"]);
    assert_eq!(chosen(&found, &found.local), [1], "who knows the node says where it stands");
}

#[test]
fn whatever_the_endpoints() {
    let states = ["ready", "leaving", "gone", "starting", "published"];
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
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
        let here = place([None, Some("east")][usize::from(rng.bool())]);
        let found = select(endpoints.clone(), &here);
        let members = |indexes: &[usize]| indexes.iter().map(|i| &found.candidates[*i]).cloned().collect::<Vec<_>>();
        for set in [members(&found.cluster), members(&found.local)] {
            let ready = set.iter().filter(|c| c.ready).count();
            assert!(ready == 0 || ready == set.len(), "ready and terminating ones are never mixed: {set:?}");
            assert!(set.iter().all(|c| c.ready || c.serving && c.terminating));
        }
        assert_eq!(found.any, !found.cluster.is_empty(), "the cluster set is empty only where nothing could serve");
        assert!(members(&found.local).iter().all(|c| c.local));
        assert_eq!(chosen(&found, &found.local), found.node_sets().get(HERE).map_or(vec![], |set| chosen(&found, set)));
        rng.shuffle(&mut endpoints);
        let again = select(endpoints, &here);
        assert_eq!((again.cluster, again.local, again.candidates), (found.cluster, found.local, found.candidates));
    }
}
