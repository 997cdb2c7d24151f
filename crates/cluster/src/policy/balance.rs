//! BalancingPolicy: sends dials to selected pods on any node (to the pods themselves, to their host ports, or to the
//! entry addresses of their nodes), or to fixed addresses.

use super::port::{AddressPort, EndpointPort};
use super::redirect::default_true;
use super::selector::LabelSelector;
use super::status::PolicyStatus;
use super::{Frontend, rule, schema};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Balances dials over selected pods or fixed addresses.
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
    doc = "Balances dials over selected pods or fixed addresses. Without a ready backend, the Service is used.",
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
    /// The Service or address that is dialled.
    pub frontend: Frontend,
    /// The pods or addresses that dials are sent to.
    pub backend: BalancingBackend,
    /// Where the policy applies.
    #[serde(default)]
    pub config: BalancingConfig,
}

/// Exactly one of serviceEndpoint and addressEndpoint.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[x_kube(validation = rule::one_of("serviceEndpoint", "addressEndpoint"))]
#[serde(rename_all = "camelCase")]
pub struct BalancingBackend {
    /// Ready pods on any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_endpoint: Option<ServiceEndpoint>,
    /// Fixed addresses, inside or outside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_endpoint: Option<AddressEndpoint>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceEndpoint {
    /// Selects the pods. Only ready pods are used.
    pub endpoint_selector: LabelSelector,
    /// Selects the namespaces of the pods. The default is the policy's own namespace; {} selects all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// The address that is dialled for a pod: podEndpoint is the pod's own address, hostPort the address of its node,
    /// nodeProxy the entry address of its node.
    #[serde(default)]
    pub redirect_mode: Mode,
    /// The ports of the backends, paired with the ports of the frontend by name. A single pair needs no name.
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
    /// IPv4 and IPv6 addresses. Each one is used for dials of its own family.
    #[schemars(schema_with = "schema::addresses")]
    pub addresses: Vec<String>,
    /// The ports of the backends, paired with the ports of the frontend by name. A single pair needs no name.
    #[schemars(schema_with = "schema::ports::<AddressPort>")]
    pub to_ports: Vec<AddressPort>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BalancingConfig {
    /// Selects the nodes on which the policy applies. The default is all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_label_selector: Option<LabelSelector>,
    /// Whether the policy applies on hosts outside the cluster.
    #[serde(default = "default_true")]
    pub enable_out_cluster: bool,
}

impl Default for BalancingConfig {
    fn default() -> BalancingConfig {
        BalancingConfig { node_label_selector: None, enable_out_cluster: true }
    }
}
