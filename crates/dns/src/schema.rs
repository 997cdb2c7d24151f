//! What stands at a name of a cluster: the Kubernetes DNS schema, from the right end of the name to the left.
//!
//! ```text
//! web.default.svc.cluster.local                A, AAAA: the ClusterIPs, or the ready endpoints of a headless Service
//! _http._tcp.web.default.svc.cluster.local     SRV: the Service, or each ready endpoint
//! web-0.web.default.svc.cluster.local          A, AAAA: the endpoint with this hostname, or 10-0-0-1 for its address
//! 10.0.96.10.in-addr.arpa                      PTR: the Service or the endpoint
//! ```
//!
//! An address is told only if a dial of it reaches this cluster: what an earlier cluster owns, and pods that have no way
//! of their own, are there but have no address.

use crate::index::{Cluster, Host, Index};
use crate::record;
use crate::way::Hidden;
use crate::zone::{Place, Zone, Zones};
use beeline_model::fact::{NamedService, Published};
use beeline_model::{Address, Name as Word, OwnerName, Protocol};
use hickory_proto::rr::{Name, Record};
use std::collections::BTreeSet;

/// With more targets than this the addresses of each are not sent along: the asker would only get a longer answer cut.
const ALONG: usize = 8;
/// No more endpoints of a service are looked at for one answer: more addresses than fit 64 KB.
const MOST: usize = 4096;

/// What stands at one name.
pub(crate) enum Stand {
    Missing,
    Records(Vec<Record>),
    /// Records, and what is to be sent along.
    Services(Vec<Record>, Vec<Record>),
    Alias(Name),
    /// It exists, and this is why no address of it is told here.
    Hidden(String),
    /// Nobody can tell before this cluster has been heard.
    Unheard(Word),
}

/// A name in a cluster's domain.
pub(crate) struct Asked<'a> {
    pub(crate) index: &'a Index,
    /// Who stands first, where that is not as configured.
    pub(crate) first: Option<&'a Word>,
    pub(crate) zone: &'a Zone,
    pub(crate) cluster: &'a Cluster,
    pub(crate) name: &'a Name,
    pub(crate) place: &'a Place<'a>,
}

/// Addresses that may be told, or why there are none.
type Told = Result<BTreeSet<Address>, Stand>;

