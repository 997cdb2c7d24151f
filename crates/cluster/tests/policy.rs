//! Policies in a folder mean what `kubectl apply` of them would mean: the same policies are accepted, with the same
//! defaults, and the same are refused. The cases are those of the API server tests.

mod support;

use beeline_cluster::Snapshot;
use beeline_model::policy::{Matcher, Policy, PolicyKind, RedirectMode, Target};
use serde_json::{Value, json};
use std::fs;
use support::{read, reasons};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../beeline/tests/api_server/policy");

fn good() -> Vec<Value> {
    let text = fs::read_to_string(format!("{CASES}/good.yaml")).unwrap();
    text.split("\n---\n").skip(1).map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn good_one(name: &str) -> Value {
    good().into_iter().find(|object| object["metadata"]["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return *target = patch.clone() };
    for (key, value) in patch {
        match (value, target.as_object_mut()) {
            (Value::Null, Some(target)) => drop(target.remove(key)),
            (_, Some(target)) => merge(target.entry(key).or_insert(json!({})), value),
            (_, None) => panic!("{key} is not in an object"),
        }
    }
}

fn folder(object: &Value) -> Snapshot {
    read(&object.to_string())
}

fn only_policy(snapshot: &Snapshot) -> &Policy {
    assert_eq!(snapshot.policies.len(), 1, "{:?}", snapshot.refusals);
    snapshot.policies.values().next().unwrap()
}

fn changed(name: &str, patch: &Value) -> Snapshot {
    let mut object = good_one(name);
    merge(&mut object, patch);
    folder(&object)
}

#[test]
fn policies_that_the_api_server_refuses_are_refused() {
    let text = fs::read_to_string(format!("{CASES}/bad.yaml")).unwrap();
    let cases: Vec<Value> = serde_saphyr::from_str(&text).unwrap();
    assert!(cases.len() >= 40);
    for case in cases {
        let snapshot = changed(case["of"].as_str().unwrap(), &case["patch"]);
        assert!(snapshot.policies.is_empty(), "{}: {:?}", case["case"], snapshot.policies);
        assert_eq!(snapshot.refusals.len(), 1, "{}: {:?}", case["case"], snapshot.refusals);
    }
}

#[test]
fn policies_that_the_api_server_accepts_are_read_with_its_defaults() {
    let text = fs::read_to_string(format!("{CASES}/good.yaml")).unwrap();
    let snapshot = read(&text);
    assert_eq!((snapshot.policies.len(), reasons(&snapshot)), (good().len(), vec![]), "{:?}", snapshot.refusals);
    let all_ports = folder(&good_one("all-ports"));
    let all_ports = only_policy(&all_ports);
    assert_eq!((all_ports.name.kind, &*all_ports.name.namespace), (PolicyKind::LocalRedirect, "default"));
    assert!(all_ports.out_cluster && all_ports.nodes.is_none() && all_ports.limit.is_none());
    assert!(matches!(all_ports.matcher, Matcher::Service { ports: None, .. }));
    let host = folder(&good_one("host"));
    assert!(!only_policy(&host).out_cluster);
    let api = folder(&good_one("api"));
    let Target::Pods { mode, namespaces, .. } = &only_policy(&api).target else { panic!("{api:?}") };
    assert_eq!((*mode, namespaces.as_ref().map(|all| all.0.len())), (RedirectMode::PodEndpoint, Some(0)));
}

#[test]
fn the_number_of_backends_of_a_policy_is_limited() {
    let spread = |addresses: usize, ports: usize| {
        let ports: Vec<Value> = (1..=ports).map(|n| json!({ "name": format!("p{n}"), "port": n })).collect();
        let addresses: Vec<String> = (0..addresses).map(|n| format!("10.0.{}.{}", n / 250, n % 250 + 1)).collect();
        let mut object = good_one("database");
        object["spec"]["frontend"]["addressMatcher"]["toPorts"] = json!(ports);
        object["spec"]["backend"]["addressEndpoint"] = json!({ "addresses": addresses, "toPorts": ports });
        folder(&object)
    };
    assert_eq!(reasons(&spread(64, 64)), [""; 0]);
    assert_eq!(reasons(&spread(256, 16)), [""; 0]);
    for (addresses, ports) in [(65, 64), (257, 1)] {
        let refused = spread(addresses, ports);
        assert_eq!((reasons(&refused), refused.policies.len()), (vec!["badBackend"], 0));
    }
}

#[test]
fn null_is_accepted_only_for_fields_with_a_default() {
    let nothing = json!({ "config": null });
    let mut object = good_one("all-ports");
    object["spec"]["config"] = nothing["config"].clone();
    assert!(only_policy(&folder(&object)).out_cluster);
    object["spec"]["frontend"]["serviceMatcher"]["toPorts"] = Value::Null;
    assert_eq!(reasons(&folder(&object)), ["unknownField"], "the API server demands a list too");
}

#[test]
fn the_refusal_of_a_policy_without_a_spec_names_the_policy() {
    let snapshot = changed("dns", &json!({ "spec": null }));
    assert_eq!(reasons(&snapshot), ["wrongType"]);
    assert!(snapshot.refusals[0].message.contains("LocalRedirectPolicy dns"), "{:?}", snapshot.refusals);
    let snapshot = changed("dns", &json!({ "spec": { "frontend": { "serviceMatcher": { "namespace": "b" } } } }));
    assert!(snapshot.refusals[0].message.contains("spec.frontend.serviceMatcher.namespace"), "{:?}", snapshot.refusals);
}

#[test]
fn a_balancing_policy_of_another_group_is_refused() {
    let mut object = good_one("api");
    object["apiVersion"] = json!("balancing.elf.io/v1beta1");
    assert_eq!(reasons(&folder(&object)), ["unknownKind"]);
}

#[test]
fn a_namespace_has_a_label_with_its_name() {
    let snapshot = read("{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}");
    let shop = snapshot.namespaces.values().next().unwrap();
    let label = |key: &str| shop.labels.get(key).map(|value| value.to_string());
    assert_eq!(label("kubernetes.io/metadata.name").as_deref(), Some("shop"));
    assert_eq!(label("team").as_deref(), Some("a"));
}
