//! What a single name of a cluster holds, by the Kubernetes DNS specification. A name is read from right to left.
//!
//! ```text
//! web.default.svc.cluster.local                A, AAAA: the ClusterIPs, or the ready endpoints of a headless Service
//! _http._tcp.web.default.svc.cluster.local     SRV: the Service, or each ready endpoint
//! web-0.web.default.svc.cluster.local          A, AAAA: the endpoint with this hostname, or 10-0-0-1 for its address
//! 10.0.96.10.in-addr.arpa                      PTR: the Service or the endpoint
//! ```
//!
//! An address is returned only if dialling it reaches this cluster. A name whose addresses belong to an earlier cluster,
//! or whose pods are not reachable, exists but has no address.

use crate::answer::ViewOrder;
use crate::change::DnsEndpoint;
use crate::cluster_records::ClusterRecords;
use crate::host_context::Withheld;
use crate::index::NameIndex;
use crate::record;
use crate::zone::{NameLocation, Zone};
use beeline_model::object::{NamedService, Published};
use beeline_model::{Address, Name, Protocol, ServiceName};
use hickory_proto::rr::{Name as DnsName, Record};
use std::collections::BTreeSet;

/// With more SRV targets than this, their addresses are not added: the response would only be truncated.
const MAX_ADDITIONAL_TARGETS: usize = 8;
/// Limit of endpoints that are examined for one answer. More addresses than this do not fit 64 KB.
const MAX_ENDPOINTS: usize = 4096;

/// What a name holds.
pub(crate) enum LookupResult {
    NotFound,
    Records(Vec<Record>),
    /// SRV records, and the address records of their targets.
    Srv(Vec<Record>, Vec<Record>),
    Alias(DnsName),
    /// The name exists, but its addresses are not returned, for this reason.
    Withheld(String),
    /// The answer is unknown until this cluster has synced.
    NotReady(Name),
}

/// The lookup of a name in a cluster's domain.
pub(crate) struct NameLookup<'a> {
    pub(crate) index: &'a NameIndex,
    /// The cluster that the view puts first; `None` for the configured order.
    pub(crate) first: Option<&'a Name>,
    pub(crate) zone: &'a Zone,
    pub(crate) cluster: &'a ClusterRecords,
    pub(crate) name: &'a DnsName,
    pub(crate) location: &'a NameLocation<'a>,
}

/// The addresses to return, or the result that explains why there are none.
type AddressResult = Result<BTreeSet<Address>, LookupResult>;

