//! What holds for every object that a source delivers. The fuzzers check each converted object, and the agent checks what it
//! reads from a snapshot file, because such a file can be forged.

use beeline_model::object::{NamedService, Object, Published, Service, ServicePort, Slice};
use beeline_model::policy::{BackendPort, Matcher, Policy, PolicyKind, PortChoice, Target};
use beeline_model::{Name, ServiceName};
use std::collections::HashSet;

type Check = Result<(), String>;

fn ensure(holds: bool, rule: &str) -> Check {
    if holds { Ok(()) } else { Err(rule.into()) }
}

/// Returns the first rule that the object violates.
pub fn check_object(object: &Object) -> Check {
    match object {
        Object::Service(service) => check_service(service),
        Object::NamedService(service) => check_named_service(service),
        Object::Slice(slice) | Object::NamedSlice(slice) => check_slice(slice),
        Object::Node(node) => check_names([&*node.cluster, &*node.name]),
        Object::Pod(pod) => {
            check_names([&*pod.name.cluster, &*pod.name.namespace, &*pod.name.name])?;
            ensure(pod.node.is_some(), "a pod has a node")?;
            check_port_numbers(pod.ports.iter().map(|port| port.port))
        }
        Object::Namespace(namespace) => check_names([&*namespace.cluster, &*namespace.name]),
        Object::Policy(policy) => check_policy(policy),
        Object::PolicySlice(slice) => {
            let same_family = slice.endpoints.iter().all(|endpoint| endpoint.address.family() == slice.family);
            ensure(same_family, "the endpoints of a slice have its family")
        }
        Object::ServiceRange(range) => check_names([&*range.cluster, &*range.name]),
    }
}

/// Names are parts of texts in which `/` separates.
fn check_names<const N: usize>(names: [&str; N]) -> Check {
    ensure(names.iter().all(|name| !name.is_empty() && !name.contains('/')), "a name is not empty and has no /")
}

fn check_service_name(name: &ServiceName) -> Check {
    ensure(name.policy_kind().is_none(), "a Service has no name of a policy")?;
    check_names([name.cluster(), name.namespace(), name.name()])
}

fn check_service(service: &Service) -> Check {
    check_service_name(&service.name)?;
    let families: HashSet<_> = service.cluster_ips.iter().map(|ip| ip.family()).collect();
    let one_each = !families.is_empty() && families.len() == service.cluster_ips.len();
    ensure(one_each, "a Service has one ClusterIP per family")?;
    let addresses = [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips];
    for address in addresses.into_iter().flatten() {
        ensure(!address.is_any() && !address.is_loopback(), &format!("{address} is not allowed as a service address"))?;
    }
    let in_range = service.affinity.is_none_or(|seconds| (1..=86_400).contains(&seconds));
    ensure(in_range, "the affinity lasts one second to one day")?;
    let valid = service.source_ranges.iter().all(|range| range.prefix_len() > 0 && *range == range.trunc());
    ensure(valid, "a source range has no host bits and is not everything")?;
    check_ports(&service.ports)?;
    let without = service.has_node_ports || service.ports.iter().all(|port| port.node_port == 0);
    ensure(without, "a Service without NodePorts has no nodePort")
}

fn check_named_service(service: &NamedService) -> Check {
    check_service_name(&service.name)?;
    if let Published::Addresses(addresses) = &service.published {
        for address in addresses {
            let rule = format!("{address} is not allowed as a service address");
            ensure(!address.is_any() && !address.is_loopback(), &rule)?;
        }
    }
    check_ports(&service.ports)
}

fn check_ports(ports: &[ServicePort]) -> Check {
    check_port_names(ports.iter().map(|port| (&port.name, port.port)))
}

fn check_slice(slice: &Slice) -> Check {
    check_service_name(&slice.service)?;
    check_names([&*slice.name.cluster, &*slice.name.namespace, &*slice.name.name])?;
    ensure(*slice.name.namespace == *slice.service.namespace(), "a slice is in the namespace of its Service")?;
    let same_family = slice.endpoints.iter().all(|endpoint| endpoint.address.family() == slice.family);
    ensure(same_family, "the endpoints of a slice have its family")?;
    let loopback = slice.endpoints.iter().any(|endpoint| endpoint.address.is_loopback());
    ensure(!loopback, "an endpoint is not a loopback address")?;
    check_port_names(slice.ports.iter().map(|port| (&port.name, port.port)))
}

pub(crate) fn check_policy(policy: &Policy) -> Check {
    check_names([&*policy.name.cluster, &*policy.name.namespace, &*policy.name.name])?;
    ensure(policy.name.name.len() <= 63, "the name of a policy has at most 63 characters")?;
    let positive = policy.limit.is_none_or(|limit| limit.connects_per_second > 0 && limit.burst > 0);
    ensure(positive, "a limit is more than zero")?;
    let back = check_target(policy)?;
    let front = match &policy.matcher {
        Matcher::Service { name, ports } => {
            check_names([&**name])?;
            let Some(ports) = ports else { return Ok(()) };
            ports
        }
        Matcher::Address { address, ports } => {
            ensure(!address.is_any() && !address.is_loopback(), "a virtual address is not a loopback address")?;
            ports
        }
    };
    check_port_names(front.iter().map(|port| (&port.name, port.port)))?;
    let paired = |name: &Name, protocol| back.iter().any(|port| port.name == *name && port.protocol == protocol);
    let all_paired = front.len() == back.len() && front.iter().all(|port| paired(&port.name, port.protocol));
    ensure(all_paired, "each port of the frontend has one of the backend")
}

fn check_target(policy: &Policy) -> Result<&[BackendPort], String> {
    let (local, ports) = match &policy.target {
        Target::LocalPods { ports, .. } => (true, ports),
        Target::Pods { ports, .. } => (false, ports),
        Target::Addresses { addresses, ports } => {
            let unique: HashSet<_> = addresses.iter().collect();
            ensure(!addresses.is_empty() && unique.len() == addresses.len(), "outside addresses are listed once")?;
            let special = addresses.iter().any(|address| address.is_loopback() || address.is_link_local());
            ensure(!special, "an outside address is neither loopback nor link-local")?;
            let numbers = ports.iter().all(|port| matches!(port.port, PortChoice::Number(_)));
            ensure(numbers, "a port of an outside address is a number")?;
            (false, ports)
        }
    };
    ensure(local == (policy.name.kind == PolicyKind::LocalRedirect), "the kind of a policy fits its backend")?;
    let number = |choice: &PortChoice| if let PortChoice::Number(number) = choice { *number } else { 1 };
    check_port_names(ports.iter().map(|port| (&port.name, number(&port.port))))?;
    Ok(ports)
}

fn check_port_numbers(mut numbers: impl Iterator<Item = u16>) -> Check {
    ensure(numbers.all(|number| number > 0), "a port is not zero")
}

/// Port names are keys in the planner, and parts of texts in which `/` separates.
fn check_port_names<'a>(ports: impl Iterator<Item = (&'a Name, u16)>) -> Check {
    let mut seen = HashSet::new();
    for (name, port) in ports {
        ensure(port > 0, "a port is not zero")?;
        ensure(!name.contains('/') && seen.insert(name), "a port name is unique and has no /")?;
    }
    Ok(())
}
