//! Checks of the packet path: packets from outside at a NodePort, a load-balancer address and a ClusterIP, TCP and UDP,
//! both families, and a refused connection. The first agent has ended by now.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail, ensure};
use beeline_harness::{
    AgentProcess,
    packet::{CLIENTS, Flow, FlowProtocol, IpFamily, POD_RANGES, PacketNetwork, client_address},
};

use crate::check::Checks;

const TARGET_PORT: u16 = 8080;
/// The NodePort keeps the client's address (externalTrafficPolicy Local); the ClusterIP does not.
const MANIFEST: &str = r#"
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
 "spec": {"type": "NodePort", "externalTrafficPolicy": "Local", "clusterIPs": ["10.96.0.10", "fd00:96::10"],
          "clusterIP": "10.96.0.10", "ipFamilies": ["IPv4", "IPv6"],
          "ports": [{"name": "tcp", "port": 80, "nodePort": 30080, "protocol": "TCP"},
                    {"name": "udp", "port": 80, "nodePort": 30080, "protocol": "UDP"}]}}
---
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
 "metadata": {"name": "web-4", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
 "ports": [{"name": "tcp", "port": 8080, "protocol": "TCP"}, {"name": "udp", "port": 8080, "protocol": "UDP"}],
 "endpoints": [{"addresses": ["POD4"], "nodeName": "node-1", "conditions": {"ready": true}}]}
---
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv6",
 "metadata": {"name": "web-6", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
 "ports": [{"name": "tcp", "port": 8080, "protocol": "TCP"}, {"name": "udp", "port": 8080, "protocol": "UDP"}],
 "endpoints": [{"addresses": ["POD6"], "nodeName": "node-1", "conditions": {"ready": true}}]}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "empty", "namespace": "default"},
 "spec": {"type": "NodePort", "clusterIPs": ["10.96.0.11", "fd00:96::11"], "clusterIP": "10.96.0.11",
          "ipFamilies": ["IPv4", "IPv6"],
          "ports": [{"name": "tcp", "port": 80, "nodePort": 30081, "protocol": "TCP"},
                    {"name": "udp", "port": 80, "nodePort": 30081, "protocol": "UDP"}]}}
"#;

pub fn packets(checks: &mut Checks) {
    checks.check("packets", |checks| {
        let network = PacketNetwork::new()?;
        let pod = network.cluster.pod(0);
        let _server = pod.serve(TARGET_PORT)?;
        let manifest = MANIFEST.replace("POD4", &pod.v4.to_string()).replace("POD6", &pod.v6.to_string());
        let mut agent = AgentProcess::new(&[("packets.yaml", &manifest)])?;
        agent.start_with(&network.cluster, options(&network))?;
        agent.wait_for_packet_path();
        for protocol in FlowProtocol::ALL {
            for family in IpFamily::ALL {
                flows(&network, protocol, family, checks);
            }
        }
        Ok("")
    });
}

fn options(network: &PacketNetwork) -> Vec<String> {
    let node = network.cluster.node();
    let addresses = format!("{},{}", node.v4, node.v6);
    let ranges = POD_RANGES.join(",");
    let all = [
        "--packet-path",
        "on",
        "--packet-devices",
        "eth0",
        "--cluster-cidr",
        &ranges,
        "--node-addresses",
        &addresses,
        "--max-services",
        "256",
        "--metrics-bind-address",
        "off",
        "--healthz-bind-address",
        "off",
    ];
    all.map(str::to_owned).into()
}

fn flows(network: &PacketNetwork, protocol: FlowProtocol, family: IpFamily, checks: &mut Checks) {
    let node = network.cluster.node();
    let node = family.of(node.v4, node.v6);
    let service: IpAddr = family.of([10, 96, 0, 10].into(), "fd00:96::10".parse().unwrap_or_else(|_| unreachable!()));
    let mut check = |what: &str, to: SocketAddr, keeps_source: bool| {
        checks
            .check(&format!("{what}: {protocol:?} to {to}"), |_| answered(network, protocol, family, to, keeps_source));
    };
    check("a NodePort", (node, 30080).into(), true);
    check("a ClusterIP from outside", (service, 80).into(), false);
    checks.check(&format!("a Service without endpoints: {protocol:?} to {node}"), |_| {
        let result = dial(network, protocol, family, (node, 30081).into())?;
        ensure!(format!("{result:?}") == "Refused", "{result:?}");
        Ok("")
    });
}

fn dial(
    network: &PacketNetwork,
    protocol: FlowProtocol,
    family: IpFamily,
    to: SocketAddr,
) -> Result<beeline_harness::packet::FlowResult> {
    let (v4, v6) = client_address(CLIENTS.start);
    Flow::dial(&network.client.namespace, protocol, family.of(v4, v6), to)
}

fn answered(
    network: &PacketNetwork,
    protocol: FlowProtocol,
    family: IpFamily,
    to: SocketAddr,
    keeps_source: bool,
) -> Result<&'static str> {
    let (v4, v6) = client_address(CLIENTS.start);
    let result = dial(network, protocol, family, to)?;
    let Some(source) = result.seen_source() else { bail!("{result:?}") };
    ensure!((source.ip() == family.of(v4, v6)) == keeps_source, "the server saw {source}");
    Ok("")
}
