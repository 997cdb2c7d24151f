//! The three clusters, the host that sees them, and the agent on it.

use std::{
    fs,
    thread::{self, sleep},
    time::Duration,
};

use kit::{
    Host,
    host::{Outside, Resolver, Road},
    part::Part,
    twin::{Member, Twin},
};
use serde_json::{Value, json};

use crate::field::{Field, at, eventually, server, service};

pub const NAMES: [&str; 3] = ["blue", "green", "red"];
/// The same in all of them.
pub const NODE_PORT: u64 = 30080;
/// A cgroup on the host whose view is green's.
pub const GREEN: &str = "green";
/// Where names are answered: for everybody, and in green's view.
pub const DNS: [&str; 2] = ["127.0.0.55", "127.0.0.56"];

pub struct Trio {
    pub field: Field,
    pub green: Twin,
    pub red: Twin,
    pub members: [Member; 2],
    pub outside: Outside,
    /// ClusterIPs that blue and green both have, and that red has.
    pub same: [String; 2],
    pub own: [String; 2],
}

impl Trio {
    pub fn make(name: &str) -> Trio {
        // They start while blue's pods do.
        let twins = [|| Twin::start(2), || Twin::start_apart(3)].map(thread::spawn);
        let field = Field::new(name);
        field.apply(&[server("web-1", 1), server("web-2", 2)]);
        // Another test's Service may hold the nodePort for a moment.
        // While its API server is away for long, blue takes its nodes, and so the pods, for dead: they are not.
        let web = json!({"type": "NodePort", "ports": ports(), "publishNotReadyAddresses": true});
        let web = [service("web", web)];
        eventually("the nodePort is free", || field.try_apply(&web).is_ok());
        field.wait_ready(&["web-1", "web-2"]);
        field.settle("web", 2);
        let same = field.cluster_ips("web");
        let own = ["10.98.0.80".to_owned(), "fd00:10:98::80".to_owned()];
        let pod = pod_addresses(&field);
        let [green, red] = twins.map(|twin| twin.join().unwrap().unwrap());
        let members = [(&green, 2, &same), (&red, 4, &own)].map(|(twin, number, ips)| {
            let (node, inside) = (Host::new(number).unwrap(), Host::new(number + 1).unwrap());
            // The same pod address is another pod in each cluster.
            let member = twin.join(node, inside, pod.clone().map(|ip| ip.parse().unwrap())).unwrap();
            objects(node, ips, &pod).iter().for_each(|object| twin.apply(object).unwrap());
            member
        });
        let outside = Outside::make(Host::new(1).unwrap(), Road::Default).unwrap();
        Trio { field, green, red, members, outside, same, own }
    }

    /// Which cluster whoever answers is in.
    pub fn cluster_of(&self, answer: &str) -> &'static str {
        let pods = self.members.each_ref().map(|member| member.pod.host.name());
        match answer {
            "web-1" | "web-2" => NAMES[0],
            name if name == pods[0] => NAMES[1],
            name if name == pods[1] => NAMES[2],
            _ => "nobody's",
        }
    }

    /// An address of a node of each.
    pub fn nodes(&self) -> [String; 3] {
        let blue = self.field.cluster.nodes()[0].addresses()[0].to_string();
        let [green, red] = self.members.each_ref().map(|member| member.node.host.addresses()[0].to_string());
        [blue, green, red]
    }

    /// Of each.
    pub fn api_servers(&self) -> [Part; 3] {
        let of = |twin: &Twin| Part::new(twin.server.place, &twin.server.name, twin.server.words.clone()).unwrap();
        [self.field.cluster.part("kube-apiserver").unwrap(), of(&self.green), of(&self.red)]
    }

    pub fn wait_for_api_servers(&self) {
        self.field.cluster.wait_for_api().unwrap();
        self.green.wait_until_ready().unwrap();
        self.red.wait_until_ready().unwrap();
    }
}

fn ports() -> Value {
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 80, "targetPort": 8080, "protocol": protocol, "nodePort": NODE_PORT});
    json!([port("tcp", "TCP"), port("udp", "UDP")])
}

fn pod_addresses(field: &Field) -> [String; 2] {
    let ips = field.get("pod", "web-1")["status"]["podIPs"].clone();
    [0, 1].map(|at| ips[at]["ip"].as_str().unwrap().to_owned())
}

/// A Service of a twin, and its one endpoint.
fn objects(node: Host, ips: &[String; 2], pod: &[String; 2]) -> Vec<Value> {
    let slice = |family: &str, address: &str| {
        let name = format!("web-{}", family.to_lowercase());
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "tcp", "port": 8080, "protocol": "TCP"}, {"name": "udp", "port": 8080, "protocol": "UDP"}],
            "endpoints": [{"addresses": [address], "nodeName": node.name(), "conditions": {"ready": true}}],
        })
    };
    vec![twin_service("web", ips, json!({"type": "NodePort"})), slice("IPv4", &pod[0]), slice("IPv6", &pod[1])]
}

