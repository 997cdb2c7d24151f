//! The plan of one Service on this host: the frontends that it claims and the sets that they lead to. Pure functions,
//! without ids.

pub(crate) mod demand;
pub mod policy;
mod port_pair;
pub mod protected;
pub mod remote;
pub(crate) mod target;
mod weight;

pub use port_pair::{PortPair, PortPairs};
use protected::{ProtectedAddresses, Protection};

use crate::address::{Address, Family};
use crate::claim::{Claim, Claims};
use crate::cluster::order::{ClusterContext, RangeConflict};
use crate::cluster::path::{self, EndpointPath};
use crate::cluster::view::OtherCluster;
use crate::hash::HashMap;
use crate::name::{Audience, Name, PortName, SetName, SetRole};
use crate::object::{Endpoint, Node, Service, ServicePort, Slice, TrafficPolicy};
use crate::policy::Limit;
use crate::reach::Reach;
use crate::refusal::{Refusal, RefusalReason};
use crate::row::{FrontendKey, FrontendKind, MAX_SLOTS, Rule, Scope, WhenEmpty};
use crate::rules::{ExternalIps, LocalTrafficPolicy, Rules};
use crate::select::{Candidate, NodeLocation, Selection, select};
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
    /// Sorted. A weight is expressed by repeating an entry.
    pub backends: Vec<BackendPlan>,
    pub rule: Rule,
    pub affinity: u32,
    pub when_empty: WhenEmpty,
    /// Whether any endpoint anywhere could serve.
    pub has_any_endpoint: bool,
    pub next: Option<SetName>,
    /// `None` for a set of a Service.
    pub policy: Option<SetPolicy>,
}

/// What a policy requires of its sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetPolicy {
    /// One bucket for all sets of the policy. A dial that exceeds the limit goes to the next set.
    pub limit: Option<Limit>,
    /// A dial from a pod that the policy selects goes to the next set.
    pub self_next: bool,
}

impl SetPolicy {
    /// Whether the kernel must check anything for the policy.
    pub fn is_active(&self) -> bool {
        self.limit.is_some() || self.self_next
    }
}

impl SetPlan {
    /// The value in the set's row. A set that does not serve other nodes' addresses also says what dials to those get.
    pub fn header_when_empty(&self) -> WhenEmpty {
        if self.name.audience == Audience::OwnNode && self.has_any_endpoint { WhenEmpty::Fail } else { self.when_empty }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    pub sets: Vec<SetPlan>,
    pub claims: Vec<(FrontendKey, Claim)>,
    pub sources: Vec<(PortName, IpNet)>,
    pub refusals: Vec<Refusal>,
    /// The cgroup ids of the pods that a LocalRedirectPolicy selects. The kernel must know them before the pods are in
    /// a set.
    pub members: Vec<u64>,
    /// Why some addresses are not programmed in view 0.
    pub withheld: Option<Box<RangeConflict>>,
}

impl ServicePlan {
    /// Removes the sets that no frontend and no set above leads to, because another claim holds the frontend.
    pub fn retain_reachable_sets(&mut self, claims: &Claims) {
        if self.claims.iter().all(|(key, _)| claims.claimants(key).len() < 2) {
            return;
        }
        let serves = |(key, claim): &&(FrontendKey, Claim)| claims.chain(key).any(|holding| holding == claim);
        let used: BTreeSet<&SetName> = self.claims.iter().filter(serves).filter_map(|(_, c)| c.set.as_ref()).collect();
        self.sets.retain(|set| used.contains(&set.name));
        self.sources
            .retain(|(owner, _)| used.iter().any(|name| name.audience == Audience::Sources && name.owner == *owner));
    }

    /// Removes the frontends of a policy without backends if the policy's Service leaves them to a route.
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

