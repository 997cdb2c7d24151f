//! The one diff: from the plan's delta and the mirror to ops, for change, start and periodic check alike.
//!
//! Order is everything: between any two writes a dial gets the old answer or the new one.
//!
//! *Make*: names, policies with their buckets and members, backends, slots, sets: nothing of it is visible yet. *Show*:
//! what takes over comes before what it takes over from goes. A miss falls from an exact row to a fallback (a NodePort's
//! wildcard, "this ClusterIP is known"), and the wildcard speaks for the addresses in the node table; so exact rows come
//! first and go last, and fallbacks are exchanged between the nodes that leave and those that come. *Empty*: in a chain
//! of policies over a Service, the last member of a set goes only after whoever serves instead is there, above or below.
//! *Sweep*: only what the mirror shows to be unreferenced after the frontends have really moved, so a write that failed
//! never leaves a frontend that leads to something recycled.
//!
//! A write that fails stops what depends on it and nothing else; the service, the nodes or the leftovers are said to
//! the caller, and the next round tries them again.

mod admit;
mod empty;
mod link;
mod make;
mod policy;
mod show;
mod sweep;

use crate::address::Address;
use crate::fact::Refusal;
use crate::hash::HashMap;
use crate::name::{Name, OwnerName, PortName, SetName};
use crate::op::{MapError, Maps, Op};
use crate::plan::ServicePlan;
use crate::planner::Delta;
use crate::row::{SetId, Tier};
use crate::table::Tables;
use std::collections::{BTreeMap, BTreeSet};

/// One grace period serves this many released ids.
const RECYCLE_AT: usize = 4096;

#[derive(Debug, Default)]
pub struct Outcome {
    pub ops: usize,
    /// To be tried again, with back-off (`Planner::retry`).
    pub failed: BTreeMap<OwnerName, MapError>,
    /// Node rows that could not be written.
    pub nodes_failed: Option<MapError>,
    /// Rows that should be gone and are not yet: any later round takes them up, even one with an empty delta.
    pub leftover: usize,
    /// No set holds these any more.
    pub retired: Vec<(PortName, Address, u16)>,
}

impl Outcome {
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.nodes_failed.is_none() && self.leftover == 0
    }

    pub fn refusals(&self) -> Vec<Refusal> {
        let refusal = |(name, error): (&OwnerName, &MapError)| Refusal {
            subject: if name.policy_kind().is_some() { name.to_string() } else { format!("Service {name}") },
            reason: if matches!(error, MapError::Full(_)) { "tableFull" } else { "writeFailed" },
            message: match error {
                MapError::Full(what) => {
                    let option = size_option(what);
                    format!(
                        "the {what} table is full: what was programmed before keeps serving; raise {option} and restart"
                    )
                }
                MapError::Failed(why) => format!("{why}: what was programmed before keeps serving; it is tried again"),
            },
        };
        self.failed.iter().map(refusal).collect()
    }
}

/// What makes this table bigger.
fn size_option(table: &str) -> &'static str {
    match table {
        "frontend" => "--max-frontends (or --max-services)",
        "backend" => "--max-backends (or --max-services)",
        "slot" => "--max-slots (or --max-services)",
        _ => "--max-services",
    }
}

/// Whose rows the delta is the whole plan of: those that it does not name go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Whole {
    /// Nobody's: it says what changed.
    #[default]
    Nothing,
    /// These clusters'. Rows of others stay as they are, also those of clusters that nobody knows.
    Clusters(BTreeSet<Name>),
    Everything,
}

impl From<bool> for Whole {
    fn from(full: bool) -> Whole {
        if full { Whole::Everything } else { Whole::Nothing }
    }
}

/// Brings the maps to the plan.
pub fn reconcile<M: Maps>(tables: &mut Tables, maps: &mut M, delta: &Delta, whole: impl Into<Whole>) -> Outcome {
    let whole = whole.into();
    let mut work = Work::new(tables, maps, delta);
    work.tables.held.try_again(delta.services.iter().map(|(name, _)| name), delta.nodes.is_some());
    if work.tables.quarantined() > RECYCLE_AT {
        let _ = work.tables.recycle(work.maps);
    }
    if whole != Whole::Nothing {
        work.touch_all();
    }
    work.withdraw(delta);
    for (name, plan) in in_order(delta) {
        work.make(name, plan);
    }
    work.mark_unclaimed(delta, &whole);
    work.empty_unlinked();
    work.admit(delta);
    work.put_frontends(delta, Tier::Exact);
    work.delete_nodes(delta);
    work.delete_frontends(Tier::Fallback);
    work.change_late();
    work.put_frontends(delta, Tier::Fallback);
    work.put_nodes(delta);
    work.delete_frontends(Tier::Exact);
    work.hold_links(delta);
    work.empty_redirects();
    work.sweep(delta);
    work.tables.settle();
    work.outcome.leftover = work.tables.touched.len();
    work.outcome
}

/// What others link to first.
fn in_order(delta: &Delta) -> Vec<(&OwnerName, &ServicePlan)> {
    let mut plans: Vec<_> = delta.services.iter().filter_map(|(name, plan)| Some((name, plan.as_ref()?))).collect();
    plans.sort_by_key(|(name, _)| policy::rank(name));
    plans
}

struct Work<'a, M> {
    tables: &'a mut Tables,
    maps: &'a mut M,
    delta: &'a Delta,
    outcome: Outcome,
    /// Headers that also say what NodePorts at other nodes' addresses get: after the rows of those nodes.
    late: Vec<(OwnerName, Op)>,
    /// Policies' sets that will lead on to where nobody is: after everybody who may come there is served above.
    links: Vec<(OwnerName, SetId, SetId)>,
    /// Sets whose last member goes.
    empties: Vec<(OwnerName, SetId)>,
    /// What policies' sets lead on to, by the delta.
    next_of: HashMap<&'a SetName, &'a SetName>,
    /// No room for their new frontends.
    crowded_out: BTreeSet<OwnerName>,
}

impl<'a, M: Maps> Work<'a, M> {
    fn new(tables: &'a mut Tables, maps: &'a mut M, delta: &'a Delta) -> Work<'a, M> {
        let plans = delta.services.iter().filter_map(|(_, plan)| plan.as_ref());
        let next_of = plans.flat_map(|plan| &plan.sets).filter_map(|set| Some((&set.name, set.next.as_ref()?)));
        Work {
            tables,
            maps,
            delta,
            outcome: Outcome::default(),
            late: Vec::new(),
            links: Vec::new(),
            empties: Vec::new(),
            next_of: next_of.collect(),
            crowded_out: BTreeSet::new(),
        }
    }

    fn write(&mut self, op: Op) -> Result<(), MapError> {
        self.maps.write(&op)?;
        self.outcome.ops += 1;
        self.tables.apply(&op);
        Ok(())
    }

    fn fail(&mut self, name: &OwnerName, error: MapError) {
        self.tables.held.services.entry(name.clone()).or_insert_with(|| error.clone());
        self.outcome.failed.entry(name.clone()).or_insert(error);
    }

    fn fail_nodes(&mut self, error: MapError) {
        self.tables.held.nodes = Some(error.clone());
        self.outcome.nodes_failed = Some(error);
    }
}
