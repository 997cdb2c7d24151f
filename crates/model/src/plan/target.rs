//! Whom a policy's dials may become: ready pods of this node, what the controller published, or fixed addresses.

use super::BackendPlan;
use super::pair::{Pair, refusal};
use super::policy::Ground;
use super::weight::weigh;
use crate::address::{Address, Family};
use crate::fact::{ContainerPort, Endpoint, Node, Pod, PodName, Refusal};
use crate::name::Name;
use crate::policy::{Policy, PolicySlice, PortChoice, RedirectMode, Shape, Target};
use crate::rules::StandPoint;
use crate::select::Candidate;
use crate::selector::Selector;
use crate::stand::way::{Way, Why};

/// Of one frontend, sorted; those of its family only, because a socket cannot change its own.
pub(super) fn backends(
    policy: &Policy,
    ground: &Ground<'_>,
    pair: &Pair,
    family: Family,
    refusals: &mut Vec<Refusal>,
) -> Vec<BackendPlan> {
    let shape = shape_of(ground.slices, policy);
    let mut found = match (&policy.target, shape) {
        (Target::LocalPods { selector, .. }, _) => local_pods(policy, selector, ground, pair, family, refusals),
        (Target::Addresses { addresses, .. }, _) => fixed(policy, addresses, ground, pair, family, refusals),
        (Target::Pods { .. }, Some(shape)) => Published { policy, ground, pair, family, shape }.backends(refusals),
        (Target::Pods { .. }, None) => Vec::new(),
    };
    found.sort();
    if shape.is_some_and(|shape| shape.mode == RedirectMode::NodeProxy) {
        // Several pods behind one entry.
        weigh(found)
    } else {
        found.dedup();
        found
    }
}

fn fixed(
    policy: &Policy,
    addresses: &[Address],
    ground: &Ground<'_>,
    pair: &Pair,
    family: Family,
    refusals: &mut Vec<Refusal>,
) -> Vec<BackendPlan> {
    let PortChoice::Number(port) = pair.backend.port else { return Vec::new() };
    let of_family = addresses.iter().copied().filter(|a| a.family() == family);
    let (ours, others): (Vec<Address>, Vec<Address>) = of_family.partition(|address| ground.way.is_ours(*address));
    let left_out = |address: Address| format!("address {address} is left out: {}", Why::OwnAddress);
    refusals.extend(ours.into_iter().map(|address| refusal(policy, "ownAddress", left_out(address))));
    others.into_iter().map(|address| BackendPlan { address, port, node: None }).collect()
}

// ---- pods of this node ----

/// Of the policy's namespace. `pods` is in the order of cluster, namespace and name.
fn selected<'a>(policy: &'a Policy, selector: &'a Selector, ground: &Ground<'a>) -> impl Iterator<Item = &'a Pod> {
    let (cluster, namespace) = (&policy.name.cluster, &policy.name.namespace);
    let first = PodName { cluster: cluster.clone(), namespace: namespace.clone(), name: "".into() };
    let here = move |(name, _): &(&PodName, &Pod)| name.cluster == *cluster && name.namespace == *namespace;
    ground.pods.range(first..).take_while(here).map(|(_, pod)| pod).filter(|pod| selector.matches(&pod.labels))
}

/// Pods that must not be sent to themselves, ready or not: what starts up asks upstream too.
pub(super) fn members(policy: &Policy, ground: &Ground<'_>) -> Vec<u64> {
    let Target::LocalPods { selector, .. } = &policy.target else { return Vec::new() };
    let cgroups = selected(policy, selector, ground).filter_map(|pod| ground.cgroups.get(&pod.uid).copied());
    let mut all: Vec<u64> = cgroups.collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Before its cgroup is known it would be sent to itself. A pod without a uid was written by hand: no kubelet, no cgroup.
fn may_join(pod: &Pod, ground: &Ground<'_>) -> bool {
    pod.ready && (pod.uid.is_empty() || ground.cgroups.contains_key(&pod.uid))
}

fn local_pods(
    policy: &Policy,
    selector: &Selector,
    ground: &Ground<'_>,
    pair: &Pair,
    family: Family,
    refusals: &mut Vec<Refusal>,
) -> Vec<BackendPlan> {
    let mut found = Vec::new();
    for pod in selected(policy, selector, ground).filter(|pod| may_join(pod, ground)) {
        let Some(address) = pod.addresses.iter().copied().find(|a| a.family() == family) else { continue };
        match port_of(pod, pair) {
            Ok(port) => found.push(BackendPlan { address, port, node: pod.node.clone() }),
            Err(name) => refusals.push(without_port(policy, pod, pair, name)),
        }
    }
    found
}

/// A container port's name is looked up pod by pod: two versions of a pod may mean two numbers by it.
fn port_of<'a>(pod: &Pod, pair: &'a Pair) -> Result<u16, &'a Name> {
    match &pair.backend.port {
        PortChoice::Number(port) => Ok(*port),
        PortChoice::Name(name) => {
            let called = |p: &&ContainerPort| p.name == *name && p.protocol == pair.backend.protocol;
            pod.ports.iter().find(called).map(|p| p.port).ok_or(name)
        }
    }
}

fn without_port(policy: &Policy, pod: &Pod, pair: &Pair, name: &Name) -> Refusal {
    let message = format!(
        "pod {}/{} has no container port called {name:?} for {}: it is left out",
        pod.name.namespace, pod.name.name, pair.backend.protocol
    );
    refusal(policy, "podWithoutPort", message)
}

