//! The diff: turns the delta of the plan and the mirror of the tables into ops. The same code serves changes, the start
//! and the periodic check.
//!
//! The order of the writes guarantees that between any two writes a dial gets either the old or the new result:
//!
//! 1. Create: names, policies with their buckets and selected pods, backends, slots and sets. None of these is visible
//!    yet.
//! 2. Publish: a new row is written before the row that it replaces is deleted. A lookup falls back from an exact row
//!    to a fallback row (the NodePort wildcard, or the all-ports row of a ClusterIP), and the wildcard applies to all
//!    addresses in the node table. Exact rows are therefore written first and deleted last, and fallback rows change
//!    between the deletion of old and the insertion of new nodes.
//! 3. Empty: in a chain of policies over a Service, the last backend of a set is removed only after the set that serves
//!    instead is ready.
//! 4. Sweep: removes only what the mirror shows to be unreferenced after the frontends have changed, so a failed write
//!    never leaves a frontend that refers to a recycled id.
//!
//! A failed write stops what depends on it and nothing else. The caller learns which Services, nodes or obsolete rows
//! are affected, and the next round tries them again.

mod capacity;
mod empty;
mod frontend;
mod link;
mod policy;
mod set;
mod sweep;

use crate::address::Address;
use crate::hash::HashMap;
use crate::name::{Name, PortName, ServiceName, SetName};
use crate::op::{MapError, Maps, Op};
use crate::plan::ServicePlan;
use crate::planner::Delta;
use crate::refusal::{Refusal, RefusalReason};
use crate::row::{SetId, Tier};
use crate::table::Tables;
use std::collections::{BTreeMap, BTreeSet};

/// The number of quarantined ids at which a round starts with a grace period.
const RECYCLE_AT: usize = 4096;

#[derive(Debug, Default)]
pub struct ReconcileOutcome {
    pub ops: usize,
    /// To be tried again with back-off (`Planner::retry`).
    pub failed: BTreeMap<ServiceName, MapError>,
    /// Set if node rows could not be written.
    pub nodes_failed: Option<MapError>,
    /// The number of obsolete rows that could not be deleted. Every later round tries again, even with an empty delta.
    pub leftover: usize,
    /// Backends that no set contains any more.
    pub retired: Vec<(PortName, Address, u16)>,
}

impl ReconcileOutcome {
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.nodes_failed.is_none() && self.leftover == 0
    }

    pub fn refusals(&self) -> Vec<Refusal> {
        let refusal = |(name, error): (&ServiceName, &MapError)| Refusal {
            subject: name.into(),
            reason: if matches!(error, MapError::Full(_)) {
                RefusalReason::TableFull
            } else {
                RefusalReason::WriteFailed
            },
            message: match error {
                MapError::Full(what) => {
                    let option = size_option(what);
                    format!(
                        "the {what} table is full: the previous state stays in effect; increase {option} and restart"
                    )
                }
                MapError::Failed(why) => format!("{why}: the previous state stays in effect; the write is tried again"),
            },
        };
        self.failed.iter().map(refusal).collect()
    }
}

/// The option that increases the size of a table.
pub(crate) fn size_option(table: &str) -> &'static str {
    match table {
        "frontend" => "--max-frontends (or --max-services)",
        "backend" => "--max-backends (or --max-services)",
        "slot" => "--max-slots (or --max-services)",
        _ => "--max-services",
    }
}

/// Which rows the delta describes completely. Rows in this scope that the delta does not contain are deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SyncScope {
    /// None: the delta contains changes only.
    #[default]
    Changes,
    /// The rows of these clusters. Rows of other and of unknown clusters stay.
    Clusters(BTreeSet<Name>),
    All,
}

impl From<bool> for SyncScope {
    fn from(full: bool) -> SyncScope {
        if full { SyncScope::All } else { SyncScope::Changes }
    }
}

