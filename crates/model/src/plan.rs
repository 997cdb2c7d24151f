//! What one Service should become on this node: frontends that it claims and sets that they lead to. Pure, no ids.

pub mod away;
mod pair;
pub mod policy;
pub(crate) mod target;
mod weight;

use crate::address::{Address, Family};
use crate::claim::{Claim, Claims};
use crate::fact::{Endpoint, Node, Policy, Refusal, Service, ServicePort, Slice};
use crate::hash::HashMap;
use crate::name::{Audience, Name, PortName, SetName, SetRole};
use crate::policy::Limit;
use crate::reach::Reach;
use crate::row::{FrontendKey, Kind, MAX_SLOTS, Rule, WhenEmpty};
use crate::rules::{ExternalIps, LocalPolicy, Rules};
use crate::select::{Candidate, Place, Selection, select};
use crate::stand::order::{Bar, Outlook};
use crate::stand::spread::Neighbour;
use crate::stand::way::{self, Way};
use crate::virtual_address::is_reserved;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendPlan {
    pub address: Address,
    pub port: u16,
    pub node: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetPlan {
    pub name: SetName,
    /// Sorted; a weight is a number of equal entries.
    pub backends: Vec<BackendPlan>,
    pub rule: Rule,
    pub affinity: u32,
    pub when_empty: WhenEmpty,
    /// Some endpoint anywhere could serve.
    pub any: bool,
    pub next: Option<SetName>,
    /// `None`: a Service's own.
    pub policy: Option<SetPolicy>,
}

/// What a policy asks of its sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetPolicy {
    /// One bucket for all sets of the policy. Over it, a dial goes to the next set.
    pub limit: Option<Limit>,
    /// A pod that the policy selects goes to the next set.
    pub self_next: bool,
}

impl SetPolicy {
    /// Whether a dial is asked anything at all.
    pub fn asks(&self) -> bool {
        self.limit.is_some() || self.self_next
    }
}

impl SetPlan {
    /// Where the set does not answer for other nodes' addresses, its row also says what those get.
    pub fn header_when_empty(&self) -> WhenEmpty {
        if self.name.audience == Audience::OwnNode && self.any { WhenEmpty::Fail } else { self.when_empty }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    pub sets: Vec<SetPlan>,
    pub claims: Vec<(FrontendKey, Claim)>,
    pub sources: Vec<(PortName, IpNet)>,
    pub refusals: Vec<Refusal>,
    /// Cgroup ids of the pods that a LocalRedirectPolicy selects: known to the kernel before they are in a set.
    pub members: Vec<u64>,
    /// Why some of its addresses are not programmed in the order of the configuration.
    pub withheld: Option<Box<Bar>>,
}

impl ServicePlan {
    /// Sets to which no frontend leads, and no set above them, because another owns the address, are not programmed.
    pub fn keep_used(&mut self, claims: &Claims) {
        if self.claims.iter().all(|(key, _)| claims.claimants(key).len() < 2) {
            return;
        }
        let serves = |(key, claim): &&(FrontendKey, Claim)| claims.chain(key).any(|standing| standing == claim);
        let used: BTreeSet<&SetName> = self.claims.iter().filter(serves).filter_map(|(_, c)| c.set.as_ref()).collect();
        self.sets.retain(|set| used.contains(&set.name));
        self.sources
            .retain(|(owner, _)| used.iter().any(|name| name.audience == Audience::Sources && name.owner == *owner));
    }

    /// Nobody is in the policy's set, and its Service is left to a route: so is the dial.
    pub fn leave_to_network(&mut self, is_claimed: impl Fn(&FrontendKey) -> bool) {
        let idle: BTreeSet<&SetName> =
            self.sets.iter().filter(|set| set.backends.is_empty()).map(|set| &set.name).collect();
        let serves = |(key, claim): &(FrontendKey, Claim)| {
            is_claimed(key) || claim.set.as_ref().is_none_or(|set| !idle.contains(set))
        };
        self.claims.retain(serves);
        let claims = &self.claims;
        self.sets.retain(|set| claims.iter().any(|(_, claim)| claim.set.as_ref() == Some(&set.name)));
    }

