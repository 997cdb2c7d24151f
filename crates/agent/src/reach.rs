//! Which pods this host reaches at their own addresses (`podAccess: auto`). The main loop tells the task of `prober` which
//! groups of pods the plan needs, and receives the results. On a Node of every cluster the task does nothing.

#[cfg(feature = "outside")]
mod probe;
#[cfg_attr(not(feature = "outside"), path = "node_only/prober.rs")]
mod prober;
#[cfg(feature = "outside")]
mod route;
#[cfg(feature = "outside")]
mod route_match;
#[cfg(feature = "outside")]
mod tracker;

#[cfg(feature = "outside")]
pub use probe::{PROBE_TIMEOUT, ProbeResult, probe};
pub use prober::run;
#[cfg(feature = "outside")]
pub use route::{RouteChange, RouteReader};
#[cfg(feature = "outside")]
pub use route_match::{BlockReason, RouteMatch};
#[cfg(feature = "outside")]
pub use tracker::{Evidence, ReachTracker};

use beeline_model::Address;
use beeline_model::reach::{PodGroup, Reach, Reachability};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const MAX_PROBES_PER_SECOND: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRate {
    /// The time between two probes of a group.
    pub interval: Duration,
    /// The limit over all groups.
    pub per_second: usize,
}

/// A group, and its ready endpoints that may be probed.
pub type ReachTarget = (PodGroup, Vec<(Address, u16)>);

/// The result of one group, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReachFinding {
    pub group: PodGroup,
    pub found: Reachability,
    pub since: Instant,
    pub evidence: String,
}

/// The current results, for the plan and for `status`.
#[derive(Clone, Debug, Default)]
pub struct ReachUpdate {
    pub reach: Reach,
    pub findings: Vec<ReachFinding>,
    /// The query that this update answers.
    pub query: Arc<[ReachTarget]>,
    /// Every group of the query has a route that decides, or was probed at least once.
    pub complete: bool,
    /// Why routes cannot be read now. The earlier results stay in effect.
    pub error: Option<String>,
}

/// The groups that the plan needs. `None` means that the task does nothing at all.
pub type ReachQuery = Option<Arc<[ReachTarget]>>;
