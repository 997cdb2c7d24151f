//! Test fixture: a namespace of the running cluster for one test, with its pods and Services, and dials from its pods.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use kit::{NodeId, TestCluster};
use serde_json::{Value, json};

pub const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.59";
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// Tests run one at a time, because some of them stop components of the cluster.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

pub struct ClusterFixture {
    pub cluster: TestCluster,
    namespace: String,
    _exclusive: MutexGuard<'static, ()>,
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "timed out after {TIMEOUT:?} waiting until {what}");
        sleep(Duration::from_millis(200));
    }
}

/// A pod that answers with its name on TCP and UDP port 8080.
pub fn server(name: &str, node: u8) -> Value {
    let arguments = ["netexec", "--http-port=8080", "--udp-port=8080"];
    let mut pod = pod(name, node, &arguments);
    pod["metadata"]["labels"] = json!({ "app": "web" });
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": 8080 }]);
    pod
}

/// A pod from which a test dials.
pub fn client(name: &str, node: u8) -> Value {
    pod(name, node, &["pause"])
}

pub fn pod(name: &str, node: u8, arguments: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": format!("n{node}"), "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": IMAGE, "args": arguments, "imagePullPolicy": "Never" }],
        },
    })
}

/// A dual-stack Service of the pods with the label `app: web`, on TCP and UDP port 80.
pub fn service(name: &str, more: Value) -> Value {
    let ports = json!([
        { "name": "tcp", "port": 80, "targetPort": 8080, "protocol": "TCP" },
        { "name": "udp", "port": 80, "targetPort": 8080, "protocol": "UDP" },
    ]);
    let mut spec = json!({ "selector": { "app": "web" }, "ipFamilyPolicy": "RequireDualStack", "ports": ports });
    more.as_object().expect("an object").iter().for_each(|(key, value)| spec[key] = value.clone());
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": spec })
}

/// Formats an address and a port: `[fd00::1]:80`, `10.0.0.1:80`.
pub fn host_port(address: &str, port: u64) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

