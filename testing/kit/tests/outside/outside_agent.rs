//! A host outside the cluster with a running agent, its queries and dials, and the targets that tests dial.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use kit::{
    HostId,
    host::{HostAgent, HostRoute, OutsideHost},
    load::{self, DialReport, DialTarget, LoadGenerator},
};
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, server, service, wait_until};

/// A host outside with its agent.
pub struct OutsideAgent {
    pub outside: OutsideHost,
    options: Vec<String>,
}

impl OutsideAgent {
    /// Starts a host with the role outside. It probes pods more often than by default, so that tests are faster.
    pub fn outside(number: u8, route: HostRoute) -> OutsideAgent {
        OutsideAgent::start(number, route, &["--host-role=outside", "--probe-interval=2s"])
    }

    pub fn start(number: u8, route: HostRoute, options: &[&str]) -> OutsideAgent {
        let agent = OutsideAgent::prepare(number, route, options);
        agent.agent().start().unwrap();
        agent
    }

    /// Creates the host without starting its agent.
    pub fn prepare(number: u8, route: HostRoute, options: &[&str]) -> OutsideAgent {
        let outside = OutsideHost::create(HostId::new(number).unwrap(), route).unwrap();
        let kubeconfig = format!("--kubeconfig={}", outside.kubeconfig().display());
        let options = options.iter().map(|option| (*option).to_owned()).chain([kubeconfig]).collect();
        OutsideAgent { outside, options }
    }

    pub fn agent(&self) -> HostAgent<'_> {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        self.outside.agent(&options).unwrap()
    }

    pub fn explain(&self, target: &DialTarget) -> Explanation {
        let text = target.to_string();
        let (protocol, at) = text.split_once('/').unwrap();
        let json = self.agent().run_json(&["explain", &format!("{at}/{}", protocol.to_uppercase())]);
        Explanation { json: json.unwrap(), v6: target.at.is_ipv6() }
    }

    pub fn verdict(&self, target: &DialTarget) -> String {
        self.explain(target).verdict()
    }

    /// How the agent reaches these pods, and the evidence for it.
    pub fn reachability(&self, pods: &[IpAddr]) -> Vec<(String, String)> {
        let status = self.agent().status().unwrap();
        let all = status["clusters"][0]["reach"].as_array().cloned().unwrap_or_default();
        let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
        let of_pod = |pod: &IpAddr| {
            let contains = |one: &&Value| text(one, "prefix").parse::<ipnet::IpNet>().unwrap().contains(pod);
            all.iter().find(contains).map(|one| (text(one, "found"), text(one, "evidence"))).unwrap_or_default()
        };
        pods.iter().map(of_pod).collect()
    }

    /// Waits until the agent reaches these pods in this way, and returns the evidence for each.
    pub fn wait_for_reachability(&self, pods: &[IpAddr], found: &str) -> Vec<String> {
        let mut last = Vec::new();
        wait_until(&format!("{} reaches {pods:?} by {found}", self.outside.host), || {
            last = self.reachability(pods);
            last.iter().all(|(is, _)| is == found)
        });
        last.into_iter().map(|(_, evidence)| evidence).collect()
    }

    /// Reasons and messages of the refusals of this object.
    pub fn refusals(&self, subject: &str) -> Vec<(String, String)> {
        let status = self.agent().status().unwrap();
        let of_subject = |one: &&Value| one["subject"].to_string().contains(subject);
        let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
        let all = status["refusals"].as_array().cloned().unwrap_or_default();
        all.iter().filter(of_subject).map(|one| (text(one, "reason"), text(one, "message"))).collect()
    }

    pub fn dial(&self, targets: &[DialTarget], times: u32) -> DialReport {
        load::dial_times(self.outside.command().unwrap(), targets, times).unwrap()
    }

    pub fn start_load(&self, targets: &[DialTarget]) -> LoadGenerator {
        LoadGenerator::start(self.outside.command().unwrap(), targets).unwrap()
    }

    /// The host's address of the target's family.
    pub fn address(&self, target: &DialTarget) -> IpAddr {
        self.outside.host.addresses()[usize::from(target.at.is_ipv6())]
    }

    /// Asserts that each of these pods answers and sees this host's own address, so no node is in between.
    pub fn assert_direct(&self, targets: &[DialTarget], pods: &[&str]) {
        let report = self.dial(targets, 24);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        for target in targets {
            let own = self.address(target);
            let expected: Vec<String> = pods.iter().map(|pod| format!("{pod} sees {own}")).collect();
            assert_eq!(report.servers(target), expected, "{target} from {}", self.outside.host);
        }
    }

    /// Asserts that one pod answers all dials of a Service with affinity.
    pub fn assert_affinity(&self, targets: &[DialTarget]) {
        let [first, second] = [0, 1].map(|_| self.dial(targets, 12));
        for target in targets {
            let servers = first.servers(target);
            assert!(servers.len() == 1 && servers == second.servers(target), "{target}: {first:?} {second:?}");
        }
        assert!(first.failures.is_empty() && second.failures.is_empty());
    }

    /// Asserts that every dial is refused.
    pub fn assert_refused(&self, targets: &[DialTarget]) {
        let report = self.dial(targets, 3);
        assert!(report.answers.is_empty(), "{report:?}");
        assert!(report.failures.iter().all(|failure| failure.error == "refused"), "{:?}", report.failures);
    }
}

