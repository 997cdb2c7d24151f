//! A reference model that computes the verdict of a dial directly from the objects and the rules, without plan, tables and
//! ids. It is slow and simple on purpose, and shares only the object types with the product. The product (planner, diff,
//! maps in memory, resolver) must agree with it on every dial in random clusters.

#[path = "reference_model/policy.rs"]
mod policy;
#[allow(dead_code)]
#[path = "../../model/tests/support/mod.rs"]
mod support;

use beeline_model::diff::reconcile;
use beeline_model::event::{Action, Reason};
use beeline_model::object::{Node, Service, ServicePort, TrafficPolicy};
use beeline_model::op::MemoryMaps;
use beeline_model::planner::Planner;
use beeline_model::resolve::Dial;
use beeline_model::row::Sizes;
use beeline_model::rules::{ExternalIps, LocalTrafficPolicy, NoLocalEndpointAction, NodePortAddress, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Family, Name, Protocol};
use std::collections::BTreeSet;
use support::dial_result::DialResult;
use support::random_cluster::{self, Objects, RandomCluster};
use support::reference::{self, Endpoints, primary_address};
use support::seed::seeds;

struct ReferenceModel<'a> {
    objects: &'a Objects,
    rules: &'a Rules,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AddressKind {
    ClusterIp,
    Balancer,
    External,
}

fn untouched(reason: Reason) -> DialResult {
    DialResult { action: Action::Untouched, reason, backends: BTreeSet::new() }
}

fn refused(reason: Reason) -> DialResult {
    DialResult { action: Action::Refused, reason, backends: BTreeSet::new() }
}

fn resolved(backends: BTreeSet<(Address, u16)>) -> DialResult {
    DialResult { action: Action::Resolved, reason: Reason::None, backends }
}

impl<'a> ReferenceModel<'a> {
    fn answer(&self, dial: &Dial) -> DialResult {
        if dial.protocol == Protocol::Sctp {
            return untouched(Reason::None);
        }
        let address = match dial.address.to_string().as_str() {
            "0.0.0.0" => random_cluster::address("127.0.0.1"),
            "::" => random_cluster::address("::1"),
            _ => dial.address,
        };
        if let Some(answer) = self.policy_verdict(address, dial) {
            return answer;
        }
        let claim = self.claims(address, dial.port, dial.protocol).into_iter().next();
        if let Some((by, service, port)) = claim {
            return self.service_address(by, service, port, address.family(), dial);
        }
        if self.objects.services.values().any(|s| s.cluster_ips.contains(&address)) {
            return refused(Reason::NoPort);
        }
        self.node_port(address, dial)
    }

    /// The verdict of policies, which have precedence over Services.
    fn policy_verdict(&self, address: Address, dial: &Dial) -> Option<DialResult> {
        let claim = self.claims(address, dial.port, dial.protocol).into_iter().next();
        let served = claim.as_ref().filter(|(by, ..)| *by == AddressKind::ClusterIp).map(|(_, service, _)| *service);
        self.policy_answer(address, dial, served)
    }

    fn is_decided_by_policy(&self, dial: &Dial) -> bool {
        dial.protocol != Protocol::Sctp && self.policy_verdict(dial.address, dial).is_some()
    }

    /// All services that claim this address and port, the owner first.
    fn claims(
        &self,
        address: Address,
        number: u16,
        protocol: Protocol,
    ) -> Vec<(AddressKind, &'a Service, &'a ServicePort)> {
        let mut all = Vec::new();
        for service in self.objects.services.values().filter(|s| s.cluster_ip(address.family()).is_some()) {
            for port in service.ports.iter().filter(|p| (p.port, p.protocol) == (number, protocol)) {
                let free = !self.is_anothers_cluster_ip(service, address) && !self.is_local_pod(service, address);
                let external = free && service.external_ips.contains(&address) && self.is_external_allowed(address);
                for (claimed, by) in [
                    (service.cluster_ips.contains(&address), AddressKind::ClusterIp),
                    (free && service.load_balancer_ips.contains(&address), AddressKind::Balancer),
                    (external, AddressKind::External),
                ] {
                    if claimed {
                        all.push((by, service, port));
                    }
                }
            }
        }
        all.sort_by_key(|(by, service, _)| (*by, service.created, service.name.clone()));
        all
    }

