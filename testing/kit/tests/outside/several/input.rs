//! What cannot be meant: a file, a kubeconfig, a cluster that claims this host's own addresses. Each is refused with a reason
//! that names the thing and what to do, and nobody's dials suffer.

use serde_json::{Value, json};

use super::{
    crowd::Crowd,
    trio::{NAMES, NODE_PORT, Stage, twin_service},
};
use crate::field::{at, eventually};

/// Found out or not, a pod's address says nothing of its cluster: all go by their nodes.
pub fn pods_in_one_range(stage: &Stage) {
    let why = stage.wait_for_refusal("podsShared", &["10.245.1.0/24", "Set pods: direct"]);
    assert!(NAMES.iter().any(|name| why.contains(&format!("those of cluster {name}"))), "{why}");
    for (name, node) in NAMES.into_iter().zip(stage.trio.nodes()) {
        let address = if name == "red" { &stage.trio.own[0] } else { &stage.trio.same[0] };
        let explained = stage.resolver.ask_json(&["explain", &at(address, 80), "--view", name]).unwrap();
        let backends = explained["backends"].to_string();
        assert!(backends.contains(&at(&node, NODE_PORT)) && !backends.contains("10.245."), "{name}: {explained}");
    }
}

/// Files, and words that the refusal must have.
fn files(stage: &Stage) -> Vec<(String, Vec<&'static str>)> {
    let good = || NAMES.map(|name| stage.entry(name)).to_vec();
    let with = |at: usize, key: &str, value: Value| {
        let mut all = good();
        all[at][key] = value;
        stage.file(all).to_string()
    };
    let overlapping = {
        let mut all = good();
        for entry in &mut all[..2] {
            entry["serviceCIDRs"] = json!(["10.97.0.0/16"]);
        }
        all[1].as_object_mut().unwrap().remove("view");
        json!({"stand": "outside", "clusters": all}).to_string()
    };
    let mut unknown_view = stage.file(good());
    unknown_view["views"] = json!({"/sys/fs/cgroup/some.slice": "yellow"});
    vec![
        ("stand: outside\nclusters: [ {\n".into(), vec!["beeline.yaml", "line"]),
        (with(1, "kubeconfg", json!("/etc/green")), vec!["kubeconfg"]),
        (with(2, "pods", json!("drect")), vec!["cluster red", "pods", "drect", "direct"]),
        (with(1, "name", json!("blue")), vec!["cluster blue is there twice", "a name of its own"]),
        (with(1, "name", json!("Green")), vec!["\"Green\"", "a-z"]),
        (with(1, "view", json!("blue")), vec!["cluster green", "view blue", "choose another"]),
        (with(1, "serviceCIDRs", json!(["10.97.0.0/33"])), vec!["cluster green", "serviceCIDRs 10.97.0.0/33"]),
        (with(0, "apiServers", json!(["https://192.0.2.1"])), vec!["cluster blue", "give one of them"]),
        (overlapping, vec!["cluster green", "10.97.0.0/16", "of blue", "give it a `view`"]),
        (unknown_view.to_string(), vec!["yellow", "known are: blue, green, red"]),
        ("{\"stand\": \"outside\", \"clusters\": []}".into(), vec!["clusters", "stop the agent"]),
        ("{\"stand\": \"outside\", \"clusters\": [], \"max-servces\": 3}".into(), vec!["max-servces"]),
    ]
}

pub fn files_that_cannot_be_meant(stage: &Stage, crowd: &Crowd) {
    let files = files(stage);
    for (text, words) in &files {
        stage.resolver.configure(text).unwrap();
        let why = stage.wait_for_refusal("badConfiguration", words);
        assert!(why.contains("what it said before holds"), "{why}");
        stage.configure(&NAMES);
        stage.wait_for_none("badConfiguration");
    }
    stage.wait_until_heard(&NAMES);
    crowd.must_be_content(&format!("{} files that cannot be meant", files.len()));
}

/// Its predecessor's tables go on.
pub fn an_agent_does_not_start_with_one(stage: &Stage, crowd: &Crowd) {
    stage.resolver.stop().unwrap();
    let files = files(stage);
    for (text, words) in files.iter().filter(|(text, _)| !text.contains("\"clusters\": []")) {
        stage.resolver.configure(text).unwrap();
        let ended = stage.resolver.attempt(&stage.resolver.part.words).unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    }
    stage.configure(&NAMES);
    stage.resolver.start().unwrap();
    stage.wait_until_heard(&NAMES);
    crowd.must_be_content("an agent that does not start with such a file, and one that does");
}

pub fn another_cluster_under_an_old_name(stage: &Stage, crowd: &Crowd) {
    let mut wrong = stage.entry("blue");
    wrong["kubeconfig"] = stage.entry("green")["kubeconfig"].clone();
    stage.configure_entries(vec![wrong, stage.entry("green"), stage.entry("red")]);
    let why = stage.wait_for_refusal("otherCluster", &["blue was the cluster", "clusters/blue/uid"]);
    assert!(why.contains("give the other cluster a name of its own"), "{why}");
    assert!(stage.cluster("blue")["error"].is_string());
    // Also by an agent that is new.
    stage.resolver.stop().unwrap();
    stage.resolver.start().unwrap();
    stage.wait_for_refusal("otherCluster", &["blue was the cluster"]);
    stage.configure(&NAMES);
    stage.wait_until_heard(&NAMES);
    stage.wait_for_none("otherCluster");
    crowd.must_be_content("green's kubeconfig under the name of blue");
}

