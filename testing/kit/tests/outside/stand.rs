//! A host with Beeline on it, what it is asked and what it dials; and what is dialled.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use kit::{
    Host,
    host::{Outside, Resolver, Road},
    storm::{self, Storm, Tally, Target},
};
use serde_json::{Value, json};

use crate::field::{Field, eventually, server, service};

/// A host whose agent runs.
pub struct Stand {
    pub outside: Outside,
    words: Vec<String>,
}

impl Stand {
    /// Outside, as most hosts are; they ask pods more often than usual, so that tests need not wait.
    pub fn outside(number: u8, road: Road) -> Stand {
        Stand::start(number, road, &["--stand=outside", "--probe-interval=2s"])
    }

    pub fn start(number: u8, road: Road, words: &[&str]) -> Stand {
        let stand = Stand::prepare(number, road, words);
        stand.resolver().start().unwrap();
        stand
    }

    /// The host alone; its agent is not started yet.
    pub fn prepare(number: u8, road: Road, words: &[&str]) -> Stand {
        let outside = Outside::make(Host::new(number).unwrap(), road).unwrap();
        let kubeconfig = format!("--kubeconfig={}", outside.kubeconfig().display());
        let words = words.iter().map(|word| (*word).to_owned()).chain([kubeconfig]).collect();
        Stand { outside, words }
    }

    pub fn resolver(&self) -> Resolver<'_> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        self.outside.resolver(&words).unwrap()
    }

    pub fn explain(&self, target: &Target) -> Said {
        let text = target.to_string();
        let (protocol, at) = text.split_once('/').unwrap();
        let said = self.resolver().ask_json(&["explain", &format!("{at}/{}", protocol.to_uppercase())]);
        Said { said: said.unwrap(), v6: target.at.is_ipv6() }
    }

    pub fn verdict(&self, target: &Target) -> String {
        self.explain(target).verdict()
    }

    /// What is known of the pods around these addresses: how they are reached, and by what evidence.
    pub fn findings(&self, pods: &[IpAddr]) -> Vec<(String, String)> {
        let status = self.resolver().status().unwrap();
        let all = status["clusters"][0]["reach"].as_array().cloned().unwrap_or_default();
        let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
        let of = |pod: &IpAddr| {
            let holds = |one: &&Value| text(one, "prefix").parse::<ipnet::IpNet>().unwrap().contains(pod);
            all.iter().find(holds).map(|one| (text(one, "found"), text(one, "evidence"))).unwrap_or_default()
        };
        pods.iter().map(of).collect()
    }

    /// Until pods around these addresses are known to be reached so; gives the evidence for each.
    pub fn wait_found(&self, pods: &[IpAddr], found: &str) -> Vec<String> {
        let mut last = Vec::new();
        eventually(&format!("{} finds {pods:?}: {found}", self.outside.host), || {
            last = self.findings(pods);
            last.iter().all(|(is, _)| is == found)
        });
        last.into_iter().map(|(_, evidence)| evidence).collect()
    }

    /// The reason and message of all that is refused of this object.
    pub fn refusals(&self, subject: &str) -> Vec<(String, String)> {
        let status = self.resolver().status().unwrap();
        let of = |one: &&Value| one["subject"].to_string().contains(subject);
        let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
        let all = status["refusals"].as_array().cloned().unwrap_or_default();
        all.iter().filter(of).map(|one| (text(one, "reason"), text(one, "message"))).collect()
    }

    pub fn dial(&self, targets: &[Target], times: u32) -> Tally {
        storm::count(self.outside.command().unwrap(), targets, times).unwrap()
    }

    pub fn storm(&self, targets: &[Target]) -> Storm {
        Storm::start(self.outside.command().unwrap(), targets).unwrap()
    }

    /// The address of that family by which others see it.
    pub fn address(&self, target: &Target) -> IpAddr {
        self.outside.host.addresses()[usize::from(target.at.is_ipv6())]
    }

    /// Every dial was answered; by each of these pods, which saw this host itself: nobody was in between.
    pub fn reaches_directly(&self, targets: &[Target], pods: &[&str]) {
        let tally = self.dial(targets, 24);
        assert!(tally.failures.is_empty(), "{:?}", tally.failures);
        for target in targets {
            let own = self.address(target);
            let wanted: Vec<String> = pods.iter().map(|pod| format!("{pod} sees {own}")).collect();
            assert_eq!(tally.who(target), wanted, "{target} from {}", self.outside.host);
        }
    }

    /// With affinity: whoever answers first answers always.
    pub fn keeps_its_pod(&self, targets: &[Target]) {
        let [first, second] = [0, 1].map(|_| self.dial(targets, 12));
        for target in targets {
            let who = first.who(target);
            assert!(who.len() == 1 && who == second.who(target), "{target}: {first:?} {second:?}");
        }
        assert!(first.failures.is_empty() && second.failures.is_empty());
    }

    /// Every dial was refused.
    pub fn is_refused(&self, targets: &[Target]) {
        let tally = self.dial(targets, 3);
        assert!(tally.answers.is_empty(), "{tally:?}");
        assert!(tally.failures.iter().all(|failure| failure.error == "refused"), "{:?}", tally.failures);
    }
}

