//! KubeEdge's edge cache as a source, on a server that gives its answers.

mod stub;

use beeline_cluster::{Batch, Claim, Edge, Passport, Rhythm, Snapshot, Traffic};
use beeline_model::OwnerName;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stub::Stub;
use tokio::sync::mpsc::{Receiver, channel};

/// A busy machine is no failure.
const PATIENCE: Duration = Duration::from_secs(60);
const FAST: Rhythm =
    Rhythm { list: Duration::from_secs(2), pulse: Duration::from_millis(200), node: Duration::from_secs(3600) };
const SLOW: Rhythm = Rhythm { list: Duration::from_secs(600), ..FAST };
/// Nothing is asked by itself.
const NEVER: Rhythm = Rhythm { pulse: Duration::from_secs(600), ..SLOW };

struct Listener {
    batches: Receiver<Batch>,
    facts: Snapshot,
    last: Batch,
    said: usize,
    traffic: Arc<Traffic>,
    _task: tokio::task::JoinSet<()>,
}

impl Listener {
    async fn to(stub: &Stub, rhythm: Rhythm) -> Listener {
        Listener::begin(stub, rhythm, Claim::default(), None).await
    }

    async fn asking(stub: &Stub, rhythm: Rhythm, passport: Option<Passport>) -> Listener {
        Listener::begin(stub, rhythm, Claim::default(), passport).await
    }

    async fn claiming(stub: &Stub, rhythm: Rhythm, claim: Claim) -> Listener {
        Listener::begin(stub, rhythm, claim, None).await
    }

