//! The deserialized forms of Kubernetes' own kinds, and their conversions to the types of `k8s_openapi`.

use super::{Meta, TrimmedKind};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerStatus, Namespace, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Pod,
    PodCondition, PodIP, PodSpec, PodStatus, Service, ServiceSpec, ServiceStatus, Taint,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice};
use k8s_openapi::api::networking::v1::{ServiceCIDR, ServiceCIDRSpec};
use serde::Deserialize;

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

impl TrimmedKind for Service {
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

impl TrimmedKind for EndpointSlice {
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

impl TrimmedKind for core::Endpoints {
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
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct NodeStatusWire {
    addresses: Option<Vec<NodeAddress>>,
    conditions: Option<Vec<Condition>>,
}

/// A condition of a Node or a Pod.
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
        let conditions = wire.conditions.map(only_ready).map(|all| all.into_iter().map(Into::into).collect());
        NodeStatus { addresses: wire.addresses, conditions, ..NodeStatus::default() }
    }
}

/// Only the condition Ready is used.
fn only_ready(mut conditions: Vec<Condition>) -> Vec<Condition> {
    conditions.retain(|condition| condition.kind == "Ready");
    conditions
}

impl From<NodeWire> for Node {
    fn from(wire: NodeWire) -> Node {
        Node {
            metadata: wire.metadata.into(),
            spec: wire.spec.map(|spec| NodeSpec {
                taints: spec.taints,
                pod_cidr: spec.pod_cidr,
                pod_cidrs: spec.pod_cidrs,
                ..NodeSpec::default()
            }),
            status: wire.status.map(Into::into),
        }
    }
}

impl TrimmedKind for Node {
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
    containers: Vec<ContainerSpecWire>,
    init_containers: Option<Vec<ContainerSpecWire>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerSpecWire {
    #[serde(default)]
    name: String,
    ports: Option<Vec<ContainerPort>>,
    restart_policy: Option<String>,
}

impl From<ContainerSpecWire> for Container {
    fn from(wire: ContainerSpecWire) -> Container {
        Container { name: wire.name, ports: wire.ports, restart_policy: wire.restart_policy, ..Container::default() }
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
    init_container_statuses: Option<Vec<ContainerStatusWire>>,
    container_statuses: Option<Vec<ContainerStatusWire>>,
    ephemeral_container_statuses: Option<Vec<ContainerStatusWire>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatusWire {
    name: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

impl From<ContainerStatusWire> for ContainerStatus {
    fn from(wire: ContainerStatusWire) -> ContainerStatus {
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
        let containers =
            |all: Option<Vec<ContainerStatusWire>>| all.map(|all| all.into_iter().map(Into::into).collect());
        let conditions = wire.conditions.map(only_ready).map(|all| all.into_iter().map(Into::into).collect());
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

impl TrimmedKind for Pod {
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

impl TrimmedKind for Namespace {
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

impl TrimmedKind for ServiceCIDR {
    type Wire = RangeWire;
}
