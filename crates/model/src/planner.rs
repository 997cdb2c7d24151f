//! The planner: synchronous state without a client. Changes of objects go in, and the changes of the plan come out.
//!
//! The cost is proportional to the change: a change marks the Services and policies that depend on it as dirty, and
//! only those are planned again. Indexes: slice to Service, frontend to claims, node to Services (those with
//! externalTrafficPolicy Local). The indexes of policies are in `policy_index`.

mod cluster;
mod cluster_nodes;
mod node;
mod pod;
mod pod_prefix;
mod policy_index;
pub mod policy_state;
mod protected;
mod reach_target;
mod replan;

use crate::address::Address;
use crate::capacity::CapacityTracker;
use crate::change::{Change, ObjectKey};
use crate::claim::{Claim, Claims};
use crate::cluster::order::{ClusterOrder, RangeConflict, Ranges};
use crate::diff::ReconcileOutcome;
use crate::hash::{HashMap, HashSet};
use crate::name::{Name, ServiceName};
use crate::object::{Node, Object, Service, Slice, SliceName};
use crate::plan::ServicePlan;
use crate::policy::PolicySlice;
use crate::reach::Reach;
use crate::refusal::{Refusal, RefusalReason};
use crate::row::{FrontendKey, FrontendKind, NodeRow, Sizes};
use crate::rules::Rules;
use cluster_nodes::ClusterNodes;
use pod_prefix::PodPrefixes;
use policy_index::{Affected, PolicyIndex};
use protected::{ExternalAddresses, changed_api_servers};
use reach_target::{ReachTargets, SlicePods};
use std::collections::{BTreeMap, BTreeSet};

