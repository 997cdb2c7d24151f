//! `examples/manifests` in a test network: two nodes, three pods that serve, one pod that dials, and the agent of
//! node-1.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use crate::{
    agent::AgentProcess,
    backend_process::BackendProcess,
    client::{Client, Socket},
    network::TestNetwork,
    protocol::SocketFamily,
    test_host::TestHost,
};

const MANIFESTS: [(&str, &str); 6] = [
    ("nodes.yaml", include_str!("../../../examples/manifests/nodes.yaml")),
    ("web.yaml", include_str!("../../../examples/manifests/web.yaml")),
    ("cart.yaml", include_str!("../../../examples/manifests/cart.yaml")),
    ("node-log.yaml", include_str!("../../../examples/manifests/node-log.yaml")),
    ("closed.yaml", include_str!("../../../examples/manifests/closed.yaml")),
    ("dns.yaml", include_str!("../../../examples/manifests/dns.yaml")),
];

/// Fields are dropped in this order: processes before the network that contains them.
#[derive(Debug)]
pub struct ExampleCluster {
    /// Runs in pod-c.
    pub client: Client,
    /// pod-a and pod-b on node-1 and pod-d on node-2, as in the manifests.
    pub backends: Vec<BackendProcess>,
    pub agent: AgentProcess,
    pub network: TestNetwork,
}

impl ExampleCluster {
    pub fn build() -> Result<Self> {
        let network = TestNetwork::with_nodes(&[3, 1])?;
        let serve = |number: usize| BackendProcess::start(network.pod(number), 8080, 5353);
        let backends = [0, 1, 3].into_iter().map(serve).collect::<Result<_>>()?;
        let client = network.pod(2).client()?;
        let mut agent = AgentProcess::new(&MANIFESTS)?;
        agent.start(&network).context("the agent did not start: `beeline doctor` lists what is missing")?;
        Ok(ExampleCluster { client, backends, agent, network })
    }

    /// Names of the pods that serve.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.backends.iter().map(BackendProcess::name)
    }

    fn pod(&self, name: &str) -> Result<&TestHost> {
        self.network.pods().find(|pod| pod.name == name).with_context(|| format!("the example has no pod {name}"))
    }

    /// Removes a pod's endpoints from the manifests, which have one endpoint per line. dns.yaml is written last: once
    /// its UDP sockets are closed, the other files are in effect too.
    pub fn remove_endpoints(&self, name: &str) -> Result<()> {
        let pod = self.pod(name)?;
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
    /// Connects UDP sockets to a Service address until one of them reaches this pod, and returns that one.
    pub fn connect_udp_to(&self, to: SocketAddr, name: &str) -> Result<Socket<'_>> {
        for _ in 0..200 {
            let socket = self.udp(SocketFamily::of(to))?;
            socket.connect(to)?;
            socket.send("who\n")?;
            if socket.receive()?.1.starts_with(name.as_bytes()) {
                return Ok(socket);
            }
        }
        bail!("200 UDP dials to {to} never reached {name}")
    }
}
