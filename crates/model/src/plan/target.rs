//! The backends of a policy: ready pods of this node, pods that the controller published, or fixed addresses.

use super::BackendPlan;
use super::policy::PolicyContext;
use super::port_pair::{PortPair, refusal};
use super::weight::weigh;
use crate::address::{Address, Family};
use crate::cluster::path::{EndpointPath, UnreachableReason};
use crate::name::Name;
use crate::object::{ContainerPort, Endpoint, Node, Pod, PodName};
use crate::policy::{Policy, PolicyShape, PolicySlice, PortChoice, RedirectMode, Target};
use crate::refusal::{Refusal, RefusalReason};
use crate::rules::HostRole;
use crate::select::Candidate;
use crate::selector::Selector;

/// The backends of one frontend, sorted. Only addresses of the frontend's family, because a socket cannot change its
/// family.
pub(super) fn backends(
    policy: &Policy,
    context: &PolicyContext<'_>,
    pair: &PortPair,
    family: Family,
    refusals: &mut Vec<Refusal>,
) -> Vec<BackendPlan> {
    let shape = shape_of(context.slices, policy);
    let mut found = match (&policy.target, shape) {
        (Target::LocalPods { selector, .. }, _) => local_pods(policy, selector, context, pair, family, refusals),
        (Target::Addresses { addresses, .. }, _) => fixed_addresses(policy, addresses, context, pair, family, refusals),
        (Target::Pods { .. }, Some(shape)) => Published { policy, context, pair, family, shape }.backends(refusals),
        (Target::Pods { .. }, None) => Vec::new(),
    };
    found.sort();
    if shape.is_some_and(|shape| shape.mode == RedirectMode::NodeProxy) {
        // Several pods may share the proxy of one node.
        weigh(found)
    } else {
        found.dedup();
        found
    }
}

/// The number of backends in the family that has most: ready pods or fixed addresses that some port of the policy leads to.
/// The controller counts in the same way (`Publisher::backends`).
pub(super) fn count_backends(
    policy: &Policy,
    context: &PolicyContext<'_>,
    pairs: &[PortPair],
    families: &[Family],
) -> usize {
    families.iter().map(|family| count_in_family(policy, context, pairs, *family)).max().unwrap_or(0)
}

fn count_in_family(policy: &Policy, context: &PolicyContext<'_>, pairs: &[PortPair], family: Family) -> usize {
    match (&policy.target, shape_of(context.slices, policy)) {
        (Target::LocalPods { selector, .. }, _) => {
            let pods = selected(policy, selector, context).filter(|pod| may_join(pod, context));
            let pods = pods.filter(|pod| pod.addresses.iter().any(|address| address.family() == family));
            pods.filter(|pod| pairs.iter().any(|pair| port_of(pod, pair).is_ok())).count()
        }
        (Target::Addresses { addresses, .. }, _) => {
            let of_family = addresses.iter().filter(|address| address.family() == family);
            of_family.filter(|address| !context.path.is_own_address(**address)).count()
        }
        (Target::Pods { .. }, Some(shape)) => {
            let published = |pair| Published { policy, context, pair, family, shape };
            let leads_to = |slice: &PolicySlice, endpoint: &Endpoint| {
                pairs.iter().map(published).any(|published| {
                    let mut ports = published.ports(slice).into_iter();
                    published.is_current(slice) && ports.any(|port| published.backend(endpoint, port).is_ok())
                })
            };
            let endpoints = context.slices.iter().flat_map(|slice| slice.endpoints.iter().map(move |e| (slice, e)));
            endpoints.filter(|(slice, endpoint)| endpoint.ready && leads_to(slice, endpoint)).count()
        }
        (Target::Pods { .. }, None) => 0,
    }
}

fn fixed_addresses(
    policy: &Policy,
    addresses: &[Address],
    context: &PolicyContext<'_>,
    pair: &PortPair,
    family: Family,
    refusals: &mut Vec<Refusal>,
) -> Vec<BackendPlan> {
    let PortChoice::Number(port) = pair.backend.port else { return Vec::new() };
    let of_family = addresses.iter().copied().filter(|a| a.family() == family);
    let (own, others): (Vec<Address>, Vec<Address>) =
        of_family.partition(|address| context.path.is_own_address(*address));
    let left_out = |address: Address| format!("address {address} is left out: {}", UnreachableReason::OwnAddress);
    refusals.extend(own.into_iter().map(|address| refusal(policy, RefusalReason::OwnAddress, left_out(address))));
    others.into_iter().map(|address| BackendPlan { address, port, node: None }).collect()
}

