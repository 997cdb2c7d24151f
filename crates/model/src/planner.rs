//! The planner: plain synchronous state, no client in sight. Facts go in, and what changed of the plan comes out.
//!
//! Cost follows the change: an event marks the services and policies that depend on it, and only those are planned again.
//! Indexes: slice -> service, address -> claimants in order, node -> services (those with external Local); those of
//! policies are in `register`.

mod register;
pub mod state;

use crate::address::{Address, Family};
use crate::claim::{Claim, Claims};
use crate::diff::Outcome;
use crate::fact::{Fact, Node, Pod, PodName, Refusal, Service, Slice, SliceName};
use crate::hash::{HashMap, HashSet};
use crate::name::{Name, OwnerName};
use crate::plan::policy::{Ground, plan_policy};
use crate::plan::{ServicePlan, Surroundings, plan_service};
use crate::policy::{Matcher, Policy};
use crate::row::{FrontendKey, NodeRow};
use crate::rules::Rules;
use crate::select::Place;
use register::{Affected, Register, service_of};
use std::collections::{BTreeMap, BTreeSet};

/// What changed of the plan since it was last asked.
#[derive(Debug, Default)]
pub struct Delta {
    /// `None`: the service or policy is no longer planned.
    pub services: Vec<(OwnerName, Option<ServicePlan>)>,
    /// Keys whose winner may be another one now.
    pub frontends: Vec<(FrontendKey, Option<Claim>)>,
    /// All node rows, if any changed.
    pub nodes: Option<BTreeMap<Address, NodeRow>>,
}

