//! What the clusters' names lead to: facts in, one at a time. Plain synchronous state; `question` reads it.
//!
//! Records are made when they are asked for, from the service and its slices: a change costs no more than storing it, and
//! an answer no more than its own length. Only what no name leads to is indexed: which namespaces there are, and whose
//! an address is.

use crate::told::{Part, Told};
use crate::way::Outlook;
use crate::zone::{Zone, Zones};
use beeline_model::fact::{NamedService, Node, Published, SliceName};
use beeline_model::reach::Reach;
use beeline_model::stand::order::Order;
use beeline_model::{Address, Name, OwnerName};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

pub use crate::told::Host;

pub struct Index {
    zones: Vec<Zone>,
    /// The clusters that stand first in views of their own.
    pub(crate) views: Vec<Name>,
    /// Of the order of the configuration, and of each view.
    pub(crate) orders: Vec<Zones>,
    pub(crate) clusters: HashMap<Name, Cluster>,
    pub(crate) outlook: Outlook,
    /// Where we are asked: the zones' own name server.
    pub(crate) at: Option<IpAddr>,
    /// How often anything changed: the zones' serial.
    pub(crate) serial: u32,
}

/// What one cluster has said.
#[derive(Default)]
pub struct Cluster {
    /// It has been listed: what is not here does not exist.
    pub(crate) known: bool,
    pub(crate) services: HashMap<OwnerName, NamedService>,
    /// With the number of services in it.
    pub(crate) namespaces: HashMap<Box<str>, usize>,
    slices: HashMap<SliceName, Part>,
    parts: HashMap<OwnerName, BTreeSet<SliceName>>,
    /// Whose an address is: a service's own, or an endpoint of headless ones; and how often it says so, since a pod
    /// that moves from one slice to another stands in both for a while.
    reverse: HashMap<Address, BTreeMap<OwnerName, usize>>,
    pub(crate) nodes: BTreeMap<Name, Node>,
    /// Whose they are.
    pub(crate) node_addresses: BTreeMap<Address, Name>,
}

impl Index {
    /// `views`: clusters that somebody sees first.
    pub fn new(zones: Vec<Zone>, views: Vec<Name>) -> Index {
        let orders = orders(&zones, &views);
        Index { zones, views, orders, clusters: HashMap::new(), outlook: Outlook::default(), at: None, serial: 1 }
    }

    /// Clusters come and go; what is known of those that stay, stays.
    pub fn set_zones(&mut self, zones: Vec<Zone>) {
        self.orders = orders(&zones, &self.views);
        self.clusters.retain(|name, _| zones.iter().any(|zone| zone.cluster == *name));
        self.zones = zones;
        self.changed();
    }

    /// What this host is called, and at which addresses.
    pub fn set_own(&mut self, node: Name, own: impl IntoIterator<Item = Address>) {
        self.outlook.node = node;
        self.outlook.own = own.into_iter().collect();
        self.changed();
    }

    /// Where virtual addresses may be.
    pub fn set_virtual(&mut self, ranges: Vec<IpNet>) {
        self.outlook.virtual_ranges = ranges;
        self.changed();
    }

    /// Whose an address is.
    pub fn set_order(&mut self, order: Order) {
        self.outlook.order = order;
        self.changed();
    }

    /// How pods are reached.
    pub fn set_reach(&mut self, reach: Reach) {
        self.outlook.reach = reach;
        self.changed();
    }

    /// The address that questions come to.
    pub fn set_address(&mut self, at: IpAddr) {
        self.at = Some(at);
    }

    /// Its facts have been told whole once: from now on what is not there does not exist.
    pub fn set_known(&mut self, cluster: &str) {
        self.cluster(cluster).known = true;
    }

    pub fn is_known(&self, cluster: &str) -> bool {
        self.clusters.get(cluster).is_some_and(|cluster| cluster.known)
    }

    pub fn apply(&mut self, told: Told) {
        let cluster = self.cluster(told.cluster());
        match told {
            Told::Service(service) => cluster.put(service),
            Told::ServiceGone(name) => cluster.remove(&name),
            Told::Slice(name, part) => cluster.put_slice(name, part),
            Told::SliceGone(name) => cluster.remove_slice(&name),
            Told::Node(node) => cluster.put_node(node),
            Told::NodeGone { name, .. } => cluster.remove_node(&name),
        }
        self.changed();
    }

    fn changed(&mut self) {
        self.serial = self.serial.wrapping_add(1);
    }

    fn cluster(&mut self, name: &str) -> &mut Cluster {
        if !self.clusters.contains_key(name) {
            self.clusters.insert(name.into(), Cluster::default());
        }
        self.clusters.entry(name.into()).or_default()
    }

    pub fn services(&self) -> usize {
        self.clusters.values().map(|cluster| cluster.services.len()).sum()
    }

    /// The domains that are answered for.
    pub fn domains(&self) -> Vec<String> {
        self.orders[0].routes()
    }

    /// Each cluster: where its names are, how many services it has, and whether it has been heard.
    pub fn heard(&self) -> Vec<Heard> {
        self.zones.iter().map(|zone| self.heard_of(zone)).collect()
    }

