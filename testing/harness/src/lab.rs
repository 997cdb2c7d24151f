//! The standard ground: one or two nodes with pods, a wire between them, and the outside world at its end.
//!
//! ```text
//!   outside 172.31.0.1 ──┬── node-1 172.31.0.11 ──┬── pod-a 10.244.1.2   fd00:244::1:2
//!           fd00:31::1   │          fd00:31::11   └── pod-b 10.244.1.3   fd00:244::1:3
//!                        └── node-2 172.31.0.12 ───── pod-c 10.244.2.2   fd00:244::2:2
//! ```
//!
//! Nothing is made in the namespace of the machine. Nodes have their default route to the outside, which forwards
//! nothing: a service address that no hook resolved is lost there, as on a real network. Every lab has the same
//! addresses, since no two share a wire.
//!
//! Cgroups: `<lab>/node-1/host`, `<lab>/node-1/kubepods/pod-a`, ..., `<lab>/outside`. Attach at `lab.cgroup()`,
//! which is that of the first node: the second and the outside are other machines.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result, ensure};

use crate::{cgroup::Cgroup, netns, netns::Namespace, place::Place, require::require, wire};

/// Fields are dropped in this order: what is inside goes before what holds it.
#[derive(Debug)]
pub struct Lab {
    pub nodes: Vec<Node>,
    /// A host that is no node, on the nodes' wire.
    pub outside: Place,
    /// Below it lies all that the lab runs.
    pub root: Cgroup,
}

#[derive(Debug)]
pub struct Node {
    pub pods: Vec<Place>,
    /// The node itself: processes of the host, hostNetwork pods.
    pub host: Place,
    /// Holds the host and its pods: where the agent of this node attaches.
    pub cgroup: Cgroup,
}

impl Lab {
    /// One node with this many pods.
    pub fn new(pods: usize) -> Result<Self> {
        Self::with_nodes(&[pods])
    }

    /// One node per entry, with as many pods as it says; pods are named pod-a, pod-b, ... across all of them.
    pub fn with_nodes(pods: &[usize]) -> Result<Self> {
        require()?;
        ensure!(pods.len() <= 9 && pods.iter().all(|&count| count <= 200), "at most 9 nodes with 200 pods each");
        netns::sweep();
        let site = Site::new()?;
        let outside = site.outside()?;
        let nodes = (1..).zip(pods).map(|(number, _)| site.node(number, pods, &outside)).collect::<Result<_>>()?;
        Ok(Lab { nodes, outside, root: site.root })
    }

    /// The first node's host.
    pub fn node(&self) -> &Place {
        &self.nodes[0].host
    }

    /// The first node's cgroup, with its host and pods in it.
    pub fn cgroup(&self) -> &Cgroup {
        &self.nodes[0].cgroup
    }

    /// By order across all nodes: 0 is pod-a.
    pub fn pod(&self, number: usize) -> &Place {
        self.pods().nth(number).unwrap_or_else(|| panic!("the lab has no pod {number}"))
    }

    pub fn pods(&self) -> impl Iterator<Item = &Place> {
        self.nodes.iter().flat_map(|node| &node.pods)
    }
}

/// What is needed while building.
struct Site {
    number: u32,
    root: Cgroup,
}

impl Site {
    fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Ok(Site { number: NEXT.fetch_add(1, Ordering::Relaxed), root: Cgroup::new()? })
    }

    fn place(&self, name: &str, cgroup: Cgroup, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<Place> {
        let namespace = Namespace::create(format!("bl{}-{}-{name}", std::process::id(), self.number))?;
        namespace.sysctl(wire::SYSCTL)?;
        Ok(Place { name: name.into(), namespace, cgroup, v4, v6 })
    }

    fn outside(&self) -> Result<Place> {
        let (v4, v6) = wire::host_address(1);
        let place = self.place("outside", self.root.child("outside")?, v4, v6)?;
        place.namespace.ip(&wire::outside(v4, v6)).context("wire up the outside")?;
        Ok(place)
    }

    fn node(&self, number: u8, all: &[usize], outside: &Place) -> Result<Node> {
        let cgroup = self.root.child(&format!("node-{number}"))?;
        let (v4, v6) = wire::host_address(10 + number);
        let host = self.place(&format!("node-{number}"), cgroup.child("host")?, v4, v6)?;
        outside.namespace.ip(&wire::cable(number, host.namespace.name()))?;
        host.namespace.sysctl(wire::FORWARD)?;
        host.namespace.ip(&wire::node(number, all.len() as u8)).context("wire up a node")?;
        let before: usize = all[..usize::from(number) - 1].iter().sum();
        let count = all[usize::from(number) - 1];
        let pod = |index: usize| self.pod(number, index, &letters(before + index), &cgroup, &host);
        let pods = (0..count).map(pod).collect::<Result<_>>()?;
        Ok(Node { pods, host, cgroup })
    }

    fn pod(&self, node: u8, index: usize, name: &str, cgroup: &Cgroup, host: &Place) -> Result<Place> {
        let (v4, v6) = wire::pod_address(node, index as u8 + 2);
        let pod = self.place(name, cgroup.child(&format!("kubepods/{name}"))?, v4, v6)?;
        host.namespace.ip(&wire::pod_cable(index, pod.namespace.name()))?;
        pod.namespace.ip(&wire::pod(node, v4, v6)).context("wire up a pod")?;
        Ok(pod)
    }
}

/// pod-a to pod-z, then pod-27 and on.
fn letters(index: usize) -> String {
    match u8::try_from(index) {
        Ok(index @ 0..26) => format!("pod-{}", char::from(b'a' + index)),
        _ => format!("pod-{}", index + 1),
    }
}
