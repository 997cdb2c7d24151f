//! Policies on a real API server: defaults, validation with its messages, printed columns and status; and a source that
//! follows policies, also if their definitions are installed later.

use crate::cluster::{Cluster, TIMEOUT, with_cluster};
use crate::source_reader::SourceReader;
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

fn valid_policies() -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join("good.yaml")).unwrap();
    text.split("\n---\n").skip(1).map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

pub fn valid_policy(name: &str) -> Value {
    valid_policies()
        .into_iter()
        .find(|object| object["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("good.yaml has no policy {name}"))
}

pub fn path_of(object: &Value) -> String {
    let plural = match object["kind"].as_str().unwrap() {
        "LocalRedirectPolicy" => "localredirectpolicies",
        "BalancingPolicy" => "balancingpolicies",
        other => panic!("{other} is not a policy"),
    };
    format!("/apis/beeline.dev/v1alpha1/namespaces/default/{plural}")
}

/// The path for a request with strict validation, as `kubectl` sends it: unknown fields are an error.
fn strict_path(object: &Value) -> String {
    format!("{}?fieldValidation=Strict", path_of(object))
}

pub async fn install(cluster: &Cluster<'_>, definitions: &[Value]) {
    for definition in definitions {
        cluster.create(DEFINITIONS, definition.clone()).await;
        let path = format!("{DEFINITIONS}/{}", definition["metadata"]["name"].as_str().unwrap());
        let start = Instant::now();
        while !is_established(&cluster.get(&path).await) {
            assert!(start.elapsed() < TIMEOUT, "{path} is not established");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

/// Creates an object. A definition that was just established may return 404 for a short time.
async fn create(cluster: &Cluster<'_>, object: &Value) -> Value {
    let start = Instant::now();
    loop {
        match cluster.request("POST", &strict_path(object), object).await {
            Ok(created) => return created,
            Err(kube::Error::Api(status)) if status.code == 404 && start.elapsed() < TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{object}: {error}"),
        }
    }
}

/// JSON merge patch (RFC 7386).
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
fn the_api_server_accepts_valid_policies_and_refuses_invalid_ones() {
    with_cluster(async |cluster: &mut Cluster| {
        install(cluster, &definitions()).await;
        defaults_are_set(cluster).await;
        printed_columns_are_useful(cluster).await;
        invalid_policies_are_refused(cluster).await;
        the_number_of_backends_is_limited(cluster).await;
        status_is_a_subresource(cluster).await;
    });
}

async fn defaults_are_set(cluster: &Cluster<'_>) {
    for object in valid_policies() {
        create(cluster, &object).await;
    }
    let spec = async |name: &str| {
        let object = valid_policy(name);
        cluster.get(&format!("{}/{name}", path_of(&object))).await["spec"].clone()
    };
    let all_ports = spec("all-ports").await;
    assert_eq!(all_ports["config"], json!({ "enableOutCluster": true }));
    assert_eq!(all_ports["backend"]["toPorts"], json!([{ "port": 8080, "protocol": "TCP" }]));
    assert_eq!(spec("dns").await["config"]["enableOutCluster"], json!(true), "also with other fields set");
    let api = spec("api").await;
    assert_eq!(api["backend"]["serviceEndpoint"]["redirectMode"], "podEndpoint");
    assert_eq!(
        api["backend"]["serviceEndpoint"]["namespaceSelector"],
        json!({}),
        "an empty selector means all namespaces"
    );
    assert_eq!(spec("host").await["config"]["enableOutCluster"], json!(false), "a given value is kept");
    assert_eq!(spec("database").await["frontend"]["addressMatcher"]["toPorts"][0]["protocol"], "TCP");
}

/// The columns of `kubectl get lrp,blp`.
async fn printed_columns_are_useful(cluster: &Cluster<'_>) {
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

/// `BLESS=1` rewrites bad.txt; read every changed line before you commit it.
async fn invalid_policies_are_refused(cluster: &Cluster<'_>) {
    let text = std::fs::read_to_string(folder().join("bad.yaml")).unwrap();
    let cases: Vec<Value> = serde_saphyr::from_str(&text).unwrap();
    assert!(cases.len() >= 40, "{}", cases.len());
    let mut message = String::new();
    for case in &cases {
        let mut object = valid_policy(case["of"].as_str().unwrap());
        object["metadata"]["name"] = json!("bad");
        merge(&mut object, &case["patch"]);
        let name = case["case"].as_str().unwrap();
        let refused = match cluster.request("POST", &strict_path(&object), &object).await {
            Err(kube::Error::Api(status)) => status,
            other => panic!("{name} is not refused: {other:?}"),
        };
        writeln!(message, "{name}").unwrap();
        causes_of(&refused).iter().for_each(|line| writeln!(message, "    {line}").unwrap());
    }
    let file = folder().join("bad.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &message).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    for (line, expected) in message.lines().zip(expected.lines()) {
        assert_eq!(line, expected, "differs from bad.txt");
    }
    assert_eq!(message.lines().count(), expected.lines().count(), "bad.txt has another number of lines");
}

async fn the_number_of_backends_is_limited(cluster: &Cluster<'_>) {
    for (addresses, ports, is_accepted) in [(64, 64, true), (65, 64, false), (257, 1, false)] {
        let ports: Vec<Value> = (1..=ports).map(|n| json!({ "name": format!("p{n}"), "port": n })).collect();
        let addresses: Vec<String> = (0..addresses).map(|n| format!("10.0.{}.{}", n / 250, n % 250 + 1)).collect();
        let mut object = valid_policy("database");
        object["metadata"]["name"] = json!("many");
        object["spec"]["frontend"]["addressMatcher"]["toPorts"] = json!(ports);
        object["spec"]["backend"]["addressEndpoint"] = json!({ "addresses": addresses, "toPorts": ports });
        match cluster.request("POST", &strict_path(&object), &object).await {
            Ok(_) => assert!(is_accepted, "{} addresses", addresses.len()),
            Err(error) => {
                let message = error.to_string();
                assert!(!is_accepted && (message.contains("at most 4096") || message.contains("256")), "{message}");
            }
        }
    }
    cluster.delete(&format!("{}/many", path_of(&valid_policy("database")))).await;
}

/// The causes of a failure, as `kubectl` prints them. The server returns them in no order.
fn causes_of(status: &kube::core::Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut lines: Vec<String> = causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    lines.sort();
    if lines.is_empty() { vec![status.message.clone()] } else { lines }
}

async fn status_is_a_subresource(cluster: &Cluster<'_>) {
    let path = format!("{}/dns", path_of(&valid_policy("dns")));
    let condition = json!({
        "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({
        "observedGeneration": 1, "conditions": [condition], "nodes": { "programmed": 2, "wanted": 3, "text": "2/3" },
        "backends": 2, "mode": "local",
    });
    cluster.patch(&path, json!({ "status": status })).await;
    assert_eq!(cluster.get(&path).await["status"], Value::Null, "an update of the object does not change its status");
    cluster.patch(&format!("{path}/status"), json!({ "status": status })).await;
    let now = cluster.get(&path).await;
    assert_eq!((&now["status"], &now["metadata"]["generation"]), (&status, &json!(1)));
    let long = json!({ "status": { "conditions": [{
        "type": "Accepted", "status": "True", "reason": "Accepted", "message": "x".repeat(32_769),
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } });
    let refused = cluster.request("PATCH", &format!("{path}/status"), &long).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("32768")), "the length of a message is limited");
}

fn policy<'a>(reader: &'a SourceReader, name: &str) -> Option<&'a Policy> {
    reader.state.policies.values().find(|policy| &*policy.name.name == name)
}

/// The definitions are installed after the start of the source, and one is deleted.
#[test]
fn policies_are_followed_once_their_definitions_are_installed() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_service("web", "10.96.1.1").await;
        let mut reader = cluster.start_reader();
        reader.wait_until_synced().await;
        assert!(reader.has_service("web") && reader.state.policies.is_empty());
        install(cluster, &definitions()).await;
        for object in valid_policies() {
            create(cluster, &object).await;
        }
        reader.wait_until("all policies are read", |r| r.state.policies.len() == valid_policies().len()).await;
        assert!(reader.last.error.is_none() && reader.state.refusals.is_empty(), "{:?}", reader.last);
        policies_are_converted(&reader);
        policy_changes_are_followed(cluster, &mut reader).await;
        a_new_source_has_the_policies_when_synced(cluster).await;
        let path = format!("{DEFINITIONS}/localredirectpolicies.beeline.dev");
        cluster.delete(&path).await;
        let redirects =
            |r: &SourceReader| r.state.policies.keys().filter(|name| name.to_string().starts_with("Local")).count();
        reader.wait_until("the policies are removed with their definition", |r| redirects(r) == 0).await;
        assert!(reader.has_service("web") && reader.last.synced);
    });
}

fn policies_are_converted(reader: &SourceReader) {
    let dns = policy(reader, "dns").unwrap();
    assert!(!dns.uid.is_empty() && dns.generation == 1 && dns.created > 1_500_000_000, "{dns:?}");
    assert_eq!(dns.limit.map(|limit| (limit.connects_per_second, limit.burst)), Some((500, 1000)));
    let Matcher::Service { name, ports: Some(ports) } = &dns.matcher else { panic!("{dns:?}") };
    assert_eq!((&**name, ports.len(), &*ports[1].name), ("kube-dns", 2, "dns-tcp"));
    let Target::LocalPods { ports, .. } = &dns.target else { panic!("{dns:?}") };
    assert_eq!(ports[1].port, PortChoice::Name("dns-tcp".into()));
    let virtual_one = policy(reader, "virtual").unwrap();
    assert_eq!(virtual_one.limit.map(|limit| limit.burst), Some(5), "the default burst is the rate of one second");
    let Matcher::Address { ports, .. } = &virtual_one.matcher else { panic!("{virtual_one:?}") };
    assert_eq!(&*ports[0].name, "dns", "both ports of a single pair have the name");
    let Target::Pods { mode, namespaces, .. } = &policy(reader, "api").unwrap().target else { panic!() };
    assert_eq!((*mode, namespaces.is_some()), (RedirectMode::PodEndpoint, true));
}

async fn policy_changes_are_followed(cluster: &Cluster<'_>, reader: &mut SourceReader) {
    let object = valid_policy("dns");
    let path = format!("{}/dns", path_of(&object));
    let uid = policy(reader, "dns").unwrap().uid.clone();
    cluster.patch(&path, json!({ "spec": { "config": { "limit": null } } })).await;
    reader.wait_until("the limit is removed", |r| policy(r, "dns").is_some_and(|dns| dns.limit.is_none())).await;
    assert_eq!(policy(reader, "dns").unwrap().generation, 2);
    cluster.delete(&path).await;
    reader.wait_until("the policy is removed", |r| policy(r, "dns").is_none()).await;
    create(cluster, &object).await;
    reader
        .wait_until("the policy is created again with another uid", |r| {
            policy(r, "dns").is_some_and(|dns| dns.uid != uid)
        })
        .await;
    let changes = reader.changes;
    let status = json!({ "status": { "backends": 7 } });
    cluster.patch(&format!("{path}/status"), status).await;
    cluster.create_service("after", "10.96.1.9").await;
    reader.wait_until("a later change is read", |r| r.has_service("after")).await;
    assert_eq!(reader.changes, changes + 1, "a change of the status is ignored");
}

async fn a_new_source_has_the_policies_when_synced(cluster: &Cluster<'_>) {
    let mut reader = cluster.start_reader();
    reader.wait_until_synced().await;
    assert_eq!(reader.state.policies.len(), valid_policies().len(), "a synced source has all policies");
}

/// With other definitions the API server accepts anything. Invalid policies are refused, and the others are used.
#[test]
fn invalid_policies_are_refused_even_if_the_api_server_accepts_them() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        install(cluster, &definitions().map(without_schema)).await;
        create(cluster, &valid_policy("dns")).await;
        let bad = |name: &str, patch: Value| {
            let mut object = valid_policy("dns");
            object["metadata"]["name"] = json!(name);
            merge(&mut object, &patch);
            object
        };
        create(cluster, &bad("untyped", json!({ "spec": { "backend": { "toPorts": 53 } } }))).await;
        create(cluster, &bad("unpaired", json!({ "spec": { "backend": { "toPorts": [{ "port": 53 }] } } }))).await;
        let mut reader = cluster.start_reader();
        reader.wait_until("two policies are refused", |r| r.state.refusals.len() == 2).await;
        reader.wait_until_synced().await;
        assert_eq!(reader.state.policies.len(), 1);
        let message: Vec<(String, &str)> = reader
            .state
            .refusals
            .iter()
            .map(|refusal| (refusal.subject.to_string(), refusal.reason.as_str()))
            .collect();
        let both = ["unpaired", "untyped"].map(|name| format!("LocalRedirectPolicy default/{name}"));
        assert_eq!(message, [(both[0].clone(), "unpairedPort"), (both[1].clone(), "wrongType")]);
        for name in ["untyped", "unpaired"] {
            wait_for_event(cluster, name).await;
        }
    });
}

fn without_schema(mut definition: Value) -> Value {
    let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    definition["spec"]["versions"][0]["schema"] = schema;
    definition
}

async fn wait_for_event(cluster: &Cluster<'_>, name: &str) {
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
        assert!(start.elapsed() < TIMEOUT, "no Event about {name}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
