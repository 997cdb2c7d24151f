//! The incremental publisher against a naive one that looks at everything every time, over random histories.

use beeline_model::fact::{ContainerPort, Endpoint, Fact, Namespace, Node, Pod, PodName, SliceName, SlicePort};
use beeline_model::policy::{
    BackendPort, DialledPort, Matcher, Policy, PolicyKind, PolicyName, PolicySlice, PortChoice, RedirectMode, Target,
};
use beeline_model::publish::{NodePublisher, Publisher, ROOM, Unknown};
use beeline_model::selector::{Demand, Labels, Requirement, Selector};
use beeline_model::{Address, Family, Name, Protocol};
use std::collections::{BTreeMap, BTreeSet};

fn address(text: &str) -> Address {
    beeline_model::address::parse_ip(text).unwrap().into()
}

fn policy_name(kind: PolicyKind, namespace: &str, name: &str) -> PolicyName {
    PolicyName { kind, cluster: "local".into(), namespace: namespace.into(), name: name.into() }
}

fn pod_name(namespace: &str, name: &str) -> PodName {
    PodName { cluster: "local".into(), namespace: namespace.into(), name: name.into() }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

fn selector(pairs: &[(&str, &str)]) -> Selector {
    let one = |(key, value): &(&str, &str)| Requirement {
        key: (*key).into(),
        demand: Demand::In([Name::from(*value)].into()),
    };
    Selector(pairs.iter().map(one).collect())
}

fn port(choice: PortChoice) -> BackendPort {
    BackendPort { name: "http".into(), port: choice, protocol: Protocol::Tcp }
}

fn policy(name: PolicyName, uid: &str, target: Target) -> Policy {
    let dialled = DialledPort { name: "http".into(), port: 80, protocol: Protocol::Tcp };
    Policy {
        name,
        uid: uid.into(),
        created: 0,
        generation: 1,
        matcher: Matcher::Service { name: "web".into(), ports: Some([dialled].into()) },
        target,
        nodes: None,
        out_cluster: true,
        limit: None,
    }
}

fn pods_of(labels: &[(&str, &str)], namespaces: Option<Selector>, mode: RedirectMode, choice: PortChoice) -> Target {
    Target::Pods { selector: selector(labels), namespaces, mode, ports: [port(choice)].into() }
}

fn pod(namespace: &str, name: &str, ip: &str, pairs: &[(&str, &str)]) -> Pod {
    let declared = ContainerPort { name: "web".into(), protocol: Protocol::Tcp, port: 8080, host_port: 0 };
    Pod {
        name: pod_name(namespace, name),
        uid: name.into(),
        node: Some("node-1".into()),
        addresses: [address(ip)].into(),
        containers: [].into(),
        untouched: false,
        view: None,
        labels: labels(pairs),
        ready: true,
        ports: [declared].into(),
    }
}

/// Who takes what is published.
#[derive(Default)]
struct Reader {
    slices: BTreeMap<SliceName, PolicySlice>,
}

impl Reader {
    /// How many slices were written.
    fn take(&mut self, publisher: &mut Publisher) -> usize {
        let facts = publisher.take();
        let written = facts.len();
        for fact in facts {
            match fact {
                Fact::PolicySlice(slice) => drop(self.slices.insert(slice.name.clone(), slice)),
                Fact::PolicySliceGone(name) => assert!(self.slices.remove(&name).is_some(), "{name:?} was never there"),
                other => panic!("{other:?}"),
            }
        }
        written
    }

    fn endpoints(&self) -> Vec<(String, Endpoint, Vec<SlicePort>)> {
        let mut all = Vec::new();
        for slice in self.slices.values() {
            assert!((1..=ROOM).contains(&slice.endpoints.len()), "{} endpoints", slice.endpoints.len());
            for endpoint in &slice.endpoints {
                assert_eq!(endpoint.address.family(), slice.family);
                all.push((
                    format!("{} {} {:?}", slice.policy, slice.uid, slice.shape),
                    endpoint.clone(),
                    slice.ports.to_vec(),
                ));
            }
        }
        all.sort_by_key(|(owner, endpoint, ports)| (owner.clone(), endpoint.address, format!("{ports:?}")));
        all
    }
}

#[derive(Default)]
struct World {
    policies: BTreeMap<PolicyName, Policy>,
    pods: BTreeMap<PodName, Pod>,
    namespaces: BTreeMap<Name, Labels>,
}

impl World {
    fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::Policy(policy) => drop(self.policies.insert(policy.name.clone(), policy.clone())),
            Fact::PolicyGone(name) => drop(self.policies.remove(name)),
            Fact::Pod(pod) => drop(self.pods.insert(pod.name.clone(), pod.clone())),
            Fact::PodGone(name) => drop(self.pods.remove(name)),
            Fact::Namespace(it) => drop(self.namespaces.insert(it.name.clone(), it.labels.clone())),
            Fact::NamespaceGone { name, .. } => drop(self.namespaces.remove(name)),
            _ => unreachable!(),
        }
    }

    /// What the words of the policy say, pod by pod.
    fn endpoints(&self) -> Vec<(String, Endpoint, Vec<SlicePort>)> {
        let mut all = Vec::new();
        for policy in self.policies.values() {
            let Target::Pods { selector, namespaces, mode, ports } = &policy.target else { continue };
            for pod in self.pods.values().filter(|pod| pod.ready && selector.matches(&pod.labels)) {
                let inside = match namespaces {
                    None => pod.name.namespace == policy.name.namespace,
                    Some(wanted) => self.namespaces.get(&pod.name.namespace).is_some_and(|known| {
                        let mut known = known.clone();
                        known.insert("kubernetes.io/metadata.name".into(), pod.name.namespace.clone());
                        wanted.matches(&known)
                    }),
                };
                let ports: Vec<SlicePort> = ports.iter().filter_map(|wanted| naive_port(wanted, *mode, pod)).collect();
                if !inside || ports.is_empty() {
                    continue;
                }
                for family in Family::BOTH {
                    let Some(address) = pod.addresses.iter().find(|a| a.family() == family) else { continue };
                    let endpoint = Endpoint {
                        address: *address,
                        ready: true,
                        serving: true,
                        terminating: false,
                        node: pod.node.clone(),
                        hints: None,
                    };
                    all.push((format!("{} {} {:?}", policy.name, policy.uid, policy.shape()), endpoint, ports.clone()));
                }
            }
        }
        all.sort_by_key(|(owner, endpoint, ports)| (owner.clone(), endpoint.address, format!("{ports:?}")));
        all
    }
}

