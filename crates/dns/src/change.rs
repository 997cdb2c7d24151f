//! The parts of a cluster change that DNS needs. The agent extracts them when a change arrives and applies them to the
//! index later, when the kernel's tables hold the change: a name resolves only once its address can be dialled.

use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{Endpoint, NamedService, Node, Object, Published, Service, Slice, SliceName, SlicePort};
use beeline_model::{Address, Name, ServiceName};

#[derive(Debug)]
pub enum NameChange {
    UpsertService(NamedService),
    DeleteService(ServiceName),
    UpsertSlice(SliceName, DnsSlice),
    DeleteSlice(SliceName),
    UpsertNode(Node),
    DeleteNode { cluster: Name, name: Name },
}

/// The fields of an EndpointSlice that DNS needs.
#[derive(Debug)]
pub struct DnsSlice {
    pub(crate) service: ServiceName,
    pub(crate) ports: Box<[SlicePort]>,
    pub(crate) endpoints: Box<[DnsEndpoint]>,
}

#[derive(Debug)]
pub struct DnsEndpoint {
    pub(crate) address: Address,
    pub(crate) ready: bool,
    pub(crate) hostname: Option<Name>,
    pub(crate) node: Option<Name>,
}

impl NameChange {
    /// `None` if the change does not concern any name.
    pub fn from_change(change: &Change) -> Option<NameChange> {
        match change {
            Change::Upsert(object) => NameChange::from_object(object),
            Change::Delete(key) => NameChange::from_deleted(key),
        }
    }

    fn from_object(object: &Object) -> Option<NameChange> {
        Some(match object {
            Object::Service(service) => NameChange::UpsertService(named_service(service)),
            Object::NamedService(service) => NameChange::UpsertService(service.clone()),
            Object::Slice(slice) | Object::NamedSlice(slice) => {
                NameChange::UpsertSlice(slice.name.clone(), DnsSlice::from(slice))
            }
            Object::Node(node) => NameChange::UpsertNode(node.clone()),
            _ => return None,
        })
    }

    fn from_deleted(key: &ObjectKey) -> Option<NameChange> {
        Some(match key {
            ObjectKey::Service(name) => NameChange::DeleteService(name.clone()),
            ObjectKey::Slice(name) => NameChange::DeleteSlice(name.clone()),
            ObjectKey::Node { cluster, name } => {
                NameChange::DeleteNode { cluster: cluster.clone(), name: name.clone() }
            }
            _ => return None,
        })
    }

    pub(crate) fn cluster(&self) -> &str {
        match self {
            NameChange::UpsertService(service) => service.name.cluster(),
            NameChange::DeleteService(name) => name.cluster(),
            NameChange::UpsertSlice(name, _) | NameChange::DeleteSlice(name) => &name.cluster,
            NameChange::UpsertNode(node) => &node.cluster,
            NameChange::DeleteNode { cluster, .. } => cluster,
        }
    }
}

fn named_service(service: &Service) -> NamedService {
    let published = Published::Addresses(service.cluster_ips.clone());
    NamedService { name: service.name.clone(), published, ports: service.ports.clone() }
}

impl From<&Slice> for DnsSlice {
    fn from(slice: &Slice) -> DnsSlice {
        let endpoint = |(position, endpoint): (usize, &Endpoint)| DnsEndpoint {
            address: endpoint.address,
            ready: endpoint.ready,
            hostname: slice.hostname(position).cloned(),
            node: endpoint.node.clone(),
        };
        let endpoints = slice.endpoints.iter().enumerate().map(endpoint).collect();
        DnsSlice { service: slice.service.clone(), ports: slice.ports.clone(), endpoints }
    }
}
