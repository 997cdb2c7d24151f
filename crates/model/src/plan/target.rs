//! Whom a policy's dials may become: ready pods of this node, what the controller published, or fixed addresses.

use super::BackendPlan;
use super::pair::{Pair, refusal};
use super::policy::Ground;
use crate::address::{Address, Family};
use crate::fact::{ContainerPort, Endpoint, Node, Pod, PodName, Refusal};
use crate::name::Name;
use crate::policy::{Policy, PolicySlice, PortChoice, RedirectMode, Shape, Target};
use crate::selector::Selector;
use std::collections::BTreeMap;

/// A weight is a number of slots.
const MOST_SLOTS: usize = 256;

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
        (Target::Addresses { addresses, .. }, _) => fixed(addresses, pair, family),
        (Target::Pods { .. }, Some(shape)) => Published { policy, ground, pair, family, shape }.backends(refusals),
        (Target::Pods { .. }, None) => Vec::new(),
    };
    found.sort();
    if shape.is_some_and(|shape| shape.mode == RedirectMode::NodeProxy) {
        weigh(found)
    } else {
        found.dedup();
        found
    }
}

fn fixed(addresses: &[Address], pair: &Pair, family: Family) -> Vec<BackendPlan> {
    let PortChoice::Number(port) = pair.backend.port else { return Vec::new() };
    let of_family = addresses.iter().filter(|a| a.family() == family);
    of_family.map(|address| BackendPlan { address: *address, port, node: None }).collect()
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
            RedirectMode::PodEndpoint => (endpoint.address, port),
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

    fn node_address(&self, endpoint: &Endpoint) -> Result<Address, Refusal> {
        let name = self.node(endpoint)?;
        let ground = self.ground;
        let own = || {
            let mut addresses = ground.rules.own_addresses.iter().copied().filter(|_| *name == ground.rules.node_name);
            addresses.find(|a| a.family() == self.family)
        };
        let said = |node: &Node| node.primary(self.family);
        ground.nodes.get(name).map_or_else(own, said).ok_or_else(|| self.missing(name, "address"))
    }

    fn entry(&self, endpoint: &Endpoint) -> Result<Address, Refusal> {
        let name = self.node(endpoint)?;
        let entries = self.ground.nodes.get(name).into_iter().flat_map(|node| node.entry.iter().copied());
        let mut of_family = entries.filter(|a| a.family() == self.family);
        of_family.next().ok_or_else(|| self.missing(name, "entry address"))
    }
}

/// Several pods behind one entry: it gets as many slots, divided by what all have in common.
fn weigh(sorted: Vec<BackendPlan>) -> Vec<BackendPlan> {
    let mut counts: BTreeMap<BackendPlan, usize> = BTreeMap::new();
    sorted.into_iter().for_each(|backend| *counts.entry(backend).or_default() += 1);
    let common = counts.values().copied().fold(0, gcd).max(1);
    let total: usize = counts.values().map(|count| count / common).sum();
    let room = MOST_SLOTS.max(counts.len());
    let slots = |count: usize| if total <= room { count } else { (count * room / total).max(1) };
    let repeated = |(backend, count)| std::iter::repeat_n(backend, slots(count / common));
    counts.into_iter().flat_map(repeated).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(last: u8) -> BackendPlan {
        BackendPlan { address: Address::from(std::net::IpAddr::from([10, 0, 0, last])), port: 80, node: None }
    }

    fn weights(counts: &[usize]) -> Vec<usize> {
        let all = counts.iter().enumerate().flat_map(|(i, count)| std::iter::repeat_n(backend(i as u8), *count));
        let weighed = weigh(all.collect());
        (0..counts.len()).map(|i| weighed.iter().filter(|b| **b == backend(i as u8)).count()).collect()
    }

    #[test]
    fn a_weight_is_a_number_of_slots() {
        assert_eq!(weights(&[2, 2]), [1, 1]);
        assert_eq!(weights(&[4, 2]), [2, 1]);
        assert_eq!(weights(&[3, 1, 2]), [3, 1, 2]);
        assert_eq!(weights(&[1023, 1]), [255, 1]);
        assert_eq!(weights(&[]), [0; 0]);
    }
}
