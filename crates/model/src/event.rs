//! An event: a verdict that the kernel half reported, in our types.

use crate::address::Address;
use crate::name::Protocol;
use crate::row::{Kind, Rule};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    Untouched,
    Resolved,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    None,
    /// No endpoint anywhere.
    NoEndpoint,
    /// Endpoints exist, but none in the set that this dial may use.
    NoLocal,
    /// The ClusterIP is known, the port is not.
    NoPort,
    SourceDenied,
    SourceUnknown,
    /// The socket's record could not be stored.
    Record,
    /// Over the policy's limit, and no set is below.
    Limited,
    /// A pod that the policy selects dialled it, and no set is below.
    SelfDial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Hook {
    Connect,
    Send,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    pub kind: Option<Kind>,
    pub rule: Option<Rule>,
    pub action: Action,
    pub reason: Reason,
    pub affinity: bool,
    /// Owner of the set whose limit sent it further down, or off; 0: of none.
    pub limited: u32,
    /// The view in which it was dialled; 0: everybody's.
    pub view: u32,
}
