//! Policies on the real API server: what it takes, what it gives back, what it refuses and with which words; and an agent
//! that follows them, also where nobody has installed them yet.

use crate::cluster::{Cluster, PATIENCE, with_cluster};
use crate::listener::Listener;
use beeline_cluster::policy::definitions;
use beeline_model::policy::{Matcher, Policy, PortChoice, RedirectMode, Target};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api_server/policy"))
}

fn good() -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join("good.yaml")).unwrap();
    text.split("\n---\n").skip(1).map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

pub fn good_one(name: &str) -> Value {
    good().into_iter().find(|object| object["metadata"]["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

pub fn path_of(object: &Value) -> String {
    let plural = match object["kind"].as_str().unwrap() {
        "LocalRedirectPolicy" => "localredirectpolicies",
        "BalancingPolicy" => "balancingpolicies",
        other => panic!("{other} is no policy"),
    };
    format!("/apis/beeline.dev/v1alpha1/namespaces/default/{plural}")
}

/// As `kubectl` asks: unknown fields are an error.
fn strictly(object: &Value) -> String {
    format!("{}?fieldValidation=Strict", path_of(object))
}

pub async fn install(cluster: &Cluster<'_>, definitions: &[Value]) {
    for definition in definitions {
        cluster.create(DEFINITIONS, definition.clone()).await;
        let path = format!("{DEFINITIONS}/{}", definition["metadata"]["name"].as_str().unwrap());
        let start = Instant::now();
        while !is_established(&cluster.get(&path).await) {
            assert!(start.elapsed() < PATIENCE, "{path} is not established");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

/// A definition that was just established answers 404 for a moment more.
async fn create(cluster: &Cluster<'_>, object: &Value) -> Value {
    let start = Instant::now();
    loop {
        match cluster.request("POST", &strictly(object), object).await {
            Ok(created) => return created,
            Err(kube::Error::Api(status)) if status.code == 404 && start.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{object}: {error}"),
        }
    }
}

/// RFC 7386.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return *target = patch.clone() };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

#[test]
fn the_api_server_takes_good_policies_and_refuses_bad_ones() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster, &definitions()).await;
        good_ones_come_back_with_defaults(cluster).await;
        the_list_shows_what_people_look_for(cluster).await;
        bad_ones_are_refused(cluster).await;
        one_has_so_many_backends_at_most(cluster).await;
        a_status_has_a_place_of_its_own(cluster).await;
    });
}

async fn good_ones_come_back_with_defaults(cluster: &Cluster<'_>) {
    for object in good() {
        create(cluster, &object).await;
    }
    let spec = async |name: &str| {
        let object = good_one(name);
        cluster.get(&format!("{}/{name}", path_of(&object))).await["spec"].clone()
    };
    let all_ports = spec("all-ports").await;
    assert_eq!(all_ports["config"], json!({ "enableOutCluster": true }));
    assert_eq!(all_ports["backend"]["toPorts"], json!([{ "port": 8080, "protocol": "TCP" }]));
    assert_eq!(spec("dns").await["config"]["enableOutCluster"], json!(true), "beside other fields");
    let api = spec("api").await;
    assert_eq!(api["backend"]["serviceEndpoint"]["redirectMode"], "podEndpoint");
    assert_eq!(api["backend"]["serviceEndpoint"]["namespaceSelector"], json!({}), "all namespaces, not none");
    assert_eq!(spec("host").await["config"]["enableOutCluster"], json!(false), "what is written stays");
    assert_eq!(spec("database").await["frontend"]["addressMatcher"]["toPorts"][0]["protocol"], "TCP");
}

/// What `kubectl get lrp,blp` asks for.
async fn the_list_shows_what_people_look_for(cluster: &Cluster<'_>) {
    let table = async |plural: &str| {
        let path = format!("/apis/beeline.dev/v1alpha1/namespaces/default/{plural}");
        let request = http::Request::get(path).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        let table: Value = cluster.client().await.request(request.body(Vec::new()).unwrap()).await.unwrap();
        table
    };
    let redirects = table("localredirectpolicies").await;
    let columns: Vec<&str> =
        redirects["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Name", "Frontend", "Mode", "Backends", "Nodes", "Accepted", "Programmed", "Age"]);
    let frontends = |table: &Value| -> Vec<String> {
        let rows = table["rows"].as_array().unwrap().iter();
        rows.map(|row| format!("{} {}", row["cells"][0].as_str().unwrap(), row["cells"][1].as_str().unwrap())).collect()
    };
    assert_eq!(frontends(&redirects), ["all-ports web", "dns kube-dns", "virtual 169.254.20.10"]);
    let balancing = table("balancingpolicies").await;
    assert_eq!(frontends(&balancing), ["api fd00:bee::90", "database 169.254.0.90", "host web"]);
}

/// `BLESS=1` writes bad.txt anew: read every line of it before it is committed.
async fn bad_ones_are_refused(cluster: &Cluster<'_>) {
    let text = std::fs::read_to_string(folder().join("bad.yaml")).unwrap();
    let cases: Vec<Value> = serde_saphyr::from_str(&text).unwrap();
    assert!(cases.len() >= 40, "{}", cases.len());
    let mut said = String::new();
    for case in &cases {
        let mut object = good_one(case["of"].as_str().unwrap());
        object["metadata"]["name"] = json!("bad");
        merge(&mut object, &case["patch"]);
        let name = case["case"].as_str().unwrap();
        let refused = match cluster.request("POST", &strictly(&object), &object).await {
            Err(kube::Error::Api(status)) => status,
            other => panic!("{name} is not refused: {other:?}"),
        };
        writeln!(said, "{name}").unwrap();
        shown(&refused).iter().for_each(|line| writeln!(said, "    {line}").unwrap());
    }
    let file = folder().join("bad.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &said).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    for (line, expected) in said.lines().zip(expected.lines()) {
        assert_eq!(line, expected, "as bad.txt has it");
    }
    assert_eq!(said.lines().count(), expected.lines().count(), "bad.txt has as many cases");
}

async fn one_has_so_many_backends_at_most(cluster: &Cluster<'_>) {
    for (addresses, ports, is_taken) in [(64, 64, true), (65, 64, false), (257, 1, false)] {
        let ports: Vec<Value> = (1..=ports).map(|n| json!({ "name": format!("p{n}"), "port": n })).collect();
        let addresses: Vec<String> = (0..addresses).map(|n| format!("10.0.{}.{}", n / 250, n % 250 + 1)).collect();
        let mut object = good_one("database");
        object["metadata"]["name"] = json!("many");
        object["spec"]["frontend"]["addressMatcher"]["toPorts"] = json!(ports);
        object["spec"]["backend"]["addressEndpoint"] = json!({ "addresses": addresses, "toPorts": ports });
        match cluster.request("POST", &strictly(&object), &object).await {
            Ok(_) => assert!(is_taken, "{} addresses", addresses.len()),
            Err(error) => {
                let said = error.to_string();
                assert!(!is_taken && (said.contains("4096 at most") || said.contains("256")), "{said}");
            }
        }
    }
    cluster.delete(&format!("{}/many", path_of(&good_one("database")))).await;
}

/// As `kubectl` shows it: a line for each cause. The server has them in no order.
fn shown(status: &kube::core::Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut lines: Vec<String> = causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    lines.sort();
    if lines.is_empty() { vec![status.message.clone()] } else { lines }
}

async fn a_status_has_a_place_of_its_own(cluster: &Cluster<'_>) {
    let path = format!("{}/dns", path_of(&good_one("dns")));
    let condition = json!({
        "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({
        "observedGeneration": 1, "conditions": [condition], "nodes": { "programmed": 2, "wanted": 3, "text": "2/3" },
        "backends": 2, "mode": "local",
    });
    cluster.patch(&path, json!({ "status": status })).await;
    assert_eq!(cluster.get(&path).await["status"], Value::Null, "not by the way of the spec");
    cluster.patch(&format!("{path}/status"), json!({ "status": status })).await;
    let now = cluster.get(&path).await;
    assert_eq!((&now["status"], &now["metadata"]["generation"]), (&status, &json!(1)));
    let long = json!({ "status": { "conditions": [{
        "type": "Accepted", "status": "True", "reason": "Accepted", "message": "x".repeat(32_769),
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } });
    let refused = cluster.request("PATCH", &format!("{path}/status"), &long).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("32768")), "a message has its bound");
}

fn policy<'a>(listener: &'a Listener, name: &str) -> Option<&'a Policy> {
    listener.said.policies.values().find(|policy| &*policy.name.name == name)
}

