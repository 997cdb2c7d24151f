//! A control plane with a switch, two nodes with kube-proxy on it, pods behind each, and the host: a network namespace each.
//! The host's is made anew for every turn, so that no port of it waits for its time to pass.

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
    crew::{Amount, Crew, Figures},
    way::Way,
};
use crate::{
    cluster::{
        control::Control,
        process::Process,
        site::API_ADDRESS,
        world::{CLUSTER, POD_PORT, SERVICE_PATH, SERVICE_PORT, SLICE_PATH},
    },
    ground::{self, Cgroup, Netns},
};

pub const NODE_PORT: u16 = 30_080;
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 97, 0, 1), SERVICE_PORT);
/// Pods of the service on each node.
const PODS: u8 = 10;
const SWITCH: Ipv4Addr = Ipv4Addr::new(172, 30, 1, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(172, 30, 1, 100);
const START: Duration = Duration::from_secs(60);

pub struct Node {
    name: &'static str,
    pub address: Ipv4Addr,
    /// Third byte of its pods' addresses.
    pods: u8,
}

pub const NODES: [Node; 2] = [
    Node { name: "node-1", address: Ipv4Addr::new(172, 30, 1, 11), pods: 1 },
    Node { name: "node-2", address: Ipv4Addr::new(172, 30, 1, 12), pods: 2 },
];

impl Node {
    fn range(&self) -> String {
        format!("10.128.{}.0/24", self.pods)
    }

    fn pod(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 128, self.pods, 10 + number)
    }
}

/// A node and its pods, with kube-proxy. Fields go in this order.
struct Member {
    proxy: Process,
    /// A process each: together they hold more connections than one may have open files.
    pods: Vec<Process>,
    node: Netns,
    _network: Netns,
}

/// Fields go in this order.
pub struct Site {
    host: Option<Netns>,
    members: Vec<Member>,
    control: Control,
    switch: Netns,
    cgroup: Cgroup,
    kubeconfig: PathBuf,
    files: PathBuf,
    logs: PathBuf,
    pins: PathBuf,
}

impl Site {
    /// This process, and with it the application that dials, is below the host's cgroup from here on.
    pub fn lay(cache: &Cache, files: &Path, logs: &Path) -> Result<Self> {
        let cgroup = Cgroup::enter("beeline-bench")?;
        join(&cgroup.path().join("host/application"))?;
        let switch = Netns::create("beeline-bench-control")?;
        switch.ip(&format!("address add {API_ADDRESS}/32 dev lo"))?;
        switch.ip("link add switch type bridge")?;
        switch.ip(&format!("address add {SWITCH}/24 dev switch"))?;
        switch.ip("link set switch up")?;
        let nodes = NODES.iter().map(|node| lay_node(&switch, node)).collect::<Result<Vec<_>>>()?;
        let control = Control::start(&switch, &cgroup.path().join("control"), cache, files, logs)?;
        let kubeconfig = control.write_kubeconfig()?;
        write_objects(&control)?;
        let start = |(node, (netns, network)): (&Node, (Netns, Netns))| {
            let proxy = start_proxy(node, &netns, &cgroup.path().join(node.name), cache, &kubeconfig, files, logs)?;
            let pods = start_pods(node, &network, &cgroup.path().join("pods"), logs)?;
            Ok(Member { proxy, pods, node: netns, _network: network })
        };
        let members = NODES.iter().zip(nodes).map(start).collect::<Result<Vec<_>>>()?;
        let pins = ground::pins("outside")?;
        let (files, logs) = (files.into(), logs.into());
        Ok(Self { host: None, members, control, switch, cgroup, kubeconfig, files, logs, pins })
    }

    /// One way, on a host that nobody has dialled from.
    pub fn turn(&mut self, way: Way, amount: Amount) -> Result<Figures> {
        self.renew_host()?;
        self.control.require_running()?;
        for member in &mut self.members {
            member.proxy.require_running()?;
            member.pods.iter_mut().try_for_each(Process::require_running)?;
            forget_connections(&member.node)?;
        }
        let mut agent = way.pods().map(|pods| self.start_agent(pods)).transpose()?;
        self.wait_until_served(way, agent.as_mut())?;
        let host = self.host.as_ref().context("there is no host yet")?;
        let figures = Crew::start(host, way)?.measure(amount)?;
        drop(agent);
        cleanup(&self.pins)?;
        Ok(figures)
    }

    fn renew_host(&mut self) -> Result<()> {
        // A namespace with ports that wait takes its time to go, and would keep the switch's port for as long.
        if let Some(host) = self.host.take() {
            self.switch.ip("link delete host")?;
            drop(host);
        }
        let host = Netns::create("beeline-bench-host")?;
        plug(&self.switch, &host, "host", HOST)?;
        for node in &NODES {
            host.ip(&format!("route add {} via {}", node.range(), node.address))?;
        }
        self.host = Some(host);
        Ok(())
    }

