//! The policies of the random cluster, the pods that they select, and the slices that a controller would publish for
//! them. Some policies are invalid: they must be refused and serve no client.

use super::{
    CLUSTER_V4, Generator, NODES, OWN_NODE, PAIRS, PODS_V4, PODS_V6, PORTS, RandomCluster, SERVICES, TARGETS, address,
};
use beeline_model::change::{Change, ObjectKey};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::*;
use beeline_model::policy::{self, *};
use beeline_model::resolve::Dial;
use beeline_model::selector::{LabelOperator, Labels, Requirement, Selector};
use beeline_model::{Address, Family, Name, Protocol, ServiceName};

/// Two free addresses, a metadata address, and addresses that a Service, a node or a pod has now and then.
pub const VIRTUAL: [&str; 8] = [
    "169.254.20.10",
    "169.254.20.10",
    "fd00:bee::1",
    "169.254.169.254",
    "192.0.2.1",
    "172.18.0.3",
    "10.244.1.5",
    CLUSTER_V4[2],
];
/// Further ranges that `--virtual-address-cidrs` may list.
pub const MORE_RANGES: [&str; 4] = ["192.0.2.0/24", "172.18.0.0/16", "10.244.0.0/16", "10.96.0.0/16"];
const NAMESPACES: [&str; 2] = ["a", "b"];
const POLICIES: [&str; 2] = ["p", "q"];
const PODS: [&str; 2] = ["x", "y"];
const UIDS: [&str; 2] = ["1", "2"];
const APPS: [&str; 2] = ["cache", "api"];
const SLICES: [&str; 5] = ["t0", "t1", "t2", "t3", "t4"];
const ENTRIES: [&str; 3] = ["100.64.0.2", "100.64.0.3", "fd00:64::2"];
/// Cgroup ids by pod UID.
pub const CGROUPS: [(&str, u64); 6] =
    [("a-x-1", 1001), ("a-y-1", 1002), ("a-x-2", 1003), ("b-x-1", 1004), ("b-y-1", 1005), ("b-y-2", 1006)];

impl RandomCluster {
    pub(super) fn policy_change(&mut self) -> Change {
        match self.rng.u8(..12) {
            0..5 => Change::Upsert(Object::Policy(self.policy())),
            5 => Change::Delete(ObjectKey::Policy(self.policy_name())),
            6..8 => Change::Upsert(Object::Pod(self.pod())),
            8 => Change::Delete(ObjectKey::Pod(self.pod_name())),
            9..11 => Change::Upsert(Object::PolicySlice(self.policy_slice())),
            _ => Change::Delete(ObjectKey::PolicySlice(self.policy_slice_name())),
        }
    }

    pub(super) fn entry(&mut self) -> Box<[Address]> {
        self.addresses(&ENTRIES, 2).into()
    }

    pub(super) fn labels(&mut self) -> Labels {
        Labels::from([("app".into(), self.pick(&APPS).into())])
    }

    fn selector(&mut self) -> Selector {
        let operator = match self.rng.u8(..5) {
            0 => return Selector::default(),
            1 => LabelOperator::NotIn([self.pick(&APPS).into()].into()),
            _ => LabelOperator::In([self.pick(&APPS).into()].into()),
        };
        Selector([Requirement { key: "app".into(), operator }].into())
    }

    fn policy_name(&mut self) -> PolicyName {
        let kind = self.pick(&PolicyKind::BOTH);
        let (namespace, name) = (self.pick(&NAMESPACES).into(), self.pick(&POLICIES).into());
        PolicyName { kind, cluster: LOCAL_CLUSTER.into(), namespace, name }
    }

    fn policy(&mut self) -> policy::Policy {
        let name = self.policy_name();
        let (matcher, ports) = self.matcher(&name.namespace);
        policy::Policy {
            uid: self.pick(&UIDS).into(),
            created: self.rng.i64(0..3),
            generation: 1,
            matcher,
            target: self.target(name.kind, ports),
            nodes: self.one_in(5).then(|| self.selector()),
            out_cluster: true,
            limit: self.one_in(4).then_some(Limit { connects_per_second: 1, burst: 1 }),
            name,
        }
    }

    /// A matcher, and backend ports that usually fit.
    fn matcher(&mut self, namespace: &Name) -> (Matcher, Vec<BackendPort>) {
        let services: Vec<&str> =
            SERVICES.iter().filter(|(of, _)| *of == &**namespace).map(|(_, name)| *name).collect();
        let service: Name = self.pick(&services).into();
        let owner = ServiceName::local(namespace, &service);
        let real = self.objects.services.get(&owner).map(|service| service.ports.clone()).unwrap_or_default();
        let hooked = real.iter().filter(|port| port.protocol != Protocol::Sctp);
        let dialled: Vec<DialledPort> = hooked.map(dialled_of).collect();
        match self.rng.u8(..8) {
            0..3 => {
                let ports = self.dialled_ports();
                let backend = self.backend_ports(&ports);
                (Matcher::Address { address: address(self.pick(&VIRTUAL)), ports: ports.into() }, backend)
            }
            3..5 => (Matcher::Service { name: service, ports: None }, self.backend_ports(&dialled)),
            5 => {
                let ports = self.dialled_ports();
                let backend = self.backend_ports(&ports);
                (Matcher::Service { name: service, ports: Some(ports.into()) }, backend)
            }
            _ => {
                let backend = self.backend_ports(&dialled);
                (Matcher::Service { name: service, ports: Some(dialled.into()) }, backend)
            }
        }
    }