/// Output of `explain`.
pub struct Explanation {
    json: Value,
    v6: bool,
}

impl Explanation {
    pub fn verdict(&self) -> String {
        self.json["verdict"].as_str().unwrap().to_owned()
    }

    pub fn because(&self) -> &str {
        self.json["because"].as_str().unwrap()
    }

    /// Backends, each repeated by its weight.
    pub fn backends(&self) -> Vec<String> {
        self.json["backends"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    }

    /// How each endpoint of the dialled family is reached.
    pub fn paths(&self) -> Vec<String> {
        let family = if self.v6 { "IPv6" } else { "IPv4" };
        let families = self.json["endpoints"]["families"].as_array().into_iter().flatten();
        let own = families.filter(|one| one["family"] == family);
        let endpoints = own.flat_map(|one| one["endpoints"].as_array().unwrap());
        endpoints.map(|one| one["path"].as_str().unwrap().to_owned()).collect()
    }
}

/// TCP over IPv4 and UDP over IPv6, where checking all four combinations takes too long.
pub fn two_of(targets: &[DialTarget]) -> [DialTarget; 2] {
    [targets[0], targets[3]]
}

/// Names of the servers that answered, without the client addresses that they saw.
pub fn names(report: &DialReport, target: &DialTarget) -> BTreeSet<String> {
    report.servers(target).iter().map(|server| server.split(' ').next().unwrap().to_owned()).collect()
}

/// Creates the pods `web-1` and `web-2` on n1 and n2, and Services of them.
pub fn fixture_with_services(name: &str, services: &[(&str, Value)]) -> ClusterFixture {
    let fixture = ClusterFixture::new(name);
    let services = services.iter().map(|(name, more)| service(name, more.clone()));
    fixture.apply(&[server("web-1", 1), server("web-2", 2)].into_iter().chain(services).collect::<Vec<_>>());
    fixture.wait_ready(&["web-1", "web-2"]);
    fixture
}

/// IPv4 and IPv6 address of a pod.
pub fn pod_addresses(fixture: &ClusterFixture, name: &str) -> [IpAddr; 2] {
    let ips = fixture.get("pod", name)["status"]["podIPs"].clone();
    [0, 1].map(|family| ips[family]["ip"].as_str().unwrap().parse().unwrap())
}

/// A Service's ClusterIPs over TCP and UDP.
pub fn targets(fixture: &ClusterFixture, service: &str) -> Vec<DialTarget> {
    targets_at(&fixture.cluster_ips(service).map(|ip| ip.parse().unwrap()), 80)
}

/// These addresses over TCP and UDP.
pub fn targets_at(addresses: &[IpAddr], port: u16) -> Vec<DialTarget> {
    addresses.iter().flat_map(|address| DialTarget::both(SocketAddr::new(*address, port))).collect()
}

/// A node's addresses with the Service's nodePorts, which differ by protocol.
pub fn node_port(fixture: &ClusterFixture, service: &str, node: u8) -> Vec<DialTarget> {
    let ports = fixture.get("service", service)["spec"]["ports"].clone();
    let port = |index: usize| ports[index]["nodePort"].as_u64().unwrap() as u16;
    let addresses = kit::NodeId::new(node).unwrap().addresses();
    let of_address = |address: IpAddr| {
        let [tcp, udp] = [0, 1].map(|index| DialTarget::both(SocketAddr::new(address, port(index)))[index]);
        [tcp, udp]
    };
    addresses.into_iter().flat_map(of_address).collect()
}

/// A Service's load-balancer addresses over TCP and UDP.
pub fn load_balancer_targets(fixture: &ClusterFixture, service: &str) -> Vec<DialTarget> {
    let ingress = || fixture.get("service", service)["status"]["loadBalancer"]["ingress"].clone();
    wait_until("the Service has load-balancer addresses", || ingress().as_array().is_some_and(|all| all.len() == 2));
    targets_at(&[0, 1].map(|family| ingress()[family]["ip"].as_str().unwrap().parse().unwrap()), 80)
}

/// Marks a node as not ready while its pods continue. Its kubelet is stopped, because it would mark the node as ready.
pub struct UnreadyNode<'a> {
    fixture: &'a ClusterFixture,
    node: u8,
}

impl<'a> UnreadyNode<'a> {
    pub fn make(fixture: &'a ClusterFixture, node: u8) -> UnreadyNode<'a> {
        fixture.cluster.component(&format!("n{node}/kubelet")).unwrap().stop().unwrap();
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Test"}]}});
        patch_status(fixture, node, &patch);
        UnreadyNode { fixture, node }
    }
}

impl Drop for UnreadyNode<'_> {
    fn drop(&mut self) {
        let kubelet = self.fixture.cluster.component(&format!("n{}/kubelet", self.node));
        kubelet.and_then(|kubelet| kubelet.start()).unwrap();
    }
}

pub fn patch_status(fixture: &ClusterFixture, node: u8, patch: &Value) {
    let (name, patch) = (format!("n{node}"), patch.to_string());
    fixture
        .cluster
        .kubectl(&["patch", "node", &name, "--subresource=status", "--type=strategic", "-p", &patch])
        .unwrap();
}
