//! Pods of this node: who stands behind a cgroup, whose an address is, and who asks to be left alone.

use super::name::{is_label, is_subdomain};
use super::{Convert, Converted, Report, Unserved, address, entry};
use beeline_model::fact::{self, Container, ContainerPort, PodName};
use beeline_model::{Address, Name};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// `"off"`: the pod's processes keep the addresses that they dial.
pub(crate) const RESOLVE: &str = "beeline.dev/resolve";
/// The view that the pod's processes see.
pub(crate) const VIEW: &str = "beeline.dev/view";
/// On the API's copy of a static pod: the uid that the kubelet knows it by.
pub(crate) const MIRRORED: &str = "kubernetes.io/config.mirror";

impl Convert {
    pub fn pod(&mut self, object: &Pod) -> Converted<fact::Pod> {
        let mut report = Report::new("Pod", &object.metadata);
        let fact = self.stands_here(object, &mut report);
        report.close(fact)
    }

    pub(crate) fn pod_name(&mut self, object: &Pod) -> Option<PodName> {
        let (namespace, name) = (object.metadata.namespace.as_deref()?, object.metadata.name.as_deref()?);
        let valid = is_label(namespace) && is_subdomain(name);
        let cluster = self.cluster.clone();
        valid.then(|| PodName { cluster, namespace: self.names.word(namespace), name: name.into() })
    }

    fn stands_here(&mut self, object: &Pod, report: &mut Report) -> Result<fact::Pod, Unserved> {
        let node = object.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty());
        // Not scheduled yet, or a manifest of a folder: it stands nowhere.
        node.ok_or(Unserved::Skipped)?;
        let name = self.pod_name(object).ok_or_else(|| report.bad_name())?;
        let node = report.keep("badNode", "spec.nodeName", self.node_name(node)).flatten();
        let status = object.status.as_ref();
        Ok(fact::Pod {
            name,
            uid: cgroup_uid(object).into(),
            node,
            addresses: status.map_or_else(Vec::new, |status| addresses(status, report)).into(),
            containers: status.into_iter().flat_map(|status| self.containers(status)).collect(),
            // One that has ended has no process, and never a cgroup again: nobody should look for it.
            untouched: is_untouched(object, report) && !status.is_some_and(has_ended),
            view: self.view(object, report).filter(|_| !status.is_some_and(has_ended)),
            labels: self.labels(&object.metadata),
            ready: is_ready(object),
            ports: self.ports(object).into(),
        })
    }

    fn view(&mut self, object: &Pod, report: &mut Report) -> Option<Name> {
        let given = entry(&object.metadata.annotations, VIEW)?;
        if !is_label(given) {
            report.refuse("badAnnotation", format!("annotation {VIEW}: {given:?} is no view's name: a-z, 0-9 and '-'"));
            return None;
        }
        // As with `resolve`: anybody can write such a copy.
        if mirrored(object).is_some() {
            report
                .refuse("badAnnotation", format!("annotation {VIEW}: a static pod cannot ask for that; use `views:`"));
            return None;
        }
        Some(self.names.word(given))
    }

    fn ports(&mut self, object: &Pod) -> Vec<ContainerPort> {
        let Some(spec) = &object.spec else { return Vec::new() };
        let host = spec.host_network == Some(true);
        let beside = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let all = spec.containers.iter().chain(beside).flat_map(|container| container.ports.iter().flatten());
        all.filter_map(|port| self.port(port, host)).collect()
    }

    fn port(&mut self, port: &k8s_openapi::api::core::v1::ContainerPort, host: bool) -> Option<ContainerPort> {
        let number = u16::try_from(port.container_port).ok()?;
        let host_port = port.host_port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
        Some(ContainerPort {
            name: self.names.word(port.name.as_deref().unwrap_or_default()),
            protocol: port.protocol.as_deref().unwrap_or("TCP").parse().ok()?,
            port: number,
            host_port: if host { number } else { host_port },
        })
    }

    fn containers(&mut self, status: &PodStatus) -> Vec<Container> {
        let all = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
        let started = all.into_iter().flatten().flatten().filter_map(|status| Some((status, id_of(status)?)));
        started.map(|(status, id)| Container { name: self.names.word(&status.name), id: id.into() }).collect()
    }
}

pub(crate) fn is_node(owner: &OwnerReference) -> bool {
    owner.api_version == "v1" && owner.kind == "Node"
}

/// A static pod is shown by a copy with a uid of its own; its cgroup is named by the kubelet's, which the copy tells. That
/// one is a hash of 32 digits, so nobody names an ordinary pod by it; and the kubelet makes its Node the copy's owner.
fn mirrored(object: &Pod) -> Option<&str> {
    let is_hash = |text: &&str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let node = object.spec.as_ref()?.node_name.as_deref()?;
    let mut owners = object.metadata.owner_references.iter().flatten();
    owners.find(|owner| is_node(owner) && owner.name == node)?;
    entry(&object.metadata.annotations, MIRRORED).filter(is_hash)
}

