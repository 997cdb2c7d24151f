//! A service port from where no pod network is (outside, and at the edge): what of it can be reached, and which of its
//! addresses are ours to resolve at all. What is left alone goes to the network, which may know better.

use super::weight::weigh;
use super::{BackendPlan, PortPlan, Surroundings};
use crate::address::Address;
use crate::fact::{Policy, Refusal, Service, ServicePort};
use crate::name::{Audience, Name, SetName, SetRole};
use crate::row::Kind;
use crate::rules::{Rules, StandPoint};
use crate::select::{Candidate, Selection};
use crate::stand::way::{Ground, Way, Why};
use crate::virtual_address::is_reserved;
use std::collections::BTreeMap;

/// `None`: by its own address, as any node of the cluster.
pub(super) fn ways(
    service: &Service,
    port: &ServicePort,
    selection: &Selection,
    around: &Surroundings<'_>,
) -> Option<Vec<Way>> {
    if around.outlook.stand == StandPoint::Node {
        return None;
    }
    let node_port = node_port(service, port);
    let ground = around.way();
    Some(selection.candidates.iter().map(|c| ground.way(c, node_port)).collect())
}

/// 0: none.
pub fn node_port(service: &Service, port: &ServicePort) -> u16 {
    if service.has_node_ports { port.node_port } else { 0 }
}

/// No cluster that this host is no part of has this host's own addresses, nor a cloud's metadata address.
pub(super) fn may_hold(rules: &Rules, ground: &Ground<'_>, address: Address) -> bool {
    let reserved = ground.stand == StandPoint::Outside && is_reserved(&rules.virtual_ranges, address);
    !ground.is_ours(address) && !reserved
}

pub(super) fn refuse_own(service: &Service, around: &Surroundings<'_>, refusals: &mut Vec<Refusal>) {
    if !around.outlook.is_remote() {
        return;
    }
    let ground = around.way();
    let all = [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips].into_iter().flatten();
    let mut own: Vec<Address> = all.copied().filter(|address| ground.is_ours(*address)).collect();
    own.sort_unstable();
    own.dedup();
    refusals.extend(own.into_iter().map(|address| Refusal {
        subject: service.name.subject(),
        reason: "ownAddress",
        message: format!("{address} is this host's own, loopback or link-local: no remote cluster's, it is left alone"),
    }));
    let reserved = |a: &&Address| is_reserved(&around.rules.virtual_ranges, **a) && !ground.is_ours(**a);
    refusals.extend(service.cluster_ips.iter().filter(reserved).map(|address| Refusal {
        subject: service.name.subject(),
        reason: "metadataAddress",
        message: format!("{address} is a cloud's metadata address: it is left alone; use another one"),
    }));
}

