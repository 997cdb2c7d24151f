//! Decides which connected UDP sockets are stale: a new dial of the same address would not pick their backend any more.

use beeline_datapath::reap::ConnectedSocket;
use beeline_model::cluster::path::PathContext;
use beeline_model::object::Pod;
use beeline_model::plan::candidates;
use beeline_model::plan::remote::node_port;
use beeline_model::planner::Planner;
use beeline_model::policy::Target;
use beeline_model::resolve::{Dial, MAX_CHAIN, resolve};
use beeline_model::row::{BackendId, OwnerId, SetRow};
use beeline_model::rules::{HostRole, NoLocalEndpointAction};
use beeline_model::select::Candidate;
use beeline_model::table::Tables;
use beeline_model::{Address, Protocol};

/// The destination that was chosen when a socket was connected.
#[derive(Clone, Copy, Debug)]
pub struct ConnectedTarget {
    /// The service port. `None` if the socket was connected with other tables, whose ids mean nothing now.
    owner: Option<OwnerId>,
    dialled: (Address, u16),
    chosen: (Address, u16),
}

impl ConnectedTarget {
    /// `epoch` is the epoch of the current tables.
    pub fn new(socket: &ConnectedSocket, epoch: u32) -> ConnectedTarget {
        ConnectedTarget {
            owner: Some(socket.owner).filter(|owner| socket.epoch == epoch && *owner != 0),
            dialled: (socket.dialled, socket.dialled_port),
            chosen: (socket.chosen, socket.chosen_port),
        }
    }
}

/// Every set that a dial of the same address may use. A set that is skipped at times (it is empty, over its limit, or the
/// dial comes from one of its own pods) counts like the first one.
fn reachable_sets<'a>(tables: &'a Tables, target: &ConnectedTarget) -> impl Iterator<Item = &'a SetRow> + use<'a> {
    let rows = tables.rows();
    let dial = Dial { host: true, ..Dial::to(target.dialled.0, target.dialled.1, Protocol::Udp) };
    // The action of an empty set does not matter here.
    let found = resolve(rows, &dial, NoLocalEndpointAction::Refuse).found;
    let first = found.and_then(|found| rows.sets.get(found.set));
    std::iter::successors(first, |set| rows.sets.get(set.header.next)).take(MAX_CHAIN)
}

/// The service port of the socket or, if its tables are gone, all service ports that the dialled address leads to.
fn owners(tables: &Tables, target: &ConnectedTarget) -> Vec<OwnerId> {
    match target.owner {
        Some(owner) => vec![owner],
        None => reachable_sets(tables, target).map(|set| set.owner).collect(),
    }
}

/// Whether a new dial may pick the backend of the socket: it is a backend of the service port or, if the service port is
/// gone (its port was renamed), of a set that the dialled address leads to now.
pub fn is_in_use(tables: &Tables, target: &ConnectedTarget) -> bool {
    let rows = tables.rows();
    let is_chosen = |id: &BackendId| rows.backends.get(*id).is_some_and(|row| (row.address, row.port) == target.chosen);
    owners(tables, target).iter().any(|owner| tables.has_backend(*owner, target.chosen.0, target.chosen.1))
        || reachable_sets(tables, target).any(|set| rows.members(set).iter().any(is_chosen))
}

/// Whether the backend gets no new dials, but still answers existing sockets: a terminating pod, or an address that was
/// replaced by a better path to the same pod.
pub fn still_serves(tables: &Tables, planner: &Planner, target: &ConnectedTarget) -> bool {
    owners(tables, target).iter().any(|owner| serves(tables, planner, *owner, target.chosen))
}

