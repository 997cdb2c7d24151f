use super::*;
use beeline_cluster::ServiceFilter;
use beeline_model::change::ObjectKey;
use beeline_model::cluster::ClusterRules;
use beeline_model::object::{Node, ServiceRange};

fn cluster(name: &str) -> ClusterSettings {
    let source = SourceSettings::Folder { path: "/nowhere".into(), service_filter: ServiceFilter::default() };
    let zone = beeline_dns::Zone::new(name, "cluster.local").unwrap();
    ClusterSettings { rules: ClusterRules::named(name), source, zone }
}

fn node_object(cluster: &str, name: &str) -> Object {
    Object::Node(Node::named(cluster, name))
}

fn node(cluster: &str, name: &str) -> Change {
    Change::Upsert(node_object(cluster, name))
}

fn node_deletion(name: &str) -> Change {
    Change::Delete(ObjectKey::Node { cluster: "blue".into(), name: name.into() })
}

fn range_object(net: &str) -> Object {
    Object::ServiceRange(ServiceRange {
        cluster: "blue".into(),
        name: "k".into(),
        ranges: [net.parse().unwrap()].into(),
    })
}

/// A batch of the first list, or of a complete one.
fn batch(changes: Vec<Change>, complete: bool) -> ChangeBatch {
    ChangeBatch { changes, synced: complete, complete, ..ChangeBatch::default() }
}

fn blue_and_green() -> Sources {
    Sources::new(&[cluster("blue"), cluster("green")], HostRole::Outside)
}

fn first(sources: &Sources) -> &ClusterSource {
    sources.iter().next().unwrap()
}

fn only(names: &[&str]) -> SyncScope {
    SyncScope::Clusters(names.iter().map(|name| Name::from(*name)).collect())
}

#[test]
fn a_silent_cluster_neither_blocks_the_others_nor_deletes_its_rows() {
    let mut sources = blue_and_green();
    let partial = sources.apply(&"blue".into(), batch(vec![node("blue", "a")], false)).unwrap();
    assert!(partial.changes.is_empty() && !sources.is_synced(), "an unfinished list is not applied");
    let all = sources.apply(&"blue".into(), batch(vec![node("blue", "b")], true)).unwrap();
    assert_eq!((all.changes.len(), all.first, sources.is_synced()), (2, true, true));
    assert_eq!(sources.sync_scope(["blue", "green"].into_iter()), only(&["blue"]), "the rows of green stay");
    let scope = sources.sync_scope(["green", "red"].into_iter());
    assert_eq!(scope, only(&["blue", "red"]), "red is not configured any more");
    let next = sources.apply(&"blue".into(), batch(vec![node("blue", "c")], true)).unwrap();
    assert!(!next.first);
    assert!(sources.apply(&"green".into(), batch(vec![], true)).unwrap().first);
    assert_eq!(sources.sync_scope(["red"].into_iter()), SyncScope::All);
    assert!(sources.apply(&"red".into(), batch(vec![], true)).is_none());
}

#[test]
fn service_ranges_are_applied_before_the_list_is_finished() {
    let mut sources = blue_and_green();
    let range = Change::Upsert(range_object("10.43.0.0/16"));
    let applied = sources.apply(&"blue".into(), batch(vec![node("blue", "a"), range.clone()], false)).unwrap();
    assert_eq!(applied.changes, [range]);
    assert_eq!(first(&sources).ranges.len(), 1);
}

