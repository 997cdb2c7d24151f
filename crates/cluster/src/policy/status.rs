//! The status of a policy, which the controller writes.

use super::{BalancingPolicySpec, LocalRedirectPolicySpec, Mode, schema};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Condition: the policy is valid and conflicts with nothing.
pub const ACCEPTED: &str = "Accepted";
/// Condition: every node on which the policy applies has programmed it.
pub const PROGRAMMED: &str = "Programmed";

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// The generation of the policy that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions Accepted and Programmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCount>,
    /// The number of ready backends on all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends: Option<i32>,
    /// local, podEndpoint, hostPort, nodeProxy or addresses, for `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// The nodes that have programmed the policy, and the nodes on which it applies.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCount {
    pub programmed: i32,
    pub wanted: i32,
    /// Both numbers as "3/5", for `kubectl get -o wide`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl NodeCount {
    pub fn new(programmed: i32, wanted: i32) -> NodeCount {
        NodeCount { programmed, wanted, text: Some(format!("{programmed}/{wanted}")) }
    }
}

impl LocalRedirectPolicySpec {
    /// The text of `status.mode`.
    pub fn mode(&self) -> &'static str {
        "local"
    }
}

impl BalancingPolicySpec {
    /// The text of `status.mode`.
    pub fn mode(&self) -> &'static str {
        match self.backend.service_endpoint.as_ref().map(|endpoint| endpoint.redirect_mode) {
            None => "addresses",
            Some(Mode::PodEndpoint) => "podEndpoint",
            Some(Mode::HostPort) => "hostPort",
            Some(Mode::NodeProxy) => "nodeProxy",
        }
    }
}
