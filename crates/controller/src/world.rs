//! All that the controller knows of the cluster, and what follows from it: plain synchronous state behind one lock. Tasks
//! around it feed it and ask it what there is to write.

use crate::census::Census;
use crate::settings::{Overlap, Settings};
use beeline_model::fact::{Fact, Node, Service, SliceName};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::policy::{Matcher, Policy, PolicyName, PolicySlice};
use beeline_model::publish::{NodePublisher, NodeSlice, Publisher, Unknown};
use beeline_model::{Address, Name, OwnerName};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a policy's frontend is put on; policies at one spot may be in each other's way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Spot {
    Service(OwnerName),
    Address(Address),
}

impl Spot {
    pub fn of(policy: &Policy) -> Spot {
        match &policy.matcher {
            Matcher::Service { name, .. } => {
                Spot::Service(OwnerName::new(&policy.name.cluster, &policy.name.namespace, name))
            }
            Matcher::Address { address, .. } => Spot::Address(*address),
        }
    }
}

pub struct World {
    pub(crate) virtual_ranges: Vec<IpNet>,
    pub(crate) overlap: Overlap,
    settled: bool,
    /// Everything has been listed once.
    pub synced: bool,
    pub error: Option<String>,
    /// Facts from before that: slices, policies and namespaces must be known before pods.
    early: Vec<Fact>,
    pub(crate) policies: BTreeMap<PolicyName, Policy>,
    pub(crate) services: HashMap<OwnerName, Service>,
    pub(crate) spots: HashMap<Spot, BTreeSet<PolicyName>>,
    /// Whose addresses in the virtual ranges are: `Service a/b`, `Node n`, `Pod a/b`.
    pub(crate) taken: HashMap<Address, BTreeSet<String>>,
    takers: HashMap<String, Vec<Address>>,
    pub(crate) publisher: Publisher,
    nodes: NodePublisher,
    /// What should be, and what is, as far as we have heard.
    wanted: BTreeMap<SliceName, PolicySlice>,
    existing: BTreeMap<SliceName, PolicySlice>,
    slices_dirty: BTreeSet<SliceName>,
    nodes_dirty: BTreeSet<Name>,
    pub census: Census,
    pub(crate) status_dirty: BTreeSet<PolicyName>,
}

impl World {
    pub fn new(settings: &Settings) -> World {
        World {
            virtual_ranges: settings.virtual_ranges.clone(),
            overlap: settings.overlap,
            settled: false,
            synced: false,
            error: None,
            early: Vec::new(),
            policies: BTreeMap::new(),
            services: HashMap::new(),
            spots: HashMap::new(),
            taken: HashMap::new(),
            takers: HashMap::new(),
            publisher: Publisher::new(Unknown::Waits),
            nodes: NodePublisher::default(),
            wanted: BTreeMap::new(),
            existing: BTreeMap::new(),
            slices_dirty: BTreeSet::new(),
            nodes_dirty: BTreeSet::new(),
            census: Census::default(),
            status_dirty: BTreeSet::new(),
        }
    }

    /// What an earlier run published of nodes: told first.
    pub fn adopt_nodes(&mut self, slices: &[NodeSlice]) {
        slices.iter().for_each(|slice| self.nodes.adopt(slice));
    }

    /// `settled`: every kind has been listed, or cannot be. `whole`: all of them have; before that nothing may be written:
    /// half of the pods, taken for all of them, would empty what is published.
    pub fn take(&mut self, facts: Vec<Fact>, settled: bool, whole: bool) {
        self.settled |= settled;
        self.synced |= whole;
        self.early.extend(facts);
        if !self.settled {
            return;
        }
        let mut facts = std::mem::take(&mut self.early);
        facts.sort_by_key(rank);
        facts.into_iter().for_each(|fact| self.apply(fact));
        self.follow();
    }

