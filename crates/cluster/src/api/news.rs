//! What one kind's follower tells the book.

use super::lean::Reduced;
use crate::kind::Kind;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::time::Instant;

pub(crate) enum Object {
    Service(Box<Service>),
    Slice(Box<EndpointSlice>),
    Node(Box<Node>),
    Pod(Box<Pod>),
}

pub(crate) enum News {
    /// A list begins; what an earlier one said that did not end is void.
    Begin(Kind),
    Listed(Vec<Object>),
    /// The list is complete: what it did not name is gone.
    Done(Kind),
    Changed(Object, Instant),
    Gone(Object),
    /// The watch stands.
    Well(Kind),
    Failed(Kind, String),
}

/// A kind that is followed.
pub(crate) trait Followed: Reduced {
    const KIND: Kind;
    const PATH: &'static str;
    fn object(self) -> Object;
    fn meta(&self) -> &ObjectMeta;
}

impl Followed for Service {
    const KIND: Kind = Kind::Service;
    const PATH: &'static str = "/api/v1/services";

    fn object(self) -> Object {
        Object::Service(Box::new(self))
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Followed for EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;
    const PATH: &'static str = "/apis/discovery.k8s.io/v1/endpointslices";

    fn object(self) -> Object {
        Object::Slice(Box::new(self))
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Followed for Node {
    const KIND: Kind = Kind::Node;
    const PATH: &'static str = "/api/v1/nodes";

    fn object(self) -> Object {
        Object::Node(Box::new(self))
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Followed for Pod {
    const KIND: Kind = Kind::Pod;
    const PATH: &'static str = "/api/v1/pods";

    fn object(self) -> Object {
        Object::Pod(Box::new(self))
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}
