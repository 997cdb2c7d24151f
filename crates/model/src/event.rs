//! Events: verdicts that the BPF programs reported.

use crate::address::Address;
use crate::name::Protocol;
use crate::row::{FrontendKind, Rule};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    Untouched,
    Resolved,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    None,
    /// The service has no endpoint at all.
    NoEndpoint,
    /// Endpoints exist, but none in the set that this dial may use.
    NoLocal,
    /// The address is a ClusterIP that has no such port.
    NoPort,
    SourceDenied,
    SourceUnknown,
    /// The record of the socket could not be stored.
    Record,
    /// The dial exceeded the policy's limit, and no set follows in the chain.
    Limited,
    /// A pod that the policy selects dialled the policy's frontend, and no set follows in the chain.
    SelfDial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Hook {
    Connect,
    Send,
    /// The packet path, which serves packets and not sockets.
    Packet,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Nanoseconds since the epoch.
    pub time: u64,
    pub cgroup: u64,
    pub netns: u64,
    pub pid: u32,
    pub process: String,
    pub owner: u32,
    pub hook: Hook,
    pub protocol: Option<Protocol>,
    pub dialled: Address,
    pub dialled_port: u16,
    pub chosen: Option<(Address, u16)>,
    pub kind: Option<FrontendKind>,
    pub rule: Option<Rule>,
    pub action: Action,
    pub reason: Reason,
    pub affinity: bool,
    /// The owner of the set whose limit the dial exceeded. 0 means no limit was exceeded.
    pub limited: u32,
    /// The view in which the address was dialled. 0 is the default view.
    pub view: u32,
    /// The source address and port of a packet. A packet has no process and no cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<(Address, u16)>,
}
