//! Plans everything that is dirty again and computes the delta: changed plans, changed claims, and the Services and
//! policies that now hold a frontend or link to another set because of them.

use super::policy_index::service_of;
use super::{Delta, Planner};
use crate::address::Address;
use crate::capacity::TableRows;
use crate::claim::Claim;
use crate::cluster::order::RangeConflict;
use crate::cluster::view::{OtherCluster, ViewInputs, expand_views};
use crate::hash::HashSet;
use crate::name::{Name, ServiceName};
use crate::object::Slice;
use crate::plan::policy::{PolicyContext, failure, plan_policy};
use crate::plan::protected::ProtectedAddresses;
use crate::plan::{PlanContext, ServicePlan, demand, plan_service};
use crate::policy::{Matcher, Policy, Target};
use crate::row::FrontendKey;
use crate::rules::HostRole;
use crate::select::NodeLocation;
use crate::virtual_address;
use std::collections::BTreeMap;

impl Planner {
    pub(super) fn replan(&mut self, mut names: HashSet<ServiceName>) -> Delta {
        let decided = self.share_tables(&names);
        names.extend(decided);
        let mut delta = Delta::default();
        let mut keys: HashSet<FrontendKey> = HashSet::default();
        let contested = self.claims.is_contested();
        // Services first, because a virtual address is free only if no Service claims it.
        let (services, mut policies): (HashSet<ServiceName>, HashSet<ServiceName>) =
            names.into_iter().partition(|name| name.policy_kind().is_none());
        policies.extend(self.policies_on(&services));
        let planned = self.plan_services(services, &mut keys);
        delta.services.extend(planned);
        let planned = self.plan_all(policies);
        self.claim_all(&planned, &mut keys);
        delta.services.extend(planned);
        self.add_node_rows(&mut keys);
        self.add_other_ports(&mut keys);
        if contested || self.claims.is_contested() {
            self.replan_contested(&mut delta, &keys);
        }
        let winner = |key: FrontendKey| (key, self.claims.winner(&key).cloned());
        if self.claims.is_contested() {
            delta.below = keys.iter().filter_map(|key| Some((*key, self.below(key)?))).collect();
        }
        delta.frontends = keys.iter().copied().map(winner).collect();
        delta.frontends.extend(self.unclaimed_adopted(&keys).into_iter().map(|key| (key, None)));
        if std::mem::take(&mut self.nodes_dirty) {
            delta.nodes = Some(self.node_rows());
        }
        delta.pending = self.pending_clusters();
        let waiting = self.order.clusters().iter().filter(|cluster_context| cluster_context.waits_in_default_view());
        delta.waiting = waiting.map(|cluster_context| cluster_context.number).collect();
        delta
    }

    /// Decides who gets rows. Returns the Services and policies for which that changed.
    fn share_tables(&mut self, names: &HashSet<ServiceName>) -> HashSet<ServiceName> {
        for (name, rows) in self.demands(names) {
            self.capacity.set(&name, rows);
        }
        let review = std::mem::take(&mut self.review_capacity);
        let (services, policies) = (&self.services, &self.policies);
        let created = |name: &ServiceName| {
            let service = services.get(name).map(|service| service.created);
            service.or_else(|| Some(policies.policy(name)?.created)).unwrap_or(i64::MAX)
        };
        self.capacity.decide(review, created)
    }

    /// The number of rows that each of them needs; `None` if it does not exist.
    fn demands(&self, names: &HashSet<ServiceName>) -> Vec<(ServiceName, Option<TableRows>)> {
        if !self.capacity.is_limited() {
            return Vec::new();
        }
        let mut contexts: BTreeMap<&str, Option<PlanContext<'_>>> = BTreeMap::new();
        for name in names {
            contexts.entry(name.cluster()).or_insert_with(|| self.plan_context(name.cluster()));
        }
        let demand = |name: &ServiceName| self.demand(name, contexts.get(name.cluster())?.as_ref()?);
        names.iter().map(|name| (name.clone(), demand(name))).collect()
    }

    fn demand(&self, name: &ServiceName, context: &PlanContext<'_>) -> Option<TableRows> {
        match self.policies.policy(name) {
            Some(policy) => Some(demand::of_policy(policy, &self.policy_context(name, policy, context))),
            None => Some(demand::of_service(self.services.get(name)?, self.slices_of(name), context)),
        }
    }