    async fn begin(stub: &Stub, rhythm: Rhythm, claim: Claim, passport: Option<Passport>) -> Listener {
        let (server, traffic) = (stub.start().await.parse().unwrap(), Arc::new(Traffic::default()));
        let edge = Edge {
            server,
            cluster: "far".into(),
            node: "edge-1".into(),
            claim,
            rhythm,
            traffic: traffic.clone(),
            passport,
        };
        let (tx, batches) = channel(16);
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move { edge.watch(tx).await.unwrap() });
        Listener { batches, facts: Snapshot::default(), last: Batch::default(), said: 0, traffic, _task: task }
    }

    fn take(&mut self, batch: Batch) {
        self.said += batch.facts.len();
        for fact in batch.facts.clone() {
            self.facts.apply(fact);
        }
        self.last = batch;
    }

    async fn until(&mut self, what: &str, so: impl Fn(&Listener) -> bool) {
        let start = Instant::now();
        while !so(self) {
            let left =
                PATIENCE.checked_sub(start.elapsed()).unwrap_or_else(|| panic!("not so: {what}; {:?}", self.last));
            if let Ok(batch) = tokio::time::timeout(left.min(Duration::from_millis(100)), self.batches.recv()).await {
                self.take(batch.expect("the source goes on"));
            }
        }
    }

    async fn listen(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let Ok(batch) = tokio::time::timeout_at(end.into(), self.batches.recv()).await {
            self.take(batch.expect("the source goes on"));
        }
    }

    fn has(&self, service: &str) -> bool {
        self.facts.services.contains_key(&OwnerName::new("far", "default", service))
    }

    fn endpoints(&self, service: &str) -> Vec<String> {
        let slices = self.facts.slices.values().filter(|slice| slice.service.name() == service);
        slices.flat_map(|slice| slice.endpoints.iter().map(|one| one.address.to_string())).collect()
    }

    fn nodes(&self) -> Vec<&str> {
        self.facts.nodes.values().map(|node| &*node.name).collect()
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

/// A Service with a port named https, as most clusters have, with its slice that the way spoils.
fn fill(stub: &Stub, name: &str, ip: &str, pod: (&str, &str)) {
    stub.put("services", service(name, ip, "https"));
    stub.put("endpoints", endpoints(name, "https", &[pod]));
    stub.put("endpointslices", slice(name, "https", pod.0));
}

fn cloud() -> Stub {
    let stub = Stub::default();
    for (name, ip) in [("edge-1", "192.0.2.1"), ("cloud-1", "192.0.2.11"), ("cloud-2", "192.0.2.12")] {
        stub.put("nodes", node(name, ip));
    }
    fill(&stub, "web", "10.96.0.1", ("10.244.1.2", "cloud-1"));
    fill(&stub, "db", "10.96.0.2", ("10.244.1.3", "cloud-1"));
    stub
}

async fn synced(stub: &Stub, rhythm: Rhythm) -> Listener {
    let mut listener = Listener::to(stub, rhythm).await;
    let watched = stub.clone();
    listener.until("it is synced", |l| l.last.synced && watched.is_watched()).await;
    listener
}

#[tokio::test]
async fn endpoints_serve_where_slices_are_spoilt_and_only_named_nodes_are_read() {
    let stub = cloud();
    let mut listener = synced(&stub, SLOW).await;
    assert!(listener.last.whole && listener.has("web") && listener.has("db"));
    assert_eq!(
        (listener.endpoints("web"), listener.endpoints("db")),
        (vec!["10.244.1.2".into()], vec!["10.244.1.3".into()])
    );
    assert_eq!(listener.nodes(), ["cloud-1", "edge-1"], "cloud-2 has no endpoint");
    stub.put("endpoints", endpoints("web", "https", &[("10.244.2.2", "cloud-2")]));
    listener.until("the other node is read", |l| l.nodes().contains(&"cloud-2")).await;
    assert_eq!(listener.endpoints("web"), ["10.244.2.2"]);
    stub.delete("endpoints", "default/db");
    listener.until("nobody names cloud-1 any more", |l| l.nodes() == ["cloud-2", "edge-1"]).await;
    assert!(listener.endpoints("db").is_empty() && listener.has("db"));
    let asked = stub.asked();
    let never = |path: &str| !asked.iter().any(|one| one.starts_with(path));
    assert!(never("/api/v1/nodes?") && never("/api/v1/pods") && never("/apis/discovery"), "{asked:#?}");
    assert_eq!(asked.iter().filter(|one| one.starts_with("/api/v1/nodes/cloud-1")).count(), 1, "{asked:#?}");
}

#[tokio::test]
async fn an_empty_list_without_a_version_is_no_answer() {
    let stub = cloud();
    stub.cut(true);
    let mut listener = Listener::to(&stub, FAST).await;
    listener.until("it says so", |l| l.last.error.as_deref().is_some_and(|why| why.contains("no answer"))).await;
    assert!(!listener.last.synced && !listener.last.whole && listener.said == 0);
    stub.cut(false);
    listener.until("the cloud answers", |l| l.last.whole && l.last.error.is_none()).await;
    assert!(listener.has("web") && listener.has("db"));
    // Offline, and the database gone with it: nothing that was known goes.
    stub.cut(true);
    stub.wipe();
    listener.until("it says so again", |l| l.last.error.as_deref().is_some_and(|why| why.contains("no answer"))).await;
    listener.listen(Duration::from_secs(3)).await;
    assert!(listener.has("web") && listener.has("db") && listener.last.synced);
    assert_eq!(listener.endpoints("web"), ["10.244.1.2"]);
}

#[tokio::test]
async fn offline_the_database_serves_and_is_not_the_whole_truth() {
    let stub = cloud();
    let mut online = synced(&stub, SLOW).await;
    fill(&stub, "web", "10.96.0.1", ("10.244.1.9", "cloud-1"));
    online.until("a change, which comes by the watch", |l| l.endpoints("web") == ["10.244.1.9"]).await;
    drop(online);
    stub.cut(true);
    let mut offline = Listener::to(&stub, FAST).await;
    offline.until("the database answers", |l| l.last.synced).await;
    assert!(!offline.last.whole && offline.last.second_hand, "{:?}", offline.last);
    assert!(offline.has("web") && !offline.has("db"), "the first word of a watch is lost, and a list is not kept");
    assert_eq!((offline.endpoints("web"), offline.nodes()), (vec!["10.244.1.9".into()], vec!["cloud-1", "edge-1"]));
    offline.until("it says so", |l| l.last.error.as_deref().is_some_and(|why| why.contains("database"))).await;
    stub.cut(false);
    offline.until("the cloud's own list", |l| l.last.whole && l.last.error.is_none()).await;
    assert!(offline.has("db") && !offline.last.second_hand);
}

#[tokio::test]
async fn what_the_database_lacks_or_has_of_old_changes_nothing() {
    let stub = cloud();
    let mut listener = synced(&stub, FAST).await;
    stub.put("endpoints", endpoints("web", "https", &[("10.244.1.4", "cloud-1")]));
    listener.until("the database has it", |l| l.endpoints("web") == ["10.244.1.4"]).await;
    // Changed while nobody watches, and heard by a list, which the database does not keep.
    stub.cut(true);
    stub.put("endpoints", endpoints("web", "https", &[("10.244.1.5", "cloud-1")]));
    stub.cut(false);
    listener.until("the list", |l| l.endpoints("web") == ["10.244.1.5"]).await;
    stub.cut(true);
    listener.until("cut off", |l| l.last.error.is_some()).await;
    listener.listen(Duration::from_secs(3)).await;
    assert!(listener.last.second_hand, "the database was listed");
    assert_eq!((listener.endpoints("web"), listener.has("db")), (vec!["10.244.1.5".into()], true));
}

#[tokio::test]
async fn after_a_cut_everything_is_asked_again() {
    let stub = cloud();
    let mut listener = synced(&stub, SLOW).await;
    stub.cut(true);
    stub.delete("services", "default/db");
    fill(&stub, "new", "10.96.0.3", ("10.244.1.7", "cloud-1"));
    listener.until("the cut is noticed", |l| l.last.error.as_deref().is_some_and(|why| why.contains("cloud"))).await;
    assert!(listener.has("db") && !listener.has("new") && listener.last.synced);
    stub.cut(false);
    listener.until("what was missed", |l| !l.has("db") && l.has("new") && l.last.error.is_none()).await;
    let watched = stub.clone();
    listener.until("watched anew", |_| watched.is_watched()).await;
    stub.put("endpoints", endpoints("new", "https", &[("10.244.1.8", "cloud-1")]));
    listener.until("a change after it", |l| l.endpoints("new") == ["10.244.1.8"]).await;
}

#[tokio::test]
async fn what_cloudcore_may_not_list_is_told_and_not_watched() {
    let stub = cloud();
    stub.withhold("endpoints", true);
    let mut listener = Listener::to(&stub, FAST).await;
    let told = |l: &Listener| l.last.error.as_deref().is_some_and(|why| why.contains("deploy/edge/cloudcore.yaml"));
    listener.until("it says what to do", told).await;
    assert!(!listener.last.synced && listener.last.error.as_deref().unwrap().contains("/api/v1/endpoints"));
    stub.withhold("endpoints", false);
    listener.until("it is allowed", |l| l.last.whole && l.last.error.is_none()).await;
}

#[tokio::test]
async fn where_names_are_answered_headless_endpoints_are_read() {
    let stub = cloud();
    let mut head = endpoints("head", "http", &[("10.244.1.6", "cloud-1")]);
    head["metadata"]["labels"] = json!({ "service.kubernetes.io/headless": "" });
    let mut service = service("head", "None", "http");
    service["spec"]["type"] = json!("ClusterIP");
    stub.put("services", service);
    stub.put("endpoints", head);
    let mut without = Listener::to(&stub, SLOW).await;
    without.until("it is synced", |l| l.last.synced).await;
    assert!(without.endpoints("head").is_empty());
    let claim = Claim { names: true, ..Claim::default() };
    let mut named = Listener::claiming(&stub, SLOW, claim).await;
    named.until("it is synced", |l| l.last.synced).await;
    assert_eq!(named.endpoints("head"), ["10.244.1.6"]);
}

#[tokio::test]
async fn what_was_deleted_while_the_link_was_down_does_not_rise_again() {
    let stub = cloud();
    let mut listener = synced(&stub, FAST).await;
    stub.cut(true);
    stub.delete("services", "default/db");
    stub.delete("endpoints", "default/db");
    listener.listen(Duration::from_secs(2)).await;
    assert!(listener.has("db"), "nobody has said so yet");
    stub.cut(false);
    listener.until("a list of the cloud does not name it", |l| !l.has("db") && l.endpoints("db").is_empty()).await;
    // The database still has it, and every watch begins with it.
    let said = listener.said;
    for _ in 0..3 {
        stub.hang_up();
        listener.listen(Duration::from_secs(2)).await;
    }
    assert_eq!((listener.has("db"), listener.said), (false, said), "repetitions are no news");
    stub.put("services", service("db", "10.96.0.2", "https"));
    listener.until("it is made anew", |l| l.has("db")).await;
}

#[tokio::test]
async fn a_watch_that_ends_is_opened_anew_and_repeats_nothing() {
    let stub = cloud();
    let mut listener = synced(&stub, SLOW).await;
    let said = listener.said;
    stub.hang_up();
    stub.put("services", service("late", "10.96.0.3", "http"));
    listener.until("what came meanwhile is heard", |l| l.has("late")).await;
    assert_eq!(listener.said, said + 1);
    assert!(listener.has("web"));
}

#[tokio::test]
async fn every_byte_is_counted() {
    let stub = cloud();
    let mut listener = synced(&stub, NEVER).await;
    stub.put("services", service("late", "10.96.0.3", "http"));
    listener.until("it is heard", |l| l.has("late")).await;
    listener.listen(Duration::from_millis(500)).await;
    assert_eq!(listener.traffic.bytes(), stub.bytes());
}

/// Of the one cluster that is believed.
fn passport() -> Option<Passport> {
    Some(Passport::new(|uid| if uid == "u1" { Ok(()) } else { Err(format!("{uid} is a stranger")) }))
}

fn namespace(uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "kube-system", "uid": uid } })
}

