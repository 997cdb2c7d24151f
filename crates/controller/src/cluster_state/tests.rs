//! Tests of the controller's state, and the objects that tests of other modules use.

use super::*;
use crate::policy_finding::FindingReason;
use crate::validation::tests::policy;
use beeline_cluster::Access;
use beeline_model::Address;
use beeline_model::name::Protocol;
use beeline_model::object::{AddressType, ContainerPort, Node, Pod, PodName, ServicePort, SliceName};
use beeline_model::planner::Planner;
use beeline_model::policy::{DialledPort, Matcher, PolicyKind, PolicySlice};
use beeline_model::rules::Rules;
use beeline_model::selector::Labels;
use std::time::Instant;

pub fn settings() -> ControllerSettings {
    ControllerSettings {
        access: Access::Kubeconfig { path: "none".into(), context: None },
        namespace: "kube-system".into(),
        report_namespace: "beeline-reports".into(),
        identity: "test".into(),
        virtual_address_cidrs: beeline_model::virtual_address::default_ranges(),
        overlap: Overlap::Refuse,
        webhook_address: ([127, 0, 0, 1], 0).into(),
        webhook_names: Vec::new(),
        webhook_configuration: String::new(),
        secret: String::new(),
        certificate_lifetime: Duration::from_secs(60),
        lease: String::new(),
        lease_duration: Duration::from_secs(60),
        health_address: None,
        drain: Duration::ZERO,
        commit: "none",
    }
}

pub fn address(ip: &str) -> Address {
    Address::from(ip.parse::<std::net::IpAddr>().unwrap())
}

/// The Service default/web with the ports 80 to 99.
fn web() -> Service {
    let port = |port: u16| ServicePort { name: port.to_string().into(), protocol: Protocol::Tcp, port, node_port: 0 };
    Service {
        cluster_ips: [address("10.96.0.1")].into(),
        ports: (80..100).map(port).collect(),
        ..Service::named(ServiceName::new("local", "default", "web"))
    }
}

fn pod(name: &str, ip: &str) -> Change {
    Change::Upsert(Object::Pod(Pod {
        name: PodName { cluster: "local".into(), namespace: "default".into(), name: name.into() },
        uid: name.into(),
        node: Some("n".into()),
        addresses: [address(ip)].into(),
        containers: [].into(),
        exclusion: Default::default(),
        view: None,
        labels: Labels::new(),
        ready: true,
        ports: [].into(),
    }))
}

fn upsert(policy: Policy) -> Change {
    Change::Upsert(Object::Policy(policy))
}

pub fn apply(state: &mut ClusterState, changes: Vec<Change>) {
    state.push(changes, true, true);
    while state.advance() {}
}

/// A synced state with the Service default/web, to be shared.
pub fn state_with(settings: &ControllerSettings) -> SharedState {
    let shared = SharedState::new(settings);
    shared.with(|state| apply(state, vec![Change::Upsert(Object::Service(web()))]));
    shared
}

/// The state of a leader, with the Service default/web.
pub fn state(changes: Vec<Change>) -> ClusterState {
    let mut state = ClusterState::new(&settings());
    state.start_leading();
    apply(&mut state, [vec![Change::Upsert(Object::Service(web()))], changes].concat());
    state
}

/// Renames a port of the Service default/web.
pub fn rename_port(state: &mut ClusterState, number: u16, name: &str) {
    let mut service = web();
    let port = service.ports.iter_mut().find(|port| port.port == number).unwrap();
    port.name = name.into();
    apply(state, vec![Change::Upsert(Object::Service(service))]);
}

fn next(state: &mut ClusterState, priority: Priority, now: Instant) -> Option<(SliceName, Option<PolicySlice>)> {
    loop {
        match state.next_slice(priority, now) {
            SliceWrite::Write(name, slice) => return Some((name, slice.map(|slice| *slice))),
            SliceWrite::Unchanged => {}
            SliceWrite::Idle => return None,
        }
    }
}

