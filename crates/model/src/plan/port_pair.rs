//! Pairs the frontend ports of a policy with its backend ports, by name and protocol. A single pair needs no names.
//! Everything that admission refuses is refused here as well.

use crate::name::{Name, Protocol};
use crate::object::{Service, ServicePort};
use crate::policy::{BackendPort, DialledPort, Matcher, Policy, PortChoice, Target};
use crate::refusal::{Refusal, RefusalReason};
use std::collections::BTreeSet;

/// Number of ports that a message names.
const MAX_NAMED: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPair {
    pub dialled: DialledPort,
    pub backend: BackendPort,
    /// The policy has no other pair: its slices have one port, whatever its name is.
    pub single: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPairs {
    pub pairs: Vec<PortPair>,
    /// Ports of the Service that the policy does not cover.
    pub skipped: Vec<Refusal>,
}

pub fn refusal(policy: &Policy, reason: RefusalReason, message: impl Into<String>) -> Refusal {
    Refusal::new(&policy.name, reason, message)
}

impl Target {
    pub fn ports(&self) -> &[BackendPort] {
        match self {
            Target::LocalPods { ports, .. } | Target::Pods { ports, .. } | Target::Addresses { ports, .. } => ports,
        }
    }
}

/// `service` is the Service that the serviceMatcher names.
pub(super) fn pair_ports(policy: &Policy, service: Option<&Service>) -> Result<PortPairs, Refusal> {
    let backend = policy.target.ports();
    check_backend_ports(policy, backend)?;
    match &policy.matcher {
        Matcher::Address { ports, .. } => pair_listed(policy, ports),
        Matcher::Service { name, ports } => {
            let service = service.ok_or_else(|| no_service(policy, name))?;
            match ports {
                None => pair_all(policy, service),
                Some(ports) => {
                    ports.iter().try_for_each(|port| check_service_port(policy, service, port))?;
                    pair_listed(policy, ports)
                }
            }
        }
    }
}

fn no_service(policy: &Policy, name: &Name) -> Refusal {
    let message = format!(
        "there is no Service {}/{name} with a ClusterIP: the policy takes effect when it exists",
        policy.name.namespace
    );
    refusal(policy, RefusalReason::ServiceNotFound, message)
}

fn check_service_port(policy: &Policy, service: &Service, port: &DialledPort) -> Result<(), Refusal> {
    let has = service.ports.iter().any(|p| (p.port, p.protocol) == (port.port, port.protocol));
    let message =
        || format!("Service {} has no port {}/{}: {}", service.name, port.port, port.protocol, list_ports(service));
    if has { Ok(()) } else { Err(refusal(policy, RefusalReason::PortNotFound, message())) }
}

fn list_ports(service: &Service) -> String {
    list(service, |port| format!("{}/{}", port.port, port.protocol))
}

fn list(service: &Service, describe: impl Fn(&ServicePort) -> String) -> String {
    let named: Vec<String> = service.ports.iter().take(MAX_NAMED).map(describe).collect();
    match service.ports.len() - named.len() {
        0 => format!("it has {}", named.join(", ")),
        more => format!("it has {} and {more} more", named.join(", ")),
    }
}

fn check_backend_ports(policy: &Policy, ports: &[BackendPort]) -> Result<(), Refusal> {
    let bad = |why: String| Err(refusal(policy, RefusalReason::BadPorts, format!("backend.toPorts: {why}")));
    let unusable = |port: &BackendPort| match &port.port {
        PortChoice::Number(number) => *number == 0,
        PortChoice::Name(name) => name.is_empty() || matches!(policy.target, Target::Addresses { .. }),
    };
    match ports {
        [] => bad("at least one port is needed".into()),
        ports if ports.iter().any(unusable) => match policy.target {
            Target::Addresses { .. } => bad("an address has no named ports: give numbers from 1 to 65535".into()),
            _ => bad("a port is a number from 1 to 65535 or the name of a container port".into()),
        },
        ports => check_names(policy, "backend.toPorts", ports.iter().map(|p| (&p.name, p.protocol))),
    }
}

/// Several ports need distinct names.
fn check_names<'a>(
    policy: &Policy,
    field: &str,
    names: impl Iterator<Item = (&'a Name, Protocol)> + Clone,
) -> Result<(), Refusal> {
    let several = names.clone().count() > 1;
    let mut seen = BTreeSet::new();
    for (name, protocol) in names {
        let problem = match () {
            () if several && name.is_empty() => "each of several ports needs a name".to_owned(),
            () if !seen.insert((name, protocol)) => format!("two ports are called {name:?} for {protocol}"),
            () => continue,
        };
        return Err(refusal(policy, RefusalReason::BadPorts, format!("{field}: {problem}")));
    }
    Ok(())
}

fn pair_listed(policy: &Policy, dialled: &[DialledPort]) -> Result<PortPairs, Refusal> {
    check_dialled(policy, dialled)?;
    let backend = policy.target.ports();
    if let ([dialled], [backend]) = (dialled, backend) {
        return single(policy, dialled.clone(), backend);
    }
    let mut pairs = Vec::new();
    for port in dialled {
        let wanted = backend.iter().find(|b| (&b.name, b.protocol) == (&port.name, port.protocol));
        let backend = wanted.ok_or_else(|| unpaired(policy, "backend", &port.name, port.protocol))?;
        pairs.push(PortPair { dialled: port.clone(), backend: backend.clone(), single: false });
    }
    every_backend_used(policy, &pairs)?;
    Ok(PortPairs { pairs, skipped: Vec::new() })
}

fn check_dialled(policy: &Policy, dialled: &[DialledPort]) -> Result<(), Refusal> {
    let bad = |why: &str| Err(refusal(policy, RefusalReason::BadPorts, format!("frontend toPorts: {why}")));
    let numbers: BTreeSet<(u16, Protocol)> = dialled.iter().map(|p| (p.port, p.protocol)).collect();
    match dialled {
        [] => bad("at least one port is needed"),
        ports if ports.iter().any(|p| p.port == 0) => bad("a port is a number from 1 to 65535"),
        ports if numbers.len() < ports.len() => bad("a port and protocol is listed twice"),
        ports => check_names(policy, "frontend toPorts", ports.iter().map(|p| (&p.name, p.protocol))),
    }
}

fn single(policy: &Policy, dialled: DialledPort, backend: &BackendPort) -> Result<PortPairs, Refusal> {
    let (wanted, got) = (dialled.protocol, backend.protocol);
    if wanted != got {
        let message = format!("the frontend port is {wanted} and the backend port {got}: give both the same protocol");
        return Err(refusal(policy, RefusalReason::BadPorts, message));
    }
    let names = [&dialled.name, &backend.name];
    if names.iter().all(|name| !name.is_empty()) && names[0] != names[1] {
        return Err(unpaired(policy, "backend", &dialled.name, wanted));
    }
    Ok(PortPairs { pairs: vec![PortPair { dialled, backend: backend.clone(), single: true }], skipped: Vec::new() })
}

fn unpaired(policy: &Policy, side: &str, name: &Name, protocol: Protocol) -> Refusal {
    let message = format!("no {side} port is called {name:?} for {protocol}: ports are paired by name and protocol");
    refusal(policy, RefusalReason::BadPorts, message)
}

fn every_backend_used(policy: &Policy, pairs: &[PortPair]) -> Result<(), Refusal> {
    let unused = policy.target.ports().iter().find(|port| !pairs.iter().any(|pair| pair.backend == **port));
    unused.map_or(Ok(()), |port| Err(unpaired(policy, "frontend", &port.name, port.protocol)))
}

/// Without listed ports, the policy covers every port of the Service by name. A port without a backend port stays with
/// the Service: it may have been added later, and must not disable the whole policy.
fn pair_all(policy: &Policy, service: &Service) -> Result<PortPairs, Refusal> {
    let backend = policy.target.ports();
    if let ([port], [backend]) = (&*service.ports, backend) {
        return single(policy, dialled_of(port), backend);
    }
    let mut found = PortPairs::default();
    for port in &service.ports {
        match backend.iter().find(|b| (&b.name, b.protocol) == (&port.name, port.protocol)) {
            Some(backend) => {
                let dialled = dialled_of(port);
                found.pairs.push(PortPair { dialled, backend: backend.clone(), single: backend_is_alone(policy) });
            }
            None => found.skipped.push(port_without_backend(policy, service, port)),
        }
    }
    let unused = backend.iter().find(|port| !found.pairs.iter().any(|pair| pair.backend == **port));
    match unused {
        Some(port) => Err(port_not_found(policy, service, port)),
        None => Ok(found),
    }
}

fn backend_is_alone(policy: &Policy) -> bool {
    policy.target.ports().len() == 1
}

fn dialled_of(port: &ServicePort) -> DialledPort {
    DialledPort { name: port.name.clone(), port: port.port, protocol: port.protocol }
}

fn port_without_backend(policy: &Policy, service: &Service, port: &ServicePort) -> Refusal {
    let (number, protocol, name) = (port.port, port.protocol, &port.name);
    let message = format!(
        "port {number}/{protocol} of Service {} is not covered: no backend port is called {name:?} for {protocol}",
        service.name
    );
    refusal(policy, RefusalReason::PortWithoutBackend, message)
}

fn port_not_found(policy: &Policy, service: &Service, port: &BackendPort) -> Refusal {
    let message = format!(
        "Service {} has no port called {:?} for {}: {}",
        service.name,
        port.name,
        port.protocol,
        list(service, |port| format!("{:?}/{}", port.name, port.protocol))
    );
    refusal(policy, RefusalReason::PortNotFound, message)
}
