//! Converts v1 Pods: their cgroups and addresses, their ports for policies, and their annotations.

use super::name::{is_label, is_subdomain};
use super::{Converted, Converter, RefusalCollector, Unserved, address, entry};
use crate::kind::ResourceKind;
use beeline_model::object::{self, Container, ContainerPort, PodExclusion, PodName};
use beeline_model::refusal::RefusalReason;
use beeline_model::{Address, Name};
use k8s_openapi::api::core::v1::{self as core, ContainerStatus, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

pub(crate) use beeline_model::object::RESOLVE_KEY as RESOLVE;
/// Istio's injector sets it on pods with a sidecar.
pub(crate) const ISTIO_SIDECAR: &str = "sidecar.istio.io/status";
/// Names of the containers that meshes add to a pod.
const SIDECARS: [&str; 2] = ["istio-proxy", "linkerd-proxy"];
/// The view of the pod's processes.
pub(crate) const VIEW: &str = "beeline.dev/view";
/// On the mirror pod of a static pod: the uid by which the kubelet knows the static pod.
pub(crate) const MIRRORED: &str = "kubernetes.io/config.mirror";

impl Converter {
    pub fn pod(&mut self, object: &Pod) -> Converted<object::Pod> {
        let mut refusals = RefusalCollector::new(ResourceKind::Pod, &object.metadata);
        let result = self.parse_pod(object, &mut refusals);
        refusals.finish(result)
    }

    pub(crate) fn pod_name(&mut self, object: &Pod) -> Option<PodName> {
        let (namespace, name) = (object.metadata.namespace.as_deref()?, object.metadata.name.as_deref()?);
        let valid = is_label(namespace) && is_subdomain(name);
        let cluster = self.cluster.clone();
        valid.then(|| PodName { cluster, namespace: self.names.intern(namespace), name: name.into() })
    }

    fn parse_pod(&mut self, object: &Pod, refusals: &mut RefusalCollector) -> Result<object::Pod, Unserved> {
        let node = object.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty());
        // A pod that is not scheduled yet, or a manifest without a node, runs nowhere.
        node.ok_or(Unserved::Skipped)?;
        let name = self.pod_name(object).ok_or_else(|| refusals.refuse_name())?;
        let node = refusals.accept(RefusalReason::BadNode, "spec.nodeName", self.node_name(node)).flatten();
        let status = object.status.as_ref();
        Ok(object::Pod {
            name,
            uid: cgroup_uid(object).into(),
            node,
            addresses: status.map_or_else(Vec::new, |status| addresses(status, refusals)).into(),
            containers: status.into_iter().flat_map(|status| self.containers(status)).collect(),
            exclusion: exclusion(object, refusals),
            view: self.view(object, refusals).filter(|_| !status.is_some_and(has_ended)),
            labels: self.labels(&object.metadata),
            ready: is_ready(object),
            ports: self.ports(object).into(),
        })
    }

    fn view(&mut self, object: &Pod, refusals: &mut RefusalCollector) -> Option<Name> {
        let given = entry(&object.metadata.annotations, VIEW)?;
        if !is_label(given) {
            let message = format!("annotation {VIEW}: {given:?} is not the name of a view: a-z, 0-9 and '-'");
            refusals.refuse(RefusalReason::BadAnnotation, message);
            return None;
        }
        // A user who may create pods can write a mirror pod, so a mirror pod must not choose the view of a static pod.
        if static_pod_uid(object).is_some() {
            let message = format!("annotation {VIEW}: ignored on a static pod; use `views:` of the configuration");
            refusals.refuse(RefusalReason::BadAnnotation, message);
            return None;
        }
        Some(self.names.intern(given))
    }

    fn ports(&mut self, object: &Pod) -> Vec<ContainerPort> {
        let Some(spec) = &object.spec else { return Vec::new() };
        let host = spec.host_network == Some(true);
        let all = running_containers(spec).flat_map(|container| container.ports.iter().flatten());
        all.filter_map(|port| self.port(port, host)).collect()
    }

    fn port(&mut self, port: &k8s_openapi::api::core::v1::ContainerPort, host: bool) -> Option<ContainerPort> {
        let number = u16::try_from(port.container_port).ok()?;
        let host_port = port.host_port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
        Some(ContainerPort {
            name: self.names.intern(port.name.as_deref().unwrap_or_default()),
            protocol: port.protocol.as_deref().unwrap_or("TCP").parse().ok()?,
            port: number,
            host_port: if host { number } else { host_port },
        })
    }

    fn containers(&mut self, status: &PodStatus) -> Vec<Container> {
        let all = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
        let started = all.into_iter().flatten().flatten().filter_map(|status| Some((status, container_id(status)?)));
        started.map(|(status, id)| Container { name: self.names.intern(&status.name), id: id.into() }).collect()
    }
}

