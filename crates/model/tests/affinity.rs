//! A backend that a client used before holds while it is in the set that is used now, and no longer: gone, not ready,
//! filtered out by hints, standing elsewhere, or come back as another row means a new pick.

use beeline_model::diff::reconcile;
use beeline_model::fact::*;
use beeline_model::op::Memory;
use beeline_model::planner::Planner;
use beeline_model::resolve::{Dial, Verdict, resolve};
use beeline_model::row::{BackendId, Sizes};
use beeline_model::rules::{EmptyLocal, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Family, OwnerName, Protocol};

fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::IpAddr>().unwrap())
}

fn service(internal: Policy) -> Fact {
    Fact::Service(Service {
        name: OwnerName::local("default", "web"),
        created: 0,
        cluster_ips: [address("10.96.0.1")].into(),
        load_balancer_ips: [].into(),
        external_ips: [address("192.0.2.7")].into(),
        source_ranges: [].into(),
        has_node_ports: false,
        internal,
        external: Policy::Cluster,
        affinity: Some(10_800),
        health_check_node_port: 0,
        ports: [ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: 0 }].into(),
    })
}

fn endpoint(text: &str) -> Endpoint {
    let (address, node) = (address(text), Some("n1".into()));
    Endpoint { address, ready: true, serving: true, terminating: false, node, hints: None }
}

struct Client {
    planner: Planner,
    tables: Tables,
    memory: Memory,
    used: (BackendId, u32),
}

impl Client {
    /// Two pods, the first of which was used before.
    fn new() -> Client {
        let sizes = Sizes::for_services(8);
        let (tables, memory) = (Tables::new(sizes), Memory::new(sizes));
        let planner = Planner::new(Rules::for_node("n1"));
        let mut client = Client { planner, tables, memory, used: (0, 0) };
        client.apply(service(Policy::Cluster));
        client.pods(vec![endpoint("10.244.1.5"), endpoint("10.244.1.6")]);
        client.remember("10.244.1.5");
        client
    }

    fn remember(&mut self, pod: &str) {
        let row = self.memory.rows.backends.iter().find(|(_, b)| b.address == address(pod)).unwrap();
        self.used = (row.0, row.1.state.generation);
    }

    /// Another agent takes over the tables.
    fn restart(&mut self) {
        self.tables = Tables::restore(self.memory.rows.clone(), self.memory.sizes);
    }

    fn apply(&mut self, fact: Fact) {
        self.planner.apply(fact);
        assert!(reconcile(&mut self.tables, &mut self.memory, &self.planner.take(), false).is_clean());
        self.tables.recycle(&mut self.memory).unwrap();
    }

    fn pods(&mut self, endpoints: Vec<Endpoint>) {
        self.apply(Fact::Slice(Slice {
            name: SliceName { cluster: "local".into(), namespace: "default".into(), name: "web-1".into() },
            service: OwnerName::local("default", "web"),
            family: Family::V4,
            ports: [SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
            endpoints: endpoints.into(),
            hostnames: None,
        }));
    }

    fn dial(&self, to: &str) -> Verdict {
        let dial = Dial { prefer: Some(self.used), ..Dial::to(address(to), 80, Protocol::Tcp) };
        resolve(&self.memory.rows, &dial, EmptyLocal::Refuse)
    }

    fn keeps(&self) -> bool {
        let verdict = self.dial("10.96.0.1");
        assert_eq!(verdict.kept, verdict.backends == [self.used.0], "{verdict:?}");
        verdict.kept
    }
}

#[test]
fn it_holds_whichever_address_is_dialled() {
    let client = Client::new();
    assert!(client.keeps());
    assert!(client.dial("192.0.2.7").kept);
}

#[test]
fn it_holds_while_others_come_and_go() {
    let mut client = Client::new();
    for n in 0..30u8 {
        let others = (0..n % 13).map(|i| endpoint(&format!("10.244.2.{}", i + n)));
        client.pods([endpoint("10.244.1.5")].into_iter().chain(others).collect());
        assert!(client.keeps(), "{n}");
    }
}

#[test]
fn gone_or_not_ready_means_a_new_pick() {
    for gone in [
        vec![endpoint("10.244.1.6")],
        vec![Endpoint { ready: false, ..endpoint("10.244.1.5") }, endpoint("10.244.1.6")],
        vec![Endpoint { ready: false, terminating: true, ..endpoint("10.244.1.5") }, endpoint("10.244.1.6")],
    ] {
        let mut client = Client::new();
        client.pods(gone);
        let verdict = client.dial("10.96.0.1");
        assert!(!verdict.kept && verdict.backends.len() == 1 && verdict.backends[0] != client.used.0, "{verdict:?}");
    }
}

#[test]
fn filtered_out_means_a_new_pick_only_where_it_is() {
    let mut client = Client::new();
    let hints = |node: &str| Some(Box::new(Hints { zones: [].into(), nodes: [node.into()].into() }));
    let other = Endpoint { hints: hints("n1"), ..endpoint("10.244.1.6") };
    client.pods(vec![Endpoint { hints: hints("n2"), ..endpoint("10.244.1.5") }, other]);
    assert!(!client.keeps());

    let mut client = Client::new();
    client.apply(service(Policy::Local));
    assert!(client.keeps(), "it is local");
    client.pods(vec![Endpoint { node: Some("n2".into()), ..endpoint("10.244.1.5") }, endpoint("10.244.1.6")]);
    assert!(!client.keeps(), "it moved away");
}

#[test]
fn the_same_address_later_is_another_backend() {
    let mut client = Client::new();
    client.pods(vec![endpoint("10.244.1.6")]);
    client.pods(vec![endpoint("10.244.1.5"), endpoint("10.244.1.6")]);
    assert!(!client.keeps(), "a pod that came back is a new one: {:?}", client.used);
}

#[test]
fn a_restart_gives_no_old_record_a_new_backend() {
    for used in ["10.244.1.5", "10.244.1.6"] {
        let mut client = Client::new();
        client.remember(used);
        let stays = if used == "10.244.1.5" { "10.244.1.6" } else { "10.244.1.5" };
        client.pods(vec![endpoint(stays)]);
        client.restart();
        client.pods(vec![endpoint(stays), endpoint("10.244.1.7"), endpoint("10.244.1.8")]);
        assert!(client.memory.rows.backends.contains(client.used.0), "the id is used again");
        assert!(!client.keeps(), "{used}");
    }
}