    fn on_host<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.host.as_ref().context("there is no host yet")?.run(work)
    }

    fn start_agent(&self, pods: &str) -> Result<Process> {
        let beeline = std::env::current_exe()?.with_file_name("beeline");
        ensure!(beeline.exists(), "{} is missing: cargo build --workspace --release", beeline.display());
        let words = [
            beeline.display().to_string(),
            "agent".into(),
            "--stand=outside".into(),
            format!("--pods={pods}"),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--cgroup={}", self.cgroup.path().join("host").display()),
            format!("--pin-dir={}", self.pins.display()),
            format!("--socket={}", self.files.join("agent.sock").display()),
            format!("--state-dir={}", self.files.join("state").display()),
        ];
        let host = self.host.as_ref().context("there is no host yet")?;
        let cgroup = self.cgroup.path().join("agent");
        Process::start("Beeline", &cgroup, host, &words, &[], &self.logs.join("beeline.log"))
    }

    fn wait_until_served(&self, way: Way, mut agent: Option<&mut Process>) -> Result<()> {
        let end = Instant::now() + START;
        loop {
            if let Some(agent) = agent.as_deref_mut() {
                agent.require_running()?;
            }
            match self.on_host(|| application::try_all(way)) {
                Ok(()) => return Ok(()),
                Err(error) => ensure!(Instant::now() < end, "{} does not answer: {error:#}", way.name()),
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Err(error) = cleanup(&self.pins) {
            eprintln!("{error:#}");
        }
    }
}

fn join(cgroup: &Path) -> Result<()> {
    fs::create_dir_all(cgroup).with_context(|| format!("make {}", cgroup.display()))?;
    let file = cgroup.join("cgroup.procs");
    fs::write(&file, std::process::id().to_string()).with_context(|| file.display().to_string())
}

/// A port of the switch, and behind it `eth0`.
fn plug(switch: &Netns, other: &Netns, port: &str, address: Ipv4Addr) -> Result<()> {
    switch.ip(&format!("link add {port} type veth peer name eth0 netns {}", other.name()))?;
    switch.ip(&format!("link set {port} master switch up"))?;
    other.ip(&format!("address add {address}/24 dev eth0"))?;
    other.ip("link set eth0 up")?;
    other.ip(&format!("route add default via {SWITCH}"))
}

/// The node, and behind it the network of its pods.
fn lay_node(switch: &Netns, node: &Node) -> Result<(Netns, Netns)> {
    let (netns, pods) = (
        Netns::create(&format!("beeline-bench-{}", node.name))?,
        Netns::create(&format!("beeline-bench-pods-{}", node.pods))?,
    );
    plug(switch, &netns, node.name, node.address)?;
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
    switch.ip(&format!("route add {} via {}", node.range(), node.address))?;
    netns.run(|| Ok(fs::write("/proc/sys/net/ipv4/ip_forward", "1")?))?;
    Ok((netns, pods))
}

/// All of them listen when it returns.
fn start_pods(node: &Node, network: &Netns, cgroup: &Path, logs: &Path) -> Result<Vec<Process>> {
    let bench = std::env::current_exe()?.display().to_string();
    let start = |number| {
        let pod = node.pod(number).to_string();
        let words = [bench.clone(), "pod".into(), pod.clone()];
        Process::start(&pod, &cgroup.join(&pod), network, &words, &[], &logs.join(format!("pod-{pod}.log")))
    };
    let mut pods = (0..PODS).map(start).collect::<Result<Vec<_>>>()?;
    let end = Instant::now() + START;
    for number in 0..PODS {
        let at = SocketAddrV4::new(node.pod(number), POD_PORT);
        while let Err(error) = network.run(|| Ok(TcpStream::connect(at)?)) {
            pods.iter_mut().try_for_each(Process::require_running)?;
            ensure!(Instant::now() < end, "pod {at} does not listen: {error:#}");
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(pods)
}

fn write_objects(control: &Control) -> Result<()> {
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
    let endpoint = |node: &Node, number: u8| json!({"addresses": [node.pod(number)], "conditions": {"ready": true}, "nodeName": node.name});
    let endpoints: Vec<_> = NODES.iter().flat_map(|node| (0..PODS).map(move |number| endpoint(node, number))).collect();
    let slice = json!({
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": POD_PORT, "protocol": "TCP"}],
    });
    control.write("POST", SLICE_PATH, &slice).map(drop)
}

fn start_proxy(
    node: &Node,
    netns: &Netns,
    cgroup: &Path,
    cache: &Cache,
    kubeconfig: &Path,
    files: &Path,
    logs: &Path,
) -> Result<Process> {
    let mut settings = kit::proxy::settings(node.name, kit::proxy::Mode::Nftables, kubeconfig);
    settings["clusterCIDR"] = CLUSTER.into();
    let file = files.join(format!("{}.json", node.name));
    fs::write(&file, settings.to_string()).with_context(|| format!("write {}", file.display()))?;
    let words = [cache.program("kube-proxy").display().to_string(), format!("--config={}", file.display())];
    Process::start(node.name, cgroup, netns, &words, &[], &logs.join(format!("{}.log", node.name)))
}

/// Of the turn before; the next one is not to meet a table that it did not fill.
fn forget_connections(node: &Netns) -> Result<()> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", node.file().display())).args(["conntrack", "-F"]);
    let output = command.output().context("conntrack: is it installed?")?;
    ensure!(output.status.success(), "conntrack -F: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