pub(crate) fn is_node(owner: &OwnerReference) -> bool {
    owner.api_version == "v1" && owner.kind == "Node"
}

/// The kubelet's uid of a static pod. The API holds a mirror pod with a uid of its own, while the cgroup is named by
/// the kubelet's uid, which an annotation of the mirror pod carries. That uid is a hash of 32 hexadecimal digits, so it
/// cannot name an ordinary pod, and the kubelet makes its Node the owner of the mirror pod.
fn static_pod_uid(object: &Pod) -> Option<&str> {
    let is_hash = |text: &&str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let node = object.spec.as_ref()?.node_name.as_deref()?;
    let mut owners = object.metadata.owner_references.iter().flatten();
    owners.find(|owner| is_node(owner) && owner.name == node)?;
    entry(&object.metadata.annotations, MIRRORED).filter(is_hash)
}

fn cgroup_uid(object: &Pod) -> &str {
    static_pod_uid(object).or(object.metadata.uid.as_deref()).unwrap_or_default()
}

/// Cgroups are named by the part after the runtime's name: `containerd://4f2a...`.
fn container_id(status: &ContainerStatus) -> Option<&str> {
    let id = status.container_id.as_deref()?;
    Some(id.split_once("://").map_or(id, |(_, id)| id)).filter(|id| !id.is_empty())
}

/// A pod that is being deleted may have the condition Ready for a while, and does not count as ready.
fn is_ready(object: &Pod) -> bool {
    let Some(status) = &object.status else { return false };
    let mut conditions = status.conditions.iter().flatten();
    let has_condition = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    has_condition && object.metadata.deletion_timestamp.is_none() && !has_ended(status)
}

fn has_ended(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// None for a pod that has ended: another pod may have its addresses by now.
fn addresses(status: &PodStatus, refusals: &mut RefusalCollector) -> Vec<Address> {
    if has_ended(status) {
        return Vec::new();
    }
    let listed: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let all = if listed.is_empty() { status.pod_ip.as_deref().into_iter().collect() } else { listed };
    let given = all.into_iter().filter(|text| !text.is_empty());
    given.filter_map(|text| refusals.accept(RefusalReason::BadAddress, "status.podIPs", address::parse(text))).collect()
}

/// The containers that run as long as the pod: sidecars can be init containers that are restarted.
fn running_containers(spec: &PodSpec) -> impl Iterator<Item = &core::Container> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    spec.containers.iter().chain(sidecars)
}

/// A pod that has ended has no process and gets no cgroup again, so the agent must not wait for its cgroup. A user who may
/// create pods can write a mirror pod, so nothing in a mirror pod excludes a static pod.
fn exclusion(object: &Pod, refusals: &mut RefusalCollector) -> PodExclusion {
    let by_annotation = annotated_exclusion(object, refusals);
    if static_pod_uid(object).is_some() || object.status.as_ref().is_some_and(has_ended) {
        return PodExclusion::Never;
    }
    by_annotation.unwrap_or(if has_sidecar(object) { PodExclusion::Sidecar } else { PodExclusion::Namespace })
}

fn annotated_exclusion(object: &Pod, refusals: &mut RefusalCollector) -> Option<PodExclusion> {
    match entry(&object.metadata.annotations, RESOLVE)? {
        "on" => Some(PodExclusion::Never),
        "off" => {
            if static_pod_uid(object).is_some() {
                let message = format!("annotation {RESOLVE}: ignored on a static pod; use --exclude-cgroup instead");
                refusals.refuse(RefusalReason::BadAnnotation, message);
            }
            Some(PodExclusion::Annotation)
        }
        other => {
            let message = format!("annotation {RESOLVE}: {other:?} is neither \"on\" nor \"off\"; read as \"on\"");
            refusals.refuse(RefusalReason::BadAnnotation, message);
            Some(PodExclusion::Never)
        }
    }
}

