//! A check for tests and fuzzers: any objects that a source delivers can be planned and written into tables, and the tables
//! are consistent.

use crate::change::Change;
use crate::diff::reconcile;
use crate::op::MemoryMaps;
use crate::planner::Planner;
use crate::publish::{Publisher, UnknownNamespace};
use crate::row::Sizes;
use crate::rules::Rules;
use crate::table::Tables;

/// Applies the changes in two steps on the node `node-1`, then plans everything again. Panics if the tables are
/// inconsistent, or if the second plan differs from the first. Returns the planner.
#[doc(hidden)]
pub fn check_plan(changes: Vec<Change>) -> Planner {
    let sizes = Sizes::for_services(64);
    let (mut tables, mut maps) = (Tables::new(sizes), MemoryMaps::new(sizes));
    let mut planner = Planner::new(Rules::for_node("node-1"));
    planner.set_self_publishing();
    let mut publisher = Publisher::new(UnknownNamespace::Pending);
    let half = changes.len() / 2;
    for (at, change) in changes.into_iter().enumerate() {
        if at == half {
            reconcile(&mut tables, &mut maps, &planner.take_delta(), false);
        }
        publisher.apply(&change);
        planner.apply(change);
        publisher.take_changes().into_iter().for_each(|published| {
            planner.apply(published);
        });
    }
    let is_complete = reconcile(&mut tables, &mut maps, &planner.take_delta(), false).is_clean();
    audit(&tables, sizes);
    reconcile(&mut tables, &mut maps, &planner.take_full_delta(), true);
    audit(&tables, sizes);
    let again = reconcile(&mut tables, &mut maps, &planner.take_full_delta(), true);
    assert!(!is_complete || again.is_clean(), "the same plan does not fit a second time: {again:?}");
    planner
}

fn audit(tables: &Tables, sizes: Sizes) {
    tables.audit(sizes).unwrap_or_else(|error| panic!("the tables are inconsistent: {error}"));
}
