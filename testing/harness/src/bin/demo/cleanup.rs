//! Removes everything that the demo created, and checks that nothing is left.

use std::path::Path;

use anyhow::{Result, ensure};
use beeline_harness::ExampleCluster;

pub fn remove_all(example: ExampleCluster) -> Result<()> {
    let ExampleCluster { client, backends, mut agent, network } = example;
    drop((client, backends));
    agent.stop()?;
    agent.run(&["cleanup"])?;
    ensure!(agent.is_removed(), "`beeline cleanup` left pins behind");
    let cgroup = network.root.path().to_owned();
    let hosts = network.nodes.iter().map(|node| &node.host).chain(network.pods()).chain([&network.outside]);
    let names: Vec<String> = hosts.map(|host| host.namespace.name().to_owned()).collect();
    drop((agent, network));
    let remains = names.iter().any(|name| Path::new("/run/netns").join(name).exists());
    ensure!(!cgroup.exists() && !remains, "cgroups or network namespaces are left: {} {names:?}", cgroup.display());
    Ok(())
}