    fn heard_of(&self, zone: &Zone) -> Heard {
        let cluster = self.clusters.get(&zone.cluster);
        Heard {
            cluster: zone.cluster.clone(),
            domains: self.orders[0].domains_of(&zone.cluster),
            services: cluster.map_or(0, |cluster| cluster.services.len()),
            known: cluster.is_some_and(|cluster| cluster.known),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub cluster: Name,
    pub domains: Vec<String>,
    pub services: usize,
    pub known: bool,
}

fn orders(zones: &[Zone], views: &[Name]) -> Vec<Zones> {
    let of_view = |first: &Name| {
        let (mut order, rest): (Vec<Zone>, Vec<Zone>) = zones.iter().cloned().partition(|zone| zone.cluster == *first);
        order.extend(rest);
        Zones::new(order)
    };
    std::iter::once(Zones::new(zones.to_vec())).chain(views.iter().map(of_view)).collect()
}

fn is_headless(service: Option<&NamedService>) -> bool {
    service.is_some_and(|service| matches!(service.published, Published::Headless { .. }))
}

impl Cluster {
    pub(crate) fn service(&self, name: &OwnerName) -> Option<&NamedService> {
        self.services.get(name)
    }

    pub(crate) fn parts(&self, service: &OwnerName) -> impl Iterator<Item = &Part> {
        self.parts.get(service).into_iter().flatten().filter_map(|name| self.slices.get(name))
    }

    pub(crate) fn owners(&self, address: Address) -> impl Iterator<Item = &NamedService> {
        let owners = self.reverse.get(&address).into_iter().flat_map(BTreeMap::keys);
        owners.filter_map(|name| self.services.get(name))
    }

    fn put(&mut self, service: NamedService) {
        self.remove(&service.name);
        let name = service.name.clone();
        *self.namespaces.entry(name.namespace().into()).or_default() += 1;
        self.services.insert(name.clone(), service);
        self.addresses(&name).into_iter().for_each(|address| self.point(address, &name));
    }

    fn remove(&mut self, name: &OwnerName) {
        let addresses = self.addresses(name);
        let Some(service) = self.services.remove(name) else { return };
        addresses.into_iter().for_each(|address| self.unpoint(address, &service.name));
        if let Some(count) = self.namespaces.get_mut(name.namespace()) {
            *count -= 1;
            if *count == 0 {
                self.namespaces.remove(name.namespace());
            }
        }
    }

    fn put_slice(&mut self, name: SliceName, part: Part) {
        self.remove_slice(&name);
        let service = part.service.clone();
        if is_headless(self.service(&service)) {
            part.hosts.iter().for_each(|host| self.point(host.address, &service));
        }
        self.slices.insert(name.clone(), part);
        self.parts.entry(service).or_default().insert(name);
    }

    fn remove_slice(&mut self, name: &SliceName) {
        let Some(part) = self.slices.remove(name) else { return };
        if let Some(parts) = self.parts.get_mut(&part.service) {
            parts.remove(name);
            if parts.is_empty() {
                self.parts.remove(&part.service);
            }
        }
        if is_headless(self.service(&part.service)) {
            part.hosts.iter().for_each(|host| self.unpoint(host.address, &part.service));
        }
    }

    fn put_node(&mut self, node: Node) {
        let addresses = |node: &Node| node.addresses.iter().map(|(_, address)| *address).collect::<Vec<_>>();
        let before = self.nodes.get(&node.name).map(addresses);
        let (name, now) = (node.name.clone(), addresses(&node));
        self.nodes.insert(name.clone(), node);
        match before {
            // A list of many nodes is taken in one by one.
            None => now.into_iter().for_each(|address| self.note_node(address, &name)),
            Some(before) if before != now => self.settle_nodes(),
            Some(_) => {}
        }
    }

    /// Of several that show one address the last by name.
    fn note_node(&mut self, address: Address, name: &Name) {
        let known = self.node_addresses.entry(address).or_insert_with(|| name.clone());
        if *known < *name {
            known.clone_from(name);
        }
    }

    fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.settle_nodes();
        }
    }

    /// Nodes behind one NAT show one address: all are looked at again.
    fn settle_nodes(&mut self) {
        let of = |node: &Node| {
            let name = node.name.clone();
            node.addresses.iter().map(move |(_, address)| (*address, name.clone())).collect::<Vec<_>>()
        };
        self.node_addresses = self.nodes.values().flat_map(of).collect();
    }

    /// That lead back to the service.
    fn addresses(&self, name: &OwnerName) -> Vec<Address> {
        match self.services.get(name).map(|service| &service.published) {
            Some(Published::Addresses(addresses)) => addresses.to_vec(),
            Some(Published::Headless { .. }) => {
                self.parts(name).flat_map(|part| part.hosts.iter().map(|host| host.address)).collect()
            }
            Some(Published::Alias(_)) | None => Vec::new(),
        }
    }

    fn point(&mut self, address: Address, service: &OwnerName) {
        *self.reverse.entry(address).or_default().entry(service.clone()).or_default() += 1;
    }

    fn unpoint(&mut self, address: Address, service: &OwnerName) {
        let Some(owners) = self.reverse.get_mut(&address) else { return };
        if let Some(times) = owners.get_mut(service) {
            *times -= 1;
            if *times == 0 {
                owners.remove(service);
            }
        }
        if owners.is_empty() {
            self.reverse.remove(&address);
        }
    }
}
