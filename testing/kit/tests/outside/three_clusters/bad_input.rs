//! Invalid input: configuration files, a wrong kubeconfig, a cluster that claims this host's own addresses. Each is
//! refused with a reason that names the object and the next step, and no dial fails.

use serde_json::{Value, json};

use super::{
    clients::Clients,
    clusters::{MultiClusterHost, NAMES, NODE_PORT, extra_service},
};
use crate::fixture::{host_port, wait_until};

/// Pods of clusters with the same pod range are dialled by their nodes, because a pod address does not identify a
/// cluster.
pub fn pods_share_a_range(host: &MultiClusterHost) {
    let message = host.wait_for_refusal("podsShared", &["10.245.1.0/24", "Set podAccess: direct"]);
    assert!(NAMES.iter().any(|name| message.contains(&format!("those of cluster {name}"))), "{message}");
    for (name, node) in NAMES.into_iter().zip(host.clusters.nodes()) {
        let address = if name == "red" { &host.clusters.red_ips[0] } else { &host.clusters.shared_ips[0] };
        let explained = host.agent.run_json(&["explain", &host_port(address, 80), "--view", name]).unwrap();
        let backends = explained["backends"].to_string();
        assert!(
            backends.contains(&host_port(&node, NODE_PORT)) && !backends.contains("10.245."),
            "{name}: {explained}"
        );
    }
}

/// Invalid files, and words that the refusal must contain.
fn invalid_files(host: &MultiClusterHost) -> Vec<(String, Vec<&'static str>)> {
    let valid = || NAMES.map(|name| host.entry(name)).to_vec();
    let with = |at: usize, key: &str, value: Value| {
        let mut all = valid();
        all[at][key] = value;
        host.file(all).to_string()
    };
    let overlapping = {
        let mut all = valid();
        for entry in &mut all[..2] {
            entry["serviceCIDRs"] = json!(["10.97.0.0/16"]);
        }
        all[1].as_object_mut().unwrap().remove("view");
        json!({"host-role": "outside", "clusters": all}).to_string()
    };
    let mut unknown_view = host.file(valid());
    unknown_view["views"] = json!({"/sys/fs/cgroup/some.slice": "yellow"});
    vec![
        ("host-role: outside\nclusters: [ {\n".into(), vec!["beeline.yaml", "line"]),
        (with(1, "kubeconfg", json!("/etc/green")), vec!["kubeconfg"]),
        (with(2, "podAccess", json!("drect")), vec!["cluster red", "podAccess", "drect", "direct"]),
        (with(1, "name", json!("blue")), vec!["cluster blue is listed twice", "names must be unique"]),
        (with(1, "name", json!("Green")), vec!["\"Green\"", "a-z"]),
        (with(1, "view", json!("blue")), vec!["cluster green", "view blue", "must be unique"]),
        (with(1, "serviceCIDRs", json!(["10.97.0.0/33"])), vec!["cluster green", "serviceCIDRs 10.97.0.0/33"]),
        (with(0, "apiServers", json!(["https://192.0.2.1"])), vec!["cluster blue", "give one of them"]),
        (overlapping, vec!["cluster green", "10.97.0.0/16", "earlier cluster blue", "give it a `view`"]),
        (unknown_view.to_string(), vec!["yellow", "the views are: blue, green, red"]),
        ("{\"host-role\": \"outside\", \"clusters\": []}".into(), vec!["clusters", "stop the agent"]),
        ("{\"host-role\": \"outside\", \"clusters\": [], \"max-servces\": 3}".into(), vec!["max-servces"]),
    ]
}

pub fn invalid_files_are_refused(host: &MultiClusterHost, clients: &Clients) {
    let files = invalid_files(host);
    for (text, words) in &files {
        host.agent.configure(text).unwrap();
        let message = host.wait_for_refusal("badConfiguration", words);
        assert!(message.contains("the last configuration stays in effect"), "{message}");
        host.configure(&NAMES);
        host.wait_for_none("badConfiguration");
    }
    host.wait_until_synced(&NAMES);
    clients.assert_no_failures(&format!("{} invalid files", files.len()));
}

/// The maps of the previous agent stay in effect.
pub fn an_agent_does_not_start_with_an_invalid_file(host: &MultiClusterHost, clients: &Clients) {
    host.agent.stop().unwrap();
    let files = invalid_files(host);
    for (text, words) in files.iter().filter(|(text, _)| !text.contains("\"clusters\": []")) {
        host.agent.configure(text).unwrap();
        let result = host.agent.output(&host.agent.component.arguments).unwrap();
        let stderr = String::from_utf8_lossy(&result.stderr).into_owned();
        assert!(!result.status.success() && words.iter().all(|word| stderr.contains(word)), "{words:?}: {stderr}");
    }
    host.configure(&NAMES);
    host.agent.start().unwrap();
    host.wait_until_synced(&NAMES);
    clients.assert_no_failures("an agent does not start with an invalid file");
}

