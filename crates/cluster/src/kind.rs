//! The Kubernetes kinds that are read, and the kinds that a folder of manifests may contain beside them.

use crate::policy::API_VERSION;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ResourceKind {
    Service,
    EndpointSlice,
    Endpoints,
    Node,
    Pod,
    Namespace,
    LocalRedirectPolicy,
    BalancingPolicy,
    ServiceCidr,
}

/// For the message about a kind that is not read.
pub(crate) const SUPPORTED: &str = "Service v1, EndpointSlice discovery.k8s.io/v1, Endpoints v1, Node v1, Pod v1, Namespace v1, \
    ServiceCIDR networking.k8s.io/v1, LocalRedirectPolicy and BalancingPolicy beeline.dev/v1alpha1, List v1";

/// Kubernetes' own kinds that are ignored without a refusal: a folder often holds a whole application.
const IGNORED: &[&str] = &[
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "ControllerRevision",
    "CronJob",
    "CustomResourceDefinition",
    "CSIDriver",
    "CSINode",
    "DaemonSet",
    "Deployment",
    "Event",
    "HorizontalPodAutoscaler",
    "IPAddress",
    "Ingress",
    "IngressClass",
    "Job",
    "Kustomization",
    "Lease",
    "LimitRange",
    "MutatingWebhookConfiguration",
    "NetworkPolicy",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "PodTemplate",
    "PriorityClass",
    "ReplicaSet",
    "ReplicationController",
    "ResourceQuota",
    "Role",
    "RoleBinding",
    "RuntimeClass",
    "Secret",
    "ServiceAccount",
    "StatefulSet",
    "StorageClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
    "VolumeAttachment",
];

/// Whether this is one of Kubernetes' own groups: `v1`, `apps/v1`, `networking.k8s.io/v1`, ... The `Service` of
/// serving.knative.dev, for example, is another kind.
fn is_builtin(api_version: &str) -> bool {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    !group.contains('.') || group.ends_with(".k8s.io")
}

impl ResourceKind {
    pub(crate) const ALL: [ResourceKind; 9] = [
        ResourceKind::Service,
        ResourceKind::EndpointSlice,
        ResourceKind::Endpoints,
        ResourceKind::Node,
        ResourceKind::Pod,
        ResourceKind::Namespace,
        ResourceKind::LocalRedirectPolicy,
        ResourceKind::BalancingPolicy,
        ResourceKind::ServiceCidr,
    ];

    /// The kind as Kubernetes names it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ResourceKind::Service => "Service",
            ResourceKind::EndpointSlice => "EndpointSlice",
            ResourceKind::Endpoints => "Endpoints",
            ResourceKind::Node => "Node",
            ResourceKind::Pod => "Pod",
            ResourceKind::Namespace => "Namespace",
            ResourceKind::LocalRedirectPolicy => "LocalRedirectPolicy",
            ResourceKind::BalancingPolicy => "BalancingPolicy",
            ResourceKind::ServiceCidr => "ServiceCIDR",
        }
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            ResourceKind::EndpointSlice => "discovery.k8s.io/v1",
            ResourceKind::ServiceCidr => "networking.k8s.io/v1",
            ResourceKind::LocalRedirectPolicy | ResourceKind::BalancingPolicy => API_VERSION,
            ResourceKind::Service
            | ResourceKind::Endpoints
            | ResourceKind::Node
            | ResourceKind::Pod
            | ResourceKind::Namespace => "v1",
        }
    }

    pub(crate) fn is_namespaced(self) -> bool {
        !matches!(self, ResourceKind::Node | ResourceKind::Namespace | ResourceKind::ServiceCidr)
    }

    pub(crate) fn find(api_version: &str, kind: &str) -> Option<ResourceKind> {
        let is_same = |one: &ResourceKind| one.as_str() == kind && one.api_version() == api_version;
        ResourceKind::ALL.into_iter().find(is_same)
    }
}

pub(crate) fn is_ignored(api_version: &str, kind: &str) -> bool {
    is_builtin(api_version) && IGNORED.contains(&kind)
}

/// The kind of the items of a list whose items have no `kind`: `ServiceList` holds Services. `List` gives an empty
/// text, because it holds objects of any kind.
pub(crate) fn item_kind(list: &str) -> Option<&str> {
    list.strip_suffix("List")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_identified_by_its_name_and_api_version() {
        assert_eq!(ResourceKind::find("v1", "Service"), Some(ResourceKind::Service));
        assert_eq!(ResourceKind::find("serving.knative.dev/v1", "Service"), None);
        let balancing = Some(ResourceKind::BalancingPolicy);
        assert_eq!(ResourceKind::find("beeline.dev/v1alpha1", "BalancingPolicy"), balancing);
        assert_eq!(ResourceKind::find("balancing.elf.io/v1beta1", "BalancingPolicy"), None);
        assert_eq!(ResourceKind::find("discovery.k8s.io/v1beta1", "EndpointSlice"), None);
        assert!(is_ignored("apps/v1", "Deployment") && is_ignored("networking.k8s.io/v1", "NetworkPolicy"));
        assert!(!is_ignored("crd.projectcalico.org/v1", "NetworkPolicy") && !is_ignored("v1", "Servce"));
        assert_eq!((item_kind("ServiceList"), item_kind("List"), item_kind("Pod")), (Some("Service"), Some(""), None));
    }
}
