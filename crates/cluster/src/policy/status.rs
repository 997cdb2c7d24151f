//! How a policy fares: written by the controller, read by people.

use super::{BalancingPolicySpec, LocalRedirectPolicySpec, Mode, schema};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The policy means something, and nothing stands against it.
pub const ACCEPTED: &str = "Accepted";
/// Every node on which it holds has it in its kernel.
pub const PROGRAMMED: &str = "Programmed";

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// Of which generation of the policy this speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, Programmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCount>,
    /// How many backends are ready, on all nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends: Option<i32>,
    /// local, podEndpoint, hostPort, nodeProxy or addresses: for `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// On how many nodes it is programmed, of how many on which it holds.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCount {
    pub programmed: i32,
    pub wanted: i32,
    /// "3/5": for `kubectl get -o wide`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl NodeCount {
    pub fn new(programmed: i32, wanted: i32) -> NodeCount {
        NodeCount { programmed, wanted, text: Some(format!("{programmed}/{wanted}")) }
    }
}

impl LocalRedirectPolicySpec {
    /// As `status.mode` says it.
    pub fn mode(&self) -> &'static str {
        "local"
    }
}

impl BalancingPolicySpec {
    /// As `status.mode` says it.
    pub fn mode(&self) -> &'static str {
        match self.backend.service_endpoint.as_ref().map(|endpoint| endpoint.redirect_mode) {
            None => "addresses",
            Some(Mode::PodEndpoint) => "podEndpoint",
            Some(Mode::HostPort) => "hostPort",
            Some(Mode::NodeProxy) => "nodeProxy",
        }
    }
}