/// What `explain` says of a dial.
pub struct Said {
    said: Value,
    v6: bool,
}

impl Said {
    pub fn verdict(&self) -> String {
        self.said["verdict"].as_str().unwrap().to_owned()
    }

    pub fn because(&self) -> &str {
        self.said["because"].as_str().unwrap()
    }

    /// Where dials are led, each as often as its weight says.
    pub fn backends(&self) -> Vec<String> {
        self.said["backends"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    }

    /// How each endpoint of the dialled family is reached.
    pub fn ways(&self) -> Vec<String> {
        let family = if self.v6 { "IPv6" } else { "IPv4" };
        let families = self.said["endpoints"]["families"].as_array().into_iter().flatten();
        let own = families.filter(|one| one["family"] == family);
        let endpoints = own.flat_map(|one| one["endpoints"].as_array().unwrap());
        endpoints.map(|one| one["way"].as_str().unwrap().to_owned()).collect()
    }
}

/// TCP by IPv4 and UDP by IPv6: each half of what there is, where asking for all takes too long.
pub fn corners(targets: &[Target]) -> [Target; 2] {
    [targets[0], targets[3]]
}

/// Pods answered, whoever they saw.
pub fn names(tally: &Tally, target: &Target) -> BTreeSet<String> {
    tally.who(target).iter().map(|who| who.split(' ').next().unwrap().to_owned()).collect()
}

/// What is dialled in these tests: pods `web-1`, `web-2`, on n1 and n2, and Services of them.
pub fn served(name: &str, services: &[(&str, Value)]) -> Field {
    let field = Field::new(name);
    let services = services.iter().map(|(name, more)| service(name, more.clone()));
    field.apply(&[server("web-1", 1), server("web-2", 2)].into_iter().chain(services).collect::<Vec<_>>());
    field.wait_ready(&["web-1", "web-2"]);
    field
}

/// Both addresses of a pod.
pub fn pod(field: &Field, name: &str) -> [IpAddr; 2] {
    let ips = field.get("pod", name)["status"]["podIPs"].clone();
    [0, 1].map(|family| ips[family]["ip"].as_str().unwrap().parse().unwrap())
}

/// A Service's ClusterIPs, by both protocols.
pub fn targets(field: &Field, service: &str) -> Vec<Target> {
    at(&field.cluster_ips(service).map(|ip| ip.parse().unwrap()), 80)
}

/// These addresses, by both protocols.
pub fn at(addresses: &[IpAddr], port: u16) -> Vec<Target> {
    addresses.iter().flat_map(|address| Target::both(SocketAddr::new(*address, port))).collect()
}

/// A node's addresses with the Service's nodePorts, which differ by protocol.
pub fn node_port(field: &Field, service: &str, node: u8) -> Vec<Target> {
    let ports = field.get("service", service)["spec"]["ports"].clone();
    let port = |index: usize| ports[index]["nodePort"].as_u64().unwrap() as u16;
    let addresses = kit::Node::new(node).unwrap().addresses();
    let of = |address: IpAddr| {
        let [tcp, udp] = [0, 1].map(|index| Target::both(SocketAddr::new(address, port(index)))[index]);
        [tcp, udp]
    };
    addresses.into_iter().flat_map(of).collect()
}

/// The addresses that a load balancer gave it, by both protocols.
pub fn balanced(field: &Field, service: &str) -> Vec<Target> {
    let ingress = || field.get("service", service)["status"]["loadBalancer"]["ingress"].clone();
    eventually("a load balancer's addresses", || ingress().as_array().is_some_and(|all| all.len() == 2));
    at(&[0, 1].map(|family| ingress()[family]["ip"].as_str().unwrap().parse().unwrap()), 80)
}

/// A node of the cluster says no more that it is ready, though its pods go on. Its kubelet would say so again.
pub struct Unready<'a> {
    field: &'a Field,
    node: u8,
}

impl<'a> Unready<'a> {
    pub fn make(field: &'a Field, node: u8) -> Unready<'a> {
        field.cluster.part(&format!("n{node}/kubelet")).unwrap().stop().unwrap();
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Test"}]}});
        patch_status(field, node, &patch);
        Unready { field, node }
    }
}

impl Drop for Unready<'_> {
    fn drop(&mut self) {
        let kubelet = self.field.cluster.part(&format!("n{}/kubelet", self.node));
        kubelet.and_then(|kubelet| kubelet.start()).unwrap();
    }
}

pub fn patch_status(field: &Field, node: u8, patch: &Value) {
    let (name, patch) = (format!("n{node}"), patch.to_string());
    field.cluster.kubectl(&["patch", "node", &name, "--subresource=status", "--type=strategic", "-p", &patch]).unwrap();
}

/// Long enough for what is written to the API server to be in the kernel.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(500));
}