    fn is_anothers_cluster_ip(&self, service: &Service, address: Address) -> bool {
        let mut others = self.objects.services.values().filter(|other| other.name != service.name);
        !service.cluster_ips.contains(&address) && others.any(|other| other.cluster_ips.contains(&address))
    }

    /// A pod on this node that does not use the node's own addresses has the address.
    fn is_local_pod(&self, service: &Service, address: Address) -> bool {
        let own = self.objects.nodes.get(&self.rules.node_name);
        let is_own = self.rules.own_addresses.contains(&address)
            || own.is_some_and(|node| {
                node.entry.contains(&address) || node.addresses.iter().any(|(_, own)| *own == address)
            });
        let mut here = self.objects.pods.values().filter(|pod| pod.node.as_ref() == Some(&self.rules.node_name));
        !service.cluster_ips.contains(&address) && !is_own && here.any(|pod| pod.addresses.contains(&address))
    }

    fn is_external_allowed(&self, address: Address) -> bool {
        match &self.rules.external_ips {
            ExternalIps::Home | ExternalIps::On => true,
            ExternalIps::Off => false,
            ExternalIps::Within(nets) => nets.iter().any(|net| net.contains(&address.ip())),
        }
    }

    fn service_address(
        &self,
        by: AddressKind,
        service: &Service,
        port: &ServicePort,
        family: Family,
        dial: &Dial,
    ) -> DialResult {
        if by == AddressKind::Balancer
            && let Some(denied) = self.denied_by_source_ranges(service, family, dial)
        {
            return denied;
        }
        let endpoints = self.endpoints(service, port, family);
        let local = match by {
            AddressKind::ClusterIp => service.internal == TrafficPolicy::Local || self.is_strict(service),
            AddressKind::Balancer | AddressKind::External => self.is_strict(service),
        };
        if local { self.local(&endpoints, &self.rules.node_name) } else { self.cluster(&endpoints) }
    }

    fn denied_by_source_ranges(&self, service: &Service, family: Family, dial: &Dial) -> Option<DialResult> {
        let ranges: Vec<_> = service.source_ranges.iter().filter(|net| Family::of(net.addr()) == family).collect();
        match dial.source {
            _ if ranges.is_empty() => None,
            None => Some(untouched(Reason::SourceUnknown)),
            Some(source) if ranges.iter().any(|net| net.contains(&source.ip())) => None,
            Some(_) => Some(self.fail(Reason::SourceDenied)),
        }
    }

    fn is_strict(&self, service: &Service) -> bool {
        self.rules.local_traffic_policy == LocalTrafficPolicy::Strict
            && (service.internal == TrafficPolicy::Local || reference::is_external_local(service))
    }

    fn fail(&self, reason: Reason) -> DialResult {
        match self.rules.no_local_endpoint_action {
            NoLocalEndpointAction::Refuse => refused(reason),
            NoLocalEndpointAction::Drop => untouched(reason),
        }
    }

    // ---- NodePort ----

    fn node_port(&self, address: Address, dial: &Dial) -> DialResult {
        let Some(node) = self.node_at(address, dial.host) else { return untouched(Reason::None) };
        let family = address.family();
        let mut owners: Vec<(&Service, &ServicePort)> = Vec::new();
        for service in self.objects.services.values() {
            if service.has_node_ports && dial.port != 0 && service.cluster_ip(family).is_some() {
                let ports = service.ports.iter().filter(|p| (p.node_port, p.protocol) == (dial.port, dial.protocol));
                owners.extend(ports.map(|port| (service, port)));
            }
        }
        owners.sort_by_key(|(service, _)| (service.created, service.name.clone()));
        let Some((service, port)) = owners.first() else { return untouched(Reason::None) };
        let endpoints = self.endpoints(service, port, family);
        if node != self.rules.node_name && reference::is_external_local(service) {
            return self.local(&endpoints, &node);
        }
        if self.is_strict(service) { self.local(&endpoints, &self.rules.node_name) } else { self.cluster(&endpoints) }
    }

