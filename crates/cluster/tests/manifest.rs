//! What a file of manifests gives: good documents whatever stands beside them, and a reason for the others.

mod support;

use beeline_cluster::{Claim, Convert, Format, Snapshot, parse};
use support::{only_service, read, reasons};

fn service(name: &str, last: u8) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: 10.0.0.{last}, ports: [{{port: 80}}]}}}}"
    )
}

fn names(snapshot: &Snapshot) -> Vec<String> {
    snapshot.services.keys().map(|name| name.name().to_owned()).collect()
}

fn json(text: &str) -> Snapshot {
    parse(text.as_bytes(), Format::Json, &mut Convert::new("local", Claim::default()))
}

#[test]
fn a_broken_document_loses_only_itself() {
    for broken in
        ["a: [1", "a: 'x", "\tx: 1", "a: b: c", "kind: {", "- 1", "text", "&a *a", "a: 1\na: 2", "!!binary x", "{}"]
    {
        let text = format!("{}\n---\n{broken}\n---\n{}\n", service("first", 1), service("last", 2));
        let snapshot = read(&text);
        assert_eq!(names(&snapshot), ["first", "last"], "{broken}");
        assert_eq!(snapshot.refusals.len(), 1, "{broken}: {:?}", snapshot.refusals);
        assert_eq!(snapshot.refusals[0].subject, "file input document 2", "{broken}");
    }
    let bytes = [service("first", 1).as_bytes(), b"\n---\na: \xff\xfe\n---\n", service("last", 2).as_bytes()].concat();
    let snapshot = parse(&bytes, Format::Yaml, &mut Convert::new("local", Claim::default()));
    assert_eq!((names(&snapshot).len(), reasons(&snapshot)), (2, vec!["syntax"]));
}

#[test]
fn the_message_names_the_line_of_the_file() {
    let text = format!("# one\n{}\n---\nkind: Service\nspec: [\n", service("first", 1));
    let message = &read(&text).refusals[0].message;
    assert!(message.starts_with("line 5:"), "{message}");
}

#[test]
fn wrong_types_name_the_field() {
    let text = service("first", 1).replace("port: 80", "port: eighty");
    let snapshot = read(&text);
    assert_eq!(reasons(&snapshot), ["wrongType"]);
    let message = &snapshot.refusals[0].message;
    assert!(message.contains("Service first") && message.contains("spec.ports[0].port"), "{message}");
    for (from, to) in
        [("{port: 80}", "80"), ("[{port: 80}]", "{port: 80}"), ("10.0.0.1", "[10.0.0.1]"), ("name: first", "name: 80")]
    {
        let snapshot = read(&service("first", 1).replace(from, to));
        assert_eq!((names(&snapshot).len(), reasons(&snapshot)), (0, vec!["wrongType"]), "{to}");
    }
    assert_eq!(reasons(&read(&service("first", 1).replace("port: 80", "port: 99999999999"))), ["wrongType"]);
}

#[test]
fn kinds_that_are_not_read() {
    let beside = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n---\napiVersion: v1\nkind: ConfigMap\n";
    assert!(read(beside).refusals.is_empty());
    for (version, kind) in
        [("v1", "Servce"), ("serving.knative.dev/v1", "Service"), ("discovery.k8s.io/v1beta1", "EndpointSlice")]
    {
        let snapshot = read(&format!("apiVersion: {version}\nkind: {kind}\n"));
        assert_eq!(reasons(&snapshot), ["unknownKind"], "{kind}");
        assert!(snapshot.refusals[0].message.contains("EndpointSlice discovery.k8s.io/v1"));
    }
    assert_eq!(reasons(&read("metadata: {name: a}")), ["unknownKind"]);
    assert_eq!(reasons(&read(&service("a", 1).replace("apiVersion: v1, ", ""))), ["unknownKind"]);
}

