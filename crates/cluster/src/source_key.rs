//! The key of an object as a source reads it.

use crate::kind::ResourceKind;
use beeline_model::ServiceName;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::SliceName;
use beeline_model::policy::PolicyKind;
use beeline_model::refusal::ObjectRef;

/// Identifies an object of a source. Most objects become an object of the model with the same key. `Endpoints` and
/// slices with node addresses do not: they become slices and Nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SourceKey {
    Object(ObjectKey),
    Endpoints(ServiceName),
    /// An EndpointSlice in which the controller publishes node addresses.
    NodeSlice(SliceName),
}

impl SourceKey {
    pub(crate) fn service(name: &ServiceName) -> SourceKey {
        SourceKey::Object(ObjectKey::Service(name.clone()))
    }

    /// The change that deletes the object; `None` if the object is not one of the model.
    pub(crate) fn deletion(&self) -> Option<Change> {
        match self {
            SourceKey::Object(key) => Some(Change::Delete(key.clone())),
            SourceKey::Endpoints(_) | SourceKey::NodeSlice(_) => None,
        }
    }

    /// The cluster is `None`, because the receiver of a source's refusals knows it.
    pub(crate) fn object_ref(&self) -> ObjectRef {
        let (namespace, name) = match self {
            SourceKey::Object(key) => (key.namespace(), key.name()),
            SourceKey::Endpoints(service) => (Some(service.namespace()), service.name()),
            SourceKey::NodeSlice(slice) => (Some(&*slice.namespace), &*slice.name),
        };
        ObjectRef { kind: self.kind().as_str(), cluster: None, namespace: namespace.map(Into::into), name: name.into() }
    }

    pub(crate) fn kind(&self) -> ResourceKind {
        match self {
            SourceKey::Endpoints(_) => ResourceKind::Endpoints,
            SourceKey::NodeSlice(_) => ResourceKind::EndpointSlice,
            SourceKey::Object(key) => match key {
                ObjectKey::Service(_) => ResourceKind::Service,
                ObjectKey::Slice(_) | ObjectKey::PolicySlice(_) => ResourceKind::EndpointSlice,
                ObjectKey::Node { .. } => ResourceKind::Node,
                ObjectKey::Pod(_) => ResourceKind::Pod,
                ObjectKey::Namespace { .. } => ResourceKind::Namespace,
                ObjectKey::Policy(name) => policy_kind(name.kind),
                ObjectKey::ServiceRange { .. } => ResourceKind::ServiceCidr,
            },
        }
    }
}

pub(crate) fn policy_kind(kind: PolicyKind) -> ResourceKind {
    match kind {
        PolicyKind::LocalRedirect => ResourceKind::LocalRedirectPolicy,
        PolicyKind::Balancing => ResourceKind::BalancingPolicy,
    }
}
