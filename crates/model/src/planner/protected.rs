//! Which Services claim an external address, and the addresses of the API servers: when what protects an address changes,
//! only its claimants are planned again.

use super::Planner;
use crate::address::Address;
use crate::hash::HashMap;
use crate::name::{Name, ServiceName};
use crate::object::{Service, Slice};
use ipnet::IpNet;
use std::collections::BTreeSet;

/// The Service whose endpoints are the API servers of its cluster.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");

fn is_api_service(name: &ServiceName) -> bool {
    (name.namespace(), name.name()) == API_SERVICE
}

/// The Services that list an address as externalIP or load-balancer address.
#[derive(Debug, Default)]
pub(super) struct ExternalAddresses {
    claimants: HashMap<Address, BTreeSet<ServiceName>>,
}

impl ExternalAddresses {
    pub fn replace(&mut self, before: Option<&Service>, now: Option<&Service>) {
        for (service, address) in before.into_iter().flat_map(listed) {
            if let Some(names) = self.claimants.get_mut(&address) {
                names.remove(&service.name);
                if names.is_empty() {
                    self.claimants.remove(&address);
                }
            }
        }
        for (service, address) in now.into_iter().flat_map(listed) {
            self.claimants.entry(address).or_default().insert(service.name.clone());
        }
    }
}

fn listed(service: &Service) -> impl Iterator<Item = (&Service, Address)> {
    service.load_balancer_ips.iter().chain(&service.external_ips).map(move |address| (service, *address))
}

/// The addresses of API servers that a change of a slice may add or remove. Empty for slices of all other Services.
pub(super) fn changed_api_servers(before: Option<&Slice>, now: Option<&Slice>) -> Vec<Address> {
    let slices = [before, now].into_iter().flatten().filter(|slice| is_api_service(&slice.service));
    slices.flat_map(|slice| &slice.endpoints).map(|endpoint| endpoint.address).collect()
}

impl Planner {
    /// Sets the addresses at which the agent reaches the API servers of a cluster.
    pub fn set_api_servers(&mut self, cluster: &Name, servers: Vec<(Address, u16)>) -> bool {
        if self.api_servers.get(cluster).map_or(&[][..], Vec::as_slice) == servers {
            return false;
        }
        let before = self.api_servers.insert(cluster.clone(), servers.clone()).unwrap_or_default();
        self.mark_claimants(before.into_iter().chain(servers).map(|(address, _)| address).collect());
        true
    }

    /// The API servers that no tenant of this cluster may take: those that the agent dials, of whichever cluster, and the
    /// endpoints of the cluster's own `default/kubernetes`.
    pub(super) fn api_servers_of(&self, cluster: &str) -> Vec<(Address, u16)> {
        let service = ServiceName::new(cluster, API_SERVICE.0, API_SERVICE.1);
        let endpoints = self.slices_of(&service).flat_map(|slice| {
            let ports = slice.ports.iter().map(|port| port.port);
            ports.flat_map(|port| slice.endpoints.iter().map(move |endpoint| (endpoint.address, port)))
        });
        self.api_servers.values().flatten().copied().chain(endpoints).collect()
    }

    pub(super) fn external_claimants(&self, address: &Address) -> impl Iterator<Item = &ServiceName> {
        self.external_addresses.claimants.get(address).into_iter().flatten()
    }

    /// Marks the Services and policies that claim one of these addresses.
    pub(super) fn mark_claimants(&mut self, addresses: Vec<Address>) {
        for address in addresses {
            let services = self.external_addresses.claimants.get(&address).into_iter().flatten();
            self.dirty.extend(services.chain(self.policies.at_address(&address)).cloned());
        }
    }

    /// Marks the claimants of the addresses for which `is_changed` holds.
    pub(super) fn mark_claimants_if(&mut self, is_changed: impl Fn(&Address) -> bool) {
        let changed = self.external_addresses.claimants.keys().chain(self.policies.addresses());
        let changed: Vec<Address> = changed.filter(|address| is_changed(address)).copied().collect();
        self.mark_claimants(changed);
    }
}

/// The fewest ranges that contain the same addresses.
pub(super) fn aggregate(ranges: impl Iterator<Item = IpNet>) -> Vec<IpNet> {
    IpNet::aggregate(&ranges.collect())
}
