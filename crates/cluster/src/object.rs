//! An object as a file gave it: who it is, where it stands, what it says.

use crate::convert::Range;
use beeline_model::fact::{Fact, Namespace, Node, Pod, PodName, Slice, SliceName};
use beeline_model::policy::{Policy, PolicyName};
use beeline_model::{Name, OwnerName};
use serde_json::Value;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

/// Kind, namespace and name: two objects with the same one are the same object. Small, because every object of a folder
/// is known by it for as long as it exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Identity {
    Service(OwnerName),
    Endpoints(OwnerName),
    Slice(Arc<SliceName>),
    /// Backends of a policy, published.
    PolicySlice(Arc<SliceName>),
    /// Nodes' addresses, published.
    NodeSlice(Arc<SliceName>),
    Node(Name),
    Pod(Arc<PodName>),
    Namespace(Name),
    Policy(Arc<PolicyName>),
    Range(Name),
}

impl Identity {
    /// The fact that takes it back; Endpoints become slices and have none of their own.
    pub(crate) fn gone(&self, cluster: &Name) -> Option<Fact> {
        match self {
            Identity::Service(name) => Some(Fact::ServiceGone(name.clone())),
            Identity::Slice(name) => Some(Fact::SliceGone(SliceName::clone(name))),
            Identity::PolicySlice(name) => Some(Fact::PolicySliceGone(SliceName::clone(name))),
            Identity::Node(name) => Some(Fact::NodeGone { cluster: cluster.clone(), name: name.clone() }),
            Identity::Pod(name) => Some(Fact::PodGone(PodName::clone(name))),
            Identity::Namespace(name) => Some(Fact::NamespaceGone { cluster: cluster.clone(), name: name.clone() }),
            Identity::Policy(name) => Some(Fact::PolicyGone(PolicyName::clone(name))),
            Identity::Range(name) => Some(Fact::ServiceRangeGone { cluster: cluster.clone(), name: name.clone() }),
            Identity::Endpoints(_) | Identity::NodeSlice(_) => None,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Service(name) => write!(f, "Service {}/{}", name.namespace(), name.name()),
            Identity::Endpoints(name) => write!(f, "Endpoints {}/{}", name.namespace(), name.name()),
            Identity::Slice(name) | Identity::PolicySlice(name) | Identity::NodeSlice(name) => {
                write!(f, "EndpointSlice {}/{}", name.namespace, name.name)
            }
            Identity::Node(name) => write!(f, "Node {name}"),
            Identity::Pod(name) => write!(f, "Pod {}/{}", name.namespace, name.name),
            Identity::Namespace(name) => write!(f, "Namespace {name}"),
            Identity::Policy(name) => write!(f, "{} {}/{}", name.kind, name.namespace, name.name),
            Identity::Range(name) => write!(f, "ServiceCIDR {name}"),
        }
    }
}

/// Where in its file: both from 1, no item: 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) document: u32,
    pub(crate) item: u32,
}

impl Place {
    pub(crate) fn document(document: u32) -> Place {
        Place { document, item: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.item {
            0 => write!(f, "document {}", self.document),
            item => write!(f, "document {} item {item}", self.document),
        }
    }
}

/// `None`: skipped. It claims its identity all the same.
pub(crate) enum Body {
    Service { fact: Option<Fact>, selectorless: bool },
    Slice(Option<Fact>),
    Endpoints(Vec<Slice>),
    Node(Option<Node>),
    Pod(Option<Pod>),
    Namespace(Option<Namespace>),
    Policy(Option<Policy>),
    Range(Option<Range>),
}

impl Body {
    /// 0: says nothing.
    pub(crate) fn fingerprint(&self) -> u64 {
        match self {
            Body::Service { fact: Some(fact), .. } => fingerprint(fact),
            Body::Slice(Some(fact)) => fingerprint(fact),
            Body::Node(Some(fact)) => fingerprint(fact),
            Body::Pod(Some(fact)) => fingerprint(fact),
            Body::Namespace(Some(fact)) => fingerprint(fact),
            Body::Policy(Some(fact)) => fingerprint(fact),
            Body::Range(Some(fact)) => fingerprint(fact),
            Body::Endpoints(slices) if !slices.is_empty() => fingerprint(slices),
            _ => 0,
        }
    }

    pub(crate) fn into_fact(self) -> Option<Fact> {
        match self {
            Body::Service { fact, .. } | Body::Slice(fact) => fact,
            Body::Node(fact) => fact.map(Fact::Node),
            Body::Pod(fact) => fact.map(Fact::Pod),
            Body::Namespace(fact) => fact.map(Fact::Namespace),
            Body::Policy(fact) => fact.map(Fact::Policy),
            Body::Range(fact) => fact.map(Range::fact),
            Body::Endpoints(_) => None,
        }
    }

    pub(crate) fn selectorless(&self) -> bool {
        matches!(self, Body::Service { selectorless: true, .. })
    }

    /// Whose endpoints these are.
    pub(crate) fn owner(&self) -> Option<&OwnerName> {
        match self {
            Body::Slice(Some(Fact::Slice(slice) | Fact::NamedSlice(slice))) => Some(&slice.service),
            Body::Slice(_) => None,
            Body::Endpoints(slices) => slices.first().map(|slice| &slice.service),
            Body::Service { .. } | Body::Node(_) | Body::Pod(_) => None,
            Body::Namespace(_) | Body::Policy(_) | Body::Range(_) => None,
        }
    }
}

pub(crate) struct Object {
    pub(crate) identity: Identity,
    pub(crate) place: Place,
    pub(crate) body: Body,
}

/// Facts are remembered by 64 bits of what they say, not kept: the reader of the facts holds them already. Over the
/// debug text, which shows every field of a fact, also those that come later.
fn fingerprint(fact: &impl fmt::Debug) -> u64 {
    struct Text(DefaultHasher);
    impl Write for Text {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut text = Text(DefaultHasher::new());
    // A hasher accepts everything.
    let _ = write!(text, "{fact:?}");
    text.0.finish().max(1)
}

/// `Service default/web` of something that is not typed yet.
pub(crate) fn title(value: &Value) -> String {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or("?").to_owned();
    let meta = value.get("metadata");
    let namespace = meta.and_then(|meta| meta.get("namespace"));
    let name = text(meta.and_then(|meta| meta.get("name")));
    match namespace {
        Some(namespace) => format!("{} {}/{name}", text(value.get("kind")), text(Some(namespace))),
        None => format!("{} {name}", text(value.get("kind"))),
    }
}