    /// A policy's set leads on to whoever comes next at its frontend; it has no other.
    pub fn link(&mut self, claims: &Claims) {
        let of_policy = self.sets.iter_mut().filter(|set| set.policy.is_some());
        let mut sets: HashMap<SetName, &mut SetPlan> = of_policy.map(|set| (set.name.clone(), set)).collect();
        if sets.is_empty() {
            return;
        }
        for (key, claim) in &self.claims {
            let mut chain = claims.chain(key).skip_while(|standing| *standing != claim);
            // Where it has no part, as in a view in which another cluster comes first, it leads nowhere.
            let Some(_) = chain.next() else { continue };
            if let Some(set) = claim.set.as_ref().and_then(|name| sets.get_mut(name)) {
                set.next = chain.next().and_then(|claim| claim.set.clone());
            }
        }
    }
}

/// What a plan needs to know of the nodes.
pub struct Surroundings<'a> {
    pub rules: &'a Rules,
    pub place: Place,
    /// Whose address is whose: an endpoint that names no node (`default/kubernetes`) stands where its address is.
    pub hosts: &'a BTreeMap<Address, Name>,
    /// Other nodes, with the addresses at which their NodePorts answer.
    pub others: &'a [(Name, Vec<Address>)],
    pub outlook: &'a Outlook,
    pub nodes: &'a BTreeMap<Name, Node>,
    pub reach: &'a Reach,
    /// The other clusters.
    pub neighbours: Vec<Neighbour<'a>>,
}

impl<'a> Surroundings<'a> {
    pub(crate) fn candidate(&self, endpoint: &Endpoint, port: u16) -> Candidate {
        let node = endpoint.node.as_ref().or_else(|| self.hosts.get(&endpoint.address));
        let local = node == Some(&self.rules.node_name) && !self.outlook.is_remote();
        Candidate::new(endpoint, port, node.cloned(), local)
    }

    pub fn way(&self) -> way::Ground<'a> {
        let Outlook { stand, rules: cluster, .. } = self.outlook;
        let own = &self.rules.own_addresses;
        way::Ground { stand: *stand, cluster, nodes: self.nodes, hosts: self.hosts, reach: self.reach, own }
    }
}

pub fn plan_service<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Slice> + Clone,
    around: &Surroundings<'_>,
) -> ServicePlan {
    let mut plan = ServicePlan::default();
    refuse_addresses(service, around.rules, &mut plan.refusals);
    away::refuse_own(service, around, &mut plan.refusals);
    for family in Family::BOTH {
        let Some(cluster_ip) = service.cluster_ip(family) else { continue };
        plan.claims.reserve_exact(1 + service.ports.len());
        let mut known = away::may_hold(around.rules, &around.way(), cluster_ip);
        for port in service.ports.iter().filter(|p| p.protocol.has_hook()) {
            let selection = select(candidates(port, family, slices.clone(), around), &around.place);
            let ways = away::ways(service, port, &selection, around);
            let port = PortPlan { service, port, family, cluster_ip, selection, ways, around };
            known &= !port.leaves_alone();
            port.write(&mut plan);
        }
        if known {
            plan.claims.push((FrontendKey::known(cluster_ip), Claim::closed(service)));
        }
    }
    plan
}

/// All endpoints of one service port and family, with the port that their slice gives.
pub fn candidates<'a>(
    port: &ServicePort,
    family: Family,
    slices: impl Iterator<Item = &'a Slice>,
    around: &Surroundings<'_>,
) -> Vec<Candidate> {
    let mut found = Vec::new();
    for slice in slices.filter(|s| s.family == family) {
        let named = |p: &&crate::fact::SlicePort| p.name == port.name && p.protocol == port.protocol;
        for slice_port in slice.ports.iter().filter(named) {
            found.extend(slice.endpoints.iter().map(|e| around.candidate(e, slice_port.port)));
        }
    }
    found
}

