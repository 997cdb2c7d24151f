//! Addresses that belong to the cluster itself. Whoever may write a Service chooses its externalIPs, so neither an
//! externalIP nor a load-balancer address nor a policy's virtual address may take an API server, another Service's
//! ClusterIP or a pod's address away from everyone else on this host. ClusterIPs are not checked: the API server
//! allocates them.

use crate::address::Address;
use crate::claim::Claims;
use crate::name::{Name, ServiceName};
use crate::object::{Node, Service};
use crate::refusal::RefusalReason;
use crate::row::FrontendKey;
use crate::rules::Rules;
use ipnet::IpNet;
use std::collections::BTreeMap;

/// The protected addresses of one cluster.
pub struct ProtectedAddresses<'a> {
    pub rules: &'a Rules,
    /// The addresses at which this agent reaches its API servers, and the endpoints of the cluster's `default/kubernetes`.
    pub api_servers: Vec<(Address, u16)>,
    pub service_ranges: &'a [IpNet],
    /// The pod ranges of the cluster's nodes.
    pub pod_ranges: &'a [IpNet],
    /// The node of each known address, and this host's Node: they tell the addresses of this host's pods. `None` in a
    /// cluster that this host is outside of.
    pub hosts: Option<&'a BTreeMap<Address, Name>>,
    pub own_node: Option<&'a Node>,
    /// Where there is one cluster only. Claims of several clusters are ordered by the ranks of the clusters.
    pub claims: Option<&'a Claims>,
}

/// Why an address is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    pub reason: RefusalReason,
    /// What the address is: "an address of an API server", ...
    pub what: String,
}

impl ProtectedAddresses<'_> {
    /// Why a Service may not claim an address on any port. It may list its own ClusterIP.
    pub fn at(&self, service: &Service, address: Address) -> Option<Protection> {
        if service.cluster_ips.contains(&address) {
            return None;
        }
        if let Some(holder) = self.cluster_ip_holder(&service.name, address) {
            let what = format!("the ClusterIP of {}", holder.subject());
            return Some(Protection { reason: RefusalReason::AddressConflict, what });
        }
        if self.is_local_pod(address) {
            let what = "the address of a pod on this host".to_owned();
            return Some(Protection { reason: RefusalReason::PodAddress, what });
        }
        self.range_at(address).map(|(_, protection)| protection)
    }

    /// The service range or pod range that contains the address.
    fn range_at(&self, address: Address) -> Option<(IpNet, Protection)> {
        let found = |ranges: &[IpNet]| ranges.iter().find(|range| range.contains(&address.ip())).copied();
        let protected =
            |range: IpNet, reason, kind| (range, Protection { reason, what: format!("in the {kind} range {range}") });
        if let Some(range) = found(self.service_ranges) {
            return Some(protected(range, RefusalReason::ServiceRangeAddress, "service"));
        }
        let range = found(self.pod_ranges).or_else(|| found(&self.rules.pod_ranges))?;
        Some(protected(range, RefusalReason::PodAddress, "pod"))
    }

    /// The same for a policy's virtual address. An administrator may reserve a part of a range for virtual addresses.
    pub fn at_virtual(&self, address: Address) -> Option<Protection> {
        let (range, protection) = self.range_at(address)?;
        let mut reserved = self.rules.virtual_address_cidrs.iter().filter(|net| net.contains(&address.ip()));
        let is_reserved = reserved.any(|net| range.contains(net) && *net != range);
        (!is_reserved).then_some(protection)
    }

    pub fn is_api_server(&self, address: Address, port: u16) -> bool {
        self.api_servers.contains(&(address, port))
    }

    /// Another Service that has the address as its ClusterIP.
    fn cluster_ip_holder(&self, owner: &ServiceName, address: Address) -> Option<&ServiceName> {
        let holder = self.claims?.cluster_ip_of(&FrontendKey::all_ports(address)).map(|claim| &claim.service);
        holder.filter(|holder| *holder != owner)
    }

    /// A pod in the host's network has an address of the host, which may be claimed.
    fn is_local_pod(&self, address: Address) -> bool {
        let of_node =
            |node: &Node| node.entry.contains(&address) || node.addresses.iter().any(|(_, own)| *own == address);
        self.hosts.is_some_and(|hosts| hosts.get(&address) == Some(&self.rules.node_name))
            && !self.rules.own_addresses.contains(&address)
            && !self.own_node.is_some_and(of_node)
    }
}
