//! A Node that sees a second cluster: who sees which one first, by the pod's own wish or by cgroup, and that whatever is
//! shown says which cluster it is, also of a port that nobody has.

mod stage;

use beeline_harness::{Cgroup, Client, Dial, Kind};
use serde_json::{Value, json};
use stage::{BEELINE, Folder, PORT, Stage, Target, wait_until};
use std::net::SocketAddr;

const UIDS: [&str; 2] = ["0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b10", "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11"];

/// A pod of this node that asks for a view.
fn pod(name: &str, uid: &str, view: &str) -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "stage", "uid": uid, "annotations": { "beeline.dev/view": view } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "app", "image": "x" }] },
        "status": { "phase": "Running" },
    });
    pod.to_string()
}

struct Scene {
    stage: Stage,
    web: SocketAddr,
}

impl Scene {
    /// The same address in both clusters, which answer by their names.
    fn set() -> Scene {
        let mut stage = Stage::new();
        let (home, green) = (Target::new("home", 1), Target::new("green", 1));
        let folder = Folder(stage.folder.0.with_file_name("green"));
        std::fs::create_dir(&folder.0).unwrap();
        let (at_home, at_green) = (stage.serve("home", 10, 1), stage.serve("green", 20, 1));
        stage.folder.put("home.yaml", home.manifest(&at_home));
        stage.folder.put("asks.yaml", pod("asks", UIDS[0], "green"));
        stage.folder.put("errs.yaml", pod("errs", UIDS[1], "yellow"));
        folder.put("green.yaml", green.manifest(&at_green));
        let config = stage.folder.0.with_file_name("beeline.yaml");
        let cluster = |name: &str, folder: &Folder| {
            json!({ "name": name, "folder": folder.0, "view": name,
            "serviceCIDRs": ["10.96.0.0/16"] })
        };
        let clusters = json!([cluster("home", &stage.folder), cluster("green", &folder)]);
        let state = stage.folder.0.with_file_name("state");
        std::fs::write(&config, json!({ "node-name": "node-1", "clusters": clusters, "state-dir": state }).to_string())
            .unwrap();
        stage.start_by(&config, &["--events", "all"]);
        let web = (home.address, PORT).into();
        Scene { stage, web }
    }

    /// A process of this pod, where the kubelet would have put it.
    fn inside(&self, uid: &str) -> (Vec<Cgroup>, Client) {
        let mut levels: Vec<Cgroup> = Vec::new();
        for level in ["kubepods", &format!("pod{uid}"), "app"] {
            let next = levels.last().unwrap_or(self.stage.lab.cgroup()).child(level).unwrap();
            levels.push(next);
        }
        let client = Client::start(Some(&self.stage.lab.pod(1).namespace), levels.last()).unwrap();
        (levels, client)
    }

    fn answers(&self, client: &Client) -> String {
        let answer = client.dial(&Dial::new(Kind::Tcp, self.web)).unwrap();
        answer.at().map_or_else(String::new, |_| answer.name().to_owned())
    }

    /// Whom it is about.
    fn refused(&self, reason: &str) -> Option<String> {
        self.stage.refusals().into_iter().find(|(known, _)| known == reason).map(|(_, subject)| subject)
    }

    /// The first refusal that the kernel tells while somebody dials.
    fn monitored(&self, dial: impl Fn()) -> Value {
        let args = ["monitor", "-o", "json", "--count", "1", "--verdict", "refused"];
        let place = self.stage.place();
        let program = self.stage.lab.node().program(BEELINE).unwrap().args(args).args(place);
        let running = program.spawn().unwrap();
        wait_until("the monitor has seen one", || {
            dial();
            running.stdout().lines().count() > 0
        });
        serde_json::from_str(running.stdout().lines().next().unwrap()).unwrap()
    }
}

#[test]
fn a_pod_asks_for_a_view_and_everything_says_which_cluster() {
    let _alone = stage::alone();
    let scene = Scene::set();
    let everybody = scene.stage.lab.pod(1).client().unwrap();
    wait_until("as everybody", || scene.answers(&everybody) == "home");
    let (_asks, asking) = scene.inside(UIDS[0]);
    wait_until("the pod sees green first", || scene.answers(&asking) == "green");
    let (_errs, erring) = scene.inside(UIDS[1]);
    wait_until("a view that there is not leaves it alone", || scene.answers(&erring).is_empty());
    let subject = scene.refused("unknownView").expect("it is told");
    assert!(subject.ends_with(UIDS[1]), "{subject}");

    let explain = |port: u16, more: &[&str]| {
        scene.stage.cli(&[&["explain", &SocketAddr::new(scene.web.ip(), port).to_string()], more].concat())
    };
    let closed = scene.web.port() + 1;
    for port in [scene.web.port(), closed] {
        assert_eq!(explain(port, &[])["cluster"], "home", "{port}");
        assert_eq!(explain(port, &["--view", "green"])["cluster"], "green", "{port}");
    }
    let why = explain(closed, &[])["because"].to_string();
    assert!(why.contains("of stage/home, which has 80/TCP, 80/UDP and no such port"), "{why}");
    for (client, cluster) in [(&everybody, "home"), (&asking, "green")] {
        let dial = || drop(client.dial(&Dial::new(Kind::Tcp, SocketAddr::new(scene.web.ip(), closed))));
        let event = scene.monitored(dial);
        assert_eq!((&event["cluster"], &event["reason"]), (&json!(cluster), &json!("noPort")), "{event}");
    }
    let rows = scene.stage.cli(&["services"]);
    let views = |cluster: &str| {
        let own = rows.as_array().unwrap().iter().filter(move |row| row["cluster"] == cluster);
        own.filter_map(|row| row["viewName"].as_str()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(views("green"), ["green"].into(), "a name, and not its number: {rows}");
    let metrics = scene.stage.metrics();
    for name in ["home", "green"] {
        assert!(metrics.contains(&format!("beeline_services{{cluster=\"{name}\"}} 1")), "{metrics}");
    }
    drop((asking, erring, everybody));
}
