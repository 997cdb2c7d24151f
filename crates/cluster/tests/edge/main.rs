//! The edge cache of KubeEdge as a source, tested with a stub of the cache.

mod stub;

use beeline_cluster::{
    ChangeBatch, ClusterIdCheck, EdgeCacheSource, EdgeIntervals, ServiceFilter, Snapshot, TrafficCounter,
};
use beeline_model::ServiceName;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stub::EdgeCacheStub;
use tokio::sync::mpsc::{Receiver, channel};

/// Generous, because the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(60);
const FAST: EdgeIntervals = EdgeIntervals {
    relist: Duration::from_secs(2),
    probe: Duration::from_millis(200),
    node: Duration::from_secs(3600),
};
const SLOW: EdgeIntervals = EdgeIntervals { relist: Duration::from_secs(600), ..FAST };
/// No list, probe or Node read is repeated during the test.
const NEVER: EdgeIntervals = EdgeIntervals { probe: Duration::from_secs(600), ..SLOW };

struct TestReceiver {
    batches: Receiver<ChangeBatch>,
    objects: Snapshot,
    last: ChangeBatch,
    change_count: usize,
    traffic: Arc<TrafficCounter>,
    _task: tokio::task::JoinSet<()>,
}

impl TestReceiver {
    async fn start(stub: &EdgeCacheStub, intervals: EdgeIntervals) -> TestReceiver {
        TestReceiver::connect(stub, intervals, ServiceFilter::default(), None).await
    }

    async fn with_check(
        stub: &EdgeCacheStub,
        intervals: EdgeIntervals,
        cluster_id_check: Option<ClusterIdCheck>,
    ) -> TestReceiver {
        TestReceiver::connect(stub, intervals, ServiceFilter::default(), cluster_id_check).await
    }

    async fn with_filter(
        stub: &EdgeCacheStub,
        intervals: EdgeIntervals,
        service_filter: ServiceFilter,
    ) -> TestReceiver {
        TestReceiver::connect(stub, intervals, service_filter, None).await
    }

    async fn connect(
        stub: &EdgeCacheStub,
        intervals: EdgeIntervals,
        service_filter: ServiceFilter,
        cluster_id_check: Option<ClusterIdCheck>,
    ) -> TestReceiver {
        let (server, traffic) = (stub.start().await.parse().unwrap(), Arc::new(TrafficCounter::default()));
        let edge = EdgeCacheSource {
            server,
            cluster: "far".into(),
            node: "edge-1".into(),
            service_filter,
            intervals,
            traffic: traffic.clone(),
            cluster_id_check,
        };
        let (tx, batches) = channel(16);
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move { edge.watch(tx).await.unwrap() });
        TestReceiver {
            batches,
            objects: Snapshot::default(),
            last: ChangeBatch::default(),
            change_count: 0,
            traffic,
            _task: task,
        }
    }

    fn apply(&mut self, batch: ChangeBatch) {
        self.change_count += batch.changes.len();
        for change in batch.changes.clone() {
            self.objects.apply(change);
        }
        self.last = batch;
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&TestReceiver) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            let left =
                TIMEOUT.checked_sub(start.elapsed()).unwrap_or_else(|| panic!("timeout: {what}; {:?}", self.last));
            if let Ok(batch) = tokio::time::timeout(left.min(Duration::from_millis(100)), self.batches.recv()).await {
                self.apply(batch.expect("the source is running"));
            }
        }
    }

    async fn receive_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let Ok(batch) = tokio::time::timeout_at(end.into(), self.batches.recv()).await {
            self.apply(batch.expect("the source is running"));
        }
    }

    fn has(&self, service: &str) -> bool {
        self.objects.services.contains_key(&ServiceName::new("far", "default", service))
    }

    fn endpoints(&self, service: &str) -> Vec<String> {
        let slices = self.objects.slices.values().filter(|slice| slice.service.name() == service);
        slices.flat_map(|slice| slice.endpoints.iter().map(|one| one.address.to_string())).collect()
    }

    fn nodes(&self) -> Vec<&str> {
        self.objects.nodes.values().map(|node| &*node.name).collect()
    }
}

