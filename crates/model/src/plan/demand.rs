//! The number of rows that a Service or policy needs, estimated from the objects before anything is allocated for it: ports
//! times addresses and ports times endpoints may be far more than the tables hold.

use super::PlanContext;
use super::policy::PolicyContext;
use super::target::selected_count;
use crate::address::{Address, Family};
use crate::capacity::TableRows;
use crate::object::{Service, ServicePort, Slice, TrafficPolicy};
use crate::policy::{Matcher, Policy, Target};
use std::collections::BTreeSet;

pub fn of_service<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Slice> + Clone,
    context: &PlanContext<'_>,
) -> TableRows {
    let ports: Vec<&ServicePort> = service.ports.iter().filter(|port| port.protocol.has_hook()).collect();
    let families = Family::BOTH.into_iter().filter(|family| service.cluster_ip(*family).is_some());
    let rows = families.map(|family| of_family(service, family, &ports, slices.clone(), context));
    let rows = rows.fold(TableRows::default(), TableRows::plus);
    rows.with_sources((ports.len() as u64).saturating_mul(service.source_ranges.len() as u64))
}

fn of_family<'a>(
    service: &Service,
    family: Family,
    ports: &[&ServicePort],
    slices: impl Iterator<Item = &'a Slice> + Clone,
    context: &PlanContext<'_>,
) -> TableRows {
    let slices = slices.filter(|slice| slice.family == family);
    let endpoints = ports.iter().map(|port| {
        let has_port = |slice: &&Slice| slice.ports.iter().any(|p| p.name == port.name && p.protocol == port.protocol);
        slices.clone().filter(has_port).map(|slice| slice.endpoints.len() as u64).sum()
    });
    let endpoints: Vec<u64> = endpoints.collect();
    let nodes = if service.external_local() && service.has_node_ports { nodes_of(slices.clone(), context) } else { 0 };
    let of_family =
        |addresses: &[Address]| addresses.iter().filter(|address| address.family() == family).count() as u64;
    let (balancers, externals) = (of_family(&service.load_balancer_ips), of_family(&service.external_ips));
    let addresses = 1 + balancers + externals + u64::from(service.has_node_ports) + nodes;
    // One more row says that the ClusterIP is known.
    let outside = if context.rules.packet_path && service.external_local() { addresses - nodes - 1 } else { 0 };
    let frontends = (ports.len() as u64).saturating_mul(addresses + outside).saturating_add(1);
    let views = context.cluster.view_ranks.len() as u64;
    let has_external_set = service.internal == TrafficPolicy::Local && addresses > 1;
    let has_restricted_set = balancers > 0 && !service.source_ranges.is_empty();
    let outside_sets = u64::from(outside > 0) * (1 + u64::from(has_restricted_set));
    let sets =
        1 + u64::from(has_external_set) + u64::from(has_restricted_set) + u64::from(nodes > 0) + nodes + outside_sets;
    TableRows::new(frontends.saturating_mul(views), sets, endpoints)
}

/// The number of known nodes with endpoints. Under externalTrafficPolicy Local each has a row and a set of its own.
fn nodes_of<'a>(slices: impl Iterator<Item = &'a Slice>, context: &PlanContext<'_>) -> u64 {
    let endpoints = slices.flat_map(|slice| &slice.endpoints);
    let nodes: BTreeSet<&str> = endpoints.filter_map(|endpoint| endpoint.node.as_deref()).collect();
    nodes.len().min(context.others.len()) as u64
}

/// A policy on a Service uses the Service's frontends.
pub fn of_policy(policy: &Policy, context: &PolicyContext<'_>) -> TableRows {
    let (frontends, ports) = match &policy.matcher {
        Matcher::Address { ports, .. } => (ports.len() as u64, ports.len()),
        Matcher::Service { ports: Some(ports), .. } => (0, ports.len()),
        Matcher::Service { ports: None, .. } => (0, context.service.map_or(0, |service| service.ports.len())),
    };
    let families = context.service.map_or(1, |service| service.cluster_ips.len().max(1));
    let published = || context.slices.iter().map(|slice| slice.endpoints.len()).sum::<usize>() as u64;
    let (backends, members) = match &policy.target {
        Target::LocalPods { .. } => {
            let pods = selected_count(policy, context);
            (pods, pods)
        }
        Target::Pods { .. } => (published(), 0),
        Target::Addresses { addresses, .. } => (addresses.len() as u64, 0),
    };
    TableRows::new(frontends, 1, std::iter::repeat_n(backends, ports.saturating_mul(families))).with_members(members)
}
