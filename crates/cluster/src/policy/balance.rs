//! BalancingPolicy: what is dialled goes to chosen pods on any node, to their host ports, to their nodes' entries, or to
//! addresses anywhere.

use super::port::{AddressPort, EndpointPort};
use super::redirect::yes;
use super::selector::LabelSelector;
use super::status::PolicyStatus;
use super::{Frontend, rule, schema};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Balances what is dialled over pods that it chooses itself, or over addresses anywhere.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[kube(
    group = "beeline.dev",
    version = "v1alpha1",
    kind = "BalancingPolicy",
    plural = "balancingpolicies",
    shortname = "blp",
    category = "beeline",
    namespaced,
    status = "PolicyStatus",
    derive = "PartialEq",
    doc = "Balances what is dialled over pods that it chooses itself, or over addresses anywhere; without any ready one, the Service serves.",
    validation = rule::name(),
    printcolumn(name = "Frontend", type_ = "string", json_path = ".spec.frontend..['serviceName','ip']"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.mode"),
    printcolumn(name = "Backends", type_ = "integer", json_path = ".status.backends"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes.text", priority = 1),
    printcolumn(name = "Accepted", type_ = "string", json_path = ".status.conditions[?(@.type==\"Accepted\")].status"),
    printcolumn(name = "Programmed", type_ = "string", json_path = ".status.conditions[?(@.type==\"Programmed\")].status", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = rule::counted(rule::BALANCING),
    validation = rule::named(rule::BALANCING),
    validation = rule::same_protocol(rule::BALANCING)
)]
#[serde(rename_all = "camelCase")]
pub struct BalancingPolicySpec {
    /// What is dialled.
    pub frontend: Frontend,
    /// Where it goes.
    pub backend: BalancingBackend,
    /// Where the policy holds.
    #[serde(default)]
    pub config: BalancingConfig,
}

/// Exactly one of the two.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[x_kube(validation = rule::one_of("serviceEndpoint", "addressEndpoint"))]
#[serde(rename_all = "camelCase")]
pub struct BalancingBackend {
    /// Ready pods, on any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_endpoint: Option<ServiceEndpoint>,
    /// Addresses, also outside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_endpoint: Option<AddressEndpoint>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceEndpoint {
    /// Pods that serve while they are ready.
    pub endpoint_selector: LabelSelector,
    /// Whose pods: left out, the policy's own namespace; {}: all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// What stands in for a pod: podEndpoint its own address, hostPort its node's address, nodeProxy its node's entry.
    #[serde(default)]
    pub redirect_mode: Mode,
    /// The ports there, paired with the frontend's by name; a single pair needs no name.
    #[schemars(schema_with = "schema::ports::<EndpointPort>")]
    pub to_ports: Vec<EndpointPort>,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    #[default]
    PodEndpoint,
    HostPort,
    NodeProxy,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[x_kube(validation = rule::bounded())]
#[serde(rename_all = "camelCase")]
pub struct AddressEndpoint {
    /// IPv4 and IPv6; each serves dials of its own family.
    #[schemars(schema_with = "schema::addresses")]
    pub addresses: Vec<String>,
    /// The ports there, paired with the frontend's by name; a single pair needs no name.
    #[schemars(schema_with = "schema::ports::<AddressPort>")]
    pub to_ports: Vec<AddressPort>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BalancingConfig {
    /// The nodes on which the policy holds; left out: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_label_selector: Option<LabelSelector>,
    /// Whether it holds on hosts outside the cluster.
    #[serde(default = "yes")]
    pub enable_out_cluster: bool,
}

impl Default for BalancingConfig {
    fn default() -> BalancingConfig {
        BalancingConfig { node_label_selector: None, enable_out_cluster: true }
    }
}
