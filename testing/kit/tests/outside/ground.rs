//! That the ground is right: what each kind of host reaches, and what it does not, without any Beeline on it. Every test of
//! a stand-point rests on one of these.

use kit::{
    Host, Node,
    host::{Outside, Road, announce, eventually},
    node,
    plan::PODS,
    twin::Twin,
};
use serde_json::{Value, json};

use crate::field::{Field, at, server, service};

const UNREACHED: [&str; 2] = ["failed 7", "failed 28"];

fn host(number: u8) -> Host {
    Host::new(number).unwrap()
}

/// A pod on n1 and one on n2, and a Service with a nodePort.
fn served(name: &str) -> Field {
    let field = Field::new(name);
    field.apply(&[server("web-1", 1), server("web-2", 2), service("web", json!({"type": "NodePort"}))]);
    field.wait_ready(&["web-1", "web-2"]);
    field.settle("web", 2);
    field
}

fn addresses(field: &Field, pod: &str) -> Vec<String> {
    let ips = field.get("pod", pod)["status"]["podIPs"].clone();
    ips.as_array().unwrap().iter().map(|ip| ip["ip"].as_str().unwrap().to_owned()).collect()
}

/// Both pods, by both families.
fn reaches_pods(field: &Field, outside: &Outside) -> Vec<(String, String)> {
    let pods = ["web-1", "web-2"].iter().flat_map(|pod| addresses(field, pod).into_iter().map(move |ip| (*pod, ip)));
    pods.map(|(pod, ip)| (pod.to_owned(), outside.dial(&at(&ip, 8080)).unwrap())).collect()
}

fn assert_direct(field: &Field, outside: &Outside) {
    for (pod, answer) in reaches_pods(field, outside) {
        assert_eq!(answer, pod, "{:?}", outside.road);
    }
}

fn assert_cut_off(field: &Field, outside: &Outside) {
    for (pod, answer) in reaches_pods(field, outside) {
        assert!(UNREACHED.contains(&answer.as_str()), "{:?} reached {pod}: {answer}", outside.road);
    }
}

fn node_port(field: &Field) -> u64 {
    field.get("service", "web")["spec"]["ports"][0]["nodePort"].as_u64().unwrap()
}

/// Every node answers at the nodePort, by kube-proxy: from one it has a pod on, and from one without.
fn assert_node_ports(field: &Field, outside: &Outside) {
    for node in field.cluster.nodes() {
        for address in node.addresses() {
            let answer = outside.dial(&at(&address.to_string(), node_port(field))).unwrap();
            assert!(answer.starts_with("web-"), "{:?}: the nodePort of {node} at {address}: {answer}", outside.road);
        }
    }
}

