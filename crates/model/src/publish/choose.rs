//! What a pod that a policy selects is published as: an endpoint a family, and the ports at which it is reached.

use crate::address::{Address, Family};
use crate::fact::{ContainerPort, Endpoint, Pod, SlicePort};
use crate::policy::{BackendPort, Matcher, Policy, PortChoice, RedirectMode, Shape, Target};

/// Why a pod that is selected and ready is not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// A short word for metrics and conditions.
    pub reason: &'static str,
    pub message: String,
}

/// What the endpoints of one slice have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub family: Family,
    /// Of the policy: with another one, everything is published anew.
    pub shape: Option<Shape>,
    pub ports: Box<[SlicePort]>,
}

pub fn choose(policy: &Policy, pod: &Pod) -> Result<Vec<(Group, Endpoint)>, LeftOut> {
    let (ports, shape) = (ports(&policy.target, pod)?, policy.shape());
    let endpoints = families(&policy.matcher).iter().filter_map(|family| {
        let address = pod.addresses.iter().copied().find(|address| address.family() == *family)?;
        Some((Group { family: *family, shape, ports: ports.clone() }, endpoint(pod, address)))
    });
    let endpoints: Vec<_> = endpoints.collect();
    if endpoints.is_empty() { Err(no_address(&policy.matcher)) } else { Ok(endpoints) }
}

/// A virtual address has one family; a Service may have both, and which is not known here.
fn families(matcher: &Matcher) -> &'static [Family] {
    match matcher {
        Matcher::Address { address, .. } if address.family() == Family::V4 => &[Family::V4],
        Matcher::Address { .. } => &[Family::V6],
        Matcher::Service { .. } => &Family::BOTH,
    }
}

fn no_address(matcher: &Matcher) -> LeftOut {
    let families: Vec<String> = families(matcher).iter().map(ToString::to_string).collect();
    LeftOut { reason: "noAddress", message: format!("it has no {} address", families.join(" or ")) }
}

fn endpoint(pod: &Pod, address: Address) -> Endpoint {
    let node = pod.node.clone();
    Endpoint { address, ready: true, serving: true, terminating: false, node, hints: None }
}

/// Those that the pod has; one that has none of them is of no use.
fn ports(target: &Target, pod: &Pod) -> Result<Box<[SlicePort]>, LeftOut> {
    let (mode, wanted): (RedirectMode, &[BackendPort]) = match target {
        Target::Pods { mode, ports, .. } => (*mode, ports),
        Target::LocalPods { ports, .. } => (RedirectMode::PodEndpoint, ports),
        Target::Addresses { .. } => (RedirectMode::PodEndpoint, &[]),
    };
    let found: Vec<Result<SlicePort, LeftOut>> = wanted.iter().map(|port| resolve(mode, port, pod)).collect();
    let kept: Box<[SlicePort]> = found.iter().filter_map(|port| port.as_ref().ok()).cloned().collect();
    match found.into_iter().find_map(Result::err) {
        Some(why) if kept.is_empty() => Err(why),
        _ => Ok(kept),
    }
}

fn resolve(mode: RedirectMode, wanted: &BackendPort, pod: &Pod) -> Result<SlicePort, LeftOut> {
    let port = match mode {
        RedirectMode::PodEndpoint | RedirectMode::NodeProxy => own_port(wanted, pod),
        RedirectMode::HostPort => host_port(wanted, pod),
    }?;
    Ok(SlicePort { name: wanted.name.clone(), protocol: wanted.protocol, port })
}

fn own_port(wanted: &BackendPort, pod: &Pod) -> Result<u16, LeftOut> {
    match &wanted.port {
        PortChoice::Number(number) => Ok(*number),
        PortChoice::Name(_) => container_port(wanted, pod).map(|port| port.port),
    }
}

/// A number is a container port, as everywhere, or the host port itself where no container port has that number. It must
/// be declared: what a node answers at its own address on an undeclared port is anybody's guess.
fn host_port(wanted: &BackendPort, pod: &Pod) -> Result<u16, LeftOut> {
    let port = container_port(wanted, pod)?;
    let none = || LeftOut {
        reason: "noHostPort",
        message: format!("its container port {} ({}) has no hostPort", show(wanted), wanted.protocol),
    };
    Some(port.host_port).filter(|port| *port != 0).ok_or_else(none)
}

fn container_port<'a>(wanted: &BackendPort, pod: &'a Pod) -> Result<&'a ContainerPort, LeftOut> {
    let find = |is: &dyn Fn(&ContainerPort) -> bool| {
        pod.ports.iter().find(|port| port.protocol == wanted.protocol && is(port))
    };
    let found = match &wanted.port {
        PortChoice::Name(name) => find(&|port| port.name == *name),
        PortChoice::Number(number) => find(&|port| port.port == *number).or_else(|| find(&|p| p.host_port == *number)),
    };
    found.ok_or_else(|| LeftOut {
        reason: "noPort",
        message: format!("none of its containers declares the port {} ({})", show(wanted), wanted.protocol),
    })
}

fn show(wanted: &BackendPort) -> String {
    match &wanted.port {
        PortChoice::Number(number) => number.to_string(),
        PortChoice::Name(name) => format!("{name:?}"),
    }
}