#[tokio::test]
async fn a_host_that_is_joined_to_another_cloud_keeps_what_it_had() {
    let stub = cloud();
    stub.put("namespaces", namespace("u1"));
    let mut listener = Listener::asking(&stub, FAST, passport()).await;
    listener.until("it is believed", |l| l.last.synced && l.has("web")).await;
    stub.rejoin();
    stub.put("namespaces", namespace("u2"));
    fill(&stub, "other", "10.96.0.1", ("10.244.1.2", "cloud-1"));
    let stranger = |l: &Listener| l.last.error.as_ref().is_some_and(|why| why.contains("u2 is a stranger"));
    listener.until("it is not believed", stranger).await;
    listener.listen(Duration::from_secs(3)).await;
    assert!(listener.has("web") && !listener.has("other"));
}

/// Its database need not hold the namespace by which a cluster is known.
#[tokio::test]
async fn a_cache_that_was_believed_once_is_believed_while_the_link_is_down() {
    let stub = cloud();
    stub.put("namespaces", namespace("u1"));
    let mut listener = Listener::asking(&stub, FAST, passport()).await;
    listener.until("it is believed", |l| l.last.synced && l.has("web") && stub.is_watched()).await;
    stub.cut(true);
    stub.forget("namespaces");
    let away = |l: &Listener| l.last.error.as_deref().is_some_and(|why| why.contains("the cloud cannot be reached"));
    listener.until("it is the cloud that is missed, not the cluster's name", away).await;
    listener.listen(Duration::from_millis(500)).await;
    assert!(away(&listener) && listener.has("web"), "{:?}", listener.last);
}