    /// Links each set of a policy to the next set in the chain of its frontend.
    pub fn link(&mut self, claims: &Claims) {
        let of_policy = self.sets.iter_mut().filter(|set| set.policy.is_some());
        let mut sets: HashMap<SetName, &mut SetPlan> = of_policy.map(|set| (set.name.clone(), set)).collect();
        if sets.is_empty() {
            return;
        }
        for (key, claim) in &self.claims {
            let mut chain = claims.chain(key).skip_while(|holding| *holding != claim);
            // The claim does not hold the key, for example in a view in which another cluster comes first. Such a key
            // links nothing.
            let Some(_) = chain.next() else { continue };
            if let Some(set) = claim.set.as_ref().and_then(|name| sets.get_mut(name)) {
                set.next = chain.next().and_then(|claim| claim.set.clone());
            }
        }
    }
}

/// What the plans of one cluster's Services and policies depend on.
pub struct PlanContext<'a> {
    pub rules: &'a Rules,
    pub location: NodeLocation,
    /// The node of each known address. An endpoint that names no node (such as those of `default/kubernetes`) is on the
    /// node that has its address.
    pub hosts: &'a BTreeMap<Address, Name>,
    /// The other nodes, with the addresses at which they serve NodePorts.
    pub others: &'a [(Name, Vec<Address>)],
    pub cluster: &'a ClusterContext,
    pub nodes: &'a BTreeMap<Name, Node>,
    pub reach: &'a Reach,
    pub other_clusters: Vec<OtherCluster<'a>>,
    pub protected: ProtectedAddresses<'a>,
}

impl<'a> PlanContext<'a> {
    pub(crate) fn candidate(&self, endpoint: &Endpoint, port: u16) -> Candidate {
        let node = endpoint.node.as_ref().or_else(|| self.hosts.get(&endpoint.address));
        let local = node == Some(&self.rules.node_name) && !self.cluster.is_remote();
        Candidate::new(endpoint, port, node.cloned(), local)
    }

    pub fn path_context(&self) -> path::PathContext<'a> {
        let ClusterContext { host_role, rules: cluster, .. } = self.cluster;
        let own = &self.rules.own_addresses;
        path::PathContext {
            host_role: *host_role,
            cluster,
            nodes: self.nodes,
            hosts: self.hosts,
            reach: self.reach,
            own,
        }
    }
}

pub fn plan_service<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Slice> + Clone,
    context: &PlanContext<'_>,
) -> ServicePlan {
    let mut plan = ServicePlan::default();
    refuse_addresses(service, context, &mut plan.refusals);
    remote::refuse_own_addresses(service, context, &mut plan.refusals);
    for family in Family::BOTH {
        let Some(cluster_ip) = service.cluster_ip(family) else { continue };
        plan.claims.reserve_exact(1 + service.ports.len());
        let mut claims_all_ports = remote::may_program(context.rules, &context.path_context(), cluster_ip);
        for port in service.ports.iter().filter(|p| p.protocol.has_hook()) {
            let selection = select(candidates(port, family, slices.clone(), context), &context.location);
            let paths = remote::paths(service, port, &selection, context);
            let port = PortPlan { service, port, family, cluster_ip, selection, paths, context };
            claims_all_ports &= !port.is_left_to_network();
            port.write(&mut plan);
        }
        if claims_all_ports {
            plan.claims.push((FrontendKey::all_ports(cluster_ip), Claim::closed(service)));
        }
    }
    plan
}

/// All endpoints of one service port and family, with the port number from their slice.
pub fn candidates<'a>(
    port: &ServicePort,
    family: Family,
    slices: impl Iterator<Item = &'a Slice>,
    context: &PlanContext<'_>,
) -> Vec<Candidate> {
    let mut found = Vec::new();
    for slice in slices.filter(|s| s.family == family) {
        let named = |p: &&crate::object::SlicePort| p.name == port.name && p.protocol == port.protocol;
        for slice_port in slice.ports.iter().filter(named) {
            found.extend(slice.endpoints.iter().map(|e| context.candidate(e, slice_port.port)));
        }
    }
    found
}

/// Whether `--external-ips` allows the address as an externalIP.
fn is_allowed(address: Address, context: &PlanContext<'_>) -> bool {
    match &context.rules.external_ips {
        ExternalIps::Home => !context.cluster.is_remote(),
        ExternalIps::On => true,
        ExternalIps::Off => false,
        ExternalIps::Within(ranges) => ranges.iter().any(|net| net.contains(&address.ip())),
    }
}

