//! The incremental publisher, compared with a reference model that looks at all objects every time, under random
//! changes.

#[allow(dead_code)]
mod support;

use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{ContainerPort, Endpoint, Namespace, Node, Object, Pod, PodName, SliceName, SlicePort};
use beeline_model::policy::{
    BackendPort, DialledPort, Matcher, Policy, PolicyKind, PolicyName, PolicySlice, PortChoice, RedirectMode, Target,
};
use beeline_model::publish::{MAX_ENDPOINTS_PER_SLICE, NodePublisher, Publisher, UnknownNamespace};
use beeline_model::selector::{LabelOperator, Labels, Requirement, Selector};
use beeline_model::{Address, Family, Name, Protocol};
use std::collections::{BTreeMap, BTreeSet};
use support::seed::seeds;

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
        operator: LabelOperator::In([Name::from(*value)].into()),
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
        exclusion: Default::default(),
        view: None,
        labels: labels(pairs),
        ready: true,
        ports: [declared].into(),
    }
}

/// Collects the published slices.
#[derive(Default)]
struct Reader {
    slices: BTreeMap<SliceName, PolicySlice>,
}

impl Reader {
    /// Returns the number of changed slices.
    fn read(&mut self, publisher: &mut Publisher) -> usize {
        let changes = publisher.take_changes();
        let written = changes.len();
        for change in changes {
            match change {
                Change::Upsert(Object::PolicySlice(slice)) => drop(self.slices.insert(slice.name.clone(), slice)),
                Change::Delete(ObjectKey::PolicySlice(name)) => {
                    assert!(self.slices.remove(&name).is_some(), "{name:?} did not exist")
                }
                other => panic!("{other:?}"),
            }
        }
        written
    }

    fn endpoints(&self) -> Vec<(String, Endpoint, Vec<SlicePort>)> {
        let mut all = Vec::new();
        for slice in self.slices.values() {
            assert!(
                (1..=MAX_ENDPOINTS_PER_SLICE).contains(&slice.endpoints.len()),
                "{} endpoints",
                slice.endpoints.len()
            );
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
struct ReferenceModel {
    policies: BTreeMap<PolicyName, Policy>,
    pods: BTreeMap<PodName, Pod>,
    namespaces: BTreeMap<Name, Labels>,
}

impl ReferenceModel {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Upsert(Object::Policy(policy)) => drop(self.policies.insert(policy.name.clone(), policy.clone())),
            Change::Delete(ObjectKey::Policy(name)) => drop(self.policies.remove(name)),
            Change::Upsert(Object::Pod(pod)) => drop(self.pods.insert(pod.name.clone(), pod.clone())),
            Change::Delete(ObjectKey::Pod(name)) => drop(self.pods.remove(name)),
            Change::Upsert(Object::Namespace(it)) => drop(self.namespaces.insert(it.name.clone(), it.labels.clone())),
            Change::Delete(ObjectKey::Namespace { name, .. }) => drop(self.namespaces.remove(name)),
            _ => unreachable!(),
        }
    }

    /// What the policies select, pod by pod.
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
                let ports: Vec<SlicePort> =
                    ports.iter().filter_map(|wanted| reference_port(wanted, *mode, pod)).collect();
                if !inside || ports.is_empty() {
                    continue;
                }
                for family in Family::BOTH {
                    let Some(address) = pod.addresses.iter().find(|a| a.family() == family) else { continue };
                    let endpoint = Endpoint { node: pod.node.clone(), ..Endpoint::ready(*address) };
                    all.push((format!("{} {} {:?}", policy.name, policy.uid, policy.shape()), endpoint, ports.clone()));
                }
            }
        }
        all.sort_by_key(|(owner, endpoint, ports)| (owner.clone(), endpoint.address, format!("{ports:?}")));
        all
    }
}

