//! Which objects have an address: every ClusterIP, and other addresses in the ranges of virtual addresses. A policy must not
//! use such an address as its virtual address.

use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{Node, Object};
use beeline_model::{Address, ServiceName};
use ipnet::IpNet;
use std::collections::{BTreeSet, HashMap};

#[derive(Debug, Default)]
pub struct AddressOwners {
    virtual_address_cidrs: Vec<IpNet>,
    owners: HashMap<Address, BTreeSet<ObjectKey>>,
    addresses: HashMap<ObjectKey, Vec<Address>>,
}

impl AddressOwners {
    pub fn new(virtual_address_cidrs: Vec<IpNet>) -> AddressOwners {
        AddressOwners { virtual_address_cidrs, ..AddressOwners::default() }
    }

    /// Returns the addresses whose owners may have changed.
    pub fn apply(&mut self, change: &Change) -> Vec<Address> {
        let addresses = match change {
            // Only ClusterIPs count: with other addresses, anyone who may write a Service could take a virtual address
            // from its users. A virtual address takes precedence over those (`beeline_model::claim`).
            Change::Upsert(Object::Service(service)) => service.cluster_ips.to_vec(),
            Change::Upsert(Object::Node(node)) => node_addresses(node),
            Change::Upsert(Object::Pod(pod)) => pod.addresses.to_vec(),
            Change::Delete(ObjectKey::Service(_) | ObjectKey::Node { .. } | ObjectKey::Pod(_)) => Vec::new(),
            _ => return Vec::new(),
        };
        // Other addresses of nodes and pods cannot be virtual addresses. Skipping them saves memory in a cluster with
        // 100,000 pods.
        let is_virtual = |address: &Address| self.virtual_address_cidrs.iter().any(|net| net.contains(&address.ip()));
        let is_service = matches!(change, Change::Upsert(Object::Service(_)));
        let addresses: Vec<Address> =
            addresses.into_iter().filter(|address| is_service || is_virtual(address)).collect();
        self.set(change.key(), addresses)
    }

    /// The first owner of an address.
    pub fn owner(&self, address: Address) -> Option<&ObjectKey> {
        self.owners.get(&address).and_then(BTreeSet::first)
    }

    /// The Service whose ClusterIP the address is.
    pub fn service(&self, address: Address) -> Option<&ServiceName> {
        self.owners.get(&address)?.iter().find_map(|owner| match owner {
            ObjectKey::Service(name) => Some(name),
            _ => None,
        })
    }

    fn set(&mut self, owner: ObjectKey, addresses: Vec<Address>) -> Vec<Address> {
        let mut changed = self.addresses.remove(&owner).unwrap_or_default();
        for old in &changed {
            if let Some(owners) = self.owners.get_mut(old) {
                owners.remove(&owner);
                if owners.is_empty() {
                    self.owners.remove(old);
                }
            }
        }
        for new in &addresses {
            self.owners.entry(*new).or_default().insert(owner.clone());
        }
        changed.extend(&addresses);
        if !addresses.is_empty() {
            self.addresses.insert(owner, addresses);
        }
        changed
    }
}

fn node_addresses(node: &Node) -> Vec<Address> {
    node.addresses.iter().map(|(_, address)| *address).chain(node.entry.iter().copied()).collect()
}
