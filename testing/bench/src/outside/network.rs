//! Network of the bench: a control plane with a bridge, two nodes with kube-proxy, their pods, and the host, each in a
//! network namespace. The host gets a new namespace for every measurement, so that none of its ports is in TIME_WAIT.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use beeline_datapath::program::cleanup;
use kit::cache::Cache;
use serde_json::json;

use super::{
    application,
    path::DialPath,
    processes::{ApplicationProcesses, LoadSize, OutsideFigures},
};
use crate::{
    cluster::{
        control_plane::ControlPlane,
        network::API_ADDRESS,
        objects::{CLUSTER, POD_PORT, SERVICE_PATH, SERVICE_PORT, SLICE_PATH},
        process::BenchProcess,
    },
    isolation::{self, BenchCgroup, BenchNamespace},
};

pub const NODE_PORT: u16 = 30_080;
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 97, 0, 1), SERVICE_PORT);
/// Number of the service's pods on each node.
const PODS: u8 = 10;
const BRIDGE: Ipv4Addr = Ipv4Addr::new(172, 30, 1, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(172, 30, 1, 100);
const START: Duration = Duration::from_secs(60);

pub struct BenchNode {
    name: &'static str,
    pub address: Ipv4Addr,
    /// Third byte of the pods' addresses.
    pods: u8,
}

pub const NODES: [BenchNode; 2] = [
    BenchNode { name: "node-1", address: Ipv4Addr::new(172, 30, 1, 11), pods: 1 },
    BenchNode { name: "node-2", address: Ipv4Addr::new(172, 30, 1, 12), pods: 2 },
];

impl BenchNode {
    fn range(&self) -> String {
        format!("10.128.{}.0/24", self.pods)
    }

    fn pod(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 128, self.pods, 10 + number)
    }
}

/// A node with kube-proxy and its pods. Fields are dropped in this order.
struct RunningNode {
    proxy: BenchProcess,
    /// One process per pod, because together they have more connections than one process may have open files.
    pods: Vec<BenchProcess>,
    node: BenchNamespace,
    _network: BenchNamespace,
}

/// Fields are dropped in this order.
pub struct OutsideNetwork {
    host: Option<BenchNamespace>,
    nodes: Vec<RunningNode>,
    control: ControlPlane,
    bridge: BenchNamespace,
    cgroup: BenchCgroup,
    kubeconfig: PathBuf,
    files: PathBuf,
    logs: PathBuf,
    pins: PathBuf,
}

impl OutsideNetwork {
    /// Creates the namespaces and starts the control plane, kube-proxy and the pods. This process, and with it the
    /// application, moves into the host's cgroup.
    pub fn create(cache: &Cache, files: &Path, logs: &Path) -> Result<Self> {
        let cgroup = BenchCgroup::enter("beeline-bench")?;
        join(&cgroup.path().join("host/application"))?;
        let bridge = BenchNamespace::create("beeline-bench-control")?;
        bridge.ip(&format!("address add {API_ADDRESS}/32 dev lo"))?;
        bridge.ip("link add bridge type bridge")?;
        bridge.ip(&format!("address add {BRIDGE}/24 dev bridge"))?;
        bridge.ip("link set bridge up")?;
        let nodes = NODES.iter().map(|node| create_node_namespaces(&bridge, node)).collect::<Result<Vec<_>>>()?;
        let control = ControlPlane::start(&bridge, &cgroup.path().join("control"), cache, files, logs)?;
        let kubeconfig = control.write_kubeconfig()?;
        write_objects(&control)?;
        let start = |(node, (netns, network)): (&BenchNode, (BenchNamespace, BenchNamespace))| {
            let proxy = start_proxy(node, &netns, &cgroup.path().join(node.name), cache, &kubeconfig, files, logs)?;
            let pods = start_pods(node, &network, &cgroup.path().join("pods"), logs)?;
            Ok(RunningNode { proxy, pods, node: netns, _network: network })
        };
        let nodes = NODES.iter().zip(nodes).map(start).collect::<Result<Vec<_>>>()?;
        let pins = isolation::pin_dir("outside")?;
        let (files, logs) = (files.into(), logs.into());
        Ok(Self { host: None, nodes, control, bridge, cgroup, kubeconfig, files, logs, pins })
    }

