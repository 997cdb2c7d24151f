//! What the demo stands on: two nodes, three pods that serve, one that dials, and the agent of the first node.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use beeline_lab::{Agent, Backend, Client, Lab, Place};

const MANIFESTS: [(&str, &str); 6] = [
    ("nodes.yaml", include_str!("../../../../../examples/manifests/nodes.yaml")),
    ("web.yaml", include_str!("../../../../../examples/manifests/web.yaml")),
    ("cart.yaml", include_str!("../../../../../examples/manifests/cart.yaml")),
    ("node-log.yaml", include_str!("../../../../../examples/manifests/node-log.yaml")),
    ("closed.yaml", include_str!("../../../../../examples/manifests/closed.yaml")),
    ("dns.yaml", include_str!("../../../../../examples/manifests/dns.yaml")),
];

/// Fields are dropped in this order: who is inside goes before what holds it.
pub struct Stage {
    pub client: Client,
    pub backends: Vec<Backend>,
    pub agent: Agent,
    lab: Lab,
}

impl Stage {
    pub fn build() -> Result<Self> {
        // pod-a and pod-b beside the client on node-1, pod-d on node-2, as the manifests say.
        let lab = Lab::with_nodes(&[3, 1])?;
        let serve = |number: usize| Backend::start(lab.pod(number), 8080, 5353);
        let backends = [0, 1, 3].into_iter().map(serve).collect::<Result<_>>()?;
        let client = lab.pod(2).client()?;
        let mut agent = Agent::new(&MANIFESTS)?;
        agent.start(&lab).context("the agent does not serve; `target/debug/beeline doctor` tells what is missing")?;
        Ok(Stage { client, backends, agent, lab })
    }

    /// Where everything is.
    pub fn map(&self) -> String {
        let pod = |number: usize| label(self.lab.pod(number));
        let [one, two] = [0, 1].map(|number: usize| label(&self.lab.nodes[number].host));
        format!(
            "\n  {one} ──┬── {}  serves\n     agent and hooks   ├── {}  serves\n                       └── {}  dials\n  \
             {two} ───── {}  serves\n",
            pod(0),
            pod(1),
            pod(2),
            pod(3)
        )
    }

    pub fn place(&self, name: &str) -> Result<&Place> {
        self.lab.pods().find(|pod| pod.name == name).with_context(|| format!("there is no {name}"))
    }

    /// Takes everything down and says so.
    pub fn clear(self) -> Result<()> {
        let Stage { client, backends, mut agent, lab } = self;
        drop((client, backends));
        agent.stop()?;
        println!("$ beeline cleanup\n{}", agent.ask(&["cleanup"])?);
        ensure!(agent.is_gone(), "pins are left");
        let cgroup = lab.root.path().to_owned();
        let names: Vec<String> = lab.nodes.iter().map(|node| node.host.namespace.name().to_owned()).collect();
        drop((agent, lab));
        let left = names.iter().any(|name| Path::new("/run/netns").join(name).exists());
        ensure!(!cgroup.exists() && !left, "cgroups or network namespaces are left: {} {names:?}", cgroup.display());
        Ok(())
    }
}

fn label(place: &Place) -> String {
    format!("{} {:<11}", place.name, place.v4)
}