fn naive_port(wanted: &BackendPort, mode: RedirectMode, pod: &Pod) -> Option<SlicePort> {
    let declared = pod.ports.iter().find(|port| match &wanted.port {
        PortChoice::Name(name) => port.name == *name && port.protocol == wanted.protocol,
        PortChoice::Number(number) => port.port == *number && port.protocol == wanted.protocol,
    });
    let number = match (&wanted.port, mode) {
        (_, RedirectMode::HostPort) => declared.map(|port| port.host_port).filter(|port| *port != 0)?,
        (PortChoice::Number(number), _) => *number,
        (PortChoice::Name(_), _) => declared?.port,
    };
    Some(SlicePort { name: wanted.name.clone(), protocol: wanted.protocol, port: number })
}

const NAMESPACES: [&str; 3] = ["shop", "lab", "kube-system"];
const APPS: [&str; 3] = ["web", "api", "db"];

fn pick<'a>(rng: &mut fastrand::Rng, words: &[&'a str]) -> &'a str {
    words[rng.usize(..words.len())]
}

fn random_selector(rng: &mut fastrand::Rng) -> Selector {
    let app = pick(rng, &APPS);
    let demand = match rng.u8(..6) {
        0 => Demand::Exists,
        1 => Demand::DoesNotExist,
        2 => Demand::NotIn([app.into()].into()),
        3 => Demand::In(["web".into(), app.into()].into()),
        _ => Demand::In([app.into()].into()),
    };
    let one = Requirement { key: "app".into(), demand };
    if rng.u8(..8) == 0 { Selector::default() } else { Selector([one].into()) }
}

