//! The node addresses of a NodePort's wildcard row.

use beeline_model::change::Change;
use beeline_model::cluster::ClusterRules;
use beeline_model::diff::{SyncScope, reconcile};
use beeline_model::node_port::NodePortAddresses;
use beeline_model::object::*;
use beeline_model::op::{Maps, MemoryMaps};
use beeline_model::planner::Planner;
use beeline_model::row::{FrontendKey, Sizes};
use beeline_model::rules::{NoLocalEndpointAction, NodePortAddress, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Family, Name, Protocol, ServiceName};
use std::collections::BTreeSet;

fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::IpAddr>().expect("an address"))
}

fn service(external: TrafficPolicy) -> Object {
    Object::Service(Service {
        cluster_ips: [address("10.96.0.1")].into(),
        has_node_ports: true,
        external,
        ports: [ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: 30080 }].into(),
        ..Service::named(ServiceName::local("default", "web"))
    })
}

fn node(name: &str, at: &str) -> Object {
    Object::Node(Node { addresses: vec![(AddressType::Internal, address(at))], ..Node::named("local", name) })
}

/// Endpoints on n1, which is this node, and on n2, but not on n3.
fn slice() -> Object {
    let endpoint = |(at, node): (&str, &str)| Endpoint { node: Some(node.into()), ..Endpoint::ready(address(at)) };
    Object::Slice(Slice {
        name: SliceName { cluster: "local".into(), namespace: "default".into(), name: "web-1".into() },
        service: ServiceName::local("default", "web"),
        family: Family::V4,
        ports: [SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
        endpoints: [("10.244.1.5", "n1"), ("10.244.2.5", "n2")].map(endpoint).into(),
        hostnames: None,
    })
}

fn node_port_addresses(external: TrafficPolicy, no_local_endpoint_action: NoLocalEndpointAction) -> NodePortAddresses {
    let node_port_addresses = vec![NodePortAddress::Primary, NodePortAddress::Localhost];
    let mut planner = Planner::new(Rules { no_local_endpoint_action, node_port_addresses, ..Rules::for_node("n1") });
    let nodes = [node("n1", "172.18.0.1"), node("n2", "172.18.0.2"), node("n3", "172.18.0.3")];
    nodes.into_iter().chain([service(external), slice()]).for_each(|object| _ = planner.apply(Change::Upsert(object)));
    let sizes = Sizes::for_services(8);
    let (mut tables, mut memory) = (Tables::new(sizes), MemoryMaps::new(sizes));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), true).is_clean());
    let wildcard = FrontendKey::new(Address::any(Family::V4), 30080, Protocol::Tcp);
    assert_eq!(
        NodePortAddresses::of(&memory.rows, &FrontendKey { port: 80, ..wildcard }, no_local_endpoint_action),
        None
    );
    NodePortAddresses::of(&memory.rows, &wildcard, no_local_endpoint_action).expect("a wildcard row")
}

#[test]
fn under_policy_cluster_every_node_address_is_served() {
    let found = node_port_addresses(TrafficPolicy::Cluster, NoLocalEndpointAction::Refuse);
    assert_eq!(found.served, ["127.0.0.0/8", "172.18.0.1", "172.18.0.2", "172.18.0.3"]);
    assert!(found.refused.is_empty() && found.untouched.is_empty(), "{found:?}");
}

/// n2 has a row of its own, so the wildcard row does not apply to it.
#[test]
fn under_policy_local_a_node_without_endpoints_refuses() {
    let found = node_port_addresses(TrafficPolicy::Local, NoLocalEndpointAction::Refuse);
    assert_eq!(
        (found.served, found.refused),
        (vec!["127.0.0.0/8".into(), "172.18.0.1".into()], vec!["172.18.0.3".into()])
    );
    let found = node_port_addresses(TrafficPolicy::Local, NoLocalEndpointAction::Drop);
    assert_eq!((found.refused, found.untouched), (vec![], vec!["172.18.0.3".to_owned()]));
}

/// The Node of this host lists another address than the host's interfaces. Without the Node, the address of the interface
/// would count as its primary address.
#[test]
fn after_a_restart_node_addresses_stay_until_the_home_cluster_is_received() {
    let rules = || Rules {
        clusters: ["home", "other"].map(ClusterRules::named).into(),
        own_addresses: vec![address("192.168.7.2")],
        ..Rules::for_node("n1")
    };
    let addresses = vec![(AddressType::External, address("203.0.113.2"))];
    let own_node = || Change::Upsert(Object::Node(Node { addresses: addresses.clone(), ..Node::named("home", "n1") }));
    let sizes = Sizes::for_services(8);
    let (mut tables, mut memory) = (Tables::new(sizes), MemoryMaps::new(sizes));
    let mut planner = Planner::new(rules());
    planner.apply(own_node());
    assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), true).is_clean());
    let before = memory.rows.nodes.clone();
    assert_eq!(before.keys().collect::<Vec<_>>(), [&address("203.0.113.2")]);

    let mut tables = Tables::restore(memory.dump().unwrap(), sizes);
    let mut planner = Planner::new(rules());
    planner.adopt(tables.frontend_owners());
    let mut received = BTreeSet::new();
    for cluster in ["other", "home"].map(Name::from) {
        if &*cluster == "home" {
            planner.apply(own_node());
        }
        planner.note_synced(&cluster);
        received.insert(cluster);
        let scope = SyncScope::Clusters(received.clone());
        assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), scope).is_clean());
        assert_eq!(memory.rows.nodes, before, "received {received:?}");
    }
}