/// Writes the delta to the maps.
pub fn reconcile<M: Maps>(
    tables: &mut Tables,
    maps: &mut M,
    delta: &Delta,
    scope: impl Into<SyncScope>,
) -> ReconcileOutcome {
    let scope = scope.into();
    let mut reconciler = Reconciler::new(tables, maps, delta);
    reconciler.tables.pending.retry(delta.services.iter().map(|(name, _)| name), delta.nodes.is_some());
    if reconciler.tables.quarantined() > RECYCLE_AT {
        let _ = reconciler.tables.recycle(reconciler.maps);
    }
    if scope != SyncScope::Changes {
        reconciler.queue_all();
    }
    reconciler.delete_node_ports_first(delta);
    for (name, plan) in in_link_order(delta) {
        reconciler.write_plan(name, plan);
    }
    reconciler.mark_unclaimed(delta, &scope);
    reconciler.empty_unlinked();
    reconciler.reserve_frontends(delta);
    reconciler.put_frontends(delta, Tier::Exact);
    reconciler.delete_nodes(delta);
    reconciler.delete_frontends(Tier::Fallback);
    reconciler.write_late_headers();
    reconciler.put_frontends(delta, Tier::Fallback);
    reconciler.put_nodes(delta);
    reconciler.delete_frontends(Tier::Exact);
    reconciler.keep_links_of_failed(delta);
    reconciler.empty_redirects();
    reconciler.sweep(delta);
    reconciler.tables.end_round();
    reconciler.outcome.leftover = reconciler.tables.sweep_queue.len();
    reconciler.outcome
}

/// Services first, then the policies that link to them.
fn in_link_order(delta: &Delta) -> Vec<(&ServiceName, &ServicePlan)> {
    let mut plans: Vec<_> = delta.services.iter().filter_map(|(name, plan)| Some((name, plan.as_ref()?))).collect();
    plans.sort_by_key(|(name, _)| policy::chain_position(name));
    plans
}

struct Reconciler<'a, M> {
    tables: &'a mut Tables,
    maps: &'a mut M,
    delta: &'a Delta,
    outcome: ReconcileOutcome,
    /// Headers that also decide what NodePorts at other nodes' addresses get. They are written after the rows of those
    /// nodes.
    late_headers: Vec<(ServiceName, Op)>,
    /// Links of policies to sets without backends: the policy, its set and the next set. They are written after the
    /// sets above have their backends.
    late_links: Vec<(ServiceName, SetId, SetId)>,
    /// Sets whose last backend is to be removed.
    sets_to_empty: Vec<(ServiceName, SetId)>,
    /// The next set of each policy set, from the delta.
    next_of: HashMap<&'a SetName, &'a SetName>,
    /// Services whose new frontends do not fit into the table.
    over_capacity: BTreeSet<ServiceName>,
}

impl<'a, M: Maps> Reconciler<'a, M> {
    fn new(tables: &'a mut Tables, maps: &'a mut M, delta: &'a Delta) -> Reconciler<'a, M> {
        let plans = delta.services.iter().filter_map(|(_, plan)| plan.as_ref());
        let next_of = plans.flat_map(|plan| &plan.sets).filter_map(|set| Some((&set.name, set.next.as_ref()?)));
        Reconciler {
            tables,
            maps,
            delta,
            outcome: ReconcileOutcome::default(),
            late_headers: Vec::new(),
            late_links: Vec::new(),
            sets_to_empty: Vec::new(),
            next_of: next_of.collect(),
            over_capacity: BTreeSet::new(),
        }
    }

    fn write(&mut self, op: Op) -> Result<(), MapError> {
        self.maps.write(&op)?;
        self.outcome.ops += 1;
        self.tables.apply(&op);
        Ok(())
    }

    fn fail(&mut self, name: &ServiceName, error: MapError) {
        self.tables.pending.services.entry(name.clone()).or_insert_with(|| error.clone());
        self.outcome.failed.entry(name.clone()).or_insert(error);
    }

    fn fail_nodes(&mut self, error: MapError) {
        self.tables.pending.nodes = Some(error.clone());
        self.outcome.nodes_failed = Some(error);
    }
}
