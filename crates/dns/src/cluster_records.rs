//! The records of one cluster: services, slices and nodes, and the indexes over them.

use crate::change::DnsSlice;
use beeline_model::object::{NamedService, Node, Published, SliceName};
use beeline_model::{Address, Name, ServiceName};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The services, slices and nodes of one cluster.
#[derive(Default)]
pub struct ClusterRecords {
    /// All objects have been listed once. From then on a name that is not here does not exist.
    pub(crate) synced: bool,
    pub(crate) services: HashMap<ServiceName, NamedService>,
    /// The number of services in each namespace.
    pub(crate) namespaces: HashMap<Box<str>, usize>,
    slices: HashMap<SliceName, DnsSlice>,
    slices_by_service: HashMap<ServiceName, BTreeSet<SliceName>>,
    /// The services with this address: as a ClusterIP, or as an endpoint of a headless Service. The number counts how
    /// often the service has it, because a pod that moves between slices is in both for a while.
    reverse: HashMap<Address, BTreeMap<ServiceName, usize>>,
    pub(crate) nodes: BTreeMap<Name, Node>,
    /// The node that has an address.
    pub(crate) node_addresses: BTreeMap<Address, Name>,
}

impl ClusterRecords {
    pub(crate) fn service(&self, name: &ServiceName) -> Option<&NamedService> {
        self.services.get(name)
    }

    pub(crate) fn slices(&self, service: &ServiceName) -> impl Iterator<Item = &DnsSlice> {
        self.slices_by_service.get(service).into_iter().flatten().filter_map(|name| self.slices.get(name))
    }

    pub(crate) fn services_at(&self, address: Address) -> impl Iterator<Item = &NamedService> {
        let names = self.reverse.get(&address).into_iter().flat_map(BTreeMap::keys);
        names.filter_map(|name| self.services.get(name))
    }

    pub(crate) fn upsert_service(&mut self, service: NamedService) {
        self.remove_service(&service.name);
        let name = service.name.clone();
        *self.namespaces.entry(name.namespace().into()).or_default() += 1;
        self.services.insert(name.clone(), service);
        self.reverse_addresses(&name).into_iter().for_each(|address| self.add_reverse(address, &name));
    }

    pub(crate) fn remove_service(&mut self, name: &ServiceName) {
        let addresses = self.reverse_addresses(name);
        let Some(service) = self.services.remove(name) else { return };
        addresses.into_iter().for_each(|address| self.remove_reverse(address, &service.name));
        if let Some(count) = self.namespaces.get_mut(name.namespace()) {
            *count -= 1;
            if *count == 0 {
                self.namespaces.remove(name.namespace());
            }
        }
    }

    pub(crate) fn upsert_slice(&mut self, name: SliceName, slice: DnsSlice) {
        self.remove_slice(&name);
        let service = slice.service.clone();
        if is_headless(self.service(&service)) {
            slice.endpoints.iter().for_each(|endpoint| self.add_reverse(endpoint.address, &service));
        }
        self.slices.insert(name.clone(), slice);
        self.slices_by_service.entry(service).or_default().insert(name);
    }

    pub(crate) fn remove_slice(&mut self, name: &SliceName) {
        let Some(slice) = self.slices.remove(name) else { return };
        if let Some(slices) = self.slices_by_service.get_mut(&slice.service) {
            slices.remove(name);
            if slices.is_empty() {
                self.slices_by_service.remove(&slice.service);
            }
        }
        if is_headless(self.service(&slice.service)) {
            slice.endpoints.iter().for_each(|endpoint| self.remove_reverse(endpoint.address, &slice.service));
        }
    }

    pub(crate) fn upsert_node(&mut self, node: Node) {
        let addresses = |node: &Node| node.addresses.iter().map(|(_, address)| *address).collect::<Vec<_>>();
        let before = self.nodes.get(&node.name).map(addresses);
        let (name, now) = (node.name.clone(), addresses(&node));
        self.nodes.insert(name.clone(), node);
        match before {
            // A new node is cheap, because the first list adds many nodes one by one.
            None => now.into_iter().for_each(|address| self.add_node_address(address, &name)),
            Some(before) if before != now => self.rebuild_node_addresses(),
            Some(_) => {}
        }
    }

    /// If several nodes have the address, the last by name counts.
    fn add_node_address(&mut self, address: Address, name: &Name) {
        let current = self.node_addresses.entry(address).or_insert_with(|| name.clone());
        if *current < *name {
            current.clone_from(name);
        }
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.rebuild_node_addresses();
        }
    }

    /// Nodes behind one NAT share an address, so a removal must consider all nodes.
    fn rebuild_node_addresses(&mut self) {
        let addresses_of = |node: &Node| {
            let name = node.name.clone();
            node.addresses.iter().map(move |(_, address)| (*address, name.clone())).collect::<Vec<_>>()
        };
        self.node_addresses = self.nodes.values().flat_map(addresses_of).collect();
    }

    /// The addresses whose reverse lookup gives this service.
    fn reverse_addresses(&self, name: &ServiceName) -> Vec<Address> {
        match self.services.get(name).map(|service| &service.published) {
            Some(Published::Addresses(addresses)) => addresses.to_vec(),
            Some(Published::Headless { .. }) => {
                self.slices(name).flat_map(|slice| slice.endpoints.iter().map(|endpoint| endpoint.address)).collect()
            }
            Some(Published::Alias(_)) | None => Vec::new(),
        }
    }

    fn add_reverse(&mut self, address: Address, service: &ServiceName) {
        *self.reverse.entry(address).or_default().entry(service.clone()).or_default() += 1;
    }

    fn remove_reverse(&mut self, address: Address, service: &ServiceName) {
        let Some(services) = self.reverse.get_mut(&address) else { return };
        if let Some(count) = services.get_mut(service) {
            *count -= 1;
            if *count == 0 {
                services.remove(service);
            }
        }
        if services.is_empty() {
            self.reverse.remove(&address);
        }
    }
}

fn is_headless(service: Option<&NamedService>) -> bool {
    service.is_some_and(|service| matches!(service.published, Published::Headless { .. }))
}