fn service(name: &str, ip: &str, port: &str) -> Value {
    let spec = json!({ "type": "NodePort", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
        "ports": [{ "name": port, "port": 443, "nodePort": 30443, "protocol": "TCP" }] });
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" }, "spec": spec })
}

fn endpoints(name: &str, port: &str, addresses: &[(&str, &str)]) -> Value {
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|(ip, node)| json!({ "ip": ip, "nodeName": node, "targetRef": { "kind": "Pod" } }))
        .collect();
    let subsets = json!([{ "addresses": addresses, "ports": [{ "name": port, "port": 8443, "protocol": "TCP" }] }]);
    json!({ "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": name, "namespace": "default" },
        "subsets": subsets })
}

fn slice(name: &str, port: &str, address: &str) -> Value {
    let labels = json!({ "kubernetes.io/service-name": name });
    json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": format!("{name}-1"), "namespace": "default", "labels": labels }, "addressType": "IPv4",
        "endpoints": [{ "addresses": [address] }], "ports": [{ "name": port, "port": 8443, "protocol": "TCP" }] })
}

fn node(name: &str, ip: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "status": { "addresses": [{ "type": "InternalIP", "address": ip }], "images": [{ "names": ["big"] }] } })
}

/// A Service with a port named https, whose slice KubeEdge rewrites on the way to the edge.
fn fill(stub: &EdgeCacheStub, name: &str, ip: &str, pod: (&str, &str)) {
    stub.put("services", service(name, ip, "https"));
    stub.put("endpoints", endpoints(name, "https", &[pod]));
    stub.put("endpointslices", slice(name, "https", pod.0));
}

fn cloud() -> EdgeCacheStub {
    let stub = EdgeCacheStub::default();
    for (name, ip) in [("edge-1", "192.0.2.1"), ("cloud-1", "192.0.2.11"), ("cloud-2", "192.0.2.12")] {
        stub.put("nodes", node(name, ip));
    }
    fill(&stub, "web", "10.96.0.1", ("10.244.1.2", "cloud-1"));
    fill(&stub, "db", "10.96.0.2", ("10.244.1.3", "cloud-1"));
    stub
}

async fn synced(stub: &EdgeCacheStub, intervals: EdgeIntervals) -> TestReceiver {
    let mut receiver = TestReceiver::start(stub, intervals).await;
    let watched = stub.clone();
    receiver.until("it is synced", |l| l.last.synced && watched.is_watched()).await;
    receiver
}

#[tokio::test]
async fn endpoints_replace_rewritten_slices_and_only_needed_nodes_are_read() {
    let stub = cloud();
    let mut receiver = synced(&stub, SLOW).await;
    assert!(receiver.last.complete && receiver.has("web") && receiver.has("db"));
    assert_eq!(
        (receiver.endpoints("web"), receiver.endpoints("db")),
        (vec!["10.244.1.2".into()], vec!["10.244.1.3".into()])
    );
    assert_eq!(receiver.nodes(), ["cloud-1", "edge-1"], "cloud-2 has no endpoint");
    stub.put("endpoints", endpoints("web", "https", &[("10.244.2.2", "cloud-2")]));
    receiver.until("the other node is read", |l| l.nodes().contains(&"cloud-2")).await;
    assert_eq!(receiver.endpoints("web"), ["10.244.2.2"]);
    stub.delete("endpoints", "default/db");
    receiver.until("cloud-1 is not needed any more", |l| l.nodes() == ["cloud-2", "edge-1"]).await;
    assert!(receiver.endpoints("db").is_empty() && receiver.has("db"));
    let requests = stub.requests();
    let never = |path: &str| !requests.iter().any(|one| one.starts_with(path));
    assert!(never("/api/v1/nodes?") && never("/api/v1/pods") && never("/apis/discovery"), "{requests:#?}");
    assert_eq!(requests.iter().filter(|one| one.starts_with("/api/v1/nodes/cloud-1")).count(), 1, "{requests:#?}");
}