pub fn one_cluster_twice(stage: &Stage, crowd: &Crowd) {
    let mut again = stage.entry("red");
    (again["name"], again["view"]) = (json!("again"), json!("again"));
    let all = NAMES.map(|name| stage.entry(name));
    stage.configure_entries([&all[..], &[again.clone()]].concat());
    let why = stage.wait_for_refusal("sameCluster", &["again is the same cluster as red"]);
    assert!(why.contains("remove one of them from the configuration"), "{why}");
    // First in the file, it is nobody's any more than last.
    stage.configure_entries([&[again][..], &all].concat());
    stage.wait_for_refusal("sameCluster", &["again is the same cluster as red"]);
    assert_eq!(stage.cluster("again")["synced"], false);
    stage.configure(&NAMES);
    stage.wait_for_none("sameCluster");
    crowd.must_be_content("one cluster twice");
}

/// Service addresses, load balancers, externalIPs and nodes: of this host, of loopback, of the link.
pub fn addresses_that_are_this_host_s(stage: &Stage, crowd: &Crowd) {
    let trio = stage.trio;
    let [mine, mine6] = trio.outside.host.addresses().map(|address| address.to_string());
    let red = &trio.red;
    let thief = json!({"type": "LoadBalancer", "externalIPs": [mine, mine6]});
    red.apply(&twin_service("thief", &["10.98.0.66".into(), "fd00:10:98::66".into()], numbered(thief))).unwrap();
    let claimed = ["127.0.0.1", "::1", "169.254.7.7", "fe80::7"].map(|ip| json!({"ip": ip}));
    let patch = json!({"status": {"loadBalancer": {"ingress": claimed}}}).to_string();
    red.kubectl(&["-n", "default", "patch", "service", "thief", "--subresource=status", "--type=merge", "-p", &patch])
        .unwrap();
    let listeners = listen(stage);
    for address in ["127.0.0.1", "::1"] {
        stage.wait_for_refusal("badLoadBalancerIP", &[&format!("{address} is a loopback address")]);
    }
    for address in [&mine, &mine6, "169.254.7.7", "fe80::7"] {
        let why = stage.wait_for_refusal("ownAddress", &[&format!("{address} is this host's own")]);
        assert!(why.contains("left alone"), "{why}");
    }
    a_node_claims_them(stage, &mine);
    for address in [&mine, &mine6, "127.0.0.1", "::1"] {
        for port in [80, NODE_PORT] {
            assert_eq!(stage.dial(&at(address, port)), "h1", "{address}:{port} is this host's");
            assert_eq!(stage.dial_in("red", &at(address, port)), "h1", "{address}:{port} in red's view");
        }
    }
    drop(listeners);
    red.kubectl(&["-n", "default", "delete", "service", "thief"]).unwrap();
    stage.wait_for_none("ownAddress");
    crowd.must_be_content("a cluster that claims this host's own addresses");
}

/// Other nodePorts than web's.
fn numbered(mut spec: Value) -> Value {
    spec["ports"] = json!([{"name": "tcp", "port": 80, "targetPort": 8080, "protocol": "TCP", "nodePort": 30081}]);
    spec
}

/// A node of red says that it has this host's address, and loopback: nodePorts there are this host's nevertheless.
fn a_node_claims_them(stage: &Stage, mine: &str) {
    let red = &stage.trio.red;
    red.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "thief"}})).unwrap();
    let addresses = [mine, "127.0.0.1"].map(|address| json!({"type": "InternalIP", "address": address}));
    let patch = json!({"status": {"addresses": addresses}}).to_string();
    red.kubectl(&["patch", "node", "thief", "--subresource=status", "--type=merge", "-p", &patch]).unwrap();
    eventually("the node is known", || {
        stage.resolver.status().is_ok_and(|status| status["nodes"].to_string().contains("thief"))
    });
}

/// A program of the host's own that says the host's name.
fn listen(stage: &Stage) -> Vec<Listener> {
    [80, NODE_PORT].map(|port| Listener::start(stage, port)).into()
}

struct Listener(kit::part::Part);

impl Listener {
    fn start(stage: &Stage, port: u64) -> Listener {
        let agnhost = kit::cache::Cache::open().unwrap().program("agnhost").display().to_string();
        let words = [agnhost, "netexec".into(), format!("--http-port={port}"), "--udp-port=-1".into()];
        let part = stage.trio.outside.part(&format!("web-{port}"), words.into()).unwrap();
        part.start().unwrap();
        eventually("it listens", || stage.dial(&at("127.0.0.1", port)) == "h1");
        Listener(part)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.0.kill(); // It ends with the host as well.
    }
}
