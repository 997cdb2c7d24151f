//! Components of the cluster fail while clients dial in a loop: no dial to a Service with a stable backend fails, and
//! afterwards the kernel's maps match the objects.

use std::{
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, client, host_port, server, service, wait_until};
use crate::load::LoadGenerator;

struct FaultFixture {
    fixture: ClusterFixture,
    addresses: Vec<String>,
}

impl FaultFixture {
    fn new(name: &str) -> FaultFixture {
        let fixture = ClusterFixture::new(name);
        fixture.apply(&[server("web-1", 1), server("web-2", 2), client("client-1", 1), client("client-3", 3)]);
        fixture.apply(&[service("web", json!({ "type": "NodePort" }))]);
        fixture.wait_ready(&["web-1", "web-2", "client-1", "client-3"]);
        fixture.wait_for_endpoints("web", 2);
        let port = fixture.get("service", "web")["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
        let mut addresses: Vec<String> = fixture.cluster_ips("web").iter().map(|ip| host_port(ip, 80)).collect();
        addresses.push(host_port(&fixture.cluster.nodes()[1].addresses()[0].to_string(), port));
        FaultFixture { fixture, addresses }
    }

    fn start_loads(&self) -> [LoadGenerator<'_>; 2] {
        ["client-1", "client-3"].map(|pod| LoadGenerator::start(&self.fixture, pod, &self.addresses))
    }

    /// Creates and deletes other Services.
    fn churn(&self, rounds: usize) {
        for round in 0..rounds {
            let name = format!("other-{}", round % 5);
            self.fixture.apply(&[service(&name, json!({}))]);
            if round % 2 == 1 {
                self.fixture.delete("service", &name);
            }
        }
    }

    fn assert_maps_match(&self) {
        self.assert_maps_match_with(&kit::agent::binary(None).unwrap(), &self.fixture.cluster.nodes());
    }

    /// Waits until each node's kernel maps match the plan for the current objects. `beeline` must have the maps'
    /// layout.
    fn assert_maps_match_with(&self, beeline: &Path, nodes: &[kit::NodeId]) {
        let dir = tempfile::tempdir().unwrap();
        let dir_name = dir.path().display().to_string();
        for node in nodes {
            wait_until(&format!("the maps of {node} match the objects"), || {
                let objects = self
                    .fixture
                    .cluster
                    .kubectl(&["get", "-A", "-o", "json", "services,endpointslices,nodes"])
                    .unwrap();
                let list: Value = serde_json::from_str(&objects).unwrap();
                std::fs::write(dir.path().join("all.json"), list.to_string()).unwrap();
                let beeline = beeline.display().to_string();
                let arguments =
                    [beeline.as_str(), "plan", "--diff", "--manifests", &dir_name, "--node-name", &node.name()];
                self.fixture.cluster.node(*node, &arguments).is_ok()
            });
        }
    }
}

#[test]
fn an_outage_of_the_api_server_and_etcd_fails_no_dial() {
    let fault = FaultFixture::new("outage");
    let loads = fault.start_loads();
    for component in ["kube-apiserver", "etcd"] {
        fault.churn(4);
        fault.fixture.cluster.component(component).unwrap().stop().unwrap();
        sleep(Duration::from_secs(5)); // Duration of the outage.
        fault.fixture.cluster.start_component(component).unwrap();
        fault.fixture.cluster.wait_for_api().unwrap();
        fault.churn(4);
    }
    loads.into_iter().for_each(|load| load.stop().assert_no_failures("API server and etcd stopped"));
    fault.assert_maps_match();
}

#[test]
fn killed_agents_fail_no_dial() {
    let fault = FaultFixture::new("killed");
    let loads = fault.start_loads();
    for round in 0..10 {
        let agent = fault.fixture.cluster.component(&format!("n{}/beeline", [1, 3][round % 2])).unwrap();
        agent.kill().unwrap();
        fault.churn(1);
        agent.start().unwrap();
        sleep(Duration::from_millis(500)); // Some agents are killed while they start.
    }
    // An agent that starts without its API server serves from the pinned maps.
    fault.fixture.cluster.component("kube-apiserver").unwrap().stop().unwrap();
    let agent = fault.fixture.cluster.component("n1/beeline").unwrap();
    agent.kill().unwrap();
    agent.start().unwrap();
    let beeline = kit::agent::binary(None).unwrap().display().to_string();
    let node = fault.fixture.cluster.nodes()[0];
    let status = || fault.fixture.cluster.node(node, &[&beeline, "status", "-o", "json"]).unwrap_or_default();
    wait_until("the agent reports the API server's outage", || {
        let status: Value = serde_json::from_str(&status()).unwrap_or_default();
        status["source"]["synced"] == false && status["source"]["error"].is_string()
    });
    fault.fixture.cluster.start_component("kube-apiserver").unwrap();
    loads.into_iter().for_each(|load| load.stop().assert_no_failures("agents killed"));
    fault.assert_maps_match();
}

/// Replaces a node's agent by this program while objects change, and returns the `kernel` section of its status.
fn upgrade(fault: &FaultFixture, node: kit::NodeId, binary: &Path) -> Value {
    kit::agent::component(node).unwrap().stop().unwrap();
    fault.churn(2);
    kit::agent::start(node, binary, &[]).unwrap();
    fault.churn(2);
    kit::agent::wait_until_ready(node, false).unwrap();
    let beeline = binary.display().to_string();
    let status = fault.fixture.cluster.node(node, &[&beeline, "status", "-o", "json"]).unwrap();
    serde_json::from_str::<Value>(&status).unwrap()["kernel"].clone()
}

/// The program that `make other-layout` builds, whose map keys and values have other sizes.
fn other_layout(own: &Path) -> PathBuf {
    let path = own.parent().and_then(Path::parent).unwrap().join("other-layout/beeline");
    assert!(path.is_file(), "{} is missing: `make other-layout` builds it, `make test` does so first", path.display());
    path
}

#[test]
fn upgrades_and_downgrades_of_agents_fail_no_dial() {
    let fault = FaultFixture::new("upgraded");
    let own = kit::agent::binary(None).unwrap();
    let next = Path::new(env!("CARGO_TARGET_TMPDIR")).join("next/beeline");
    std::fs::create_dir_all(next.parent().unwrap()).unwrap();
    std::fs::copy(&own, &next).unwrap();
    let other = other_layout(&own);
    let nodes = [1, 3].map(|number| kit::NodeId::new(number).unwrap());
    let loads = fault.start_loads();
    let mut layouts = Vec::new();
    for (binary, start) in [(&next, "adopted"), (&other, "rebuilt"), (&own, "rebuilt"), (&own, "adopted")] {
        for node in nodes {
            let kernel = upgrade(&fault, node, binary);
            assert_eq!((&kernel["start"], &kernel["live"]), (&json!(start), &json!(true)), "{node}: {kernel}");
            layouts.push(kernel["layout"].as_u64().unwrap());
        }
        fault.assert_maps_match_with(binary, &nodes);
    }
    assert!(
        layouts[0] != layouts[2] && layouts[0] == layouts[4],
        "expected another layout and the first one again: {layouts:?}"
    );
    loads.into_iter().for_each(|load| load.stop().assert_no_failures("agents upgraded"));
    fault.assert_maps_match();
}