#[tokio::test]
async fn an_empty_list_without_a_version_is_an_error() {
    let stub = cloud();
    stub.cut_link();
    let mut receiver = TestReceiver::start(&stub, FAST).await;
    receiver
        .until("the error is reported", |l| {
            l.last.error.as_deref().is_some_and(|why| why.contains("no resourceVersion"))
        })
        .await;
    assert!(!receiver.last.synced && !receiver.last.complete && receiver.change_count == 0);
    stub.restore_link();
    receiver.until("the cloud answers", |l| l.last.complete && l.last.error.is_none()).await;
    assert!(receiver.has("web") && receiver.has("db"));
    // Without link and database, the last known state stays in effect.
    stub.cut_link();
    stub.clear_all_databases();
    receiver
        .until("the error is reported again", |l| {
            l.last.error.as_deref().is_some_and(|why| why.contains("no resourceVersion"))
        })
        .await;
    receiver.receive_for(Duration::from_secs(3)).await;
    assert!(receiver.has("web") && receiver.has("db") && receiver.last.synced);
    assert_eq!(receiver.endpoints("web"), ["10.244.1.2"]);
}

#[tokio::test]
async fn without_the_link_the_database_is_used_and_counts_as_incomplete() {
    let stub = cloud();
    let mut online = synced(&stub, SLOW).await;
    fill(&stub, "web", "10.96.0.1", ("10.244.1.9", "cloud-1"));
    online.until("a change arrives by the watch", |l| l.endpoints("web") == ["10.244.1.9"]).await;
    drop(online);
    stub.cut_link();
    let mut offline = TestReceiver::start(&stub, FAST).await;
    offline.until("the database answers", |l| l.last.synced).await;
    assert!(!offline.last.complete && offline.last.from_cache, "{:?}", offline.last);
    assert!(offline.has("web") && !offline.has("db"), "the first event of a watch is lost, and a list is not stored");
    assert_eq!((offline.endpoints("web"), offline.nodes()), (vec!["10.244.1.9".into()], vec!["cloud-1", "edge-1"]));
    offline
        .until("the error is reported", |l| l.last.error.as_deref().is_some_and(|why| why.contains("database")))
        .await;
    stub.restore_link();
    offline.until("the cloud's own list", |l| l.last.complete && l.last.error.is_none()).await;
    assert!(offline.has("db") && !offline.last.from_cache);
}

#[tokio::test]
async fn missing_and_outdated_objects_of_the_database_change_nothing() {
    let stub = cloud();
    let mut receiver = synced(&stub, FAST).await;
    stub.put("endpoints", endpoints("web", "https", &[("10.244.1.4", "cloud-1")]));
    receiver.until("the database has it", |l| l.endpoints("web") == ["10.244.1.4"]).await;
    // The change happens without a watch and arrives by a list, which the database does not store.
    stub.cut_link();
    stub.put("endpoints", endpoints("web", "https", &[("10.244.1.5", "cloud-1")]));
    stub.restore_link();
    receiver.until("the list arrives", |l| l.endpoints("web") == ["10.244.1.5"]).await;
    stub.cut_link();
    receiver.until("the link is down", |l| l.last.error.is_some()).await;
    receiver.receive_for(Duration::from_secs(3)).await;
    assert!(receiver.last.from_cache, "the database was listed");
    assert_eq!((receiver.endpoints("web"), receiver.has("db")), (vec!["10.244.1.5".into()], true));
}

