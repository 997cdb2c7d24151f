//! The requests that the agent's socket takes, and the response to each.

use crate::event::EventFilter;
use crate::explain::{PendingAddress, ServiceExplanation};
use crate::policy::PolicyReport;
use crate::status::AgentStatus;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "request")]
pub enum Request {
    /// Answered by `Response::Status`.
    Status,
    /// Why each endpoint of a service port is in a set or not. `owner` has the form of `PortName::to_text`:
    /// `cluster/namespace/name/port/PROTOCOL`. Answered by `Response::Explanation`.
    Explain { owner: String },
    /// Which Services have this address, but are not programmed, and why. Answered by `Response::PendingAddresses`.
    ExplainAddress { address: std::net::IpAddr },
    /// The state of policies on this node. Answered by `Response::Policies`.
    Policies(PolicyQuery),
    /// Pods of this node: NAME or NAMESPACE/NAME. Answered by `Response::Pods`.
    Pods { name: String },
    /// Sets which dials are reported: off, failures, sample:N or all. Answered by `Response::EventLevel`.
    SetEventLevel { level: String },
    /// Creates a cgroup whose processes have this view. Answered by `Response::Cgroup`.
    CreateViewCgroup { view: String },
    /// Starts a stream of `MonitorLine`, which ends with the connection.
    #[serde(rename_all = "camelCase")]
    Monitor {
        #[serde(default)]
        filter: EventFilter,
        /// The event level for as long as this stream is open; the agent then restores the previous level.
        #[serde(default)]
        level: Option<String>,
    },
}

/// Selects policies. An empty query selects all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyQuery {
    /// NAME or NAMESPACE/NAME.
    pub name: Option<String>,
    /// A dialled address.
    pub address: Option<std::net::IpAddr>,
    /// The service port that the address leads to, in the form of `PortName::to_text`. Used with `address` only.
    pub owner: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Response {
    Status(Box<AgentStatus>),
    /// `None`: the agent does not know this service port.
    Explanation(Option<ServiceExplanation>),
    PendingAddresses(Vec<PendingAddress>),
    Policies(Vec<PolicyReport>),
    /// All pods of this node that match; a name without a namespace may match several.
    Pods(Vec<PodLocation>),
    /// The level that is now in effect.
    EventLevel(String),
    Cgroup(PathBuf),
    Error(String),
}

/// A pod of this node and its cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodLocation {
    pub namespace: String,
    pub name: String,
    /// `None`: no cgroup below the agent's `--cgroup` has the pod's UID in its name.
    pub cgroup: Option<PathBuf>,
    /// Why the pod is excluded from resolution. `None`: it is served.
    #[serde(default)]
    pub exclusion: Option<String>,
}
