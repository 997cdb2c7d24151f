//! LocalRedirectPolicy: sends dials to pods on the same node.

use super::port::EndpointPort;
use super::selector::LabelSelector;
use super::status::PolicyStatus;
use super::{Frontend, rule, schema};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Sends dials to ready pods on the same node. Without such a pod, the next level is used: a BalancingPolicy, then the
/// Service.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[kube(
    group = "beeline.dev",
    version = "v1alpha1",
    kind = "LocalRedirectPolicy",
    plural = "localredirectpolicies",
    shortname = "lrp",
    category = "beeline",
    namespaced,
    status = "PolicyStatus",
    derive = "PartialEq",
    doc = "Sends dials to ready pods on the same node. Without such a pod, the next level is used: a BalancingPolicy, then the Service.",
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
    validation = rule::counted(rule::LOCAL),
    validation = rule::named(rule::LOCAL),
    validation = rule::same_protocol(rule::LOCAL)
)]
#[serde(rename_all = "camelCase")]
pub struct LocalRedirectPolicySpec {
    /// The Service or address that is dialled.
    pub frontend: Frontend,
    /// The pods that dials are sent to.
    pub backend: LocalBackend,
    /// Where the policy applies, and its limit.
    #[serde(default)]
    pub config: LocalRedirectConfig,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalBackend {
    /// Selects pods of the policy's own namespace. Only ready pods on the node of the dialling process are used.
    pub endpoint_selector: LabelSelector,
    /// The ports of the pods, paired with the ports of the frontend by name. A single pair needs no name.
    #[schemars(schema_with = "schema::ports::<EndpointPort>")]
    pub to_ports: Vec<EndpointPort>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRedirectConfig {
    /// Selects the nodes on which the policy applies. The default is all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_label_selector: Option<LabelSelector>,
    /// Whether the policy applies on hosts outside the cluster.
    #[serde(default = "default_true")]
    pub enable_out_cluster: bool,
    /// Limits the dials of the policy on each node. Dials over the limit go to the next level. The default is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ConnectLimit>,
}

impl Default for LocalRedirectConfig {
    fn default() -> LocalRedirectConfig {
        LocalRedirectConfig { node_label_selector: None, enable_out_cluster: true, limit: None }
    }
}

pub(super) fn default_true() -> bool {
    true
}

/// A token bucket for the policy on each node.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectLimit {
    /// The number of connects (and first datagrams) per second.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub connects_per_second: i32,
    /// The size of the bucket: the number of connects at once after a pause. The default is connectsPerSecond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub burst: Option<i32>,
}
