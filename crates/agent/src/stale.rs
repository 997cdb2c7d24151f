//! Which connected UDP sockets have lost their backend: no dial of the same address could become it any more.

use beeline_datapath::reap::Connected;
use beeline_model::plan::candidates;
use beeline_model::planner::Planner;
use beeline_model::resolve::{Dial, LINKS, resolve};
use beeline_model::row::{BackendId, OwnerId, SetRow};
use beeline_model::rules::EmptyLocal;
use beeline_model::select::Candidate;
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

/// Its backend gets no new dials, but answers those that it has: a pod on its way out.
pub fn still_serves(tables: &Tables, planner: &Planner, tie: &Tie) -> bool {
    owners(tables, tie).iter().any(|owner| serves(tables, planner, *owner, tie.chosen))
}

fn serves(tables: &Tables, planner: &Planner, owner: OwnerId, (address, number): (Address, u16)) -> bool {
    let Some(name) = tables.port_name(owner) else { return false };
    let Some(service) = planner.service(&name.service) else { return false };
    let port = service.ports.iter().find(|p| p.name == name.port && p.protocol == name.protocol);
    let around = planner.surroundings();
    let of_port = |port| candidates(port, address.family(), planner.slices_of(&name.service), &around);
    let is_it = |c: &Candidate| c.serving && c.address == address && c.port == number;
    port.is_some_and(|port| of_port(port).iter().any(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::diff::reconcile;
    use beeline_model::fact::{Endpoint, Fact, Policy, Service, ServicePort, Slice, SliceName, SlicePort};
    use beeline_model::op::Memory;
    use beeline_model::policy::{self, BackendPort, Matcher, PolicyKind, PolicyName, PortChoice, Target};
    use beeline_model::row::Sizes;
    use beeline_model::rules::Rules;
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
}
