//! "This ClusterIP is known" rows name nobody: whose they are is seen by what stands beside them, if anything does.

use beeline_model::diff::{Whole, reconcile};
use beeline_model::fact::{Fact, Policy, Service, ServicePort};
use beeline_model::op::{Maps, Memory};
use beeline_model::planner::Planner;
use beeline_model::row::{FrontendKey, Sizes};
use beeline_model::rules::{Rules, StandPoint};
use beeline_model::stand::ClusterRules;
use beeline_model::table::Tables;
use beeline_model::{Address, OwnerName, Protocol};
use std::collections::BTreeSet;

fn sizes() -> Sizes {
    Sizes::for_services(20)
}

fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::IpAddr>().expect("an address"))
}

fn rules() -> Rules {
    let cluster = |name: &str, range: &str| ClusterRules {
        service_ranges: Some(vec![range.parse().expect("a range")]),
        ..ClusterRules::named(name)
    };
    let mut rules = Rules::for_node("vm");
    rules.stand_point = StandPoint::Outside;
    rules.clusters = vec![cluster("a", "10.43.0.0/16"), cluster("b", "10.44.0.0/16")];
    rules
}

fn service(cluster: &str, at: &str, protocol: Protocol) -> Fact {
    Fact::Service(Service {
        name: OwnerName::new(cluster, "default", "web"),
        created: 0,
        cluster_ips: [address(at)].into(),
        load_balancer_ips: [].into(),
        external_ips: [].into(),
        source_ranges: [].into(),
        has_node_ports: false,
        internal: Policy::Cluster,
        external: Policy::Cluster,
        affinity: None,
        health_check_node_port: 0,
        ports: [ServicePort { name: "main".into(), protocol, port: 80, node_port: 0 }].into(),
    })
}

/// While a is silent, b's Service with nothing but SCTP was deleted: its address is not refused for ever.
#[test]
fn a_known_row_that_stands_alone_goes_with_its_service() {
    let (mut tables, mut memory) = (Tables::new(sizes()), Memory::new(sizes()));
    let mut planner = Planner::new(rules());
    planner.apply(service("a", "10.43.0.1", Protocol::Tcp));
    planner.apply(service("b", "10.44.0.1", Protocol::Sctp));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_all(), true).is_clean());
    let [of_a, of_b] = ["10.43.0.1", "10.44.0.1"].map(|at| FrontendKey::known(address(at)));
    assert!(memory.rows.frontends.contains_key(&of_a) && memory.rows.frontends.contains_key(&of_b));

    let mut tables = Tables::restore(memory.dump().unwrap(), sizes());
    let mut planner = Planner::new(rules());
    planner.note_synced(&"b".into());
    let whole = Whole::Clusters(BTreeSet::from(["b".into()]));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_all(), whole).is_clean());
    assert!(!memory.rows.frontends.contains_key(&of_b), "nobody has it");
    assert!(memory.rows.frontends.contains_key(&of_a), "a was not heard of");
}

/// The order of the file was turned while nobody looked, and a is silent: inside b's range nothing of a's stays, or a
/// stranger answers for b.
#[test]
fn who_comes_later_now_keeps_nothing_in_the_others_range() {
    let range = || Some(vec!["10.43.0.0/16".parse().expect("a range")]);
    let cluster = |name: &str| ClusterRules { service_ranges: range(), ..ClusterRules::named(name) };
    let order = |names: [&str; 2]| Rules { clusters: names.map(cluster).into(), ..rules() };
    let (mut tables, mut memory) = (Tables::new(sizes()), Memory::new(sizes()));
    let mut planner = Planner::new(order(["a", "b"]));
    planner.apply(service("a", "10.43.0.1", Protocol::Tcp));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_all(), true).is_clean());
    let key = FrontendKey::new(address("10.43.0.1"), 80, Protocol::Tcp);
    assert!(memory.rows.frontends.contains_key(&key));

    let start = |memory: &mut Memory, names| {
        let mut tables = Tables::restore(memory.dump().unwrap(), sizes());
        let mut planner = Planner::new(order(names));
        planner.adopt(tables.holders());
        planner.note_synced(&"b".into());
        let whole = Whole::Clusters(BTreeSet::from(["b".into()]));
        assert!(reconcile(&mut tables, memory, &planner.take_all(), whole).is_clean());
    };
    start(&mut memory, ["a", "b"]);
    assert!(memory.rows.frontends.contains_key(&key), "a's own range, and a has said nothing");
    start(&mut memory, ["b", "a"]);
    assert_eq!(memory.rows.frontends.keys().collect::<Vec<_>>(), Vec::<&FrontendKey>::new(), "it is b's");
}