pub fn another_cluster_with_a_known_name_is_refused(host: &MultiClusterHost, clients: &Clients) {
    let mut wrong = host.entry("blue");
    wrong["kubeconfig"] = host.entry("green")["kubeconfig"].clone();
    host.configure_entries(vec![wrong, host.entry("green"), host.entry("red")]);
    let message = host.wait_for_refusal("otherCluster", &["cluster blue has the stored UID", "clusters/blue/uid"]);
    assert!(message.contains("give the other cluster its own name"), "{message}");
    assert!(host.cluster("blue")["error"].is_string());
    // A restarted agent refuses it too.
    host.agent.stop().unwrap();
    host.agent.start().unwrap();
    host.wait_for_refusal("otherCluster", &["cluster blue has the stored UID"]);
    host.configure(&NAMES);
    host.wait_until_synced(&NAMES);
    host.wait_for_none("otherCluster");
    clients.assert_no_failures("green's kubeconfig under the name of blue");
}

pub fn a_duplicate_cluster_is_refused(host: &MultiClusterHost, clients: &Clients) {
    let mut again = host.entry("red");
    (again["name"], again["view"]) = (json!("again"), json!("again"));
    let all = NAMES.map(|name| host.entry(name));
    host.configure_entries([&all[..], &[again.clone()]].concat());
    let message = host.wait_for_refusal("sameCluster", &["again is the same cluster as red"]);
    assert!(message.contains("remove one of them from the configuration"), "{message}");
    // The duplicate is refused wherever it is in the file.
    host.configure_entries([&[again][..], &all].concat());
    host.wait_for_refusal("sameCluster", &["again is the same cluster as red"]);
    assert_eq!(host.cluster("again")["synced"], false);
    host.configure(&NAMES);
    host.wait_for_none("sameCluster");
    clients.assert_no_failures("a duplicate cluster");
}

/// Load-balancer addresses, externalIPs and node addresses that are this host's own, loopback or link-local.
pub fn claims_of_this_hosts_addresses_are_refused(host: &MultiClusterHost, clients: &Clients) {
    let clusters = host.clusters;
    let [own, own6] = clusters.outside.host.addresses().map(|address| address.to_string());
    let red = &clusters.red;
    let claim = json!({"type": "LoadBalancer", "externalIPs": [own, own6]});
    red.apply(&extra_service("claim", &["10.98.0.66".into(), "fd00:10:98::66".into()], with_other_node_ports(claim)))
        .unwrap();
    let claimed = ["127.0.0.1", "::1", "169.254.7.7", "fe80::7"].map(|ip| json!({"ip": ip}));
    let patch = json!({"status": {"loadBalancer": {"ingress": claimed}}}).to_string();
    red.kubectl(&["-n", "default", "patch", "service", "claim", "--subresource=status", "--type=merge", "-p", &patch])
        .unwrap();
    let servers = start_servers(host);
    for address in ["127.0.0.1", "::1"] {
        host.wait_for_refusal("badLoadBalancerIP", &[&format!("{address} is a loopback address")]);
    }
    for address in [&own, &own6, "169.254.7.7", "fe80::7"] {
        let message = host.wait_for_refusal("ownAddress", &[&format!("{address} is this host's own")]);
        assert!(message.contains("is not programmed"), "{message}");
    }
    claim_by_node(host, &own);
    for address in [&own, &own6, "127.0.0.1", "::1"] {
        for port in [80, NODE_PORT] {
            assert_eq!(host.dial(&host_port(address, port)), "h1", "{address}:{port} is this host's");
            assert_eq!(host.dial_in_view("red", &host_port(address, port)), "h1", "{address}:{port} in red's view");
        }
    }
    drop(servers);
    red.kubectl(&["-n", "default", "delete", "service", "claim"]).unwrap();
    host.wait_for_none("ownAddress");
    clients.assert_no_failures("a cluster that claims this host's own addresses");
}

/// Replaces the ports, because the nodePorts of `web` are taken.
fn with_other_node_ports(mut spec: Value) -> Value {
    spec["ports"] = json!([{"name": "tcp", "port": 80, "targetPort": 8080, "protocol": "TCP", "nodePort": 30081}]);
    spec
}

/// A node of red claims this host's address and loopback. nodePorts at these addresses still belong to this host.
fn claim_by_node(host: &MultiClusterHost, own: &str) {
    let red = &host.clusters.red;
    red.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "claim"}})).unwrap();
    let addresses = [own, "127.0.0.1"].map(|address| json!({"type": "InternalIP", "address": address}));
    let patch = json!({"status": {"addresses": addresses}}).to_string();
    red.kubectl(&["patch", "node", "claim", "--subresource=status", "--type=merge", "-p", &patch]).unwrap();
    wait_until("the agent knows the node", || {
        host.agent.status().is_ok_and(|status| status["nodes"].to_string().contains("claim"))
    });
}

/// Starts servers on the host itself, which answer with the host's name.
fn start_servers(host: &MultiClusterHost) -> Vec<HostServer> {
    [80, NODE_PORT].map(|port| HostServer::start(host, port)).into()
}

struct HostServer(kit::component::Component);

impl HostServer {
    fn start(host: &MultiClusterHost, port: u64) -> HostServer {
        let agnhost = kit::cache::Cache::open().unwrap().program("agnhost").display().to_string();
        let words = [agnhost, "netexec".into(), format!("--http-port={port}"), "--udp-port=-1".into()];
        let component = host.clusters.outside.component(&format!("web-{port}"), words.into()).unwrap();
        component.start().unwrap();
        wait_until("the server listens", || host.dial(&host_port("127.0.0.1", port)) == "h1");
        HostServer(component)
    }
}

impl Drop for HostServer {
    fn drop(&mut self) {
        let _ = self.0.kill(); // The server ends with the host too.
    }
}