fn is_allowed(address: Address, rules: &Rules) -> bool {
    match &rules.external_ips {
        ExternalIps::On => true,
        ExternalIps::Off => false,
        ExternalIps::Within(ranges) => ranges.iter().any(|net| net.contains(&address.ip())),
    }
}

fn refuse_addresses(service: &Service, rules: &Rules, refusals: &mut Vec<Refusal>) {
    let mut refuse = |reason, message| {
        refusals.push(Refusal { subject: format!("Service {}", service.name), reason, message });
    };
    for address in service.external_ips.iter().filter(|a| !is_allowed(**a, rules)) {
        let message = format!("externalIP {address} is outside what --external-ips allows: it is left alone");
        refuse("externalIPNotAllowed", message);
    }
    let outer = service.load_balancer_ips.iter().chain(&service.external_ips);
    for address in outer.filter(|a| is_reserved(&rules.virtual_ranges, **a)) {
        let message = format!("{address} is a cloud's metadata address: it is left alone; use another one");
        refuse("metadataAddress", message);
    }
}

/// One port of a service in one family: from here on all rules are about this.
struct PortPlan<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    family: Family,
    cluster_ip: Address,
    selection: Selection,
    /// To each candidate; `None`: we are a node of the cluster, and pods are next door.
    ways: Option<Vec<Way>>,
    around: &'a Surroundings<'a>,
}

