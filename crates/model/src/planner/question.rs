//! Which ways to pods have to be found out (`pods: auto`): kept slice by slice, so that an answer costs what there is to
//! ask, a node and /24 (/64) at a time, and not what there is in the clusters.

use super::Planner;
use crate::address::Address;
use crate::fact::{Endpoint, Slice, SlicePort};
use crate::name::{Name, OwnerName, Protocol};
use crate::policy::{PolicySlice, RedirectMode};
use crate::reach::Group;
use crate::rules::StandPoint;
use crate::stand::Pods;
use std::collections::BTreeMap;

/// So many endpoints of a group are worth asking.
const PROBES: usize = 3;

/// An address, and how often slices name it.
#[derive(Debug, Default)]
struct Named {
    times: usize,
    /// Where it is ready and answers TCP.
    ports: BTreeMap<u16, usize>,
}

/// Of clusters that ask; who is one of a node's pods, a slice says.
#[derive(Debug, Default)]
pub(super) struct Questions(BTreeMap<Group, BTreeMap<Address, Named>>);

/// What a slice says of pods that may be dialled.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a> {
    ports: &'a [SlicePort],
    endpoints: &'a [Endpoint],
}

impl<'a> From<&'a Slice> for Pod<'a> {
    fn from(slice: &'a Slice) -> Pod<'a> {
        Pod { ports: &slice.ports, endpoints: &slice.endpoints }
    }
}

impl<'a> Pod<'a> {
    /// `None`: its pods' nodes are dialled, not they.
    pub fn of_policy(slice: &'a PolicySlice) -> Option<Pod<'a>> {
        let by_itself = slice.shape.is_some_and(|shape| shape.mode == RedirectMode::PodEndpoint);
        by_itself.then_some(Pod { ports: &slice.ports, endpoints: &slice.endpoints })
    }

    fn endpoints(self) -> impl Iterator<Item = &'a Endpoint> {
        self.endpoints.iter().filter(|endpoint| endpoint.ready || endpoint.serving)
    }

    fn ports(self, endpoint: &Endpoint) -> impl Iterator<Item = u16> {
        let ready = endpoint.ready;
        self.ports.iter().filter(move |port| ready && port.protocol == Protocol::Tcp).map(|port| port.port)
    }
}

fn group(cluster: &Name, endpoint: &Endpoint) -> Group {
    Group::of(cluster.clone(), endpoint.node.clone(), endpoint.address)
}

fn less<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Questions {
    /// `cluster`: as it is asked for.
    pub fn exchange(&mut self, cluster: &Name, before: Option<Pod<'_>>, now: Option<Pod<'_>>) {
        now.into_iter().for_each(|pods| self.add(cluster, pods));
        before.into_iter().for_each(|pods| self.remove(cluster, pods));
    }

    fn add(&mut self, cluster: &Name, pods: Pod<'_>) {
        for endpoint in pods.endpoints() {
            let addresses = self.0.entry(group(cluster, endpoint)).or_default();
            let named = addresses.entry(endpoint.address).or_default();
            named.times += 1;
            pods.ports(endpoint).for_each(|port| *named.ports.entry(port).or_default() += 1);
        }
    }

    fn remove(&mut self, cluster: &Name, pods: Pod<'_>) {
        for endpoint in pods.endpoints() {
            self.remove_one(&group(cluster, endpoint), endpoint.address, pods.ports(endpoint));
        }
    }

    fn remove_one(&mut self, group: &Group, address: Address, ports: impl Iterator<Item = u16>) -> Option<()> {
        let addresses = self.0.get_mut(group)?;
        let named = addresses.get_mut(&address)?;
        ports.for_each(|port| less(&mut named.ports, &port));
        named.times -= 1;
        if named.times == 0 {
            addresses.remove(&address);
        }
        if addresses.is_empty() {
            self.0.remove(group);
        }
        Some(())
    }
}

impl Planner {
    /// Under which name ways to its pods are asked for; `None`: they are known.
    pub(super) fn asks(&self, cluster: &str) -> Option<Name> {
        let outlook = self.order.of(cluster)?;
        let asks = outlook.stand == StandPoint::Outside && outlook.rules.pods == Pods::Auto;
        asks.then(|| outlook.rules.name.clone())
    }

    /// A Service came (`now`), or goes. Slices without one are nobody's.
    pub(super) fn follow_questions(&mut self, service: &OwnerName, now: bool) {
        let Some(cluster) = self.asks(service.cluster()) else { return };
        for slice in self.slices.get(service).into_iter().flatten() {
            let pods = Some(Pod::from(slice));
            let (before, now) = if now { (None, pods) } else { (pods, None) };
            self.questions.exchange(&cluster, before, now);
        }
    }

    /// Clusters came, went or ask otherwise.
    pub(super) fn collect_questions(&mut self) {
        let mut questions = Questions::default();
        for (owner, slices) in self.slices.iter().filter(|(owner, _)| self.services.contains_key(owner)) {
            let Some(cluster) = self.asks(owner.cluster()) else { continue };
            slices.iter().for_each(|slice| questions.add(&cluster, slice.into()));
        }
        for slice in self.register.slices() {
            let Some(cluster) = self.asks(&slice.name.cluster) else { continue };
            questions.exchange(&cluster, None, Pod::of_policy(slice));
        }
        self.questions = questions;
    }

    /// What `auto` needs an answer for, each with up to three ready endpoints to ask (TCP).
    pub fn groups(&self) -> Vec<(Group, Vec<(Address, u16)>)> {
        let mut found = Vec::new();
        for (group, addresses) in self.questions.0.iter().filter(|(group, _)| !self.reach.is_shared(group)) {
            let Some(around) = self.surroundings(&group.cluster) else { continue };
            let ground = around.way();
            let mut open = addresses.iter().filter(|(address, _)| ground.is_open(**address)).peekable();
            if open.peek().is_none() {
                continue;
            }
            let probes = open.flat_map(|(address, named)| named.ports.keys().map(|port| (*address, *port)));
            found.push((group.clone(), probes.take(PROBES).collect()));
        }
        found
    }
}