fn random_policy(rng: &mut fastrand::Rng) -> Fact {
    let name = policy_name(PolicyKind::Balancing, pick(rng, &NAMESPACES), pick(rng, &["p", "q", "r"]));
    if rng.u8(..5) == 0 {
        return Fact::PolicyGone(name);
    }
    let namespaces = (rng.u8(..2) == 0).then(|| match rng.u8(..3) {
        0 => Selector::default(),
        1 => selector(&[("kubernetes.io/metadata.name", pick(rng, &NAMESPACES))]),
        _ => selector(&[("team", "a")]),
    });
    let mode = [RedirectMode::PodEndpoint, RedirectMode::HostPort, RedirectMode::NodeProxy][rng.usize(..3)];
    let choice = if rng.bool() { PortChoice::Number(8080) } else { PortChoice::Name("web".into()) };
    let target = Target::Pods { selector: random_selector(rng), namespaces, mode, ports: [port(choice)].into() };
    Fact::Policy(policy(name, pick(rng, &["u1", "u2"]), target))
}

fn random_pod(rng: &mut fastrand::Rng) -> Fact {
    let (namespace, number) = (pick(rng, &NAMESPACES), rng.u8(..40));
    let name = format!("pod-{number}");
    if rng.u8(..5) == 0 {
        return Fact::PodGone(pod_name(namespace, &name));
    }
    let at = NAMESPACES.iter().position(|n| *n == namespace).unwrap();
    let mut pod = pod(namespace, &name, &format!("10.{at}.0.{number}"), &[("app", pick(rng, &APPS))]);
    if rng.bool() {
        pod.addresses = [pod.addresses[0], address(&format!("fd00::{at}:{number}"))].into();
    }
    if rng.u8(..6) == 0 {
        pod.labels.clear();
    }
    pod.ready = rng.u8(..4) != 0;
    pod.ports[0].host_port = [0, 0, 18080, 28080][rng.usize(..4)];
    pod.ports[0].port = [8080, 9090][rng.usize(..2)];
    Fact::Pod(pod)
}

fn random_namespace(rng: &mut fastrand::Rng) -> Fact {
    let name: Name = pick(rng, &NAMESPACES).into();
    if rng.u8(..6) == 0 {
        return Fact::NamespaceGone { cluster: "local".into(), name };
    }
    let labels = if rng.bool() { labels(&[("team", "a")]) } else { Labels::default() };
    Fact::Namespace(Namespace { cluster: "local".into(), name, labels })
}

#[test]
fn says_what_the_naive_one_says() {
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut world, mut publisher, mut reader) =
            (World::default(), Publisher::new(Unknown::Waits), Reader::default());
        for step in 0..120 {
            let fact = match rng.u8(..10) {
                0 | 1 => random_policy(&mut rng),
                2 => random_namespace(&mut rng),
                _ => random_pod(&mut rng),
            };
            world.apply(&fact);
            publisher.apply(&fact);
            if rng.u8(..3) != 0 {
                continue;
            }
            reader.take(&mut publisher);
            assert_eq!(reader.endpoints(), world.endpoints(), "seed {seed} step {step}");
            let all: BTreeMap<_, _> = publisher.slices().map(|slice| (slice.name.clone(), slice)).collect();
            assert_eq!(all, reader.slices, "seed {seed} step {step}: all of them, and what was told bit by bit");
        }
    }
}