/// Whether the backend of a stale socket may still answer requests that are in flight: a policy or a Service was deleted or
/// changed, but the backend itself was not. An address that belongs to no known pod counts as answering, unless its Service
/// or its policy shows that the pod behind it is gone.
pub fn may_answer(tables: &Tables, planner: &Planner, target: &ConnectedTarget) -> bool {
    let owner = target.owner.and_then(|owner| tables.port_name(owner)).map(|name| name.service);
    let ready = pod_readiness(planner, target.chosen);
    match owner {
        // `still_serves` has checked the endpoints of the Service.
        Some(name) if planner.service(&name).is_some() => false,
        Some(name) => match planner.policy(&name).map(|policy| &policy.target) {
            Some(Target::LocalPods { .. } | Target::Pods { .. }) => ready == Some(true),
            Some(Target::Addresses { .. }) | None => ready != Some(false),
        },
        None => ready != Some(false),
    }
}

/// Whether a pod with this address is ready; `None` if there is no such pod. Pods in the host's network share an address:
/// if some of them declare the port, only those count.
fn pod_readiness(planner: &Planner, (address, port): (Address, u16)) -> Option<bool> {
    let pods: Vec<_> = planner.pods().filter(|pod| pod.addresses.contains(&address)).collect();
    let declares = |pod: &Pod| pod.ports.iter().any(|declared| declared.port == port);
    let some_declare = pods.iter().any(|pod| declares(pod));
    let counted = pods.iter().filter(|pod| !some_declare || declares(pod));
    counted.map(|pod| pod.ready).reduce(|one, other| one || other)
}

/// Whether the service port has a serving endpoint at the address.
pub fn serves(tables: &Tables, planner: &Planner, owner: OwnerId, at: (Address, u16)) -> bool {
    let Some(name) = tables.port_name(owner) else { return false };
    let Some(service) = planner.service(&name.service) else { return false };
    let port = service.ports.iter().find(|p| p.name == name.port && p.protocol == name.protocol);
    let (Some(port), Some(context)) = (port, planner.plan_context(name.service.cluster())) else { return false };
    let (paths, number) = (context.path_context(), node_port(service, port));
    let found = candidates(port, at.0.family(), planner.slices_of(&name.service), &context);
    found.iter().any(|c| c.serving && (pod_answers(&paths, c, number, at) || node_answers(&paths, c, number, at)))
}

/// Whether the pod itself may answer at its address. Not if no path leads to it any more.
fn pod_answers(paths: &PathContext<'_>, c: &Candidate, node_port: u16, at: (Address, u16)) -> bool {
    (c.address, c.port) == at && paths.may_answer(c, node_port)
}

