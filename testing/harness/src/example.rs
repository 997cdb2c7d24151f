//! `examples/manifests` on real ground: two nodes, three pods that serve, one that dials, and the agent of the first node.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use crate::{
    agent::Agent,
    backend::Backend,
    client::{Client, Socket},
    lab::Lab,
    op::Family,
    place::Place,
};

const MANIFESTS: [(&str, &str); 6] = [
    ("nodes.yaml", include_str!("../../../examples/manifests/nodes.yaml")),
    ("web.yaml", include_str!("../../../examples/manifests/web.yaml")),
    ("cart.yaml", include_str!("../../../examples/manifests/cart.yaml")),
    ("node-log.yaml", include_str!("../../../examples/manifests/node-log.yaml")),
    ("closed.yaml", include_str!("../../../examples/manifests/closed.yaml")),
    ("dns.yaml", include_str!("../../../examples/manifests/dns.yaml")),
];

/// Fields are dropped in this order: who is inside goes before what holds it.
#[derive(Debug)]
pub struct Example {
    /// In pod-c.
    pub client: Client,
    /// pod-a and pod-b on node-1, pod-d on node-2, as the manifests say.
    pub backends: Vec<Backend>,
    pub agent: Agent,
    pub lab: Lab,
}

impl Example {
    pub fn build() -> Result<Self> {
        let lab = Lab::with_nodes(&[3, 1])?;
        let serve = |number: usize| Backend::start(lab.pod(number), 8080, 5353);
        let backends = [0, 1, 3].into_iter().map(serve).collect::<Result<_>>()?;
        let client = lab.pod(2).client()?;
        let mut agent = Agent::new(&MANIFESTS)?;
        agent.start(&lab).context("the agent does not serve; `target/debug/beeline doctor` tells what is missing")?;
        Ok(Example { client, backends, agent, lab })
    }

    /// The pods that serve.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.backends.iter().map(Backend::name)
    }

    fn place(&self, name: &str) -> Result<&Place> {
        self.lab.pods().find(|pod| pod.name == name).with_context(|| format!("there is no {name}"))
    }

    /// Takes a pod's endpoints out of the manifests, which have one a line. The name server's file goes last: when its
    /// sockets are cut off, the others are in the kernel.
    pub fn remove(&self, name: &str) -> Result<()> {
        let pod = self.place(name)?;
        let (v4, v6) = (format!("[{}]", pod.v4), format!("[\"{}\"]", pod.v6));
        for file in ["web.yaml", "cart.yaml", "node-log.yaml", "dns.yaml"] {
            let text = self.agent.read(file)?;
            let rest = text.lines().filter(|line| !line.contains(&v4) && !line.contains(&v6));
            self.agent.write(file, &rest.flat_map(|line| [line, "\n"]).collect::<String>())?;
        }
        Ok(())
    }
}

impl Client {
    /// A UDP socket that was connected to this address and landed at this pod.
    pub fn connected_to(&self, to: SocketAddr, name: &str) -> Result<Socket<'_>> {
        for _ in 0..200 {
            let socket = self.udp(Family::of(to))?;
            socket.connect(to)?;
            socket.send("who\n")?;
            if socket.receive()?.1.starts_with(name.as_bytes()) {
                return Ok(socket);
            }
        }
        bail!("200 UDP dials to {to} never reached {name}")
    }
}
