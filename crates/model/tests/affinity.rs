//! A client keeps its recorded backend only while the backend is in the set that applies now. A backend that is
//! deleted, not ready, filtered out by hints, moved to another node, or created again is replaced by a new pick.

use beeline_model::change::Change;
use beeline_model::diff::reconcile;
use beeline_model::object::*;
use beeline_model::op::MemoryMaps;
use beeline_model::planner::Planner;
use beeline_model::resolve::{Dial, Verdict, resolve};
use beeline_model::row::{BackendId, Sizes};
use beeline_model::rules::{NoLocalEndpointAction, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Family, Protocol, ServiceName};

fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::IpAddr>().unwrap())
}

fn service(internal: TrafficPolicy) -> Change {
    Change::Upsert(Object::Service(Service {
        cluster_ips: [address("10.96.0.1")].into(),
        external_ips: [address("192.0.2.7")].into(),
        internal,
        affinity: Some(10_800),
        ports: [ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: 0 }].into(),
        ..Service::named(ServiceName::local("default", "web"))
    }))
}

fn endpoint(text: &str) -> Endpoint {
    let (address, node) = (address(text), Some("n1".into()));
    Endpoint { node, ..Endpoint::ready(address) }
}

struct Client {
    planner: Planner,
    tables: Tables,
    memory: MemoryMaps,
    recorded: (BackendId, u32),
}

impl Client {
    /// A client of a Service with two pods that has used the first pod.
    fn new() -> Client {
        let sizes = Sizes::for_services(8);
        let (tables, memory) = (Tables::new(sizes), MemoryMaps::new(sizes));
        let planner = Planner::new(Rules::for_node("n1"));
        let mut client = Client { planner, tables, memory, recorded: (0, 0) };
        client.apply(service(TrafficPolicy::Cluster));
        client.pods(vec![endpoint("10.244.1.5"), endpoint("10.244.1.6")]);
        client.record("10.244.1.5");
        client
    }

    fn record(&mut self, pod: &str) {
        let row = self.memory.rows.backends.iter().find(|(_, b)| b.address == address(pod)).unwrap();
        self.recorded = (row.0, row.1.state.generation);
    }

    /// A new agent takes over the tables.
    fn restart(&mut self) {
        self.tables = Tables::restore(self.memory.rows.clone(), self.memory.sizes);
    }

    fn apply(&mut self, change: Change) {
        self.planner.apply(change);
        assert!(reconcile(&mut self.tables, &mut self.memory, &self.planner.take_delta(), false).is_clean());
        self.tables.recycle(&mut self.memory).unwrap();
    }

    fn pods(&mut self, endpoints: Vec<Endpoint>) {
        self.apply(Change::Upsert(Object::Slice(Slice {
            name: SliceName { cluster: "local".into(), namespace: "default".into(), name: "web-1".into() },
            service: ServiceName::local("default", "web"),
            family: Family::V4,
            ports: [SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
            endpoints: endpoints.into(),
            hostnames: None,
        })));
    }

    fn dial(&self, to: &str) -> Verdict {
        let dial = Dial { prefer: Some(self.recorded), ..Dial::to(address(to), 80, Protocol::Tcp) };
        resolve(&self.memory.rows, &dial, NoLocalEndpointAction::Refuse)
    }

    fn keeps(&self) -> bool {
        let verdict = self.dial("10.96.0.1");
        assert_eq!(verdict.kept, verdict.backends == [self.recorded.0], "{verdict:?}");
        verdict.kept
    }
}

#[test]
fn the_backend_is_kept_for_every_address_of_the_service() {
    let client = Client::new();
    assert!(client.keeps());
    assert!(client.dial("192.0.2.7").kept);
}

#[test]
fn the_backend_is_kept_while_other_backends_change() {
    let mut client = Client::new();
    for n in 0..30u8 {
        let others = (0..n % 13).map(|i| endpoint(&format!("10.244.2.{}", i + n)));
        client.pods([endpoint("10.244.1.5")].into_iter().chain(others).collect());
        assert!(client.keeps(), "{n}");
    }
}

#[test]
fn a_deleted_or_unready_backend_is_replaced() {
    for gone in [
        vec![endpoint("10.244.1.6")],
        vec![Endpoint { ready: false, ..endpoint("10.244.1.5") }, endpoint("10.244.1.6")],
        vec![Endpoint { ready: false, terminating: true, ..endpoint("10.244.1.5") }, endpoint("10.244.1.6")],
    ] {
        let mut client = Client::new();
        client.pods(gone);
        let verdict = client.dial("10.96.0.1");
        assert!(
            !verdict.kept && verdict.backends.len() == 1 && verdict.backends[0] != client.recorded.0,
            "{verdict:?}"
        );
    }
}

#[test]
fn a_backend_outside_the_set_is_replaced() {
    let mut client = Client::new();
    let hints = |node: &str| Some(Box::new(Hints { zones: [].into(), nodes: [node.into()].into() }));
    let other = Endpoint { hints: hints("n1"), ..endpoint("10.244.1.6") };
    client.pods(vec![Endpoint { hints: hints("n2"), ..endpoint("10.244.1.5") }, other]);
    assert!(!client.keeps());

    let mut client = Client::new();
    client.apply(service(TrafficPolicy::Local));
    assert!(client.keeps(), "the backend is local");
    client.pods(vec![Endpoint { node: Some("n2".into()), ..endpoint("10.244.1.5") }, endpoint("10.244.1.6")]);
    assert!(!client.keeps(), "the backend moved to another node");
}

#[test]
fn a_recreated_backend_is_not_kept() {
    let mut client = Client::new();
    client.pods(vec![endpoint("10.244.1.6")]);
    client.pods(vec![endpoint("10.244.1.5"), endpoint("10.244.1.6")]);
    assert!(!client.keeps(), "a recreated pod is a new backend: {:?}", client.recorded);
}

#[test]
fn a_record_from_before_a_restart_never_matches_a_new_backend() {
    for used in ["10.244.1.5", "10.244.1.6"] {
        let mut client = Client::new();
        client.record(used);
        let stays = if used == "10.244.1.5" { "10.244.1.6" } else { "10.244.1.5" };
        client.pods(vec![endpoint(stays)]);
        client.restart();
        client.pods(vec![endpoint(stays), endpoint("10.244.1.7"), endpoint("10.244.1.8")]);
        assert!(client.memory.rows.backends.contains(client.recorded.0), "the id is reused");
        assert!(!client.keeps(), "{used}");
    }
}