    fn apply(&mut self, fact: Fact) {
        self.note_addresses(&fact);
        self.census.apply(&fact);
        self.publisher.apply(&fact);
        self.nodes.apply(&fact);
        match fact {
            Fact::Policy(policy) => self.put_policy(policy),
            Fact::PolicyGone(name) => self.remove_policy(&name),
            Fact::Service(service) => {
                self.touch(&Spot::Service(service.name.clone()));
                self.services.insert(service.name.clone(), service);
            }
            Fact::ServiceGone(name) => {
                self.services.remove(&name);
                self.touch(&Spot::Service(name));
            }
            Fact::PolicySlice(slice) => self.put_existing(slice),
            Fact::PolicySliceGone(name) => {
                self.existing.remove(&name);
                self.compare(&name);
            }
            _ => {}
        }
    }

    fn put_existing(&mut self, slice: PolicySlice) {
        let name = slice.name.clone();
        self.publisher.adopt(&slice);
        self.existing.insert(name.clone(), slice);
        self.compare(&name);
    }

    fn compare(&mut self, name: &SliceName) {
        if self.wanted.get(name) != self.existing.get(name) {
            self.slices_dirty.insert(name.clone());
        }
    }

    fn put_policy(&mut self, policy: Policy) {
        self.remove_policy(&policy.name);
        let spot = Spot::of(&policy);
        self.spots.entry(spot.clone()).or_default().insert(policy.name.clone());
        self.policies.insert(policy.name.clone(), policy);
        self.touch(&spot);
    }

    fn remove_policy(&mut self, name: &PolicyName) {
        let Some(policy) = self.policies.remove(name) else { return };
        let spot = Spot::of(&policy);
        if let Some(names) = self.spots.get_mut(&spot) {
            names.remove(name);
            if names.is_empty() {
                self.spots.remove(&spot);
            }
        }
        self.touch(&spot);
        self.status_dirty.insert(name.clone());
    }

    /// What is said of the policies there may be another thing now.
    fn touch(&mut self, spot: &Spot) {
        self.status_dirty.extend(self.spots.get(spot).into_iter().flatten().cloned());
    }

    fn note_addresses(&mut self, fact: &Fact) {
        let (subject, addresses): (String, Vec<Address>) = match fact {
            Fact::Service(it) => {
                let all = [&it.cluster_ips, &it.load_balancer_ips, &it.external_ips];
                (format!("Service {}", it.name), all.into_iter().flat_map(|list| list.iter().copied()).collect())
            }
            Fact::ServiceGone(name) => (format!("Service {name}"), Vec::new()),
            Fact::Node(it) => (format!("Node {}", it.name), node_addresses(it)),
            Fact::NodeGone { name, .. } => (format!("Node {name}"), Vec::new()),
            Fact::Pod(it) => (format!("Pod {}/{}", it.name.namespace, it.name.name), it.addresses.to_vec()),
            Fact::PodGone(name) => (format!("Pod {}/{}", name.namespace, name.name), Vec::new()),
            _ => return,
        };
        // Nothing else could be a virtual address, and a hundred thousand pods are many.
        let inside = |address: &Address| self.virtual_ranges.iter().any(|net| net.contains(&address.ip()));
        let addresses: Vec<Address> = addresses.into_iter().filter(inside).collect();
        self.set_taken(subject, addresses);
    }

    fn set_taken(&mut self, subject: String, addresses: Vec<Address>) {
        for old in self.takers.remove(&subject).unwrap_or_default() {
            if let Some(owners) = self.taken.get_mut(&old) {
                owners.remove(&subject);
                if owners.is_empty() {
                    self.taken.remove(&old);
                }
            }
            self.touch(&Spot::Address(old));
        }
        for new in &addresses {
            self.taken.entry(*new).or_default().insert(subject.clone());
            self.touch(&Spot::Address(*new));
        }
        if !addresses.is_empty() {
            self.takers.insert(subject, addresses);
        }
    }