    /// The node whose NodePorts are served at this address.
    fn node_at(&self, address: Address, host: bool) -> Option<Name> {
        let own_name = self.rules.node_name.clone();
        if address.is_loopback() {
            return (host && self.is_localhost_served(address)).then_some(own_name);
        }
        if self.own_addresses().contains(&address) {
            let first = || self.rules.own_addresses.iter().copied().find(|a| a.family() == address.family());
            let node = self.objects.nodes.get(&own_name);
            let primary = node.map_or_else(first, |node| primary_address(node, address.family()));
            return self.is_node_port_address(address, primary).then_some(own_name);
        }
        let others = self.objects.nodes.values().filter(|node| node.name != own_name);
        let mut at = others.filter(|node| node.addresses.iter().any(|(_, a)| *a == address));
        at.find(|node| self.is_node_port_address(address, primary_address(node, address.family())))
            .map(|node| node.name.clone())
    }

    fn own_addresses(&self) -> BTreeSet<Address> {
        let mut own: BTreeSet<Address> = self.rules.own_addresses.iter().copied().collect();
        if let Some(node) = self.objects.nodes.get(&self.rules.node_name) {
            own.extend(node.addresses.iter().map(|(_, a)| *a));
        }
        own
    }

    fn is_node_port_address(&self, address: Address, primary: Option<Address>) -> bool {
        let words = &self.rules.node_port_addresses;
        let ranges: Vec<_> = words
            .iter()
            .filter_map(|word| match word {
                NodePortAddress::Range(net) => Some(net),
                _ => None,
            })
            .collect();
        let unlisted = !ranges.iter().any(|net| Family::of(net.addr()) == address.family());
        words.contains(&NodePortAddress::All)
            || words.contains(&NodePortAddress::Primary) && primary == Some(address)
            || ranges.iter().any(|net| net.contains(&address.ip()))
            || !ranges.is_empty() && unlisted
    }

    fn is_localhost_served(&self, address: Address) -> bool {
        self.rules.node_port_addresses.contains(&NodePortAddress::Localhost) || self.is_node_port_address(address, None)
    }

    // ---- endpoints ----

    fn endpoints(&self, service: &Service, port: &ServicePort, family: Family) -> Endpoints {
        reference::endpoints(self.objects, service, port, family, |address| self.node_of(address))
    }

    /// The node of an endpoint without a node name, found by its address.
    fn node_of(&self, address: Address) -> Option<Name> {
        let entry = |node: &Node| node.entry.contains(&address);
        let own = self.objects.nodes.get(&self.rules.node_name).is_some_and(entry);
        if own || self.own_addresses().contains(&address) || self.own_pods().any(|pod| pod.addresses.contains(&address))
        {
            return Some(self.rules.node_name.clone());
        }
        let mut nodes = self.objects.nodes.values();
        let at = |node: &&Node| entry(node) || node.addresses.iter().any(|(_, a)| *a == address);
        nodes.find(at).map(|node| node.name.clone())
    }

    fn cluster(&self, all: &Endpoints) -> DialResult {
        let zone = self.objects.nodes.get(&self.rules.node_name).and_then(|node| node.zone.as_ref());
        let set = reference::cluster_endpoints(all, Some(&self.rules.node_name), zone);
        if set.is_empty() { refused(Reason::NoEndpoint) } else { resolved(set.into_keys().collect()) }
    }

    fn local(&self, all: &Endpoints, node: &Name) -> DialResult {
        let set = reference::local_endpoints(all, node);
        let any = all.values().any(|e| e.ready || e.serving && e.terminating);
        match (set.is_empty(), any) {
            (false, _) => resolved(set.into_keys().collect()),
            (true, true) => self.fail(Reason::NoLocal),
            (true, false) => refused(Reason::NoEndpoint),
        }
    }
}

#[derive(Default)]
struct ComparisonCounts {
    clusters: u64,
    dials: u64,
    resolved: u64,
    refused: u64,
    conflicts: u64,
    /// Decided by a policy.
    by_policy: u64,
    /// Dials of pods that a policy selects, with another verdict than those of other pods.
    by_selected_pod: u64,
}

