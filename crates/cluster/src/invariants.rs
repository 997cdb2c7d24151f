//! Invariants of the conversion for every input, however broken. The fuzzer runs them over random bytes, and the tests
//! run them over the corpus of the fuzzer.

use crate::{Converter, ManifestFormat, ServiceFilter, Snapshot, diff, parse_manifests};
use beeline_model::Name;
use beeline_model::change::Change;
use beeline_model::object::{Object, Service, Slice};
use beeline_model::policy::{BackendPort, Matcher, Policy, PolicyKind, PortChoice, Target};
use std::collections::HashSet;

/// Panics if an invariant does not hold.
#[doc(hidden)]
pub fn check_conversion(input: &[u8]) {
    for format in [ManifestFormat::Yaml, ManifestFormat::Json] {
        for dns_names in [false, true] {
            check_format(input, format, ServiceFilter { dns_names, ..ServiceFilter::default() });
        }
    }
}

fn check_format(input: &[u8], format: ManifestFormat, filter: ServiceFilter) {
    let mut converter = Converter::new("local", filter);
    let snapshot = parse_manifests(input, format, &mut converter);
    let again = parse_manifests(input, format, &mut converter);
    assert_eq!(snapshot, again, "the result does not depend on what was converted before");
    let mut rebuilt = Snapshot { refusals: snapshot.refusals.clone(), ..Snapshot::default() };
    diff(&Snapshot::default(), &snapshot).into_iter().for_each(|change| rebuilt.apply(change));
    assert_eq!(snapshot, rebuilt, "applying the diff gives the snapshot");
    for change in snapshot.into_changes() {
        match change {
            Change::Upsert(object) => check_object(&object),
            Change::Delete(key) => panic!("{key} is deleted in a new snapshot"),
        }
    }
}

fn check_object(object: &Object) {
    match object {
        Object::Service(service) => check_service(service),
        Object::NamedService(named) => assert!(!named.name.name().is_empty()),
        Object::Slice(slice) | Object::NamedSlice(slice) => check_slice(slice),
        Object::Node(node) => assert!(!node.name.is_empty()),
        Object::Pod(pod) => assert!(!pod.name.name.is_empty() && pod.node.is_some()),
        Object::Namespace(namespace) => assert!(!namespace.name.is_empty()),
        Object::Policy(policy) => check_policy(policy),
        Object::PolicySlice(slice) => assert!(slice.endpoints.iter().all(|e| e.address.family() == slice.family)),
        Object::ServiceRange(range) => assert!(!range.name.is_empty()),
    }
}

fn check_service(service: &Service) {
    let families: HashSet<_> = service.cluster_ips.iter().map(|ip| ip.family()).collect();
    assert!(
        !families.is_empty() && families.len() == service.cluster_ips.len(),
        "one ClusterIP per family: {service:?}"
    );
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

/// Port names are keys in the planner, and parts of texts in which `/` is a separator.
fn check_names<'a>(ports: impl Iterator<Item = (&'a Name, u16)>) {
    let mut seen = HashSet::new();
    for (name, port) in ports {
        assert!(port > 0 && !name.contains('/') && seen.insert(name), "{name}:{port}");
    }
}
