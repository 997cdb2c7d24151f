//! The policies of the reference model: which policy applies to an address and port, and its verdict.

use super::{ReferenceModel, refused, resolved};
use crate::support::dial_result::DialResult;
use crate::support::random_cluster;
use crate::support::reference::primary_address;
use beeline_model::event::Reason;
use beeline_model::object::{Pod, Service};
use beeline_model::policy::*;
use beeline_model::resolve::Dial;
use beeline_model::{Address, Family, ServiceName};
use std::collections::BTreeSet;

type Backends = BTreeSet<(Address, u16)>;

/// A dialled port with its backend port, and whether it is the only pair of the policy.
struct Pair {
    dialled: DialledPort,
    backend: BackendPort,
    alone: bool,
}

impl ReferenceModel<'_> {
    /// The verdict of the policies; `None` if no policy applies. `served` is the Service with this ClusterIP and port.
    pub fn policy_answer(&self, address: Address, dial: &Dial, served: Option<&Service>) -> Option<DialResult> {
        let holders = PolicyKind::BOTH.map(|kind| self.holder(kind, address, dial, served));
        let mut last = None;
        for (policy, pair) in holders.into_iter().flatten() {
            let is_self = policy.name.kind == PolicyKind::LocalRedirect && self.is_selected(policy, dial);
            let backends = self.backends(policy, &pair, address.family());
            if !is_self && !backends.is_empty() {
                return Some(resolved(backends));
            }
            last = Some(if is_self { Reason::SelfDial } else { Reason::NoEndpoint });
        }
        last.filter(|_| served.is_none()).map(refused)
    }

    /// The oldest policy of a kind that applies.
    fn holder(&self, kind: PolicyKind, at: Address, dial: &Dial, served: Option<&Service>) -> Option<(&Policy, Pair)> {
        let mut all: Vec<(&Policy, Pair)> = Vec::new();
        for policy in self
            .objects
            .policies
            .values()
            .filter(|policy| policy.name.kind == kind && self.applies_to_this_node(policy))
        {
            let applies = match &policy.matcher {
                Matcher::Service { .. } => served.is_some_and(|service| service.name == self.service_name(policy)),
                Matcher::Address { address, .. } => *address == at && self.is_usable(at),
            };
            let dialled = |pair: &Pair| (pair.dialled.port, pair.dialled.protocol) == (dial.port, dial.protocol);
            let pair = self.pairs(policy).filter(|_| applies).and_then(|pairs| pairs.into_iter().find(dialled));
            all.extend(pair.map(|pair| (policy, pair)));
        }
        all.sort_by_key(|(policy, _)| (policy.created, policy.name.namespace.clone(), policy.name.name.clone()));
        all.into_iter().next()
    }

    /// The policy whose virtual address is dialled.
    pub fn virtual_holder(&self, dial: &Dial) -> Option<&Policy> {
        let holder = |kind| Some(self.holder(kind, dial.address, dial, None)?.0);
        holder(PolicyKind::LocalRedirect).or_else(|| holder(PolicyKind::Balancing))
    }

    fn service_name(&self, policy: &Policy) -> ServiceName {
        match &policy.matcher {
            Matcher::Service { name, .. } => ServiceName::local(&policy.name.namespace, name),
            Matcher::Address { .. } => ServiceName::local("", ""),
        }
    }

    fn applies_to_this_node(&self, policy: &Policy) -> bool {
        let labels = self.objects.nodes.get(&self.rules.node_name).map(|node| node.labels.clone()).unwrap_or_default();
        policy.nodes.as_ref().is_none_or(|selector| selector.matches(&labels))
    }

    /// Whether a virtual address is allowed, and is not a ClusterIP or the address of a node or pod. It has precedence over
    /// load-balancer addresses and externalIPs.
    fn is_usable(&self, at: Address) -> bool {
        let services = self.objects.services.values();
        let nodes = self.objects.nodes.values();
        self.is_in_ranges(at)
            && !services.flat_map(|service| service.cluster_ips.iter()).any(|a| *a == at)
            && !nodes.flat_map(|n| n.addresses.iter().map(|(_, a)| *a).chain(n.entry.iter().copied())).any(|a| a == at)
            && !self.rules.own_addresses.contains(&at)
            && !self.own_pods().any(|pod| pod.addresses.contains(&at))
    }

    fn is_in_ranges(&self, at: Address) -> bool {
        let metadata = at.to_string().starts_with("169.254.169.");
        self.rules.virtual_address_cidrs.iter().any(|net| net.contains(&at.ip())) && !metadata
    }

    /// A ClusterIP or a virtual address, which cannot be a backend.
    fn is_frontend(&self, at: Address) -> bool {
        let mut cluster_ips = self.objects.services.values().flat_map(|service| service.cluster_ips.iter());
        let mut policies = self.objects.policies.values();
        let is_virtual = |policy: &Policy| matches!(policy.matcher, Matcher::Address { address, .. } if address == at);
        cluster_ips.any(|address| *address == at) || self.is_in_ranges(at) && policies.any(is_virtual)
    }

    pub fn own_pods(&self) -> impl Iterator<Item = &Pod> {
        self.objects.pods.values().filter(|pod| pod.node.as_deref() == Some(random_cluster::OWN_NODE))
    }

    /// The port pairs; `None` if the policy is not accepted.
    fn pairs(&self, policy: &Policy) -> Option<Vec<Pair>> {
        let (Target::LocalPods { ports, .. } | Target::Pods { ports, .. } | Target::Addresses { ports, .. }) =
            &policy.target;
        if let Target::Addresses { addresses, .. } = &policy.target {
            let named = ports.iter().any(|port| matches!(port.port, PortChoice::Name(_)));
            if addresses.is_empty() || named || addresses.iter().any(|at| self.is_frontend(*at)) {
                return None;
            }
        }
        let (dialled, all) = self.dialled(policy)?;
        if let ([one], [other]) = (&dialled[..], &ports[..]) {
            let fits = one.name == other.name || one.name.is_empty() || other.name.is_empty();
            let pair = Pair { dialled: one.clone(), backend: other.clone(), alone: true };
            return (fits && one.protocol == other.protocol).then(|| vec![pair]);
        }
        let unnamed = |count: usize, any: bool| count > 1 && any;
        let bad = ports.is_empty()
            || unnamed(ports.len(), ports.iter().any(|p| p.name.is_empty()))
            || !all && unnamed(dialled.len(), dialled.iter().any(|p| p.name.is_empty()))
            || has_duplicates(ports.iter().map(|p| (p.name.clone(), p.protocol)));
        let mut pairs = Vec::new();
        for port in &dialled {
            let backend = ports.iter().find(|b| b.name == port.name && b.protocol == port.protocol);
            match backend {
                Some(backend) => {
                    pairs.push(Pair { dialled: port.clone(), backend: backend.clone(), alone: ports.len() == 1 })
                }
                None if all => {}
                None => return None,
            }
        }
        let unused = ports.iter().any(|port| !pairs.iter().any(|pair| pair.backend == *port));
        (!bad && !unused).then_some(pairs)
    }

    /// The dialled ports, and whether these are all ports of the Service.
    fn dialled(&self, policy: &Policy) -> Option<(Vec<DialledPort>, bool)> {
        match &policy.matcher {
            Matcher::Address { ports, .. } => Some((ports.to_vec(), false)),
            Matcher::Service { ports, .. } => {
                let service = self.objects.services.get(&self.service_name(policy))?;
                let has = |p: &DialledPort| service.ports.iter().any(|s| (s.port, s.protocol) == (p.port, p.protocol));
                let of = |s: &beeline_model::object::ServicePort| DialledPort {
                    name: s.name.clone(),
                    port: s.port,
                    protocol: s.protocol,
                };
                match ports {
                    None => Some((service.ports.iter().map(of).collect(), true)),
                    Some(ports) => (!ports.is_empty() && ports.iter().all(has)).then(|| (ports.to_vec(), false)),
                }
            }
        }
    }

    fn selected(&self, policy: &Policy) -> impl Iterator<Item = &Pod> {
        let chosen = |pod: &&Pod| match &policy.target {
            Target::LocalPods { selector, .. } => selector.matches(&pod.labels),
            _ => false,
        };
        let found: Vec<&Pod> =
            self.own_pods().filter(|pod| pod.name.namespace == policy.name.namespace).filter(chosen).collect();
        found.into_iter()
    }

    fn is_selected(&self, policy: &Policy, dial: &Dial) -> bool {
        let cgroups = self.selected(policy).filter_map(|pod| self.objects.cgroups.get(&*pod.uid));
        cgroups.into_iter().any(|id| dial.cgroups.contains(id))
    }

    fn backends(&self, policy: &Policy, pair: &Pair, family: Family) -> Backends {
        let of_family = |address: &&Address| address.family() == family;
        match &policy.target {
            Target::LocalPods { .. } => {
                let known = |pod: &&Pod| pod.uid.is_empty() || self.objects.cgroups.contains_key(&*pod.uid);
                let ready = self.selected(policy).filter(|pod| pod.ready).filter(known);
                ready.filter_map(|pod| Some((*pod.addresses.iter().find(of_family)?, port_of(pod, pair)?))).collect()
            }
            Target::Addresses { addresses, .. } => match pair.backend.port {
                PortChoice::Number(port) => addresses.iter().filter(of_family).map(|a| (*a, port)).collect(),
                PortChoice::Name(_) => Backends::new(),
            },
            Target::Pods { .. } => self.published(policy, pair, family),
        }
    }

    fn published(&self, policy: &Policy, pair: &Pair, family: Family) -> Backends {
        let mut found = Backends::new();
        let of_it = |s: &&PolicySlice| s.policy == policy.name && s.uid == policy.uid && s.shape.is_some();
        let all: Vec<&PolicySlice> = self.objects.policy_slices.values().filter(of_it).collect();
        // Slices of the current shape of the policy, otherwise of the shape of the first slice.
        let is_new = all.iter().any(|slice| slice.shape == policy.shape());
        let Some(shape) = (if is_new { policy.shape() } else { all.first().and_then(|slice| slice.shape) }) else {
            return found;
        };
        for slice in all.into_iter().filter(|s| s.shape == Some(shape) && s.family == family) {
            let named = |name: &str| {
                (pair.alone && slice.ports.len() == 1) || *name == *pair.dialled.name || *name == *pair.backend.name
            };
            for port in slice.ports.iter().filter(|p| p.protocol == pair.backend.protocol && named(&p.name)) {
                for endpoint in slice.endpoints.iter().filter(|e| e.ready) {
                    let node = endpoint.node.as_ref().and_then(|name| self.objects.nodes.get(name));
                    let own = endpoint.node.as_ref() == Some(&self.rules.node_name) && node.is_none();
                    let interface = self.rules.own_addresses.iter().copied().find(|a| own && a.family() == family);
                    let entry = node.and_then(|n| n.entry.iter().copied().find(|a| a.family() == family));
                    let backend = match shape.mode {
                        RedirectMode::PodEndpoint => Some((endpoint.address, port.port)),
                        RedirectMode::HostPort => {
                            node.and_then(|n| primary_address(n, family)).or(interface).map(|a| (a, port.port))
                        }
                        RedirectMode::NodeProxy => entry.map(|a| (a, pair.dialled.port)),
                    };
                    found.extend(backend);
                }
            }
        }
        found
    }
}

fn port_of(pod: &Pod, pair: &Pair) -> Option<u16> {
    match &pair.backend.port {
        PortChoice::Number(port) => Some(*port),
        PortChoice::Name(name) => {
            pod.ports.iter().find(|p| p.name == *name && p.protocol == pair.backend.protocol).map(|p| p.port)
        }
    }
}

fn has_duplicates<T: Ord>(all: impl Iterator<Item = T> + Clone) -> bool {
    all.clone().collect::<BTreeSet<T>>().len() < all.count()
}