/// Applies random changes to one cluster and compares a sample of dials after each change.
fn compare_cluster(seed: u64, all: &[Dial], compared: &mut ComparisonCounts) {
    let sizes = Sizes::for_services(1000);
    let mut cluster = RandomCluster::new(seed);
    let mut planner = Planner::new(cluster.rules.clone());
    let (mut tables, mut memory) = (Tables::new(sizes), MemoryMaps::new(sizes));
    cluster.populate(&mut planner);
    for _ in 0..16 {
        cluster.step(&mut planner);
        let outcome = reconcile(&mut tables, &mut memory, &planner.take_delta(), false);
        assert!(outcome.is_clean(), "{outcome:?}");
        for _ in 0..20 {
            let any = all[cluster.rng.usize(..all.len())].clone();
            let aimed = cluster.aimed_dial().unwrap_or_else(|| any.clone());
            compare(seed, &cluster, &memory, &any, compared);
            compare(seed, &cluster, &memory, &aimed, compared);
        }
    }
    compare_conflicts(&cluster, &planner, all, compared);
    compared.clusters += 1;
}

fn compare(seed: u64, cluster: &RandomCluster, memory: &MemoryMaps, dial: &Dial, compared: &mut ComparisonCounts) {
    let RandomCluster { objects, rules, .. } = cluster;
    let expected = ReferenceModel { objects, rules }.answer(dial);
    let got = DialResult::of(&memory.rows, dial, rules.no_local_endpoint_action);
    assert_eq!(got, expected, "product (left), reference model (right): {dial:?}, seed {seed}\n{rules:?}\n{objects:?}");
    compared.dials += 1;
    compared.resolved += u64::from(got.action == Action::Resolved);
    compared.refused += u64::from(got.action == Action::Refused);
    let other_client = Dial { cgroups: Vec::new(), ..dial.clone() };
    compared.by_policy += u64::from(ReferenceModel { objects, rules }.is_decided_by_policy(dial));
    compared.by_selected_pod +=
        u64::from(!dial.cgroups.is_empty() && ReferenceModel { objects, rules }.answer(&other_client) != expected);
}

/// Checks that a service which loses an address is refused with the name of the owner.
fn compare_conflicts(cluster: &RandomCluster, planner: &Planner, all: &[Dial], compared: &mut ComparisonCounts) {
    let model = ReferenceModel { objects: &cluster.objects, rules: &cluster.rules };
    let refusals: Vec<String> =
        planner.refusals().into_iter().map(|r| format!("{} {}", r.subject, r.message)).collect();
    for dial in all.iter().filter(|dial| dial.protocol != Protocol::Sctp && dial.source.is_none()) {
        let claims = model.claims(dial.address, dial.port, dial.protocol);
        let at = std::net::SocketAddr::new(dial.address.ip(), dial.port);
        let Some((by, first, _)) = claims.first() else { continue };
        // A virtual address has precedence over everything but a ClusterIP.
        let virtual_holder = model.virtual_holder(dial).filter(|_| *by != AddressKind::ClusterIp);
        for (_, loser, _) in
            claims.iter().filter(|(_, service, _)| virtual_holder.is_some() || service.name != first.name)
        {
            let winner = virtual_holder.map_or_else(
                || format!("belongs to Service {}", first.name),
                |policy| format!("is the virtual address of {}", policy.name),
            );
            let expected = format!("Service {} {at}/{} {winner}", loser.name, dial.protocol);
            assert!(refusals.iter().any(|r| r.starts_with(&expected)), "not reported: {expected}\n{refusals:#?}");
            compared.conflicts += 1;
        }
    }
}

#[test]
fn the_product_agrees_with_the_reference_model_on_random_clusters() {
    let all = random_cluster::dials();
    let mut compared = ComparisonCounts::default();
    for seed in seeds(0..4000) {
        compare_cluster(seed, &all, &mut compared);
    }
    let ComparisonCounts { clusters, dials, resolved, refused, conflicts, by_policy, by_selected_pod } = compared;
    println!(
        "{clusters} clusters, {dials} dials compared: {resolved} resolved, {refused} refused, {by_policy} by a policy, \
         {by_selected_pod} by selected pods; {conflicts} conflicts"
    );
    assert!(
        resolved > dials / 20 && refused > dials / 20 && conflicts > 1000,
        "the random clusters have too few resolved dials, refused dials or conflicts"
    );
    assert!(by_policy > dials / 50 && by_selected_pod > 500, "the random clusters have too few dials for policies");
}
