//! Objects as they come from the API server, without what nobody here reads: managed fields, annotations (which may hold
//! a whole copy of the object), owners, a Node's images. They are skipped while the text is read, never built.

use super::trigger;
use crate::convert::published::SHAPE;
use crate::convert::{ENTRY_ADDRESS, LEADER, MIRRORED, OUTSIDE_ADDRESS, RESOLVE, VIEW, is_node};
use crate::policy::GROUP;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerStatus, Namespace, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Pod,
    PodCondition, PodIP, PodSpec, PodStatus, Service, ServiceSpec, ServiceStatus, Taint,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice};
use k8s_openapi::api::networking::v1::{ServiceCIDR, ServiceCIDRSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, OwnerReference, Time};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::fmt;

/// A kind that is read, and its shape on the way in.
pub(crate) trait Reduced: Sized + Clone + Send + 'static {
    type Wire: DeserializeOwned + Into<Self>;
}

#[derive(Clone, Debug)]
pub(crate) struct Lean<K>(pub(crate) K);

impl<'de, K: Reduced> Deserialize<'de> for Lean<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::Wire::deserialize(deserializer).map(|wire| Lean(wire.into()))
    }
}

/// One page of a list.
#[derive(Deserialize)]
#[serde(bound = "K: Reduced")]
pub(crate) struct Page<K: Reduced> {
    #[serde(default)]
    pub(crate) metadata: ListMeta,
    /// `null` where there are none.
    pub(crate) items: Option<Vec<Lean<K>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "chosen")]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "ours")]
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<Meta> for ObjectMeta {
    fn from(meta: Meta) -> ObjectMeta {
        ObjectMeta {
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            resource_version: meta.resource_version,
            generation: meta.generation,
            creation_timestamp: meta.creation_timestamp,
            deletion_timestamp: meta.deletion_timestamp,
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: meta.owner_references,
            ..ObjectMeta::default()
        }
    }
}

/// Of the owners only policies are read, and a static pod's Node.
fn ours<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<OwnerReference>>, D::Error> {
    let all: Option<Vec<OwnerReference>> = Deserialize::deserialize(deserializer)?;
    let kept = all.into_iter().flatten().filter(|owner| owner.api_version.starts_with(GROUP) || is_node(owner));
    Ok(Some(kept.collect()).filter(|kept: &Vec<_>| !kept.is_empty()))
}

/// Of the annotations only these are read.
const READ: [&str; 8] = [trigger::ANNOTATION, RESOLVE, VIEW, MIRRORED, ENTRY_ADDRESS, OUTSIDE_ADDRESS, SHAPE, LEADER];

