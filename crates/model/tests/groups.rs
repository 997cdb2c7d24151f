//! What `pods: auto` asks for: the pods of Services, and those that policies send dials to.

use beeline_model::fact::{Endpoint, Fact, SliceName, SlicePort};
use beeline_model::planner::Planner;
use beeline_model::policy::*;
use beeline_model::reach::Group;
use beeline_model::rules::{Rules, StandPoint};
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

fn slice(mode: RedirectMode, pods: &[&str]) -> Fact {
    let endpoint = |text: &&str| Endpoint {
        address: address(text),
        ready: true,
        serving: true,
        terminating: false,
        node: Some("n3".into()),
        hints: None,
    };
    let port = SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 9090 };
    Fact::PolicySlice(PolicySlice {
        name: slice_name(),
        policy: name(),
        uid: "u1".into(),
        shape: policy(mode).shape(),
        family: Family::V4,
        ports: [port].into(),
        endpoints: pods.iter().map(endpoint).collect(),
    })
}

fn asked(planner: &Planner) -> Vec<(Group, Vec<(Address, u16)>)> {
    planner.groups()
}

#[test]
fn the_way_to_a_policys_pods_is_asked_for() {
    let mut rules = Rules::for_node("vm");
    rules.stand_point = StandPoint::Outside;
    let mut planner = Planner::new(rules);
    planner.apply(Fact::Policy(policy(RedirectMode::PodEndpoint)));
    planner.apply(slice(RedirectMode::PodEndpoint, &["10.244.3.20", "10.244.3.21"]));
    let group = |text: &str| Group::of("local".into(), Some("n3".into()), address(text));
    let probes = [address("10.244.3.20"), address("10.244.3.21")].map(|pod| (pod, 9090)).to_vec();
    assert_eq!(asked(&planner), [(group("10.244.3.0"), probes)]);

    planner.apply(slice(RedirectMode::PodEndpoint, &["10.244.4.20"]));
    assert_eq!(asked(&planner), [(group("10.244.4.0"), vec![(address("10.244.4.20"), 9090)])]);
    planner.apply(slice(RedirectMode::HostPort, &["10.244.4.20"]));
    assert_eq!(asked(&planner), [], "its node is dialled instead");
    planner.apply(slice(RedirectMode::PodEndpoint, &["10.244.4.20"]));
    planner.apply(Fact::PolicySliceGone(slice_name()));
    assert_eq!(asked(&planner), [], "it is gone");
}
