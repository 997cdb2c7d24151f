//! The groups of pods whose path has to be probed (`podAccess: auto`). The groups are maintained slice by slice, so
//! that listing them costs as much as there is to probe (one entry per node and /24 or /64), not as much as there is in
//! the clusters.

use super::Planner;
use crate::address::Address;
use crate::cluster::PodAccess;
use crate::name::{Name, Protocol, ServiceName};
use crate::object::{Endpoint, Slice, SlicePort};
use crate::policy::{PolicySlice, RedirectMode};
use crate::reach::PodGroup;
use crate::rules::HostRole;
use std::collections::BTreeMap;

/// Number of endpoints to probe in each group.
const PROBES_PER_GROUP: usize = 3;

/// How often slices list an address.
#[derive(Debug, Default)]
struct AddressUse {
    count: usize,
    /// By TCP port: how many slices list the address as ready.
    ports: BTreeMap<u16, usize>,
}

/// The addresses of each group, for clusters with `podAccess: auto`.
#[derive(Debug, Default)]
pub(super) struct ReachTargets(BTreeMap<PodGroup, BTreeMap<Address, AddressUse>>);

/// The endpoints of a slice that may be dialled at their own addresses.
#[derive(Clone, Copy)]
pub(super) struct SlicePods<'a> {
    ports: &'a [SlicePort],
    endpoints: &'a [Endpoint],
}

impl<'a> From<&'a Slice> for SlicePods<'a> {
    fn from(slice: &'a Slice) -> SlicePods<'a> {
        SlicePods { ports: &slice.ports, endpoints: &slice.endpoints }
    }
}

impl<'a> SlicePods<'a> {
    /// `None` if the nodes of the pods are dialled instead.
    pub fn of_policy(slice: &'a PolicySlice) -> Option<SlicePods<'a>> {
        let is_direct = slice.shape.is_some_and(|shape| shape.mode == RedirectMode::PodEndpoint);
        is_direct.then_some(SlicePods { ports: &slice.ports, endpoints: &slice.endpoints })
    }

    fn endpoints(self) -> impl Iterator<Item = &'a Endpoint> {
        self.endpoints.iter().filter(|endpoint| endpoint.ready || endpoint.serving)
    }

    fn ports(self, endpoint: &Endpoint) -> impl Iterator<Item = u16> {
        let ready = endpoint.ready;
        self.ports.iter().filter(move |port| ready && port.protocol == Protocol::Tcp).map(|port| port.port)
    }
}

fn group(cluster: &Name, endpoint: &Endpoint) -> PodGroup {
    PodGroup::of(cluster.clone(), endpoint.node.clone(), endpoint.address)
}

fn decrement<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl ReachTargets {
    /// `cluster` is the configured name of the cluster.
    pub fn replace(&mut self, cluster: &Name, before: Option<SlicePods<'_>>, now: Option<SlicePods<'_>>) {
        now.into_iter().for_each(|pods| self.add(cluster, pods));
        before.into_iter().for_each(|pods| self.remove(cluster, pods));
    }

    fn add(&mut self, cluster: &Name, pods: SlicePods<'_>) {
        for endpoint in pods.endpoints() {
            let addresses = self.0.entry(group(cluster, endpoint)).or_default();
            let named = addresses.entry(endpoint.address).or_default();
            named.count += 1;
            pods.ports(endpoint).for_each(|port| *named.ports.entry(port).or_default() += 1);
        }
    }

    fn remove(&mut self, cluster: &Name, pods: SlicePods<'_>) {
        for endpoint in pods.endpoints() {
            self.remove_one(&group(cluster, endpoint), endpoint.address, pods.ports(endpoint));
        }
    }

    fn remove_one(&mut self, group: &PodGroup, address: Address, ports: impl Iterator<Item = u16>) -> Option<()> {
        let addresses = self.0.get_mut(group)?;
        let named = addresses.get_mut(&address)?;
        ports.for_each(|port| decrement(&mut named.ports, &port));
        named.count -= 1;
        if named.count == 0 {
            addresses.remove(&address);
        }
        if addresses.is_empty() {
            self.0.remove(group);
        }
        Some(())
    }
}

impl Planner {
    /// The configured name of the cluster if the paths to its pods are probed. `None` if they are known.
    pub(super) fn probed_cluster(&self, cluster: &str) -> Option<Name> {
        let cluster_context = self.order.get(cluster)?;
        let is_auto =
            cluster_context.host_role == HostRole::Outside && cluster_context.rules.pod_access == PodAccess::Auto;
        is_auto.then(|| cluster_context.rules.name.clone())
    }

    /// A Service was added (`now`) or is removed. Slices without a Service do not count.
    pub(super) fn follow_reach_targets(&mut self, service: &ServiceName, now: bool) {
        let Some(cluster) = self.probed_cluster(service.cluster()) else { return };
        for slice in self.slices.get(service).into_iter().flatten() {
            let pods = Some(SlicePods::from(slice));
            let (before, now) = if now { (None, pods) } else { (pods, None) };
            self.reach_targets.replace(&cluster, before, now);
        }
    }

    /// Called when the clusters or their `podAccess` changed.
    pub(super) fn collect_reach_targets(&mut self) {
        let mut targets = ReachTargets::default();
        for (owner, slices) in self.slices.iter().filter(|(owner, _)| self.services.contains_key(owner)) {
            let Some(cluster) = self.probed_cluster(owner.cluster()) else { continue };
            slices.iter().for_each(|slice| targets.add(&cluster, slice.into()));
        }
        for slice in self.policies.slices() {
            let Some(cluster) = self.probed_cluster(&slice.name.cluster) else { continue };
            targets.replace(&cluster, None, SlicePods::of_policy(slice));
        }
        self.reach_targets = targets;
    }

    /// The groups to probe, each with up to three ready endpoints (TCP).
    pub fn reach_targets(&self) -> Vec<(PodGroup, Vec<(Address, u16)>)> {
        let mut found = Vec::new();
        for (group, addresses) in self.reach_targets.0.iter().filter(|(group, _)| !self.reach.is_shared(group)) {
            let Some(context) = self.plan_context(&group.cluster) else { continue };
            let paths = context.path_context();
            let mut unprobed = addresses.iter().filter(|(address, _)| paths.needs_probe(**address)).peekable();
            if unprobed.peek().is_none() {
                continue;
            }
            let probes = unprobed.flat_map(|(address, named)| named.ports.keys().map(|port| (*address, *port)));
            found.push((group.clone(), probes.take(PROBES_PER_GROUP).collect()));
        }
        found
    }
}
