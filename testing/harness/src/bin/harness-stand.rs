//! Puts up the standard ground and holds it until stdin ends: `harness-stand 3 2` is two nodes with three and two pods.
//! Every pod and host serves port 8080. Look around with `ip netns exec`.

use std::io::{Read, stdin};

use anyhow::{Context, Result};
use beeline_harness::Lab;

fn main() -> Result<()> {
    let pods: Vec<usize> = std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>().context("pods")?;
    let lab = Lab::with_nodes(if pods.is_empty() { &[2] } else { &pods })?;
    let places: Vec<_> = lab.nodes.iter().map(|node| &node.host).chain(lab.pods()).chain([&lab.outside]).collect();
    let mut servers = Vec::new();
    for place in places {
        servers.push(place.serve(8080)?);
        let (v4, v6, cgroup) = (place.v4, place.v6, place.cgroup.path().display());
        println!("{:<8} {v4:<14} {v6:<16} {:<18} {cgroup}", place.name, place.namespace.name());
    }
    println!("ready");
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
