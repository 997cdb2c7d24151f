//! Tests of the tracker without a server: updates in, batches out.

use super::*;
use crate::ServiceFilter;
use crate::readiness::MAX_FAILURES;
use crate::wire::PolicyObject;
use k8s_openapi::api::core::v1::Service;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn tracker() -> ObjectTracker {
    let watched = [
        ResourceKind::Service,
        ResourceKind::EndpointSlice,
        ResourceKind::Node,
        ResourceKind::Pod,
        ResourceKind::LocalRedirectPolicy,
        ResourceKind::BalancingPolicy,
    ];
    tracker_of("node-1", &watched, PublishedSlices::default())
}

fn tracker_of(node: &str, watched: &[ResourceKind], published: PublishedSlices) -> ObjectTracker {
    ObjectTracker::new(Converter::new("local", ServiceFilter::default()), node, watched, published)
}

fn service(name: &str, ip: &str) -> ApiObject {
    let ports = r#"[{"name":"http","port":80,"protocol":"TCP"}]"#;
    let spec = format!(r#"{{"clusterIP":"{ip}","clusterIPs":["{ip}"],"ipFamilies":["IPv4"],"ports":{ports}}}"#);
    let text = format!(r#"{{"metadata":{{"name":"{name}","namespace":"default"}},"spec":{spec}}}"#);
    ApiObject::Service(Box::new(serde_json::from_str::<Service>(&text).unwrap()))
}

fn deleted_services(batch: &ChangeBatch) -> usize {
    batch.changes.iter().filter(|change| matches!(change, Change::Delete(ObjectKey::Service(_)))).count()
}

fn apply(tracker: &mut ObjectTracker, updates: impl IntoIterator<Item = WatchUpdate>) -> ChangeBatch {
    apply_at(tracker, Instant::now(), updates)
}

fn apply_at(tracker: &mut ObjectTracker, now: Instant, updates: impl IntoIterator<Item = WatchUpdate>) -> ChangeBatch {
    updates.into_iter().for_each(|update| tracker.apply(update, now));
    tracker.next_batch("https://192.0.2.1".into()).unwrap_or_default()
}

fn empty_list(kind: ResourceKind) -> [WatchUpdate; 2] {
    [WatchUpdate::ListStarted(kind), WatchUpdate::ListFinished(kind)]
}

fn finished<const N: usize>(kinds: [ResourceKind; N]) -> [WatchUpdate; N] {
    kinds.map(WatchUpdate::ListFinished)
}

fn failed(kind: ResourceKind, is_denied: bool) -> WatchUpdate {
    WatchUpdate::Failed { kind, error: "forbidden".into(), is_denied }
}

#[test]
fn a_source_is_synced_when_all_kinds_are_listed() {
    let mut tracker = tracker();
    assert!(!apply(&mut tracker, empty_list(ResourceKind::Service)).synced);
    assert!(!apply(&mut tracker, empty_list(ResourceKind::EndpointSlice)).synced);
    assert!(!apply(&mut tracker, empty_list(ResourceKind::Node)).synced);
    apply(&mut tracker, finished([ResourceKind::Pod, ResourceKind::LocalRedirectPolicy]));
    assert!(apply(&mut tracker, finished([ResourceKind::BalancingPolicy])).synced);
}

#[test]
fn a_host_outside_waits_for_the_nodes() {
    let watched = [ResourceKind::Service, ResourceKind::EndpointSlice, ResourceKind::Node];
    let mut tracker = tracker_of("", &watched, PublishedSlices::default());
    apply(&mut tracker, finished([ResourceKind::Service, ResourceKind::EndpointSlice]));
    let batch = apply(&mut tracker, (0..9).map(|_| failed(ResourceKind::Node, true)));
    assert!(!batch.synced && batch.error.is_some_and(|error| error.contains("forbidden")));
    let listed = [WatchUpdate::ListFinished(ResourceKind::Node), WatchUpdate::Healthy(ResourceKind::Node)];
    assert!(apply(&mut tracker, listed).synced);
}

/// Services, Nodes and Pods are listed, slices and policies are not.
fn tracker_without_slices() -> ObjectTracker {
    let mut tracker = tracker();
    apply(&mut tracker, finished([ResourceKind::Node, ResourceKind::Pod, ResourceKind::Service]));
    tracker
}

#[test]
fn policies_that_cannot_be_read_do_not_block_services() {
    let mut tracker = tracker_without_slices();
    // While slices are not listed either, the whole server is failing, and failures of policies do not count.
    (0..9).for_each(|_| tracker.apply(failed(ResourceKind::BalancingPolicy, false), Instant::now()));
    let slices = finished([ResourceKind::LocalRedirectPolicy, ResourceKind::EndpointSlice]);
    assert!(!apply(&mut tracker, slices).synced);
    assert!(!apply(&mut tracker, (1..MAX_FAILURES).map(|_| failed(ResourceKind::BalancingPolicy, false))).synced);
    let batch = apply(&mut tracker, [failed(ResourceKind::BalancingPolicy, false)]);
    assert!(batch.synced && !batch.complete, "rows of policies that could not be listed stay");
    let kind = ResourceKind::BalancingPolicy;
    let batch = apply(&mut tracker, [WatchUpdate::ListFinished(kind), WatchUpdate::Healthy(kind)]);
    assert!(batch.synced && batch.complete);
}

#[test]
fn a_kind_that_is_denied_counts_as_missing_only_after_a_delay() {
    let (mut tracker, start) = (tracker_without_slices(), Instant::now());
    apply(&mut tracker, finished([ResourceKind::LocalRedirectPolicy, ResourceKind::EndpointSlice]));
    let mut fail = |at: u32, is_denied: bool| {
        apply_at(&mut tracker, start + at * SECOND, [failed(ResourceKind::BalancingPolicy, is_denied)]);
        (tracker.is_synced(), tracker.is_complete())
    };
    assert_eq!([fail(0, true), fail(1, true), fail(29, true)], [(true, false); 3], "not long enough");
    let interrupted = [fail(30, false), fail(31, true), fail(60, true)];
    assert_eq!(interrupted.map(|(_, complete)| complete), [false; 3], "interrupted by another failure");
    assert_eq!(fail(61, true), (true, true));
}

#[test]
fn denied_and_missing_kinds_do_not_count_before_services_are_listed() {
    for update in [|kind| failed(kind, true), WatchUpdate::NotInstalled] {
        let (mut tracker, start) = (tracker(), Instant::now());
        let policies = [ResourceKind::LocalRedirectPolicy, ResourceKind::BalancingPolicy];
        (0..60).for_each(|at| drop(apply_at(&mut tracker, start + at * SECOND, policies.map(update))));
        let rest = [ResourceKind::Service, ResourceKind::EndpointSlice, ResourceKind::Node, ResourceKind::Pod];
        let batch = apply_at(&mut tracker, start + 61 * SECOND, finished(rest));
        assert!(!batch.synced && !batch.complete, "policies are tried again after the server has recovered");
        let batch = apply_at(&mut tracker, start + 62 * SECOND, policies.map(update));
        assert!(batch.synced && !batch.complete, "Services are served, and rows of policies stay");
        assert!(apply_at(&mut tracker, start + 92 * SECOND, policies.map(update)).complete);
    }
}

fn policy(uid: &str, generation: i64) -> ApiObject {
    let spec = serde_json::json!({
        "frontend": { "serviceMatcher": { "serviceName": "web" } },
        "backend": { "endpointSelector": {}, "toPorts": [{ "port": 80 }] },
    });
    let meta = serde_json::json!({ "name": "a", "namespace": "b", "uid": uid, "generation": generation });
    ApiObject::LocalRedirect(Box::new(PolicyObject {
        metadata: serde_json::from_value(meta).unwrap(),
        spec: Ok(serde_json::from_value(spec).unwrap()),
    }))
}

#[test]
fn a_policy_is_sent_once_per_generation() {
    let (mut tracker, now) = (tracker(), Instant::now());
    let mut changes = |policy| apply(&mut tracker, [WatchUpdate::Upserted(policy, now)]).changes.len();
    let sent = [("u", 1), ("u", 1), ("u", 2), ("v", 2)].map(|(uid, generation)| changes(policy(uid, generation)));
    assert_eq!(sent, [1, 0, 1, 1]);
    assert_eq!(apply(&mut tracker, [WatchUpdate::Deleted(policy("v", 2))]).changes.len(), 1);
    assert_eq!(apply(&mut tracker, [WatchUpdate::Upserted(policy("v", 2), now)]).changes.len(), 1);
}

#[test]
fn a_node_that_cannot_be_read_does_not_block_services() {
    let mut tracker = tracker();
    apply(&mut tracker, finished([ResourceKind::Service, ResourceKind::EndpointSlice, ResourceKind::Pod]));
    apply(&mut tracker, finished([ResourceKind::LocalRedirectPolicy, ResourceKind::BalancingPolicy]));
    let batch = apply(&mut tracker, [failed(ResourceKind::Node, true)]);
    assert!(batch.synced && batch.error.is_some_and(|error| error.contains("forbidden")));
    assert!(apply(&mut tracker, [WatchUpdate::Healthy(ResourceKind::Node)]).error.is_none());
}

#[test]
fn objects_that_a_complete_list_does_not_contain_are_deleted() {
    let mut tracker = tracker();
    let kind = ResourceKind::Service;
    let list = |objects| [WatchUpdate::ListStarted(kind), WatchUpdate::ListPage(objects)];
    let both = list(vec![service("a", "10.96.0.1"), service("b", "10.96.0.2")]);
    let batch = apply(&mut tracker, both.into_iter().chain([WatchUpdate::ListFinished(kind)]));
    assert_eq!((batch.changes.len(), deleted_services(&batch)), (2, 0));
    let interrupted = apply(&mut tracker, list(vec![service("a", "10.96.0.1")]));
    assert_eq!(deleted_services(&interrupted), 0, "objects after the interruption may still exist");
    let batch = apply(&mut tracker, list(vec![service("b", "10.96.0.2")]));
    assert_eq!(deleted_services(&batch), 0, "the list is not complete");
    assert_eq!(deleted_services(&apply(&mut tracker, [WatchUpdate::ListFinished(kind)])), 1, "a is deleted");
}

#[test]
fn an_object_that_is_no_longer_served_is_deleted_and_refusals_are_deleted_with_their_object() {
    let mut tracker = tracker();
    let now = Instant::now();
    let update = |ip: &str| [WatchUpdate::Upserted(service("a", ip), now)];
    assert_eq!(apply(&mut tracker, update("10.96.0.1")).changes.len(), 1);
    assert_eq!(deleted_services(&apply(&mut tracker, update("None"))), 1);
    let batch = apply(&mut tracker, update("127.0.0.1"));
    assert_eq!((batch.changes.len(), batch.refusals.len(), tracker.events.len()), (0, 1, 1));
    apply(&mut tracker, update("127.0.0.1"));
    assert_eq!(tracker.events.len(), 1, "the refusal is not new");
    assert!(apply(&mut tracker, [WatchUpdate::Deleted(service("a", "127.0.0.1"))]).refusals.is_empty());
}

fn slice(label: &str, value: &str) -> ApiObject {
    let meta = serde_json::json!({ "name": "forged", "namespace": "default", "labels": { label: value } });
    let slice = serde_json::json!({ "metadata": meta, "addressType": "IPv4", "endpoints": [] });
    ApiObject::Slice(Box::new(serde_json::from_value(slice).unwrap()))
}

#[test]
fn a_forged_slice_is_refused_without_an_event() {
    let published = PublishedSlices { policies: true, nodes: true, namespace: "kube-system".into() };
    let mut tracker = tracker_of("node-1", &[], published);
    let now = Instant::now();
    for (label, value, reason) in [
        ("beeline.dev/policy", "api", RefusalReason::NotOwned),
        ("beeline.dev/nodes", "InternalIP", RefusalReason::WrongNamespace),
    ] {
        let batch = apply(&mut tracker, [WatchUpdate::Upserted(slice(label, value), now)]);
        let reasons: Vec<_> = batch.refusals.iter().map(|refusal| refusal.reason).collect();
        assert_eq!((reasons, tracker.events.len()), (vec![reason], 0));
    }
}

fn mirror_pod(name: &str, created: &str) -> ApiObject {
    let pod = serde_json::json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": name, "creationTimestamp": created,
            "annotations": { "kubernetes.io/config.mirror": "3f0ab1cc3f0ab1cc3f0ab1cc3f0ab1cc" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n" }],
        },
        "spec": { "nodeName": "node-1", "containers": [] },
    });
    ApiObject::Pod(Box::new(serde_json::from_value(pod).unwrap()))
}

