//! A service port on a host without the pod network (outside the cluster, or an edge node): which endpoints can be
//! reached, and which addresses are programmed. An address that is not programmed is left to the network.

use super::weight::weigh;
use super::{BackendPlan, PlanContext, PortPlan};
use crate::address::Address;
use crate::cluster::path::{EndpointPath, PathContext, UnreachableReason};
use crate::name::{Audience, Name, SetName, SetRole};
use crate::object::{Service, ServicePort, TrafficPolicy};
use crate::refusal::{Refusal, RefusalReason};
use crate::row::FrontendKind;
use crate::rules::{HostRole, Rules};
use crate::select::{Candidate, Selection};
use crate::virtual_address::is_reserved;
use std::collections::BTreeMap;

/// `None` on a node of the cluster, where every endpoint is reached at its own address.
pub(super) fn paths(
    service: &Service,
    port: &ServicePort,
    selection: &Selection,
    context: &PlanContext<'_>,
) -> Option<Vec<EndpointPath>> {
    if context.cluster.host_role == HostRole::Node {
        return None;
    }
    let node_port = node_port(service, port);
    let paths = context.path_context();
    Some(selection.candidates.iter().map(|c| paths.path(c, node_port)).collect())
}

/// 0 means no nodePort.
pub fn node_port(service: &Service, port: &ServicePort) -> u16 {
    if service.has_node_ports { port.node_port } else { 0 }
}

/// A cluster that this host is outside of may use neither the host's own addresses nor a metadata address.
pub(super) fn may_program(rules: &Rules, paths: &PathContext<'_>, address: Address) -> bool {
    let reserved = paths.host_role == HostRole::Outside && is_reserved(&rules.virtual_address_cidrs, address);
    !paths.is_own_address(address) && !reserved
}

pub(super) fn refuse_own_addresses(service: &Service, context: &PlanContext<'_>, refusals: &mut Vec<Refusal>) {
    if !context.cluster.is_remote() {
        return;
    }
    let paths = context.path_context();
    let all = [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips].into_iter().flatten();
    let mut own: Vec<Address> = all.copied().filter(|address| paths.is_own_address(*address)).collect();
    own.sort_unstable();
    own.dedup();
    refusals.extend(own.into_iter().map(|address| Refusal {
        subject: (&service.name).into(),
        reason: RefusalReason::OwnAddress,
        message: format!(
            "{address} is this host's own, loopback or link-local, and is not programmed for a remote cluster"
        ),
    }));
    let reserved = |a: &&Address| is_reserved(&context.rules.virtual_address_cidrs, **a) && !paths.is_own_address(**a);
    refusals.extend(service.cluster_ips.iter().filter(reserved).map(|address| Refusal {
        subject: (&service.name).into(),
        reason: RefusalReason::MetadataAddress,
        message: format!("{address} is a cloud's metadata address and is not programmed: use another address"),
    }));
}