impl PortPlan<'_> {
    fn owner(&self) -> PortName {
        PortName::new(self.service.name.clone(), self.port.name.clone(), self.port.protocol)
    }

    fn name(&self, role: SetRole, audience: Audience) -> SetName {
        SetName { owner: self.owner(), family: self.family, role, audience }
    }

    /// `--local-policy=strict`: one Local policy speaks for every address.
    fn strict_local(&self) -> bool {
        self.around.rules.local_policy == LocalPolicy::Strict
            && (self.service.internal == Policy::Local || self.service.external_local())
    }

    fn internal_role(&self) -> SetRole {
        let local = self.service.internal == Policy::Local || self.strict_local();
        if local { SetRole::Local } else { SetRole::Cluster }
    }

    /// From this node, external addresses lead to the whole cluster even under external Local (the short circuit).
    fn external_role(&self) -> SetRole {
        if self.strict_local() { SetRole::Local } else { SetRole::Cluster }
    }

    /// With exact room: of a large cluster all plans are there at once.
    fn write(&self, plan: &mut ServicePlan) {
        let frontends = match &self.ways {
            None => self.frontends(),
            Some(ways) => self.frontends_away(ways, &mut plan.refusals),
        };
        let mut used: Vec<SetName> = frontends.iter().map(|(_, _, _, set)| set.clone()).collect();
        used.sort_unstable();
        used.dedup();
        plan.claims.reserve_exact(frontends.len());
        for (address, port, kind, set) in frontends {
            let key = FrontendKey::new(address, port, self.port.protocol);
            plan.claims.push((key, Claim::new(self.service, kind, set)));
        }
        let restricted = used.iter().any(|set| set.audience == Audience::Sources);
        plan.sources.extend(self.sources().filter(|_| restricted).map(|net| (self.owner(), net)));
        plan.sets.reserve_exact(used.len());
        for name in used {
            plan.sets.push(self.set(name, &mut plan.refusals));
        }
    }

    fn of_family(&self, addresses: &[Address]) -> Vec<Address> {
        let mut found: Vec<Address> = addresses.iter().copied().filter(|a| a.family() == self.family).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Load-balancer addresses, and externalIPs, that may be ours at all.
    fn outer(&self) -> [Vec<Address>; 2] {
        let rules = self.around.rules;
        let is_free = |address: &Address| !is_reserved(&rules.virtual_ranges, *address);
        let mut found =
            [&self.service.load_balancer_ips, &self.service.external_ips].map(|listed| self.of_family(listed));
        found[0].retain(is_free);
        found[1].retain(|address| is_free(address) && is_allowed(*address, rules));
        found
    }

    fn frontends(&self) -> Vec<(Address, u16, Kind, SetName)> {
        let restricted = self.sources().next().is_some();
        let internal = self.name(self.internal_role(), Audience::Everyone);
        let external = self.name(self.external_role(), Audience::Everyone);
        let balancer = if restricted { Audience::Sources } else { Audience::Everyone };
        let balancer = self.name(self.external_role(), balancer);
        let mut all = vec![(self.cluster_ip, self.port.port, Kind::ClusterIp, internal)];
        let [balancers, externals] = self.outer();
        all.extend(balancers.into_iter().map(|a| (a, self.port.port, Kind::LoadBalancer, balancer.clone())));
        all.extend(externals.into_iter().map(|a| (a, self.port.port, Kind::ExternalIp, external.clone())));
        if self.service.has_node_ports && self.port.node_port != 0 {
            let audience = if self.service.external_local() { Audience::OwnNode } else { Audience::Everyone };
            let set = self.name(self.external_role(), audience);
            all.push((Address::any(self.family), self.port.node_port, Kind::NodePort, set));
            all.extend(self.other_nodes());
        }
        all
    }

    /// Under external Local another node's NodePort is that node's local set: a row for each node that has one.
    fn other_nodes(&self) -> Vec<(Address, u16, Kind, SetName)> {
        let mut rows = Vec::new();
        if !self.service.external_local() {
            return rows;
        }
        let sets = self.selection.node_sets();
        for (node, addresses) in self.around.others.iter().filter(|(node, _)| sets.contains_key(node)) {
            for address in addresses.iter().filter(|a| a.family() == self.family) {
                let set = self.name(SetRole::Node(node.clone()), Audience::Everyone);
                rows.push((*address, self.port.node_port, Kind::NodePort, set));
            }
        }
        rows
    }

    fn sources(&self) -> impl Iterator<Item = IpNet> {
        let family = self.family;
        self.service.source_ranges.iter().copied().filter(move |net| Family::of(net.addr()) == family)
    }

    fn backends(&self, role: &SetRole) -> Vec<BackendPlan> {
        let members = match role {
            SetRole::Cluster => self.selection.cluster.clone(),
            SetRole::Local => self.selection.local.clone(),
            SetRole::Node(node) => self.selection.node_sets().remove(node).unwrap_or_default(),
        };
        match &self.ways {
            None => members.iter().map(|i| backend(&self.selection.candidates[*i])).collect(),
            Some(ways) => self.backends_away(&members, ways),
        }
    }

    fn set(&self, name: SetName, refusals: &mut Vec<Refusal>) -> SetPlan {
        let mut backends = self.backends(&name.role);
        if backends.len() > MAX_SLOTS {
            refusals.push(self.too_many(backends.len()));
            backends.truncate(MAX_SLOTS);
        }
        SetPlan {
            rule: Rule::Service,
            affinity: self.service.affinity.unwrap_or(0),
            when_empty: self.when_empty(&name.role),
            any: self.selection.any,
            next: None,
            policy: None,
            name,
            backends,
        }
    }

    fn when_empty(&self, role: &SetRole) -> WhenEmpty {
        if *role != SetRole::Cluster && self.selection.any { WhenEmpty::Fail } else { WhenEmpty::Refuse }
    }

    fn too_many(&self, count: usize) -> Refusal {
        Refusal {
            subject: format!("Service {}", self.service.name),
            reason: "tooManyEndpoints",
            message: format!("{count} endpoints of {}: only the first {MAX_SLOTS} are used", self.owner()),
        }
    }
}

fn backend(c: &Candidate) -> BackendPlan {
    BackendPlan { address: c.address, port: c.port, node: c.node.clone() }
}