/// The definitions come after the agent, go, and come again.
#[test]
fn an_agent_follows_policies_when_they_are_installed() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_service("web", "10.96.1.1").await;
        let mut listener = cluster.listen();
        listener.until_synced().await;
        assert!(listener.has_service("web") && listener.said.policies.is_empty());
        install(cluster, &definitions()).await;
        for object in good() {
            create(cluster, &object).await;
        }
        listener.until("all policies are known", |l| l.said.policies.len() == good().len()).await;
        assert!(listener.last.error.is_none() && listener.said.refusals.is_empty(), "{:?}", listener.last);
        they_mean_what_was_written(&listener);
        they_change_and_go(cluster, &mut listener).await;
        an_agent_that_starts_later(cluster).await;
        let path = format!("{DEFINITIONS}/localredirectpolicies.beeline.dev");
        cluster.delete(&path).await;
        let redirects =
            |l: &Listener| l.said.policies.keys().filter(|name| name.to_string().starts_with("Local")).count();
        listener.until("with the definition go its policies", |l| redirects(l) == 0).await;
        assert!(listener.has_service("web") && listener.last.synced);
    });
}

fn they_mean_what_was_written(listener: &Listener) {
    let dns = policy(listener, "dns").unwrap();
    assert!(!dns.uid.is_empty() && dns.generation == 1 && dns.created > 1_500_000_000, "{dns:?}");
    assert_eq!(dns.limit.map(|limit| (limit.connects_per_second, limit.burst)), Some((500, 1000)));
    let Matcher::Service { name, ports: Some(ports) } = &dns.matcher else { panic!("{dns:?}") };
    assert_eq!((&**name, ports.len(), &*ports[1].name), ("kube-dns", 2, "dns-tcp"));
    let Target::LocalPods { ports, .. } = &dns.target else { panic!("{dns:?}") };
    assert_eq!(ports[1].port, PortChoice::Name("dns-tcp".into()));
    let virtual_one = policy(listener, "virtual").unwrap();
    assert_eq!(virtual_one.limit.map(|limit| limit.burst), Some(5), "without a burst: one second's");
    let Matcher::Address { ports, .. } = &virtual_one.matcher else { panic!("{virtual_one:?}") };
    assert_eq!(&*ports[0].name, "dns", "of a single pair both have the name");
    let Target::Pods { mode, namespaces, .. } = &policy(listener, "api").unwrap().target else { panic!() };
    assert_eq!((*mode, namespaces.is_some()), (RedirectMode::PodEndpoint, true));
}