/// Whether the pod's node answers at its nodePort. It does so also after a route to the pod itself was added.
fn node_answers(paths: &PathContext<'_>, c: &Candidate, node_port: u16, (address, number): (Address, u16)) -> bool {
    let node = c.node.as_ref().and_then(|name| paths.nodes.get(name)).filter(|node| node.ready && node.eligible);
    let dialled = node.and_then(|node| paths.node_address(node, address.family()));
    paths.host_role != HostRole::Node && node_port != 0 && number == node_port && dialled == Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::change::{Change, ObjectKey};
    use beeline_model::cluster::ClusterRules;
    use beeline_model::diff::reconcile;
    use beeline_model::object::{
        AddressType, Endpoint, Node, Object, PodName, Service, ServicePort, Slice, SliceName, SlicePort,
    };
    use beeline_model::op::MemoryMaps;
    use beeline_model::policy::{self, BackendPort, Matcher, PolicyKind, PolicyName, PortChoice};
    use beeline_model::reach::{PodGroup, Reach, Reachability};
    use beeline_model::row::Sizes;
    use beeline_model::rules::Rules;
    use beeline_model::{Family, ServiceName};

    fn address(text: &str) -> Address {
        Address::from(text.parse::<std::net::IpAddr>().unwrap())
    }

    fn service() -> Service {
        Service {
            created: 1,
            cluster_ips: [address("10.96.0.10")].into(),
            ports: [ServicePort { name: "dns".into(), protocol: Protocol::Udp, port: 53, node_port: 0 }].into(),
            ..Service::named(ServiceName::local("default", "dns"))
        }
    }

    fn slice(at: &str) -> Slice {
        let [cluster, namespace, name] = ["local", "default", "dns-1"].map(Into::into);
        let endpoint = Endpoint { node: Some("n2".into()), ..Endpoint::ready(address(at)) };
        Slice {
            name: SliceName { cluster, namespace, name },
            service: service().name,
            family: Family::V4,
            ports: [SlicePort { name: "dns".into(), protocol: Protocol::Udp, port: 53 }].into(),
            endpoints: [endpoint].into(),
            hostnames: None,
        }
    }

    fn policy_above(at: &str) -> policy::Policy {
        let [cluster, namespace, name] = ["local", "default", "out"].map(Into::into);
        let port = BackendPort { name: "".into(), port: PortChoice::Number(53), protocol: Protocol::Udp };
        policy::Policy {
            name: PolicyName { kind: PolicyKind::Balancing, cluster, namespace, name },
            uid: "u".into(),
            created: 0,
            generation: 1,
            matcher: Matcher::Service { name: "dns".into(), ports: None },
            target: Target::Addresses { addresses: [address(at)].into(), ports: [port].into() },
            nodes: None,
            out_cluster: true,
            limit: None,
        }
    }

    #[test]
    fn after_a_layout_change_every_reachable_set_counts() {
        let sizes = Sizes::for_services(64);
        let (mut tables, mut memory) = (Tables::new(sizes), MemoryMaps::new(sizes));
        let mut planner = Planner::new(Rules::for_node("n1"));
        for change in [
            Change::Upsert(Object::Service(service())),
            Change::Upsert(Object::Slice(slice("10.244.2.5"))),
            Change::Upsert(Object::Policy(policy_above("192.0.2.9"))),
        ] {
            planner.apply(change);
        }
        assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), true).is_clean());
        let target =
            |at: &str| ConnectedTarget { owner: None, dialled: (address("10.96.0.10"), 53), chosen: (address(at), 53) };
        assert!(is_in_use(&tables, &target("192.0.2.9")), "a backend of the policy, which takes precedence");
        assert!(is_in_use(&tables, &target("10.244.2.5")), "a backend of the Service below it");
        assert!(still_serves(&tables, &planner, &target("10.244.2.5")));
        assert!(!is_in_use(&tables, &target("10.244.2.6")) && !still_serves(&tables, &planner, &target("10.244.2.6")));
        let elsewhere = ConnectedTarget { dialled: (address("10.96.0.99"), 53), ..target("10.244.2.5") };
        assert!(!is_in_use(&tables, &elsewhere));
    }

    fn pod(ready: bool) -> Pod {
        let name = PodName { cluster: "local".into(), namespace: "default".into(), name: "cache".into() };
        Pod {
            name,
            uid: "u".into(),
            node: Some("n1".into()),
            addresses: [address("192.0.2.9")].into(),
            containers: Box::default(),
            exclusion: Default::default(),
            view: None,
            labels: Default::default(),
            ready,
            ports: Box::default(),
        }
    }

    #[test]
    fn the_backend_of_a_deleted_policy_may_answer_unless_its_pod_is_not_ready() {
        let sizes = Sizes::for_services(64);
        let (mut tables, mut memory) = (Tables::new(sizes), MemoryMaps::new(sizes));
        let mut planner = Planner::new(Rules::for_node("n1"));
        let policy = policy_above("192.0.2.9");
        let mut apply = |tables: &mut Tables, planner: &mut Planner, changes: Vec<Change>| {
            for change in changes {
                planner.apply(change);
            }
            assert!(reconcile(tables, &mut memory, &planner.take_full_delta(), true).is_clean());
        };
        let objects = [Object::Service(service()), Object::Slice(slice("10.244.2.5")), Object::Policy(policy.clone())];
        apply(&mut tables, &mut planner, objects.map(Change::Upsert).into());
        let owner_of = |tables: &Tables, at: &str| {
            tables.rows().backends.iter().find(|(_, row)| row.address == address(at)).map(|(_, row)| row.owner)
        };
        let target = |at: &str| ConnectedTarget {
            owner: owner_of(&tables, at),
            dialled: (address("10.96.0.10"), 53),
            chosen: (address(at), 53),
        };
        let (of_policy, of_service) = (target("192.0.2.9"), target("10.244.2.5"));
        let moved = policy_above("192.0.2.10");
        apply(&mut tables, &mut planner, vec![Change::Upsert(Object::Policy(moved))]);
        assert!(!is_in_use(&tables, &of_policy) && may_answer(&tables, &planner, &of_policy), "another address");
        apply(&mut tables, &mut planner, vec![Change::Delete(ObjectKey::Policy(policy.name.clone()))]);
        assert!(!is_in_use(&tables, &of_policy) && may_answer(&tables, &planner, &of_policy), "deleted");
        planner.apply(Change::Upsert(Object::Pod(pod(true))));
        assert!(may_answer(&tables, &planner, &of_policy), "the pod at the address is ready");
        planner.apply(Change::Upsert(Object::Pod(pod(false))));
        assert!(!may_answer(&tables, &planner, &of_policy), "the pod at the address is not ready");
        apply(&mut tables, &mut planner, vec![Change::Upsert(Object::Slice(slice("10.244.2.6")))]);
        assert!(
            !is_in_use(&tables, &of_service) && !may_answer(&tables, &planner, &of_service),
            "the endpoint is gone"
        );
    }

    fn node() -> Node {
        let addresses = [(AddressType::Internal, address("192.0.2.12"))];
        Node { addresses: addresses.into(), ..Node::named("local", "n2") }
    }

    /// Tables of a host outside the cluster, with one pod on n2, its nodePort, and this reachability of the pod.
    fn outside(found: Reachability) -> (Tables, Planner) {
        let sizes = Sizes::for_services(64);
        let (mut tables, mut memory) = (Tables::new(sizes), MemoryMaps::new(sizes));
        let host_role = HostRole::Outside;
        let clusters = vec![ClusterRules::for_role("local", host_role)];
        let mut planner = Planner::new(Rules { host_role, clusters, ..Rules::for_node("") });
        let mut service = Service { has_node_ports: true, ..service() };
        service.ports[0].node_port = 30053;
        for change in [
            Change::Upsert(Object::Service(service)),
            Change::Upsert(Object::Slice(slice("10.244.2.5"))),
            Change::Upsert(Object::Node(node())),
        ] {
            planner.apply(change);
        }
        let group = PodGroup::of("local".into(), Some("n2".into()), address("10.244.2.5"));
        planner.set_reach(Reach { found: [(group, found)].into(), ..Reach::default() });
        assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), true).is_clean());
        (tables, planner)
    }

    #[test]
    fn outside_the_cluster_a_socket_is_kept_while_its_destination_may_answer() {
        let target = |at: &str, port| ConnectedTarget {
            owner: None,
            dialled: (address("10.96.0.10"), 53),
            chosen: (address(at), port),
        };
        let (tables, planner) = outside(Reachability::Direct);
        assert!(!is_in_use(&tables, &target("192.0.2.12", 30053)) && is_in_use(&tables, &target("10.244.2.5", 53)));
        assert!(still_serves(&tables, &planner, &target("192.0.2.12", 30053)), "the nodePort still answers");
        assert!(!still_serves(&tables, &planner, &target("192.0.2.12", 30054)));
        // A route was removed, and a probe through the default route is in progress.
        let (tables, planner) = outside(Reachability::Unknown);
        assert!(is_in_use(&tables, &target("192.0.2.12", 30053)) && !is_in_use(&tables, &target("10.244.2.5", 53)));
        assert!(still_serves(&tables, &planner, &target("10.244.2.5", 53)), "the pod may still answer");
        let (tables, mut planner) = outside(Reachability::Node);
        assert!(is_in_use(&tables, &target("192.0.2.12", 30053)) && !is_in_use(&tables, &target("10.244.2.5", 53)));
        assert!(!still_serves(&tables, &planner, &target("10.244.2.5", 53)), "no route leads to the pod");
        planner.apply(Change::Upsert(Object::Node(Node { ready: false, ..node() })));
        assert!(!still_serves(&tables, &planner, &target("192.0.2.12", 30053)), "the node is not ready");
    }
}
