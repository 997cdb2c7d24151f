//! The protocol of the agent's Unix socket: one JSON request per line, one JSON response per line. `monitor` is answered
//! by a stream of lines. The agent and the command line both use these types, so neither reads JSON by field name.
#![forbid(unsafe_code)]

mod client;
mod event;
mod explain;
mod policy;
mod request;
mod status;

pub use client::{AgentClient, ClientError, EventStream};
pub use event::{AttributedEvent, EventFilter, EventNames, MonitorLine};
pub use explain::{EndpointExplanation, FamilyExplanation, PendingAddress, ServiceExplanation};
pub use policy::{FrontendPrecedence, PolicyFrontend, PolicyReport, PolicyScope};
pub use request::{PodLocation, PolicyQuery, Request, Response};
pub use status::{
    AgentStatus, ClusterStatus, DnsClusterStatus, DnsStatus, ExcludedPodCounts, KernelStatus, LastChange, ObjectCounts,
    PacketCounts, PacketPathStatus, PolicyCounts, ReachStatus, RefusalStatus, SnapshotStatus, SourceStatus,
    SuspendedRedirect, TokenStatus, ViewStatus,
};