// ---- what was published ----

struct Published<'a> {
    policy: &'a Policy,
    ground: &'a Ground<'a>,
    pair: &'a Pair,
    family: Family,
    shape: Shape,
}

/// The shape of the slices that are read. After a change of mode or ports those of before serve until the first new one is
/// there, each read by what it was made for: a pod's port under another mode would be a host's port that nobody meant.
pub(crate) fn shape_of(slices: &[PolicySlice], policy: &Policy) -> Option<Shape> {
    let wanted = policy.shape()?;
    let mut shapes = slices.iter().filter(|slice| slice.uid == policy.uid).filter_map(|slice| slice.shape);
    let first = shapes.clone().next()?;
    Some(if shapes.any(|shape| shape == wanted) { wanted } else { first })
}

impl Published<'_> {
    /// Of this policy, not of one that had its name before.
    fn counts(&self, slice: &PolicySlice) -> bool {
        slice.uid == self.policy.uid && slice.shape == Some(self.shape) && slice.family == self.family
    }

    fn backends(&self, refusals: &mut Vec<Refusal>) -> Vec<BackendPlan> {
        let mut found = Vec::new();
        for slice in self.ground.slices.iter().filter(|slice| self.counts(slice)) {
            for port in self.ports(slice) {
                for endpoint in slice.endpoints.iter().filter(|e| e.ready) {
                    match self.stand_in(endpoint, port) {
                        Ok(backend) => found.push(backend),
                        Err(refusal) => refusals.push(refusal),
                    }
                }
            }
        }
        found
    }

    fn ports(&self, slice: &PolicySlice) -> Vec<u16> {
        let Pair { dialled, backend, single } = self.pair;
        let alone = *single && slice.ports.len() == 1;
        let named = |name: &Name| alone || *name == dialled.name || *name == backend.name;
        slice.ports.iter().filter(|p| p.protocol == backend.protocol && named(&p.name)).map(|p| p.port).collect()
    }

    /// What is dialled instead of the pod.
    fn stand_in(&self, endpoint: &Endpoint, port: u16) -> Result<BackendPlan, Refusal> {
        let (address, port) = match self.shape.mode {
            RedirectMode::PodEndpoint => (self.pod_address(endpoint)?, port),
            RedirectMode::HostPort => (self.node_address(endpoint)?, port),
            RedirectMode::NodeProxy => (self.entry(endpoint)?, self.pair.dialled.port),
        };
        Ok(BackendPlan { address, port, node: endpoint.node.clone() })
    }

    fn node<'e>(&self, endpoint: &'e Endpoint) -> Result<&'e Name, Refusal> {
        let message = || format!("pod {} names no node: it is left out", endpoint.address);
        endpoint.node.as_ref().ok_or_else(|| refusal(self.policy, "nodeWithoutAddress", message()))
    }

    fn missing(&self, node: &Name, what: &str) -> Refusal {
        let message = format!("node {node} has no {what} of family {}: its pods are left out", self.family);
        refusal(self.policy, "nodeWithoutAddress", message)
    }

    /// Where there is no pod network, a pod is reached by its own address or not at all: a policy has no nodePort.
    fn pod_address(&self, endpoint: &Endpoint) -> Result<Address, Refusal> {
        let ground = &self.ground.way;
        if ground.stand == StandPoint::Node {
            return Ok(endpoint.address);
        }
        let here = ground.stand == StandPoint::Edge && endpoint.node.as_ref() == Some(&self.ground.rules.node_name);
        let pod = Candidate::new(endpoint, 0, endpoint.node.clone(), here);
        match ground.way(&pod, 0) {
            Way::Direct => Ok(endpoint.address),
            Way::Node { .. } => Err(self.left_out(endpoint, Why::NoNodePort)),
            Way::Unreachable(why) => Err(self.left_out(endpoint, why)),
        }
    }

    fn left_out(&self, endpoint: &Endpoint, why: Why) -> Refusal {
        refusal(self.policy, "unreachable", format!("pod {} is left out: {why}", endpoint.address))
    }

    fn node_address(&self, endpoint: &Endpoint) -> Result<Address, Refusal> {
        let name = self.node(endpoint)?;
        let ground = self.ground;
        if ground.way.stand != StandPoint::Node {
            let node = ground.way.nodes.get(name);
            let address = node.and_then(|node| ground.way.node_address(node, self.family));
            return address.ok_or_else(|| self.missing(name, "address"));
        }
        let own = || {
            let mut addresses = ground.rules.own_addresses.iter().copied().filter(|_| *name == ground.rules.node_name);
            addresses.find(|a| a.family() == self.family)
        };
        let said = |node: &Node| node.primary(self.family);
        ground.way.nodes.get(name).map_or_else(own, said).ok_or_else(|| self.missing(name, "address"))
    }

    fn entry(&self, endpoint: &Endpoint) -> Result<Address, Refusal> {
        let name = self.node(endpoint)?;
        let entries = self.ground.way.nodes.get(name).into_iter().flat_map(|node| node.entry.iter().copied());
        let mut of_family = entries.filter(|a| a.family() == self.family && !self.ground.way.is_ours(*a));
        of_family.next().ok_or_else(|| self.missing(name, "entry address"))
    }
}
