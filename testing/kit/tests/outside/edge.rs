//! A host at the edge: a Node without a pod network, behind a router that masquerades. Its own pods are next door, the
//! cloud's are behind their nodes' public addresses, other edge nodes' are out of reach.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
};

use kit::{
    Host,
    host::{Outside, Road},
    part::Part,
    storm::Target,
};
use serde_json::{Value, json};

use crate::{
    field::{Field, eventually, server, service},
    stand::{Stand, corners, names, node_port, patch_status, pod, targets},
};

const EDGE: &str = "node-role.kubernetes.io/edge";
/// By which the cloud's second node is known to the world; a router in between leads it there.
const PUBLIC: [&str; 2] = ["203.0.113.12", "2001:db8::12"];
const OWN: [&str; 2] = ["10.245.7.7", "fd00:10:245:7::7"];
const OTHER: [&str; 2] = ["10.245.8.8", "fd00:10:245:8::8"];

/// A Node without a kubelet, as long as this lives.
struct Registered<'a> {
    field: &'a Field,
    host: Host,
}

impl<'a> Registered<'a> {
    fn new(field: &'a Field, host: Host) -> Registered<'a> {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": host.name(), "labels": {EDGE: ""}}});
        field.cluster.apply(&node).unwrap();
        let addresses: Vec<Value> =
            host.hidden_addresses().iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        let ready = json!({"type": "Ready", "status": "True"});
        let patch = json!({"status": {"addresses": addresses, "conditions": [ready]}}).to_string();
        let words = ["patch", "node", &host.name(), "--subresource=status", "--type=merge", "-p", &patch];
        field.cluster.kubectl(&words).unwrap();
        Registered { field, host }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let _ = self.field.cluster.kubectl(&["delete", "node", &self.host.name(), "--wait=false"]);
    }
}

/// The second node has a public address too. Its kubelet, which knows of none, would take that away.
struct Public<'a>(&'a Field);

impl<'a> Public<'a> {
    fn new(field: &'a Field) -> Public<'a> {
        field.cluster.part("n2/kubelet").unwrap().stop().unwrap();
        let own = kit::Node::new(2).unwrap().addresses().map(|ip| json!({"type": "InternalIP", "address": ip}));
        let public = PUBLIC.map(|ip| json!({"type": "ExternalIP", "address": ip}));
        let all = [own, public].concat();
        let patch = json!({"status": {"addresses": all}}).to_string();
        field.cluster.kubectl(&["patch", "node", "n2", "--subresource=status", "--type=merge", "-p", &patch]).unwrap();
        Public(field)
    }
}

impl Drop for Public<'_> {
    fn drop(&mut self) {
        patch_status(self.0, 2, &json!({"status": {"addresses": null}}));
        self.0.cluster.start_part("n2/kubelet").unwrap();
    }
}

/// The cloud's own translation, played by the only router on the way.
fn lead_to_the_cloud(edge: &Outside) {
    let [v4, v6] = kit::Node::new(2).unwrap().addresses();
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

/// A pod of the edge host, which answers with its host's name.
fn own_pod(field: &Field, edge: &Outside) -> (Outside, Part) {
    let addresses = OWN.map(|ip| ip.parse::<IpAddr>().unwrap());
    let pod = Outside::make(Host::new(3).unwrap(), Road::Pod { of: edge.host, addresses }).unwrap();
    let agnhost = field.cluster.cache.program("agnhost").display().to_string();
    let words = [&agnhost, "netexec", "--http-port=8080", "--udp-port=8080"].map(str::to_owned);
    let web = pod.part("web", words.to_vec()).unwrap();
    web.start().unwrap();
    (pod, web)
}

/// Endpoints as the edge's controllers write them: each with its node.
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
fn port_of(field: &Field, target: &Target) -> u16 {
    let all = node_port(field, "web", 2);
    all.iter().find(|one| one.protocol == target.protocol).unwrap().at.port()
}

#[test]
fn an_edge_host_dials_its_own_pods_and_the_clouds_nodes() {
    let field = Field::new("edge");
    let hand = |more: Value| {
        let mut spec = json!({"selector": null});
        more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
        spec
    };
    field.apply(&[
        server("web-2", 2),
        // Local: the cloud's nodes cannot reach the edge's pods.
        service("web", hand(json!({"type": "NodePort", "externalTrafficPolicy": "Local"}))),
        service("plain", hand(json!({}))),
        service("own", hand(json!({"internalTrafficPolicy": "Local"}))),
    ]);
    field.wait_ready(&["web-2"]);
    let [one, two] = [1, 2].map(|number| Host::new(number).unwrap());
    let (_nodes, _public) = ([one, two].map(|host| Registered::new(&field, host)), Public::new(&field));
    let cloud = pod(&field, "web-2").map(|ip| ip.to_string());
    let everybody = [(cloud.clone(), "n2"), (OWN.map(str::to_owned), "h1"), (OTHER.map(str::to_owned), "h2")];
    field.apply(&slices("web", &everybody));
    field.apply(&slices("own", &everybody));
    field.apply(&slices("plain", &[(cloud, "n2")]));

    let edge = Stand::prepare(1, Road::Hidden, &["--stand=edge", "--node-name=h1"]);
    lead_to_the_cloud(&edge.outside);
    let _pod = own_pod(&field, &edge.outside);
    edge.resolver().start().unwrap();
    assert_eq!(edge.resolver().status().unwrap()["stand"], "edge");

    let web = targets(&field, "web");
    for target in &corners(&web) {
        let family = usize::from(target.at.is_ipv6());
        let mut wanted = vec![with_port(OWN[family], 8080), with_port(PUBLIC[family], port_of(&field, target))];
        let sorted = |mut all: Vec<String>| {
            all.sort();
            all
        };
        wanted.sort();
        eventually(&format!("{target} by {wanted:?}"), || sorted(edge.explain(target).backends()) == wanted);
        let ways = edge.explain(target).ways();
        assert!(ways.iter().any(|way| way == "unreachable: on another edge node, where nothing proxies"), "{ways:?}");
    }
    let tally = edge.dial(&web, 24);
    assert!(tally.failures.is_empty(), "{:?}", tally.failures);
    for target in &web {
        assert_eq!(names(&tally, target).into_iter().collect::<Vec<_>>(), ["h3", "web-2"], "{target}");
        // The cloud sees the router that hides this host.
        let seen = format!("web-2 sees {}", edge.address(target));
        assert!(tally.who(target).contains(&seen.as_str()), "{target}: {tally:?}");
    }
    // Its own pods alone; and where there is nothing but the cloud's, without a nodePort, nothing.
    let tally = edge.dial(&targets(&field, "own"), 8);
    assert!(tally.failures.is_empty(), "{:?}", tally.failures);
    for target in targets(&field, "own") {
        assert_eq!(names(&tally, &target).into_iter().collect::<Vec<_>>(), ["h3"], "{target}");
    }
    edge.is_refused(&targets(&field, "plain"));
    assert_eq!(edge.explain(&targets(&field, "plain")[0]).ways(), ["unreachable: no nodePort and pods not routed"]);
}