impl PortPlan<'_> {
    /// Nothing of it is reachable, and the network itself knows a way to the ClusterIP.
    pub(super) fn leaves_alone(&self) -> bool {
        self.is_cut_off() && self.around.reach.is_routed(self.cluster_ip)
    }

    /// There are endpoints, and none can be reached. Who is left out by policy is not cut off.
    fn is_cut_off(&self) -> bool {
        let Some(ways) = &self.ways else { return false };
        let members = &self.selection.cluster;
        self.internal_role() == SetRole::Cluster && !members.is_empty() && members.iter().all(|i| is_lost(&ways[*i]))
    }

    pub(super) fn frontends_away(
        &self,
        ways: &[Way],
        refusals: &mut Vec<Refusal>,
    ) -> Vec<(Address, u16, Kind, SetName)> {
        self.tell_lost(ways, refusals);
        let mut all = Vec::new();
        if self.may_hold(self.cluster_ip) && !self.leaves_alone() {
            let set = self.name(self.internal_role(), Audience::Everyone);
            all.push((self.cluster_ip, self.port.port, Kind::ClusterIp, set));
        }
        let role = self.external_role();
        let set = self.name(role.clone(), Audience::Everyone);
        if role == SetRole::Local || !self.backends(&role).is_empty() {
            all.extend(self.outer_away().map(|(address, kind)| (address, self.port.port, kind, set.clone())));
        }
        if role == SetRole::Cluster && self.holds_node_port(ways) {
            all.push((Address::any(self.family), self.port.node_port, Kind::NodePort, set));
        }
        all
    }

    /// Behind source ranges a nodePort, or a pod, would let in whom they keep out: only where they hold this whole host.
    fn outer_away(&self) -> impl Iterator<Item = (Address, Kind)> {
        let [mut balancers, externals] = self.outer();
        if !self.sources_hold_us() {
            balancers.clear();
        }
        let balancers = balancers.into_iter().map(|address| (address, Kind::LoadBalancer));
        let externals = externals.into_iter().map(|address| (address, Kind::ExternalIp));
        balancers.chain(externals).filter(|(address, _)| self.may_hold(*address))
    }

    fn may_hold(&self, address: Address) -> bool {
        may_hold(self.around.rules, &self.around.way(), address)
    }

    fn sources_hold_us(&self) -> bool {
        let ranges: Vec<_> = self.sources().collect();
        let own = || self.around.rules.own_addresses.iter().filter(|a| a.family() == self.family);
        let held = |a: &Address| ranges.iter().any(|net| net.contains(&a.ip()));
        ranges.is_empty() || own().next().is_some() && own().all(held)
    }

    /// A node's NodePort is that node's own business, unless any pod will do and each is next door.
    fn holds_node_port(&self, ways: &[Way]) -> bool {
        let members = &self.selection.cluster;
        node_port(self.service, self.port) != 0
            && self.service.external == Policy::Cluster
            && !members.is_empty()
            && members.iter().all(|i| ways[*i] == Way::Direct)
    }

    // ---- backends ----

    /// Pods by their own addresses, and nodes by the number of their pods. Nodes that are not well leave while anybody else
    /// remains.
    pub(super) fn backends_away(&self, members: &[usize], ways: &[Way]) -> Vec<BackendPlan> {
        let all: Vec<(BackendPlan, bool)> =
            members.iter().filter_map(|i| self.backend_away(&self.selection.candidates[*i], &ways[*i])).collect();
        let any_well = all.iter().any(|(_, well)| *well);
        let mut listed: Vec<BackendPlan> =
            all.into_iter().filter(|(_, well)| *well || !any_well).map(|(backend, _)| backend).collect();
        unite(&mut listed);
        weigh(listed)
    }

    fn backend_away(&self, c: &Candidate, way: &Way) -> Option<(BackendPlan, bool)> {
        match way {
            Way::Direct => Some((super::backend(c), true)),
            Way::Node { address, well } => {
                Some((BackendPlan { address: *address, port: self.port.node_port, node: c.node.clone() }, *well))
            }
            Way::Unreachable(_) => None,
        }
    }

    // ---- what is said ----

    fn tell_lost(&self, ways: &[Way], refusals: &mut Vec<Refusal>) {
        let mut lost: BTreeMap<Why, usize> = BTreeMap::new();
        for i in &self.selection.cluster {
            if let Way::Unreachable(why) = ways[*i] {
                *lost.entry(why).or_default() += 1;
            }
        }
        let all = self.selection.cluster.len();
        refusals.extend(lost.into_iter().map(|(why, count)| Refusal {
            subject: self.service.name.subject(),
            reason: "unreachable",
            message: format!(
                "{count} of {all} {} endpoints of {} are left out: {why}{}",
                self.family,
                self.owner(),
                self.consequence()
            ),
        }));
    }

    fn consequence(&self) -> &'static str {
        match (self.is_cut_off(), self.leaves_alone()) {
            (_, true) => "; the ClusterIP is left to the route that leads there",
            (true, false) => "; dials to the ClusterIP are refused",
            (false, false) => "",
        }
    }
}

fn is_lost(way: &Way) -> bool {
    matches!(way, Way::Unreachable(_))
}

/// Nodes behind one address are one backend, known by the first of their names.
fn unite(listed: &mut [BackendPlan]) {
    let mut names: BTreeMap<(Address, u16), Option<Name>> = BTreeMap::new();
    for backend in listed.iter() {
        let name = names.entry((backend.address, backend.port)).or_insert_with(|| backend.node.clone());
        if *name > backend.node {
            name.clone_from(&backend.node);
        }
    }
    for backend in listed.iter_mut() {
        backend.node.clone_from(&names[&(backend.address, backend.port)]);
    }
}