fn chosen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    struct Chosen;
    impl<'de> Visitor<'de> for Chosen {
        type Value = Option<BTreeMap<String, String>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = BTreeMap::new();
            while let Some(key) = map.next_key::<String>()? {
                if READ.contains(&key.as_str()) {
                    found.insert(key, map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(Some(found).filter(|found| !found.is_empty()))
        }
    }
    deserializer.deserialize_any(Chosen)
}

#[derive(Deserialize)]
pub(crate) struct ServiceWire {
    #[serde(default)]
    metadata: Meta,
    spec: Option<ServiceSpec>,
    status: Option<ServiceStatus>,
}

impl From<ServiceWire> for Service {
    fn from(wire: ServiceWire) -> Service {
        Service { metadata: wire.metadata.into(), spec: wire.spec, status: wire.status }
    }
}

impl Reduced for Service {
    type Wire = ServiceWire;
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SliceWire {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    address_type: String,
    endpoints: Option<Vec<EndpointWire>>,
    ports: Option<Vec<EndpointPort>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointWire {
    addresses: Option<Vec<String>>,
    conditions: Option<EndpointConditions>,
    hints: Option<EndpointHints>,
    hostname: Option<String>,
    node_name: Option<String>,
    zone: Option<String>,
}

impl From<SliceWire> for EndpointSlice {
    fn from(wire: SliceWire) -> EndpointSlice {
        let endpoint = |wire: EndpointWire| Endpoint {
            addresses: wire.addresses.unwrap_or_default(),
            conditions: wire.conditions,
            hints: wire.hints,
            hostname: wire.hostname,
            node_name: wire.node_name,
            zone: wire.zone,
            ..Endpoint::default()
        };
        EndpointSlice {
            metadata: wire.metadata.into(),
            address_type: wire.address_type,
            endpoints: wire.endpoints.into_iter().flatten().map(endpoint).collect(),
            ports: wire.ports,
        }
    }
}

impl Reduced for EndpointSlice {
    type Wire = SliceWire;
}

#[derive(Deserialize)]
pub(crate) struct EndpointsWire {
    #[serde(default)]
    metadata: Meta,
    subsets: Option<Vec<SubsetWire>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SubsetWire {
    addresses: Option<Vec<AddressWire>>,
    not_ready_addresses: Option<Vec<AddressWire>>,
    ports: Option<Vec<core::EndpointPort>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AddressWire {
    ip: String,
    node_name: Option<String>,
}

impl From<AddressWire> for core::EndpointAddress {
    fn from(wire: AddressWire) -> core::EndpointAddress {
        core::EndpointAddress { ip: wire.ip, node_name: wire.node_name, ..core::EndpointAddress::default() }
    }
}

impl From<SubsetWire> for core::EndpointSubset {
    fn from(wire: SubsetWire) -> core::EndpointSubset {
        let addresses = |all: Option<Vec<AddressWire>>| all.map(|all| all.into_iter().map(Into::into).collect());
        core::EndpointSubset {
            addresses: addresses(wire.addresses),
            not_ready_addresses: addresses(wire.not_ready_addresses),
            ports: wire.ports,
        }
    }
}

impl From<EndpointsWire> for core::Endpoints {
    fn from(wire: EndpointsWire) -> core::Endpoints {
        let subsets = wire.subsets.map(|all| all.into_iter().map(Into::into).collect());
        core::Endpoints { metadata: wire.metadata.into(), subsets }
    }
}

impl Reduced for core::Endpoints {
    type Wire = EndpointsWire;
}

#[derive(Deserialize)]
pub(crate) struct NodeWire {
    #[serde(default)]
    metadata: Meta,
    spec: Option<NodeSpecWire>,
    status: Option<NodeStatusWire>,
}

#[derive(Deserialize)]
struct NodeSpecWire {
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize)]
struct NodeStatusWire {
    addresses: Option<Vec<NodeAddress>>,
    conditions: Option<Vec<Condition>>,
}

/// Whether a Node or a Pod is ready.
#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl From<Condition> for NodeCondition {
    fn from(wire: Condition) -> NodeCondition {
        NodeCondition { type_: wire.kind, status: wire.status, ..NodeCondition::default() }
    }
}

impl From<NodeStatusWire> for NodeStatus {
    fn from(wire: NodeStatusWire) -> NodeStatus {
        let conditions = wire.conditions.map(ready).map(|all| all.into_iter().map(Into::into).collect());
        NodeStatus { addresses: wire.addresses, conditions, ..NodeStatus::default() }
    }
}

/// Of the conditions only this one is read.
fn ready(mut conditions: Vec<Condition>) -> Vec<Condition> {
    conditions.retain(|condition| condition.kind == "Ready");
    conditions
}

impl From<NodeWire> for Node {
    fn from(wire: NodeWire) -> Node {
        Node {
            metadata: wire.metadata.into(),
            spec: wire.spec.map(|spec| NodeSpec { taints: spec.taints, ..NodeSpec::default() }),
            status: wire.status.map(Into::into),
        }
    }
}

impl Reduced for Node {
    type Wire = NodeWire;
}

#[derive(Deserialize)]
pub(crate) struct PodWire {
    #[serde(default)]
    metadata: Meta,
    spec: Option<PodSpecWire>,
    status: Option<PodStatusWire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpecWire {
    node_name: Option<String>,
    host_network: Option<bool>,
    #[serde(default)]
    containers: Vec<PortsWire>,
    init_containers: Option<Vec<PortsWire>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PortsWire {
    ports: Option<Vec<ContainerPort>>,
    restart_policy: Option<String>,
}

impl From<PortsWire> for Container {
    fn from(wire: PortsWire) -> Container {
        Container { ports: wire.ports, restart_policy: wire.restart_policy, ..Container::default() }
    }
}

impl From<PodSpecWire> for PodSpec {
    fn from(wire: PodSpecWire) -> PodSpec {
        PodSpec {
            node_name: wire.node_name,
            host_network: wire.host_network,
            containers: wire.containers.into_iter().map(Into::into).collect(),
            init_containers: wire.init_containers.map(|all| all.into_iter().map(Into::into).collect()),
            ..PodSpec::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatusWire {
    phase: Option<String>,
    conditions: Option<Vec<Condition>>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIP>>,
    init_container_statuses: Option<Vec<ContainerWire>>,
    container_statuses: Option<Vec<ContainerWire>>,
    ephemeral_container_statuses: Option<Vec<ContainerWire>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerWire {
    name: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

impl From<ContainerWire> for ContainerStatus {
    fn from(wire: ContainerWire) -> ContainerStatus {
        ContainerStatus { name: wire.name, container_id: wire.container_id, ..ContainerStatus::default() }
    }
}

impl From<Condition> for PodCondition {
    fn from(wire: Condition) -> PodCondition {
        PodCondition { type_: wire.kind, status: wire.status, ..PodCondition::default() }
    }
}

impl From<PodStatusWire> for PodStatus {
    fn from(wire: PodStatusWire) -> PodStatus {
        let containers = |all: Option<Vec<ContainerWire>>| all.map(|all| all.into_iter().map(Into::into).collect());
        let conditions = wire.conditions.map(ready).map(|all| all.into_iter().map(Into::into).collect());
        PodStatus {
            phase: wire.phase,
            conditions,
            pod_ip: wire.pod_ip,
            pod_ips: wire.pod_ips,
            init_container_statuses: containers(wire.init_container_statuses),
            container_statuses: containers(wire.container_statuses),
            ephemeral_container_statuses: containers(wire.ephemeral_container_statuses),
            ..PodStatus::default()
        }
    }
}

impl From<PodWire> for Pod {
    fn from(wire: PodWire) -> Pod {
        Pod { metadata: wire.metadata.into(), spec: wire.spec.map(Into::into), status: wire.status.map(Into::into) }
    }
}

impl Reduced for Pod {
    type Wire = PodWire;
}

#[derive(Deserialize)]
pub(crate) struct NamespaceWire {
    #[serde(default)]
    metadata: Meta,
}

impl From<NamespaceWire> for Namespace {
    fn from(wire: NamespaceWire) -> Namespace {
        Namespace { metadata: wire.metadata.into(), ..Namespace::default() }
    }
}

impl Reduced for Namespace {
    type Wire = NamespaceWire;
}

#[derive(Deserialize)]
pub(crate) struct RangeWire {
    #[serde(default)]
    metadata: Meta,
    spec: Option<ServiceCIDRSpec>,
}

impl From<RangeWire> for ServiceCIDR {
    fn from(wire: RangeWire) -> ServiceCIDR {
        ServiceCIDR { metadata: wire.metadata.into(), spec: wire.spec, status: None }
    }
}

impl Reduced for ServiceCIDR {
    type Wire = RangeWire;
}

/// A policy without its status. Its definition may be of another make than ours, so a spec that is not what we know spoils
/// only itself and not the page that it stands on.
#[derive(Clone, Debug)]
pub(crate) struct Read<S> {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Result<S, String>,
}

#[derive(Deserialize)]
#[serde(bound = "S: DeserializeOwned")]
pub(crate) struct PolicyWire<S> {
    #[serde(default)]
    metadata: Meta,
    #[serde(default = "nothing", deserialize_with = "attempt")]
    spec: Result<S, String>,
}

fn nothing<S>() -> Result<S, String> {
    Err("it has no spec".into())
}

fn attempt<'de, D: Deserializer<'de>, S: DeserializeOwned>(deserializer: D) -> Result<Result<S, String>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_path_to_error::deserialize(value).map_err(|bad| format!("spec.{}: {}", bad.path(), bad.inner())))
}

impl<S> From<PolicyWire<S>> for Read<S> {
    fn from(wire: PolicyWire<S>) -> Read<S> {
        Read { metadata: wire.metadata.into(), spec: wire.spec }
    }
}

impl<S: DeserializeOwned + Clone + Send + 'static> Reduced for Read<S> {
    type Wire = PolicyWire<S>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_read_is_kept() {
        let text = r#"{"kind":"EndpointSlice","metadata":{"name":"a","namespace":"b","labels":{"l":"1"},
            "managedFields":[{"manager":"x","fieldsV1":{"f:a":{}}}],
            "annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2026-01-01T00:00:00Z","big":"text"}},
            "addressType":"IPv4","ports":null,
            "endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true},"targetRef":{"kind":"Pod","name":"p"}}]}"#;
        let Lean(slice) = serde_json::from_str::<Lean<EndpointSlice>>(text).unwrap();
        assert_eq!(slice.metadata.annotations.as_ref().unwrap().len(), 1);
        assert_eq!(slice.metadata.managed_fields, None);
        assert_eq!(slice.metadata.labels.as_ref().unwrap()["l"], "1");
        assert_eq!((slice.endpoints.len(), slice.endpoints[0].target_ref.as_ref()), (1, None));
    }

    #[test]
    fn a_static_pods_node_is_read_and_other_owners_are_not() {
        let owners = |text: &str| {
            let pod = format!(r#"{{"metadata":{{"name":"a","ownerReferences":[{text}]}}}}"#);
            let Lean(pod) = serde_json::from_str::<Lean<Pod>>(&pod).unwrap();
            pod.metadata.owner_references.map_or(0, |owners| owners.len())
        };
        assert_eq!(owners(r#"{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u"}"#), 1);
        assert_eq!(owners(r#"{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"n1","uid":"u"}"#), 0);
    }

    #[test]
    fn an_empty_list_is_a_list() {
        let page: Page<Node> = serde_json::from_str(r#"{"metadata":{"resourceVersion":"7"},"items":null}"#).unwrap();
        assert_eq!((page.items.is_none(), page.metadata.resource_version.as_deref()), (true, Some("7")));
        assert!(
            serde_json::from_str::<Page<Node>>(r#"{"kind":"Status"}"#).is_ok_and(|p| p.metadata == ListMeta::default())
        );
    }
}