fn cgroup_uid(object: &Pod) -> &str {
    mirrored(object).or(object.metadata.uid.as_deref()).unwrap_or_default()
}

/// `containerd://4f2a...`: what cgroups are named by stands behind the runtime's name.
fn id_of(status: &ContainerStatus) -> Option<&str> {
    let id = status.container_id.as_deref()?;
    Some(id.split_once("://").map_or(id, |(_, id)| id)).filter(|id| !id.is_empty())
}

/// A pod that is being deleted may say that it is ready for a while.
fn is_ready(object: &Pod) -> bool {
    let Some(status) = &object.status else { return false };
    let mut conditions = status.conditions.iter().flatten();
    let says_so = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    says_so && object.metadata.deletion_timestamp.is_none() && !has_ended(status)
}

fn has_ended(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// One that has ended has given its addresses back; another may have them by now.
fn addresses(status: &PodStatus, report: &mut Report) -> Vec<Address> {
    if has_ended(status) {
        return Vec::new();
    }
    let listed: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let all = if listed.is_empty() { status.pod_ip.as_deref().into_iter().collect() } else { listed };
    let given = all.into_iter().filter(|text| !text.is_empty());
    given.filter_map(|text| report.keep("badAddress", "status.podIPs", address::parse(text))).collect()
}

fn is_untouched(object: &Pod, report: &mut Report) -> bool {
    match entry(&object.metadata.annotations, RESOLVE) {
        None | Some("on") => false,
        // Anybody who may create pods can write such a copy: a static pod is not opted out by it.
        Some("off") if mirrored(object).is_some() => {
            let why =
                format!("annotation {RESOLVE}: a static pod cannot ask for that; give --untouched-cgroup instead");
            report.refuse("badAnnotation", why);
            false
        }
        Some("off") => true,
        Some(other) => {
            let why = format!("annotation {RESOLVE}: {other:?} is neither \"on\" nor \"off\"; the pod is resolved for");
            report.refuse("badAnnotation", why);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::Claim;

    fn pod(phase: &str, resolve: &str) -> Converted<fact::Pod> {
        let object = serde_json::json!({
            "metadata": { "name": "a", "namespace": "b", "uid": "u", "annotations": { RESOLVE: resolve } },
            "spec": { "nodeName": "n1", "containers": [] },
            "status": { "phase": phase, "podIP": "10.0.0.1" },
        });
        Convert::new("local", Claim::default()).pod(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn who_has_ended_has_no_address_and_asks_for_nothing() {
        let alive = pod("Running", "off").fact.unwrap();
        assert_eq!((alive.addresses.len(), alive.untouched), (1, true));
        for phase in ["Succeeded", "Failed"] {
            let ended = pod(phase, "off").fact.unwrap();
            assert_eq!((ended.addresses.len(), ended.untouched), (0, false), "{phase}");
        }
    }

    #[test]
    fn a_static_pod_is_known_by_the_kubelets_uid_and_nobody_takes_anothers() {
        let read = |told: &str, kind: &str, owner: &str| {
            let owner = serde_json::json!({ "apiVersion": "v1", "kind": kind, "name": owner, "uid": "n" });
            let object = serde_json::json!({
                "metadata": {
                    "name": "a", "namespace": "b", "uid": "copy", "ownerReferences": [owner],
                    "annotations": { MIRRORED: told, RESOLVE: "off" },
                },
                "spec": { "nodeName": "n1", "containers": [] },
            });
            let pod = Convert::new("local", Claim::default()).pod(&serde_json::from_value(object).unwrap());
            let fact = pod.fact.unwrap();
            (fact.uid.to_string(), fact.untouched, pod.refusals.len())
        };
        const HASH: &str = "3f0ab1cc3f0ab1cc3f0ab1cc3f0ab1cc";
        assert_eq!(read(HASH, "Node", "n1"), (HASH.into(), false, 1), "it is known, and not opted out");
        let itself = ("copy".into(), true, 0);
        assert_eq!(read("0b0f4c9e-5f0e-4c57-9f5e-1f0a7d1c2b3a", "Node", "n1"), itself);
        assert_eq!(read(HASH, "Node", "n2"), itself, "another node's");
        assert_eq!(read(HASH, "Secret", "n1"), itself, "nobody's");
    }

    #[test]
    fn an_annotation_that_means_nothing_is_told() {
        let odd = pod("Running", "no");
        assert!(!odd.fact.unwrap().untouched);
        assert_eq!(odd.refusals[0].reason, "badAnnotation");
    }
}
