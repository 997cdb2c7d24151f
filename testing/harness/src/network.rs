//! The standard test network: one or more nodes with pods, a bridge between the nodes, and one host outside the
//! cluster.
//!
//! ```text
//!   outside 172.31.0.1 ──┬── node-1 172.31.0.11 ──┬── pod-a 10.244.1.2   fd00:244::1:2
//!           fd00:31::1   │          fd00:31::11   └── pod-b 10.244.1.3   fd00:244::1:3
//!                        └── node-2 172.31.0.12 ───── pod-c 10.244.2.2   fd00:244::2:2
//! ```
//!
//! Nothing is created in the machine's own network namespace. The nodes' default route leads to the outside host, which
//! forwards nothing: a Service address that no hook resolved is lost there, as on a real network. Every test network
//! has the same addresses, because no two are connected.
//!
//! Cgroups: `<root>/node-1/host`, `<root>/node-1/kubepods/pod-a`, ..., `<root>/outside`. Attach BPF programs at
//! `network.cgroup()`, the cgroup of the first node: the other nodes and the outside host stand for other machines.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result, ensure};

use crate::{
    addressing, cgroup::Cgroup, netns, netns::NetworkNamespace, requirement::check_requirements, test_host::TestHost,
};

/// Fields are dropped in this order: children before the cgroup that contains them.
#[derive(Debug)]
pub struct TestNetwork {
    pub nodes: Vec<TestNode>,
    /// A host that is not a node, on the nodes' bridge.
    pub outside: TestHost,
    /// The cgroup that contains every process of this network.
    pub root: Cgroup,
    /// Part of the names of all namespaces.
    number: u32,
}

#[derive(Debug)]
pub struct TestNode {
    pub pods: Vec<TestHost>,
    /// The node itself, for host processes and hostNetwork pods.
    pub host: TestHost,
    /// The cgroup of the host and its pods, to which this node's agent attaches.
    pub cgroup: Cgroup,
}

impl TestNetwork {
    /// Creates one node with this many pods.
    pub fn new(pods: usize) -> Result<Self> {
        Self::with_nodes(&[pods])
    }

    /// Creates one node per entry of `pods` with that many pods. Pods are named pod-a, pod-b, ... across all nodes.
    pub fn with_nodes(pods: &[usize]) -> Result<Self> {
        check_requirements()?;
        ensure!(pods.len() <= 9 && pods.iter().all(|&count| count <= 200), "at most 9 nodes with 200 pods each");
        netns::remove_stale();
        let builder = Builder::new()?;
        let outside = builder.outside()?;
        let nodes = (1..).zip(pods).map(|(number, _)| builder.node(number, pods, &outside)).collect::<Result<_>>()?;
        Ok(TestNetwork { nodes, outside, number: builder.number, root: builder.root })
    }

    /// The host of the first node.
    pub fn node(&self) -> &TestHost {
        &self.nodes[0].host
    }

    /// The cgroup of the first node, which contains its host and pods.
    pub fn cgroup(&self) -> &Cgroup {
        &self.nodes[0].cgroup
    }

    /// Returns a pod by its index across all nodes. Index 0 is pod-a.
    pub fn pod(&self, number: usize) -> &TestHost {
        self.pods().nth(number).unwrap_or_else(|| panic!("the test network has no pod {number}"))
    }

    /// Adds a host without links. Its processes are not in the cgroup of a node.
    pub(crate) fn add_host(&self, name: &str, (v4, v6): (Ipv4Addr, Ipv6Addr)) -> Result<TestHost> {
        create_host(self.number, name, self.root.child(name)?, v4, v6)
    }

    pub fn pods(&self) -> impl Iterator<Item = &TestHost> {
        self.nodes.iter().flat_map(|node| &node.pods)
    }
}

/// State that is needed while the network is created.
struct Builder {
    number: u32,
    root: Cgroup,
}

impl Builder {
    fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Ok(Builder { number: NEXT.fetch_add(1, Ordering::Relaxed), root: Cgroup::new()? })
    }

    fn host(&self, name: &str, cgroup: Cgroup, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<TestHost> {
        create_host(self.number, name, cgroup, v4, v6)
    }

    fn outside(&self) -> Result<TestHost> {
        let (v4, v6) = addressing::host_address(1);
        let host = self.host("outside", self.root.child("outside")?, v4, v6)?;
        host.namespace.ip(&addressing::outside(v4, v6)).context("cannot configure the outside host")?;
        Ok(host)
    }

    fn node(&self, number: u8, all: &[usize], outside: &TestHost) -> Result<TestNode> {
        let cgroup = self.root.child(&format!("node-{number}"))?;
        let (v4, v6) = addressing::host_address(10 + number);
        let host = self.host(&format!("node-{number}"), cgroup.child("host")?, v4, v6)?;
        outside.namespace.ip(&addressing::node_link(number, host.namespace.name()))?;
        host.namespace.sysctl(addressing::FORWARD)?;
        host.namespace.ip(&addressing::node(number, all.len() as u8)).context("cannot configure a node")?;
        let before: usize = all[..usize::from(number) - 1].iter().sum();
        let count = all[usize::from(number) - 1];
        let pod = |index: usize| self.pod(number, index, &pod_name(before + index), &cgroup, &host);
        let pods = (0..count).map(pod).collect::<Result<_>>()?;
        Ok(TestNode { pods, host, cgroup })
    }

    fn pod(&self, node: u8, index: usize, name: &str, cgroup: &Cgroup, host: &TestHost) -> Result<TestHost> {
        let (v4, v6) = addressing::pod_address(node, index as u8 + 2);
        let pod = self.host(name, cgroup.child(&format!("kubepods/{name}"))?, v4, v6)?;
        host.namespace.ip(&addressing::pod_link(index, pod.namespace.name()))?;
        pod.namespace.ip(&addressing::pod(node, v4, v6)).context("cannot configure a pod")?;
        Ok(pod)
    }
}

fn create_host(network: u32, name: &str, cgroup: Cgroup, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<TestHost> {
    let namespace = NetworkNamespace::create(format!("bl{}-{network}-{name}", std::process::id()))?;
    namespace.sysctl(addressing::SYSCTL)?;
    Ok(TestHost { name: name.into(), namespace, cgroup, v4, v6 })
}

/// pod-a to pod-z, then pod-27, pod-28, ...
fn pod_name(index: usize) -> String {
    match u8::try_from(index) {
        Ok(index @ 0..26) => format!("pod-{}", char::from(b'a' + index)),
        _ => format!("pod-{}", index + 1),
    }
}
