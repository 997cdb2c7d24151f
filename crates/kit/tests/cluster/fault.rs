//! Parts of the cluster go while clients dial without pause: no dial to a service with a stable backend fails, and
//! afterwards the kernel's tables are what the objects say.

use std::{thread::sleep, time::Duration};

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

    /// What every node would do with the objects of now is what its kernel does.
    fn tables_are_the_plan(&self) {
        let dir = tempfile::tempdir().unwrap();
        let dir_name = dir.path().display().to_string();
        for node in self.field.cluster.nodes() {
            let number: u8 = node.name()[1..].parse().unwrap();
            eventually(&format!("the tables of {node}"), || {
                let objects =
                    self.field.cluster.kubectl(&["get", "-A", "-o", "json", "services,endpointslices,nodes"]).unwrap();
                let list: Value = serde_json::from_str(&objects).unwrap();
                std::fs::write(dir.path().join("all.json"), list.to_string()).unwrap();
                let beeline = kit::agent::binary(None).unwrap().display().to_string();
                let words = [beeline.as_str(), "plan", "--diff", "--manifests", &dir_name, "--node-name", &node.name()];
                self.field.cluster.node(kit::Node::new(number).unwrap(), &words).is_ok()
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