#[tokio::test]
async fn everything_is_listed_again_after_an_interruption() {
    let stub = cloud();
    let mut receiver = synced(&stub, SLOW).await;
    stub.cut_link();
    stub.delete("services", "default/db");
    fill(&stub, "new", "10.96.0.3", ("10.244.1.7", "cloud-1"));
    receiver
        .until("the interruption is detected", |l| l.last.error.as_deref().is_some_and(|why| why.contains("cloud")))
        .await;
    assert!(receiver.has("db") && !receiver.has("new") && receiver.last.synced);
    stub.restore_link();
    receiver.until("the missed changes arrive", |l| !l.has("db") && l.has("new") && l.last.error.is_none()).await;
    let watched = stub.clone();
    receiver.until("watched again", |_| watched.is_watched()).await;
    stub.put("endpoints", endpoints("new", "https", &[("10.244.1.8", "cloud-1")]));
    receiver.until("a change after it", |l| l.endpoints("new") == ["10.244.1.8"]).await;
}

#[tokio::test]
async fn a_kind_that_cloudcore_may_not_list_is_reported_and_not_watched() {
    let stub = cloud();
    stub.forbid("endpoints", true);
    let mut receiver = TestReceiver::start(&stub, FAST).await;
    let is_reported =
        |l: &TestReceiver| l.last.error.as_deref().is_some_and(|why| why.contains("deploy/edge/cloudcore.yaml"));
    receiver.until("the error names the next step", is_reported).await;
    assert!(!receiver.last.synced && receiver.last.error.as_deref().unwrap().contains("/api/v1/endpoints"));
    stub.forbid("endpoints", false);
    receiver.until("it is allowed", |l| l.last.complete && l.last.error.is_none()).await;
}

#[tokio::test]
async fn headless_endpoints_are_read_for_dns() {
    let stub = cloud();
    let mut head = endpoints("head", "http", &[("10.244.1.6", "cloud-1")]);
    head["metadata"]["labels"] = json!({ "service.kubernetes.io/headless": "" });
    let mut service = service("head", "None", "http");
    service["spec"]["type"] = json!("ClusterIP");
    stub.put("services", service);
    stub.put("endpoints", head);
    let mut without = TestReceiver::start(&stub, SLOW).await;
    without.until("it is synced", |l| l.last.synced).await;
    assert!(without.endpoints("head").is_empty());
    let service_filter = ServiceFilter { dns_names: true, ..ServiceFilter::default() };
    let mut named = TestReceiver::with_filter(&stub, SLOW, service_filter).await;
    named.until("it is synced", |l| l.last.synced).await;
    assert_eq!(named.endpoints("head"), ["10.244.1.6"]);
}

#[tokio::test]
async fn objects_that_were_deleted_during_an_interruption_do_not_return() {
    let stub = cloud();
    let mut receiver = synced(&stub, FAST).await;
    stub.cut_link();
    stub.delete("services", "default/db");
    stub.delete("endpoints", "default/db");
    receiver.receive_for(Duration::from_secs(2)).await;
    assert!(receiver.has("db"), "the deletion is not known yet");
    stub.restore_link();
    receiver.until("a list from the cloud does not contain it", |l| !l.has("db") && l.endpoints("db").is_empty()).await;
    // The database still contains it, and every watch starts with it.
    let count = receiver.change_count;
    for _ in 0..3 {
        stub.end_watches();
        receiver.receive_for(Duration::from_secs(2)).await;
    }
    assert_eq!((receiver.has("db"), receiver.change_count), (false, count), "repeated events are dropped");
    stub.put("services", service("db", "10.96.0.2", "https"));
    receiver.until("it is created again", |l| l.has("db")).await;
}

#[tokio::test]
async fn a_watch_that_ends_is_opened_again_without_repeated_changes() {
    let stub = cloud();
    let mut receiver = synced(&stub, SLOW).await;
    let count = receiver.change_count;
    stub.end_watches();
    stub.put("services", service("late", "10.96.0.3", "http"));
    receiver.until("changes during the pause arrive", |l| l.has("late")).await;
    assert_eq!(receiver.change_count, count + 1);
    assert!(receiver.has("web"));
}