#[test]
fn one_pods_change_rewrites_one_slice() {
    let (mut publisher, mut reader) = (Publisher::new(Unknown::Plain), Reader::default());
    let target = pods_of(&[("app", "web")], None, RedirectMode::PodEndpoint, PortChoice::Name("web".into()));
    publisher.apply(&Fact::Policy(policy(policy_name(PolicyKind::Balancing, "shop", "api"), "u1", target)));
    let many =
        |n: u32| pod("shop", &format!("pod-{n}"), &format!("10.0.{}.{}", n / 200, n % 200 + 1), &[("app", "web")]);
    (0..1000).for_each(|n| publisher.apply(&Fact::Pod(many(n))));
    assert_eq!((reader.take(&mut publisher), reader.slices.len()), (10, 10));
    for n in [0, 1, 500, 999] {
        let mut moved = many(n);
        moved.node = Some("node-2".into());
        publisher.apply(&Fact::Pod(moved));
        assert_eq!(reader.take(&mut publisher), 1, "pod {n}");
        publisher.apply(&Fact::PodGone(many(n).name));
        assert_eq!(reader.take(&mut publisher), 1, "pod {n} goes");
        publisher.apply(&Fact::Pod(many(n)));
        assert_eq!(reader.take(&mut publisher), 1, "pod {n} returns");
    }
    // Ports of its own: a slice of its own, and one less where it was.
    let mut other = many(3);
    other.ports[0].port = 9090;
    publisher.apply(&Fact::Pod(other));
    assert_eq!((reader.take(&mut publisher), reader.slices.len()), (2, 11));
    let mut unready = many(4);
    unready.ready = false;
    publisher.apply(&Fact::Pod(unready.clone()));
    publisher.apply(&Fact::Pod(unready));
    assert_eq!(reader.take(&mut publisher), 1);
    assert_eq!(reader.take(&mut publisher), 0, "nothing changed, nothing is said");
}

/// A controller that starts anew finds its slices, and every pod in its place: nothing is written.
#[test]
fn a_restart_rewrites_nothing() {
    let target = || pods_of(&[("app", "web")], None, RedirectMode::PodEndpoint, PortChoice::Number(80));
    let name = policy_name(PolicyKind::Balancing, "shop", "api");
    let facts = |order: &dyn Fn(u32) -> u32| -> Vec<Fact> {
        let pods = (0..350).map(order).map(|n| {
            Fact::Pod(pod("shop", &format!("pod-{n}"), &format!("10.0.{}.{}", n / 200, n % 200 + 1), &[("app", "web")]))
        });
        std::iter::once(Fact::Policy(policy(name.clone(), "u1", target()))).chain(pods).collect()
    };
    let (mut first, mut reader) = (Publisher::new(Unknown::Waits), Reader::default());
    facts(&|n| n).iter().for_each(|fact| first.apply(fact));
    reader.take(&mut first);
    let mut second = Publisher::new(Unknown::Waits);
    reader.slices.values().for_each(|slice| second.adopt(slice));
    facts(&|n| 349 - n).iter().for_each(|fact| second.apply(fact));
    let now: BTreeMap<_, _> = second.slices().map(|slice| (slice.name.clone(), slice)).collect();
    assert_eq!(now, reader.slices);
    // Of another policy under the same name nothing is taken over.
    let mut third = Publisher::new(Unknown::Waits);
    reader.slices.values().for_each(|slice| third.adopt(slice));
    third.apply(&Fact::Policy(policy(name.clone(), "u2", target())));
    facts(&|n| n)[1..].iter().for_each(|fact| third.apply(fact));
    assert!(third.slices().all(|slice| &*slice.uid == "u2" && !reader.slices.contains_key(&slice.name)));
}

