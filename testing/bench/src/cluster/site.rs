//! Where it all happens: network namespaces of the control plane, the node, the pod that dials and the pods that are
//! dialled, and cgroups for each. The node lies between the other three.
//!
//! The node's namespace is made anew for each contender: tables of iptables, once used, keep their hooks and with them
//! connection tracking as long as the namespace lives, empty as they may be.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::world::{CLUSTER, PODS, SERVICES};
use crate::ground::{Cgroup, Netns};

pub const API_ADDRESS: &str = "172.30.0.1";
pub const NODE_ADDRESS: &str = "172.30.1.2";
/// Removing the rules of ten thousand services takes the kernel a while.
const REMOVAL: Duration = Duration::from_secs(600);

/// Fields go in this order.
pub struct Site {
    node: Option<Netns>,
    pub control: Netns,
    pub client: Netns,
    pub pods: Netns,
    cgroup: Cgroup,
}

impl Site {
    /// The process, and with it the pod that dials, is below the node's cgroup from here on.
    pub fn lay() -> Result<Self> {
        let cgroup = Cgroup::enter("beeline-bench")?;
        let control = Netns::create("beeline-bench-control")?;
        let client = Netns::create("beeline-bench-client")?;
        let pods = Netns::create("beeline-bench-pods")?;
        control.ip(&format!("address add {API_ADDRESS}/32 dev lo"))?;
        // A service that nobody resolves is refused at once, instead of being dialled into the void.
        control.ip(&format!("route add local {SERVICES} dev lo"))?;
        pods.ip(&format!("route add local {PODS} dev lo"))?;
        let site = Self { node: None, control, client, pods, cgroup };
        site.join("node/pod")?;
        Ok(site)
    }

    fn join(&self, below: &str) -> Result<()> {
        let path = self.cgroup(below);
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        let file = path.join("cgroup.procs");
        fs::write(&file, std::process::id().to_string()).with_context(|| file.display().to_string())
    }

    pub fn cgroup(&self, below: &str) -> PathBuf {
        self.cgroup.path().join(below)
    }

    pub fn node(&self) -> Result<&Netns> {
        self.node.as_ref().context("there is no node yet")
    }

    /// A node that nobody has touched.
    pub fn renew_node(&mut self) -> Result<()> {
        self.remove_node()?;
        let node = Netns::create("beeline-bench-node")?;
        wire(&node, &self.control, "eth0", (NODE_ADDRESS, "172.30.1.1"))?;
        wire(&node, &self.client, "client", ("10.192.0.1", "10.192.0.2"))?;
        wire(&node, &self.pods, "pods", ("10.193.0.1", "10.193.0.2"))?;
        node.ip("route add default via 172.30.1.1")?;
        node.ip(&format!("route add {PODS} via 10.193.0.2"))?;
        self.client.ip("route add default via 10.192.0.1")?;
        self.control.ip(&format!("route add {CLUSTER} via {NODE_ADDRESS}"))?;
        self.pods.ip(&format!("route add {CLUSTER} via 10.193.0.1"))?;
        set(&node, &[("ip_forward", "1"), ("conf/all/rp_filter", "0"), ("conf/default/rp_filter", "0")])?;
        require_bare(&node)?;
        self.node = Some(node);
        Ok(())
    }

    /// The kernel removes a namespace after its name is gone; its rules before its devices.
    fn remove_node(&mut self) -> Result<()> {
        drop(self.node.take());
        let end = Instant::now() + REMOVAL;
        while [&self.control, &self.client, &self.pods].iter().any(|other| has_wire(other)) {
            ensure!(Instant::now() < end, "the kernel does not remove the node's network namespace");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// The other end of each wire.
const WIRE: &str = "node";

fn wire(node: &Netns, other: &Netns, device: &str, (here, there): (&str, &str)) -> Result<()> {
    node.ip(&format!("link add {device} type veth peer name {WIRE} netns {}", other.name()))?;
    node.ip(&format!("address add {here}/24 dev {device}"))?;
    other.ip(&format!("address add {there}/24 dev {WIRE}"))?;
    other.ip(&format!("link set {WIRE} up"))?;
    node.ip(&format!("link set {device} up"))
}

fn has_wire(netns: &Netns) -> bool {
    let words = ["-n", netns.name(), "link", "show", "dev", WIRE];
    Command::new("ip").args(words).output().is_ok_and(|output| output.status.success())
}

fn set(netns: &Netns, settings: &[(&str, &str)]) -> Result<()> {
    netns.run(|| {
        for (name, value) in settings {
            let path = Path::new("/proc/sys/net/ipv4").join(name);
            fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))?;
        }
        Ok(())
    })
}

/// No rule of the contender before, of either kind.
fn require_bare(node: &Netns) -> Result<()> {
    let mut nft = Command::new("nsenter");
    nft.arg(format!("--net={}", node.file().display())).args(["nft", "list", "ruleset"]);
    let output = nft.output().context("nft: is nftables installed?")?;
    ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr).trim());
    ensure!(output.stdout.is_empty(), "the new node has rules of nftables");
    let legacy = node.run(|| Ok(fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap_or_default()))?;
    ensure!(legacy.is_empty(), "the new node has tables of iptables: {legacy}");
    Ok(())
}