    /// Plans Services. One that claims an external address is planned again if that address became, or no longer is, the
    /// ClusterIP of another Service. ClusterIPs depend on no other Service, so the second time decides.
    fn plan_services(
        &mut self,
        names: HashSet<ServiceName>,
        keys: &mut HashSet<FrontendKey>,
    ) -> Vec<(ServiceName, Option<ServicePlan>)> {
        let mut planned = self.plan_all(names);
        self.claim_all(&planned, keys);
        // With several clusters, the ranks of the clusters decide instead.
        let changed = keys.iter().filter(|key| key.protocol.is_none() && !self.has_several_clusters());
        let again: HashSet<ServiceName> =
            changed.flat_map(|key| self.external_claimants(&key.address)).cloned().collect();
        if !again.is_empty() {
            planned.retain(|(name, _)| !again.contains(name));
            let second = self.plan_all(again);
            self.claim_all(&second, keys);
            planned.extend(second);
        }
        planned
    }

    fn below(&self, key: &FrontendKey) -> Option<Vec<Claim>> {
        let claims: Vec<Claim> = self.claims.chain(key).skip(1).cloned().collect();
        (!claims.is_empty()).then_some(claims)
    }

    fn plan_all(&self, names: HashSet<ServiceName>) -> Vec<(ServiceName, Option<ServicePlan>)> {
        let mut names: Vec<ServiceName> = names.into_iter().collect();
        names.sort_unstable();
        // The names are sorted, so all names of one cluster are consecutive.
        let mut context: Option<(&str, Option<PlanContext<'_>>)> = None;
        let mut plans = Vec::with_capacity(names.len());
        for name in &names {
            let cluster = name.cluster();
            let (_, current) = match context.take() {
                Some(known) if known.0 == cluster => context.insert(known),
                _ => context.insert((cluster, self.plan_context(cluster))),
            };
            plans.push(current.as_ref().and_then(|context| self.plan(name, context)));
        }
        names.into_iter().zip(plans).collect()
    }

    /// Plans three more groups: claims that inherited a frontend, whose sets may not be programmed yet; policies above
    /// them, which link to another set now; and claims that lost a frontend, whose sets may be unreachable.
    fn replan_contested(&self, delta: &mut Delta, keys: &HashSet<FrontendKey>) {
        let planned: HashSet<ServiceName> = delta.services.iter().map(|(name, _)| name.clone()).collect();
        let holders = keys.iter().flat_map(|key| self.claims.chain(key)).map(|claim| &claim.service);
        let inheritors = holders.filter(|name| !planned.contains(name)).cloned().collect();
        delta.services.extend(self.plan_all(inheritors));
        for plan in delta.services.iter_mut().filter_map(|(_, plan)| plan.as_mut()) {
            plan.retain_reachable_sets(&self.claims);
            plan.link(&self.claims);
        }
    }

    /// Without the pod network, a policy without backends leaves its frontends to a route exactly if its Service does.
    fn policies_on(&self, services: &HashSet<ServiceName>) -> Vec<ServiceName> {
        let has_no_pod_network =
            |name: &&ServiceName| self.order.get(name.cluster()).is_some_and(|o| o.host_role != HostRole::Node);
        services.iter().filter(has_no_pod_network).flat_map(|name| self.policies.on_service(name)).cloned().collect()
    }

    /// An address moves from one cluster to another on all its ports at once.
    fn add_other_ports(&self, keys: &mut HashSet<FrontendKey>) {
        let mut more = Vec::new();
        for all_ports in keys.iter().filter(|key| key.protocol.is_none() && self.has_several_clusters()) {
            let claimants = self.claims.claimants(all_ports).iter().map(|claim| &claim.service);
            let claimed = claimants.filter_map(|name| self.claimed.get(name)).flat_map(|keys| keys.iter());
            more.extend(claimed.filter(|key| key.fallbacks()[0] == *all_ports).copied());
        }
        keys.extend(more);
    }

    /// When the owner of a nodePort changes, its rows at other nodes' addresses change as well.
    fn add_node_rows(&self, keys: &mut HashSet<FrontendKey>) {
        let mut more = Vec::new();
        for wildcard in keys.iter().filter(|key| key.is_node_port_row()) {
            let claimants = self.claims.claimants(wildcard).iter().map(|claim| &claim.service);
            let claimed = claimants.filter_map(|name| self.claimed.get(name)).flat_map(|keys| keys.iter());
            more.extend(claimed.filter(|key| key.fallbacks()[1] == *wildcard).copied());
        }
        keys.extend(more);
    }

    /// `None` if the cluster is not configured.
    pub fn plan_context(&self, cluster: &str) -> Option<PlanContext<'_>> {
        let (cluster_context, state) = (self.order.get(cluster)?, self.cluster_nodes.get(cluster)?);
        let own = self.own_node().and_then(|node| node.zone.clone()).filter(|_| !cluster_context.is_remote());
        let zone = cluster_context.rules.zone.clone().or(own);
        let node = if cluster_context.is_remote() { "".into() } else { self.rules.node_name.clone() };
        Some(PlanContext {
            rules: &self.rules,
            location: NodeLocation { node, zone },
            hosts: &state.hosts,
            others: &state.others,
            cluster: cluster_context,
            nodes: &state.nodes,
            reach: &self.reach,
            other_clusters: self.other_clusters(&cluster_context.rules.name),
            protected: ProtectedAddresses {
                rules: &self.rules,
                api_servers: self.api_servers_of(cluster),
                service_ranges: &cluster_context.ranges,
                pod_ranges: &state.pod_ranges,
                hosts: (!cluster_context.is_remote()).then_some(&state.hosts),
                own_node: state.nodes.get(&self.rules.node_name).filter(|_| !cluster_context.is_remote()),
                claims: (!self.has_several_clusters()).then_some(&self.claims),
            },
        })
    }