#[derive(Debug)]
pub struct Planner {
    rules: Rules,
    services: HashMap<OwnerName, Service>,
    /// Sorted by name. Most services have one: a tree of its own for each would take ten times the room.
    slices: HashMap<OwnerName, Vec<Slice>>,
    slice_owner: HashMap<SliceName, OwnerName>,
    nodes: BTreeMap<Name, Node>,
    register: Register,
    /// Load-balancer addresses and externalIPs, and how many Services have each.
    outer: HashMap<Address, u32>,
    /// Derived from `nodes` and the interfaces, kept because every plan asks.
    hosts: BTreeMap<Address, Name>,
    others: Vec<(Name, Vec<Address>)>,
    claims: Claims,
    claimed: HashMap<OwnerName, Box<[FrontendKey]>>,
    refusals: HashMap<OwnerName, Vec<Refusal>>,
    /// Planned again when another node changes: external Local, or an endpoint that names no node.
    by_nodes: HashSet<OwnerName>,
    dirty: HashSet<OwnerName>,
    nodes_dirty: bool,
    /// Since `hosts` and `others` were derived.
    nodes_changed: NodesChanged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NodesChanged {
    No,
    Others,
    Own,
}

impl Planner {
    pub fn new(rules: Rules) -> Planner {
        let mut planner = Planner {
            rules,
            services: HashMap::default(),
            slices: HashMap::default(),
            slice_owner: HashMap::default(),
            nodes: BTreeMap::new(),
            register: Register::default(),
            outer: HashMap::default(),
            hosts: BTreeMap::new(),
            others: Vec::new(),
            claims: Claims::default(),
            claimed: HashMap::default(),
            refusals: HashMap::default(),
            by_nodes: HashSet::default(),
            dirty: HashSet::default(),
            nodes_dirty: true,
            nodes_changed: NodesChanged::No,
        };
        planner.derive_nodes();
        planner
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Interfaces came or went.
    pub fn set_own_addresses(&mut self, addresses: Vec<Address>) {
        if self.rules.own_addresses != addresses {
            self.rules.own_addresses = addresses;
            self.derive_nodes();
            self.mark_all();
        }
    }

    /// Takes one fact in; says whether anything changed.
    pub fn apply(&mut self, fact: Fact) -> bool {
        match fact {
            Fact::Service(service) => self.apply_service(service),
            Fact::ServiceGone(name) => self.remove_service(&name),
            Fact::Slice(slice) => self.apply_slice(slice),
            Fact::SliceGone(name) => self.remove_slice(&name),
            Fact::Node(node) => self.apply_node(node),
            Fact::NodeGone { name, .. } => self.remove_node(&name),
            Fact::Pod(pod) => self.apply_pod(pod),
            Fact::PodGone(name) => self.remove_pod(&name),
            // Who asks for namespaces also publishes (`publish`): here they decide nothing.
            Fact::Namespace(_) | Fact::NamespaceGone { .. } => false,
            Fact::Policy(policy) => {
                let affected = self.register.apply(policy);
                self.mark_affected(affected)
            }
            Fact::PolicyGone(name) => {
                let affected = self.register.remove(&name);
                self.mark_affected(affected)
            }
            Fact::PolicySlice(slice) => {
                let affected = self.register.apply_slice(slice);
                self.mark_affected(affected)
            }
            Fact::PolicySliceGone(name) => {
                let affected = self.register.remove_slice(&name);
                self.mark_affected(affected)
            }
        }
    }

    /// The cgroup of the pod with this uid was found, or is gone. A pod joins a redirect only after that: before, the
    /// kernel could not tell it from others, and would send it to itself.
    pub fn set_cgroup(&mut self, uid: &str, cgroup: Option<u64>) -> bool {
        let affected = self.register.set_cgroup(uid, cgroup);
        self.mark_affected(affected)
    }

    fn mark_affected(&mut self, affected: Affected) -> bool {
        let Some(owners) = affected else { return false };
        self.dirty.extend(owners);
        true
    }

    fn mark(&mut self, name: OwnerName) -> bool {
        self.dirty.insert(name);
        true
    }

    fn mark_all(&mut self) {
        self.dirty.extend(self.services.keys().cloned());
        self.dirty.extend(self.register.owners().cloned());
    }

    /// A write failed some time ago: plan it again now.
    pub fn mark_dirty(&mut self, name: &OwnerName) {
        self.dirty.insert(name.clone());
    }

    pub fn mark_nodes_dirty(&mut self) {
        self.nodes_dirty = true;
    }

    /// Plans again what could not be written; when, is the caller's to choose.
    pub fn retry(&mut self, outcome: &Outcome) {
        self.dirty.extend(outcome.failed.keys().cloned());
        self.nodes_dirty |= outcome.nodes_failed.is_some();
    }

    fn apply_service(&mut self, service: Service) -> bool {
        if self.services.get(&service.name) == Some(&service) {
            return false;
        }
        let name = service.name.clone();
        self.count_outer(&service, 1);
        self.mark_around(&service);
        if let Some(before) = self.services.insert(name.clone(), service) {
            self.count_outer(&before, -1);
            self.mark_around(&before);
        }
        self.mark(name)
    }

    fn remove_service(&mut self, name: &OwnerName) -> bool {
        let Some(service) = self.services.remove(name) else { return false };
        self.count_outer(&service, -1);
        self.mark_around(&service);
        self.mark(name.clone())
    }

    fn count_outer(&mut self, service: &Service, step: i32) {
        for address in service.load_balancer_ips.iter().chain(&service.external_ips) {
            let count = self.outer.entry(*address).or_default();
            *count = count.saturating_add_signed(step);
            if *count == 0 {
                self.outer.remove(address);
            }
        }
    }

    /// Policies on this Service, and those that want an address of its.
    fn mark_around(&mut self, service: &Service) {
        self.dirty.extend(self.register.on_service(&service.name).cloned());
        for addresses in [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips] {
            self.dirty.extend(addresses.iter().flat_map(|address| self.register.at_address(address)).cloned());
        }
    }

    fn apply_slice(&mut self, slice: Slice) -> bool {
        let (name, service) = (slice.name.clone(), slice.service.clone());
        // A slice may move to another service.
        if self.slice_owner.get(&name).is_some_and(|owner| *owner != service) {
            self.remove_slice(&name);
        }
        let all = self.slices.entry(service.clone()).or_default();
        match all.binary_search_by(|have| have.name.cmp(&name)) {
            Ok(at) if all[at] == slice => return false,
            Ok(at) => all[at] = slice,
            Err(at) => {
                all.reserve_exact(1);
                all.insert(at, slice);
                self.slice_owner.insert(name, service.clone());
            }
        }
        self.mark(service)
    }

    fn remove_slice(&mut self, name: &SliceName) -> bool {
        let Some(service) = self.slice_owner.remove(name) else { return false };
        if let Some(all) = self.slices.get_mut(&service) {
            all.retain(|slice| slice.name != *name);
            if all.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.mark(service)
    }

    fn apply_node(&mut self, node: Node) -> bool {
        if self.nodes.get(&node.name) == Some(&node) {
            return false;
        }
        let before = self.nodes.insert(node.name.clone(), node.clone());
        self.compare_nodes(&node.name, before.as_ref(), Some(&node))
    }

    fn remove_node(&mut self, name: &Name) -> bool {
        let Some(before) = self.nodes.remove(name) else { return false };
        self.compare_nodes(name, Some(&before), None)
    }

    /// Where it stands may matter to Services; its labels, its entry and whose its addresses are only to some policies.
    fn compare_nodes(&mut self, name: &Name, before: Option<&Node>, now: Option<&Node>) -> bool {
        let [labels_before, labels_now] = [before, now].map(|node| node.map(|node| &node.labels));
        self.dirty.extend(self.register.by_node(name).cloned());
        if *name == self.rules.node_name && labels_before != labels_now {
            self.dirty.extend(self.register.choosy().cloned());
        }
        for node in [before, now].into_iter().flatten() {
            let addresses = node.addresses.iter().map(|(_, address)| address).chain(&node.entry);
            self.dirty.extend(addresses.flat_map(|address| self.register.at_address(address)).cloned());
        }
        fn place(node: &Node) -> (&[(crate::fact::AddressType, Address)], Option<&Name>, &[Address]) {
            (&node.addresses, node.zone.as_ref(), &node.entry)
        }
        let moved = before.map(place) != now.map(place);
        if moved { self.node_changed(name) } else { true }
    }

    /// To Services only where it stands matters: an endpoint that names no node is local at a pod of ours.
    fn apply_pod(&mut self, pod: Pod) -> bool {
        if pod.node.as_ref() != Some(&self.rules.node_name) {
            return self.remove_pod(&pod.name);
        }
        let before = self.register.pods().get(&pod.name).map(|pod| pod.addresses.clone()).unwrap_or_default();
        let moved = before != pod.addresses;
        let affected = self.register.apply_pod(pod);
        self.mark_affected(affected) && (!moved || self.pods_moved())
    }

    fn remove_pod(&mut self, name: &PodName) -> bool {
        let had_address = self.register.pods().get(name).is_some_and(|pod| !pod.addresses.is_empty());
        let affected = self.register.remove_pod(name);
        self.mark_affected(affected) && (!had_address || self.pods_moved())
    }

    fn pods_moved(&mut self) -> bool {
        self.nodes_changed = self.nodes_changed.max(NodesChanged::Others);
        self.nodes_dirty = true;
        true
    }

    /// What follows from it is derived once for any number of nodes.
    fn node_changed(&mut self, name: &Name) -> bool {
        let own = *name == self.rules.node_name;
        self.nodes_changed = self.nodes_changed.max(if own { NodesChanged::Own } else { NodesChanged::Others });
        self.nodes_dirty = true;
        true
    }

    /// Our own node's zone and addresses matter to every service, another node's only to some.
    fn follow_nodes(&mut self) {
        let changed = std::mem::replace(&mut self.nodes_changed, NodesChanged::No);
        match changed {
            NodesChanged::No => return,
            NodesChanged::Others => self.dirty.extend(self.by_nodes.iter().cloned()),
            NodesChanged::Own => self.mark_all(),
        }
        self.derive_nodes();
    }

    /// An address of ours is ours, whatever another Node says (nodes behind one NAT show one address).
    fn derive_nodes(&mut self) {
        self.nodes_dirty = true;
        let own_name = &self.rules.node_name;
        let own_status = self.own_node().into_iter().flat_map(|n| n.addresses.iter().map(|(_, a)| *a));
        let own: BTreeSet<Address> = self.rules.own_addresses.iter().copied().chain(own_status).collect();
        let mut hosts: BTreeMap<Address, Name> = own.iter().map(|a| (*a, own_name.clone())).collect();
        let entries = self.own_node().into_iter().flat_map(|node| node.entry.iter());
        for address in self.register.pods().values().flat_map(|pod| pod.addresses.iter()).chain(entries) {
            hosts.entry(*address).or_insert_with(|| own_name.clone());
        }
        let mut others = Vec::new();
        for node in self.nodes.values().filter(|n| n.name != *own_name) {
            for address in node.addresses.iter().map(|(_, address)| address).chain(&node.entry) {
                hosts.entry(*address).or_insert_with(|| node.name.clone());
            }
            let mut at = self.rules.node_port_addresses_of(node);
            at.retain(|address| !own.contains(address));
            others.push((node.name.clone(), at));
        }
        (self.hosts, self.others) = (hosts, others);
    }

    pub fn own_node(&self) -> Option<&Node> {
        self.nodes.get(&self.rules.node_name)
    }

    pub fn is_dirty(&self) -> bool {
        self.nodes_dirty || !self.dirty.is_empty()
    }

    /// Plans again what is marked.
    pub fn take(&mut self) -> Delta {
        self.follow_nodes();
        let names = std::mem::take(&mut self.dirty);
        self.plan_again(names)
    }

    /// Everything that is planned now, as if all of it had just changed: for start and the periodic check.
    pub fn take_all(&mut self) -> Delta {
        self.follow_nodes();
        let mut names = std::mem::take(&mut self.dirty);
        names.extend(self.services.keys().cloned());
        names.extend(self.register.owners().cloned());
        names.extend(self.claimed.keys().cloned());
        self.nodes_dirty = true;
        self.plan_again(names)
    }

    fn plan_again(&mut self, names: HashSet<OwnerName>) -> Delta {
        let mut delta = Delta::default();
        let mut keys: HashSet<FrontendKey> = HashSet::default();
        let contested = self.claims.is_contested();
        // Services first: whether a virtual address is free depends on what they claim.
        let (services, policies) = names.into_iter().partition(|name| name.policy_kind().is_none());
        for names in [services, policies] {
            let planned = self.plan_all(names);
            self.claim_all(&planned, &mut keys);
            delta.services.extend(planned);
        }
        self.add_node_rows(&mut keys);
        if contested || self.claims.is_contested() {
            self.settle_contests(&mut delta, &keys);
        }
        let winner = |key: FrontendKey| (key, self.claims.winner(&key).cloned());
        delta.frontends = keys.into_iter().map(winner).collect();
        if std::mem::take(&mut self.nodes_dirty) {
            delta.nodes = Some(self.node_rows());
        }
        delta
    }

    fn plan_all(&self, names: HashSet<OwnerName>) -> Vec<(OwnerName, Option<ServicePlan>)> {
        let mut names: Vec<OwnerName> = names.into_iter().collect();
        names.sort_unstable();
        let around = self.surroundings();
        let plans = names.iter().map(|name| self.plan(name, &around)).collect::<Vec<_>>();
        names.into_iter().zip(plans).collect()
    }

    /// Who inherits a key from one that lost it may not have its set programmed yet, and who stands above it leads on to
    /// another set now; who lost a key may have a set that nothing leads to.
    fn settle_contests(&self, delta: &mut Delta, keys: &HashSet<FrontendKey>) {
        let planned: HashSet<OwnerName> = delta.services.iter().map(|(name, _)| name.clone()).collect();
        let holders = keys.iter().flat_map(|key| self.claims.chain(key)).map(|claim| &claim.service);
        let heirs = holders.filter(|name| !planned.contains(name)).cloned().collect();
        delta.services.extend(self.plan_all(heirs));
        for plan in delta.services.iter_mut().filter_map(|(_, plan)| plan.as_mut()) {
            plan.keep_used(&self.claims);
            plan.link(&self.claims);
        }
    }

    /// With a nodePort's owner change its rows at other nodes' addresses.
    fn add_node_rows(&self, keys: &mut HashSet<FrontendKey>) {
        let mut more = Vec::new();
        for wildcard in keys.iter().filter(|key| key.is_node_port_row()) {
            let claimants = self.claims.claimants(wildcard).iter().map(|claim| &claim.service);
            let claimed = claimants.filter_map(|name| self.claimed.get(name)).flat_map(|keys| keys.iter());
            more.extend(claimed.filter(|key| key.fallbacks()[1] == *wildcard).copied());
        }
        keys.extend(more);
    }

    pub fn surroundings(&self) -> Surroundings<'_> {
        let zone = self.own_node().and_then(|n| n.zone.clone());
        let place = Place { node: self.rules.node_name.clone(), zone };
        Surroundings { rules: &self.rules, place, hosts: &self.hosts, others: &self.others }
    }

    fn plan(&self, name: &OwnerName, around: &Surroundings<'_>) -> Option<ServicePlan> {
        if let Some(policy) = self.register.policy(name) {
            return Some(plan_policy(policy, &self.ground(name, policy)));
        }
        let service = self.services.get(name)?;
        Some(plan_service(service, self.slices_of(name), around))
    }

    fn ground(&self, name: &OwnerName, policy: &Policy) -> Ground<'_> {
        Ground {
            rules: &self.rules,
            nodes: &self.nodes,
            pods: self.register.pods(),
            cgroups: self.register.cgroups(),
            service: service_of(policy).and_then(|name| self.services.get(&name)),
            slices: self.register.slices_of(name),
            taken: match policy.matcher {
                Matcher::Address { address, .. } => self.whose(&address),
                Matcher::Service { .. } => None,
            },
        }
    }

