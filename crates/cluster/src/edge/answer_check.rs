//! A check for tests and the fuzzer: any answers of the edge cache are read without a panic, and give only valid objects.

use super::client::{parse, parse_list};
use super::tracker::EdgeTracker;
use super::watcher::{CachedKind, EdgeUpdate};
use crate::convert::{Converter, ServiceFilter};
use crate::object_check::check_object;
use crate::snapshot::Snapshot;
use crate::wire::Trimmed;
use beeline_model::change::{Change, ObjectKey};
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};

/// Each line of the input is a word (`services`, `endpoints`, `watch-services`, `watch-endpoints`, `node`, `missing`) and
/// what the cache answers. Panics if an invariant does not hold. Returns whether an answer was read.
#[doc(hidden)]
pub fn check_edge_answers(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let filter = ServiceFilter { dns_names: text.starts_with('\n'), ..ServiceFilter::default() };
    let mut tracker = EdgeTracker::new(Converter::new("local", filter), "node-1".into());
    let (mut snapshot, mut was_read) = (Snapshot::default(), false);
    for update in text.lines().filter_map(parse_update) {
        was_read = true;
        tracker.apply(update);
        let needed = tracker.needed_nodes();
        assert!(needed.contains("node-1"), "the node of this host is always read");
        if let Some(batch) = tracker.next_batch("http://127.0.0.1:10550") {
            batch.changes.into_iter().for_each(|change| apply(&mut snapshot, change));
        }
        assert!(tracker.next_batch("http://127.0.0.1:10550").is_none(), "nothing changed since the last batch");
    }
    beeline_model::check_plan(snapshot.into_changes());
    was_read
}

fn parse_update(line: &str) -> Option<EdgeUpdate> {
    let (word, answer) = line.split_once(' ')?;
    match word {
        "services" => list::<Service>(answer),
        "endpoints" => list::<Endpoints>(answer),
        "watch-services" => EdgeUpdate::from_event::<Service>(parse(answer).ok()?),
        "watch-endpoints" => EdgeUpdate::from_event::<Endpoints>(parse(answer).ok()?),
        "node" => parse::<Trimmed<Node>>(answer).ok().map(|Trimmed(node)| EdgeUpdate::Node(Box::new(node))),
        "missing" => Some(EdgeUpdate::NodeUnavailable(answer.into())),
        _ => None,
    }
}

fn list<K: CachedKind>(answer: &str) -> Option<EdgeUpdate> {
    let list = parse_list::<K>(answer).ok()?;
    let objects = list.objects.into_iter().map(CachedKind::into_object).collect();
    Some(EdgeUpdate::List { kind: K::KIND, objects, version: list.version, from_cache: list.from_cache })
}

fn apply(snapshot: &mut Snapshot, change: Change) {
    match &change {
        Change::Upsert(object) => check_object(object).unwrap_or_else(|rule| panic!("{rule}: {object:?}")),
        Change::Delete(ObjectKey::Service(name)) => {
            let exists = snapshot.services.contains_key(name) || snapshot.named_services.contains_key(name);
            assert!(exists, "{name:?} is deleted and was never there");
        }
        Change::Delete(_) => {}
    }
    snapshot.apply(change);
}
