//! What the watcher of one kind reports to the tracker.

use crate::kind::ResourceKind;
use crate::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
use crate::wire::{PolicyObject, TrimmedKind};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::time::Instant;

pub(crate) enum ApiObject {
    Service(Box<Service>),
    Slice(Box<EndpointSlice>),
    Node(Box<Node>),
    Pod(Box<Pod>),
    Namespace(Box<Namespace>),
    LocalRedirect(Box<PolicyObject<LocalRedirectPolicySpec>>),
    Balancing(Box<PolicyObject<BalancingPolicySpec>>),
    Range(Box<ServiceCIDR>),
}

pub(crate) enum WatchUpdate {
    /// A list starts. An earlier list that did not finish is void.
    ListStarted(ResourceKind),
    ListPage(Vec<ApiObject>),
    /// The list is complete: objects that it did not contain are deleted.
    ListFinished(ResourceKind),
    /// An object was added or modified. The time is when the event was received.
    Upserted(ApiObject, Instant),
    Deleted(ApiObject),
    /// The watch is open.
    Healthy(ResourceKind),
    Failed {
        kind: ResourceKind,
        error: String,
        /// The account may not read the kind.
        is_denied: bool,
    },
    /// The server seems not to know the kind.
    NotInstalled(ResourceKind),
}

/// A kind that is listed and watched.
pub(crate) trait WatchedKind: TrimmedKind {
    const KIND: ResourceKind;
    const PATH: &'static str;
    /// The kind may not be installed. Then it has no objects, which is not an error.
    const OPTIONAL: bool;
    fn into_object(self) -> ApiObject;
    fn meta(&self) -> &ObjectMeta;
}

macro_rules! watched_kind {
    ($type:ty, $kind:ident, $variant:ident, $path:literal, optional: $optional:literal) => {
        impl WatchedKind for $type {
            const KIND: ResourceKind = ResourceKind::$kind;
            const PATH: &'static str = $path;
            const OPTIONAL: bool = $optional;

            fn into_object(self) -> ApiObject {
                ApiObject::$variant(Box::new(self))
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
        }
    };
}

watched_kind!(Service, Service, Service, "/api/v1/services", optional: false);
watched_kind!(EndpointSlice, EndpointSlice, Slice, "/apis/discovery.k8s.io/v1/endpointslices", optional: false);
watched_kind!(Node, Node, Node, "/api/v1/nodes", optional: false);
watched_kind!(Pod, Pod, Pod, "/api/v1/pods", optional: false);
watched_kind!(Namespace, Namespace, Namespace, "/api/v1/namespaces", optional: false);
// Servers before 1.33 do not serve ServiceCIDRs.
watched_kind!(ServiceCIDR, ServiceCidr, Range, "/apis/networking.k8s.io/v1/servicecidrs", optional: true);
watched_kind!(
    PolicyObject<LocalRedirectPolicySpec>,
    LocalRedirectPolicy,
    LocalRedirect,
    "/apis/beeline.dev/v1alpha1/localredirectpolicies",
    optional: true
);
watched_kind!(
    PolicyObject<BalancingPolicySpec>,
    BalancingPolicy,
    Balancing,
    "/apis/beeline.dev/v1alpha1/balancingpolicies",
    optional: true
);