fn reference_port(wanted: &BackendPort, mode: RedirectMode, pod: &Pod) -> Option<SlicePort> {
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
    let operator = match rng.u8(..6) {
        0 => LabelOperator::Exists,
        1 => LabelOperator::DoesNotExist,
        2 => LabelOperator::NotIn([app.into()].into()),
        3 => LabelOperator::In(["web".into(), app.into()].into()),
        _ => LabelOperator::In([app.into()].into()),
    };
    let one = Requirement { key: "app".into(), operator };
    if rng.u8(..8) == 0 { Selector::default() } else { Selector([one].into()) }
}

fn random_policy(rng: &mut fastrand::Rng) -> Change {
    let name = policy_name(PolicyKind::Balancing, pick(rng, &NAMESPACES), pick(rng, &["p", "q", "r"]));
    if rng.u8(..5) == 0 {
        return Change::Delete(ObjectKey::Policy(name));
    }
    let namespaces = (rng.u8(..2) == 0).then(|| match rng.u8(..3) {
        0 => Selector::default(),
        1 => selector(&[("kubernetes.io/metadata.name", pick(rng, &NAMESPACES))]),
        _ => selector(&[("team", "a")]),
    });
    let mode = [RedirectMode::PodEndpoint, RedirectMode::HostPort, RedirectMode::NodeProxy][rng.usize(..3)];
    let choice = if rng.bool() { PortChoice::Number(8080) } else { PortChoice::Name("web".into()) };
    let target = Target::Pods { selector: random_selector(rng), namespaces, mode, ports: [port(choice)].into() };
    Change::Upsert(Object::Policy(policy(name, pick(rng, &["u1", "u2"]), target)))
}

fn random_pod(rng: &mut fastrand::Rng) -> Change {
    let (namespace, number) = (pick(rng, &NAMESPACES), rng.u8(..40));
    let name = format!("pod-{number}");
    if rng.u8(..5) == 0 {
        return Change::Delete(ObjectKey::Pod(pod_name(namespace, &name)));
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
    Change::Upsert(Object::Pod(pod))
}

fn random_namespace(rng: &mut fastrand::Rng) -> Change {
    let name: Name = pick(rng, &NAMESPACES).into();
    if rng.u8(..6) == 0 {
        return Change::Delete(ObjectKey::Namespace { cluster: "local".into(), name });
    }
    let labels = if rng.bool() { labels(&[("team", "a")]) } else { Labels::default() };
    Change::Upsert(Object::Namespace(Namespace { cluster: "local".into(), name, labels }))
}

#[test]
fn the_publisher_agrees_with_the_reference_model() {
    for seed in seeds(0..150) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut model, mut publisher, mut reader) =
            (ReferenceModel::default(), Publisher::new(UnknownNamespace::Pending), Reader::default());
        for step in 0..120 {
            let change = match rng.u8(..10) {
                0 | 1 => random_policy(&mut rng),
                2 => random_namespace(&mut rng),
                _ => random_pod(&mut rng),
            };
            model.apply(&change);
            publisher.apply(&change);
            if rng.u8(..3) != 0 {
                continue;
            }
            reader.read(&mut publisher);
            assert_eq!(reader.endpoints(), model.endpoints(), "seed {seed} step {step}");
            let all: BTreeMap<_, _> = publisher.slices().map(|slice| (slice.name.clone(), slice)).collect();
            assert_eq!(all, reader.slices, "seed {seed} step {step}: all slices, and the sum of the changes");
        }
    }
}