impl PortPlan<'_> {
    /// No endpoint can be reached, but a route leads to the ClusterIP.
    pub(super) fn is_left_to_network(&self) -> bool {
        self.has_no_reachable_endpoint() && self.context.reach.is_routed(self.cluster_ip)
    }

    /// The port has endpoints, and none can be reached. Endpoints that a Local policy excludes do not count.
    fn has_no_reachable_endpoint(&self) -> bool {
        let Some(paths) = &self.paths else { return false };
        let members = &self.selection.cluster;
        self.internal_role() == SetRole::Cluster
            && !members.is_empty()
            && members.iter().all(|i| is_unreachable(&paths[*i]))
    }

    pub(super) fn remote_frontends(
        &self,
        paths: &[EndpointPath],
        refusals: &mut Vec<Refusal>,
    ) -> Vec<(Address, u16, FrontendKind, SetName)> {
        self.refuse_unreachable(paths, refusals);
        let mut all = Vec::new();
        if self.may_program(self.cluster_ip) && !self.is_left_to_network() {
            let set = self.name(self.internal_role(), Audience::Everyone);
            all.push((self.cluster_ip, self.port.port, FrontendKind::ClusterIp, set));
        }
        let role = self.external_role();
        let set = self.name(role.clone(), Audience::Everyone);
        if role == SetRole::Local || !self.backends(&role).is_empty() {
            all.extend(
                self.remote_external_addresses().map(|(address, kind)| (address, self.port.port, kind, set.clone())),
            );
        }
        if role == SetRole::Cluster && self.may_program_node_port(paths) {
            all.push((Address::any(self.family), self.port.node_port, FrontendKind::NodePort, set));
        }
        all
    }

    /// A nodePort or a pod does not enforce loadBalancerSourceRanges. Load-balancer addresses are therefore programmed
    /// only if the ranges contain all addresses of this host.
    fn remote_external_addresses(&self) -> impl Iterator<Item = (Address, FrontendKind)> {
        let [mut balancers, externals] = self.external_addresses();
        if !self.sources_contain_this_host() {
            balancers.clear();
        }
        let balancers = balancers.into_iter().map(|address| (address, FrontendKind::LoadBalancer));
        let externals = externals.into_iter().map(|address| (address, FrontendKind::ExternalIp));
        balancers.chain(externals).filter(|(address, _)| self.may_program(*address))
    }

    fn may_program(&self, address: Address) -> bool {
        may_program(self.context.rules, &self.context.path_context(), address)
    }

    fn sources_contain_this_host(&self) -> bool {
        let ranges: Vec<_> = self.sources().collect();
        let own = || self.context.rules.own_addresses.iter().filter(|a| a.family() == self.family);
        let contained = |a: &Address| ranges.iter().any(|net| net.contains(&a.ip()));
        ranges.is_empty() || own().next().is_some() && own().all(contained)
    }

    /// The NodePort of a node is programmed only if every endpoint may serve it and each is reached at its own address.
    /// Otherwise it is left to that node.
    fn may_program_node_port(&self, paths: &[EndpointPath]) -> bool {
        let members = &self.selection.cluster;
        node_port(self.service, self.port) != 0
            && self.service.external == TrafficPolicy::Cluster
            && !members.is_empty()
            && members.iter().all(|i| paths[*i] == EndpointPath::Direct)
    }

    // ---- backends ----

    /// Pods at their own addresses, and nodes weighted by the number of their pods. A node that is not ready or is
    /// being removed is used only if there is nothing else.
    pub(super) fn remote_backends(&self, members: &[usize], paths: &[EndpointPath]) -> Vec<BackendPlan> {
        let all: Vec<(BackendPlan, bool)> =
            members.iter().filter_map(|i| self.remote_backend(&self.selection.candidates[*i], &paths[*i])).collect();
        let any_healthy = all.iter().any(|(_, healthy)| *healthy);
        let mut listed: Vec<BackendPlan> =
            all.into_iter().filter(|(_, healthy)| *healthy || !any_healthy).map(|(backend, _)| backend).collect();
        merge_nodes_by_address(&mut listed);
        weigh(listed)
    }

    fn remote_backend(&self, c: &Candidate, path: &EndpointPath) -> Option<(BackendPlan, bool)> {
        match path {
            EndpointPath::Direct => Some((super::backend(c), true)),
            EndpointPath::Node { address, healthy } => {
                Some((BackendPlan { address: *address, port: self.port.node_port, node: c.node.clone() }, *healthy))
            }
            EndpointPath::Unreachable(_) => None,
        }
    }

    // ---- refusals ----

    fn refuse_unreachable(&self, paths: &[EndpointPath], refusals: &mut Vec<Refusal>) {
        let mut unreachable: BTreeMap<UnreachableReason, usize> = BTreeMap::new();
        for i in &self.selection.cluster {
            if let EndpointPath::Unreachable(why) = paths[*i] {
                *unreachable.entry(why).or_default() += 1;
            }
        }
        let all = self.selection.cluster.len();
        refusals.extend(unreachable.into_iter().map(|(why, count)| Refusal {
            subject: (&self.service.name).into(),
            reason: RefusalReason::Unreachable,
            message: format!(
                "{count} of {all} {} endpoints of {} are left out: {why}{}",
                self.family,
                self.owner(),
                self.consequence()
            ),
        }));
    }

    fn consequence(&self) -> &'static str {
        match (self.has_no_reachable_endpoint(), self.is_left_to_network()) {
            (_, true) => "; the ClusterIP is left to the existing route",
            (true, false) => "; dials to the ClusterIP are refused",
            (false, false) => "",
        }
    }
}

fn is_unreachable(path: &EndpointPath) -> bool {
    matches!(path, EndpointPath::Unreachable(_))
}

/// Nodes behind one address are one backend, named after the first of them.
fn merge_nodes_by_address(listed: &mut [BackendPlan]) {
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