impl ClusterFixture {
    pub fn new(name: &str) -> ClusterFixture {
        let exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster =
            TestCluster::find().expect("no cluster is running: run `make test-cluster`, or `make cluster` first");
        let namespace = format!("test-{name}-{}", std::process::id());
        let fixture = ClusterFixture { cluster, namespace, _exclusive: exclusive };
        fixture
            .cluster
            .apply(&json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": fixture.namespace },
            }))
            .unwrap();
        wait_until("the namespace has a service account", || {
            fixture.try_kubectl(&["get", "serviceaccount", "default"]).is_ok()
        });
        fixture
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn try_kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.cluster.kubectl(&[&["-n", &self.namespace], arguments].concat())
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).unwrap()
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

    /// Creates the policies' CRDs, if they do not exist.
    pub fn define_policies(&self) {
        kit::chart::define_policies(&self.cluster).unwrap();
    }

    pub fn wait_ready(&self, pods: &[&str]) {
        let names: Vec<String> = pods.iter().map(|pod| format!("pod/{pod}")).collect();
        let arguments: Vec<&str> = ["wait", "--for=condition=Ready", "--timeout=90s"]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .collect();
        self.kubectl(&arguments);
    }

    pub fn delete(&self, kind: &str, name: &str) {
        self.kubectl(&["delete", kind, name, "--wait=false"]);
    }

    pub fn exec(&self, pod: &str, script: &str) -> String {
        self.kubectl(&["exec", pod, "--", "sh", "-c", script])
    }

    /// Number of answers by server. A failed dial is counted as `failed` and curl's exit code (7: refused, 28: timed
    /// out).
    pub fn dial(&self, from: &str, address: &str, times: u32) -> BTreeMap<String, u32> {
        count_lines(&self.exec(from, &dial_script(address, times)))
    }

    /// Like [`ClusterFixture::dial`], from a node instead of a pod.
    pub fn dial_from_node(&self, node: u8, address: &str, times: u32) -> BTreeMap<String, u32> {
        count_lines(&self.on_node(node, &["sh", "-c", &dial_script(address, times)]))
    }

    /// Name of the server that answered a datagram, or an empty string.
    pub fn send(&self, from: &str, address: &str, port: u64) -> String {
        self.exec(from, &format!("echo hostname | timeout 3 nc -u -w 1 {address} {port} || true")).trim().to_owned()
    }

    pub fn on_node(&self, node: u8, arguments: &[&str]) -> String {
        self.cluster.node(NodeId::new(node).unwrap(), arguments).unwrap()
    }

    /// Runs a beeline command beside the agent of a node.
    pub fn beeline(&self, node: u8, arguments: &[&str]) -> String {
        let beeline = kit::agent::binary(None).unwrap().display().to_string();
        self.on_node(node, &[&[beeline.as_str()], arguments].concat())
    }

    /// The IPv4 and IPv6 ClusterIPs of a Service.
    pub fn cluster_ips(&self, service: &str) -> [String; 2] {
        let ips = self.get("service", service)["spec"]["clusterIPs"].clone();
        let ip = |i: usize| ips[i].as_str().unwrap_or_else(|| panic!("expected two ClusterIPs: {ips}")).to_owned();
        [ip(0), ip(1)]
    }

    #[allow(dead_code)] // Used by the tests of hosts outside.
    /// Creates a pod on a node that was switched to macvlan. containerd reads its CNI configuration asynchronously, so
    /// a pod with an address of the old network is deleted and created again.
    pub fn create_macvlan_pod(&self, pod: Value) {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        wait_until(&format!("{name} has a macvlan address"), || {
            self.apply(std::slice::from_ref(&pod));
            self.wait_ready(&[&name]);
            let address = self.get("pod", &name)["status"]["podIP"].as_str().unwrap_or_default().to_owned();
            let is_macvlan = address.starts_with("172.31.0.");
            if !is_macvlan {
                self.kubectl(&["delete", "pod", &name, "--wait=true", "--timeout=60s"]);
            }
            is_macvlan
        });
    }

    /// Waits until the Service's slices have this many ready endpoints and every node has programmed them.
    pub fn wait_for_endpoints(&self, service: &str, endpoints: usize) {
        let count = || {
            let arguments =
                ["get", "endpointslices", "-l", &format!("kubernetes.io/service-name={service}"), "-o", "json"];
            let slices: Value = serde_json::from_str(&self.kubectl(&arguments)).unwrap();
            let ready = |slice: &Value| {
                slice["endpoints"]
                    .as_array()
                    .map_or(0, |all| all.iter().filter(|e| e["conditions"]["ready"] == true).count())
            };
            slices["items"].as_array().unwrap().iter().filter(|s| s["addressType"] == "IPv4").map(ready).sum::<usize>()
        };
        wait_until(&format!("{service} has {endpoints} endpoints"), || count() == endpoints);
        self.wait_for_agents();
    }
}

impl ClusterFixture {
    /// Waits until the agents of all nodes have processed every EndpointSlice written so far: a marker Service and
    /// slice are created, and agents process slices in order.
    fn wait_for_agents(&self) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("marker-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let marker = service(&name, json!({ "selector": null, "ipFamilyPolicy": "SingleStack" }));
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name } },
            "ports": [{ "name": "tcp", "port": 8080 }],
            "endpoints": [{ "addresses": ["198.51.100.1"], "conditions": { "ready": true } }],
        });
        self.apply(&[marker, slice]);
        let ip = self.get("service", &name)["spec"]["clusterIP"].as_str().unwrap().to_owned();
        let target = format!("{}/TCP", host_port(&ip, 80));
        let is_resolved = |node: &NodeId| {
            let beeline = kit::agent::binary(None).unwrap().display().to_string();
            let explained = self.cluster.node(*node, &[&beeline, "explain", &target, "-o", "json"]).unwrap_or_default();
            serde_json::from_str(&explained).is_ok_and(|explained: Value| explained["verdict"] == "resolved")
        };
        wait_until("all agents have processed the slices", || self.cluster.nodes().iter().all(is_resolved));
    }
}

impl Drop for ClusterFixture {
    fn drop(&mut self) {
        let _ = self.cluster.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]);
    }
}

fn dial_script(address: &str, times: u32) -> String {
    format!(
        "for i in $(seq {times}); do curl -s -o /tmp/answer --max-time 5 http://{address}/hostname && cat /tmp/answer || printf \"failed $?\"; echo; done"
    )
}

fn count_lines(text: &str) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

/// Asserts that exactly these servers answered, each at least once.
pub fn assert_servers(counts: &BTreeMap<String, u32>, names: &[&str], what: &str) {
    let servers: Vec<&str> = counts.keys().map(String::as_str).collect();
    assert_eq!(servers, names, "{what}: {counts:?}");
}
