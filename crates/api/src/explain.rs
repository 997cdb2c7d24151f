//! The agent's part of `explain`: which endpoints of a service port count, and which addresses wait to be programmed.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceExplanation {
    /// NAMESPACE/NAME, with its cluster where that is not the node's own.
    pub service: String,
    pub cluster: String,
    /// Addresses of the service that another cluster has in some view. Empty with one cluster.
    pub notes: Vec<String>,
    /// internalTrafficPolicy: `Cluster` or `Local`.
    pub internal_policy: String,
    /// externalTrafficPolicy: `Cluster` or `Local`.
    pub external_policy: String,
    pub families: Vec<FamilyExplanation>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyExplanation {
    pub family: String,
    /// Which topology hints are in effect, and why.
    pub topology: String,
    pub endpoints: Vec<EndpointExplanation>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointExplanation {
    pub address: String,
    pub port: u16,
    /// NAMESPACE/NAME of the pod at this address, where the agent knows it (pods of its own node).
    #[serde(default)]
    pub pod: Option<String>,
    pub node: Option<String>,
    pub conditions: String,
    pub in_cluster_set: bool,
    pub in_local_set: bool,
    pub why: String,
    /// How a host outside the cluster reaches it. `None` on a node of the cluster.
    pub path: Option<String>,
    /// No path leads to it from this host.
    #[serde(default)]
    pub unreachable: bool,
}

/// A Service that has the address and that is not programmed (yet).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingAddress {
    /// NAMESPACE/NAME, with its cluster where that is not the node's own.
    pub service: String,
    pub cluster: String,
    /// The view in which the address waits. `None`: for all processes without a view.
    pub view: Option<String>,
    /// What the address waits for.
    pub waits_for: String,
}
