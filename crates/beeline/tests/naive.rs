//! A second opinion: from the objects straight to what one dial may become, by the letter of the rules, with no plan, no
//! tables and no ids. It is slow and simple on purpose and shares nothing with the pipeline but the types of the facts.
//! The pipeline (planner, diff, map in memory, resolver) lives through random clusters and must agree on every dial.

#[allow(dead_code)]
#[path = "../../model/tests/support/answer.rs"]
mod answer;
#[path = "naive/policy.rs"]
mod policy;
#[allow(dead_code)]
#[path = "../../model/tests/support/world.rs"]
mod world;

use answer::Answer;
use beeline_model::diff::reconcile;
use beeline_model::event::{Action, Reason};
use beeline_model::fact::{AddressType, Node, Policy, Service, ServicePort};
use beeline_model::op::Memory;
use beeline_model::planner::Planner;
use beeline_model::resolve::Dial;
use beeline_model::row::Sizes;
use beeline_model::rules::{EmptyLocal, ExternalIps, LocalPolicy, NodePortAddress, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Family, Name, Protocol};
use std::collections::{BTreeMap, BTreeSet};
use world::{Facts, World};

/// An endpoint of one service port.
#[derive(Clone, Debug)]
struct Pod {
    ready: bool,
    serving: bool,
    terminating: bool,
    node: Option<Name>,
    zone_hints: Vec<Name>,
    node_hints: Vec<Name>,
}

type Pods = BTreeMap<(Address, u16), Pod>;

struct Naive<'a> {
    facts: &'a Facts,
    rules: &'a Rules,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    ClusterIp,
    Balancer,
    External,
}

fn untouched(reason: Reason) -> Answer {
    Answer { action: Action::Untouched, reason, backends: BTreeSet::new() }
}

fn refused(reason: Reason) -> Answer {
    Answer { action: Action::Refused, reason, backends: BTreeSet::new() }
}

fn resolved(backends: BTreeSet<(Address, u16)>) -> Answer {
    Answer { action: Action::Resolved, reason: Reason::None, backends }
}

impl<'a> Naive<'a> {
    fn answer(&self, dial: &Dial) -> Answer {
        if dial.protocol == Protocol::Sctp {
            return untouched(Reason::None);
        }
        let address = match dial.address.to_string().as_str() {
            "0.0.0.0" => world::address("127.0.0.1"),
            "::" => world::address("::1"),
            _ => dial.address,
        };
        if let Some(answer) = self.above(address, dial) {
            return answer;
        }
        let claim = self.claims(address, dial.port, dial.protocol).into_iter().next();
        if let Some((by, service, port)) = claim {
            return self.service_address(by, service, port, address.family(), dial);
        }
        if self.facts.services.values().any(|s| s.cluster_ips.contains(&address)) {
            return refused(Reason::NoPort);
        }
        self.node_port(address, dial)
    }

    /// What policies answer, before a Service is asked.
    fn above(&self, address: Address, dial: &Dial) -> Option<Answer> {
        let claim = self.claims(address, dial.port, dial.protocol).into_iter().next();
        let served = claim.as_ref().filter(|(by, ..)| *by == By::ClusterIp).map(|(_, service, _)| *service);
        self.policy_answer(address, dial, served)
    }

    fn by_policy(&self, dial: &Dial) -> bool {
        dial.protocol != Protocol::Sctp && self.above(dial.address, dial).is_some()
    }

