//! Whether this host reaches pods directly, found by trying: one ready TCP endpoint each on a few nodes. What an answer is,
//! the agent knows, which asks the same all the time.

use crate::listing::Listing;
use crate::request::{self, RequestError};
use kube::Client;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use tokio::task::JoinSet;

const NODES: usize = 3;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pods {
    pub answered: Vec<SocketAddr>,
    pub silent: Vec<SocketAddr>,
}

impl Pods {
    pub(crate) async fn look<F>(
        client: &Client,
        nodes: &Listing,
        knock: impl Fn(SocketAddr) -> F,
    ) -> Result<Pods, RequestError>
    where
        F: Future<Output = bool> + Send + 'static,
    {
        let slices = request::get(client, "/apis/discovery.k8s.io/v1/endpointslices?limit=500").await?;
        let mut tries = JoinSet::new();
        for at in candidates(&slices, nodes) {
            let knocked = knock(at);
            tries.spawn(async move { (at, knocked.await) });
        }
        let mut pods = Pods::default();
        for (at, answered) in tries.join_all().await {
            if answered { pods.answered.push(at) } else { pods.silent.push(at) }
        }
        Ok(pods)
    }
}

/// The first ready TCP endpoint of each node that is not the node itself.
fn candidates(slices: &Value, nodes: &Listing) -> Vec<SocketAddr> {
    let mut by_node: BTreeMap<&str, SocketAddr> = BTreeMap::new();
    for slice in slices["items"].as_array().into_iter().flatten() {
        let ports = slice["ports"].as_array().into_iter().flatten();
        let tcp = |port: &&Value| port["protocol"].as_str().unwrap_or("TCP") == "TCP";
        let port = ports.filter(tcp).find_map(|port| u16::try_from(port["port"].as_u64()?).ok());
        let Some(port) = port else { continue };
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if let Some((node, ip)) = pod(endpoint, nodes) {
                by_node.entry(node).or_insert(SocketAddr::new(ip, port));
            }
        }
    }
    by_node.into_values().take(NODES).collect()
}

fn pod<'a>(endpoint: &'a Value, nodes: &Listing) -> Option<(&'a str, IpAddr)> {
    let ready = endpoint.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true);
    let address = endpoint["addresses"].get(0)?.as_str()?;
    let ip: IpAddr = address.parse().ok()?;
    // A cluster may say anything; we knock at nobody's own door.
    let ours = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
    let is_pod = ready && !ours && !nodes.addresses.contains(address);
    is_pod.then_some((endpoint["nodeName"].as_str()?, ip))
}

impl fmt::Display for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[SocketAddr]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match (self.answered.len(), self.silent.len()) {
            (0, 0) => f.write_str("unknown: no ready TCP endpoint to try"),
            (_, 0) => write!(f, "reached directly ({} answered)", list(&self.answered)),
            (0, _) => write!(
                f,
                "not reached directly from here (no answer from {}): it takes a route to the pods' network, or nodePorts",
                list(&self.silent)
            ),
            _ => {
                write!(f, "some are reached directly ({}), some are not ({})", list(&self.answered), list(&self.silent))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_ready_pod_a_node_is_tried() {
        let nodes = Listing { count: 1, addresses: ["192.0.2.11".to_owned()].into() };
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
