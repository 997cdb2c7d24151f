//! The ground that the tests of real sockets stand on: a lab, a folder of manifests, and an agent that runs as a node's
//! does, in the node's network namespace. All of it is gone again on drop, also after a panic.
//!
//! A dial that the hooks leave alone must end somewhere, or "untouched" could not be told from "lost": the outside holds
//! service addresses too (`Ground::outside`), and a server there answers by the name "outside".

use beeline_datapath::count::{Count, Counters};
use beeline_datapath::object::{MapSet, RECORDS, TABLES};
use beeline_datapath::pin::PinDir;
use beeline_harness::{Lab, Output, Place, Program, Running, Server, Service};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

/// What the product promises within a second is awaited ten times as long: the machine may be busy, a promise that is
/// not kept at all still fails.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Fields are dropped in this order, after `Drop` has ended the agent and removed its pins.
pub struct Ground {
    agent: Option<Running>,
    dir: TempDir,
    pin_dir: PathBuf,
    args: Vec<String>,
    pub lab: Lab,
}

impl Ground {
    /// The agent runs on the lab's first node; every node of the lab is a Node in the folder.
    pub fn on(lab: Lab, objects: &[Object], args: &[&str]) -> Ground {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pin_dir = PathBuf::from(format!("/sys/fs/bpf/beeline-test-{}-{number}", std::process::id()));
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("manifests")).unwrap();
        let args = args.iter().map(|a| a.to_string()).collect();
        let mut ground = Ground { agent: None, dir, pin_dir, args, lab };
        for pods in ["10.244.1.0/24 via 172.31.0.11", "fd00:244::1:0/112 via fd00:31::11"] {
            ground.lab.outside.namespace.ip(&format!("route add {pods}\n")).unwrap();
        }
        ground.write(&node("node-1", &ground.lab.nodes[0].host));
        let second = ground.lab.nodes.get(1).map(|n| node("node-2", &n.host));
        second.iter().for_each(|n| ground.write(n));
        objects.iter().for_each(|o| ground.write(o));
        ground.start();
        ground
    }

    /// Starts the agent and waits until it serves.
    pub fn start(&mut self) {
        let program = self.lab.node().program(BEELINE).unwrap().args(["agent"]).args(self.agent_args());
        let mut agent = program.spawn().unwrap();
        agent.wait_for("serving", PATIENCE * 2).unwrap();
        self.agent = Some(agent);
    }

    /// The agent's command line; `plan` takes it too.
    pub fn agent_args(&self) -> Vec<String> {
        let place = |p: PathBuf| p.display().to_string();
        let mut args: Vec<String> = ["--node-name", "node-1", "--metrics-address", "off", "--health-address", "off"]
            .map(str::to_owned)
            .to_vec();
        args.extend(["--max-services", "256", "--node-addresses"].map(str::to_owned));
        args.push(format!("{},{}", self.lab.node().v4, self.lab.node().v6));
        args.extend(["--manifests".to_owned(), place(self.manifests())]);
        args.extend(["--cgroup".to_owned(), place(self.lab.cgroup().path().to_owned())]);
        args.extend(["--pin-dir".to_owned(), place(self.pin_dir.clone())]);
        args.extend(["--socket".to_owned(), place(self.socket())]);
        args.extend(self.args.iter().cloned());
        args
    }

    fn manifests(&self) -> PathBuf {
        self.dir.path().join("manifests")
    }

    pub fn link(&self, hook: &str) -> PathBuf {
        self.pin_dir.join("links").join(hook)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    pub fn agent(&mut self) -> &mut Running {
        self.agent.as_mut().expect("an agent runs")
    }

    /// kill -9, and gone when it returns.
    pub fn kill_agent(&mut self) {
        self.agent.take().expect("an agent runs").kill().unwrap();
    }

    // ---- objects ----

    /// Visible at once and whole, as an editor's rename makes it.
    fn write(&self, object: &Object) {
        let aside = self.dir.path().join("aside");
        std::fs::write(&aside, object.text()).unwrap();
        std::fs::rename(&aside, self.manifests().join(format!("{}.yaml", object.name))).unwrap();
    }

    pub fn apply(&self, object: &Object) {
        self.write(object);
        self.settle();
    }

    pub fn delete(&self, name: &str) {
        std::fs::remove_file(self.manifests().join(format!("{name}.yaml"))).unwrap();
        self.settle();
    }

    /// Until the kernel's tables are what the folder says.
    fn settle(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let output =
                self.run(Program::new(BEELINE, None, None).unwrap().args(["plan", "--diff"]).args(self.agent_args()));
            if output.status.success() {
                return;
            }
            assert!(Instant::now() < end, "the agent does not follow its folder: {output:?}");
        }
    }

    // ---- the command line ----

    fn run(&self, program: Program) -> Output {
        program.run().unwrap()
    }

    /// `beeline ARGS` with the pins and the socket of this ground.
    pub fn beeline(&self, args: &[&str]) -> Output {
        self.run(self.command(args))
    }

    pub fn command(&self, args: &[&str]) -> Program {
        let (pins, socket) = (self.pin_dir.display().to_string(), self.socket().display().to_string());
        Program::new(BEELINE, None, None).unwrap().args(args).args(["--pin-dir", &pins, "--socket", &socket])
    }

    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.beeline(&[args, &["-o", "json"]].concat());
        assert!(output.status.success(), "{args:?}: {output:?}");
        serde_json::from_str(&output.stdout).unwrap()
    }

    // ---- what the kernel half counted ----

    fn maps(&self) -> MapSet {
        let pins = PinDir::read_only(&self.pin_dir);
        let mut maps = MapSet::pinned(&pins.tables(pins.meta().unwrap().generation), &TABLES).unwrap();
        maps.extend(MapSet::pinned(&pins.records(), &RECORDS).unwrap());
        maps
    }

    pub fn stat(&self, name: &str) -> u64 {
        let stats = Count::new(&self.maps()).unwrap().stats().unwrap();
        stats.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no stat {name}")).1
    }

    /// Moves the agent's last sign of life this far ahead of the clock.
    pub fn beat_in(&self, ahead: Duration) {
        let control = self.maps().mapped::<beeline_datapath::abi::control>("control").unwrap();
        let at = beeline_datapath::control::monotonic() + ahead.as_nanos() as u64;
        control.store(0, std::mem::offset_of!(beeline_datapath::abi::control, heartbeat), at);
    }

    /// Of one service port, named as in `default/web/tcp/TCP`.
    pub fn counters(&self, port: &str) -> Counters {
        let maps = self.maps();
        let rows = beeline_datapath::Kernel::new(&maps).unwrap().rows().unwrap();
        let owner = rows.names.iter().find(|(_, name)| name.text.ends_with(&format!("/{port}")));
        let owner = owner
            .unwrap_or_else(|| panic!("no {port} in {:?}", rows.names.values().map(|n| &n.text).collect::<Vec<_>>()))
            .0;
        Count::new(&maps).unwrap().of_owner(owner)
    }

    // ---- the outside ----

    /// Gives the outside these addresses and a server that answers there: where an untouched dial ends.
    pub fn outside(&self, addresses: &[SocketAddr]) -> Server {
        let lines = addresses.iter().map(|at| match at.ip() {
            IpAddr::V4(ip) => format!("addr replace {ip}/32 dev wire\n"),
            IpAddr::V6(ip) => format!("addr replace {ip}/128 dev wire nodad\n"),
        });
        self.lab.outside.namespace.ip(&lines.collect::<String>()).unwrap();
        Service::new("outside", addresses.iter().copied()).start(&self.lab.outside.namespace).unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(agent) = self.agent.take().filter(|_| std::thread::panicking()) {
            eprintln!("the agent said:\n{}{}", agent.stdout(), agent.stderr());
        }
        if let Err(error) = beeline_datapath::program::cleanup(&self.pin_dir) {
            eprintln!("{error}");
        }
    }
}