/// The source lists its ranges at once and the rest late. Meanwhile the snapshot is loaded.
#[test]
fn a_listed_range_is_not_replaced_by_the_range_of_a_snapshot() {
    let mut sources = blue_and_green();
    sources.apply(&"blue".into(), batch(vec![Change::Upsert(range_object("10.43.0.0/16"))], false));
    let snapshot = vec![range_object("10.96.0.0/16"), node_object("blue", "a")];
    let changes = sources.apply_snapshot(&"blue".into(), snapshot, SystemTime::now());
    assert_eq!(changes, Some(vec![node("blue", "a")]), "the range of the snapshot is older");
    let applied = sources.apply(&"blue".into(), batch(vec![node("blue", "b")], true)).unwrap();
    assert_eq!(applied.changes, [node("blue", "b"), node_deletion("a")]);
    let ranges = first(&sources).ranges.values().flatten().map(ToString::to_string);
    assert_eq!(ranges.collect::<Vec<_>>(), ["10.43.0.0/16"]);
}

/// For example if Services may not be listed, while Pods change all the time.
#[test]
fn changes_that_wait_for_a_list_that_never_finishes_do_not_accumulate() {
    let mut sources = blue_and_green();
    for round in 0..1000 {
        let pod = format!("pod-{round}");
        sources.apply(&"blue".into(), batch(vec![node("blue", "a"), node("blue", &pod)], false));
        sources.apply(&"blue".into(), batch(vec![node_deletion(&pod)], false));
    }
    assert_eq!(first(&sources).waiting_count(), 1, "only the last change of existing objects");
    let applied = sources.apply(&"blue".into(), batch(vec![], true)).unwrap();
    assert_eq!(applied.changes, [node("blue", "a")]);
}

#[test]
fn an_object_of_the_snapshot_that_is_deleted_during_the_list_is_deleted_after_it() {
    let mut sources = blue_and_green();
    let snapshot = vec![node_object("blue", "a"), node_object("blue", "b")];
    sources.apply_snapshot(&"blue".into(), snapshot, SystemTime::now());
    sources.apply(&"blue".into(), batch(vec![node("blue", "a"), node_deletion("a")], false));
    let partial = ChangeBatch { synced: true, ..ChangeBatch::default() };
    let applied = sources.apply(&"blue".into(), partial).unwrap();
    assert_eq!(applied.changes, [node_deletion("a")], "b may be in the part that cannot be read");
}

#[test]
fn a_new_source_deletes_nothing_before_its_list_is_finished() {
    let mut sources = blue_and_green();
    sources.apply(&"blue".into(), batch(vec![node("blue", "a"), node("blue", "b")], true));
    assert!(sources.configure(&[cluster("green"), cluster("blue")], &["blue".into()].into()).is_empty());
    assert_eq!(sources.names().map(|name| &**name).collect::<Vec<_>>(), ["green", "blue"]);
    assert!(sources.is_synced(), "the last known state stays in effect");
    let partial = sources.apply(&"blue".into(), batch(vec![node("blue", "b")], false)).unwrap();
    assert!(partial.changes.is_empty());
    let applied = sources.apply(&"blue".into(), batch(vec![], true)).unwrap();
    assert_eq!((applied.changes, applied.first), (vec![node("blue", "b"), node_deletion("a")], true));
}

#[test]
fn a_node_is_ready_only_with_its_own_cluster() {
    for (role, any_cluster_is_enough) in [(HostRole::Node, false), (HostRole::Edge, false), (HostRole::Outside, true)] {
        let mut sources = Sources::new(&[cluster("home"), cluster("far")], role);
        sources.apply(&"far".into(), batch(vec![], true));
        assert_eq!((sources.is_synced(), sources.is_ready()), (true, any_cluster_is_enough), "{role:?}");
        sources.apply(&"home".into(), batch(vec![], true));
        assert!(sources.is_ready());
    }
}

#[test]
fn the_objects_of_a_removed_cluster_are_deleted() {
    let mut sources = blue_and_green();
    sources.apply(&"blue".into(), batch(vec![node("blue", "a")], true));
    assert_eq!(sources.configure(&[cluster("green")], &BTreeSet::new()), [node_deletion("a")]);
}

