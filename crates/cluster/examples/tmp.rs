use std::time::Instant;
fn time(name: &str, doc: &str, o: impl Fn() -> serde_saphyr::Options) {
    let n = 20000u32;
    let t = Instant::now();
    for _ in 0..n { let v: serde_json::Value = serde_saphyr::from_str_with_options(doc, o()).unwrap(); std::hint::black_box(v); }
    println!("{name} {:?}", t.elapsed() / n);
}
fn main() {
    let doc = "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: s1-x
  namespace: load
  labels:
    kubernetes.io/service-name: s1
addressType: IPv4
ports:
- name: http
  port: 8080
  protocol: TCP
endpoints:
- addresses: [10.1.1.1]
  nodeName: n1
- addresses: [11.2.2.2]
  nodeName: n2
- addresses: [12.2.2.2]
  nodeName: n3
";
    let d = || serde_saphyr::Options::default();
    time("tiny", "a: 1\n", d);
    time("default", doc, d);
    time("no snippet", doc, || serde_saphyr::options!{ with_snippet: false });
    time("no budget", doc, || serde_saphyr::options!{ budget: None, with_snippet: false });
    time("no comments", doc, || serde_saphyr::options!{ emit_comments: false, with_snippet: false });
    time("no merge", doc, || serde_saphyr::options!{ merge_keys: serde_saphyr::options::MergeKeyPolicy::AsOrdinary, with_snippet: false });
    time("dup first", doc, || serde_saphyr::options!{ duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::FirstWins, with_snippet: false });
    time("strict bool", doc, || serde_saphyr::options!{ strict_booleans: true, with_snippet: false });
    let t = Instant::now();
    for _ in 0..20000 { let n = granit_parser_count(doc); std::hint::black_box(n); }
    println!("budget parse only {:?}", t.elapsed()/20000);
}
fn granit_parser_count(d: &str) -> bool { serde_saphyr::budget::parse_yaml(d, Default::default()).unwrap() }