fn assert_sees_the_api_server(outside: &Outside) {
    let url = kit::plan::api_url() + "/readyz";
    let code = outside.run(&["curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "5", &url]).unwrap();
    assert!(["200", "401"].contains(&code.as_str()), "{:?}: {url} answers {code}", outside.road);
}

#[test]
fn static_routes_lead_to_pods() {
    let field = served("static");
    let outside = Outside::make(host(1), Road::Static).unwrap();
    assert_sees_the_api_server(&outside);
    assert_direct(&field, &outside);
    assert_node_ports(&field, &outside);
    assert!(outside.route(&addresses(&field, "web-1")[0]).unwrap().contains("via 172.31.0.11"));
    assert_eq!(outside.run(&["hostname"]).unwrap(), "h1\n");
}

#[test]
fn routes_come_and_go_by_bgp() {
    let field = served("bgp");
    let outside = Outside::make(host(1), Road::Bgp).unwrap();
    assert_cut_off(&field, &outside);
    let speakers = announce(&field.cluster.nodes()).unwrap();
    let routes =
        |family: &str| outside.run(&["ip", family, "route", "show", "proto", "bird"]).map(|text| text.lines().count());
    let nodes = field.cluster.nodes().len();
    eventually("all nodes' routes", || Ok(routes("-4")? == nodes && routes("-6")? == nodes)).unwrap();
    assert_direct(&field, &outside);
    speakers[0].part.stop().unwrap();
    eventually("the first node's routes go", || Ok(routes("-4")? == nodes - 1 && routes("-6")? == nodes - 1)).unwrap();
    assert!(UNREACHED.contains(&outside.dial(&at(&addresses(&field, "web-1")[0], 8080)).unwrap().as_str()));
    assert_eq!(outside.dial(&at(&addresses(&field, "web-2")[0], 8080)).unwrap(), "web-2");
    speakers[0].part.start().unwrap();
    eventually("and come again", || Ok(routes("-4")? == nodes && routes("-6")? == nodes)).unwrap();
    assert_direct(&field, &outside);
}

#[test]
fn a_default_route_may_lead_to_pods_or_not() {
    let field = served("default");
    let (knows, blind) = (Outside::make(host(1), Road::Default).unwrap(), Outside::make(host(2), Road::Blind).unwrap());
    assert_direct(&field, &knows);
    assert_cut_off(&field, &blind);
    for outside in [&knows, &blind] {
        assert_node_ports(&field, outside);
        assert_sees_the_api_server(outside);
        let routes = outside.run(&["ip", "route", "show", "to", "match", &addresses(&field, "web-1")[0]]).unwrap();
        assert!(routes.lines().count() == 1 && routes.starts_with("default"), "{routes}");
    }
}

#[test]
fn a_host_without_any_route_sees_the_nodes_only() {
    let field = served("lone");
    let outside = Outside::make(host(1), Road::Lone).unwrap();
    assert_cut_off(&field, &outside);
    assert_node_ports(&field, &outside);
    assert_sees_the_api_server(&outside);
    assert!(outside.route(&addresses(&field, "web-1")[0]).is_err(), "no route at all");
}

#[test]
fn an_edge_host_is_seen_as_its_router() {
    let field = served("hidden");
    let outside = Outside::make(host(1), Road::Hidden).unwrap();
    assert_cut_off(&field, &outside);
    assert_node_ports(&field, &outside);
    assert_sees_the_api_server(&outside);
    // A policy of Local keeps the source: what the pod sees is the router.
    field.apply(&[service("near", json!({"type": "NodePort", "externalTrafficPolicy": "Local"}))]);
    let port = field.get("service", "near")["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    let [router, router6] = outside.host.addresses();
    let url =
        |node: u8, family: usize| at(&Node::new(node).unwrap().addresses()[family].to_string(), port) + "/clientip";
    let asked = |url: String| outside.run(&["curl", "-s", "--max-time", "5", &format!("http://{url}")]);
    eventually("the nodePort of Local", || Ok(asked(url(1, 0)).is_ok())).unwrap();
    assert!(asked(url(1, 0)).unwrap().starts_with(&format!("{router}:")));
    assert!(asked(url(1, 1)).unwrap().starts_with(&format!("[{router6}]:")));
}

#[test]
fn macvlan_pods_stand_beside_the_nodes() {
    let field = Field::new("macvlan");
    let second = Node::new(2).unwrap();
    node::set_macvlan(second).unwrap();
    let _back = Routed(second);
    let pod = || {
        field.apply(&[server("web-2", 2)]);
        field.wait_ready(&["web-2"]);
        addresses(&field, "web-2")
    };
    // containerd reads its settings a moment after they change.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let ips = pod();
    assert!(ips[0].starts_with("172.31.0.") && ips[1].starts_with("fd00:31::"), "{ips:?}");
    let range: ipnet::IpNet = PODS[0].parse().unwrap();
    assert!(!range.contains(&ips[0].parse::<std::net::IpAddr>().unwrap()), "outside of what the node's podCIDR says");
    let outside = Outside::make(host(1), Road::Lone).unwrap();
    for ip in &ips {
        assert_eq!(outside.dial(&at(ip, 8080)).unwrap(), "web-2", "{ip}");
    }
}

struct Routed(Node);

impl Drop for Routed {
    fn drop(&mut self) {
        node::set_routed(self.0).unwrap();
    }
}

/// A Service of a twin by the same ClusterIP that the first cluster gave to one of its own, and its one endpoint.
fn same_service(field: &Field, node: Host, address: &str) -> Vec<Value> {
    let ip = field.get("service", "web")["spec"]["clusterIP"].clone();
    let own = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": ip, "type": "NodePort", "ports": [{"name": "tcp", "port": 80, "targetPort": 8080, "nodePort": 30080}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "tcp", "port": 8080}],
        "endpoints": [{"addresses": [address], "nodeName": node.name(), "conditions": {"ready": true}}],
    });
    vec![own, slice]
}

#[test]
fn twins_have_the_same_ranges_and_answer_at_their_own_nodes() {
    let field = served("twin");
    let pod = addresses(&field, "web-1");
    let uid = |text: anyhow::Result<String>| text.unwrap();
    let words = ["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"];
    let mut uids = vec![uid(field.cluster.kubectl(&words))];
    let outside = Outside::make(host(1), Road::Static).unwrap();
    for (number, node, own) in [(2, host(2), host(3)), (3, host(4), host(5))] {
        let twin = Twin::start(number).unwrap();
        let member = twin.join(node, own, [pod[0].parse().unwrap(), pod[1].parse().unwrap()]).unwrap();
        for object in same_service(&field, node, &pod[0]) {
            twin.apply(&object).unwrap();
        }
        uids.push(uid(twin.kubectl(&words)));
        let answer = || outside.dial(&at(&node.addresses()[0].to_string(), 30080));
        eventually("the twin's nodePort, by its kube-proxy", || Ok(answer()? == member.pod.host.name())).unwrap();
        // The same address is another pod for who is routed to the first cluster.
        assert_eq!(outside.dial(&at(&pod[0], 8080)).unwrap(), "web-1");
        let code =
            outside.run(&["curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", &format!("{}/readyz", twin.url())]);
        assert_eq!(code.unwrap(), "200", "the twin's API server, from outside");
    }
    uids.sort();
    uids.dedup();
    assert_eq!(uids.len(), 3, "three clusters");
}