#[test]
fn a_change_of_one_pod_rewrites_one_slice() {
    let (mut publisher, mut reader) = (Publisher::new(UnknownNamespace::Unlabelled), Reader::default());
    let target = pods_of(&[("app", "web")], None, RedirectMode::PodEndpoint, PortChoice::Name("web".into()));
    publisher.apply(&Change::Upsert(Object::Policy(policy(
        policy_name(PolicyKind::Balancing, "shop", "api"),
        "u1",
        target,
    ))));
    let many =
        |n: u32| pod("shop", &format!("pod-{n}"), &format!("10.0.{}.{}", n / 200, n % 200 + 1), &[("app", "web")]);
    (0..1000).for_each(|n| publisher.apply(&Change::Upsert(Object::Pod(many(n)))));
    assert_eq!((reader.read(&mut publisher), reader.slices.len()), (10, 10));
    for n in [0, 1, 500, 999] {
        let mut moved = many(n);
        moved.node = Some("node-2".into());
        publisher.apply(&Change::Upsert(Object::Pod(moved)));
        assert_eq!(reader.read(&mut publisher), 1, "pod {n}");
        publisher.apply(&Change::Delete(ObjectKey::Pod(many(n).name)));
        assert_eq!(reader.read(&mut publisher), 1, "pod {n} goes");
        publisher.apply(&Change::Upsert(Object::Pod(many(n))));
        assert_eq!(reader.read(&mut publisher), 1, "pod {n} returns");
    }
    // A pod with other ports moves to a new slice.
    let mut other = many(3);
    other.ports[0].port = 9090;
    publisher.apply(&Change::Upsert(Object::Pod(other)));
    assert_eq!((reader.read(&mut publisher), reader.slices.len()), (2, 11));
    let mut unready = many(4);
    unready.ready = false;
    publisher.apply(&Change::Upsert(Object::Pod(unready.clone())));
    publisher.apply(&Change::Upsert(Object::Pod(unready)));
    assert_eq!(reader.read(&mut publisher), 1);
    assert_eq!(reader.read(&mut publisher), 0, "nothing changed");
}

/// A restarted controller adopts its slices, and every pod keeps its slice.
#[test]
fn a_restart_rewrites_nothing() {
    let target = || pods_of(&[("app", "web")], None, RedirectMode::PodEndpoint, PortChoice::Number(80));
    let name = policy_name(PolicyKind::Balancing, "shop", "api");
    let changes = |order: &dyn Fn(u32) -> u32| -> Vec<Change> {
        let pods = (0..350).map(order).map(|n| {
            Change::Upsert(Object::Pod(pod(
                "shop",
                &format!("pod-{n}"),
                &format!("10.0.{}.{}", n / 200, n % 200 + 1),
                &[("app", "web")],
            )))
        });
        std::iter::once(Change::Upsert(Object::Policy(policy(name.clone(), "u1", target())))).chain(pods).collect()
    };
    let (mut first, mut reader) = (Publisher::new(UnknownNamespace::Pending), Reader::default());
    changes(&|n| n).iter().for_each(|change| first.apply(change));
    reader.read(&mut first);
    let mut second = Publisher::new(UnknownNamespace::Pending);
    reader.slices.values().for_each(|slice| second.adopt(slice));
    changes(&|n| 349 - n).iter().for_each(|change| second.apply(change));
    let now: BTreeMap<_, _> = second.slices().map(|slice| (slice.name.clone(), slice)).collect();
    assert_eq!(now, reader.slices);
    // A policy created again under the same name adopts nothing.
    let mut third = Publisher::new(UnknownNamespace::Pending);
    reader.slices.values().for_each(|slice| third.adopt(slice));
    third.apply(&Change::Upsert(Object::Policy(policy(name.clone(), "u2", target()))));
    changes(&|n| n)[1..].iter().for_each(|change| third.apply(change));
    assert!(third.slices().all(|slice| &*slice.uid == "u2" && !reader.slices.contains_key(&slice.name)));
}

/// The same addresses and ports mean something else in another redirect mode.
#[test]
fn a_change_of_the_redirect_mode_publishes_everything_again() {
    let (mut publisher, mut reader) = (Publisher::new(UnknownNamespace::Unlabelled), Reader::default());
    let name = policy_name(PolicyKind::Balancing, "shop", "api");
    let target = |mode| pods_of(&[], None, mode, PortChoice::Number(80));
    let direct = policy(name.clone(), "u1", target(RedirectMode::PodEndpoint));
    let proxy = policy(name, "u1", target(RedirectMode::NodeProxy));
    publisher.apply(&Change::Upsert(Object::Policy(direct.clone())));
    publisher.apply(&Change::Upsert(Object::Pod(pod("shop", "a", "10.0.0.1", &[]))));
    reader.read(&mut publisher);
    let shapes = |reader: &Reader| reader.slices.values().map(|slice| slice.shape).collect::<Vec<_>>();
    assert_eq!(shapes(&reader), [direct.shape()]);
    publisher.apply(&Change::Upsert(Object::Policy(proxy.clone())));
    reader.read(&mut publisher);
    assert_eq!(shapes(&reader), [proxy.shape()]);
    assert_ne!(direct.shape(), proxy.shape());
}