    /// Measures one path on a new host.
    pub fn measure(&mut self, path: DialPath, load: LoadSize) -> Result<OutsideFigures> {
        self.recreate_host()?;
        self.control.require_running()?;
        for member in &mut self.nodes {
            member.proxy.require_running()?;
            member.pods.iter_mut().try_for_each(BenchProcess::require_running)?;
            flush_conntrack(&member.node)?;
        }
        let mut agent = path.pods().map(|pods| self.start_agent(pods)).transpose()?;
        self.wait_until_served(path, agent.as_mut())?;
        let host = self.host.as_ref().context("the host has not been created")?;
        let figures = ApplicationProcesses::start(host, path)?.measure(load)?;
        drop(agent);
        cleanup(&self.pins)?;
        Ok(figures)
    }

    fn recreate_host(&mut self) -> Result<()> {
        // The kernel removes a namespace with ports in TIME_WAIT late, and would keep its bridge port until then.
        if let Some(host) = self.host.take() {
            self.bridge.ip("link delete host")?;
            drop(host);
        }
        let host = BenchNamespace::create("beeline-bench-host")?;
        connect_to_bridge(&self.bridge, &host, "host", HOST)?;
        for node in &NODES {
            host.ip(&format!("route add {} via {}", node.range(), node.address))?;
        }
        self.host = Some(host);
        Ok(())
    }

