//! Who dialled: pods by their cgroups, as the kubelet names them under both drivers and in every QoS class, here in real
//! cgroups that stand where the kubelet's would; and pods that ask to be left alone.

use crate::agent::{monitor, web};
use crate::ground::{Ground, Object, eventually};
use crate::kind::reach;
use crate::refuse::untouched;
use beeline_harness::{Cgroup, Client, Dial, Kind, Lab};
use serde_json::json;

const CONTAINER: &str = "4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a";

fn uid(number: usize) -> String {
    format!("0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b1{number}")
}

/// The levels below the node's cgroup, one pod a layout.
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

fn ground(annotations: &serde_json::Value) -> Ground {
    let lab = Lab::new(2).unwrap();
    let mut objects = vec![Object::service("web", 10).at(&[(lab.pod(0), "node-1")])];
    let pod = |number| Object::pod(&format!("cart-{number}"), &uid(number), CONTAINER, annotations.clone());
    objects.extend((0..layouts().len()).map(pod));
    Ground::on(lab, &objects, &["--events", "all"])
}

/// All levels, the innermost last.
fn make(ground: &Ground, levels: &[String]) -> Vec<Cgroup> {
    let mut made: Vec<Cgroup> = Vec::new();
    for level in levels {
        let next = made.last().unwrap_or(&ground.lab.node().cgroup).child(level).unwrap();
        made.push(next);
    }
    made
}

fn client(ground: &Ground, cgroups: &[Cgroup]) -> Client {
    Client::start(Some(&ground.lab.pod(1).namespace), cgroups.last()).unwrap()
}

#[test]
fn events_name_pod_and_container() {
    let ground = ground(&json!({}));
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    for (number, levels) in layouts().iter().enumerate() {
        let cgroups = make(&ground, levels);
        let client = client(&ground, &cgroups);
        let cgroup = cgroups.last().unwrap().id().unwrap().to_string();
        let dial = || drop(reach(&client, &Dial::new(Kind::Tcp, web()[0]), &["pod-a"]));
        let mut events = Vec::new();
        // A cgroup that has just come is looked for at most twice a second.
        eventually("the pod is known", || {
            events = monitor(&ground, &["--cgroup", &cgroup], 1, dial);
            !events[0]["pod"].is_null()
        });
        let event = &events[0];
        let who = (&event["namespace"], &event["pod"], &event["container"]);
        assert_eq!(who, (&json!("shop"), &json!(format!("cart-{number}")), &json!("app")), "{levels:?}: {event}");
    }
    let host = ground.lab.node().client().unwrap();
    let dial = || drop(reach(&host, &Dial::new(Kind::Tcp, web()[0]), &["pod-a"]));
    let events = monitor(&ground, &["--cgroup", &ground.lab.node().cgroup.id().unwrap().to_string()], 1, dial);
    assert!(events[0]["pod"].is_null(), "{events:?}");
}

#[test]
fn a_pod_may_ask_to_be_left_alone() {
    let ground = ground(&json!({ "beeline.dev/resolve": "off" }));
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let _outside = ground.outside(&web()[..2]);
    for levels in &layouts() {
        let cgroups = make(&ground, levels);
        let client = client(&ground, &cgroups);
        let name = |to| client.dial(&Dial::new(Kind::Tcp, to)).unwrap().name().to_owned();
        eventually("the pod is left alone", || name(web()[0]) == "outside");
        web().iter().for_each(|to| untouched(&client, *to, "outside"));
    }
    reach(&ground.lab.node().client().unwrap(), &Dial::new(Kind::Tcp, web()[0]), &["pod-a"]);
    // It thinks better of it.
    let cgroups = make(&ground, &layouts()[1]);
    let client = client(&ground, &cgroups);
    ground.apply(&Object::pod("cart-1", &uid(1), CONTAINER, json!({})));
    let name = |to| client.dial(&Dial::new(Kind::Tcp, to)).unwrap().name().to_owned();
    eventually("the pod is resolved for again", || name(web()[0]) == "pod-a");
}