fn refuse_addresses(service: &Service, context: &PlanContext<'_>, refusals: &mut Vec<Refusal>) {
    let mut refuse = |reason, message| {
        refusals.push(Refusal { subject: (&service.name).into(), reason, message });
    };
    for address in service.external_ips.iter().filter(|a| !is_allowed(**a, context)) {
        let message = format!("externalIP {address} is not allowed by --external-ips and is not programmed");
        refuse(RefusalReason::ExternalIpNotAllowed, message);
    }
    let external = service.external_ips.iter().filter(|a| is_allowed(**a, context));
    for address in service.load_balancer_ips.iter().chain(external) {
        if is_reserved(&context.rules.virtual_address_cidrs, *address) {
            let message = format!("{address} is a cloud's metadata address and is not programmed: use another address");
            refuse(RefusalReason::MetadataAddress, message);
        } else if let Some(Protection { reason, what }) = context.protected.at(service, *address) {
            refuse(reason, format!("{address} is {what} and is not programmed: use another address"));
        }
        for port in service.ports.iter().filter(|port| context.protected.is_api_server(*address, port.port)) {
            let message =
                format!("{address}:{} is an API server and is not programmed: use another address", port.port);
            refuse(RefusalReason::ApiServerAddress, message);
        }
    }
}

/// The address, port and kind of a frontend, and the set that it leads to.
type PlannedFrontend = (Address, u16, FrontendKind, SetName);

/// One port of a Service in one family.
struct PortPlan<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    family: Family,
    cluster_ip: Address,
    selection: Selection,
    /// The path to each candidate. `None` on a node of the cluster, where every pod is reached at its own address.
    paths: Option<Vec<EndpointPath>>,
    context: &'a PlanContext<'a>,
}

