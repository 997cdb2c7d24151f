//! An edge host: a Node without a pod network behind a router that masquerades. It reaches its own pods directly and
//! the cloud's pods by their nodes' public addresses, but no pods of other edge nodes.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
};

use kit::{
    HostId,
    component::Component,
    host::{HostRoute, OutsideHost},
    load::DialTarget,
};
use serde_json::{Value, json};

use crate::{
    fixture::{ClusterFixture, server, service, wait_until},
    outside_agent::{OutsideAgent, names, node_port, patch_status, pod_addresses, targets, two_of},
};

const EDGE: &str = "node-role.kubernetes.io/edge";
/// Public addresses of the cloud's second node. A router translates them.
const PUBLIC: [&str; 2] = ["203.0.113.12", "2001:db8::12"];
const OWN: [&str; 2] = ["10.245.7.7", "fd00:10:245:7::7"];
const OTHER: [&str; 2] = ["10.245.8.8", "fd00:10:245:8::8"];

/// A Node object without a kubelet. It is deleted on drop.
struct RegisteredNode<'a> {
    fixture: &'a ClusterFixture,
    host: HostId,
}

impl<'a> RegisteredNode<'a> {
    fn new(fixture: &'a ClusterFixture, host: HostId) -> RegisteredNode<'a> {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": host.name(), "labels": {EDGE: ""}}});
        fixture.cluster.apply(&node).unwrap();
        let addresses: Vec<Value> =
            host.masqueraded_addresses().iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        let ready = json!({"type": "Ready", "status": "True"});
        let patch = json!({"status": {"addresses": addresses, "conditions": [ready]}}).to_string();
        let arguments = ["patch", "node", &host.name(), "--subresource=status", "--type=merge", "-p", &patch];
        fixture.cluster.kubectl(&arguments).unwrap();
        RegisteredNode { fixture, host }
    }
}

impl Drop for RegisteredNode<'_> {
    fn drop(&mut self) {
        let _ = self.fixture.cluster.kubectl(&["delete", "node", &self.host.name(), "--wait=false"]);
    }
}

/// Adds public addresses to the second node. Its kubelet is stopped, because it would remove them.
struct PublicAddresses<'a>(&'a ClusterFixture);

impl<'a> PublicAddresses<'a> {
    fn new(fixture: &'a ClusterFixture) -> PublicAddresses<'a> {
        fixture.cluster.component("n2/kubelet").unwrap().stop().unwrap();
        let own = kit::NodeId::new(2).unwrap().addresses().map(|ip| json!({"type": "InternalIP", "address": ip}));
        let public = PUBLIC.map(|ip| json!({"type": "ExternalIP", "address": ip}));
        let all = [own, public].concat();
        let patch = json!({"status": {"addresses": all}}).to_string();
        fixture
            .cluster
            .kubectl(&["patch", "node", "n2", "--subresource=status", "--type=merge", "-p", &patch])
            .unwrap();
        PublicAddresses(fixture)
    }
}

impl Drop for PublicAddresses<'_> {
    fn drop(&mut self) {
        patch_status(self.0, 2, &json!({"status": {"addresses": null}}));
        self.0.cluster.start_component("n2/kubelet").unwrap();
    }
}

/// Translates the cloud's public addresses on the router of the edge host.
fn translate_public_addresses(edge: &OutsideHost) {
    let [v4, v6] = kit::NodeId::new(2).unwrap().addresses();
    let rules = format!(
        "add table inet cloud\nadd chain inet cloud in {{ type nat hook prerouting priority dstnat; }}\n\
         add rule inet cloud in ip daddr {} dnat ip to {v4}\nadd rule inet cloud in ip6 daddr {} dnat ip6 to {v6}\n",
        PUBLIC[0], PUBLIC[1]
    );
    kit::run_in(&edge.host.router_namespace(), || {
        let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success());
    })
    .unwrap();
}

/// A pod of the edge host, which answers with its host name.
fn own_pod(fixture: &ClusterFixture, edge: &OutsideHost) -> (OutsideHost, Component) {
    let addresses = OWN.map(|ip| ip.parse::<IpAddr>().unwrap());
    let pod = OutsideHost::create(HostId::new(3).unwrap(), HostRoute::Pod { of: edge.host, addresses }).unwrap();
    let agnhost = fixture.cluster.cache.program("agnhost").display().to_string();
    let arguments = [&agnhost, "netexec", "--http-port=8080", "--udp-port=8080"].map(str::to_owned);
    let web = pod.component("web", arguments.to_vec()).unwrap();
    web.start().unwrap();
    (pod, web)
}

