//! What must hold of every input, however broken. Run over random bytes by the fuzzer and over its corpus by the tests.

use crate::{Claim, Convert, Format, Snapshot, diff, parse};
use beeline_model::Name;
use beeline_model::fact::{Fact, Service, Slice};
use beeline_model::policy::{BackendPort, Matcher, Policy, PolicyKind, PortChoice, Target};
use std::collections::HashSet;

/// Panics where something does not hold.
#[doc(hidden)]
pub fn check(input: &[u8]) {
    for format in [Format::Yaml, Format::Json] {
        for names in [false, true] {
            check_as(input, format, Claim { names, ..Claim::default() });
        }
    }
}

fn check_as(input: &[u8], format: Format, claim: Claim) {
    let mut convert = Convert::new("local", claim);
    let snapshot = parse(input, format, &mut convert);
    assert_eq!(snapshot, parse(input, format, &mut convert), "what was read before changes nothing");
    let mut told = Snapshot { refusals: snapshot.refusals.clone(), ..Snapshot::default() };
    diff(&Snapshot::default(), &snapshot).into_iter().for_each(|fact| told.apply(fact));
    assert_eq!(snapshot, told, "the differences add up");
    snapshot.into_facts().iter().for_each(check_fact);
}

fn check_fact(fact: &Fact) {
    match fact {
        Fact::Service(service) => check_service(service),
        Fact::NamedService(named) => assert!(!named.name.name().is_empty()),
        Fact::Slice(slice) | Fact::NamedSlice(slice) => check_slice(slice),
        Fact::Node(node) => assert!(!node.name.is_empty()),
        Fact::Pod(pod) => assert!(!pod.name.name.is_empty() && pod.node.is_some()),
        Fact::Namespace(namespace) => assert!(!namespace.name.is_empty()),
        Fact::Policy(policy) => check_policy(policy),
        Fact::PolicySlice(slice) => assert!(slice.endpoints.iter().all(|e| e.address.family() == slice.family)),
        Fact::ServiceRange { name, .. } => assert!(!name.is_empty()),
        gone => panic!("{gone:?} of a fresh read"),
    }
}

fn check_service(service: &Service) {
    let families: HashSet<_> = service.cluster_ips.iter().map(|ip| ip.family()).collect();
    assert!(!families.is_empty() && families.len() == service.cluster_ips.len(), "one ClusterIP a family: {service:?}");
    let addresses = [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips];
    for address in addresses.into_iter().flatten() {
        assert!(!address.is_any() && !address.is_loopback(), "{service:?}");
    }
    assert!(service.affinity.is_none_or(|seconds| (1..=86_400).contains(&seconds)), "{service:?}");
    assert!(service.source_ranges.iter().all(|range| range.prefix_len() > 0 && *range == range.trunc()), "{service:?}");
    check_names(service.ports.iter().map(|port| (&port.name, port.port)));
    assert!(service.has_node_ports || service.ports.iter().all(|port| port.node_port == 0), "{service:?}");
}

fn check_slice(slice: &Slice) {
    assert_eq!(*slice.name.namespace, *slice.service.namespace());
    assert!(slice.endpoints.iter().all(|endpoint| endpoint.address.family() == slice.family), "{slice:?}");
    assert!(slice.endpoints.iter().all(|endpoint| !endpoint.address.is_loopback()), "{slice:?}");
    check_names(slice.ports.iter().map(|port| (&port.name, port.port)));
}

fn check_policy(policy: &Policy) {
    assert!((1..=63).contains(&policy.name.name.len()), "{policy:?}");
    assert!(policy.limit.is_none_or(|limit| limit.connects_per_second > 0 && limit.burst > 0), "{policy:?}");
    let back = check_target(policy);
    let front = match &policy.matcher {
        Matcher::Service { ports: None, .. } => return,
        Matcher::Service { ports: Some(ports), .. } => ports,
        Matcher::Address { address, ports } => {
            assert!(!address.is_any() && !address.is_loopback(), "{policy:?}");
            ports
        }
    };
    check_names(front.iter().map(|port| (&port.name, port.port)));
    let paired = |name, protocol| back.iter().any(|port| port.name == name && port.protocol == protocol);
    assert!(front.iter().all(|port| paired(port.name.clone(), port.protocol)), "{policy:?}");
    assert_eq!(front.len(), back.len(), "{policy:?}");
}

fn check_target(policy: &Policy) -> &[BackendPort] {
    let (local, ports) = match &policy.target {
        Target::LocalPods { ports, .. } => (true, ports),
        Target::Pods { ports, .. } => (false, ports),
        Target::Addresses { addresses, ports } => {
            let unique: HashSet<_> = addresses.iter().collect();
            assert!(!addresses.is_empty() && unique.len() == addresses.len(), "{policy:?}");
            assert!(addresses.iter().all(|address| !address.is_loopback() && !address.is_link_local()), "{policy:?}");
            assert!(ports.iter().all(|port| matches!(port.port, PortChoice::Number(_))), "{policy:?}");
            (false, ports)
        }
    };
    assert_eq!(local, policy.name.kind == PolicyKind::LocalRedirect, "{policy:?}");
    let number = |choice: &PortChoice| if let PortChoice::Number(number) = choice { *number } else { 1 };
    check_names(ports.iter().map(|port| (&port.name, number(&port.port))));
    ports
}

/// Names are keys downstream, and part of texts in which `/` separates.
fn check_names<'a>(ports: impl Iterator<Item = (&'a Name, u16)>) {
    let mut seen = HashSet::new();
    for (name, port) in ports {
        assert!(port > 0 && !name.contains('/') && seen.insert(name), "{name}:{port}");
    }
}
