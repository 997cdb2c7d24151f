//! A node with a second cluster: a pod's annotation decides which cluster has precedence for it, and explain, monitor,
//! services and metrics name the cluster of an address, also at a port that its Service does not have.

mod fixture;

use beeline_harness::{Cgroup, Client, DialKind, DialRequest, ManifestDir};
use fixture::{AgentFixture, PORT, TestService, wait_until};
use serde_json::{Value, json};
use std::net::SocketAddr;

const UIDS: [&str; 2] = ["0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b10", "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11"];

/// A pod of this node with a view annotation.
fn pod(name: &str, uid: &str, view: &str) -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "test", "uid": uid, "annotations": { "beeline.dev/view": view } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "app", "image": "x" }] },
        "status": { "phase": "Running" },
    });
    pod.to_string()
}

struct TwoClusters {
    fixture: AgentFixture,
    web: SocketAddr,
}

impl TwoClusters {
    /// Both clusters have a Service at the same address. Its backends answer with the name of their cluster.
    fn new() -> TwoClusters {
        let mut fixture = AgentFixture::new();
        let (home, green) = (TestService::new("home", 1), TestService::new("green", 1));
        let green_dir = ManifestDir::create(fixture.manifests().path().with_file_name("green")).unwrap();
        let (at_home, at_green) = (fixture.start_backends("home", 10, 1), fixture.start_backends("green", 20, 1));
        fixture.write_file("home.yaml", home.manifest(&at_home));
        fixture.write_file("valid.yaml", pod("valid", UIDS[0], "green"));
        fixture.write_file("unknown.yaml", pod("unknown", UIDS[1], "yellow"));
        green_dir.write("green.yaml", green.manifest(&at_green)).unwrap();
        let config = fixture.manifests().path().with_file_name("beeline.yaml");
        let cluster = |name: &str, dir: &ManifestDir| json!({ "name": name, "manifests": dir.path(), "view": name, "serviceCIDRs": ["10.96.0.0/16"] });
        let clusters = json!([cluster("home", fixture.manifests()), cluster("green", &green_dir)]);
        let state = fixture.manifests().path().with_file_name("state");
        std::fs::write(&config, json!({ "node-name": "node-1", "clusters": clusters, "state-dir": state }).to_string())
            .unwrap();
        fixture.start_with_config(&config, &["--events", "all"]);
        let web = (home.address, PORT).into();
        TwoClusters { fixture, web }
    }

    /// A process of this pod, in a cgroup that is named as the kubelet names it.
    fn start_in_pod(&self, uid: &str) -> (Vec<Cgroup>, Client) {
        let mut levels: Vec<Cgroup> = Vec::new();
        for level in ["kubepods", &format!("pod{uid}"), "app"] {
            let next = levels.last().unwrap_or(self.fixture.network.cgroup()).child(level).unwrap();
            levels.push(next);
        }
        let client = Client::start(Some(&self.fixture.network.pod(1).namespace), levels.last()).unwrap();
        (levels, client)
    }

    /// The cluster whose backend answers; empty if none does.
    fn dial(&self, client: &Client) -> String {
        let outcome = client.dial(&DialRequest::new(DialKind::Tcp, self.web)).unwrap();
        outcome.server_address().map_or_else(String::new, |_| outcome.name().to_owned())
    }

    /// The subject of the refusal with this reason.
    fn refused(&self, reason: &str) -> Option<String> {
        self.fixture.refusals().into_iter().find(|(known, _)| known == reason).map(|(_, subject)| subject)
    }

    /// The first refused dial of a process in this cgroup that `monitor` prints. Events of other processes that dialled
    /// earlier may still arrive.
    fn first_refused_event(&self, cgroup: &Cgroup, dial: impl Fn()) -> Value {
        let cgroup = cgroup.id().unwrap().to_string();
        let args = ["monitor", "-o", "json", "--count", "1", "--verdict", "refused", "--cgroup", &cgroup];
        let running = self.fixture.command(&args).spawn().unwrap();
        wait_until("the monitor prints an event", || {
            dial();
            running.stdout().lines().count() > 0
        });
        serde_json::from_str(running.stdout().lines().next().unwrap()).unwrap()
    }
}

#[test]
fn a_pods_view_decides_its_cluster_and_all_commands_name_the_cluster() {
    let _alone = fixture::run_alone();
    let test = TwoClusters::new();
    let without_view = test.fixture.network.pod(1).client().unwrap();
    wait_until("a client without a view reaches home", || test.dial(&without_view) == "home");
    let (green_cgroups, in_green) = test.start_in_pod(UIDS[0]);
    wait_until("the view green is in effect", || test.dial(&in_green) == "green");
    let (_unknown, excluded) = test.start_in_pod(UIDS[1]);
    wait_until("an unknown view excludes the pod", || test.dial(&excluded).is_empty());
    let subject = test.refused("unknownView").expect("a refusal");
    assert!(subject.ends_with(UIDS[1]), "{subject}");

    let explain = |port: u16, more: &[&str]| {
        test.fixture.json(&[&["explain", &SocketAddr::new(test.web.ip(), port).to_string()], more].concat())
    };
    let closed = test.web.port() + 1;
    for port in [test.web.port(), closed] {
        assert_eq!(explain(port, &[])["cluster"], "home", "{port}");
        assert_eq!(explain(port, &["--view", "green"])["cluster"], "green", "{port}");
    }
    let why = explain(closed, &[])["because"].to_string();
    assert!(why.contains("of test/home, which has 80/TCP, 80/UDP and no such port"), "{why}");
    let (home_cgroup, green_cgroup) = (&test.fixture.network.pod(1).cgroup, green_cgroups.last().unwrap());
    for (client, cgroup, cluster) in [(&without_view, home_cgroup, "home"), (&in_green, green_cgroup, "green")] {
        let dial = || drop(client.dial(&DialRequest::new(DialKind::Tcp, SocketAddr::new(test.web.ip(), closed))));
        let event = test.first_refused_event(cgroup, dial);
        assert_eq!((&event["cluster"], &event["reason"]), (&json!(cluster), &json!("noPort")), "{event}");
    }
    let rows = test.fixture.json(&["services"]);
    let views = |cluster: &str| {
        let own = rows.as_array().unwrap().iter().filter(move |row| row["cluster"] == cluster);
        own.filter_map(|row| row["viewName"].as_str()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(views("green"), ["green"].into(), "the name of the view: {rows}");
    let metrics = test.fixture.metrics();
    for name in ["home", "green"] {
        assert!(metrics.contains(&format!("beeline_services{{cluster=\"{name}\"}} 1")), "{metrics}");
    }
    drop((in_green, excluded, without_view));
}
