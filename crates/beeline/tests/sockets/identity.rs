//! Attribution of dials to pods by their cgroups, for both cgroup drivers of the kubelet and every QoS class, and pods that
//! opt out of resolution.

use crate::address_kinds::assert_resolved;
use crate::agent::{monitor, web};
use crate::fixture::{AgentFixture, ManifestFile, wait_until};
use crate::refusal::assert_untouched;
use beeline_harness::{Cgroup, Client, DialKind, DialRequest, TestNetwork};
use serde_json::json;

const CONTAINER: &str = "4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a";

fn uid(number: usize) -> String {
    format!("0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b1{number}")
}

/// Cgroup paths below the node's cgroup, one pod per layout.
fn layouts() -> Vec<Vec<String>> {
    let systemd = |number| uid(number).replace('-', "_");
    let scope = format!("cri-containerd-{CONTAINER}.scope");
    let path = |levels: &[&str]| levels.iter().map(|level| level.to_string()).collect::<Vec<_>>();
    vec![
        path(&["kubepods", &format!("pod{}", uid(0)), CONTAINER]),
        path(&["kubepods", "burstable", &format!("pod{}", uid(1)), CONTAINER, "nested"]),
        path(&["kubepods", "besteffort", &format!("pod{}", uid(2)), CONTAINER]),
        path(&["kubepods.slice", &format!("kubepods-pod{}.slice", systemd(3)), &scope]),
        path(&[
            "kubepods.slice",
            "kubepods-burstable.slice",
            &format!("kubepods-burstable-pod{}.slice", systemd(4)),
            &scope,
        ]),
        path(&[
            "kubepods.slice",
            "kubepods-besteffort.slice",
            &format!("kubepods-besteffort-pod{}.slice", systemd(5)),
            &scope,
            "init",
        ]),
    ]
}