// ---- pods of this node ----

/// The selected pods in the policy's namespace. `pods` is ordered by cluster, namespace and name.
fn selected<'a>(
    policy: &'a Policy,
    selector: &'a Selector,
    context: &PolicyContext<'a>,
) -> impl Iterator<Item = &'a Pod> {
    let (cluster, namespace) = (&policy.name.cluster, &policy.name.namespace);
    let first = PodName { cluster: cluster.clone(), namespace: namespace.clone(), name: "".into() };
    let here = move |(name, _): &(&PodName, &Pod)| name.cluster == *cluster && name.namespace == *namespace;
    context.pods.range(first..).take_while(here).map(|(_, pod)| pod).filter(|pod| selector.matches(&pod.labels))
}

/// The number of selected pods on this node.
pub(super) fn selected_count(policy: &Policy, context: &PolicyContext<'_>) -> u64 {
    match &policy.target {
        Target::LocalPods { selector, .. } => selected(policy, selector, context).count() as u64,
        _ => 0,
    }
}

/// The cgroup ids of pods that must not be redirected to themselves. Pods that are not ready are included, because a
/// starting pod also dials its upstream.
pub(super) fn members(policy: &Policy, context: &PolicyContext<'_>) -> Vec<u64> {
    let Target::LocalPods { selector, .. } = &policy.target else { return Vec::new() };
    let cgroups = selected(policy, selector, context).filter_map(|pod| context.cgroups.get(&pod.uid).copied());
    let mut all: Vec<u64> = cgroups.collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A pod joins only when its cgroup is known; before that, the kernel would redirect the pod to itself. A pod without a
/// UID comes from a manifest: it has no kubelet and no cgroup.
fn may_join(pod: &Pod, context: &PolicyContext<'_>) -> bool {
    pod.ready && (pod.uid.is_empty() || context.cgroups.contains_key(&pod.uid))
}

fn local_pods(
    policy: &Policy,
    selector: &Selector,
    context: &PolicyContext<'_>,
    pair: &PortPair,
    family: Family,
    refusals: &mut Vec<Refusal>,
) -> Vec<BackendPlan> {
    let mut found = Vec::new();
    for pod in selected(policy, selector, context).filter(|pod| may_join(pod, context)) {
        let Some(address) = pod.addresses.iter().copied().find(|a| a.family() == family) else { continue };
        match port_of(pod, pair) {
            Ok(port) => found.push(BackendPlan { address, port, node: pod.node.clone() }),
            Err(name) => refusals.push(missing_port(policy, pod, pair, name)),
        }
    }
    found
}

/// A container port is looked up by name in each pod, because two versions of a pod may use different numbers.
fn port_of<'a>(pod: &Pod, pair: &'a PortPair) -> Result<u16, &'a Name> {
    match &pair.backend.port {
        PortChoice::Number(port) => Ok(*port),
        PortChoice::Name(name) => {
            let is_named = |p: &&ContainerPort| p.name == *name && p.protocol == pair.backend.protocol;
            pod.ports.iter().find(is_named).map(|p| p.port).ok_or(name)
        }
    }
}

fn missing_port(policy: &Policy, pod: &Pod, pair: &PortPair, name: &Name) -> Refusal {
    let message = format!(
        "pod {}/{} has no container port called {name:?} for {}: it is left out",
        pod.name.namespace, pod.name.name, pair.backend.protocol
    );
    refusal(policy, RefusalReason::PodWithoutPort, message)
}

// ---- published pods ----

struct Published<'a> {
    policy: &'a Policy,
    context: &'a PolicyContext<'a>,
    pair: &'a PortPair,
    family: Family,
    shape: PolicyShape,
}

/// The shape of the slices to use. After a change of mode or ports, the old slices serve until the first new slice
/// exists. Each slice is read according to its own shape, because a pod port of one mode would be a wrong host port in
/// another.
pub(crate) fn shape_of(slices: &[PolicySlice], policy: &Policy) -> Option<PolicyShape> {
    let wanted = policy.shape()?;
    let mut shapes = slices.iter().filter(|slice| slice.uid == policy.uid).filter_map(|slice| slice.shape);
    let first = shapes.clone().next()?;
    Some(if shapes.any(|shape| shape == wanted) { wanted } else { first })
}

