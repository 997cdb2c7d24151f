//! The planner: plain synchronous state, no client in sight. Facts go in, and what changed of the plan comes out.
//!
//! Cost follows the change: an event marks the services and policies that depend on it, and only those are planned again.
//! Indexes: slice -> service, address -> claimants in order, node -> services (those with external Local); those of
//! policies are in `register`.

mod member;
mod place;
mod question;
mod register;
mod settle;
mod shared;
mod site;
mod stand;
pub mod state;

use crate::address::Address;
use crate::claim::{Claim, Claims};
use crate::diff::Outcome;
use crate::fact::{Fact, Node, Refusal, Service, Slice, SliceName};
use crate::hash::{HashMap, HashSet};
use crate::name::{Name, OwnerName};
use crate::plan::ServicePlan;
use crate::policy::PolicySlice;
use crate::reach::Reach;
use crate::row::{FrontendKey, Kind, NodeRow};
use crate::rules::Rules;
use crate::stand::order::{Bar, Order, Ranges};
use question::{Pod, Questions};
use register::{Affected, Register};
use shared::Prefixes;
use site::Site;
use std::collections::{BTreeMap, BTreeSet};

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
    /// Clusters of which nothing was heard yet: what the tables hold of them stays.
    pub unheard: Vec<Unheard>,
    /// By number, clusters that get no new rows yet, and keep the nodes that they have.
    pub waiting: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unheard {
    pub cluster: Name,
    pub number: u16,
    /// By view.
    pub ranks: Vec<(u32, u8)>,
    /// The numbers of those that come after it in the configuration.
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
    services: HashMap<OwnerName, Service>,
    /// Sorted by name. Most services have one: a tree of its own for each would take ten times the room.
    slices: HashMap<OwnerName, Vec<Slice>>,
    slice_owner: HashMap<SliceName, OwnerName>,
    /// By cluster: what is known of it beside its Services and policies.
    sites: BTreeMap<Name, Site>,
    /// Which clusters there are, and in which order they are seen.
    order: Order,
    views: BTreeSet<Name>,
    reach: Reach,
    prefixes: Prefixes,
    questions: Questions,
    register: Register,
    /// Whoever feeds us works out the pods of policies itself: there is no controller to wait for.
    publishes: bool,
    claims: Claims,
    claimed: HashMap<OwnerName, Box<[FrontendKey]>>,
    /// Whose rows the tables held before we knew anything.
    adopted: HashMap<FrontendKey, OwnerName>,
    /// Who owns which range may have changed since rows were last looked at for it.
    ranges_moved: bool,
    refusals: HashMap<OwnerName, Vec<Refusal>>,
    /// Whose addresses belong, or may belong, to a cluster that comes before theirs.
    withheld: HashMap<OwnerName, Bar>,
    /// Planned again when another node changes: external Local, or an endpoint that names no node.
    by_nodes: HashSet<OwnerName>,
    dirty: HashSet<OwnerName>,
    nodes_dirty: bool,
}

