//! Which connected UDP sockets have lost their backend: no dial of the same address could become it any more.

use beeline_datapath::reap::Connected;
use beeline_model::plan::away::node_port;
use beeline_model::plan::candidates;
use beeline_model::planner::Planner;
use beeline_model::resolve::{Dial, LINKS, resolve};
use beeline_model::row::{BackendId, OwnerId, SetRow};
use beeline_model::rules::{EmptyLocal, StandPoint};
use beeline_model::select::Candidate;
use beeline_model::stand::way::Ground;
use beeline_model::table::Tables;
use beeline_model::{Address, Protocol};

/// What a socket was told when it was connected.
#[derive(Clone, Copy, Debug)]
pub struct Tie {
    /// `None`: ids of other tables mean nothing.
    owner: Option<OwnerId>,
    dialled: (Address, u16),
    chosen: (Address, u16),
}

impl Tie {
    /// `epoch`: of the tables that are ours.
    pub fn of(socket: &Connected, epoch: u32) -> Tie {
        Tie {
            owner: Some(socket.owner).filter(|owner| socket.epoch == epoch && *owner != 0),
            dialled: (socket.dialled, socket.dialled_port),
            chosen: (socket.chosen, socket.chosen_port),
        }
    }
}

/// Every set that a dial of the same may come to: who is passed over now and then (empty, over a limit, its own pods) is
/// as good as the first.
fn chain<'a>(tables: &'a Tables, tie: &Tie) -> impl Iterator<Item = &'a SetRow> + use<'a> {
    let rows = tables.rows();
    let dial = Dial { host: true, ..Dial::to(tie.dialled.0, tie.dialled.1, Protocol::Udp) };
    // What an empty set would do is no matter here.
    let found = resolve(rows, &dial, EmptyLocal::Refuse).found;
    let first = found.and_then(|found| rows.sets.get(found.set));
    std::iter::successors(first, |set| rows.sets.get(set.header.next)).take(LINKS)
}

/// The service port that it belongs to; after another layout, all that what was dialled leads to.
fn owners(tables: &Tables, tie: &Tie) -> Vec<OwnerId> {
    match tie.owner {
        Some(owner) => vec![owner],
        None => chain(tables, tie).map(|set| set.owner).collect(),
    }
}

/// A new dial might pick its backend: as the service port has it, or, where that is gone (a port got another name),
/// as what was dialled leads to it now.
pub fn is_in_use(tables: &Tables, tie: &Tie) -> bool {
    let rows = tables.rows();
    let is_it = |id: &BackendId| rows.backends.get(*id).is_some_and(|row| (row.address, row.port) == tie.chosen);
    owners(tables, tie).iter().any(|owner| tables.has_backend(*owner, tie.chosen.0, tie.chosen.1))
        || chain(tables, tie).any(|set| rows.members(set).iter().any(is_it))
}

/// Its backend gets no new dials, but answers those that it has: a pod on its way out, or one to which a better way was
/// found.
pub fn still_serves(tables: &Tables, planner: &Planner, tie: &Tie) -> bool {
    owners(tables, tie).iter().any(|owner| serves(tables, planner, *owner, tie.chosen))
}

fn serves(tables: &Tables, planner: &Planner, owner: OwnerId, at: (Address, u16)) -> bool {
    let Some(name) = tables.port_name(owner) else { return false };
    let Some(service) = planner.service(&name.service) else { return false };
    let port = service.ports.iter().find(|p| p.name == name.port && p.protocol == name.protocol);
    let (Some(port), Some(around)) = (port, planner.surroundings(name.service.cluster())) else { return false };
    let (ground, number) = (around.way(), node_port(service, port));
    let found = candidates(port, at.0.family(), planner.slices_of(&name.service), &around);
    found.iter().any(|c| c.serving && (answers_itself(&ground, c, number, at) || its_node_does(&ground, c, number, at)))
}

/// Not where it is known that nothing leads to it any more: nobody would ever answer there.
fn answers_itself(ground: &Ground<'_>, c: &Candidate, node_port: u16, at: (Address, u16)) -> bool {
    (c.address, c.port) == at && ground.may_answer(c, node_port)
}