impl NameLookup<'_> {
    pub(crate) fn run(&self) -> LookupResult {
        let labels: Vec<&str> = self.location.labels.iter().map(String::as_str).collect();
        match labels[..] {
            [] => LookupResult::Records(self.domain_records()),
            ["svc"] | ["dns"] => LookupResult::Records(Vec::new()),
            ["dns", "ns"] => {
                LookupResult::Records(self.index.server_address.iter().map(|ip| record::ip(self.name, *ip)).collect())
            }
            ["dns-version"] => LookupResult::Records(vec![record::schema_version(self.name)]),
            ["svc", namespace] if self.cluster.namespaces.contains_key(namespace) => LookupResult::Records(Vec::new()),
            ["svc", namespace, service, ref rest @ ..] => {
                let name = ServiceName::new(&self.zone.cluster, namespace, service);
                self.cluster.service(&name).map_or(LookupResult::NotFound, |service| self.service_name(service, rest))
            }
            _ => LookupResult::NotFound,
        }
    }

    fn domain_records(&self) -> Vec<Record> {
        vec![record::soa(self.location.domain, self.index.serial), record::ns(self.location.domain)]
    }

    /// `rest` holds the labels left of the service's name, from right to left.
    fn service_name(&self, service: &NamedService, rest: &[&str]) -> LookupResult {
        match (rest, &service.published) {
            ([], Published::Alias(target)) => {
                self.alias_target(target).map_or(LookupResult::NotFound, LookupResult::Alias)
            }
            (_, Published::Alias(_)) => LookupResult::NotFound,
            ([], _) => self.address_records(self.service_addresses(service)),
            ([protocol], _) if protocol.starts_with('_') => {
                let any = !self.ports(service, None, &protocol[1..]).is_empty();
                if any { LookupResult::Records(Vec::new()) } else { LookupResult::NotFound }
            }
            ([label], Published::Headless { .. }) => self.address_records(self.endpoint_addresses(service, label)),
            ([protocol, port], _) => match (protocol.strip_prefix('_'), port.strip_prefix('_')) {
                (Some(protocol), Some(port)) => self.srv_records(service, port, protocol),
                _ => LookupResult::NotFound,
            },
            _ => LookupResult::NotFound,
        }
    }

    /// The target of an ExternalName. A target in the cluster's own domain means this cluster, also where an earlier
    /// cluster has that domain here, so it is moved into the domain of the query.
    fn alias_target(&self, text: &str) -> Option<DnsName> {
        let target = DnsName::from_labels(text.split('.').map(str::as_bytes)).ok()?;
        if !self.zone.domain.zone_of(&target) {
            return Some(target);
        }
        let prefix = target.iter().len() - self.zone.domain.iter().len();
        let labels: Vec<&[u8]> = target.iter().take(prefix).collect();
        labels.iter().rev().try_fold(self.location.domain.clone(), |name, label| name.prepend_label(*label).ok())
    }

    fn address_records(&self, addresses: AddressResult) -> LookupResult {
        match addresses {
            // By the specification a headless Service without ready endpoints does not exist.
            Ok(addresses) if addresses.is_empty() => LookupResult::NotFound,
            Ok(addresses) => {
                LookupResult::Records(addresses.iter().map(|address| record::address(self.name, *address)).collect())
            }
            Err(result) => result,
        }
    }

    fn service_addresses(&self, service: &NamedService) -> AddressResult {
        match &service.published {
            Published::Addresses(addresses) => self.dialable(addresses),
            Published::Headless { .. } => self.reachable(published_endpoints(self.cluster, service)),
            Published::Alias(_) => Ok(BTreeSet::new()),
        }
    }

    /// The ClusterIPs that reach this cluster when dialled. One that does not is left out; the others stay.
    fn dialable(&self, addresses: &[Address]) -> AddressResult {
        let withheld = |address: &Address| self.index.host.withheld(self.first, &self.zone.cluster, *address);
        let dialable: BTreeSet<Address> =
            addresses.iter().copied().filter(|address| withheld(address).is_none()).collect();
        match addresses.iter().find_map(withheld).filter(|_| dialable.is_empty()) {
            None => Ok(dialable),
            Some(Withheld::Reason(reason)) => Err(LookupResult::Withheld(reason)),
            Some(Withheld::NotReady(earlier)) => Err(LookupResult::NotReady(earlier)),
        }
    }

    fn endpoint_addresses(&self, service: &NamedService, label: &str) -> AddressResult {
        self.reachable(published_endpoints(self.cluster, service).filter(|endpoint| has_label(endpoint, label)))
    }

    fn reachable<'e>(&self, endpoints: impl Iterator<Item = &'e DnsEndpoint>) -> AddressResult {
        let mut unreachable = None;
        let mut reachable = BTreeSet::new();
        for endpoint in endpoints.take(MAX_ENDPOINTS) {
            if self.is_reachable(endpoint) {
                reachable.insert(endpoint.address);
            } else {
                unreachable = Some(endpoint.address);
            }
        }
        match unreachable.filter(|_| reachable.is_empty()) {
            None => Ok(reachable),
            Some(address) => {
                let reason = format!("pods such as {address} are not reachable from this host");
                Err(LookupResult::Withheld(reason))
            }
        }
    }

    fn srv_records(&self, service: &NamedService, port: &str, protocol: &str) -> LookupResult {
        let ports = self.ports(service, Some(port), protocol);
        if ports.is_empty() {
            let headless = matches!(service.published, Published::Headless { .. });
            return self.service_addresses(service).err().filter(|_| headless).unwrap_or(LookupResult::NotFound);
        }
        let Some(base) = service_domain(&service.name, self.location.domain) else { return LookupResult::NotFound };
        let target = |label: &Option<Name>| label.as_ref().map_or(Some(base.clone()), |label| prepend(&base, label));
        let targets: Vec<(u16, &Option<Name>, DnsName)> =
            ports.iter().filter_map(|(port, label)| Some((*port, label, target(label)?))).collect();
        let srv = |(port, _, target): &(u16, _, DnsName)| record::srv(self.name, *port, target.clone(), targets.len());
        let with_addresses = if targets.len() > MAX_ADDITIONAL_TARGETS { &[] } else { &targets[..] };
        let additional = with_addresses.iter().flat_map(|(_, label, target)| {
            let addresses = match label {
                None => self.service_addresses(service),
                Some(label) => self.endpoint_addresses(service, label),
            };
            let addresses = addresses.unwrap_or_default().into_iter();
            addresses.map(|address| record::address(target, address)).collect::<Vec<_>>()
        });
        LookupResult::Srv(targets.iter().map(srv).collect(), additional.collect())
    }

    /// The named ports that match: each with its number and the label of its endpoint. The label is `None` for a port of
    /// the service itself.
    fn ports(&self, service: &NamedService, name: Option<&str>, protocol: &str) -> BTreeSet<(u16, Option<Name>)> {
        let matches = |port_name: &str, port_protocol: Protocol| {
            !port_name.is_empty()
                && name.is_none_or(|name| name == port_name)
                && port_protocol.to_string().eq_ignore_ascii_case(protocol)
        };
        if let Published::Addresses(_) = service.published {
            let ports = service.ports.iter().filter(|port| matches(&port.name, port.protocol));
            return ports.map(|port| (port.port, None)).collect();
        }
        let unready = publishes_unready(service);
        let endpoint_ports = self.cluster.slices(&service.name).flat_map(|slice| {
            let ports = slice.ports.iter().filter(|port| matches(&port.name, port.protocol));
            ports.flat_map(move |port| {
                let published = slice.endpoints.iter().filter(move |endpoint| endpoint.ready || unready);
                published.map(move |endpoint| (port.port, endpoint))
            })
        });
        let reachable = endpoint_ports.take(MAX_ENDPOINTS).filter(|(_, endpoint)| self.is_reachable(endpoint));
        reachable.map(|(port, endpoint)| (port, Some(endpoint_label(endpoint)))).collect()
    }

    fn is_reachable(&self, endpoint: &DnsEndpoint) -> bool {
        self.index.host.is_reachable(self.cluster, &self.zone.cluster, endpoint)
    }
}