#[test]
fn of_two_static_pods_with_the_same_cgroup_the_older_is_served() {
    let (mut tracker, now) = (tracker(), Instant::now());
    let mut changes = |object| {
        let batch = apply(&mut tracker, [WatchUpdate::Upserted(object, now)]);
        let text = |change: &Change| match change {
            Change::Upsert(object) => format!("+{}", object.key().name()),
            Change::Delete(key) => format!("-{}", key.name()),
        };
        batch.changes.iter().map(text).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(changes(mirror_pod("young", "2026-01-02T00:00:00Z")), "+young");
    assert_eq!(changes(mirror_pod("old", "2026-01-01T00:00:00Z")), "-young +old");
    assert_eq!(changes(mirror_pod("young", "2026-01-02T00:00:00Z")), "");
    let refusals = tracker.refusals.all();
    let refusals: Vec<_> = refusals.iter().map(|refusal| (refusal.subject.to_string(), refusal.reason)).collect();
    assert_eq!(refusals, [("Pod default/young".into(), RefusalReason::SameCgroup)]);
}

#[test]
fn no_batch_is_sent_if_nothing_changed() {
    let mut tracker = tracker();
    assert!(tracker.next_batch("s".into()).is_some(), "the first batch");
    tracker.apply(WatchUpdate::ListStarted(ResourceKind::Service), Instant::now());
    assert!(tracker.next_batch("s".into()).is_none());
}
