//! The three clusters and the host whose agent serves all of them.

use std::{
    fs,
    thread::{self, sleep},
    time::Duration,
};

use kit::{
    HostId,
    component::Component,
    extra_cluster::{ExtraCluster, ExtraNode},
    host::{HostAgent, HostRoute, OutsideHost},
};
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, host_port, server, service, wait_until};

pub const NAMES: [&str; 3] = ["blue", "green", "red"];
/// nodePort of `web` in all clusters.
pub const NODE_PORT: u64 = 30080;
/// Name of a cgroup on the host with the view of green.
pub const GREEN: &str = "green";
/// Addresses of the host's DNS server: in the default view and in the view of green.
pub const DNS: [&str; 2] = ["127.0.0.55", "127.0.0.56"];

pub struct ThreeClusters {
    pub fixture: ClusterFixture,
    pub green: ExtraCluster,
    pub red: ExtraCluster,
    pub extra_nodes: [ExtraNode; 2],
    pub outside: OutsideHost,
    /// ClusterIPs of `web` in blue and green.
    pub shared_ips: [String; 2],
    /// ClusterIPs of `web` in red.
    pub red_ips: [String; 2],
}

impl ThreeClusters {
    pub fn create(name: &str) -> ThreeClusters {
        // The extra clusters start while blue's pods do.
        let starting = [|| ExtraCluster::start(2), || ExtraCluster::start_with_other_services(3)].map(thread::spawn);
        let fixture = ClusterFixture::new(name);
        fixture.apply(&[server("web-1", 1), server("web-2", 2)]);
        // publishNotReadyAddresses, because during a long outage of its API server blue marks its nodes as not ready.
        let web = json!({"type": "NodePort", "ports": ports(), "publishNotReadyAddresses": true});
        let web = [service("web", web)];
        wait_until("the nodePort of an earlier test is free", || fixture.try_apply(&web).is_ok());
        fixture.wait_ready(&["web-1", "web-2"]);
        fixture.wait_for_endpoints("web", 2);
        let shared_ips = fixture.cluster_ips("web");
        let red_ips = ["10.98.0.80".to_owned(), "fd00:10:98::80".to_owned()];
        let pod = pod_addresses(&fixture);
        let [green, red] = starting.map(|thread| thread.join().unwrap().unwrap());
        let extra_nodes = [(&green, 2, &shared_ips), (&red, 4, &red_ips)].map(|(cluster, number, ips)| {
            let (node, inside) = (HostId::new(number).unwrap(), HostId::new(number + 1).unwrap());
            // The same pod address belongs to another pod in each cluster.
            let extra_node = cluster.join(node, inside, pod.clone().map(|ip| ip.parse().unwrap())).unwrap();
            objects(node, ips, &pod).iter().for_each(|object| cluster.apply(object).unwrap());
            extra_node
        });
        let outside = OutsideHost::create(HostId::new(1).unwrap(), HostRoute::Default).unwrap();
        ThreeClusters { fixture, green, red, extra_nodes, outside, shared_ips, red_ips }
    }

    /// The cluster of the server that answered.
    pub fn cluster_of(&self, answer: &str) -> &'static str {
        let pods = self.extra_nodes.each_ref().map(|extra_node| extra_node.pod.host.name());
        match answer {
            "web-1" | "web-2" => NAMES[0],
            name if name == pods[0] => NAMES[1],
            name if name == pods[1] => NAMES[2],
            _ => "unknown",
        }
    }

    /// Address of one node of each cluster.
    pub fn nodes(&self) -> [String; 3] {
        let blue = self.fixture.cluster.nodes()[0].addresses()[0].to_string();
        let [green, red] =
            self.extra_nodes.each_ref().map(|extra_node| extra_node.node.host.addresses()[0].to_string());
        [blue, green, red]
    }

    /// The API servers of all clusters.
    pub fn api_servers(&self) -> [Component; 3] {
        let copy = |cluster: &ExtraCluster| {
            let server = &cluster.api_server;
            Component::new(server.location, &server.name, server.arguments.clone()).unwrap()
        };
        [self.fixture.cluster.component("kube-apiserver").unwrap(), copy(&self.green), copy(&self.red)]
    }

    pub fn wait_for_api_servers(&self) {
        self.fixture.cluster.wait_for_api().unwrap();
        self.green.wait_until_ready().unwrap();
        self.red.wait_until_ready().unwrap();
    }
}

fn ports() -> Value {
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 80, "targetPort": 8080, "protocol": protocol, "nodePort": NODE_PORT});
    json!([port("tcp", "TCP"), port("udp", "UDP")])
}

fn pod_addresses(fixture: &ClusterFixture) -> [String; 2] {
    let ips = fixture.get("pod", "web-1")["status"]["podIPs"].clone();
    [0, 1].map(|at| ips[at]["ip"].as_str().unwrap().to_owned())
}

