//! The planner: plain synchronous state, no client in sight. Facts go in, and what changed of the plan comes out.
//!
//! Cost follows the change: an event marks the services that depend on it, and only those are planned again.
//! Indexes: slice -> service, address -> claimants in order, node -> services (those with external Local).

use crate::address::{Address, Family};
use crate::claim::{Claim, Claims};
use crate::diff::Outcome;
use crate::fact::{Fact, Node, Pod, PodName, Refusal, Service, Slice, SliceName};
use crate::hash::{HashMap, HashSet};
use crate::name::{Name, OwnerName};
use crate::plan::{ServicePlan, Surroundings, plan_service};
use crate::row::{FrontendKey, NodeRow};
use crate::rules::Rules;
use crate::select::Place;
use std::collections::{BTreeMap, BTreeSet};

/// What changed of the plan since it was last asked.
#[derive(Debug, Default)]
pub struct Delta {
    /// `None`: the service is no longer planned.
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
    /// Addresses of the pods on this node.
    pods: BTreeMap<PodName, Box<[Address]>>,
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
            pods: BTreeMap::new(),
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
            Fact::ServiceGone(name) => self.services.remove(&name).is_some() && self.mark(name),
            Fact::Slice(slice) => self.apply_slice(slice),
            Fact::SliceGone(name) => self.remove_slice(&name),
            Fact::Node(node) => self.apply_node(node),
            Fact::NodeGone { name, .. } => self.nodes.remove(&name).is_some() && self.node_changed(&name),
            Fact::Pod(pod) => self.apply_pod(pod),
            Fact::PodGone(name) => self.pods.remove(&name).is_some_and(|_| self.pods_moved()),
            Fact::Namespace(_) | Fact::NamespaceGone { .. } => false,
            Fact::Policy(_) | Fact::PolicyGone(_) | Fact::PolicySlice(_) | Fact::PolicySliceGone(_) => false,
        }
    }

    /// Which cgroup the pod of this UID has; `None`: none, or none any more.
    pub fn set_cgroup(&mut self, _uid: &str, _cgroup: Option<u64>) -> bool {
        false
    }

    fn mark(&mut self, name: OwnerName) -> bool {
        self.dirty.insert(name);
        true
    }

    fn mark_all(&mut self) {
        self.dirty.extend(self.services.keys().cloned());
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
        self.services.insert(name.clone(), service);
        self.mark(name)
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
        let name = node.name.clone();
        self.nodes.insert(name.clone(), node);
        self.node_changed(&name)
    }

    /// Only where it stands matters to a plan: an endpoint that names no node is local at a pod of ours.
    fn apply_pod(&mut self, pod: Pod) -> bool {
        let ours = pod.node.as_ref() == Some(&self.rules.node_name) && !pod.addresses.is_empty();
        let old = match ours {
            true if self.pods.get(&pod.name) == Some(&pod.addresses) => return false,
            true => self.pods.insert(pod.name, pod.addresses),
            false => self.pods.remove(&pod.name),
        };
        (ours || old.is_some()) && self.pods_moved()
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
        for address in self.pods.values().flat_map(|addresses| addresses.iter()) {
            hosts.entry(*address).or_insert_with(|| own_name.clone());
        }
        let mut others = Vec::new();
        for node in self.nodes.values().filter(|n| n.name != *own_name) {
            for (_, address) in &node.addresses {
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
        names.extend(self.claimed.keys().cloned());
        self.nodes_dirty = true;
        self.plan_again(names)
    }

    fn plan_again(&mut self, names: HashSet<OwnerName>) -> Delta {
        let mut delta = Delta::default();
        let mut names: Vec<OwnerName> = names.into_iter().collect();
        names.sort_unstable();
        let around = self.surroundings();
        let plans = names.iter().map(|name| self.plan(name, &around)).collect::<Vec<_>>();
        delta.services = names.into_iter().zip(plans).collect();
        let mut keys: HashSet<FrontendKey> = HashSet::default();
        let contested = self.claims.is_contested();
        self.claim_all(&delta, &mut keys);
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

    /// Who inherits a key from a service that lost it may not have its set programmed yet; who lost one may have a set
    /// that nothing leads to.
    fn settle_contests(&self, delta: &mut Delta, keys: &HashSet<FrontendKey>) {
        let planned: HashSet<OwnerName> = delta.services.iter().map(|(name, _)| name.clone()).collect();
        let winners = keys.iter().filter_map(|key| self.claims.winner(key)).map(|claim| claim.service.clone());
        let heirs: BTreeSet<OwnerName> = winners.filter(|name| !planned.contains(name)).collect();
        let around = self.surroundings();
        delta.services.extend(heirs.into_iter().map(|name| (name.clone(), self.plan(&name, &around))));
        for plan in delta.services.iter_mut().filter_map(|(_, plan)| plan.as_mut()) {
            plan.keep_used(&self.claims);
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
        let service = self.services.get(name)?;
        Some(plan_service(service, self.slices_of(name), around))
    }

    fn depends_on_nodes(&self, name: &OwnerName) -> bool {
        let nameless = |slice: &Slice| slice.endpoints.iter().any(|e| e.node.is_none());
        self.services.get(name).is_some_and(|s| s.external_local() && s.has_node_ports)
            || self.slices_of(name).any(nameless)
    }

    fn claim_all(&mut self, delta: &Delta, keys: &mut HashSet<FrontendKey>) {
        let claims = delta.services.iter().filter_map(|(_, plan)| Some(plan.as_ref()?.claims.len())).sum();
        keys.reserve(claims);
        self.claims.reserve(claims.saturating_sub(self.claims.len()));
        for (name, plan) in &delta.services {
            self.claim(name, plan.as_ref(), keys);
        }
        self.note_claimed(delta);
    }

    /// Replaces what the service claims and notes every key whose winner may differ now.
    fn claim(&mut self, name: &OwnerName, plan: Option<&ServicePlan>, keys: &mut HashSet<FrontendKey>) {
        for key in self.claimed.remove(name).iter().flat_map(|old| old.iter()) {
            self.claims.remove(key, name);
            keys.insert(*key);
        }
        self.refusals.remove(name);
        self.by_nodes.remove(name);
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
    fn note_claimed(&mut self, delta: &Delta) {
        self.claimed.reserve(delta.services.len().saturating_sub(self.claimed.len()));
        for (name, plan) in &delta.services {
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

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// What the plan itself refused: conflicts and forbidden addresses.
    pub fn refusals(&self) -> Vec<Refusal> {
        let mut all: Vec<Refusal> = self.refusals.values().flatten().cloned().collect();
        for (key, winner, losers) in self.claims.conflicts() {
            all.extend(losers.iter().filter(|l| l.service != winner.service).map(|loser| conflict(key, winner, loser)));
        }
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
        subject: format!("Service {}", loser.service),
        reason: "addressConflict",
        message: format!("{key:?} belongs to Service {}, whose claim goes before: change one of them", winner.service),
    }
}
