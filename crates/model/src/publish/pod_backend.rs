//! The endpoints and ports with which a selected pod is published.

use crate::address::{Address, Family};
use crate::object::{ContainerPort, Endpoint, Pod, SlicePort};
use crate::policy::{BackendPort, Matcher, Policy, PolicyShape, PortChoice, RedirectMode, Target};
use crate::refusal::RefusalReason;

/// Why a ready selected pod is not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProblem {
    pub reason: RefusalReason,
    pub message: String,
}

/// What all endpoints of one slice have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceGroup {
    pub family: Family,
    /// The shape of the policy. When it changes, all endpoints are published again.
    pub shape: Option<PolicyShape>,
    pub ports: Box<[SlicePort]>,
}

pub fn pod_backend(policy: &Policy, pod: &Pod) -> Result<Vec<(SliceGroup, Endpoint)>, PodProblem> {
    let (ports, shape) = (ports(&policy.target, pod)?, policy.shape());
    let endpoints = families(&policy.matcher).iter().filter_map(|family| {
        let address = pod.addresses.iter().copied().find(|address| address.family() == *family)?;
        Some((SliceGroup { family: *family, shape, ports: ports.clone() }, endpoint(pod, address)))
    });
    let endpoints: Vec<_> = endpoints.collect();
    if endpoints.is_empty() { Err(no_address(&policy.matcher)) } else { Ok(endpoints) }
}

/// A virtual address has one family. A Service may have both; its families are not known here.
fn families(matcher: &Matcher) -> &'static [Family] {
    match matcher {
        Matcher::Address { address, .. } if address.family() == Family::V4 => &[Family::V4],
        Matcher::Address { .. } => &[Family::V6],
        Matcher::Service { .. } => &Family::BOTH,
    }
}

fn no_address(matcher: &Matcher) -> PodProblem {
    let families: Vec<String> = families(matcher).iter().map(ToString::to_string).collect();
    PodProblem { reason: RefusalReason::NoAddress, message: format!("it has no {} address", families.join(" or ")) }
}

fn endpoint(pod: &Pod, address: Address) -> Endpoint {
    let node = pod.node.clone();
    Endpoint { node, ..Endpoint::ready(address) }
}

/// The ports that the pod has. A pod without any of the ports is not published.
fn ports(target: &Target, pod: &Pod) -> Result<Box<[SlicePort]>, PodProblem> {
    let (mode, wanted): (RedirectMode, &[BackendPort]) = match target {
        Target::Pods { mode, ports, .. } => (*mode, ports),
        Target::LocalPods { ports, .. } => (RedirectMode::PodEndpoint, ports),
        Target::Addresses { .. } => (RedirectMode::PodEndpoint, &[]),
    };
    let found: Vec<Result<SlicePort, PodProblem>> = wanted.iter().map(|port| resolve_port(mode, port, pod)).collect();
    let kept: Box<[SlicePort]> = found.iter().filter_map(|port| port.as_ref().ok()).cloned().collect();
    match found.into_iter().find_map(Result::err) {
        Some(why) if kept.is_empty() => Err(why),
        _ => Ok(kept),
    }
}

fn resolve_port(mode: RedirectMode, wanted: &BackendPort, pod: &Pod) -> Result<SlicePort, PodProblem> {
    let port = match mode {
        RedirectMode::PodEndpoint | RedirectMode::NodeProxy => own_port(wanted, pod),
        RedirectMode::HostPort => host_port(wanted, pod),
    }?;
    Ok(SlicePort { name: wanted.name.clone(), protocol: wanted.protocol, port })
}

fn own_port(wanted: &BackendPort, pod: &Pod) -> Result<u16, PodProblem> {
    match &wanted.port {
        PortChoice::Number(number) => Ok(*number),
        PortChoice::Name(_) => container_port(wanted, pod).map(|port| port.port),
    }
}

/// A number is a container port, or a host port if no container port has that number. It must be declared, because an
/// undeclared port at the node's own address may belong to any process.
fn host_port(wanted: &BackendPort, pod: &Pod) -> Result<u16, PodProblem> {
    let port = container_port(wanted, pod)?;
    let none = || PodProblem {
        reason: RefusalReason::NoHostPort,
        message: format!("its container port {} ({}) has no hostPort", display_port(wanted), wanted.protocol),
    };
    Some(port.host_port).filter(|port| *port != 0).ok_or_else(none)
}

fn container_port<'a>(wanted: &BackendPort, pod: &'a Pod) -> Result<&'a ContainerPort, PodProblem> {
    let find = |is: &dyn Fn(&ContainerPort) -> bool| {
        pod.ports.iter().find(|port| port.protocol == wanted.protocol && is(port))
    };
    let found = match &wanted.port {
        PortChoice::Name(name) => find(&|port| port.name == *name),
        PortChoice::Number(number) => find(&|port| port.port == *number).or_else(|| find(&|p| p.host_port == *number)),
    };
    found.ok_or_else(|| PodProblem {
        reason: RefusalReason::NoPort,
        message: format!("none of its containers declares the port {} ({})", display_port(wanted), wanted.protocol),
    })
}

fn display_port(wanted: &BackendPort) -> String {
    match &wanted.port {
        PortChoice::Number(number) => number.to_string(),
        PortChoice::Name(name) => format!("{name:?}"),
    }
}