/// Asks again until it is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One manifest file: documents under a name.
#[derive(Clone, Debug)]
pub struct Object {
    pub name: String,
    documents: Vec<Value>,
}

impl Object {
    /// JSON is YAML.
    fn text(&self) -> String {
        self.documents.iter().map(|d| format!("---\n{d}\n")).collect()
    }

    /// A Service of both families at `10.96.0.N` and `fd00:96::N`, port 80 TCP and UDP; its endpoints have port 8080.
    pub fn service(name: &str, number: u8) -> Object {
        let (v4, v6) = (format!("10.96.0.{number}"), format!("fd00:96::{number}"));
        let ports = json!([
            { "name": "tcp", "port": 80, "protocol": "TCP" },
            { "name": "udp", "port": 80, "protocol": "UDP" },
        ]);
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": {
                "clusterIP": v4, "clusterIPs": [v4, v6], "ipFamilies": ["IPv4", "IPv6"], "ports": ports,
            },
        });
        Object { name: name.to_owned(), documents: vec![service] }
    }

    /// A pod on the first node with one container, as its status would tell.
    pub fn pod(name: &str, uid: &str, container: &str, annotations: Value) -> Object {
        let status = json!({ "name": "app", "containerID": format!("containerd://{container}"), "image": "", "imageID": "",
            "ready": true, "restartCount": 0 });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "shop", "uid": uid, "annotations": annotations },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "app", "image": "none" }] },
            "status": { "phase": "Running", "containerStatuses": [status] },
        });
        Object { name: format!("pod-{name}"), documents: vec![pod] }
    }

    /// The UDP port gets another name, in the Service and in its slices.
    pub fn rename_udp(mut self, name: &str) -> Object {
        for document in &mut self.documents {
            let ports =
                if document["kind"] == "Service" { &mut document["spec"]["ports"] } else { &mut document["ports"] };
            ports[1]["name"] = name.into();
        }
        self
    }

    /// More of the Service's spec.
    pub fn spec(mut self, more: Value) -> Object {
        merge(&mut self.documents[0]["spec"], more);
        self
    }

    /// A LoadBalancer Service with these further addresses and the NodePort.
    pub fn external(self, node_port: u16, balancers: &[&str], external_ips: &[&str]) -> Object {
        let mut object = self.spec(json!({ "type": "LoadBalancer", "externalIPs": external_ips }));
        for port in object.documents[0]["spec"]["ports"].as_array_mut().unwrap() {
            port["nodePort"] = node_port.into();
        }
        let ingress: Vec<Value> = balancers.iter().map(|ip| json!({ "ip": ip })).collect();
        object.documents[0]["status"] = json!({ "loadBalancer": { "ingress": ingress } });
        object
    }

    /// Ready endpoints at these pods.
    pub fn at(self, pods: &[(&Place, &str)]) -> Object {
        self.endpoints(8080, &pods.iter().map(|(p, n)| Endpoint::of(p, n)).collect::<Vec<_>>())
    }

    pub fn endpoints(mut self, port: u16, endpoints: &[Endpoint]) -> Object {
        for (family, of) in [("IPv4", Endpoint::v4 as fn(&Endpoint) -> Value), ("IPv6", Endpoint::v6)] {
            self.documents.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{}-{}-{}", self.name, family.to_lowercase(), self.documents.len()),
                    "labels": { "kubernetes.io/service-name": self.name },
                },
                "addressType": family,
                "ports": [
                    { "name": "tcp", "port": port, "protocol": "TCP" },
                    { "name": "udp", "port": port, "protocol": "UDP" },
                ],
                "endpoints": endpoints.iter().map(of).collect::<Vec<_>>(),
            }));
        }
        self
    }
}

fn merge(into: &mut Value, more: Value) {
    for (key, value) in more.as_object().expect("an object").clone() {
        into[key] = value;
    }
}

#[derive(Clone, Debug)]
pub struct Endpoint {
    addresses: (String, String),
    node: String,
    conditions: Value,
}

impl Endpoint {
    pub fn of(place: &Place, node: &str) -> Endpoint {
        let addresses = (place.v4.to_string(), place.v6.to_string());
        Endpoint { addresses, node: node.to_owned(), conditions: json!({ "ready": true }) }
    }

    pub fn conditions(self, conditions: Value) -> Endpoint {
        Endpoint { conditions, ..self }
    }

    fn v4(&self) -> Value {
        json!({ "addresses": [self.addresses.0], "nodeName": self.node, "conditions": self.conditions })
    }

    fn v6(&self) -> Value {
        json!({ "addresses": [self.addresses.1], "nodeName": self.node, "conditions": self.conditions })
    }
}

fn node(name: &str, host: &Place) -> Object {
    let addresses = [host.v4.to_string(), host.v6.to_string()].map(|a| json!({ "type": "InternalIP", "address": a }));
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "status": { "addresses": addresses },
    });
    Object { name: name.to_owned(), documents: vec![node] }
}