    /// Whose an address is that a policy wants.
    fn whose(&self, address: &Address) -> Option<String> {
        let known = self.claims.claimants(&FrontendKey::known(*address)).first();
        match (known, self.outer.contains_key(address), self.hosts.get(address)) {
            (Some(claim), ..) => Some(format!("the ClusterIP of Service {}", claim.service)),
            (None, true, _) => Some("a Service's load-balancer address or externalIP".into()),
            (None, false, Some(node)) => Some(format!("an address of node {node}, or of a pod on it")),
            (None, false, None) => None,
        }
    }

    fn depends_on_nodes(&self, name: &OwnerName) -> bool {
        let nameless = |slice: &Slice| slice.endpoints.iter().any(|e| e.node.is_none());
        self.services.get(name).is_some_and(|s| s.external_local() && s.has_node_ports)
            || self.slices_of(name).any(nameless)
    }

    fn claim_all(&mut self, planned: &[(OwnerName, Option<ServicePlan>)], keys: &mut HashSet<FrontendKey>) {
        let claims = planned.iter().filter_map(|(_, plan)| Some(plan.as_ref()?.claims.len())).sum();
        keys.reserve(claims);
        self.claims.reserve(claims.saturating_sub(self.claims.len()));
        for (name, plan) in planned {
            self.claim(name, plan.as_ref(), keys);
        }
        self.note_claimed(planned);
    }