/// Whichever way is taken now: a nodePort answers as before when a route to the pod has come.
fn its_node_does(ground: &Ground<'_>, c: &Candidate, node_port: u16, (address, number): (Address, u16)) -> bool {
    let node = c.node.as_ref().and_then(|name| ground.nodes.get(name)).filter(|node| node.ready && node.eligible);
    let dialled = node.and_then(|node| ground.node_address(node, address.family()));
    ground.stand != StandPoint::Node && node_port != 0 && number == node_port && dialled == Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::diff::reconcile;
    use beeline_model::fact::{
        AddressType, Endpoint, Fact, Node, Policy, Service, ServicePort, Slice, SliceName, SlicePort,
    };
    use beeline_model::op::Memory;
    use beeline_model::policy::{self, BackendPort, Matcher, PolicyKind, PolicyName, PortChoice, Target};
    use beeline_model::reach::{Found, Group, Reach};
    use beeline_model::row::Sizes;
    use beeline_model::rules::Rules;
    use beeline_model::stand::ClusterRules;
    use beeline_model::{Family, OwnerName};

    fn address(text: &str) -> Address {
        Address::from(text.parse::<std::net::IpAddr>().unwrap())
    }

    fn service() -> Service {
        Service {
            name: OwnerName::local("default", "dns"),
            created: 1,
            cluster_ips: [address("10.96.0.10")].into(),
            load_balancer_ips: [].into(),
            external_ips: [].into(),
            source_ranges: [].into(),
            has_node_ports: false,
            internal: Policy::Cluster,
            external: Policy::Cluster,
            affinity: None,
            health_check_node_port: 0,
            ports: [ServicePort { name: "dns".into(), protocol: Protocol::Udp, port: 53, node_port: 0 }].into(),
        }
    }

    fn slice(at: &str) -> Slice {
        let [cluster, namespace, name] = ["local", "default", "dns-1"].map(Into::into);
        let endpoint = Endpoint {
            address: address(at),
            ready: true,
            serving: true,
            terminating: false,
            node: Some("n2".into()),
            hints: None,
        };
        Slice {
            name: SliceName { cluster, namespace, name },
            service: service().name,
            family: Family::V4,
            ports: [SlicePort { name: "dns".into(), protocol: Protocol::Udp, port: 53 }].into(),
            endpoints: [endpoint].into(),
            hostnames: None,
        }
    }

    fn above(at: &str) -> policy::Policy {
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
    fn after_another_layout_every_set_on_the_way_counts() {
        let sizes = Sizes::for_services(64);
        let (mut tables, mut memory) = (Tables::new(sizes), Memory::new(sizes));
        let mut planner = Planner::new(Rules::for_node("n1"));
        for fact in [Fact::Service(service()), Fact::Slice(slice("10.244.2.5")), Fact::Policy(above("192.0.2.9"))] {
            planner.apply(fact);
        }
        assert!(reconcile(&mut tables, &mut memory, &planner.take_all(), true).is_clean());
        let tie = |at: &str| Tie { owner: None, dialled: (address("10.96.0.10"), 53), chosen: (address(at), 53) };
        assert!(is_in_use(&tables, &tie("192.0.2.9")), "of the policy, which is asked first");
        assert!(is_in_use(&tables, &tie("10.244.2.5")), "of the Service below it");
        assert!(still_serves(&tables, &planner, &tie("10.244.2.5")));
        assert!(!is_in_use(&tables, &tie("10.244.2.6")) && !still_serves(&tables, &planner, &tie("10.244.2.6")));
        let elsewhere = Tie { dialled: (address("10.96.0.99"), 53), ..tie("10.244.2.5") };
        assert!(!is_in_use(&tables, &elsewhere));
    }

    fn node() -> Node {
        let addresses = [(AddressType::Internal, address("192.0.2.12"))];
        Node { addresses: addresses.into(), ..Node::named("local", "n2") }
    }

    /// A host outside that has heard of a pod on n2 and its nodePort, and found this of the way there.
    fn outside(found: Found) -> (Tables, Planner) {
        let sizes = Sizes::for_services(64);
        let (mut tables, mut memory) = (Tables::new(sizes), Memory::new(sizes));
        let stand_point = StandPoint::Outside;
        let clusters = vec![ClusterRules::standing("local", stand_point)];
        let mut planner = Planner::new(Rules { stand_point, clusters, ..Rules::for_node("") });
        let mut service = Service { has_node_ports: true, ..service() };
        service.ports[0].node_port = 30053;
        for fact in [Fact::Service(service), Fact::Slice(slice("10.244.2.5")), Fact::Node(node())] {
            planner.apply(fact);
        }
        let group = Group::of("local".into(), Some("n2".into()), address("10.244.2.5"));
        planner.set_reach(Reach { found: [(group, found)].into(), ..Reach::default() });
        assert!(reconcile(&mut tables, &mut memory, &planner.take_all(), true).is_clean());
        (tables, planner)
    }

    #[test]
    fn outside_a_way_that_still_answers_is_spared_and_one_that_has_gone_is_not() {
        let tie =
            |at: &str, port| Tie { owner: None, dialled: (address("10.96.0.10"), 53), chosen: (address(at), port) };
        let (tables, planner) = outside(Found::Direct);
        assert!(!is_in_use(&tables, &tie("192.0.2.12", 30053)) && is_in_use(&tables, &tie("10.244.2.5", 53)));
        assert!(still_serves(&tables, &planner, &tie("192.0.2.12", 30053)), "the nodePort answers as before");
        assert!(!still_serves(&tables, &planner, &tie("192.0.2.12", 30054)));
        // A route has gone, and whether the default route leads there too is being asked.
        let (tables, planner) = outside(Found::Unknown);
        assert!(is_in_use(&tables, &tie("192.0.2.12", 30053)) && !is_in_use(&tables, &tie("10.244.2.5", 53)));
        assert!(still_serves(&tables, &planner, &tie("10.244.2.5", 53)), "it may answer all the while");
        let (tables, mut planner) = outside(Found::Node);
        assert!(is_in_use(&tables, &tie("192.0.2.12", 30053)) && !is_in_use(&tables, &tie("10.244.2.5", 53)));
        assert!(!still_serves(&tables, &planner, &tie("10.244.2.5", 53)), "no route leads there any more");
        planner.apply(Fact::Node(Node { ready: false, ..node() }));
        assert!(!still_serves(&tables, &planner, &tie("192.0.2.12", 30053)), "nor may a node that is not ready");
    }
}