#[test]
fn lists_of_every_shape() {
    let items = format!("[{}, {}]", service("a", 1), service("b", 2));
    assert_eq!(names(&read(&format!("apiVersion: v1\nkind: List\nitems: {items}\n"))), ["a", "b"]);
    assert_eq!(names(&read(&format!("items: {items}\nkind: List\napiVersion: v1\n"))), ["a", "b"]);
    let bare = items.replace("apiVersion: v1, kind: Service, ", "");
    assert_eq!(names(&read(&format!("items: {bare}\nkind: ServiceList\napiVersion: v1\n"))), ["a", "b"]);
    assert_eq!(names(&read(&format!("apiVersion: v1\nkind: ServiceList\nitems: {bare}\n"))), ["a", "b"]);
    assert_eq!(reasons(&read(&format!("apiVersion: v1\nkind: List\nitems: {bare}\n"))), ["unknownKind"; 2]);
    assert!(read("apiVersion: v1\nkind: List\nitems: []\n").refusals.is_empty());
    assert!(read("apiVersion: v1\nkind: List\nitems: null\n").refusals.is_empty());
    assert_eq!(reasons(&read("apiVersion: v1\nkind: List\n")), ["noItems"]);
    assert_eq!(reasons(&read(&format!("apiVersion: v1\nkind: Lisp\nitems: {items}\n"))), ["unknownKind"]);
}

#[test]
fn a_bad_item_loses_only_itself_and_a_torn_list_all_of_it() {
    let bad = service("b", 2).replace("port: 80", "port: x");
    let snapshot = read(&format!(
        "apiVersion: v1\nkind: List\nitems:\n- {}\n- {bad}\n- 7\n- {}\n",
        service("a", 1),
        service("c", 3)
    ));
    assert_eq!(names(&snapshot), ["a", "c"]);
    assert_eq!(reasons(&snapshot), ["wrongType", "unknownKind"]);
    assert_eq!(snapshot.refusals[0].subject, "file input document 1 item 2");
    let torn =
        read(&format!("apiVersion: v1\nkind: List\nitems:\n- {}\n- {{\n---\n{}", service("a", 1), service("z", 9)));
    assert_eq!((names(&torn), reasons(&torn)), (vec!["z".to_owned()], vec!["syntax"]));
}

#[test]
fn alias_bombs_and_deep_nests_are_refused_by_budget() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        bomb += &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", "));
    }
    let start = std::time::Instant::now();
    let snapshot = read(&format!("{bomb}---\n{}", service("a", 1)));
    assert_eq!((names(&snapshot).len(), reasons(&snapshot)), (1, vec!["syntax"]));
    for nest in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000)] {
        let snapshot = read(&format!("a: {nest}\n---\n{}", service("a", 1)));
        assert_eq!((names(&snapshot).len(), reasons(&snapshot)), (1, vec!["syntax"]));
        assert_eq!(reasons(&json(&nest.replace("a:", "\"a\":"))), ["syntax"]);
    }
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}

#[test]
fn anchors_and_merge_keys_work() {
    let text = "
apiVersion: v1
kind: List
items:
- &a {apiVersion: v1, kind: Service, metadata: {name: a}, spec: &s {clusterIP: 10.0.0.1, ports: [{port: 80}]}}
- apiVersion: v1
  kind: Service
  metadata: {name: b}
  spec: {<<: *s, clusterIP: 10.0.0.2}
";
    assert_eq!(names(&read(text)), ["a", "b"]);
}

#[test]
fn the_first_of_two_counts() {
    let snapshot = read(&format!("{}\n---\n{}\n", service("a", 1), service("a", 2)));
    assert_eq!(only_service(&snapshot).cluster_ips[0].to_string(), "10.0.0.1");
    assert_eq!(reasons(&snapshot), ["duplicate"]);
    let message = &snapshot.refusals[0].message;
    assert!(message.contains("input document 1") && message.contains("input document 2"), "{message}");
}

#[test]
fn json_values_one_after_the_other() {
    let one = |name: &str, last: u8| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}"}},"spec":{{"clusterIP":"10.0.0.{last}","ports":[{{"port":80}}]}}}}"#
        )
    };
    assert_eq!(names(&json(&format!("{}\n\n{}  ", one("a", 1), one("b", 2)))), ["a", "b"]);
    let list = format!(r#"{{"items":[{},{}],"kind":"List","apiVersion":"v1"}}"#, one("a", 1), one("b", 2));
    assert_eq!(names(&json(&list)), ["a", "b"]);
    let torn = json(&format!("{}\n{{\"kind\": ", one("a", 1)));
    assert_eq!((names(&torn), reasons(&torn)), (vec!["a".to_owned()], vec!["syntax"]));
    assert!(json("").refusals.is_empty() && json(" \n").refusals.is_empty());
    // JSON is YAML.
    assert_eq!(names(&read(&list)), ["a", "b"]);
}
