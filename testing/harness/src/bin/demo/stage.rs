//! What is shown of the ground at the start, and that all of it goes at the end.

use std::path::Path;

use anyhow::{Result, ensure};
use beeline_harness::{Example, Place};

/// Where everything is.
pub fn map(example: &Example) -> String {
    let pod = |number: usize| label(example.lab.pod(number));
    let [one, two] = [0, 1].map(|number: usize| label(&example.lab.nodes[number].host));
    format!(
        "\n  {one} ──┬── {}  serves\n     agent and hooks   ├── {}  serves\n                       └── {}  dials\n  \
         {two} ───── {}  serves\n",
        pod(0),
        pod(1),
        pod(2),
        pod(3)
    )
}

fn label(place: &Place) -> String {
    format!("{} {:<11}", place.name, place.v4)
}

/// Takes everything down, says so, and looks whether it is true.
pub fn clear(example: Example) -> Result<()> {
    let Example { client, backends, mut agent, lab } = example;
    drop((client, backends));
    agent.stop()?;
    println!("$ beeline cleanup\n{}", agent.ask(&["cleanup"])?);
    ensure!(agent.is_gone(), "pins are left");
    let cgroup = lab.root.path().to_owned();
    let places = lab.nodes.iter().map(|node| &node.host).chain(lab.pods()).chain([&lab.outside]);
    let names: Vec<String> = places.map(|place| place.namespace.name().to_owned()).collect();
    drop((agent, lab));
    let left = names.iter().any(|name| Path::new("/run/netns").join(name).exists());
    ensure!(!cgroup.exists() && !left, "cgroups or network namespaces are left: {} {names:?}", cgroup.display());
    Ok(())
}
