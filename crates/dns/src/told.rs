//! Of a fact what names need. Taken when the fact comes by and told later: a name is answered only once what it leads to
//! stands in the tables.

use beeline_model::fact::{Fact, NamedService, Node, Published, Service, Slice, SliceName, SlicePort};
use beeline_model::{Address, Name, OwnerName};

#[derive(Debug)]
pub enum Told {
    Service(NamedService),
    ServiceGone(OwnerName),
    Slice(SliceName, Part),
    SliceGone(SliceName),
    Node(Node),
    NodeGone { cluster: Name, name: Name },
}

/// Of a slice what names need.
#[derive(Debug)]
pub struct Part {
    pub(crate) service: OwnerName,
    pub(crate) ports: Box<[SlicePort]>,
    pub(crate) hosts: Box<[Host]>,
}

#[derive(Debug)]
pub struct Host {
    pub(crate) address: Address,
    pub(crate) ready: bool,
    pub(crate) hostname: Option<Name>,
    pub(crate) node: Option<Name>,
}

impl Told {
    /// `None`: no name leads to it.
    pub fn of(fact: &Fact) -> Option<Told> {
        Some(match fact {
            Fact::Service(service) => Told::Service(named(service)),
            Fact::NamedService(service) => Told::Service(service.clone()),
            Fact::ServiceGone(name) => Told::ServiceGone(name.clone()),
            Fact::Slice(slice) | Fact::NamedSlice(slice) => Told::Slice(slice.name.clone(), Part::from(slice)),
            Fact::SliceGone(name) => Told::SliceGone(name.clone()),
            Fact::Node(node) => Told::Node(node.clone()),
            Fact::NodeGone { cluster, name } => Told::NodeGone { cluster: cluster.clone(), name: name.clone() },
            _ => return None,
        })
    }

    pub(crate) fn cluster(&self) -> &str {
        match self {
            Told::Service(service) => service.name.cluster(),
            Told::ServiceGone(name) => name.cluster(),
            Told::Slice(name, _) | Told::SliceGone(name) => &name.cluster,
            Told::Node(node) => &node.cluster,
            Told::NodeGone { cluster, .. } => cluster,
        }
    }
}

fn named(service: &Service) -> NamedService {
    let published = Published::Addresses(service.cluster_ips.clone());
    NamedService { name: service.name.clone(), published, ports: service.ports.clone() }
}

impl From<&Slice> for Part {
    fn from(slice: &Slice) -> Part {
        let host = |(place, endpoint): (usize, &beeline_model::fact::Endpoint)| Host {
            address: endpoint.address,
            ready: endpoint.ready,
            hostname: slice.hostname(place).cloned(),
            node: endpoint.node.clone(),
        };
        let hosts = slice.endpoints.iter().enumerate().map(host).collect();
        Part { service: slice.service.clone(), ports: slice.ports.clone(), hosts }
    }
}