impl Asked<'_> {
    pub(crate) fn stand(&self) -> Stand {
        let labels: Vec<&str> = self.place.labels.iter().map(String::as_str).collect();
        match labels[..] {
            [] => Stand::Records(self.top()),
            ["svc"] | ["dns"] => Stand::Records(Vec::new()),
            ["dns", "ns"] => Stand::Records(self.index.at.iter().map(|ip| record::host(self.name, *ip)).collect()),
            ["dns-version"] => Stand::Records(vec![record::schema(self.name)]),
            ["svc", namespace] if self.cluster.namespaces.contains_key(namespace) => Stand::Records(Vec::new()),
            ["svc", namespace, service, ref more @ ..] => {
                let name = OwnerName::new(&self.zone.cluster, namespace, service);
                self.cluster.service(&name).map_or(Stand::Missing, |service| self.below(service, more))
            }
            _ => Stand::Missing,
        }
    }

    fn top(&self) -> Vec<Record> {
        vec![record::authority(self.place.domain, self.index.serial), record::server(self.place.domain)]
    }

    fn below(&self, service: &NamedService, more: &[&str]) -> Stand {
        let published = &service.published;
        match (more, published) {
            ([], Published::Alias(target)) => self.target(target).map_or(Stand::Missing, Stand::Alias),
            (_, Published::Alias(_)) => Stand::Missing,
            ([], _) => self.addresses(self.all(service)),
            ([protocol], _) if protocol.starts_with('_') => {
                let any = !self.ports(service, None, &protocol[1..]).is_empty();
                if any { Stand::Records(Vec::new()) } else { Stand::Missing }
            }
            ([host], Published::Headless { .. }) => self.addresses(self.of_host(service, host)),
            ([protocol, port], _) => match (protocol.strip_prefix('_'), port.strip_prefix('_')) {
                (Some(protocol), Some(port)) => self.services(service, port, protocol),
                _ => Stand::Missing,
            },
            _ => Stand::Missing,
        }
    }

    /// Whoever wrote it meant a name of the cluster's own domain to be this cluster's, whoever has that domain here.
    fn target(&self, text: &str) -> Option<Name> {
        let target = Name::from_labels(text.split('.').map(str::as_bytes)).ok()?;
        if !self.zone.domain.zone_of(&target) {
            return Some(target);
        }
        let before = target.iter().len() - self.zone.domain.iter().len();
        let labels: Vec<&[u8]> = target.iter().take(before).collect();
        labels.iter().rev().try_fold(self.place.domain.clone(), |name, label| name.prepend_label(*label).ok())
    }

    fn addresses(&self, told: Told) -> Stand {
        match told {
            // The schema wants a headless Service without ready endpoints not to exist.
            Ok(addresses) if addresses.is_empty() => Stand::Missing,
            Ok(addresses) => {
                Stand::Records(addresses.iter().map(|address| record::address(self.name, *address)).collect())
            }
            Err(stand) => stand,
        }
    }

    /// What the service's own name leads to.
    fn all(&self, service: &NamedService) -> Told {
        match &service.published {
            Published::Addresses(addresses) => self.own(addresses),
            Published::Headless { .. } => self.reached(shown(self.cluster, service)),
            Published::Alias(_) => Ok(BTreeSet::new()),
        }
    }

    /// Those of a service's own addresses that lead to it. One that does not hides only itself.
    fn own(&self, addresses: &[Address]) -> Told {
        let hides = |address: &Address| self.index.outlook.hides(self.first, &self.zone.cluster, *address);
        let told: BTreeSet<Address> = addresses.iter().copied().filter(|address| hides(address).is_none()).collect();
        match addresses.iter().find_map(hides).filter(|_| told.is_empty()) {
            None => Ok(told),
            Some(Hidden::Because(why)) => Err(Stand::Hidden(why)),
            Some(Hidden::Unheard(earlier)) => Err(Stand::Unheard(earlier)),
        }
    }

    fn of_host(&self, service: &NamedService, label: &str) -> Told {
        self.reached(shown(self.cluster, service).filter(|host| is_called(host, label)))
    }

    fn reached<'h>(&self, hosts: impl Iterator<Item = &'h Host>) -> Told {
        let mut hidden = None;
        let mut told = BTreeSet::new();
        for host in hosts.take(MOST) {
            if self.is_direct(host) {
                told.insert(host.address);
            } else {
                hidden = Some(host.address);
            }
        }
        match hidden.filter(|_| told.is_empty()) {
            None => Ok(told),
            Some(address) => Err(Stand::Hidden(format!("pods such as {address} are not reached from here"))),
        }
    }

    fn services(&self, service: &NamedService, port: &str, protocol: &str) -> Stand {
        let ports = self.ports(service, Some(port), protocol);
        if ports.is_empty() {
            let headless = matches!(service.published, Published::Headless { .. });
            return self.all(service).err().filter(|_| headless).unwrap_or(Stand::Missing);
        }
        let Some(base) = service_name(&service.name, self.place.domain) else { return Stand::Missing };
        let target = |label: &Option<Word>| label.as_ref().map_or(Some(base.clone()), |label| below(&base, label));
        let targets: Vec<(u16, &Option<Word>, Name)> =
            ports.iter().filter_map(|(port, label)| Some((*port, label, target(label)?))).collect();
        let record =
            |(port, _, target): &(u16, _, Name)| record::service(self.name, *port, target.clone(), targets.len());
        let along = targets.iter().take(if targets.len() > ALONG { 0 } else { ALONG });
        let along = along.flat_map(|(_, label, target)| {
            let told = (*label).as_ref().map_or_else(|| self.all(service), |label| self.of_host(service, label));
            let told = told.unwrap_or_default().into_iter();
            told.map(|address| record::address(target, address)).collect::<Vec<_>>()
        });
        Stand::Services(targets.iter().map(record).collect(), along.collect())
    }

    /// Named ports, each with its number and the endpoint that has it; none for the service itself.
    fn ports(&self, service: &NamedService, name: Option<&str>, protocol: &str) -> BTreeSet<(u16, Option<Word>)> {
        let fits = |has: &str, kind: Protocol| {
            !has.is_empty() && name.is_none_or(|name| name == has) && kind.to_string().eq_ignore_ascii_case(protocol)
        };
        if let Published::Addresses(_) = service.published {
            let ports = service.ports.iter().filter(|port| fits(&port.name, port.protocol));
            return ports.map(|port| (port.port, None)).collect();
        }
        let unready = shows_unready(service);
        let of_part = self.cluster.parts(&service.name).flat_map(|part| {
            let ports = part.ports.iter().filter(|port| fits(&port.name, port.protocol));
            ports.flat_map(move |port| {
                let shown = part.hosts.iter().filter(move |host| host.ready || unready);
                shown.map(move |host| (port.port, host))
            })
        });
        let direct = of_part.take(MOST).filter(|(_, host)| self.is_direct(host));
        direct.map(|(port, host)| (port, Some(host_label(host)))).collect()
    }

    fn is_direct(&self, host: &Host) -> bool {
        self.index.outlook.is_direct(self.cluster, &self.zone.cluster, host)
    }
}