/// Addresses and ports may be the same under another mode, but they do not mean the same.
#[test]
fn another_mode_publishes_everything_anew() {
    let (mut publisher, mut reader) = (Publisher::new(Unknown::Plain), Reader::default());
    let name = policy_name(PolicyKind::Balancing, "shop", "api");
    let target = |mode| pods_of(&[], None, mode, PortChoice::Number(80));
    let direct = policy(name.clone(), "u1", target(RedirectMode::PodEndpoint));
    let proxy = policy(name, "u1", target(RedirectMode::NodeProxy));
    publisher.apply(&Fact::Policy(direct.clone()));
    publisher.apply(&Fact::Pod(pod("shop", "a", "10.0.0.1", &[])));
    reader.take(&mut publisher);
    let shapes = |reader: &Reader| reader.slices.values().map(|slice| slice.shape).collect::<Vec<_>>();
    assert_eq!(shapes(&reader), [direct.shape()]);
    publisher.apply(&Fact::Policy(proxy.clone()));
    reader.take(&mut publisher);
    assert_eq!(shapes(&reader), [proxy.shape()]);
    assert_ne!(direct.shape(), proxy.shape());
}

#[test]
fn a_pod_without_the_port_is_left_out_with_a_reason() {
    let mut publisher = Publisher::new(Unknown::Plain);
    let name = policy_name(PolicyKind::Balancing, "shop", "api");
    let target = pods_of(&[], None, RedirectMode::HostPort, PortChoice::Name("web".into()));
    publisher.apply(&Fact::Policy(policy(name.clone(), "u1", target)));
    let (mut with, without) = (pod("shop", "a", "10.0.0.1", &[]), pod("shop", "b", "10.0.0.2", &[]));
    with.ports[0].host_port = 18080;
    publisher.apply(&Fact::Pod(with));
    publisher.apply(&Fact::Pod(without));
    let slices: Vec<PolicySlice> = publisher.slices().collect();
    assert_eq!((slices.len(), slices[0].ports[0].port, slices[0].endpoints.len()), (1, 18080, 1));
    let left: Vec<_> = publisher.left_out(&name).map(|(pod, why)| (&*pod.name, why.reason)).collect();
    assert_eq!((left, publisher.backends(&name)), (vec![("b", "noHostPort")], 1));
}

#[test]
fn a_local_redirects_pods_are_counted_and_not_published() {
    let mut publisher = Publisher::new(Unknown::Plain);
    let name = policy_name(PolicyKind::LocalRedirect, "shop", "cache");
    let target =
        Target::LocalPods { selector: selector(&[("app", "web")]), ports: [port(PortChoice::Number(53))].into() };
    publisher.apply(&Fact::Policy(policy(name.clone(), "u1", target)));
    publisher.apply(&Fact::Pod(pod("shop", "a", "10.0.0.1", &[("app", "web")])));
    publisher.apply(&Fact::Pod(pod("lab", "b", "10.0.0.2", &[("app", "web")])));
    assert_eq!((publisher.backends(&name), publisher.slices().count(), publisher.take().len()), (1, 0, 0));
}

#[test]
fn nodes_addresses_by_kind_and_family() {
    let mut nodes = NodePublisher::default();
    let node = |n: u32, ip: &str| {
        let mut node = Node::named("local", &format!("node-{n}"));
        node.addresses.push((beeline_model::fact::AddressType::Internal, address(ip)));
        Fact::Node(node)
    };
    (0..250).for_each(|n| nodes.apply(&node(n, &format!("172.31.{}.{}", n / 200, n % 200 + 1))));
    assert_eq!(nodes.take_changed().len(), 3);
    nodes.apply(&node(7, "172.31.9.9"));
    assert_eq!(nodes.take_changed().len(), 1);
    nodes.apply(&node(8, "fd00::8"));
    assert_eq!(nodes.take_changed().len(), 2, "out of one, into another");
    nodes.apply(&node(9, "169.254.1.1"));
    assert_eq!(nodes.take_changed().len(), 1, "an API server would not take this one");
    let said: BTreeSet<Name> = nodes.slices().flat_map(|s| s.endpoints.to_vec()).map(|e| e.node).collect();
    assert_eq!(said.len(), 249);
}
