//! Reading a file of manifests: valid documents are read whatever is beside them, and the others are refused.

mod support;

use beeline_cluster::{Converter, ManifestFormat, ServiceFilter, Snapshot, parse_manifests};
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
    parse_manifests(text.as_bytes(), ManifestFormat::Json, &mut Converter::new("local", ServiceFilter::default()))
}

#[test]
fn a_broken_document_does_not_affect_the_others() {
    for broken in
        ["a: [1", "a: 'x", "\tx: 1", "a: b: c", "kind: {", "- 1", "text", "&a *a", "a: 1\na: 2", "!!binary x", "{}"]
    {
        let text = format!("{}\n---\n{broken}\n---\n{}\n", service("first", 1), service("last", 2));
        let snapshot = read(&text);
        assert_eq!(names(&snapshot), ["first", "last"], "{broken}");
        assert_eq!(snapshot.refusals.len(), 1, "{broken}: {:?}", snapshot.refusals);
        assert_eq!(snapshot.refusals[0].subject.to_string(), "file input document 2", "{broken}");
    }
    let bytes = [service("first", 1).as_bytes(), b"\n---\na: \xff\xfe\n---\n", service("last", 2).as_bytes()].concat();
    let snapshot =
        parse_manifests(&bytes, ManifestFormat::Yaml, &mut Converter::new("local", ServiceFilter::default()));
    assert_eq!((names(&snapshot).len(), reasons(&snapshot)), (2, vec!["syntax"]));
}

#[test]
fn the_message_contains_the_line_of_the_file() {
    let text = format!("# one\n{}\n---\nkind: Service\nspec: [\n", service("first", 1));
    let message = &read(&text).refusals[0].message;
    assert!(message.starts_with("line 5:"), "{message}");
}

#[test]
fn the_message_about_a_wrong_type_contains_the_field() {
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
fn unknown_kinds_are_refused_and_other_builtin_kinds_ignored() {
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
fn typed_and_untyped_lists_are_read() {
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
fn an_invalid_item_affects_no_other_and_a_truncated_list_is_refused() {
    let bad = service("b", 2).replace("port: 80", "port: x");
    let snapshot = read(&format!(
        "apiVersion: v1\nkind: List\nitems:\n- {}\n- {bad}\n- 7\n- {}\n",
        service("a", 1),
        service("c", 3)
    ));
    assert_eq!(names(&snapshot), ["a", "c"]);
    assert_eq!(reasons(&snapshot), ["wrongType", "unknownKind"]);
    assert_eq!(snapshot.refusals[0].subject.to_string(), "file input document 1 item 2");
    let torn =
        read(&format!("apiVersion: v1\nkind: List\nitems:\n- {}\n- {{\n---\n{}", service("a", 1), service("z", 9)));
    assert_eq!((names(&torn), reasons(&torn)), (vec!["z".to_owned()], vec!["syntax"]));
}

#[test]
fn alias_bombs_and_deep_nesting_are_refused() {
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
fn anchors_and_merge_keys_are_supported() {
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
fn the_first_of_two_definitions_is_in_effect() {
    let snapshot = read(&format!("{}\n---\n{}\n", service("a", 1), service("a", 2)));
    assert_eq!(only_service(&snapshot).cluster_ips[0].to_string(), "10.0.0.1");
    assert_eq!(reasons(&snapshot), ["duplicate"]);
    let message = &snapshot.refusals[0].message;
    assert!(message.contains("input document 1") && message.contains("input document 2"), "{message}");
}

#[test]
fn concatenated_json_values_are_read() {
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