    /// A dial to a frontend of some policy.
    pub(super) fn policy_dial(&mut self) -> Option<Dial> {
        let policies: Vec<&policy::Policy> = self.objects.policies.values().collect();
        let policy = (*policies.get(self.rng.usize(..policies.len().max(1)))?).clone();
        let (at, ports): (Vec<Address>, Vec<DialledPort>) = match &policy.matcher {
            Matcher::Address { address, ports } => (vec![*address], ports.to_vec()),
            Matcher::Service { name, .. } => {
                let service = self.objects.services.get(&ServiceName::local(&policy.name.namespace, name))?;
                (service.cluster_ips.to_vec(), service.ports.iter().map(dialled_of).collect())
            }
        };
        let to = *at.get(self.rng.usize(..at.len().max(1)))?;
        let port = &ports[self.rng.usize(..ports.len())];
        let cgroups = if self.one_in(3) { vec![self.pick(&CGROUPS).1] } else { Vec::new() };
        Some(Dial { cgroups, ..Dial::to(to, port.port, port.protocol) })
    }

    fn dialled_ports(&mut self) -> Vec<DialledPort> {
        let (name, protocol) = self.pick(&PAIRS[..5]);
        let first = DialledPort { name: name.into(), port: self.pick(&PORTS), protocol };
        if first.name.is_empty() || self.one_in(2) {
            return vec![first];
        }
        let port = if first.port == 80 { 53 } else { 80 };
        vec![DialledPort { name: "second".into(), port, ..first.clone() }, first]
    }

    fn backend_ports(&mut self, dialled: &[DialledPort]) -> Vec<BackendPort> {
        let mut ports: Vec<BackendPort> = Vec::new();
        for port in dialled.iter().filter(|port| port.protocol != Protocol::Sctp) {
            let choice = match self.rng.u8(..4) {
                0 => PortChoice::Name(self.pick(&["http", "dns"]).into()),
                _ => PortChoice::Number(self.pick(&TARGETS)),
            };
            let name = if dialled.len() == 1 && self.one_in(2) { "".into() } else { port.name.clone() };
            let protocol = if self.one_in(20) { Protocol::Tcp } else { port.protocol };
            if !self.one_in(12) {
                ports.push(BackendPort { name, port: choice, protocol });
            }
        }
        ports
    }

    fn target(&mut self, kind: PolicyKind, ports: Vec<BackendPort>) -> Target {
        let selector = self.selector();
        if kind == PolicyKind::LocalRedirect {
            return Target::LocalPods { selector, ports: ports.into() };
        }
        if self.one_in(3) {
            let mut addresses = self.addresses(&PODS_V4, 2);
            addresses.extend(self.addresses(&PODS_V6, 1));
            return Target::Addresses { addresses: addresses.into(), ports: ports.into() };
        }
        let mode = self.pick(&[RedirectMode::PodEndpoint, RedirectMode::HostPort, RedirectMode::NodeProxy]);
        Target::Pods { selector, namespaces: None, mode, ports: ports.into() }
    }

    fn pod_name(&mut self) -> PodName {
        let (namespace, name) = (self.pick(&NAMESPACES).into(), self.pick(&PODS).into());
        PodName { cluster: LOCAL_CLUSTER.into(), namespace, name }
    }

    fn pod(&mut self) -> Pod {
        let name = self.pod_name();
        let uid = format!("{}-{}-{}", name.namespace, name.name, self.pick(&UIDS));
        let mut addresses = self.addresses(&PODS_V4, 1);
        addresses.extend(self.addresses(&PODS_V6, 1));
        let ports = |cluster: &mut RandomCluster| -> Vec<ContainerPort> {
            let mut ports = Vec::new();
            for (name, protocol) in [("http", Protocol::Tcp), ("dns", Protocol::Udp), ("dns", Protocol::Tcp)] {
                if !cluster.one_in(4) {
                    let port = cluster.pick(&TARGETS);
                    ports.push(ContainerPort { name: name.into(), protocol, port, host_port: 0 });
                }
            }
            ports
        };
        Pod {
            uid: if self.one_in(3) { "".into() } else { uid.into() },
            node: Some(if self.one_in(6) { self.pick(&NODES).into() } else { OWN_NODE.into() }),
            addresses: addresses.into(),
            containers: [].into(),
            exclusion: Default::default(),
            view: None,
            labels: self.labels(),
            ready: !self.one_in(4),
            ports: ports(self).into(),
            name,
        }
    }

    fn policy_slice_name(&mut self) -> SliceName {
        SliceName { cluster: LOCAL_CLUSTER.into(), namespace: "a".into(), name: self.pick(&SLICES).into() }
    }

    fn policy_slice(&mut self) -> PolicySlice {
        let family = if self.one_in(3) { Family::V6 } else { Family::V4 };
        let count = self.rng.usize(0..4);
        let mut ports = self.slice_ports();
        if self.one_in(2) {
            ports.push(SlicePort { name: "second".into(), protocol: Protocol::Tcp, port: 8082 });
        }
        let policy = PolicyName { kind: PolicyKind::Balancing, ..self.policy_name() };
        // Usually built for the current shape of the policy.
        let made_for = self.objects.policies.get(&policy).and_then(policy::Policy::shape);
        let earlier = PolicyShape { mode: self.pick(&RedirectMode::ALL), ports: 7 };
        PolicySlice {
            name: self.policy_slice_name(),
            policy,
            uid: self.pick(&UIDS).into(),
            shape: if self.one_in(4) { Some(earlier) } else { made_for },
            family,
            ports: ports.into(),
            endpoints: (0..count).map(|_| self.endpoint(family, count)).collect(),
        }
    }
}

fn dialled_of(port: &ServicePort) -> DialledPort {
    DialledPort { name: port.name.clone(), port: port.port, protocol: port.protocol }
}
