//! LocalRedirectPolicy: what is dialled goes to pods on the dialler's own node.

use super::port::EndpointPort;
use super::selector::LabelSelector;
use super::status::PolicyStatus;
use super::{Frontend, rule, schema};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Sends what is dialled to ready pods on the dialler's own node. Without any there, the next in the order serves:
/// a BalancingPolicy, then the Service.
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
    doc = "Sends what is dialled to ready pods on the dialler's own node; without any there, the next in the order serves: a BalancingPolicy, then the Service.",
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
    /// What is dialled.
    pub frontend: Frontend,
    /// Where it goes.
    pub backend: LocalBackend,
    /// Where the policy holds, and how much it takes.
    #[serde(default)]
    pub config: LocalRedirectConfig,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalBackend {
    /// Pods of the policy's own namespace; those that are ready and on the dialler's node serve.
    pub endpoint_selector: LabelSelector,
    /// The pods' ports, paired with the frontend's by name; a single pair needs no name.
    #[schemars(schema_with = "schema::ports::<EndpointPort>")]
    pub to_ports: Vec<EndpointPort>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRedirectConfig {
    /// The nodes on which the policy holds; left out: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_label_selector: Option<LabelSelector>,
    /// Whether it holds on hosts outside the cluster.
    #[serde(default = "yes")]
    pub enable_out_cluster: bool,
    /// How much the policy takes on each node; what is over it goes to the next in the order. Left out: everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ConnectLimit>,
}

impl Default for LocalRedirectConfig {
    fn default() -> LocalRedirectConfig {
        LocalRedirectConfig { node_label_selector: None, enable_out_cluster: true, limit: None }
    }
}

pub(super) fn yes() -> bool {
    true
}

/// A token bucket, one for the policy on each node.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectLimit {
    /// Connects (and first datagrams) that it takes every second.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub connects_per_second: i32,
    /// So many at once after a pause; left out: one second's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub burst: Option<i32>,
}