/// The changes of the plan since the last call.
#[derive(Debug, Default)]
pub struct Delta {
    /// `None` if the Service or policy no longer has a plan.
    pub services: Vec<(ServiceName, Option<ServicePlan>)>,
    /// Frontends whose owner may have changed.
    pub frontends: Vec<(FrontendKey, Option<Claim>)>,
    /// The claims that follow the owner in the chain, for frontends that have any.
    pub below: HashMap<FrontendKey, Vec<Claim>>,
    /// All node rows, if any of them changed.
    pub nodes: Option<BTreeMap<Address, NodeRow>>,
    /// Configured clusters of which no object was received yet. Their rows in the tables stay.
    pub pending: Vec<PendingCluster>,
    /// The numbers of the clusters that get no new node rows yet, because the ranges of an earlier cluster are unknown.
    /// They keep their node rows.
    pub waiting: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingCluster {
    pub cluster: Name,
    pub number: u16,
    /// The rank of the cluster by view.
    pub ranks: Vec<(u32, u8)>,
    /// The numbers of the clusters that come after it in the configuration.
    pub later: Vec<u16>,
}

impl Delta {
    pub fn below(&self, key: &FrontendKey) -> &[Claim] {
        self.below.get(key).map_or(&[], Vec::as_slice)
    }
}

#[derive(Debug)]
pub struct Planner {
    rules: Rules,
    services: HashMap<ServiceName, Service>,
    /// Sorted by name. Most Services have one slice, for which a tree per Service would need ten times the memory.
    slices: HashMap<ServiceName, Vec<Slice>>,
    slice_owner: HashMap<SliceName, ServiceName>,
    /// The nodes and ranges of each cluster.
    cluster_nodes: BTreeMap<Name, ClusterNodes>,
    /// The configured clusters and their order.
    order: ClusterOrder,
    views: BTreeSet<Name>,
    reach: Reach,
    pod_prefixes: PodPrefixes,
    reach_targets: ReachTargets,
    policies: PolicyIndex,
    capacity: CapacityTracker,
    /// Decide again who gets rows, because something that is refused may fit now.
    review_capacity: bool,
    external_addresses: ExternalAddresses,
    /// By cluster: the addresses at which the agent reaches its API servers.
    api_servers: BTreeMap<Name, Vec<(Address, u16)>>,
    /// There is no controller: the caller computes and applies the slices of policies itself.
    self_publishing: bool,
    claims: Claims,
    claimed: HashMap<ServiceName, Box<[FrontendKey]>>,
    /// The owners of the rows that the tables held when the agent started.
    adopted: HashMap<FrontendKey, ServiceName>,
    /// The owners of service ranges may have changed since the adopted rows were last checked.
    ranges_changed: bool,
    refusals: HashMap<ServiceName, Vec<Refusal>>,
    /// Policies that serve no dial on this host although they should.
    policy_failures: HashMap<ServiceName, Refusal>,
    /// Services and policies with addresses that belong, or may belong, to an earlier cluster.
    withheld: HashMap<ServiceName, RangeConflict>,
    /// Services that are planned again when another node changes: those with externalTrafficPolicy Local, and those
    /// with an endpoint that names no node.
    by_nodes: HashSet<ServiceName>,
    dirty: HashSet<ServiceName>,
    nodes_dirty: bool,
}

impl Planner {
    pub fn new(rules: Rules) -> Planner {
        let order = ClusterOrder::new(rules.host_role, &rules.clusters, &Ranges::new(), &BTreeSet::new());
        let mut planner = Planner {
            rules,
            services: HashMap::default(),
            slices: HashMap::default(),
            slice_owner: HashMap::default(),
            cluster_nodes: BTreeMap::new(),
            order,
            views: BTreeSet::new(),
            reach: Reach::default(),
            pod_prefixes: PodPrefixes::default(),
            reach_targets: ReachTargets::default(),
            policies: PolicyIndex::default(),
            capacity: CapacityTracker::default(),
            review_capacity: false,
            external_addresses: ExternalAddresses::default(),
            api_servers: BTreeMap::new(),
            self_publishing: false,
            claims: Claims::default(),
            claimed: HashMap::default(),
            adopted: HashMap::default(),
            ranges_changed: false,
            refusals: HashMap::default(),
            policy_failures: HashMap::default(),
            withheld: HashMap::default(),
            by_nodes: HashSet::default(),
            dirty: HashSet::default(),
            nodes_dirty: true,
        };
        planner.create_cluster_nodes();
        planner
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Called when the addresses of the host's interfaces changed.
    pub fn set_own_addresses(&mut self, addresses: Vec<Address>) {
        if self.rules.own_addresses != addresses {
            self.rules.own_addresses = addresses;
            self.derive_all_clusters();
            self.mark_all();
        }
    }

    /// Applies one change. Returns whether anything changed.
    pub fn apply(&mut self, change: Change) -> bool {
        // ServiceCIDR objects are received before other objects, and say nothing about the cluster's nodes.
        if !matches!(change, Change::Upsert(Object::ServiceRange(_))) {
            self.note_data(change.cluster());
        }
        match change {
            Change::Upsert(Object::Service(service)) => self.apply_service(service),
            // A Service that has only a DNS name has no frontends, whatever it was before.
            Change::Upsert(Object::NamedService(named)) => self.remove_service(&named.name),
            Change::Delete(ObjectKey::Service(name)) => self.remove_service(&name),
            Change::Upsert(Object::Slice(slice)) => self.apply_slice(slice),
            Change::Upsert(Object::NamedSlice(slice)) => self.remove_slice(&slice.name),
            Change::Delete(ObjectKey::Slice(name)) => self.remove_slice(&name),
            Change::Upsert(Object::Node(node)) => self.apply_node(node),
            Change::Delete(ObjectKey::Node { cluster, name }) => self.remove_node(&cluster, &name),
            Change::Upsert(Object::Pod(pod)) => self.apply_pod(pod),
            Change::Delete(ObjectKey::Pod(name)) => self.remove_pod(&name),
            // Namespaces matter only to the publisher of policy slices (`publish`).
            Change::Upsert(Object::Namespace(_)) | Change::Delete(ObjectKey::Namespace { .. }) => false,
            Change::Upsert(Object::Policy(policy)) => {
                let affected = self.policies.apply(policy);
                self.mark_affected(affected)
            }
            Change::Delete(ObjectKey::Policy(name)) => {
                let affected = self.policies.remove(&name);
                self.mark_affected(affected)
            }
            Change::Upsert(Object::PolicySlice(slice)) => self.apply_policy_slice(slice),
            Change::Delete(ObjectKey::PolicySlice(name)) => self.remove_policy_slice(&name),
            Change::Upsert(Object::ServiceRange(range)) => {
                self.set_range(&range.cluster, range.name, Some(range.ranges))
            }
            Change::Delete(ObjectKey::ServiceRange { cluster, name }) => self.set_range(&cluster, name, None),
        }
    }

    /// The cgroup of the pod with this UID was found or removed. A pod becomes a backend of a LocalRedirectPolicy only
    /// when its cgroup is known: before that the kernel cannot recognize the pod, and would redirect it to itself.
    pub fn set_cgroup(&mut self, uid: &str, cgroup: Option<u64>) -> bool {
        let affected = self.policies.set_cgroup(uid, cgroup);
        self.mark_affected(affected)
    }

    fn mark_affected(&mut self, affected: Affected) -> bool {
        let Some(owners) = affected else { return false };
        self.dirty.extend(owners);
        true
    }

    fn mark(&mut self, name: ServiceName) -> bool {
        self.dirty.insert(name);
        true
    }

    fn mark_all(&mut self) {
        self.dirty.extend(self.services.keys().cloned());
        self.dirty.extend(self.policies.owners().cloned());
    }

    /// Marks a Service or policy to be planned again, for example because a write failed.
    pub fn mark_dirty(&mut self, name: &ServiceName) {
        self.dirty.insert(name.clone());
    }

    pub fn mark_nodes_dirty(&mut self) {
        self.nodes_dirty = true;
    }

    /// Marks everything that could not be written. The caller decides when to retry.
    pub fn retry(&mut self, outcome: &ReconcileOutcome) {
        self.dirty.extend(outcome.failed.keys().cloned());
        self.nodes_dirty |= outcome.nodes_failed.is_some();
    }

    fn apply_service(&mut self, service: Service) -> bool {
        if self.services.get(&service.name) == Some(&service) {
            return false;
        }
        let name = service.name.clone();
        self.mark_policies_of(&service);
        self.external_addresses.replace(self.services.get(&name), Some(&service));
        match self.services.insert(name.clone(), service) {
            Some(before) => self.mark_policies_of(&before),
            None => self.follow_reach_targets(&name, true),
        }
        self.mark(name)
    }

    fn remove_service(&mut self, name: &ServiceName) -> bool {
        let Some(service) = self.services.remove(name) else { return false };
        self.external_addresses.replace(Some(&service), None);
        self.follow_reach_targets(name, false);
        self.mark_policies_of(&service);
        self.mark(name.clone())
    }

    /// Marks the policies on this Service, and those that have its ClusterIP as their virtual address or as a backend.
    fn mark_policies_of(&mut self, service: &Service) {
        self.dirty.extend(self.policies.on_service(&service.name).cloned());
        for address in &service.cluster_ips {
            self.dirty.extend(self.policies.at_address(address).chain(self.policies.by_backend(address)).cloned());
        }
    }

    fn apply_slice(&mut self, slice: Slice) -> bool {
        let (name, service) = (slice.name.clone(), slice.service.clone());
        // A slice may move to another Service.
        if self.slice_owner.get(&name).is_some_and(|owner| *owner != service) {
            self.remove_slice(&name);
        }
        let several_clusters = self.has_several_clusters();
        let probed = self.probed_cluster(service.cluster()).filter(|_| self.services.contains_key(&service));
        let all = self.slices.entry(service.clone()).or_default();
        let at = all.binary_search_by(|have| have.name.cmp(&name));
        let before = at.ok().map(|at| &all[at]);
        if before == Some(&slice) {
            return false;
        }
        let api_servers = changed_api_servers(before, Some(&slice));
        if several_clusters {
            self.pod_prefixes.replace(before, Some(&slice));
        }
        if let Some(cluster) = probed {
            self.reach_targets.replace(&cluster, before.map(SlicePods::from), Some((&slice).into()));
        }
        match at {
            Ok(at) => all[at] = slice,
            Err(at) => {
                all.reserve_exact(1);
                all.insert(at, slice);
                self.slice_owner.insert(name, service.clone());
            }
        }
        self.mark_claimants(api_servers);
        self.mark(service)
    }

    fn remove_slice(&mut self, name: &SliceName) -> bool {
        let Some(service) = self.slice_owner.remove(name) else { return false };
        let several_clusters = self.has_several_clusters();
        let probed = self.probed_cluster(service.cluster()).filter(|_| self.services.contains_key(&service));
        let mut api_servers = Vec::new();
        if let Some(all) = self.slices.get_mut(&service) {
            let before = all.iter().find(|slice| slice.name == *name);
            api_servers = changed_api_servers(before, None);
            if several_clusters {
                self.pod_prefixes.replace(before, None);
            }
            if let Some(cluster) = probed {
                self.reach_targets.replace(&cluster, before.map(SlicePods::from), None);
            }
            all.retain(|slice| slice.name != *name);
            if all.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.mark_claimants(api_servers);
        self.mark(service)
    }

    fn apply_policy_slice(&mut self, slice: PolicySlice) -> bool {
        if let Some(cluster) = self.probed_cluster(&slice.name.cluster) {
            let before = self.policies.slice(&slice.name).and_then(SlicePods::of_policy);
            self.reach_targets.replace(&cluster, before, SlicePods::of_policy(&slice));
        }
        let affected = self.policies.apply_slice(slice);
        self.mark_affected(affected)
    }

    fn remove_policy_slice(&mut self, name: &SliceName) -> bool {
        if let Some(cluster) = self.probed_cluster(&name.cluster) {
            let before = self.policies.slice(name).and_then(SlicePods::of_policy);
            self.reach_targets.replace(&cluster, before, None);
        }
        let affected = self.policies.remove_slice(name);
        self.mark_affected(affected)
    }

    pub fn is_dirty(&self) -> bool {
        self.nodes_dirty || self.review_capacity || !self.dirty.is_empty()
    }

    /// Plans again everything that is dirty.
    pub fn take_delta(&mut self) -> Delta {
        self.follow_nodes();
        self.follow_prefixes();
        let names = std::mem::take(&mut self.dirty);
        self.replan(names)
    }

    /// Plans everything, as if all of it had just changed. For the start and the periodic check.
    pub fn take_full_delta(&mut self) -> Delta {
        self.follow_nodes();
        self.follow_prefixes();
        let mut names = std::mem::take(&mut self.dirty);
        names.extend(self.services.keys().cloned());
        names.extend(self.policies.owners().cloned());
        names.extend(self.claimed.keys().cloned());
        self.nodes_dirty = true;
        self.review_capacity = true;
        self.replan(names)
    }

    // ---- capacity ----

    /// Sets the sizes of the tables. Without them, everything is planned. `programmed` are the owners of the rows that the
    /// tables hold from before.
    pub fn set_capacity(&mut self, sizes: &Sizes, programmed: impl Iterator<Item = ServiceName>) {
        self.capacity.set_limits(sizes);
        self.capacity.set_programmed(programmed);
    }

    /// All sources are complete: what the tables held from before no longer counts.
    pub fn finish_start(&mut self) {
        self.capacity.finish_start();
    }

    /// Decides again who gets rows, if something that is refused may fit now. This looks at all Services, so the caller
    /// limits how often.
    pub fn review_capacity(&mut self) {
        self.review_capacity |= self.capacity.is_stale();
    }

    /// Why a Service or policy has no rows.
    pub fn capacity_refusal(&self, name: &ServiceName) -> Option<Refusal> {
        self.capacity.refusal(name)
    }

    /// The policies for which the tables have no room.
    pub fn refused_policies(&self) -> impl Iterator<Item = (&ServiceName, Refusal)> {
        let refused = self.policies.owners().filter(|name| self.capacity.is_refused(name));
        refused.filter_map(|name| Some((name, self.capacity.refusal(name)?)))
    }

    // ---- queries ----

    pub fn service(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name)
    }

    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    pub fn slices_of(&self, name: &ServiceName) -> impl Iterator<Item = &Slice> + Clone {
        self.slices.get(name).into_iter().flatten()
    }

    pub fn slice_count(&self) -> usize {
        self.slice_owner.len()
    }

    /// The cluster of each policy.
    pub fn policy_clusters(&self) -> impl Iterator<Item = &str> {
        self.policies.owners().map(ServiceName::cluster)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.cluster_nodes.values().flat_map(|state| state.nodes.values())
    }

    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The policies that serve no dial on this host although they should, and why.
    pub fn policy_failures(&self) -> impl Iterator<Item = (&ServiceName, &Refusal)> {
        self.policy_failures.iter()
    }

    /// What the plan itself refused: conflicts and forbidden addresses.
    pub fn refusals(&self) -> Vec<Refusal> {
        let mut all: Vec<Refusal> = self.refusals.values().flatten().cloned().collect();
        all.extend(self.claims.conflicts().map(|(key, winner, loser)| self.conflict(key, winner, loser)));
        let nodes = self.node_rows();
        let hidden = self.claims.hidden_node_ports(|address| nodes.contains_key(address));
        all.extend(hidden.map(|(key, winner, loser)| self.conflict(key, winner, loser)));
        all.extend(self.range_refusals());
        all.extend(self.shared_refusals());
        all.extend(self.capacity.refusals());
        all.sort();
        all.dedup();
        all
    }

    fn conflict(&self, key: &FrontendKey, winner: &Claim, loser: &Claim) -> Refusal {
        let (subject, holder) = ((&loser.service).into(), winner.service.subject());
        let dialled = self.order.dialled(key);
        if winner.kind == FrontendKind::Virtual && loser.kind != FrontendKind::Virtual {
            let message = format!(
                "{dialled} is the virtual address of {holder}, which takes precedence inside --virtual-address-cidrs: use another \
                 address"
            );
            return Refusal { subject, reason: RefusalReason::VirtualRange, message };
        }
        if key.protocol.is_none() {
            let view = self.order.view_name(key.view).map_or_else(String::new, |view| format!(" in view {view}"));
            let (address, first) = (key.address, winner.service.cluster());
            let message = format!(
                "{address}{view} belongs to {holder} of cluster {first}, which takes precedence: use another address"
            );
            return Refusal { subject, reason: RefusalReason::AddressConflict, message };
        }
        let message = format!("{dialled} belongs to {holder}, whose claim takes precedence: change one of the two");
        Refusal { subject, reason: RefusalReason::AddressConflict, message }
    }
}
