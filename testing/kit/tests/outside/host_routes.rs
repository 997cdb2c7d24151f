//! Checks of the kit itself: what each kind of host reaches without Beeline. The other tests of hosts outside rely on
//! it.

use kit::{
    HostId, NodeId,
    address_plan::PODS,
    extra_cluster::ExtraCluster,
    host::{HostRoute, OutsideHost, announce_pods, wait_until},
    node,
};
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, host_port, server, service};

const UNREACHABLE: [&str; 2] = ["failed 7", "failed 28"];

fn host(number: u8) -> HostId {
    HostId::new(number).unwrap()
}

/// Creates a pod on n1, one on n2, and a Service with a nodePort.
fn fixture_with_service(name: &str) -> ClusterFixture {
    let fixture = ClusterFixture::new(name);
    fixture.apply(&[server("web-1", 1), server("web-2", 2), service("web", json!({"type": "NodePort"}))]);
    fixture.wait_ready(&["web-1", "web-2"]);
    fixture.wait_for_endpoints("web", 2);
    fixture
}

fn addresses(fixture: &ClusterFixture, pod: &str) -> Vec<String> {
    let ips = fixture.get("pod", pod)["status"]["podIPs"].clone();
    ips.as_array().unwrap().iter().map(|ip| ip["ip"].as_str().unwrap().to_owned()).collect()
}

/// Dials both pods over both families, and returns the answers.
fn dial_pods(fixture: &ClusterFixture, outside: &OutsideHost) -> Vec<(String, String)> {
    let pods = ["web-1", "web-2"].iter().flat_map(|pod| addresses(fixture, pod).into_iter().map(move |ip| (*pod, ip)));
    pods.map(|(pod, ip)| (pod.to_owned(), outside.dial(&host_port(&ip, 8080)).unwrap())).collect()
}

fn assert_reaches_pods(fixture: &ClusterFixture, outside: &OutsideHost) {
    for (pod, answer) in dial_pods(fixture, outside) {
        assert_eq!(answer, pod, "{:?}", outside.route);
    }
}

fn assert_does_not_reach_pods(fixture: &ClusterFixture, outside: &OutsideHost) {
    for (pod, answer) in dial_pods(fixture, outside) {
        assert!(UNREACHABLE.contains(&answer.as_str()), "{:?} reached {pod}: {answer}", outside.route);
    }
}

fn node_port(fixture: &ClusterFixture) -> u64 {
    fixture.get("service", "web")["spec"]["ports"][0]["nodePort"].as_u64().unwrap()
}

/// Asserts that kube-proxy on every node serves the nodePort, also on nodes without a pod.
fn assert_node_ports(fixture: &ClusterFixture, outside: &OutsideHost) {
    for node in fixture.cluster.nodes() {
        for address in node.addresses() {
            let answer = outside.dial(&host_port(&address.to_string(), node_port(fixture))).unwrap();
            assert!(answer.starts_with("web-"), "{:?}: the nodePort of {node} at {address}: {answer}", outside.route);
        }
    }
}