    /// What is to be written because of what came in.
    fn follow(&mut self) {
        self.status_dirty.extend(self.publisher.dirty().cloned());
        for fact in self.publisher.take() {
            let name = match fact {
                Fact::PolicySlice(slice) => {
                    let name = slice.name.clone();
                    self.wanted.insert(name.clone(), slice);
                    name
                }
                Fact::PolicySliceGone(name) => {
                    self.wanted.remove(&name);
                    name
                }
                _ => continue,
            };
            self.slices_dirty.insert(name);
        }
        self.nodes_dirty.extend(self.nodes.take_changed());
    }

    /// Whoever begins to write looks at everything.
    pub fn mark_all(&mut self) {
        self.slices_dirty.extend(self.wanted.keys().chain(self.existing.keys()).cloned());
        self.nodes_dirty.extend(self.nodes.slices().map(|slice| slice.name));
        self.mark_statuses();
    }

    pub fn mark_statuses(&mut self) {
        self.status_dirty.extend(self.policies.keys().cloned());
    }

    /// Slices that may have to be written, as they should be; `None`: to be deleted.
    pub fn take_slices(&mut self) -> Vec<(SliceName, Option<PolicySlice>)> {
        let names = std::mem::take(&mut self.slices_dirty);
        let differs = |name: &SliceName| self.wanted.get(name) != self.existing.get(name);
        let names = names.into_iter().filter(differs);
        names.map(|name| (name.clone(), self.wanted.get(&name).cloned())).collect()
    }

    /// Whose slice it is, where we know nothing of that policy.
    pub fn unknown_owner(&self, name: &SliceName) -> Option<(PolicyName, Box<str>)> {
        let slice = self.existing.get(name)?;
        let known = self.policies.get(&slice.policy).is_some_and(|policy| policy.uid == slice.uid);
        (!known).then(|| (slice.policy.clone(), slice.uid.clone()))
    }

    /// It could not be written.
    pub fn retry_slice(&mut self, name: SliceName) {
        self.slices_dirty.insert(name);
    }

    /// The watch tells the same a little later; until then nothing is written twice.
    pub fn wrote_slice(&mut self, name: SliceName, slice: Option<PolicySlice>) {
        match slice {
            Some(slice) => drop(self.existing.insert(name.clone(), slice)),
            None => drop(self.existing.remove(&name)),
        }
        self.compare(&name);
    }

    pub fn take_nodes(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.nodes_dirty)
    }

    pub fn mark_node_slice(&mut self, name: Name) {
        self.nodes_dirty.insert(name);
    }

    pub fn node_slice(&self, name: &str) -> Option<NodeSlice> {
        self.nodes.slice_named(name)
    }

    pub fn policy(&self, name: &PolicyName) -> Option<&Policy> {
        self.policies.get(name)
    }

    pub fn counts(&self) -> Counts {
        Counts {
            policies: self.policies.len(),
            slices: self.wanted.len(),
            nodes: self.census.size(),
            unwritten_slices: self.slices_dirty.len() + self.nodes_dirty.len(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub policies: usize,
    pub slices: usize,
    pub nodes: usize,
    pub unwritten_slices: usize,
}

fn node_addresses(node: &Node) -> Vec<Address> {
    node.addresses.iter().map(|(_, address)| *address).chain(node.entry.iter().copied()).collect()
}

/// What is published already, then who chooses, then who is chosen. Facts about one thing keep their order.
fn rank(fact: &Fact) -> u8 {
    match fact {
        Fact::PolicySlice(_) | Fact::PolicySliceGone(_) => 0,
        Fact::Policy(_) | Fact::PolicyGone(_) => 1,
        Fact::Namespace(_) | Fact::NamespaceGone { .. } => 2,
        Fact::Pod(_) | Fact::PodGone(_) => 4,
        _ => 3,
    }
}

/// The cluster's name in the names of what it is told.
pub const CLUSTER: &str = LOCAL_CLUSTER;