    /// Replaces what the service claims and notes every key whose winner may differ now.
    fn claim(&mut self, name: &OwnerName, plan: Option<&ServicePlan>, keys: &mut HashSet<FrontendKey>) {
        for key in self.claimed.remove(name).iter().flat_map(|old| old.iter()) {
            self.claims.remove(key, name);
            keys.insert(*key);
        }
        self.refusals.remove(name);
        self.by_nodes.remove(name);
        if name.policy_kind().is_some() {
            self.claims.set_service(name, self.register.policy(name).and_then(service_of));
        }
        let Some(plan) = plan else { return };
        for (key, claim) in &plan.claims {
            self.claims.add(*key, claim.clone());
            keys.insert(*key);
        }
        if !plan.refusals.is_empty() {
            self.refusals.insert(name.clone(), plan.refusals.clone());
        }
        if self.depends_on_nodes(name) {
            self.by_nodes.insert(name.clone());
        }
    }

    /// Not plan by plan: what stays would lie between what goes, and keep its memory from being given back.
    fn note_claimed(&mut self, planned: &[(OwnerName, Option<ServicePlan>)]) {
        self.claimed.reserve(planned.len().saturating_sub(self.claimed.len()));
        for (name, plan) in planned {
            if let Some(plan) = plan {
                self.claimed.insert(name.clone(), plan.claims.iter().map(|(key, _)| *key).collect());
            }
        }
    }

