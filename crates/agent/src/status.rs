//! What the agent says of itself; the CLI prints it.

use beeline_model::fact::Refusal;
use beeline_model::plan::policy::Standing;
use beeline_model::planner::state::PolicyState;
use beeline_model::row::Sizes;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub version: &'static str,
    pub pid: u32,
    pub node: String,
    pub source: Source,
    pub kernel: KernelStatus,
    pub counts: Counts,
    pub last_change: Option<LastChange>,
    pub refusals: Vec<Refusal>,
    pub events: String,
    pub node_addresses: Vec<String>,
    pub zone: Option<String>,
    /// Addresses of every node that is known.
    pub nodes: std::collections::BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    pub kind: &'static str,
    pub name: String,
    pub synced: bool,
    pub error: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelStatus {
    pub cgroup: String,
    pub pin_dir: String,
    pub layout: u32,
    pub generation: u32,
    pub start: String,
    pub live: bool,
    pub self_test: String,
    pub exact_udp_reaping: bool,
    pub sizes: Sizes,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    pub services: usize,
    pub slices: usize,
    pub nodes: usize,
    pub policies: Policies,
    pub frontends: usize,
    pub sets: usize,
    pub backends: usize,
    pub pending: usize,
    pub udp_sockets_destroyed: u64,
    /// Refused: a known ClusterIP on a port that its Service does not have, so of no service port.
    pub dials_no_port: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    pub all: usize,
    /// Accepted, and meant for this node.
    pub here: usize,
    pub refused: usize,
    /// A controller is to publish their pods, and nothing of them has been seen.
    pub waiting: usize,
}

impl Policies {
    pub fn count(states: &[PolicyState]) -> Policies {
        let count = |is: fn(&PolicyState) -> bool| states.iter().filter(|state| is(state)).count();
        Policies {
            all: states.len(),
            here: count(|state| state.refused.is_none() && state.standing == Standing::Here),
            refused: count(|state| state.refused.is_some()),
            waiting: count(|state| state.waits),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastChange {
    pub at: String,
    pub services: usize,
    pub writes: usize,
    pub micros: u64,
}

/// Of which policies is asked; nothing given: of all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// NAME or NAMESPACE/NAME.
    #[serde(default)]
    pub name: Option<String>,
    /// What is dialled.
    #[serde(default)]
    pub address: Option<String>,
    /// With an address: the service port that it leads to, as `Explain` has it.
    #[serde(default)]
    pub owner: Option<String>,
}

/// Asked over the agent's socket, one JSON line each.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "ask")]
pub enum Request {
    Status,
    /// Why each endpoint of a service port is in or out: `cluster/namespace/name/port/PROTOCOL`.
    Explain {
        owner: String,
    },
    /// What became of each policy on this node.
    Policies(About),
    SetEvents {
        level: String,
    },
    /// Then events follow, one line each, until the connection is closed.
    Monitor,
}