#[tokio::test]
async fn every_byte_read_is_counted() {
    let stub = cloud();
    let mut receiver = synced(&stub, NEVER).await;
    stub.put("services", service("late", "10.96.0.3", "http"));
    receiver.until("the change arrives", |l| l.has("late")).await;
    receiver.receive_for(Duration::from_millis(500)).await;
    assert_eq!(receiver.traffic.bytes(), stub.bytes());
}

/// Accepts the cluster u1 only.
fn cluster_id_check() -> Option<ClusterIdCheck> {
    Some(ClusterIdCheck::new(|uid| if uid == "u1" { Ok(()) } else { Err(format!("{uid} is another cluster")) }))
}

fn namespace(uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "kube-system", "uid": uid } })
}

#[tokio::test]
async fn a_host_that_is_joined_to_another_cloud_keeps_its_last_known_state() {
    let stub = cloud();
    stub.put("namespaces", namespace("u1"));
    let mut receiver = TestReceiver::with_check(&stub, FAST, cluster_id_check()).await;
    receiver.until("the cluster is accepted", |l| l.last.synced && l.has("web")).await;
    stub.join_other_cloud();
    stub.put("namespaces", namespace("u2"));
    fill(&stub, "other", "10.96.0.1", ("10.244.1.2", "cloud-1"));
    let is_refused = |l: &TestReceiver| l.last.error.as_ref().is_some_and(|why| why.contains("u2 is another cluster"));
    receiver.until("the other cluster is refused", is_refused).await;
    receiver.receive_for(Duration::from_secs(3)).await;
    assert!(receiver.has("web") && !receiver.has("other"));
}

/// The database need not contain the namespace that identifies a cluster.
#[tokio::test]
async fn a_verified_cache_stays_accepted_while_the_link_is_down() {
    let stub = cloud();
    stub.put("namespaces", namespace("u1"));
    let mut receiver = TestReceiver::with_check(&stub, FAST, cluster_id_check()).await;
    receiver.until("the cluster is accepted", |l| l.last.synced && l.has("web") && stub.is_watched()).await;
    stub.cut_link();
    stub.clear_database("namespaces");
    let is_unreachable =
        |l: &TestReceiver| l.last.error.as_deref().is_some_and(|why| why.contains("the cloud cannot be reached"));
    receiver.until("the error is the missing cloud, not the missing identity", is_unreachable).await;
    receiver.receive_for(Duration::from_millis(500)).await;
    assert!(is_unreachable(&receiver) && receiver.has("web"), "{:?}", receiver.last);
}

#[tokio::test]
async fn the_bytes_of_the_cluster_id_check_are_counted() {
    let stub = cloud();
    stub.put("namespaces", namespace("u1"));
    let mut receiver = TestReceiver::with_check(&stub, SLOW, cluster_id_check()).await;
    receiver.until("everything is read", |l| l.last.synced && l.nodes().len() == 2).await;
    receiver.receive_for(Duration::from_millis(500)).await;
    assert_eq!(receiver.traffic.bytes(), stub.bytes());
}

#[tokio::test]
async fn an_unreachable_cache_is_reported_and_the_watch_ends_with_its_receiver() {
    let stub = cloud();
    let server: http::Uri = "http://127.0.0.1:1".parse().unwrap();
    let edge = EdgeCacheSource {
        server,
        cluster: "far".into(),
        node: "edge-1".into(),
        service_filter: ServiceFilter::default(),
        intervals: SLOW,
        traffic: Arc::default(),
        cluster_id_check: None,
    };
    let (tx, mut batches) = channel(16);
    let watch = tokio::spawn(edge.watch(tx));
    let batch = tokio::time::timeout(TIMEOUT, batches.recv()).await.unwrap().unwrap();
    assert!(!batch.synced && batch.error.is_some_and(|why| why.contains("127.0.0.1:1")));
    drop(batches);
    tokio::time::timeout(TIMEOUT, watch).await.expect("the watch ends when the receiver is dropped").unwrap().unwrap();
    drop(stub);
}