    fn node_rows(&self) -> BTreeMap<Address, NodeRow> {
        let row = |own, loopback| NodeRow { cluster: 0, own, loopback, alone: false };
        let mut rows = BTreeMap::new();
        for address in self.others.iter().flat_map(|(_, addresses)| addresses) {
            rows.insert(*address, row(false, false));
        }
        for address in self.rules.own_node_port_addresses(self.own_node()) {
            rows.insert(address, row(true, false));
        }
        for family in Family::BOTH.into_iter().filter(|family| self.rules.localhost_node_ports(*family)) {
            let alone = family == Family::V4 && !self.rules.is_loopback_block_served();
            rows.insert(Address::loopback(family), NodeRow { alone, ..row(true, true) });
        }
        rows
    }

    // ---- what others ask ----

    pub fn service(&self, name: &OwnerName) -> Option<&Service> {
        self.services.get(name)
    }

    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    pub fn slices_of(&self, name: &OwnerName) -> impl Iterator<Item = &Slice> + Clone {
        self.slices.get(name).into_iter().flatten()
    }

    pub fn slice_count(&self) -> usize {
        self.slice_owner.len()
    }

    pub fn policy_count(&self) -> usize {
        self.register.len()
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// What the plan itself refused: conflicts and forbidden addresses.
    pub fn refusals(&self) -> Vec<Refusal> {
        let mut all: Vec<Refusal> = self.refusals.values().flatten().cloned().collect();
        all.extend(self.claims.conflicts().map(|(key, winner, loser)| conflict(key, winner, loser)));
        let nodes = self.node_rows();
        let hidden = self.claims.hidden_node_ports(|address| nodes.contains_key(address));
        all.extend(hidden.map(|(key, winner, loser)| conflict(key, winner, loser)));
        all.sort();
        all.dedup();
        all
    }
}

fn conflict(key: &FrontendKey, winner: &Claim, loser: &Claim) -> Refusal {
    Refusal {
        subject: loser.service.subject(),
        reason: "addressConflict",
        message: format!(
            "{key:?} belongs to {}, whose claim goes before: change one of them",
            winner.service.subject()
        ),
    }
}
