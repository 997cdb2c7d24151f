//! The groups that `podAccess: auto` probes: the pods of Services, and those that policies dial.

use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{Endpoint, Object, SliceName, SlicePort};
use beeline_model::planner::Planner;
use beeline_model::policy::*;
use beeline_model::reach::PodGroup;
use beeline_model::rules::{HostRole, Rules};
use beeline_model::selector::Selector;
use beeline_model::{Address, Family, Protocol};

fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::IpAddr>().expect("an address"))
}

fn name() -> PolicyName {
    PolicyName { kind: PolicyKind::Balancing, cluster: "local".into(), namespace: "default".into(), name: "api".into() }
}

fn policy(mode: RedirectMode) -> Policy {
    let port = BackendPort { name: "".into(), port: PortChoice::Number(9090), protocol: Protocol::Tcp };
    let dialled = DialledPort { name: "".into(), port: 80, protocol: Protocol::Tcp };
    Policy {
        name: name(),
        uid: "u1".into(),
        created: 0,
        generation: 1,
        matcher: Matcher::Address { address: address("fd00:bee::1"), ports: [dialled].into() },
        target: Target::Pods { selector: Selector::default(), namespaces: None, mode, ports: [port].into() },
        nodes: None,
        out_cluster: true,
        limit: None,
    }
}

fn slice_name() -> SliceName {
    SliceName { cluster: "local".into(), namespace: "default".into(), name: "api-1".into() }
}

fn slice(mode: RedirectMode, pods: &[&str]) -> Change {
    let endpoint = |text: &&str| Endpoint { node: Some("n3".into()), ..Endpoint::ready(address(text)) };
    let port = SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 9090 };
    Change::Upsert(Object::PolicySlice(PolicySlice {
        name: slice_name(),
        policy: name(),
        uid: "u1".into(),
        shape: policy(mode).shape(),
        family: Family::V4,
        ports: [port].into(),
        endpoints: pods.iter().map(endpoint).collect(),
    }))
}

fn targets(planner: &Planner) -> Vec<(PodGroup, Vec<(Address, u16)>)> {
    planner.reach_targets()
}

#[test]
fn the_paths_to_pods_of_a_policy_are_probed() {
    let mut rules = Rules::for_node("vm");
    rules.host_role = HostRole::Outside;
    let mut planner = Planner::new(rules);
    planner.apply(Change::Upsert(Object::Policy(policy(RedirectMode::PodEndpoint))));
    planner.apply(slice(RedirectMode::PodEndpoint, &["10.244.3.20", "10.244.3.21"]));
    let group = |text: &str| PodGroup::of("local".into(), Some("n3".into()), address(text));
    let probes = [address("10.244.3.20"), address("10.244.3.21")].map(|pod| (pod, 9090)).to_vec();
    assert_eq!(targets(&planner), [(group("10.244.3.0"), probes)]);

    planner.apply(slice(RedirectMode::PodEndpoint, &["10.244.4.20"]));
    assert_eq!(targets(&planner), [(group("10.244.4.0"), vec![(address("10.244.4.20"), 9090)])]);
    planner.apply(slice(RedirectMode::HostPort, &["10.244.4.20"]));
    assert_eq!(targets(&planner), [], "the node is dialled instead");
    planner.apply(slice(RedirectMode::PodEndpoint, &["10.244.4.20"]));
    planner.apply(Change::Delete(ObjectKey::PolicySlice(slice_name())));
    assert_eq!(targets(&planner), [], "the slice is deleted");
}