    fn on_host<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.host.as_ref().context("the host has not been created")?.run(work)
    }

    fn start_agent(&self, pods: &str) -> Result<BenchProcess> {
        let beeline = std::env::current_exe()?.with_file_name("beeline");
        ensure!(beeline.exists(), "{} is missing: cargo build --workspace --release", beeline.display());
        let words = [
            beeline.display().to_string(),
            "agent".into(),
            "--host-arguments=outside".into(),
            format!("--pod-access={pods}"),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--cgroup={}", self.cgroup.path().join("host").display()),
            format!("--pin-dir={}", self.pins.display()),
            format!("--socket={}", self.files.join("agent.sock").display()),
            format!("--state-dir={}", self.files.join("state").display()),
        ];
        let host = self.host.as_ref().context("the host has not been created")?;
        let cgroup = self.cgroup.path().join("agent");
        BenchProcess::start("Beeline", &cgroup, host, &words, &[], &self.logs.join("beeline.log"))
    }

    fn wait_until_served(&self, path: DialPath, mut agent: Option<&mut BenchProcess>) -> Result<()> {
        let end = Instant::now() + START;
        loop {
            if let Some(agent) = agent.as_deref_mut() {
                agent.require_running()?;
            }
            match self.on_host(|| application::try_all(path)) {
                Ok(()) => return Ok(()),
                Err(error) => ensure!(Instant::now() < end, "{} does not answer: {error:#}", path.name()),
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for OutsideNetwork {
    fn drop(&mut self) {
        if let Err(error) = cleanup(&self.pins) {
            eprintln!("{error:#}");
        }
    }
}

fn join(cgroup: &Path) -> Result<()> {
    fs::create_dir_all(cgroup).with_context(|| format!("cannot create {}", cgroup.display()))?;
    let file = cgroup.join("cgroup.procs");
    fs::write(&file, std::process::id().to_string()).with_context(|| file.display().to_string())
}

/// Connects the `eth0` of a namespace to the bridge.
fn connect_to_bridge(bridge: &BenchNamespace, other: &BenchNamespace, port: &str, address: Ipv4Addr) -> Result<()> {
    bridge.ip(&format!("link add {port} type veth peer name eth0 netns {}", other.name()))?;
    bridge.ip(&format!("link set {port} master bridge up"))?;
    other.ip(&format!("address add {address}/24 dev eth0"))?;
    other.ip("link set eth0 up")?;
    other.ip(&format!("route add default via {BRIDGE}"))
}

/// Creates the namespaces of a node and of its pods.
fn create_node_namespaces(bridge: &BenchNamespace, node: &BenchNode) -> Result<(BenchNamespace, BenchNamespace)> {
    let (netns, pods) = (
        BenchNamespace::create(&format!("beeline-bench-{}", node.name))?,
        BenchNamespace::create(&format!("beeline-bench-pods-{}", node.pods))?,
    );
    connect_to_bridge(bridge, &netns, node.name, node.address)?;
    netns.ip(&format!("link add pods type veth peer name eth0 netns {}", pods.name()))?;
    netns.ip("address add 169.254.1.1/30 dev pods")?;
    netns.ip("link set pods up")?;
    pods.ip("address add 169.254.1.2/30 dev eth0")?;
    pods.ip("link set eth0 up")?;
    pods.ip("route add default via 169.254.1.1")?;
    pods.ip(&format!("route add local {} dev lo", node.range()))?;
    netns.ip(&format!("route add {} via 169.254.1.2", node.range()))?;
    for other in NODES.iter().filter(|other| other.name != node.name) {
        netns.ip(&format!("route add {} via {}", other.range(), other.address))?;
    }
    bridge.ip(&format!("route add {} via {}", node.range(), node.address))?;
    netns.run(|| Ok(fs::write("/proc/sys/net/ipv4/ip_forward", "1")?))?;
    Ok((netns, pods))
}

/// Starts the pods, which listen when this returns.
fn start_pods(node: &BenchNode, network: &BenchNamespace, cgroup: &Path, logs: &Path) -> Result<Vec<BenchProcess>> {
    let bench = std::env::current_exe()?.display().to_string();
    let start = |number| {
        let pod = node.pod(number).to_string();
        let words = [bench.clone(), "pod".into(), pod.clone()];
        BenchProcess::start(&pod, &cgroup.join(&pod), network, &words, &[], &logs.join(format!("pod-{pod}.log")))
    };
    let mut pods = (0..PODS).map(start).collect::<Result<Vec<_>>>()?;
    let end = Instant::now() + START;
    for number in 0..PODS {
        let at = SocketAddrV4::new(node.pod(number), POD_PORT);
        while let Err(error) = network.run(|| Ok(TcpStream::connect(at)?)) {
            pods.iter_mut().try_for_each(BenchProcess::require_running)?;
            ensure!(Instant::now() < end, "pod {at} is not listening: {error:#}");
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(pods)
}

fn write_objects(control: &ControlPlane) -> Result<()> {
    for node in &NODES {
        control.create_node(node.name, &node.address.to_string())?;
    }
    let service = json!({
        "metadata": {"name": "web"},
        "spec": {
            "type": "NodePort", "clusterIP": SERVICE.ip(),
            "ports": [{"name": "http", "port": SERVICE.port(), "targetPort": POD_PORT, "nodePort": NODE_PORT}],
        },
    });
    control.write("POST", SERVICE_PATH, &service)?;
    let endpoint = |node: &BenchNode, number: u8| json!({"addresses": [node.pod(number)], "conditions": {"ready": true}, "nodeName": node.name});
    let endpoints: Vec<_> = NODES.iter().flat_map(|node| (0..PODS).map(move |number| endpoint(node, number))).collect();
    let slice = json!({
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": POD_PORT, "protocol": "TCP"}],
    });
    control.write("POST", SLICE_PATH, &slice).map(drop)
}

fn start_proxy(
    node: &BenchNode,
    netns: &BenchNamespace,
    cgroup: &Path,
    cache: &Cache,
    kubeconfig: &Path,
    files: &Path,
    logs: &Path,
) -> Result<BenchProcess> {
    let mut settings = kit::proxy::settings(node.name, kit::proxy::ProxyMode::Nftables, kubeconfig);
    settings["clusterCIDR"] = CLUSTER.into();
    let file = files.join(format!("{}.json", node.name));
    fs::write(&file, settings.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    let words = [cache.program("kube-proxy").display().to_string(), format!("--config={}", file.display())];
    BenchProcess::start(node.name, cgroup, netns, &words, &[], &logs.join(format!("{}.log", node.name)))
}

/// Removes the conntrack entries of the previous measurement.
fn flush_conntrack(node: &BenchNamespace) -> Result<()> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", node.file().display())).args(["conntrack", "-F"]);
    let output = command.output().context("cannot run conntrack: is it installed?")?;
    ensure!(output.status.success(), "conntrack -F: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