fn fixture_with_pods(annotations: &serde_json::Value) -> AgentFixture {
    let network = TestNetwork::new(2).unwrap();
    let mut objects = vec![ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")])];
    let pod = |number| ManifestFile::pod(&format!("cart-{number}"), &uid(number), CONTAINER, annotations.clone());
    objects.extend((0..layouts().len()).map(pod));
    AgentFixture::with_manifests(network, &objects, &["--events", "all"])
}

/// Creates the cgroup of every level; the innermost is last.
fn create_cgroups(fixture: &AgentFixture, levels: &[String]) -> Vec<Cgroup> {
    let mut cgroups: Vec<Cgroup> = Vec::new();
    for level in levels {
        let next = cgroups.last().unwrap_or(&fixture.network.node().cgroup).child(level).unwrap();
        cgroups.push(next);
    }
    cgroups
}

fn client(fixture: &AgentFixture, cgroups: &[Cgroup]) -> Client {
    Client::start(Some(&fixture.network.pod(1).namespace), cgroups.last()).unwrap()
}

#[test]
fn events_name_pod_and_container() {
    let fixture = fixture_with_pods(&json!({}));
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    for (number, levels) in layouts().iter().enumerate() {
        let cgroups = create_cgroups(&fixture, levels);
        let client = client(&fixture, &cgroups);
        let cgroup = cgroups.last().unwrap().id().unwrap().to_string();
        let dial = || drop(assert_resolved(&client, &DialRequest::new(DialKind::Tcp, web()[0]), &["pod-a"]));
        let mut events = Vec::new();
        // The agent looks for new cgroups at most twice a second.
        wait_until("events name the pod", || {
            events = monitor(&fixture, &["--cgroup", &cgroup], 1, dial);
            !events[0]["pod"].is_null()
        });
        let event = &events[0];
        let who = (&event["namespace"], &event["pod"], &event["container"]);
        assert_eq!(who, (&json!("shop"), &json!(format!("cart-{number}")), &json!("app")), "{levels:?}: {event}");
    }
    let host = fixture.network.node().client().unwrap();
    let dial = || drop(assert_resolved(&host, &DialRequest::new(DialKind::Tcp, web()[0]), &["pod-a"]));
    let events = monitor(&fixture, &["--cgroup", &fixture.network.node().cgroup.id().unwrap().to_string()], 1, dial);
    assert!(events[0]["pod"].is_null(), "{events:?}");
}

/// A host user creates the name of a pod in the cgroup that is delegated to the user.
#[test]
fn a_pods_name_in_a_delegated_cgroup_is_not_the_pod() {
    const USER: u32 = 65_534;
    let fixture = fixture_with_pods(&json!({ "beeline.dev/resolve": "off" }));
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let _outside = fixture.serve_outside(&web()[..2]);
    assert!(fixture.status()["kernel"]["kubeletRoot"].is_null());
    let delegated = fixture.network.node().cgroup.child("user").unwrap();
    std::os::unix::fs::chown(delegated.path(), Some(USER), None).unwrap();
    let names = ["kubepods".to_owned(), format!("pod{}", uid(0)), CONTAINER.to_owned()];
    let mut forged = vec![delegated];
    for name in names {
        let next = forged.last().unwrap().child(&name).unwrap();
        std::os::unix::fs::chown(next.path(), Some(USER), None).unwrap();
        forged.push(next);
    }
    let forger = client(&fixture, &forged);
    // Another pod is found where the kubelet creates it, so the agent has looked for cgroups by then.
    let cgroups = create_cgroups(&fixture, &layouts()[1]);
    let excluded = client(&fixture, &cgroups);
    let name = |client: &Client| client.dial(&DialRequest::new(DialKind::Tcp, web()[0])).unwrap().name().to_owned();
    wait_until("the pod is excluded from resolution", || name(&excluded) == "outside");
    assert_eq!(name(&forger), "pod-a", "a process outside of the kubelet's cgroups is excluded like a pod");
    let root = fixture.network.node().cgroup.path().display().to_string();
    assert_eq!(fixture.status()["kernel"]["kubeletRoot"], json!(root));
    let text = fixture.beeline(&["status"]).stdout;
    assert!(text.contains(&format!("pod cgroups        below {root};")), "{text}");
    let cgroup = forged.last().unwrap().id().unwrap().to_string();
    let dial = || drop(assert_resolved(&forger, &DialRequest::new(DialKind::Tcp, web()[0]), &["pod-a"]));
    let events = monitor(&fixture, &["--cgroup", &cgroup], 1, dial);
    assert!(events[0]["pod"].is_null(), "{events:?}");
}

#[test]
fn an_annotation_excludes_a_pod_from_resolution() {
    let fixture = fixture_with_pods(&json!({ "beeline.dev/resolve": "off" }));
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let _outside = fixture.serve_outside(&web()[..2]);
    for levels in &layouts() {
        let cgroups = create_cgroups(&fixture, levels);
        let client = client(&fixture, &cgroups);
        let name = |to| client.dial(&DialRequest::new(DialKind::Tcp, to)).unwrap().name().to_owned();
        wait_until("the pod is excluded from resolution", || name(web()[0]) == "outside");
        web().iter().for_each(|to| assert_untouched(&client, *to, "outside"));
    }
    assert_resolved(&fixture.network.node().client().unwrap(), &DialRequest::new(DialKind::Tcp, web()[0]), &["pod-a"]);
    // The annotation is removed.
    let cgroups = create_cgroups(&fixture, &layouts()[1]);
    let client = client(&fixture, &cgroups);
    fixture.apply(&ManifestFile::pod("cart-1", &uid(1), CONTAINER, json!({})));
    let name = |to| client.dial(&DialRequest::new(DialKind::Tcp, to)).unwrap().name().to_owned();
    wait_until("dials of the pod are resolved again", || name(web()[0]) == "pod-a");
}

/// pod-a serves, and the pod `cart-1` of the namespace `shop` dials from its cgroup. Returns the fixture and the cgroups.
fn fixture_with_client(pod: ManifestFile, args: &[&str]) -> (AgentFixture, Vec<Cgroup>) {
    let network = TestNetwork::new(2).unwrap();
    let web = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web, pod], args);
    let cgroups = create_cgroups(&fixture, &layouts()[1]);
    (fixture, cgroups)
}

fn cart(annotations: serde_json::Value) -> ManifestFile {
    ManifestFile::pod("cart-1", &uid(1), CONTAINER, annotations)
}

/// Waits until this server answers the dials of the client.
fn wait_for_server(client: &Client, server: &str) {
    let name = || client.dial(&DialRequest::new(DialKind::Tcp, web()[0])).unwrap().name().to_owned();
    wait_until(&format!("{server} answers"), || name() == server);
}