/// EndpointSlices with the node of each endpoint.
fn slices(service: &str, endpoints: &[([String; 2], &str)]) -> Vec<Value> {
    let slice = |(family, kind): (usize, &str)| {
        let each = |(ips, node): &([String; 2], &str)| json!({"addresses": [ips[family]], "nodeName": node, "conditions": {"ready": true}});
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
            "metadata": {
                "name": format!("{service}-{}", kind.to_lowercase()),
                "labels": {"kubernetes.io/service-name": service},
            },
            "ports": [
                {"name": "tcp", "port": 8080, "protocol": "TCP"}, {"name": "udp", "port": 8080, "protocol": "UDP"},
            ],
            "endpoints": endpoints.iter().map(each).collect::<Vec<_>>(),
        })
    };
    [(0, "IPv4"), (1, "IPv6")].into_iter().map(slice).collect()
}

fn with_port(ip: &str, port: u16) -> String {
    SocketAddr::new(ip.parse().unwrap(), port).to_string()
}

/// The nodePort of the target's protocol.
fn port_of(fixture: &ClusterFixture, target: &DialTarget) -> u16 {
    let all = node_port(fixture, "web", 2);
    all.iter().find(|one| one.protocol == target.protocol).unwrap().at.port()
}

#[test]
fn an_edge_host_dials_its_own_pods_and_the_clouds_nodes() {
    let fixture = ClusterFixture::new("edge");
    let without_selector = |more: Value| {
        let mut spec = json!({"selector": null});
        more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
        spec
    };
    fixture.apply(&[
        server("web-2", 2),
        // Local, because the cloud's nodes cannot reach the edge's pods.
        service("web", without_selector(json!({"type": "NodePort", "externalTrafficPolicy": "Local"}))),
        service("plain", without_selector(json!({}))),
        service("own", without_selector(json!({"internalTrafficPolicy": "Local"}))),
    ]);
    fixture.wait_ready(&["web-2"]);
    let [one, two] = [1, 2].map(|number| HostId::new(number).unwrap());
    let (_nodes, _public) =
        ([one, two].map(|host| RegisteredNode::new(&fixture, host)), PublicAddresses::new(&fixture));
    let cloud = pod_addresses(&fixture, "web-2").map(|ip| ip.to_string());
    let endpoints = [(cloud.clone(), "n2"), (OWN.map(str::to_owned), "h1"), (OTHER.map(str::to_owned), "h2")];
    fixture.apply(&slices("web", &endpoints));
    fixture.apply(&slices("own", &endpoints));
    fixture.apply(&slices("plain", &[(cloud, "n2")]));

    let edge = OutsideAgent::prepare(1, HostRoute::Masqueraded, &["--host-role=edge", "--node-name=h1"]);
    translate_public_addresses(&edge.outside);
    let _pod = own_pod(&fixture, &edge.outside);
    edge.agent().start().unwrap();
    assert_eq!(edge.agent().status().unwrap()["hostRole"], "edge");

    let web = targets(&fixture, "web");
    for target in &two_of(&web) {
        let family = usize::from(target.at.is_ipv6());
        let mut expected = vec![with_port(OWN[family], 8080), with_port(PUBLIC[family], port_of(&fixture, target))];
        let sorted = |mut all: Vec<String>| {
            all.sort();
            all
        };
        expected.sort();
        wait_until(&format!("{target} by {expected:?}"), || sorted(edge.explain(target).backends()) == expected);
        let paths = edge.explain(target).paths();
        assert!(
            paths.iter().any(|path| path == "unreachable: on another edge node, where no service proxy runs"),
            "{paths:?}"
        );
    }
    let report = edge.dial(&web, 24);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    for target in &web {
        assert_eq!(names(&report, target).into_iter().collect::<Vec<_>>(), ["h3", "web-2"], "{target}");
        // The cloud sees the address of the router.
        let server = format!("web-2 sees {}", edge.address(target));
        assert!(report.servers(target).contains(&server.as_str()), "{target}: {report:?}");
    }
    // A Local Service uses the host's own pods only. A Service with only cloud pods and no nodePort is refused.
    let report = edge.dial(&targets(&fixture, "own"), 8);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    for target in targets(&fixture, "own") {
        assert_eq!(names(&report, &target).into_iter().collect::<Vec<_>>(), ["h3"], "{target}");
    }
    edge.assert_refused(&targets(&fixture, "plain"));
    assert_eq!(edge.explain(&targets(&fixture, "plain")[0]).paths(), ["unreachable: no nodePort and pods not routed"]);
}
