//! Whether this host reaches pods directly: `beeline join` probes one ready TCP endpoint on each of a few nodes. The caller
//! passes the probe, so that it is the same as the agent's.

use crate::list_summary::ListSummary;
use crate::request::{self, RequestError};
use kube::Client;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use tokio::task::JoinSet;

/// Number of nodes that are probed.
const MAX_NODES: usize = 3;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct PodReachability {
    pub answered: Vec<SocketAddr>,
    pub unanswered: Vec<SocketAddr>,
}

impl PodReachability {
    pub(crate) async fn probe<F>(
        client: &Client,
        nodes: &ListSummary,
        probe: impl Fn(SocketAddr) -> F,
    ) -> Result<PodReachability, RequestError>
    where
        F: Future<Output = bool> + Send + 'static,
    {
        let slices = request::get(client, "/apis/discovery.k8s.io/v1/endpointslices?limit=500").await?;
        let mut probes = JoinSet::new();
        for at in candidates(&slices, nodes) {
            let answered = probe(at);
            probes.spawn(async move { (at, answered.await) });
        }
        let mut pods = PodReachability::default();
        for (at, answered) in probes.join_all().await {
            if answered { pods.answered.push(at) } else { pods.unanswered.push(at) }
        }
        Ok(pods)
    }
}

/// The first ready TCP endpoint on each node that is not the node's own address.
fn candidates(slices: &Value, nodes: &ListSummary) -> Vec<SocketAddr> {
    let mut by_node: BTreeMap<&str, SocketAddr> = BTreeMap::new();
    for slice in slices["items"].as_array().into_iter().flatten() {
        let ports = slice["ports"].as_array().into_iter().flatten();
        let tcp = |port: &&Value| port["protocol"].as_str().unwrap_or("TCP") == "TCP";
        let port = ports.filter(tcp).find_map(|port| u16::try_from(port["port"].as_u64()?).ok());
        let Some(port) = port else { continue };
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if let Some((node, ip)) = pod_address(endpoint, nodes) {
                by_node.entry(node).or_insert(SocketAddr::new(ip, port));
            }
        }
    }
    by_node.into_values().take(MAX_NODES).collect()
}

fn pod_address<'a>(endpoint: &'a Value, nodes: &ListSummary) -> Option<(&'a str, IpAddr)> {
    let ready = endpoint.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true);
    let address = endpoint["addresses"].get(0)?.as_str()?;
    let ip: IpAddr = address.parse().ok()?;
    // A cluster may publish any address; this host's own addresses are never probed.
    let is_local = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
    let is_pod = ready && !is_local && !nodes.addresses.contains(address);
    is_pod.then_some((endpoint["nodeName"].as_str()?, ip))
}

impl fmt::Display for PodReachability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[SocketAddr]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match (self.answered.len(), self.unanswered.len()) {
            (0, 0) => f.write_str("unknown: no ready TCP endpoint to probe"),
            (_, 0) => write!(f, "reached directly ({} answered)", list(&self.answered)),
            (0, _) => write!(
                f,
                "not reached directly (no answer from {}): add a route to the pod network, or rely on nodePorts",
                list(&self.unanswered)
            ),
            _ => {
                write!(
                    f,
                    "some are reached directly ({}), some are not ({})",
                    list(&self.answered),
                    list(&self.unanswered)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_ready_pod_per_node_is_probed() {
        let nodes = ListSummary { count: 1, addresses: ["192.0.2.11".to_owned()].into() };
        let endpoint = |ip: &str, node: &str, ready: bool| json!({ "addresses": [ip], "nodeName": node, "conditions": { "ready": ready } });
        let slices = json!({ "items": [
            { "ports": [{ "port": 53, "protocol": "UDP" }], "endpoints": [endpoint("10.244.1.9", "a", true)] },
            { "ports": [{ "port": 53, "protocol": "UDP" }, { "port": 80 }], "endpoints": [
                endpoint("192.0.2.11", "a", true), endpoint("10.244.1.2", "a", false), endpoint("10.244.1.3", "a", true),
                endpoint("127.0.0.1", "b", true), endpoint("10.244.2.2", "b", true), endpoint("10.244.2.3", "b", true),
                { "addresses": ["10.0.0.1"] },
            ] },
        ] });
        let found: Vec<String> = candidates(&slices, &nodes).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.244.1.3:80", "10.244.2.2:80"]);
    }
}