pub fn twin_service(name: &str, ips: &[String; 2], more: Value) -> Value {
    let mut spec = json!({
        "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
        "ports": ports(),
    });
    more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

/// The host with its agent, which serves all three.
pub struct Stage<'a> {
    pub trio: &'a Trio,
    pub resolver: Resolver<'a>,
    /// How the twins' pods are reached: `node` leaves the common pod addresses to blue, with `auto` they are nobody's.
    pods: &'static str,
}

impl<'a> Stage<'a> {
    pub fn open(trio: &'a Trio, pods: &'static str) -> Stage<'a> {
        let dns = format!("--dns-address={}:53", DNS[0]);
        let dns_view = format!("--dns-view=green={}:53", DNS[1]);
        let resolver = trio.outside.configured(&json!({}), &[&dns, &dns_view]).unwrap();
        // One that comes later has its view a moment later.
        fs::create_dir_all(trio.outside.cgroup().unwrap().join(GREEN)).unwrap();
        let stage = Stage { trio, resolver, pods };
        stage.configure(&NAMES);
        stage.resolver.start().unwrap();
        stage.wait_until_heard(&NAMES);
        stage.wait_for_answers();
        stage
    }

    /// One of the file's clusters. All have a view, so that each can be dialled whatever the order is.
    pub fn entry(&self, name: &str) -> Value {
        let kubeconfig = match name {
            "blue" => self.trio.outside.kubeconfig(),
            "green" => self.trio.green.kubeconfig(true),
            _ => self.trio.red.kubeconfig(true),
        };
        let pods = if name == "blue" { "auto" } else { self.pods };
        json!({"name": name, "kubeconfig": kubeconfig, "view": name, "pods": pods})
    }

    /// These clusters, in this order.
    pub fn configure(&self, names: &[&str]) {
        self.configure_entries(names.iter().map(|name| self.entry(name)).collect());
    }

    pub fn configure_entries(&self, clusters: Vec<Value>) {
        self.resolver.configure(&self.file(clusters).to_string()).unwrap();
    }

    pub fn file(&self, clusters: Vec<Value>) -> Value {
        let has_green = clusters.iter().any(|cluster| cluster["view"] == "green");
        let mut file = json!({"stand": "outside", "clusters": clusters});
        if has_green {
            file["views"] = json!({ self.trio.outside.cgroup().unwrap().join(GREEN).display().to_string(): "green" });
        }
        file
    }

    pub fn cluster(&self, name: &str) -> Value {
        self.resolver.cluster(name).unwrap_or_default()
    }

    /// All of these have been heard, by whoever speaks for them now.
    pub fn wait_until_heard(&self, names: &[&str]) {
        for name in names {
            eventually(&format!("{name} is heard"), || {
                let said = self.cluster(name);
                said["synced"] == true && said["error"].is_null() && said["remembered"].is_null()
            });
        }
    }

    /// kube-proxy of the twins' nodes has just begun.
    fn wait_for_answers(&self) {
        for (name, address) in [("green", &self.trio.same[0]), ("red", &self.trio.own[0])] {
            eventually(&format!("{name} answers"), || {
                self.trio.cluster_of(&self.dial_in(name, &at(address, 80))) == name
            });
        }
    }

    pub fn dial(&self, at: &str) -> String {
        self.resolver.dial(at).unwrap()
    }

    pub fn dial_in(&self, view: &str, at: &str) -> String {
        self.resolver.dial_in(view, at).unwrap_or_else(|error| format!("{error:#}"))
    }

    /// The message of a refusal with this reason that has all these words.
    pub fn wait_for_refusal(&self, reason: &str, words: &[&str]) -> String {
        let mut last = Vec::new();
        for _ in 0..150 {
            last = self.resolver.refused(reason).unwrap_or_default();
            if let Some(message) = last.iter().find(|message| words.iter().all(|word| message.contains(word))) {
                return message.clone();
            }
            sleep(Duration::from_millis(200));
        }
        panic!("no {reason} with {words:?}; there are {last:?}")
    }

    pub fn wait_for_none(&self, reason: &str) {
        eventually(&format!("no {reason} any more"), || self.resolver.refused(reason).is_ok_and(|all| all.is_empty()));
    }
}

/// So long the clients see how it is.
pub fn hold(seconds: u64) {
    sleep(Duration::from_secs(seconds));
}