fn shows_unready(service: &NamedService) -> bool {
    matches!(service.published, Published::Headless { unready: true })
}

/// The endpoints that a headless Service shows.
fn shown<'a>(cluster: &'a Cluster, service: &NamedService) -> impl Iterator<Item = &'a Host> {
    let unready = shows_unready(service);
    let all = cluster.parts(&service.name).flat_map(|part| &part.hosts);
    all.filter(move |host| host.ready || unready)
}

/// An endpoint's own label: its hostname, or its address with dashes.
fn host_label(host: &Host) -> Word {
    host.hostname.clone().unwrap_or_else(|| dashed(host.address).into())
}

fn is_called(host: &Host, label: &str) -> bool {
    host.hostname.as_ref().map_or_else(|| dashed(host.address) == label, |name| **name == *label)
}

fn dashed(address: Address) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// What the cluster calls an address, as far as a dial of it reaches the cluster.
pub(crate) fn pointers(
    index: &Index,
    (order, first): (&Zones, Option<&Word>),
    zone: &Zone,
    cluster: &Cluster,
    address: Address,
) -> BTreeSet<Name> {
    let domain = order.domain_of(zone);
    let mut targets = BTreeSet::new();
    for service in cluster.owners(address) {
        let Some(base) = service_name(&service.name, &domain) else { continue };
        match service.published {
            Published::Addresses(_) => {
                let hidden = index.outlook.hides(first, &zone.cluster, address).is_some();
                targets.extend((!hidden).then_some(base));
            }
            Published::Headless { .. } => {
                let here = shown(cluster, service).filter(|host| host.address == address);
                let here = here.filter(|host| index.outlook.is_direct(cluster, &zone.cluster, host));
                targets.extend(here.filter_map(|host| below(&base, &host_label(host))));
            }
            Published::Alias(_) => {}
        }
    }
    targets
}

fn service_name(name: &OwnerName, domain: &Name) -> Option<Name> {
    ["svc", name.namespace(), name.name()].iter().try_fold(domain.clone(), |name, label| below(&name, label))
}

/// `None`: it would be too long for a name.
fn below(name: &Name, label: &str) -> Option<Name> {
    name.prepend_label(label.as_bytes()).ok()
}
