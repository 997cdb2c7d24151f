//! Loading a folder once: which files are read, how definitions in several files interact, and large files.

mod support;

use beeline_cluster::{FolderSource, ServiceFilter, Snapshot, diff};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use support::{data, reasons};

fn load(path: &Path) -> Snapshot {
    FolderSource::new(path, "local", ServiceFilter::default()).load().unwrap()
}

fn service(name: &str, last: u8) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: 10.0.0.{last}, ports: [{{port: 80}}]}}}}\n"
    )
}

#[test]
fn the_example_folder_is_read_completely() {
    let snapshot = load(&data());
    assert_eq!(snapshot.refusals, []);
    let services: Vec<String> = snapshot.services.keys().map(ToString::to_string).collect();
    assert_eq!(services, ["default/warehouse", "kube-system/kube-dns", "ops/telemetry", "shop/storefront"]);
    let slices: Vec<&str> = snapshot.slices.keys().map(|name| &*name.name).collect();
    assert_eq!(slices, ["warehouse:IPv4:0", "kube-dns-abcde", "telemetry-xyz12", "storefront-v4", "storefront-v6"]);
    assert_eq!(snapshot.nodes.values().map(|node| node.eligible).collect::<Vec<_>>(), [true, false]);
    let storefront = snapshot.services.values().last().unwrap();
    assert_eq!((storefront.source_ranges.len(), storefront.load_balancer_ips.len()), (2, 1));
    assert_eq!((storefront.health_check_node_port, storefront.affinity), (32000, Some(10_800)));
}

#[test]
fn only_visible_yaml_and_json_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (i, name) in ["a.yaml", "b.yml", ".c.yaml", "d.yaml~", "e.txt", "f", ".yaml"].iter().enumerate() {
        fs::write(path.join(name), service(&format!("s{i}"), 1)).unwrap();
    }
    fs::create_dir(path.join("g.yaml")).unwrap();
    fs::write(path.join("g.yaml/h.yaml"), service("deep", 2)).unwrap();
    symlink(path.join("e.txt"), path.join("i.yaml")).unwrap();
    symlink(path.join("nowhere"), path.join("j.yaml")).unwrap();
    let snapshot = load(path);
    let names: Vec<&str> = snapshot.services.keys().map(|name| name.name()).collect();
    assert_eq!(names, ["s0", "s1", "s4"]);
    assert_eq!(snapshot.refusals, []);
}

#[test]
fn the_first_definition_in_the_order_of_file_names_is_in_effect() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("b.yaml"), service("web", 2)).unwrap();
    fs::write(folder.path().join("a.yaml"), service("web", 1)).unwrap();
    fs::write(folder.path().join("c.yaml"), service("web", 3)).unwrap();
    let snapshot = load(folder.path());
    assert_eq!(snapshot.services.values().next().unwrap().cluster_ips[0].to_string(), "10.0.0.1");
    assert_eq!(reasons(&snapshot), ["duplicate", "duplicate"]);
    let message = &snapshot.refusals[0].message;
    assert!(message.contains("a.yaml document 1") && message.contains("b.yaml document 1"), "{message}");
}

#[test]
fn endpoints_apply_to_a_service_in_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let endpoints = "{apiVersion: v1, kind: Endpoints, metadata: {name: web}, subsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 80}]}]}";
    fs::write(folder.path().join("a.yaml"), endpoints).unwrap();
    assert!(load(folder.path()).slices.is_empty());
    fs::write(folder.path().join("b.yaml"), service("web", 1)).unwrap();
    assert_eq!(load(folder.path()).slices.len(), 1);
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), service("web", 1)).unwrap();
    // Reading address 0 fails even for root, whom file modes do not stop.
    symlink("/proc/self/mem", folder.path().join("b.yaml")).unwrap();
    let snapshot = load(folder.path());
    assert_eq!((snapshot.services.len(), reasons(&snapshot)), (1, vec!["unreadable"]));
    assert_eq!(snapshot.refusals[0].subject.to_string(), "file b.yaml");
}

#[test]
fn a_missing_folder_is_an_error_with_a_next_step() {
    let bad =
        FolderSource::new("/nonexistent/manifests", "local", ServiceFilter::default()).load().unwrap_err().to_string();
    assert!(bad.contains("/nonexistent/manifests") && bad.contains("--manifests"), "{bad}");
}

fn large(services: usize) -> String {
    let mut text = String::new();
    for i in 0..services {
        let (b, c, d) = (i >> 16 & 255, i >> 8 & 255, i & 255);
        write!(
            text,
            "apiVersion: v1
kind: Service
metadata:
  name: s{i}
  namespace: load
spec:
  clusterIP: 172.{b}.{c}.{d}
  ports:
  - name: http
    port: 80
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: s{i}-x
  namespace: load
  labels:
    kubernetes.io/service-name: s{i}
addressType: IPv4
ports:
- name: http
  port: 8080
  protocol: TCP
endpoints:
- addresses: [10.{b}.{c}.{d}]
  nodeName: n1
- addresses: [11.{b}.{c}.{d}]
  nodeName: n2
- addresses: [12.{b}.{c}.{d}]
  nodeName: n3
---
"
        )
        .unwrap();
    }
    text
}

#[test]
fn a_file_of_ten_megabytes_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let text = large(22_000);
    assert!(text.len() > 10 << 20, "{}", text.len());
    fs::write(folder.path().join("large.yaml"), &text).unwrap();
    let snapshot = load(folder.path());
    assert_eq!((snapshot.services.len(), snapshot.slices.len()), (22_000, 22_000));
    assert_eq!(snapshot.refusals, []);
}

#[test]
fn a_list_and_a_scalar_of_ten_megabytes_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let items: String = (0..60_000).map(|i| format!("- {}", service(&format!("s{i}"), 1))).collect();
    fs::write(folder.path().join("list.yaml"), format!("apiVersion: v1\nkind: List\nitems:\n{items}")).unwrap();
    let note = "x".repeat(10 << 20);
    let noted = service("noted", 9).replace("name: noted", &format!("name: noted, annotations: {{note: {note}}}"));
    fs::write(folder.path().join("scalar.yaml"), noted).unwrap();
    let snapshot = load(folder.path());
    assert_eq!((snapshot.services.len(), snapshot.refusals.len()), (60_001, 0), "{:?}", snapshot.refusals.first());
}

#[test]
fn the_diff_contains_only_changed_objects() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    fs::write(&path, service("a", 1) + "---\n" + &service("b", 2)).unwrap();
    let old = load(folder.path());
    assert_eq!(diff(&Snapshot::default(), &old).len(), 2);
    fs::write(&path, "# moved\n".to_owned() + &service("b", 2) + "---\n" + &service("c", 3)).unwrap();
    let new = load(folder.path());
    let changes = diff(&old, &new);
    assert_eq!(changes.len(), 2, "{changes:?}");
    let mut applied = old.clone();
    changes.into_iter().for_each(|change| applied.apply(change));
    assert_eq!(applied.services, new.services);
    assert!(diff(&new, &new).is_empty());
}

/// Measures time and memory of 100,000 Services:
/// `cargo test -p beeline-cluster --release --test folder -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn measure_a_hundred_thousand_services() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("large.yaml"), large(100_000)).unwrap();
    let rss = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        status
            .lines()
            .filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    println!("before: {}", rss());
    let start = std::time::Instant::now();
    let snapshot = load(folder.path());
    println!("after {:?}: {}", start.elapsed(), rss());
    assert_eq!((snapshot.services.len(), snapshot.slices.len()), (100_000, 100_000));
}
