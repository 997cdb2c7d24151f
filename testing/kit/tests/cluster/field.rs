//! A namespace for one test: its pods, its services, and dials from inside them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use kit::{Cluster, Node};
use serde_json::{Value, json};

pub const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.59";
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Two cores serve three nodes: one test at a time, also because some of them stop what the others need.
static TURN: Mutex<()> = Mutex::new(());

pub struct Field {
    pub cluster: Cluster,
    namespace: String,
    _turn: MutexGuard<'static, ()>,
}

pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not come within {PATIENCE:?}");
        sleep(Duration::from_millis(200));
    }
}

/// A pod that answers with its name on TCP and UDP port 8080.
pub fn server(name: &str, node: u8) -> Value {
    let words = ["netexec", "--http-port=8080", "--udp-port=8080"];
    let mut pod = pod(name, node, &words);
    pod["metadata"]["labels"] = json!({ "app": "web" });
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": 8080 }]);
    pod
}

/// A pod that only stands there, to dial from.
pub fn client(name: &str, node: u8) -> Value {
    pod(name, node, &["pause"])
}

pub fn pod(name: &str, node: u8, words: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": format!("n{node}"), "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": IMAGE, "args": words, "imagePullPolicy": "Never" }],
        },
    })
}

/// A dual-stack Service of the pods with `app: web`: port 80, TCP and UDP.
pub fn service(name: &str, more: Value) -> Value {
    let ports = json!([
        { "name": "tcp", "port": 80, "targetPort": 8080, "protocol": "TCP" },
        { "name": "udp", "port": 80, "targetPort": 8080, "protocol": "UDP" },
    ]);
    let mut spec = json!({ "selector": { "app": "web" }, "ipFamilyPolicy": "RequireDualStack", "ports": ports });
    more.as_object().expect("an object").iter().for_each(|(key, value)| spec[key] = value.clone());
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": spec })
}

/// `[fd00::1]:80`, `10.0.0.1:80`.
pub fn at(address: &str, port: u64) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

impl Field {
    pub fn new(name: &str) -> Field {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Cluster::find().expect("a cluster runs: `make test-cluster`, or `make cluster` first");
        let namespace = format!("test-{name}-{}", std::process::id());
        let field = Field { cluster, namespace, _turn: turn };
        field
            .cluster
            .apply(&json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": field.namespace },
            }))
            .unwrap();
        eventually("the namespace's account", || field.try_kubectl(&["get", "serviceaccount", "default"]).is_ok());
        field
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn try_kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        self.cluster.kubectl(&[&["-n", &self.namespace], words].concat())
    }

    pub fn kubectl(&self, words: &[&str]) -> String {
        self.try_kubectl(words).unwrap()
    }

    pub fn get(&self, kind: &str, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
    }

    pub fn apply(&self, objects: &[Value]) {
        self.try_apply(objects).unwrap();
    }

    pub fn try_apply(&self, objects: &[Value]) -> anyhow::Result<()> {
        let mut items = objects.to_vec();
        items.iter_mut().for_each(|item| item["metadata"]["namespace"] = self.namespace.clone().into());
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        self.cluster.apply(&list)
    }

    /// Makes the cluster know policies. Fine if it does.
    pub fn define_policies(&self) {
        let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart/definitions");
        self.kubectl(&["apply", "--server-side", "-f", crds]);
        let names = ["localredirectpolicies", "balancingpolicies"].map(|kind| format!("crd/{kind}.beeline.dev"));
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &names[0], &names[1]]);
    }

    pub fn wait_ready(&self, pods: &[&str]) {
        let names: Vec<String> = pods.iter().map(|pod| format!("pod/{pod}")).collect();
        let words: Vec<&str> = ["wait", "--for=condition=Ready", "--timeout=90s"]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .collect();
        self.kubectl(&words);
    }

    pub fn delete(&self, kind: &str, name: &str) {
        self.kubectl(&["delete", kind, name, "--wait=false"]);
    }

    pub fn exec(&self, pod: &str, script: &str) -> String {
        self.kubectl(&["exec", pod, "--", "sh", "-c", script])
    }

    /// Who answered how often; a dial that failed is counted under curl's exit code (7: refused, 28: no answer).
    pub fn dial(&self, from: &str, address: &str, times: u32) -> BTreeMap<String, u32> {
        tally(&self.exec(from, &script(address, times)))
    }

    /// The same from the node itself.
    pub fn dial_from_node(&self, node: u8, address: &str, times: u32) -> BTreeMap<String, u32> {
        tally(&self.on_node(node, &["sh", "-c", &script(address, times)]))
    }

    /// Who answered a datagram; nobody: an empty name.
    pub fn send(&self, from: &str, address: &str, port: u64) -> String {
        self.exec(from, &format!("echo hostname | timeout 3 nc -u -w 1 {address} {port} || true")).trim().to_owned()
    }

    pub fn on_node(&self, node: u8, words: &[&str]) -> String {
        self.cluster.node(Node::new(node).unwrap(), words).unwrap()
    }

    /// The CLI beside that node's agent.
    pub fn beeline(&self, node: u8, words: &[&str]) -> String {
        let beeline = kit::agent::binary(None).unwrap().display().to_string();
        self.on_node(node, &[&[beeline.as_str()], words].concat())
    }

    /// Both ClusterIPs.
    pub fn cluster_ips(&self, service: &str) -> [String; 2] {
        let ips = self.get("service", service)["spec"]["clusterIPs"].clone();
        let ip = |i: usize| ips[i].as_str().unwrap_or_else(|| panic!("two ClusterIPs: {ips}")).to_owned();
        [ip(0), ip(1)]
    }

    /// Until every node's kernel tables hold the endpoints that the slices name.
    pub fn settle(&self, service: &str, endpoints: usize) {
        let count = || {
            let words = ["get", "endpointslices", "-l", &format!("kubernetes.io/service-name={service}"), "-o", "json"];
            let slices: Value = serde_json::from_str(&self.kubectl(&words)).unwrap();
            let of = |slice: &Value| {
                slice["endpoints"]
                    .as_array()
                    .map_or(0, |all| all.iter().filter(|e| e["conditions"]["ready"] == true).count())
            };
            slices["items"].as_array().unwrap().iter().filter(|s| s["addressType"] == "IPv4").map(of).sum::<usize>()
        };
        eventually("the endpoints", || count() == endpoints);
        // The tables follow within milliseconds; a machine that starves may take longer.
        sleep(Duration::from_millis(500));
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        let _ = self.cluster.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]);
    }
}

fn script(address: &str, times: u32) -> String {
    format!(
        "for i in $(seq {times}); do curl -s -o /tmp/answer --max-time 5 http://{address}/hostname && cat /tmp/answer || printf \"failed $?\"; echo; done"
    )
}

fn tally(text: &str) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

/// All dials were answered by these, and each of them answered.
pub fn only(counts: &BTreeMap<String, u32>, names: &[&str], what: &str) {
    let got: Vec<&str> = counts.keys().map(String::as_str).collect();
    assert_eq!(got, names, "{what}: {counts:?}");
}