fn has_sidecar(object: &Pod) -> bool {
    let is_sidecar = |container: &core::Container| SIDECARS.contains(&container.name.as_str());
    entry(&object.metadata.annotations, ISTIO_SIDECAR).is_some()
        || object.spec.as_ref().is_some_and(|spec| running_containers(spec).any(is_sidecar))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::ServiceFilter;

    fn pod(phase: &str, resolve: &str) -> Converted<object::Pod> {
        let object = serde_json::json!({
            "metadata": { "name": "a", "namespace": "b", "uid": "u", "annotations": { RESOLVE: resolve } },
            "spec": { "nodeName": "n1", "containers": [] },
            "status": { "phase": phase, "podIP": "10.0.0.1" },
        });
        Converter::new("local", ServiceFilter::default()).pod(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_pod_that_has_ended_has_no_address_and_no_annotations() {
        let alive = pod("Running", "off").result.unwrap();
        assert_eq!((alive.addresses.len(), alive.exclusion), (1, PodExclusion::Annotation));
        for phase in ["Succeeded", "Failed"] {
            let ended = pod(phase, "off").result.unwrap();
            assert_eq!((ended.addresses.len(), ended.exclusion), (0, PodExclusion::Never), "{phase}");
        }
    }

    #[test]
    fn a_static_pod_has_the_kubelets_uid_and_a_forged_mirror_pod_does_not() {
        let read = |mirrored: &str, kind: &str, owner: &str| {
            let owner = serde_json::json!({ "apiVersion": "v1", "kind": kind, "name": owner, "uid": "n" });
            let object = serde_json::json!({
                "metadata": {
                    "name": "a", "namespace": "b", "uid": "copy", "ownerReferences": [owner],
                    "annotations": { MIRRORED: mirrored, RESOLVE: "off" },
                },
                "spec": { "nodeName": "n1", "containers": [] },
            });
            let pod = Converter::new("local", ServiceFilter::default()).pod(&serde_json::from_value(object).unwrap());
            let refusals = pod.refusals.len();
            let pod = pod.result.unwrap();
            (pod.uid.to_string(), pod.exclusion, refusals)
        };
        const HASH: &str = "3f0ab1cc3f0ab1cc3f0ab1cc3f0ab1cc";
        let not_excluded = (HASH.into(), PodExclusion::Never, 1);
        assert_eq!(read(HASH, "Node", "n1"), not_excluded, "its uid is read, and it is not excluded");
        let own_uid = ("copy".into(), PodExclusion::Annotation, 0);
        assert_eq!(read("0b0f4c9e-5f0e-4c57-9f5e-1f0a7d1c2b3a", "Node", "n1"), own_uid);
        assert_eq!(read(HASH, "Node", "n2"), own_uid, "owned by another node");
        assert_eq!(read(HASH, "Secret", "n1"), own_uid, "not owned by a node");
    }

    #[test]
    fn a_sidecar_excludes_a_pod_unless_its_annotation_decides() {
        let read = |annotations: serde_json::Value, spec: serde_json::Value| {
            let object = serde_json::json!({
                "metadata": { "name": "a", "namespace": "b", "uid": "u", "annotations": annotations }, "spec": spec,
            });
            let pod = Converter::new("local", ServiceFilter::default()).pod(&serde_json::from_value(object).unwrap());
            pod.result.unwrap().exclusion
        };
        let container = |name: &str| serde_json::json!({ "nodeName": "n1", "containers": [{ "name": name }] });
        let init = |policy: Option<&str>| {
            let sidecar = serde_json::json!({ "name": "istio-proxy", "restartPolicy": policy });
            serde_json::json!({ "nodeName": "n1", "containers": [{ "name": "app" }], "initContainers": [sidecar] })
        };
        let none = serde_json::json!({});
        for (annotations, spec, expected) in [
            (none.clone(), container("app"), PodExclusion::Namespace),
            (none.clone(), container("istio-proxy"), PodExclusion::Sidecar),
            (none.clone(), container("linkerd-proxy"), PodExclusion::Sidecar),
            (none.clone(), container("istio-proxy-exporter"), PodExclusion::Namespace),
            (none.clone(), init(Some("Always")), PodExclusion::Sidecar),
            (none, init(None), PodExclusion::Namespace),
            (serde_json::json!({ ISTIO_SIDECAR: "{}" }), container("app"), PodExclusion::Sidecar),
            (serde_json::json!({ RESOLVE: "on" }), container("istio-proxy"), PodExclusion::Never),
            (serde_json::json!({ RESOLVE: "off" }), container("istio-proxy"), PodExclusion::Annotation),
        ] {
            assert_eq!(read(annotations.clone(), spec.clone()), expected, "{annotations} {spec}");
        }
    }

    #[test]
    fn an_invalid_annotation_is_refused() {
        let odd = pod("Running", "no");
        assert_eq!(odd.result.unwrap().exclusion, PodExclusion::Never);
        assert_eq!(odd.refusals[0].reason, RefusalReason::BadAnnotation);
    }
}
