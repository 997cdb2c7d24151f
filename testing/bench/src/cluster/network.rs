//! Network namespaces of the control plane, the node, the client pod and the server pods, and cgroups for each. The
//! node connects the other three.
//!
//! Each contender gets a new node namespace, because iptables tables keep their hooks, and with them connection
//! tracking, until the namespace is removed, even if they are empty.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::objects::{CLUSTER, PODS, SERVICES};
use crate::isolation::{BenchCgroup, BenchNamespace};

pub const API_ADDRESS: &str = "172.30.0.1";
pub const NODE_ADDRESS: &str = "172.30.1.2";
/// Time limit for the removal of a node. The kernel needs long to remove the rules of 10,000 services.
const REMOVAL: Duration = Duration::from_secs(600);

/// Fields are dropped in this order.
pub struct BenchNetwork {
    node: Option<BenchNamespace>,
    pub control: BenchNamespace,
    pub client: BenchNamespace,
    pub pods: BenchNamespace,
    cgroup: BenchCgroup,
}

impl BenchNetwork {
    /// Creates the namespaces and moves this process, which is the client pod, into the node's cgroup.
    pub fn create() -> Result<Self> {
        let cgroup = BenchCgroup::enter("beeline-bench")?;
        let control = BenchNamespace::create("beeline-bench-control")?;
        let client = BenchNamespace::create("beeline-bench-client")?;
        let pods = BenchNamespace::create("beeline-bench-pods")?;
        control.ip(&format!("address add {API_ADDRESS}/32 dev lo"))?;
        // A dial to an unresolved service is refused at once instead of timing out.
        control.ip(&format!("route add local {SERVICES} dev lo"))?;
        pods.ip(&format!("route add local {PODS} dev lo"))?;
        let network = Self { node: None, control, client, pods, cgroup };
        network.join("node/pod")?;
        Ok(network)
    }

    fn join(&self, below: &str) -> Result<()> {
        let path = self.cgroup(below);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let file = path.join("cgroup.procs");
        fs::write(&file, std::process::id().to_string()).with_context(|| file.display().to_string())
    }

    pub fn cgroup(&self, below: &str) -> PathBuf {
        self.cgroup.path().join(below)
    }

    pub fn node(&self) -> Result<&BenchNamespace> {
        self.node.as_ref().context("the node has not been created")
    }

    /// Replaces the node by a new one.
    pub fn recreate_node(&mut self) -> Result<()> {
        self.remove_node()?;
        let node = BenchNamespace::create("beeline-bench-node")?;
        connect(&node, &self.control, "eth0", (NODE_ADDRESS, "172.30.1.1"))?;
        connect(&node, &self.client, "client", ("10.192.0.1", "10.192.0.2"))?;
        connect(&node, &self.pods, "pods", ("10.193.0.1", "10.193.0.2"))?;
        node.ip("route add default via 172.30.1.1")?;
        node.ip(&format!("route add {PODS} via 10.193.0.2"))?;
        self.client.ip("route add default via 10.192.0.1")?;
        self.control.ip(&format!("route add {CLUSTER} via {NODE_ADDRESS}"))?;
        self.pods.ip(&format!("route add {CLUSTER} via 10.193.0.1"))?;
        set(&node, &[("ip_forward", "1"), ("conf/all/rp_filter", "0"), ("conf/default/rp_filter", "0")])?;
        require_no_rules(&node)?;
        self.node = Some(node);
        Ok(())
    }

    /// Removes the node. The kernel removes a namespace asynchronously, its rules before its devices.
    fn remove_node(&mut self) -> Result<()> {
        drop(self.node.take());
        let end = Instant::now() + REMOVAL;
        while [&self.control, &self.client, &self.pods].iter().any(|other| has_peer(other)) {
            ensure!(Instant::now() < end, "the kernel has not removed the node's network namespace");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Name of the other end of each veth pair.
const PEER: &str = "node";

fn connect(node: &BenchNamespace, other: &BenchNamespace, device: &str, (here, there): (&str, &str)) -> Result<()> {
    node.ip(&format!("link add {device} type veth peer name {PEER} netns {}", other.name()))?;
    node.ip(&format!("address add {here}/24 dev {device}"))?;
    other.ip(&format!("address add {there}/24 dev {PEER}"))?;
    other.ip(&format!("link set {PEER} up"))?;
    node.ip(&format!("link set {device} up"))
}

fn has_peer(netns: &BenchNamespace) -> bool {
    let words = ["-n", netns.name(), "link", "show", "dev", PEER];
    Command::new("ip").args(words).output().is_ok_and(|output| output.status.success())
}

fn set(netns: &BenchNamespace, settings: &[(&str, &str)]) -> Result<()> {
    netns.run(|| {
        for (name, value) in settings {
            let path = Path::new("/proc/sys/net/ipv4").join(name);
            fs::write(&path, value).with_context(|| format!("cannot write {value} to {}", path.display()))?;
        }
        Ok(())
    })
}

/// Checks that the node has no rules of an earlier contender.
fn require_no_rules(node: &BenchNamespace) -> Result<()> {
    let mut nft = Command::new("nsenter");
    nft.arg(format!("--net={}", node.file().display())).args(["nft", "list", "ruleset"]);
    let output = nft.output().context("nft: is nftables installed?")?;
    ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr).trim());
    ensure!(output.stdout.is_empty(), "the new node has rules of nftables");
    let legacy = node.run(|| Ok(fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap_or_default()))?;
    ensure!(legacy.is_empty(), "the new node has tables of iptables: {legacy}");
    Ok(())
}