impl Published<'_> {
    /// The slice belongs to this policy, and not to an earlier one of the same name.
    fn is_current(&self, slice: &PolicySlice) -> bool {
        slice.uid == self.policy.uid && slice.shape == Some(self.shape) && slice.family == self.family
    }

    fn backends(&self, refusals: &mut Vec<Refusal>) -> Vec<BackendPlan> {
        let mut found = Vec::new();
        for slice in self.context.slices.iter().filter(|slice| self.is_current(slice)) {
            for port in self.ports(slice) {
                for endpoint in slice.endpoints.iter().filter(|e| e.ready) {
                    match self.backend(endpoint, port) {
                        Ok(backend) => found.push(backend),
                        Err(refusal) => refusals.push(refusal),
                    }
                }
            }
        }
        found
    }

    fn ports(&self, slice: &PolicySlice) -> Vec<u16> {
        let PortPair { dialled, backend, single } = self.pair;
        let alone = *single && slice.ports.len() == 1;
        let named = |name: &Name| alone || *name == dialled.name || *name == backend.name;
        slice.ports.iter().filter(|p| p.protocol == backend.protocol && named(&p.name)).map(|p| p.port).collect()
    }

    /// The backend that is dialled for a published pod.
    fn backend(&self, endpoint: &Endpoint, port: u16) -> Result<BackendPlan, Refusal> {
        let (address, port) = match self.shape.mode {
            RedirectMode::PodEndpoint => (self.pod_address(endpoint)?, port),
            RedirectMode::HostPort => (self.node_address(endpoint)?, port),
            RedirectMode::NodeProxy => (self.entry(endpoint)?, self.pair.dialled.port),
        };
        Ok(BackendPlan { address, port, node: endpoint.node.clone() })
    }

    fn node<'e>(&self, endpoint: &'e Endpoint) -> Result<&'e Name, Refusal> {
        let message = || format!("pod {} names no node: it is left out", endpoint.address);
        endpoint.node.as_ref().ok_or_else(|| refusal(self.policy, RefusalReason::NodeWithoutAddress, message()))
    }

    fn missing(&self, node: &Name, what: &str) -> Refusal {
        let message = format!("node {node} has no {what} of family {}: its pods are left out", self.family);
        refusal(self.policy, RefusalReason::NodeWithoutAddress, message)
    }

    /// Without the pod network, a pod is reached at its own address or not at all, because a policy has no nodePort.
    fn pod_address(&self, endpoint: &Endpoint) -> Result<Address, Refusal> {
        let context = &self.context.path;
        if context.host_role == HostRole::Node {
            return Ok(endpoint.address);
        }
        let here = context.host_role == HostRole::Edge && endpoint.node.as_ref() == Some(&self.context.rules.node_name);
        let pod = Candidate::new(endpoint, 0, endpoint.node.clone(), here);
        match context.path(&pod, 0) {
            EndpointPath::Direct => Ok(endpoint.address),
            EndpointPath::Node { .. } => Err(self.left_out(endpoint, UnreachableReason::NoNodePort)),
            EndpointPath::Unreachable(why) => Err(self.left_out(endpoint, why)),
        }
    }

    fn left_out(&self, endpoint: &Endpoint, why: UnreachableReason) -> Refusal {
        refusal(self.policy, RefusalReason::Unreachable, format!("pod {} is left out: {why}", endpoint.address))
    }

    fn node_address(&self, endpoint: &Endpoint) -> Result<Address, Refusal> {
        let name = self.node(endpoint)?;
        let context = self.context;
        if context.path.host_role != HostRole::Node {
            let node = context.path.nodes.get(name);
            let address = node.and_then(|node| context.path.node_address(node, self.family));
            return address.ok_or_else(|| self.missing(name, "address"));
        }
        let own = || {
            let mut addresses =
                context.rules.own_addresses.iter().copied().filter(|_| *name == context.rules.node_name);
            addresses.find(|a| a.family() == self.family)
        };
        let primary = |node: &Node| node.primary(self.family);
        context.path.nodes.get(name).map_or_else(own, primary).ok_or_else(|| self.missing(name, "address"))
    }

    fn entry(&self, endpoint: &Endpoint) -> Result<Address, Refusal> {
        let name = self.node(endpoint)?;
        let entries = self.context.path.nodes.get(name).into_iter().flat_map(|node| node.entry.iter().copied());
        let mut of_family = entries.filter(|a| a.family() == self.family && !self.context.path.is_own_address(*a));
        of_family.next().ok_or_else(|| self.missing(name, "entry address"))
    }
}