#[tokio::test]
async fn what_it_takes_to_know_whose_it_is_is_counted() {
    let stub = cloud();
    stub.put("namespaces", namespace("u1"));
    let mut listener = Listener::asking(&stub, SLOW, passport()).await;
    listener.until("all is read", |l| l.last.synced && l.nodes().len() == 2).await;
    listener.listen(Duration::from_millis(500)).await;
    assert_eq!(listener.traffic.bytes(), stub.bytes());
}

#[tokio::test]
async fn a_cache_that_is_not_there_is_an_error_that_ends() {
    let stub = cloud();
    let server: http::Uri = "http://127.0.0.1:1".parse().unwrap();
    let edge = Edge {
        server,
        cluster: "far".into(),
        node: "edge-1".into(),
        claim: Claim::default(),
        rhythm: SLOW,
        traffic: Arc::default(),
        passport: None,
    };
    let (tx, mut batches) = channel(16);
    let watch = tokio::spawn(edge.watch(tx));
    let batch = tokio::time::timeout(PATIENCE, batches.recv()).await.unwrap().unwrap();
    assert!(!batch.synced && batch.error.is_some_and(|why| why.contains("127.0.0.1:1")));
    drop(batches);
    tokio::time::timeout(PATIENCE, watch).await.expect("it ends when nobody listens").unwrap().unwrap();
    drop(stub);
}
