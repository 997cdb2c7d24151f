//! What one kind's follower tells the book.

use super::lean::{Read, Reduced};
use crate::kind::Kind;
use crate::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::time::Instant;

pub(crate) enum Object {
    Service(Box<Service>),
    Slice(Box<EndpointSlice>),
    Node(Box<Node>),
    Pod(Box<Pod>),
    Namespace(Box<Namespace>),
    Redirect(Box<Read<LocalRedirectPolicySpec>>),
    Balancing(Box<Read<BalancingPolicySpec>>),
    Range(Box<ServiceCIDR>),
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
    Failed {
        kind: Kind,
        why: String,
        /// We may not read it at all.
        denied: bool,
    },
    /// The server does not seem to know such a kind.
    Absent(Kind),
}

/// A kind that is followed.
pub(crate) trait Followed: Reduced {
    const KIND: Kind;
    const PATH: &'static str;
    /// Where nobody has installed it there is none of it, which is no error.
    const OPTIONAL: bool = false;
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

impl Followed for Namespace {
    const KIND: Kind = Kind::Namespace;
    const PATH: &'static str = "/api/v1/namespaces";

    fn object(self) -> Object {
        Object::Namespace(Box::new(self))
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Followed for Read<LocalRedirectPolicySpec> {
    const KIND: Kind = Kind::LocalRedirect;
    const PATH: &'static str = "/apis/beeline.dev/v1alpha1/localredirectpolicies";
    const OPTIONAL: bool = true;

    fn object(self) -> Object {
        Object::Redirect(Box::new(self))
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Followed for Read<BalancingPolicySpec> {
    const KIND: Kind = Kind::Balancing;
    const PATH: &'static str = "/apis/beeline.dev/v1alpha1/balancingpolicies";
    const OPTIONAL: bool = true;

    fn object(self) -> Object {
        Object::Balancing(Box::new(self))
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// Servers before 1.33 have none.
impl Followed for ServiceCIDR {
    const KIND: Kind = Kind::ServiceCidr;
    const PATH: &'static str = "/apis/networking.k8s.io/v1/servicecidrs";
    const OPTIONAL: bool = true;

    fn object(self) -> Object {
        Object::Range(Box::new(self))
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}