#[test]
fn a_sidecar_excludes_a_pod_unless_the_annotation_or_the_option_says_otherwise() {
    let with_sidecar = |annotations| cart(annotations).with_container("istio-proxy");
    let (fixture, cgroups) = fixture_with_client(with_sidecar(json!({})), &["--sidecar-exclusion", "on"]);
    let _servers = (fixture.network.pod(0).serve(8080).unwrap(), fixture.serve_outside(&web()[..2]));
    let client = client(&fixture, &cgroups);
    wait_for_server(&client, "outside");
    web().iter().for_each(|to| assert_untouched(&client, *to, "outside"));
    assert_eq!(fixture.status()["counts"]["excludedPods"]["sidecar"], 1);
    let text = fixture.beeline(&["status"]).stdout;
    assert!(text.contains("1: 0 by annotation, 1 by sidecar, 0 by the label of their namespace"), "{text}");
    let explained = fixture.json(&["explain", "10.96.0.10:80", "--from", "shop/cart-1"]);
    assert_eq!(explained["verdict"], "untouched", "{explained}");
    assert!(explained["because"].as_str().is_some_and(|why| why.contains("--sidecar-exclusion")), "{explained}");
    // The annotation wins.
    fixture.apply(&with_sidecar(json!({ "beeline.dev/resolve": "on" })));
    wait_for_server(&client, "pod-a");
    fixture.apply(&with_sidecar(json!({})));
    wait_for_server(&client, "outside");
    // The annotation of Istio's injector alone is enough, and a pod without either is served.
    fixture.apply(&cart(json!({})));
    wait_for_server(&client, "pod-a");
    fixture.apply(&cart(json!({ "sidecar.istio.io/status": "{}" })));
    wait_for_server(&client, "outside");
}

#[test]
fn without_kube_proxy_a_sidecar_does_not_exclude_a_pod_by_default() {
    let (fixture, cgroups) = fixture_with_client(cart(json!({})).with_container("linkerd-proxy"), &[]);
    let _servers = (fixture.network.pod(0).serve(8080).unwrap(), fixture.serve_outside(&web()[..2]));
    let client = client(&fixture, &cgroups);
    wait_until("the pod is counted", || fixture.status()["counts"]["excludedPods"]["servedSidecar"] == 1);
    assert_resolved(&client, &DialRequest::new(DialKind::Tcp, web()[0]), &["pod-a"]);
    let text = fixture.beeline(&["status"]).stdout;
    assert!(text.contains("1 pod with a sidecar not excluded (--sidecar-exclusion off)"), "{text}");
    // A pod that is annotated is excluded nevertheless, which shows that the agent has found the cgroup of the pod.
    fixture.apply(&cart(json!({ "beeline.dev/resolve": "off" })));
    wait_for_server(&client, "outside");
}

#[test]
fn the_label_of_a_namespace_excludes_its_pods_unless_a_pod_says_otherwise() {
    let (fixture, cgroups) = fixture_with_client(cart(json!({})), &[]);
    let _servers = (fixture.network.pod(0).serve(8080).unwrap(), fixture.serve_outside(&web()[..2]));
    let client = client(&fixture, &cgroups);
    wait_for_server(&client, "pod-a");
    let namespace = |value: &str| ManifestFile::namespace("shop", json!({ "beeline.dev/resolve": value }));
    fixture.apply(&namespace("off"));
    wait_for_server(&client, "outside");
    let explained = fixture.json(&["explain", "10.96.0.10:80", "--from", "shop/cart-1"]);
    assert!(explained["because"].as_str().is_some_and(|why| why.contains("namespace has the label")), "{explained}");
    assert_eq!(fixture.status()["counts"]["excludedPods"]["namespace"], 1);
    fixture.apply(&cart(json!({ "beeline.dev/resolve": "on" })));
    wait_for_server(&client, "pod-a");
    fixture.apply(&cart(json!({})));
    wait_for_server(&client, "outside");
    // An invalid value is reported and excludes nothing.
    fixture.apply(&namespace("no"));
    wait_for_server(&client, "pod-a");
    let refused = fixture.refusals();
    assert!(
        refused.iter().any(|(reason, subject)| reason == "badAnnotation" && subject.contains("shop")),
        "{refused:?}"
    );
    fixture.apply(&namespace("off"));
    wait_for_server(&client, "outside");
    fixture.delete("namespace-shop");
    wait_for_server(&client, "pod-a");
}