#[test]
fn only_accepted_policies_are_published() {
    let balancing = |name: &str, created| upsert(policy(PolicyKind::Balancing, name, created, Some(&[80])));
    let changes = vec![balancing("first", 1), balancing("second", 2), pod("a", "10.0.0.1")];
    let (mut state, now) = (state(changes), Instant::now());
    let (name, slice) = next(&mut state, Priority::High, now).expect("the first policy is published");
    assert_eq!(&*slice.as_ref().unwrap().policy.name, "first");
    state.record_slice_write(name.clone(), slice);
    assert!(next(&mut state, Priority::High, now).is_none() && next(&mut state, Priority::Low, now).is_none());
    apply(&mut state, vec![Change::Delete(ObjectKey::Service(web().name))]);
    let later = Instant::now() + 2 * WRITE_INTERVAL;
    assert!(next(&mut state, Priority::High, later).is_none());
    assert_eq!(next(&mut state, Priority::Low, later), Some((name.clone(), None)), "deleted without its Service");
    state.record_slice_write(name.clone(), None);
    let first = policy(PolicyKind::Balancing, "first", 1, None).name;
    let changes = vec![Change::Upsert(Object::Service(web())), Change::Delete(ObjectKey::Policy(first))];
    apply(&mut state, changes);
    let (_, slice) =
        next(&mut state, Priority::High, later + 2 * WRITE_INTERVAL).expect("the second owns the port now");
    assert_eq!(&*slice.unwrap().policy.name, "second");
}

#[test]
fn changes_of_many_pods_become_one_write_per_second() {
    let (mut state, now) = (state(vec![upsert(policy(PolicyKind::Balancing, "first", 1, None))]), Instant::now());
    apply(&mut state, vec![pod("a", "10.0.0.1")]);
    let (name, slice) = next(&mut state, Priority::High, now).expect("the first change is written at once");
    state.record_slice_write(name.clone(), slice);
    for n in 2..20 {
        apply(&mut state, vec![pod(&format!("p{n}"), &format!("10.0.0.{n}"))]);
        assert_eq!(next(&mut state, Priority::High, now), None);
    }
    let (again, slice) = next(&mut state, Priority::High, Instant::now() + WRITE_INTERVAL).expect("a second later");
    assert_eq!((again, slice.unwrap().endpoints.len()), (name, 19));
}

#[test]
fn a_new_policy_at_a_port_dirties_others_only_if_it_becomes_the_owner() {
    let balancing = |n: i64| upsert(policy(PolicyKind::Balancing, &format!("p{n}"), n, Some(&[80])));
    let mut state = state((10..3000).map(balancing).collect());
    assert_eq!(std::mem::take(&mut state.dirty_statuses).len(), 2990);
    apply(&mut state, vec![balancing(3000)]);
    assert_eq!(std::mem::take(&mut state.dirty_statuses).len(), 1);
    apply(&mut state, vec![balancing(3000)]);
    assert_eq!(std::mem::take(&mut state.dirty_statuses).len(), 0, "no change");
    apply(&mut state, vec![balancing(1)]);
    assert_eq!(std::mem::take(&mut state.dirty_statuses).len(), 2992, "the owner of the port changed");
}

#[test]
fn only_a_cluster_ip_takes_a_virtual_address() {
    let mut virtual_policy = policy(PolicyKind::Balancing, "v", 1, Some(&[80]));
    let address = address("169.254.0.90");
    let Matcher::Service { ports: Some(ports), .. } = virtual_policy.matcher else { panic!() };
    virtual_policy.matcher = Matcher::Address { address, ports };
    let mut state = state(vec![upsert(virtual_policy.clone())]);
    let service = |cluster_ips: &[Address]| {
        Change::Upsert(Object::Service(Service {
            name: ServiceName::new("local", "default", "other"),
            cluster_ips: cluster_ips.into(),
            load_balancer_ips: [address].into(),
            external_ips: [address].into(),
            ..web()
        }))
    };
    apply(&mut state, vec![service(&[])]);
    assert_eq!(state.evaluate(&virtual_policy), Ok(None));
    apply(&mut state, vec![service(&[address])]);
    assert_eq!(state.evaluate(&virtual_policy).unwrap_err().reason, FindingReason::AddressTaken);
}

#[test]
fn a_replica_that_does_not_lead_keeps_no_queue() {
    let mut state = state(Vec::new());
    state.stop_leading();
    for n in 0..100 {
        let balancing = policy(PolicyKind::Balancing, &format!("p{n}"), n, None);
        apply(&mut state, vec![upsert(balancing.clone()), pod("a", "10.0.0.1")]);
        state.mark_status_dirty(balancing.name.clone());
        apply(&mut state, vec![Change::Delete(ObjectKey::Policy(balancing.name))]);
    }
    assert_eq!((state.slices.queue.len(), state.dirty_statuses.len(), state.dirty_nodes.len()), ((0, 0), 0, 0));
    apply(&mut state, vec![upsert(policy(PolicyKind::Balancing, "last", 1, None))]);
    state.start_leading();
    assert!(next(&mut state, Priority::High, Instant::now()).is_some() && state.dirty_statuses.len() == 1);
}

