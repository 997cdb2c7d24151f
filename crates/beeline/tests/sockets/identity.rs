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
