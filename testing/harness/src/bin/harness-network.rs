//! Creates the standard test network and keeps it until stdin ends: `harness-network 3 2` creates two nodes with three
//! and two pods. Every pod and host serves port 8080. Use `ip netns exec` to run commands in it.

use std::io::{Read, stdin};

use anyhow::{Context, Result};
use beeline_harness::TestNetwork;

fn main() -> Result<()> {
    let pods: Vec<usize> = std::env::args()
        .skip(1)
        .map(|arg| arg.parse())
        .collect::<Result<_, _>>()
        .context("the arguments are numbers of pods, one per node")?;
    let network = TestNetwork::with_nodes(if pods.is_empty() { &[2] } else { &pods })?;
    let hosts: Vec<_> =
        network.nodes.iter().map(|node| &node.host).chain(network.pods()).chain([&network.outside]).collect();
    let mut servers = Vec::new();
    for host in hosts {
        servers.push(host.serve(8080)?);
        let (v4, v6, cgroup) = (host.v4, host.v6, host.cgroup.path().display());
        println!("{:<8} {v4:<14} {v6:<16} {:<18} {cgroup}", host.name, host.namespace.name());
    }
    println!("ready");
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