/// A dual-stack pod of app=web on a node.
fn dual_stack_pod(name: &str, node: &str, number: u8) -> Change {
    let Change::Upsert(Object::Pod(pod)) = pod(name, &format!("10.0.0.{number}")) else { panic!() };
    let addresses = [pod.addresses[0], address(&format!("fd00:1::{number}"))].into();
    let ports = [ContainerPort { name: "web".into(), protocol: Protocol::Tcp, port: 8080, host_port: 9000 }].into();
    Change::Upsert(Object::Pod(Pod { node: Some(node.into()), addresses, ports, ..pod }))
}

fn node(name: &str, entry: &[&str]) -> Change {
    let entry = entry.iter().map(|ip| address(ip)).collect();
    let addresses = vec![(AddressType::Internal, address("172.31.0.1"))];
    Change::Upsert(Object::Node(Node { addresses, entry, ..Node::named("local", name) }))
}

/// The number of backends in the status of the policy, and on an agent with the same objects.
fn backend_counts(changes: &[Change], policy: &Policy) -> (usize, usize) {
    let changes = [changes, &[upsert(policy.clone())]].concat();
    let state = state(changes.clone());
    let mut planner = Planner::new(Rules::for_node("n1"));
    let slices = state.publisher.slices().map(Object::PolicySlice).map(Change::Upsert);
    let service = Change::Upsert(Object::Service(web()));
    for change in changes.into_iter().chain([service]).chain(slices.collect::<Vec<_>>()) {
        planner.apply(change);
    }
    planner.take_delta();
    let agent = planner.policy_state(&ServiceName::of_policy(&policy.name)).unwrap().backends;
    (usize::try_from(state.wanted_status(policy).backends.unwrap()).unwrap(), agent)
}

#[test]
fn the_status_counts_backends_as_agents_do() {
    let pods = [dual_stack_pod("a", "n1", 1), dual_stack_pod("b", "n1", 2), dual_stack_pod("c", "n2", 3)];
    let with_nodes = |entries: [&[&str]; 2]| [&pods[..], &[node("n1", entries[0]), node("n2", entries[1])]].concat();
    let mode = |mode: RedirectMode| {
        let mut policy = policy(PolicyKind::Balancing, "x", 1, Some(&[80]));
        let Target::Pods { mode: current, .. } = &mut policy.target else { panic!() };
        *current = mode;
        policy
    };
    let changes = with_nodes([&["10.9.0.1"], &[]]);
    assert_eq!(backend_counts(&changes, &mode(RedirectMode::PodEndpoint)), (3, 3), "one per pod, not per family");
    assert_eq!(backend_counts(&changes, &mode(RedirectMode::HostPort)), (3, 3), "also of pods of one node");
    assert_eq!(backend_counts(&changes, &mode(RedirectMode::NodeProxy)), (2, 2), "n2 has no entry address");
    assert_eq!(backend_counts(&with_nodes([&["fd00:9::1"], &[]]), &mode(RedirectMode::NodeProxy)), (0, 0), "IPv6 only");
    let plain = mode(RedirectMode::PodEndpoint);
    let addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(address).into();
    let fixed = Target::Addresses { addresses, ports: plain.target.ports().into() };
    assert_eq!(
        backend_counts(&changes, &Policy { target: fixed, ..plain.clone() }),
        (2, 2),
        "the Service has IPv4 only"
    );
    let matcher = Matcher::Address {
        address: address("fd00:bee::1"),
        ports: [DialledPort { name: "80".into(), port: 80, protocol: Protocol::Tcp }].into(),
    };
    assert_eq!(backend_counts(&changes, &Policy { matcher, ..plain.clone() }), (3, 3));
    assert_eq!(backend_counts(&changes, &policy(PolicyKind::Balancing, "x", 1, Some(&[9999]))), (0, 0), "not accepted");
}

#[test]
fn a_changed_entry_address_dirties_the_policies_that_lead_to_nodes() {
    let mut proxy = policy(PolicyKind::Balancing, "proxy", 1, Some(&[80]));
    let Target::Pods { mode, .. } = &mut proxy.target else { panic!() };
    *mode = RedirectMode::NodeProxy;
    let plain = policy(PolicyKind::Balancing, "plain", 1, Some(&[81]));
    let mut state = state(vec![upsert(proxy.clone()), upsert(plain), node("n1", &[])]);
    state.dirty_statuses.clear();
    apply(&mut state, vec![node("n1", &["10.9.0.1"])]);
    assert_eq!(std::mem::take(&mut state.dirty_statuses), BTreeSet::from([proxy.name]));
}