#[test]
fn a_pod_without_the_port_is_skipped_with_a_reason() {
    let mut publisher = Publisher::new(UnknownNamespace::Unlabelled);
    let name = policy_name(PolicyKind::Balancing, "shop", "api");
    let target = pods_of(&[], None, RedirectMode::HostPort, PortChoice::Name("web".into()));
    publisher.apply(&Change::Upsert(Object::Policy(policy(name.clone(), "u1", target))));
    let (mut with, without) = (pod("shop", "a", "10.0.0.1", &[]), pod("shop", "b", "10.0.0.2", &[]));
    with.ports[0].host_port = 18080;
    publisher.apply(&Change::Upsert(Object::Pod(with)));
    publisher.apply(&Change::Upsert(Object::Pod(without)));
    let slices: Vec<PolicySlice> = publisher.slices().collect();
    assert_eq!((slices.len(), slices[0].ports[0].port, slices[0].endpoints.len()), (1, 18080, 1));
    let skipped: Vec<_> = publisher.skipped(&name).map(|(pod, why)| (&*pod.name, why.reason.as_str())).collect();
    assert_eq!((skipped, publisher.backends(&name, &Family::BOTH, |_, _| true)), (vec![("b", "noHostPort")], 1));
}

#[test]
fn pods_of_a_local_redirect_policy_are_counted_but_not_published() {
    let mut publisher = Publisher::new(UnknownNamespace::Unlabelled);
    let name = policy_name(PolicyKind::LocalRedirect, "shop", "cache");
    let target =
        Target::LocalPods { selector: selector(&[("app", "web")]), ports: [port(PortChoice::Number(53))].into() };
    publisher.apply(&Change::Upsert(Object::Policy(policy(name.clone(), "u1", target))));
    publisher.apply(&Change::Upsert(Object::Pod(pod("shop", "a", "10.0.0.1", &[("app", "web")]))));
    publisher.apply(&Change::Upsert(Object::Pod(pod("lab", "b", "10.0.0.2", &[("app", "web")]))));
    assert_eq!(
        (
            publisher.backends(&name, &Family::BOTH, |_, _| true),
            publisher.slices().count(),
            publisher.take_changes().len()
        ),
        (1, 0, 0)
    );
}

#[test]
fn node_addresses_are_published_by_kind_and_family() {
    let mut nodes = NodePublisher::default();
    let node = |n: u32, ip: &str| {
        let mut node = Node::named("local", &format!("node-{n}"));
        node.addresses.push((beeline_model::object::AddressType::Internal, address(ip)));
        Change::Upsert(Object::Node(node))
    };
    (0..250).for_each(|n| nodes.apply(&node(n, &format!("172.31.{}.{}", n / 200, n % 200 + 1))));
    assert_eq!(nodes.take_changed().len(), 3);
    nodes.apply(&node(7, "172.31.9.9"));
    assert_eq!(nodes.take_changed().len(), 1);
    nodes.apply(&node(8, "fd00::8"));
    assert_eq!(nodes.take_changed().len(), 2, "one slice loses the node, another gets it");
    nodes.apply(&node(9, "169.254.1.1"));
    assert_eq!(nodes.take_changed().len(), 1, "link-local addresses are not published");
    let published: BTreeSet<Name> = nodes.slices().flat_map(|s| s.endpoints.to_vec()).map(|e| e.node).collect();
    assert_eq!(published.len(), 249);
}
