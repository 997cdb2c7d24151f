//! Which kinds are read, and which of Kubernetes' own may lie beside them without a word.

use crate::policy::API_VERSION;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Service,
    EndpointSlice,
    Endpoints,
    Node,
    Pod,
    Namespace,
    LocalRedirect,
    Balancing,
    ServiceCidr,
}

impl Kind {
    pub(crate) const COUNT: usize = Kind::ServiceCidr as usize + 1;
}

pub(crate) const READ: &str = "Service v1, EndpointSlice discovery.k8s.io/v1, Endpoints v1, Node v1, Pod v1, Namespace v1, \
    ServiceCIDR networking.k8s.io/v1, LocalRedirectPolicy and BalancingPolicy beeline.dev/v1alpha1, List v1";

/// A folder is often a whole application, so what is deployed beside the services is no mistake.
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

/// Kubernetes' own groups: `v1`, `apps/v1`, `networking.k8s.io/v1`, ... A `Service` of serving.knative.dev is another
/// thing altogether.
fn is_builtin(api_version: &str) -> bool {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    !group.contains('.') || group.ends_with(".k8s.io")
}

impl Kind {
    pub(crate) fn of(api_version: &str, kind: &str) -> Option<Kind> {
        match (api_version, kind) {
            ("v1", "Service") => Some(Kind::Service),
            ("v1", "Endpoints") => Some(Kind::Endpoints),
            ("v1", "Node") => Some(Kind::Node),
            ("v1", "Pod") => Some(Kind::Pod),
            ("v1", "Namespace") => Some(Kind::Namespace),
            (API_VERSION, "LocalRedirectPolicy") => Some(Kind::LocalRedirect),
            (API_VERSION, "BalancingPolicy") => Some(Kind::Balancing),
            ("discovery.k8s.io/v1", "EndpointSlice") => Some(Kind::EndpointSlice),
            ("networking.k8s.io/v1", "ServiceCIDR") => Some(Kind::ServiceCidr),
            _ => None,
        }
    }
}

pub(crate) fn is_ignored(api_version: &str, kind: &str) -> bool {
    is_builtin(api_version) && IGNORED.contains(&kind)
}

/// What the items of this list are where they do not say: `ServiceList` holds Services, `List` anything.
pub(crate) fn of_items(list: &str) -> Option<&str> {
    list.strip_suffix("List")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_a_name_in_a_group() {
        assert_eq!(Kind::of("v1", "Service"), Some(Kind::Service));
        assert_eq!(Kind::of("serving.knative.dev/v1", "Service"), None);
        assert_eq!(Kind::of("beeline.dev/v1alpha1", "BalancingPolicy"), Some(Kind::Balancing));
        assert_eq!(Kind::of("balancing.elf.io/v1beta1", "BalancingPolicy"), None);
        assert_eq!(Kind::of("discovery.k8s.io/v1beta1", "EndpointSlice"), None);
        assert!(is_ignored("apps/v1", "Deployment") && is_ignored("networking.k8s.io/v1", "NetworkPolicy"));
        assert!(!is_ignored("crd.projectcalico.org/v1", "NetworkPolicy") && !is_ignored("v1", "Servce"));
        assert_eq!((of_items("ServiceList"), of_items("List"), of_items("Pod")), (Some("Service"), Some(""), None));
    }
}