async fn they_change_and_go(cluster: &Cluster<'_>, listener: &mut Listener) {
    let object = good_one("dns");
    let path = format!("{}/dns", path_of(&object));
    let uid = policy(listener, "dns").unwrap().uid.clone();
    cluster.patch(&path, json!({ "spec": { "config": { "limit": null } } })).await;
    listener.until("the limit goes", |l| policy(l, "dns").is_some_and(|dns| dns.limit.is_none())).await;
    assert_eq!(policy(listener, "dns").unwrap().generation, 2);
    cluster.delete(&path).await;
    listener.until("it goes", |l| policy(l, "dns").is_none()).await;
    create(cluster, &object).await;
    listener.until("it is there again, as another one", |l| policy(l, "dns").is_some_and(|dns| dns.uid != uid)).await;
    let changes = listener.changes;
    let status = json!({ "status": { "backends": 7 } });
    cluster.patch(&format!("{path}/status"), status).await;
    cluster.create_service("after", "10.96.1.9").await;
    listener.until("what comes after it is heard", |l| l.has_service("after")).await;
    assert_eq!(listener.changes, changes + 1, "a status changes nothing for an agent");
}

async fn an_agent_that_starts_later(cluster: &Cluster<'_>) {
    let mut listener = cluster.listen();
    listener.until_synced().await;
    assert_eq!(listener.said.policies.len(), good().len(), "synced is with the policies, where there are any");
}

/// Definitions of another make: anything goes in. What the agent cannot mean it refuses, and takes the rest.
#[test]
fn an_agent_trusts_no_policy() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        install(cluster, &definitions().map(lax)).await;
        create(cluster, &good_one("dns")).await;
        let bad = |name: &str, patch: Value| {
            let mut object = good_one("dns");
            object["metadata"]["name"] = json!(name);
            merge(&mut object, &patch);
            object
        };
        create(cluster, &bad("untyped", json!({ "spec": { "backend": { "toPorts": 53 } } }))).await;
        create(cluster, &bad("unpaired", json!({ "spec": { "backend": { "toPorts": [{ "port": 53 }] } } }))).await;
        let mut listener = cluster.listen();
        listener.until("two are refused", |l| l.said.refusals.len() == 2).await;
        listener.until_synced().await;
        assert_eq!(listener.said.policies.len(), 1);
        let said: Vec<(&str, &str)> =
            listener.said.refusals.iter().map(|refusal| (refusal.subject.as_str(), refusal.reason)).collect();
        let both = ["LocalRedirectPolicy default/unpaired", "LocalRedirectPolicy default/untyped"];
        assert_eq!(said, [(both[0], "unpairedPort"), (both[1], "wrongType")]);
        for name in ["untyped", "unpaired"] {
            an_event_tells(cluster, name).await;
        }
    });
}

fn lax(mut definition: Value) -> Value {
    let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    definition["spec"]["versions"][0]["schema"] = schema;
    definition
}

async fn an_event_tells(cluster: &Cluster<'_>, name: &str) {
    let path = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}");
    let start = Instant::now();
    loop {
        let events = cluster.get(&path).await;
        if let Some(event) = events["items"].as_array().and_then(|all| all.first()) {
            let object = &event["involvedObject"];
            assert_eq!(
                (&object["kind"], &object["apiVersion"]),
                (&json!("LocalRedirectPolicy"), &json!("beeline.dev/v1alpha1"))
            );
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no Event about {name}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