impl Planner {
    pub fn new(rules: Rules) -> Planner {
        let order = Order::new(rules.stand_point, &rules.clusters, &Ranges::new(), &BTreeSet::new());
        let mut planner = Planner {
            rules,
            services: HashMap::default(),
            slices: HashMap::default(),
            slice_owner: HashMap::default(),
            sites: BTreeMap::new(),
            order,
            views: BTreeSet::new(),
            reach: Reach::default(),
            prefixes: Prefixes::default(),
            questions: Questions::default(),
            register: Register::default(),
            publishes: false,
            claims: Claims::default(),
            claimed: HashMap::default(),
            adopted: HashMap::default(),
            ranges_moved: false,
            refusals: HashMap::default(),
            withheld: HashMap::default(),
            by_nodes: HashSet::default(),
            dirty: HashSet::default(),
            nodes_dirty: true,
        };
        planner.make_sites();
        planner
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Interfaces came or went.
    pub fn set_own_addresses(&mut self, addresses: Vec<Address>) {
        if self.rules.own_addresses != addresses {
            self.rules.own_addresses = addresses;
            self.derive_sites();
            self.mark_all();
        }
    }

    /// Takes one fact in; says whether anything changed.
    pub fn apply(&mut self, fact: Fact) -> bool {
        // Ranges are told before the rest: they say nothing of the cluster's nodes.
        if !matches!(fact, Fact::ServiceRange { .. }) {
            self.hear_of(fact.cluster());
        }
        match fact {
            Fact::Service(service) => self.apply_service(service),
            // What has only a name is nothing to be dialled, whatever it was before.
            Fact::NamedService(named) => self.remove_service(&named.name),
            Fact::ServiceGone(name) => self.remove_service(&name),
            Fact::Slice(slice) => self.apply_slice(slice),
            Fact::NamedSlice(slice) => self.remove_slice(&slice.name),
            Fact::SliceGone(name) => self.remove_slice(&name),
            Fact::Node(node) => self.apply_node(node),
            Fact::NodeGone { cluster, name } => self.remove_node(&cluster, &name),
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
            Fact::PolicySlice(slice) => self.apply_policy_slice(slice),
            Fact::PolicySliceGone(name) => self.remove_policy_slice(&name),
            Fact::ServiceRange { cluster, name, ranges } => self.set_range(&cluster, name, Some(ranges)),
            Fact::ServiceRangeGone { cluster, name } => self.set_range(&cluster, name, None),
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
        match self.services.insert(name.clone(), service) {
            Some(before) => self.mark_around(&before),
            None => self.follow_questions(&name, true),
        }
        self.mark(name)
    }

    fn remove_service(&mut self, name: &OwnerName) -> bool {
        let Some(service) = self.services.remove(name) else { return false };
        self.follow_questions(name, false);
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
        let several = self.is_several();
        let asked = self.asks(service.cluster()).filter(|_| self.services.contains_key(&service));
        let all = self.slices.entry(service.clone()).or_default();
        let at = all.binary_search_by(|have| have.name.cmp(&name));
        let before = at.ok().map(|at| &all[at]);
        if before == Some(&slice) {
            return false;
        }
        if several {
            self.prefixes.exchange(before, Some(&slice));
        }
        if let Some(cluster) = asked {
            self.questions.exchange(&cluster, before.map(Pod::from), Some((&slice).into()));
        }
        match at {
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
        let several = self.is_several();
        let asked = self.asks(service.cluster()).filter(|_| self.services.contains_key(&service));
        if let Some(all) = self.slices.get_mut(&service) {
            let before = all.iter().find(|slice| slice.name == *name);
            if several {
                self.prefixes.exchange(before, None);
            }
            if let Some(cluster) = asked {
                self.questions.exchange(&cluster, before.map(Pod::from), None);
            }
            all.retain(|slice| slice.name != *name);
            if all.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.mark(service)
    }

    fn apply_policy_slice(&mut self, slice: PolicySlice) -> bool {
        if let Some(cluster) = self.asks(&slice.name.cluster) {
            let before = self.register.slice(&slice.name).and_then(Pod::of_policy);
            self.questions.exchange(&cluster, before, Pod::of_policy(&slice));
        }
        let affected = self.register.apply_slice(slice);
        self.mark_affected(affected)
    }

    fn remove_policy_slice(&mut self, name: &SliceName) -> bool {
        if let Some(cluster) = self.asks(&name.cluster) {
            let before = self.register.slice(name).and_then(Pod::of_policy);
            self.questions.exchange(&cluster, before, None);
        }
        let affected = self.register.remove_slice(name);
        self.mark_affected(affected)
    }

    pub fn is_dirty(&self) -> bool {
        self.nodes_dirty || !self.dirty.is_empty()
    }

    /// Plans again what is marked.
    pub fn take(&mut self) -> Delta {
        self.follow_nodes();
        self.follow_prefixes();
        let names = std::mem::take(&mut self.dirty);
        self.plan_again(names)
    }

    /// Everything that is planned now, as if all of it had just changed: for start and the periodic check.
    pub fn take_all(&mut self) -> Delta {
        self.follow_nodes();
        self.follow_prefixes();
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

    /// Of each policy, its cluster.
    pub fn policy_clusters(&self) -> impl Iterator<Item = &str> {
        self.register.owners().map(OwnerName::cluster)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.sites.values().flat_map(|site| site.nodes.values())
    }

    pub fn claims(&self) -> &Claims {
        &self.claims
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
        all.sort();
        all.dedup();
        all
    }

    fn conflict(&self, key: &FrontendKey, winner: &Claim, loser: &Claim) -> Refusal {
        let (subject, holder) = (loser.service.subject(), winner.service.subject());
        let dialled = self.order.dialled(key);
        if winner.kind == Kind::Virtual && loser.kind != Kind::Virtual {
            let message = format!(
                "{dialled} is the virtual address of {holder}, inside --virtual-ranges, where policies go before: use \
                 another address"
            );
            return Refusal { subject, reason: "virtualRange", message };
        }
        if key.protocol.is_none() {
            let view = self.order.view_name(key.view).map_or_else(String::new, |view| format!(" in view {view}"));
            let (address, first) = (key.address, winner.service.cluster());
            let message = format!("{address}{view} is cluster {first}'s, which comes before: {holder} has it there");
            return Refusal { subject, reason: "addressConflict", message };
        }
        let message = format!("{dialled} belongs to {holder}, whose claim goes before: change one of them");
        Refusal { subject, reason: "addressConflict", message }
    }
}