    fn other_clusters(&self, cluster: &Name) -> Vec<OtherCluster<'_>> {
        let others = self.order.clusters().iter().filter(|cluster_context| cluster_context.rules.name != *cluster);
        let known = others.filter_map(|cluster_context| {
            Some((cluster_context, self.cluster_nodes.get(&cluster_context.rules.name)?))
        });
        known
            .map(|(cluster_context, state)| OtherCluster {
                context: cluster_context,
                hosts: &state.hosts,
                has_data: state.has_data,
            })
            .collect()
    }

    pub(super) fn plan(&self, name: &ServiceName, context: &PlanContext<'_>) -> Option<ServicePlan> {
        if self.capacity.is_refused(name) {
            return None;
        }
        let policy = self.policies.policy(name);
        let mut plan = match policy {
            Some(policy) => plan_policy(policy, &self.policy_context(name, policy, context)),
            None => plan_service(self.services.get(name)?, self.slices_of(name), context),
        };
        if let Some(service) = policy.and_then(service_of).filter(|_| context.cluster.host_role != HostRole::Node) {
            let views = || context.cluster.view_ranks.iter().map(|rank| rank.view);
            let has = |key: FrontendKey| self.claims.claimants(&key).iter().any(|claim| claim.service == service);
            plan.leave_to_network(|key| views().any(|view| has(FrontendKey { view, ..*key })));
        }
        if !context.cluster.is_plain() || !context.other_clusters.is_empty() {
            let (has, held) =
                (|key: &FrontendKey| self.holds_key(name, key), |key: &FrontendKey| self.adopted_cluster(key));
            let inputs = ViewInputs { others: &context.other_clusters, has: &has, held: &held };
            plan.withheld = expand_views(&mut plan, context.cluster, &inputs).map(Box::new);
        }
        Some(plan)
    }

    /// The cluster that the tables held the address for when the agent started.
    fn adopted_cluster(&self, all_ports: &FrontendKey) -> Option<&str> {
        self.adopted.get(all_ports).map(ServiceName::cluster)
    }

    pub(super) fn holds_key(&self, name: &ServiceName, key: &FrontendKey) -> bool {
        let holder = self.claims.winner(key).map(|claim| &claim.service);
        holder == Some(name) || self.adopted.get(key) == Some(name)
    }

    pub(super) fn policy_context<'a>(
        &'a self,
        name: &ServiceName,
        policy: &Policy,
        context: &'a PlanContext<'_>,
    ) -> PolicyContext<'a> {
        PolicyContext {
            rules: &self.rules,
            path: context.path_context(),
            pods: self.policies.pods(),
            cgroups: self.policies.cgroups(),
            service: service_of(policy).and_then(|name| self.services.get(&name)),
            slices: self.policies.slices_of(name),
            taken: match policy.matcher {
                Matcher::Address { address, .. } => self.address_owner(&address, context),
                Matcher::Service { .. } => None,
            },
            frontend_as_backend: match &policy.target {
                Target::Addresses { addresses, .. } => {
                    addresses.iter().find_map(|address| Some((*address, self.frontend_at(address, context)?)))
                }
                Target::Pods { .. } | Target::LocalPods { .. } => None,
            },
            protected: &context.protected,
        }
    }

    /// The ClusterIP or virtual address that an address is, in the same cluster or an earlier one.
    fn frontend_at(&self, address: &Address, context: &PlanContext<'_>) -> Option<String> {
        if let Some(claim) = self.earlier_cluster_ip(address, context) {
            return Some(format!("the ClusterIP of Service {}", claim.service));
        }
        let cluster = &*context.cluster.rules.name;
        let mut policies = self.policies.at_address(address).filter(|owner| owner.cluster() == cluster);
        let is_allowed = virtual_address::check(&self.rules.virtual_address_cidrs, *address).is_ok();
        policies.next().filter(|_| is_allowed).map(|owner| format!("the virtual address of {}", owner.subject()))
    }

    /// The claim of a Service to its ClusterIP. The claim of a later cluster does not count.
    fn earlier_cluster_ip(&self, address: &Address, context: &PlanContext<'_>) -> Option<&Claim> {
        let is_earlier =
            |claim: &&Claim| context.cluster.view_ranks.iter().any(|r| r.view == 0 && r.rank >= claim.rank);
        self.claims.cluster_ip_of(&FrontendKey::all_ports(*address)).filter(is_earlier)
    }

    /// The current owner of an address that a policy wants as its virtual address.
    fn address_owner(&self, address: &Address, context: &PlanContext<'_>) -> Option<String> {
        match (self.earlier_cluster_ip(address, context), context.hosts.get(address)) {
            (Some(claim), _) => Some(format!("the ClusterIP of Service {}: use serviceMatcher", claim.service)),
            (None, Some(node)) => Some(format!("an address of node {node}, or of a pod on it: choose another")),
            (None, None) if self.rules.own_addresses.contains(address) => {
                Some("an address of this host: choose another".into())
            }
            (None, None) => None,
        }
    }

    fn depends_on_nodes(&self, name: &ServiceName) -> bool {
        let has_no_node = |slice: &Slice| slice.endpoints.iter().any(|e| e.node.is_none());
        self.services.get(name).is_some_and(|s| s.external_local() && s.has_node_ports)
            || self.slices_of(name).any(has_no_node)
    }

    fn claim_all(&mut self, planned: &[(ServiceName, Option<ServicePlan>)], keys: &mut HashSet<FrontendKey>) {
        let claims = planned.iter().filter_map(|(_, plan)| Some(plan.as_ref()?.claims.len())).sum();
        keys.reserve(claims);
        self.claims.reserve(claims.saturating_sub(self.claims.len()));
        for (name, plan) in planned {
            self.claim(name, plan.as_ref(), keys);
        }
        self.record_claimed(planned);
    }

    /// Replaces the claims of a Service or policy, and adds every key whose owner may have changed to `keys`.
    fn claim(&mut self, name: &ServiceName, plan: Option<&ServicePlan>, keys: &mut HashSet<FrontendKey>) {
        for key in self.claimed.remove(name).iter().flat_map(|old| old.iter()) {
            self.claims.remove(key, name);
            keys.insert(*key);
        }
        self.refusals.remove(name);
        self.policy_failures.remove(name);
        self.withheld.remove(name);
        self.by_nodes.remove(name);
        if name.policy_kind().is_some() {
            self.claims.set_service(name, self.policies.policy(name).and_then(service_of));
        }
        let Some(plan) = plan else { return };
        for (key, claim) in &plan.claims {
            self.claims.add(*key, claim.clone());
            keys.insert(*key);
        }
        if !plan.refusals.is_empty() {
            self.refusals.insert(name.clone(), plan.refusals.clone());
            if let Some(failure) = failure(plan).filter(|_| name.policy_kind().is_some()) {
                self.policy_failures.insert(name.clone(), failure.clone());
            }
        }
        if let Some(conflict) = &plan.withheld {
            self.withheld.insert(name.clone(), RangeConflict::clone(conflict));
        }
        if self.depends_on_nodes(name) {
            self.by_nodes.insert(name.clone());
        }
    }

    /// Records the claims after all plans are made. Allocated in between, these long-lived lists would fragment the
    /// memory that the plans release.
    fn record_claimed(&mut self, planned: &[(ServiceName, Option<ServicePlan>)]) {
        self.claimed.reserve(planned.len().saturating_sub(self.claimed.len()));
        for (name, plan) in planned {
            if let Some(plan) = plan {
                self.claimed.insert(name.clone(), plan.claims.iter().map(|(key, _)| *key).collect());
            }
        }
    }
}