fn publishes_unready(service: &NamedService) -> bool {
    matches!(service.published, Published::Headless { unready: true })
}

/// The endpoints that a headless Service publishes.
fn published_endpoints<'a>(
    cluster: &'a ClusterRecords,
    service: &NamedService,
) -> impl Iterator<Item = &'a DnsEndpoint> {
    let unready = publishes_unready(service);
    let all = cluster.slices(&service.name).flat_map(|slice| &slice.endpoints);
    all.filter(move |endpoint| endpoint.ready || unready)
}

/// The label of an endpoint: its hostname, or its address with dashes.
fn endpoint_label(endpoint: &DnsEndpoint) -> Name {
    endpoint.hostname.clone().unwrap_or_else(|| dashed(endpoint.address).into())
}

fn has_label(endpoint: &DnsEndpoint, label: &str) -> bool {
    endpoint.hostname.as_ref().map_or_else(|| dashed(endpoint.address) == label, |name| **name == *label)
}

fn dashed(address: Address) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// The names of an address in a cluster, if dialling the address reaches that cluster.
pub(crate) fn reverse_names(
    index: &NameIndex,
    (zones, first): ViewOrder<'_>,
    zone: &Zone,
    cluster: &ClusterRecords,
    address: Address,
) -> BTreeSet<DnsName> {
    let domain = zones.domain_of(zone);
    let mut names = BTreeSet::new();
    for service in cluster.services_at(address) {
        let Some(base) = service_domain(&service.name, &domain) else { continue };
        match service.published {
            Published::Addresses(_) => {
                let withheld = index.host.withheld(first, &zone.cluster, address).is_some();
                names.extend((!withheld).then_some(base));
            }
            Published::Headless { .. } => {
                let at_address = published_endpoints(cluster, service).filter(|endpoint| endpoint.address == address);
                let reachable = at_address.filter(|endpoint| index.host.is_reachable(cluster, &zone.cluster, endpoint));
                names.extend(reachable.filter_map(|endpoint| prepend(&base, &endpoint_label(endpoint))));
            }
            Published::Alias(_) => {}
        }
    }
    names
}

fn service_domain(name: &ServiceName, domain: &DnsName) -> Option<DnsName> {
    ["svc", name.namespace(), name.name()].iter().try_fold(domain.clone(), |name, label| prepend(&name, label))
}

/// `None` if the result would be too long for a DNS name.
fn prepend(name: &DnsName, label: &str) -> Option<DnsName> {
    name.prepend_label(label.as_bytes()).ok()
}