fn assert_reaches_api_server(outside: &OutsideHost) {
    let url = kit::address_plan::api_url() + "/readyz";
    let code = outside.run(&["curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "5", &url]).unwrap();
    assert!(["200", "401"].contains(&code.as_str()), "{:?}: {url} answers {code}", outside.route);
}

#[test]
fn a_host_with_static_routes_reaches_pods() {
    let fixture = fixture_with_service("static");
    let outside = OutsideHost::create(host(1), HostRoute::Static).unwrap();
    assert_reaches_api_server(&outside);
    assert_reaches_pods(&fixture, &outside);
    assert_node_ports(&fixture, &outside);
    assert!(outside.route_to(&addresses(&fixture, "web-1")[0]).unwrap().contains("via 172.31.0.11"));
    assert_eq!(outside.run(&["hostname"]).unwrap(), "h1\n");
}

#[test]
fn a_host_learns_routes_by_bgp() {
    let fixture = fixture_with_service("bgp");
    let outside = OutsideHost::create(host(1), HostRoute::Bgp).unwrap();
    assert_does_not_reach_pods(&fixture, &outside);
    let speakers = announce_pods(&fixture.cluster.nodes()).unwrap();
    let routes =
        |family: &str| outside.run(&["ip", family, "route", "show", "proto", "bird"]).map(|text| text.lines().count());
    let nodes = fixture.cluster.nodes().len();
    wait_until("the routes of all nodes", || Ok(routes("-4")? == nodes && routes("-6")? == nodes)).unwrap();
    assert_reaches_pods(&fixture, &outside);
    speakers[0].component.stop().unwrap();
    wait_until("removal of the first node's routes", || Ok(routes("-4")? == nodes - 1 && routes("-6")? == nodes - 1))
        .unwrap();
    assert!(UNREACHABLE.contains(&outside.dial(&host_port(&addresses(&fixture, "web-1")[0], 8080)).unwrap().as_str()));
    assert_eq!(outside.dial(&host_port(&addresses(&fixture, "web-2")[0], 8080)).unwrap(), "web-2");
    speakers[0].component.start().unwrap();
    wait_until("the routes of all nodes again", || Ok(routes("-4")? == nodes && routes("-6")? == nodes)).unwrap();
    assert_reaches_pods(&fixture, &outside);
}

#[test]
fn a_default_route_reaches_pods_or_a_blackhole() {
    let fixture = fixture_with_service("default");
    let (routed, blackhole) = (
        OutsideHost::create(host(1), HostRoute::Default).unwrap(),
        OutsideHost::create(host(2), HostRoute::Blackhole).unwrap(),
    );
    assert_reaches_pods(&fixture, &routed);
    assert_does_not_reach_pods(&fixture, &blackhole);
    for outside in [&routed, &blackhole] {
        assert_node_ports(&fixture, outside);
        assert_reaches_api_server(outside);
        let routes = outside.run(&["ip", "route", "show", "to", "match", &addresses(&fixture, "web-1")[0]]).unwrap();
        assert!(routes.lines().count() == 1 && routes.starts_with("default"), "{routes}");
    }
}

#[test]
fn a_host_without_routes_reaches_only_the_nodes() {
    let fixture = fixture_with_service("isolated");
    let outside = OutsideHost::create(host(1), HostRoute::Isolated).unwrap();
    assert_does_not_reach_pods(&fixture, &outside);
    assert_node_ports(&fixture, &outside);
    assert_reaches_api_server(&outside);
    assert!(outside.route_to(&addresses(&fixture, "web-1")[0]).is_err(), "no route at all");
}

#[test]
fn a_masqueraded_host_is_seen_as_its_router() {
    let fixture = fixture_with_service("masqueraded");
    let outside = OutsideHost::create(host(1), HostRoute::Masqueraded).unwrap();
    assert_does_not_reach_pods(&fixture, &outside);
    assert_node_ports(&fixture, &outside);
    assert_reaches_api_server(&outside);
    // externalTrafficPolicy Local keeps the source address, so the pod sees the router's address.
    fixture.apply(&[service("near", json!({"type": "NodePort", "externalTrafficPolicy": "Local"}))]);
    let port = fixture.get("service", "near")["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    let [router, router6] = outside.host.addresses();
    let url = |node: u8, family: usize| {
        host_port(&NodeId::new(node).unwrap().addresses()[family].to_string(), port) + "/clientip"
    };
    let get = |url: String| outside.run(&["curl", "-s", "--max-time", "5", &format!("http://{url}")]);
    wait_until("the nodePort of the Local Service", || Ok(get(url(1, 0)).is_ok())).unwrap();
    assert!(get(url(1, 0)).unwrap().starts_with(&format!("{router}:")));
    assert!(get(url(1, 1)).unwrap().starts_with(&format!("[{router6}]:")));
}

#[test]
fn macvlan_pods_are_on_the_nodes_network() {
    let fixture = ClusterFixture::new("macvlan");
    let second = NodeId::new(2).unwrap();
    node::set_macvlan(second).unwrap();
    let _restore = RestoreRouted(second);
    fixture.create_macvlan_pod(server("web-2", 2));
    let ips = addresses(&fixture, "web-2");
    assert!(ips[0].starts_with("172.31.0.") && ips[1].starts_with("fd00:31::"), "{ips:?}");
    let range: ipnet::IpNet = PODS[0].parse().unwrap();
    assert!(
        !range.contains(&ips[0].parse::<std::net::IpAddr>().unwrap()),
        "the address is outside the node's pod range"
    );
    let outside = OutsideHost::create(host(1), HostRoute::Isolated).unwrap();
    for ip in &ips {
        assert_eq!(outside.dial(&host_port(ip, 8080)).unwrap(), "web-2", "{ip}");
    }
}

struct RestoreRouted(NodeId);

impl Drop for RestoreRouted {
    fn drop(&mut self) {
        node::set_routed(self.0).unwrap();
    }
}

/// A Service of an extra cluster with the same ClusterIP as a Service of the first cluster, and its endpoint.
fn same_service(fixture: &ClusterFixture, node: HostId, address: &str) -> Vec<Value> {
    let ip = fixture.get("service", "web")["spec"]["clusterIP"].clone();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": ip, "type": "NodePort", "ports": [{"name": "tcp", "port": 80, "targetPort": 8080, "nodePort": 30080}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "tcp", "port": 8080}],
        "endpoints": [{"addresses": [address], "nodeName": node.name(), "conditions": {"ready": true}}],
    });
    vec![service, slice]
}

#[test]
fn extra_clusters_have_the_same_ranges_and_their_own_nodes() {
    let fixture = fixture_with_service("extra-clusters");
    let pod = addresses(&fixture, "web-1");
    let uid = |text: anyhow::Result<String>| text.unwrap();
    let arguments = ["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"];
    let mut uids = vec![uid(fixture.cluster.kubectl(&arguments))];
    let outside = OutsideHost::create(host(1), HostRoute::Static).unwrap();
    for (number, node, own) in [(2, host(2), host(3)), (3, host(4), host(5))] {
        let cluster = ExtraCluster::start(number).unwrap();
        let extra_node = cluster.join(node, own, [pod[0].parse().unwrap(), pod[1].parse().unwrap()]).unwrap();
        for object in same_service(&fixture, node, &pod[0]) {
            cluster.apply(&object).unwrap();
        }
        uids.push(uid(cluster.kubectl(&arguments)));
        let answer = || outside.dial(&host_port(&node.addresses()[0].to_string(), 30080));
        wait_until("the nodePort of the extra cluster", || Ok(answer()? == extra_node.pod.host.name())).unwrap();
        // A host with routes to the first cluster reaches that cluster's pod at the same address.
        assert_eq!(outside.dial(&host_port(&pod[0], 8080)).unwrap(), "web-1");
        let code = outside.run(&[
            "curl",
            "-sk",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            &format!("{}/readyz", cluster.url()),
        ]);
        assert_eq!(code.unwrap(), "200", "the extra cluster's API server from outside");
    }
    uids.sort();
    uids.dedup();
    assert_eq!(uids.len(), 3, "three distinct clusters");
}
