//! A change of the cluster's objects, and the key that identifies an object of any kind.

use crate::name::{Name, ServiceName};
use crate::object::{Object, PodName, SliceName};
use crate::policy::{PolicyKind, PolicyName};
use std::fmt;

/// One object was added or modified, or one object was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Upsert(Object),
    Delete(ObjectKey),
}

impl Change {
    pub fn key(&self) -> ObjectKey {
        match self {
            Change::Upsert(object) => object.key(),
            Change::Delete(key) => key.clone(),
        }
    }

    /// The cluster that the object belongs to.
    pub fn cluster(&self) -> &str {
        match self {
            Change::Upsert(object) => object.cluster(),
            Change::Delete(key) => key.cluster(),
        }
    }
}

impl From<Object> for Change {
    fn from(object: Object) -> Change {
        Change::Upsert(object)
    }
}

/// The kinds of objects, as Kubernetes names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    Service,
    Slice,
    Node,
    Pod,
    Namespace,
    Policy(PolicyKind),
    /// An EndpointSlice that carries the published backends of a policy.
    PolicySlice,
    ServiceRange,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectKind::Service => f.write_str("Service"),
            ObjectKind::Slice | ObjectKind::PolicySlice => f.write_str("EndpointSlice"),
            ObjectKind::Node => f.write_str("Node"),
            ObjectKind::Pod => f.write_str("Pod"),
            ObjectKind::Namespace => f.write_str("Namespace"),
            ObjectKind::Policy(kind) => kind.fmt(f),
            ObjectKind::ServiceRange => f.write_str("ServiceCIDR"),
        }
    }
}

/// Identifies one object: two objects with the same key are the same object. A clone copies pointers only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    /// A `Service` or a `NamedService`.
    Service(ServiceName),
    /// A `Slice` or a `NamedSlice`.
    Slice(SliceName),
    Node {
        cluster: Name,
        name: Name,
    },
    Pod(PodName),
    Namespace {
        cluster: Name,
        name: Name,
    },
    Policy(PolicyName),
    PolicySlice(SliceName),
    ServiceRange {
        cluster: Name,
        name: Name,
    },
}

impl ObjectKey {
    pub fn kind(&self) -> ObjectKind {
        match self {
            ObjectKey::Service(_) => ObjectKind::Service,
            ObjectKey::Slice(_) => ObjectKind::Slice,
            ObjectKey::Node { .. } => ObjectKind::Node,
            ObjectKey::Pod(_) => ObjectKind::Pod,
            ObjectKey::Namespace { .. } => ObjectKind::Namespace,
            ObjectKey::Policy(name) => ObjectKind::Policy(name.kind),
            ObjectKey::PolicySlice(_) => ObjectKind::PolicySlice,
            ObjectKey::ServiceRange { .. } => ObjectKind::ServiceRange,
        }
    }

    pub fn cluster(&self) -> &str {
        match self {
            ObjectKey::Service(name) => name.cluster(),
            ObjectKey::Slice(name) | ObjectKey::PolicySlice(name) => &name.cluster,
            ObjectKey::Pod(name) => &name.cluster,
            ObjectKey::Policy(name) => &name.cluster,
            ObjectKey::Node { cluster, .. }
            | ObjectKey::Namespace { cluster, .. }
            | ObjectKey::ServiceRange { cluster, .. } => cluster,
        }
    }

    /// `None` for a kind that has no namespace.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            ObjectKey::Service(name) => Some(name.namespace()),
            ObjectKey::Slice(name) | ObjectKey::PolicySlice(name) => Some(&name.namespace),
            ObjectKey::Pod(name) => Some(&name.namespace),
            ObjectKey::Policy(name) => Some(&name.namespace),
            ObjectKey::Node { .. } | ObjectKey::Namespace { .. } | ObjectKey::ServiceRange { .. } => None,
        }
    }

    pub fn name(&self) -> &str {
        match self {
            ObjectKey::Service(name) => name.name(),
            ObjectKey::Slice(name) | ObjectKey::PolicySlice(name) => &name.name,
            ObjectKey::Pod(name) => &name.name,
            ObjectKey::Policy(name) => &name.name,
            ObjectKey::Node { name, .. } | ObjectKey::Namespace { name, .. } | ObjectKey::ServiceRange { name, .. } => {
                name
            }
        }
    }
}

/// `Service default/web`, `Node n1`: the kind and the name without the cluster.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace() {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind(), self.name()),
            None => write!(f, "{} {}", self.kind(), self.name()),
        }
    }
}