    /// Everybody who claims this address and port, the owner first.
    fn claims(&self, address: Address, number: u16, protocol: Protocol) -> Vec<(By, &'a Service, &'a ServicePort)> {
        let mut all = Vec::new();
        for service in self.facts.services.values().filter(|s| s.cluster_ip(address.family()).is_some()) {
            for port in service.ports.iter().filter(|p| (p.port, p.protocol) == (number, protocol)) {
                let external = service.external_ips.contains(&address) && self.is_external_allowed(address);
                for (claimed, by) in [
                    (service.cluster_ips.contains(&address), By::ClusterIp),
                    (service.load_balancer_ips.contains(&address), By::Balancer),
                    (external, By::External),
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

    fn is_external_allowed(&self, address: Address) -> bool {
        match &self.rules.external_ips {
            ExternalIps::On => true,
            ExternalIps::Off => false,
            ExternalIps::Within(nets) => nets.iter().any(|net| net.contains(&address.ip())),
        }
    }

    fn service_address(&self, by: By, service: &Service, port: &ServicePort, family: Family, dial: &Dial) -> Answer {
        if by == By::Balancer
            && let Some(barred) = self.barred(service, family, dial)
        {
            return barred;
        }
        let pods = self.pods(service, port, family);
        let local = match by {
            By::ClusterIp => service.internal == Policy::Local || self.is_strict(service),
            By::Balancer | By::External => self.is_strict(service),
        };
        if local { self.local(&pods, &self.rules.node_name) } else { self.cluster(&pods) }
    }

    fn barred(&self, service: &Service, family: Family, dial: &Dial) -> Option<Answer> {
        let ranges: Vec<_> = service.source_ranges.iter().filter(|net| Family::of(net.addr()) == family).collect();
        match dial.source {
            _ if ranges.is_empty() => None,
            None => Some(untouched(Reason::SourceUnknown)),
            Some(source) if ranges.iter().any(|net| net.contains(&source.ip())) => None,
            Some(_) => Some(self.fail(Reason::SourceDenied)),
        }
    }

    fn is_strict(&self, service: &Service) -> bool {
        self.rules.local_policy == LocalPolicy::Strict
            && (service.internal == Policy::Local || Self::is_external_local(service))
    }

    fn is_external_local(service: &Service) -> bool {
        service.external == Policy::Local && (service.has_node_ports || !service.external_ips.is_empty())
    }

    fn fail(&self, reason: Reason) -> Answer {
        match self.rules.empty_local {
            EmptyLocal::Refuse => refused(reason),
            EmptyLocal::Drop => untouched(reason),
        }
    }

    // ---- NodePort ----

    fn node_port(&self, address: Address, dial: &Dial) -> Answer {
        let Some(node) = self.node_at(address, dial.host) else { return untouched(Reason::None) };
        let family = address.family();
        let mut owners: Vec<(&Service, &ServicePort)> = Vec::new();
        for service in self.facts.services.values() {
            if service.has_node_ports && dial.port != 0 && service.cluster_ip(family).is_some() {
                let ports = service.ports.iter().filter(|p| (p.node_port, p.protocol) == (dial.port, dial.protocol));
                owners.extend(ports.map(|port| (service, port)));
            }
        }
        owners.sort_by_key(|(service, _)| (service.created, service.name.clone()));
        let Some((service, port)) = owners.first() else { return untouched(Reason::None) };
        let pods = self.pods(service, port, family);
        if node != self.rules.node_name && Self::is_external_local(service) {
            return self.local(&pods, &node);
        }
        if self.is_strict(service) { self.local(&pods, &self.rules.node_name) } else { self.cluster(&pods) }
    }

    /// Whose NodePorts answer at this address.
    fn node_at(&self, address: Address, host: bool) -> Option<Name> {
        let own_name = self.rules.node_name.clone();
        if address.is_loopback() {
            return (host && self.is_localhost_served(address)).then_some(own_name);
        }
        if self.own_addresses().contains(&address) {
            let first = || self.rules.own_addresses.iter().copied().find(|a| a.family() == address.family());
            let node = self.facts.nodes.get(&own_name);
            let primary = node.map_or_else(first, |node| primary_of(node, address.family()));
            return self.is_chosen(address, primary).then_some(own_name);
        }
        let others = self.facts.nodes.values().filter(|node| node.name != own_name);
        let mut at = others.filter(|node| node.addresses.iter().any(|(_, a)| *a == address));
        at.find(|node| self.is_chosen(address, primary_of(node, address.family()))).map(|node| node.name.clone())
    }

    fn own_addresses(&self) -> BTreeSet<Address> {
        let mut own: BTreeSet<Address> = self.rules.own_addresses.iter().copied().collect();
        if let Some(node) = self.facts.nodes.get(&self.rules.node_name) {
            own.extend(node.addresses.iter().map(|(_, a)| *a));
        }
        own
    }

    fn is_chosen(&self, address: Address, primary: Option<Address>) -> bool {
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
        self.rules.node_port_addresses.contains(&NodePortAddress::Localhost) || self.is_chosen(address, None)
    }

    // ---- endpoints ----

    fn pods(&self, service: &Service, port: &ServicePort, family: Family) -> Pods {
        let mut found: BTreeMap<(Address, u16), Vec<Pod>> = BTreeMap::new();
        for slice in self.facts.slices.values().filter(|s| s.service == service.name && s.family == family) {
            for slice_port in slice.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol) {
                for endpoint in &slice.endpoints {
                    let hints = endpoint.hints.as_deref().cloned().unwrap_or_default();
                    found.entry((endpoint.address, slice_port.port)).or_default().push(Pod {
                        ready: endpoint.ready,
                        serving: endpoint.serving,
                        terminating: endpoint.terminating,
                        node: endpoint.node.clone().or_else(|| self.node_of(endpoint.address)),
                        zone_hints: hints.zones.into(),
                        node_hints: hints.nodes.into(),
                    });
                }
            }
        }
        found.into_iter().map(|(at, pods)| (at, merged(pods))).collect()
    }

    /// An endpoint that names no node stands where its address is.
    fn node_of(&self, address: Address) -> Option<Name> {
        let entry = |node: &Node| node.entry.contains(&address);
        let own = self.facts.nodes.get(&self.rules.node_name).is_some_and(entry);
        if own || self.own_addresses().contains(&address) || self.own_pods().any(|pod| pod.addresses.contains(&address))
        {
            return Some(self.rules.node_name.clone());
        }
        let mut nodes = self.facts.nodes.values();
        let at = |node: &&Node| entry(node) || node.addresses.iter().any(|(_, a)| *a == address);
        nodes.find(at).map(|node| node.name.clone())
    }

    fn cluster(&self, pods: &Pods) -> Answer {
        let ready: Vec<_> = pods.iter().filter(|(_, p)| p.ready).collect();
        let zone = self.facts.nodes.get(&self.rules.node_name).and_then(|n| n.zone.clone());
        let on_node = |p: &Pod| p.node_hints.contains(&self.rules.node_name);
        let in_zone = |p: &Pod| zone.as_ref().is_some_and(|z| p.zone_hints.contains(z));
        let by_node = ready.iter().all(|(_, p)| !p.node_hints.is_empty()) && ready.iter().any(|(_, p)| on_node(p));
        let by_zone = ready.iter().all(|(_, p)| !p.zone_hints.is_empty()) && ready.iter().any(|(_, p)| in_zone(p));
        let keep = |p: &Pod| if by_node { on_node(p) } else { !by_zone || in_zone(p) };
        let mut set: BTreeSet<_> = ready.iter().filter(|(_, p)| keep(p)).map(|(at, _)| **at).collect();
        if set.is_empty() {
            set = pods.iter().filter(|(_, p)| p.serving && p.terminating).map(|(at, _)| *at).collect();
        }
        if set.is_empty() { refused(Reason::NoEndpoint) } else { resolved(set) }
    }

    fn local(&self, pods: &Pods, node: &Name) -> Answer {
        let of = |keep: &dyn Fn(&Pod) -> bool| -> BTreeSet<(Address, u16)> {
            pods.iter().filter(|(_, p)| p.node.as_ref() == Some(node) && keep(p)).map(|(at, _)| *at).collect()
        };
        let mut set = of(&|p| p.ready);
        if set.is_empty() {
            set = of(&|p| p.serving && p.terminating);
        }
        let any = pods.values().any(|p| p.ready || p.serving && p.terminating);
        match (set.is_empty(), any) {
            (false, _) => resolved(set),
            (true, true) => self.fail(Reason::NoLocal),
            (true, false) => refused(Reason::NoEndpoint),
        }
    }
}

fn primary_of(node: &Node, family: Family) -> Option<Address> {
    let of = |kind| node.addresses.iter().find(|(k, a)| *k == kind && a.family() == family).map(|(_, a)| *a);
    of(AddressType::Internal).or_else(|| of(AddressType::External))
}

/// Live wins over terminating, then ready over unready, then serving; of equals the first slice counts, and the first
/// that knows the node says where the pod stands.
fn merged(pods: Vec<Pod>) -> Pod {
    let rank = |p: &Pod| (!p.terminating, p.ready, p.serving);
    let best = pods.iter().map(rank).max().expect("at least one");
    let mut equals = pods.into_iter().filter(|p| rank(p) == best);
    let mut kept = equals.next().expect("the best one");
    kept.node = kept.node.or_else(|| equals.find_map(|p| p.node));
    kept
}

#[derive(Default)]
struct Compared {
    clusters: u64,
    dials: u64,
    resolved: u64,
    refused: u64,
    conflicts: u64,
    /// By a policy, and by the pods that one selects.
    by_policy: u64,
    itself: u64,
}

/// One cluster through a few changes; compared on a sample of dials after every one.
fn live(seed: u64, all: &[Dial], compared: &mut Compared) {
    let sizes = Sizes::for_services(1000);
    let mut world = World::new(seed);
    let mut planner = Planner::new(world.rules.clone());
    let (mut tables, mut memory) = (Tables::new(sizes), Memory::new(sizes));
    world.populate(&mut planner);
    for _ in 0..16 {
        world.step(&mut planner);
        let outcome = reconcile(&mut tables, &mut memory, &planner.take(), false);
        assert!(outcome.is_clean(), "{outcome:?}");
        for _ in 0..20 {
            let any = all[world.rng.usize(..all.len())].clone();
            let aimed = world.aimed_dial().unwrap_or_else(|| any.clone());
            compare(seed, &world, &memory, &any, compared);
            compare(seed, &world, &memory, &aimed, compared);
        }
    }
    compare_conflicts(&world, &planner, all, compared);
    compared.clusters += 1;
}

fn compare(seed: u64, world: &World, memory: &Memory, dial: &Dial, compared: &mut Compared) {
    let World { facts, rules, .. } = world;
    let said = Naive { facts, rules }.answer(dial);
    let got = Answer::of(&memory.rows, dial, rules.empty_local);
    assert_eq!(got, said, "pipeline (left), rules (right): {dial:?}, seed {seed}\n{rules:?}\n{facts:?}");
    compared.dials += 1;
    compared.resolved += u64::from(got.action == Action::Resolved);
    compared.refused += u64::from(got.action == Action::Refused);
    let stranger = Dial { cgroups: Vec::new(), ..dial.clone() };
    compared.by_policy += u64::from(Naive { facts, rules }.by_policy(dial));
    compared.itself += u64::from(!dial.cgroups.is_empty() && Naive { facts, rules }.answer(&stranger) != said);
}

/// Whoever loses an address is told so, and by whom.
fn compare_conflicts(world: &World, planner: &Planner, all: &[Dial], compared: &mut Compared) {
    let naive = Naive { facts: &world.facts, rules: &world.rules };
    let refusals: Vec<String> =
        planner.refusals().into_iter().map(|r| format!("{} {}", r.subject, r.message)).collect();
    for dial in all.iter().filter(|dial| dial.protocol != Protocol::Sctp && dial.source.is_none()) {
        let claims = naive.claims(dial.address, dial.port, dial.protocol);
        let at = std::net::SocketAddr::new(dial.address.ip(), dial.port);
        let Some((by, first, _)) = claims.first() else { continue };
        // A virtual address goes before everything but a ClusterIP.
        let above = naive.virtual_holder(dial).filter(|_| *by != By::ClusterIp);
        for (_, loser, _) in claims.iter().filter(|(_, service, _)| above.is_some() || service.name != first.name) {
            let winner = above.map_or_else(
                || format!("belongs to Service {}", first.name),
                |policy| format!("is the virtual address of {}", policy.name),
            );
            let said = format!("Service {} {at}/{} {winner}", loser.name, dial.protocol);
            assert!(refusals.iter().any(|r| r.starts_with(&said)), "not reported: {said}\n{refusals:#?}");
            compared.conflicts += 1;
        }
    }
}

#[test]
fn the_pipeline_agrees_with_the_rules_on_random_clusters() {
    let all = world::dials();
    let mut compared = Compared::default();
    for seed in 0..4000 {
        live(seed, &all, &mut compared);
    }
    let Compared { clusters, dials, resolved, refused, conflicts, by_policy, itself } = compared;
    println!(
        "{clusters} clusters, {dials} dials compared: {resolved} resolved, {refused} refused, {by_policy} by a policy, \
         {itself} of its own pods; {conflicts} conflicts"
    );
    assert!(resolved > dials / 20 && refused > dials / 20 && conflicts > 1000, "these clusters were too tame");
    assert!(by_policy > dials / 50 && itself > 500, "their policies were");
}
