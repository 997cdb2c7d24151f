//! The planner: plain synchronous state, no client in sight. Facts go in, and what changed of the plan comes out.
//!
//! Cost follows the change: an event marks the services and policies that depend on it, and only those are planned again.
//! Indexes: slice -> service, address -> claimants in order, node -> services (those with external Local); those of
//! policies are in `register`.

mod member;
mod place;
mod register;
mod settle;
pub mod state;

use crate::address::Address;
use crate::claim::{Claim, Claims};
use crate::diff::Outcome;
use crate::fact::{Fact, Node, Refusal, Service, Slice, SliceName};
use crate::hash::{HashMap, HashSet};
use crate::name::{Name, OwnerName};
use crate::plan::ServicePlan;
use crate::row::{FrontendKey, Kind, NodeRow};
use crate::rules::Rules;
use register::{Affected, Register};
use std::collections::BTreeMap;

/// What changed of the plan since it was last asked.
#[derive(Debug, Default)]
pub struct Delta {
    /// `None`: the service or policy is no longer planned.
    pub services: Vec<(OwnerName, Option<ServicePlan>)>,
    /// Keys whose winner may be another one now.
    pub frontends: Vec<(FrontendKey, Option<Claim>)>,
    /// Who is asked after the winner, in order; only keys where somebody is.
    pub below: HashMap<FrontendKey, Vec<Claim>>,
    /// All node rows, if any changed.
    pub nodes: Option<BTreeMap<Address, NodeRow>>,
}

impl Delta {
    pub fn below(&self, key: &FrontendKey) -> &[Claim] {
        self.below.get(key).map_or(&[], Vec::as_slice)
    }
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
    /// Whoever feeds us works out the pods of policies itself: there is no controller to wait for.
    publishes: bool,
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
            publishes: false,
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
        self.mark_around(&service);
        if let Some(before) = self.services.insert(name.clone(), service) {
            self.mark_around(&before);
        }
        self.mark(name)
    }

    fn remove_service(&mut self, name: &OwnerName) -> bool {
        let Some(service) = self.services.remove(name) else { return false };
        self.mark_around(&service);
        self.mark(name.clone())
    }

    /// Policies on this Service, and those that want its ClusterIP.
    fn mark_around(&mut self, service: &Service) {
        self.dirty.extend(self.register.on_service(&service.name).cloned());
        let wanted = service.cluster_ips.iter().flat_map(|address| self.register.at_address(address));
        self.dirty.extend(wanted.cloned());
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
    let (subject, holder) = (loser.service.subject(), winner.service.subject());
    if winner.kind == Kind::Virtual && loser.kind != Kind::Virtual {
        let message = format!(
            "{key:?} is the virtual address of {holder}, inside --virtual-ranges, where policies go before: use another \
             address"
        );
        return Refusal { subject, reason: "virtualRange", message };
    }
    let message = format!("{key:?} belongs to {holder}, whose claim goes before: change one of them");
    Refusal { subject, reason: "addressConflict", message }
}
