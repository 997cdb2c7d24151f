//! Parts of the cluster go while clients dial without pause: no dial to a service with a stable backend fails, and
//! afterwards the kernel's tables are what the objects say.

use std::{
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use serde_json::{Value, json};

use crate::field::{Field, at, client, eventually, server, service};
use crate::storm::Storm;

struct Ground {
    field: Field,
    ways: Vec<String>,
}

impl Ground {
    fn new(name: &str) -> Ground {
        let field = Field::new(name);
        field.apply(&[server("web-1", 1), server("web-2", 2), client("client-1", 1), client("client-3", 3)]);
        field.apply(&[service("web", json!({ "type": "NodePort" }))]);
        field.wait_ready(&["web-1", "web-2", "client-1", "client-3"]);
        field.settle("web", 2);
        let port = field.get("service", "web")["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
        let mut ways: Vec<String> = field.cluster_ips("web").iter().map(|ip| at(ip, 80)).collect();
        ways.push(at(&field.cluster.nodes()[1].addresses()[0].to_string(), port));
        Ground { field, ways }
    }

    fn storms(&self) -> [Storm<'_>; 2] {
        ["client-1", "client-3"].map(|pod| Storm::start(&self.field, pod, &self.ways))
    }

    /// Services and slices around the one that is dialled come and go.
    fn churn(&self, rounds: usize) {
        for round in 0..rounds {
            let name = format!("other-{}", round % 5);
            self.field.apply(&[service(&name, json!({}))]);
            if round % 2 == 1 {
                self.field.delete("service", &name);
            }
        }
    }

    fn tables_are_the_plan(&self) {
        self.tables_are_the_plan_of(&kit::agent::binary(None).unwrap(), &self.field.cluster.nodes());
    }

    /// What a node would do with the objects of now is what its kernel does; a program reads tables of its own layout.
    fn tables_are_the_plan_of(&self, beeline: &Path, nodes: &[kit::Node]) {
        let dir = tempfile::tempdir().unwrap();
        let dir_name = dir.path().display().to_string();
        for node in nodes {
            eventually(&format!("the tables of {node}"), || {
                let objects =
                    self.field.cluster.kubectl(&["get", "-A", "-o", "json", "services,endpointslices,nodes"]).unwrap();
                let list: Value = serde_json::from_str(&objects).unwrap();
                std::fs::write(dir.path().join("all.json"), list.to_string()).unwrap();
                let beeline = beeline.display().to_string();
                let words = [beeline.as_str(), "plan", "--diff", "--manifests", &dir_name, "--node-name", &node.name()];
                self.field.cluster.node(*node, &words).is_ok()
            });
        }
    }
}

#[test]
fn the_api_server_and_etcd_stop_and_start() {
    let ground = Ground::new("outage");
    let storms = ground.storms();
    for part in ["kube-apiserver", "etcd"] {
        ground.churn(4);
        ground.field.cluster.part(part).unwrap().stop().unwrap();
        sleep(Duration::from_secs(5));
        ground.field.cluster.start_part(part).unwrap();
        ground.field.cluster.wait_for_api().unwrap();
        ground.churn(4);
    }
    storms.into_iter().for_each(|storm| storm.stop().must_be_clean("API server and etcd stopped"));
    ground.tables_are_the_plan();
}

#[test]
fn agents_are_killed_and_start_again() {
    let ground = Ground::new("killed");
    let storms = ground.storms();
    for round in 0..10 {
        let agent = ground.field.cluster.part(&format!("n{}/beeline", [1, 3][round % 2])).unwrap();
        agent.kill().unwrap();
        ground.churn(1);
        agent.start().unwrap();
        sleep(Duration::from_millis(500));
    }
    // An agent that starts without its API server serves what is pinned.
    ground.field.cluster.part("kube-apiserver").unwrap().stop().unwrap();
    let agent = ground.field.cluster.part("n1/beeline").unwrap();
    agent.kill().unwrap();
    agent.start().unwrap();
    sleep(Duration::from_secs(4));
    let status: Value = serde_json::from_str(&ground.field.beeline(1, &["status", "-o", "json"])).unwrap();
    assert_eq!(status["source"]["synced"], false, "{status}");
    assert!(status["source"]["error"].is_string(), "{status}");
    ground.field.cluster.start_part("kube-apiserver").unwrap();
    storms.into_iter().for_each(|storm| storm.stop().must_be_clean("agents killed"));
    ground.tables_are_the_plan();
}

/// Stops a node's agent, lets the world go on without it, and starts this program in its place; gives how it started.
fn upgrade(ground: &Ground, node: kit::Node, binary: &Path) -> Value {
    kit::agent::part(node).unwrap().stop().unwrap();
    ground.churn(2);
    kit::agent::start(node, binary, &[]).unwrap();
    ground.churn(2);
    kit::agent::wait_until_ready(node, false).unwrap();
    let beeline = binary.display().to_string();
    let status = ground.field.cluster.node(node, &[&beeline, "status", "-o", "json"]).unwrap();
    serde_json::from_str::<Value>(&status).unwrap()["kernel"].clone()
}

/// The program that `make other-layout` builds: its map keys and values have other sizes.
fn other_layout(own: &Path) -> PathBuf {
    let path = own.parent().and_then(Path::parent).unwrap().join("other-layout/beeline");
    assert!(path.is_file(), "{} is missing: `make other-layout` builds it, `make test` does so first", path.display());
    path
}

#[test]
fn agents_are_upgraded_and_back() {
    let ground = Ground::new("upgraded");
    let own = kit::agent::binary(None).unwrap();
    let next = Path::new(env!("CARGO_TARGET_TMPDIR")).join("next/beeline");
    std::fs::create_dir_all(next.parent().unwrap()).unwrap();
    std::fs::copy(&own, &next).unwrap();
    let other = other_layout(&own);
    let nodes = [1, 3].map(|number| kit::Node::new(number).unwrap());
    let storms = ground.storms();
    let mut layouts = Vec::new();
    for (binary, start) in [(&next, "adopted"), (&other, "rebuilt"), (&own, "rebuilt"), (&own, "adopted")] {
        for node in nodes {
            let kernel = upgrade(&ground, node, binary);
            assert_eq!((&kernel["start"], &kernel["live"]), (&json!(start), &json!(true)), "{node}: {kernel}");
            layouts.push(kernel["layout"].as_u64().unwrap());
        }
        ground.tables_are_the_plan_of(binary, &nodes);
    }
    assert!(layouts[0] != layouts[2] && layouts[0] == layouts[4], "another layout, and back: {layouts:?}");
    storms.into_iter().for_each(|storm| storm.stop().must_be_clean("agents upgraded"));
    ground.tables_are_the_plan();
}