/// `web` of an extra cluster, and its endpoint.
fn objects(node: HostId, ips: &[String; 2], pod: &[String; 2]) -> Vec<Value> {
    let slice = |family: &str, address: &str| {
        let name = format!("web-{}", family.to_lowercase());
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "tcp", "port": 8080, "protocol": "TCP"}, {"name": "udp", "port": 8080, "protocol": "UDP"}],
            "endpoints": [{"addresses": [address], "nodeName": node.name(), "conditions": {"ready": true}}],
        })
    };
    vec![extra_service("web", ips, json!({"type": "NodePort"})), slice("IPv4", &pod[0]), slice("IPv6", &pod[1])]
}

pub fn extra_service(name: &str, ips: &[String; 2], more: Value) -> Value {
    let mut spec = json!({
        "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
        "ports": ports(),
    });
    more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

/// The host whose agent serves all three clusters.
pub struct MultiClusterHost<'a> {
    pub clusters: &'a ThreeClusters,
    pub agent: HostAgent<'a>,
    /// podAccess of green and red. With `node` the shared pod addresses belong to blue, with `auto` to no cluster.
    pod_access: &'static str,
}

impl<'a> MultiClusterHost<'a> {
    pub fn start(clusters: &'a ThreeClusters, pod_access: &'static str) -> MultiClusterHost<'a> {
        let dns = format!("--dns-address={}:53", DNS[0]);
        let dns_view = format!("--dns-view=green={}:53", DNS[1]);
        let agent = clusters.outside.agent_with_config(&json!({}), &[&dns, &dns_view]).unwrap();
        // The cgroup is created before the agent starts, so that its view is in effect at once.
        fs::create_dir_all(clusters.outside.cgroup().unwrap().join(GREEN)).unwrap();
        let host = MultiClusterHost { clusters, agent, pod_access };
        host.configure(&NAMES);
        host.agent.start().unwrap();
        host.wait_until_synced(&NAMES);
        host.wait_for_answers();
        host
    }

    /// An entry of the file's cluster list. Every cluster has a view, so that it can be dialled in any order of the
    /// file.
    pub fn entry(&self, name: &str) -> Value {
        let kubeconfig = match name {
            "blue" => self.clusters.outside.kubeconfig(),
            "green" => self.clusters.green.kubeconfig(true),
            _ => self.clusters.red.kubeconfig(true),
        };
        let pod_access = if name == "blue" { "auto" } else { self.pod_access };
        json!({"name": name, "kubeconfig": kubeconfig, "view": name, "podAccess": pod_access})
    }

    /// Writes a file with these clusters in this order.
    pub fn configure(&self, names: &[&str]) {
        self.configure_entries(names.iter().map(|name| self.entry(name)).collect());
    }

    pub fn configure_entries(&self, clusters: Vec<Value>) {
        self.agent.configure(&self.file(clusters).to_string()).unwrap();
    }

    pub fn file(&self, clusters: Vec<Value>) -> Value {
        let has_green = clusters.iter().any(|cluster| cluster["view"] == "green");
        let mut file = json!({"host-role": "outside", "clusters": clusters});
        if has_green {
            file["views"] =
                json!({ self.clusters.outside.cgroup().unwrap().join(GREEN).display().to_string(): "green" });
        }
        file
    }

    pub fn cluster(&self, name: &str) -> Value {
        self.agent.cluster(name).unwrap_or_default()
    }

    /// Waits until the agent has read all objects of these clusters from their API servers.
    pub fn wait_until_synced(&self, names: &[&str]) {
        for name in names {
            wait_until(&format!("{name} is synced"), || {
                let status = self.cluster(name);
                status["synced"] == true && status["error"].is_null() && status["snapshotTime"].is_null()
            });
        }
    }

    /// Waits for kube-proxy on the nodes of the extra clusters.
    fn wait_for_answers(&self) {
        for (name, address) in [("green", &self.clusters.shared_ips[0]), ("red", &self.clusters.red_ips[0])] {
            wait_until(&format!("{name} answers"), || {
                self.clusters.cluster_of(&self.dial_in_view(name, &host_port(address, 80))) == name
            });
        }
    }

    pub fn dial(&self, at: &str) -> String {
        self.agent.dial(at).unwrap()
    }

    pub fn dial_in_view(&self, view: &str, at: &str) -> String {
        self.agent.dial_in_view(view, at).unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Waits for a refusal with this reason whose message contains all these words, and returns the message.
    pub fn wait_for_refusal(&self, reason: &str, words: &[&str]) -> String {
        let mut last = Vec::new();
        for _ in 0..150 {
            last = self.agent.refusals(reason).unwrap_or_default();
            if let Some(message) = last.iter().find(|message| words.iter().all(|word| message.contains(word))) {
                return message.clone();
            }
            sleep(Duration::from_millis(200));
        }
        panic!("no refusal {reason} contains {words:?}; there are {last:?}")
    }

    pub fn wait_for_none(&self, reason: &str) {
        wait_until(&format!("there is no refusal {reason}"), || {
            self.agent.refusals(reason).is_ok_and(|all| all.is_empty())
        });
    }
}

/// Lets the clients dial for this time in the current state.
pub fn dial_for(seconds: u64) {
    sleep(Duration::from_secs(seconds));
}
