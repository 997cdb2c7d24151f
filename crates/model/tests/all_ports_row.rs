//! The all-ports row of a ClusterIP does not name its owner. The owner follows from the other rows of the address, if
//! any.

use beeline_model::change::Change;
use beeline_model::cluster::ClusterRules;
use beeline_model::diff::{SyncScope, reconcile};
use beeline_model::object::{Object, Service, ServicePort};
use beeline_model::op::{Maps, MemoryMaps};
use beeline_model::planner::Planner;
use beeline_model::row::{FrontendKey, Sizes};
use beeline_model::rules::{HostRole, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Protocol, ServiceName};
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
    rules.host_role = HostRole::Outside;
    rules.clusters = vec![cluster("a", "10.43.0.0/16"), cluster("b", "10.44.0.0/16")];
    rules
}

fn service(cluster: &str, at: &str, protocol: Protocol) -> Change {
    Change::Upsert(Object::Service(Service {
        cluster_ips: [address(at)].into(),
        ports: [ServicePort { name: "main".into(), protocol, port: 80, node_port: 0 }].into(),
        ..Service::named(ServiceName::new(cluster, "default", "web"))
    }))
}

/// No object of cluster a is received yet, and b's Service, which has only an SCTP port, was deleted. Its address must
/// not stay refused.
#[test]
fn an_all_ports_row_without_other_rows_is_deleted_with_its_service() {
    let (mut tables, mut memory) = (Tables::new(sizes()), MemoryMaps::new(sizes()));
    let mut planner = Planner::new(rules());
    planner.apply(service("a", "10.43.0.1", Protocol::Tcp));
    planner.apply(service("b", "10.44.0.1", Protocol::Sctp));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), true).is_clean());
    let [of_a, of_b] = ["10.43.0.1", "10.44.0.1"].map(|at| FrontendKey::all_ports(address(at)));
    assert!(memory.rows.frontends.contains_key(&of_a) && memory.rows.frontends.contains_key(&of_b));

    let mut tables = Tables::restore(memory.dump().unwrap(), sizes());
    let mut planner = Planner::new(rules());
    planner.note_synced(&"b".into());
    let scope = SyncScope::Clusters(BTreeSet::from(["b".into()]));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), scope).is_clean());
    assert!(!memory.rows.frontends.contains_key(&of_b), "no Service has the address");
    assert!(memory.rows.frontends.contains_key(&of_a), "no object of a was received");
}

/// The order of the clusters was changed while the agent was down, and no object of a is received yet. No row of a
/// stays in b's range, or a client of b would reach a.
#[test]
fn a_cluster_that_is_later_now_keeps_no_row_in_the_range_of_an_earlier_one() {
    let range = || Some(vec!["10.43.0.0/16".parse().expect("a range")]);
    let cluster = |name: &str| ClusterRules { service_ranges: range(), ..ClusterRules::named(name) };
    let order = |names: [&str; 2]| Rules { clusters: names.map(cluster).into(), ..rules() };
    let (mut tables, mut memory) = (Tables::new(sizes()), MemoryMaps::new(sizes()));
    let mut planner = Planner::new(order(["a", "b"]));
    planner.apply(service("a", "10.43.0.1", Protocol::Tcp));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), true).is_clean());
    let key = FrontendKey::new(address("10.43.0.1"), 80, Protocol::Tcp);
    assert!(memory.rows.frontends.contains_key(&key));

    let start = |memory: &mut MemoryMaps, names| {
        let mut tables = Tables::restore(memory.dump().unwrap(), sizes());
        let mut planner = Planner::new(order(names));
        planner.adopt(tables.frontend_owners());
        planner.note_synced(&"b".into());
        let scope = SyncScope::Clusters(BTreeSet::from(["b".into()]));
        assert!(reconcile(&mut tables, memory, &planner.take_full_delta(), scope).is_clean());
    };
    start(&mut memory, ["a", "b"]);
    assert!(memory.rows.frontends.contains_key(&key), "the range is a's own, and no object of a was received");
    start(&mut memory, ["b", "a"]);
    assert_eq!(memory.rows.frontends.keys().collect::<Vec<_>>(), Vec::<&FrontendKey>::new(), "the range is b's");
}