#[test]
fn a_snapshot_is_served_until_the_source_has_delivered_a_list() {
    let mut sources = blue_and_green();
    let snapshot = vec![node_object("blue", "a"), node_object("blue", "b")];
    let changes = sources.apply_snapshot(&"blue".into(), snapshot, SystemTime::now());
    assert_eq!(changes, Some(vec![node("blue", "a"), node("blue", "b")]));
    assert!(sources.is_synced() && !sources.is_settled(None));
    assert_eq!(sources.sync_scope(["blue"].into_iter()), SyncScope::Changes, "the snapshot may be old");
    let applied = sources.apply(&"blue".into(), batch(vec![node("blue", "b")], true)).unwrap();
    assert_eq!((applied.changes, applied.first), (vec![node("blue", "b"), node_deletion("a")], true));
    assert_eq!(first(&sources).readiness, Readiness::Complete);
    assert_eq!(sources.apply_snapshot(&"blue".into(), vec![], SystemTime::now()), None, "too late");
}

#[test]
fn a_snapshot_is_preferred_to_the_list_of_an_edge_cache() {
    let cached = |changes| ChangeBatch { changes, synced: true, from_cache: true, ..ChangeBatch::default() };
    let mut sources = blue_and_green();
    let (blue, green) = (Name::from("blue"), Name::from("green"));
    sources.apply_snapshot(&blue, vec![node_object("blue", "a")], SystemTime::now());
    let applied = sources.apply(&blue, cached(vec![node("blue", "deleted")])).unwrap();
    assert!(applied.changes.is_empty() && first(&sources).readiness.snapshot_time().is_some());
    let complete = batch(vec![node("blue", "b"), node_deletion("deleted")], true);
    let applied = sources.apply(&blue, complete).unwrap();
    let expected = [node("blue", "deleted"), node("blue", "b"), node_deletion("deleted"), node_deletion("a")];
    assert_eq!(applied.changes, expected);
    let applied = sources.apply(&green, cached(vec![node("green", "a")])).unwrap();
    assert_eq!((applied.changes.len(), applied.first), (1, true), "without a snapshot the edge cache is used");
}

#[test]
fn a_complete_cluster_stays_complete_when_a_later_list_cannot_be_read_completely() {
    let mut sources = blue_and_green();
    sources.apply(&"blue".into(), batch(vec![], true));
    sources.apply(&"blue".into(), ChangeBatch { synced: true, ..ChangeBatch::default() });
    assert_eq!(first(&sources).readiness, Readiness::Complete);
    sources.apply(&"green".into(), ChangeBatch { synced: true, ..ChangeBatch::default() });
    assert_eq!(sources.incomplete(), ["green".into()].into());
}

/// On a Node the source of its own cluster keeps no keys: the caller knows the objects.
#[test]
fn a_source_that_starts_again_deletes_what_is_gone_once_its_list_is_complete() {
    for (name, role) in [("local", HostRole::Node), ("blue", HostRole::Outside)] {
        let mut sources = Sources::new(&[cluster(name)], role);
        let both = vec![node(name, "a"), node(name, "b")];
        assert_eq!(sources.apply(&name.into(), batch(both, true)).unwrap().changes.len(), 2);
        let key = |node: &str| ObjectKey::Node { cluster: name.into(), name: node.into() };
        for _ in 0..2 {
            sources.restart(&name.into(), || vec![key("a"), key("b")]);
            let page = sources.apply(&name.into(), batch(vec![node(name, "a")], false)).unwrap();
            assert!(page.changes.is_empty() && sources.is_complete(), "{name}: the last known state stays in effect");
            let last = sources.apply(&name.into(), batch(Vec::new(), true)).unwrap();
            assert_eq!(last.changes, [node(name, "a"), Change::Delete(key("b"))], "{name}");
            // The object comes back: the next restart must find it again.
            sources.apply(&name.into(), batch(vec![node(name, "b")], true)).unwrap();
        }
        assert_eq!(first(&sources).object_count().is_some(), role != HostRole::Node, "no keys are kept on a Node");
    }
}