impl PortPlan<'_> {
    fn owner(&self) -> PortName {
        PortName::new(self.service.name.clone(), self.port.name.clone(), self.port.protocol)
    }

    fn name(&self, role: SetRole, audience: Audience) -> SetName {
        SetName { owner: self.owner(), family: self.family, role, audience }
    }

    /// `--local-traffic-policy=strict`: one Local policy applies to every address.
    fn strict_local(&self) -> bool {
        self.context.rules.local_traffic_policy == LocalTrafficPolicy::Strict
            && (self.service.internal == TrafficPolicy::Local || self.service.external_local())
    }

    fn internal_role(&self) -> SetRole {
        let local = self.service.internal == TrafficPolicy::Local || self.strict_local();
        if local { SetRole::Local } else { SetRole::Cluster }
    }

    /// On a node, external addresses lead to all endpoints of the cluster even under externalTrafficPolicy Local, as
    /// with kube-proxy.
    fn external_role(&self) -> SetRole {
        if self.strict_local() { SetRole::Local } else { SetRole::Cluster }
    }

    /// Reserves exact capacity, because the plans of a large cluster are in memory at the same time.
    fn write(&self, plan: &mut ServicePlan) {
        let frontends = match &self.paths {
            None => self.frontends(),
            Some(paths) => self.remote_frontends(paths, &mut plan.refusals),
        };
        let outside = self.outside_frontends();
        let mut used: Vec<SetName> = frontends.iter().chain(&outside).map(|(_, _, _, set)| set.clone()).collect();
        used.sort_unstable();
        used.dedup();
        plan.claims.reserve_exact(frontends.len() + outside.len());
        let scoped = |scope, rows: Vec<PlannedFrontend>| rows.into_iter().map(move |row| (scope, row));
        for (scope, row) in scoped(Scope::Inside, frontends).chain(scoped(Scope::Outside, outside)) {
            let (address, port, kind, set) = row;
            let key = FrontendKey { scope, ..FrontendKey::new(address, port, self.port.protocol) };
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

    /// The load-balancer addresses and the externalIPs that may be programmed.
    fn external_addresses(&self) -> [Vec<Address>; 2] {
        let (context, protected) = (self.context, &self.context.protected);
        let is_free = |address: &Address| {
            !is_reserved(&context.rules.virtual_address_cidrs, *address)
                && protected.at(self.service, *address).is_none()
                && !protected.is_api_server(*address, self.port.port)
        };
        let mut found =
            [&self.service.load_balancer_ips, &self.service.external_ips].map(|listed| self.of_family(listed));
        found[0].retain(is_free);
        found[1].retain(|address| is_allowed(*address, context) && is_free(address));
        found
    }

    fn frontends(&self) -> Vec<PlannedFrontend> {
        let restricted = self.sources().next().is_some();
        let internal = self.name(self.internal_role(), Audience::Everyone);
        let external = self.name(self.external_role(), Audience::Everyone);
        let balancer = if restricted { Audience::Sources } else { Audience::Everyone };
        let balancer = self.name(self.external_role(), balancer);
        let mut all = vec![(self.cluster_ip, self.port.port, FrontendKind::ClusterIp, internal)];
        let [balancers, externals] = self.external_addresses();
        all.extend(balancers.into_iter().map(|a| (a, self.port.port, FrontendKind::LoadBalancer, balancer.clone())));
        all.extend(externals.into_iter().map(|a| (a, self.port.port, FrontendKind::ExternalIp, external.clone())));
        if self.service.has_node_ports && self.port.node_port != 0 {
            let audience = if self.service.external_local() { Audience::OwnNode } else { Audience::Everyone };
            let set = self.name(self.external_role(), audience);
            all.push((Address::any(self.family), self.port.node_port, FrontendKind::NodePort, set));
            all.extend(self.frontends_of_other_nodes());
        }
        all
    }

    /// Under externalTrafficPolicy Local, packets from outside the cluster reach the endpoints of this node only, while
    /// dials on this node reach all endpoints. Only these frontends have a second row.
    fn outside_frontends(&self) -> Vec<PlannedFrontend> {
        if !self.context.rules.packet_path || self.paths.is_some() || !self.service.external_local() {
            return Vec::new();
        }
        let restricted = self.sources().next().is_some();
        let local = self.name(SetRole::Local, Audience::Everyone);
        let balancer = self.name(SetRole::Local, if restricted { Audience::Sources } else { Audience::Everyone });
        let [balancers, externals] = self.external_addresses();
        let mut all = Vec::new();
        all.extend(balancers.into_iter().map(|a| (a, self.port.port, FrontendKind::LoadBalancer, balancer.clone())));
        all.extend(externals.into_iter().map(|a| (a, self.port.port, FrontendKind::ExternalIp, local.clone())));
        if self.service.has_node_ports && self.port.node_port != 0 {
            all.push((Address::any(self.family), self.port.node_port, FrontendKind::NodePort, local));
        }
        all
    }

    /// Under externalTrafficPolicy Local, the NodePort of another node leads to the local set of that node: one row for
    /// each node that has endpoints.
    fn frontends_of_other_nodes(&self) -> Vec<PlannedFrontend> {
        let mut rows = Vec::new();
        if !self.service.external_local() {
            return rows;
        }
        let sets = self.selection.node_sets();
        for (node, addresses) in self.context.others.iter().filter(|(node, _)| sets.contains_key(node)) {
            for address in addresses.iter().filter(|a| a.family() == self.family) {
                let set = self.name(SetRole::Node(node.clone()), Audience::Everyone);
                rows.push((*address, self.port.node_port, FrontendKind::NodePort, set));
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
        match &self.paths {
            None => members.iter().map(|i| backend(&self.selection.candidates[*i])).collect(),
            Some(paths) => self.remote_backends(&members, paths),
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
            has_any_endpoint: self.selection.any,
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
            subject: (&self.service.name).into(),
            reason: RefusalReason::TooManyEndpoints,
            message: format!("{count} endpoints of {}: only the first {MAX_SLOTS} are used", self.owner()),
        }
    }
}

fn backend(c: &Candidate) -> BackendPlan {
    BackendPlan { address: c.address, port: c.port, node: c.node.clone() }
}
