//! Checks every cell of `matrix.txt`.

use super::expectation::{Expectation, table};
use super::fixture::{PacketFixture, Sender};
use super::service::{Dialled, PacketService, TrafficPolicy};
use beeline_harness::packet::{Flow, FlowProtocol, IpFamily, PacketNetwork};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const MATRIX: &str = include_str!("matrix.txt");
/// Columns of `matrix.txt` before the first cell.
const KEYS: usize = 3;
/// Number of the first Service.
const FIRST: u8 = 10;
/// Flows that run at the same time. Most of the time of a flow that is dropped is waiting.
const CONCURRENCY: usize = 24;

/// One flow with its expectation.
pub struct CheckedFlow {
    pub title: String,
    pub from: Sender,
    pub protocol: FlowProtocol,
    pub to: SocketAddr,
    pub expected: Expectation,
}

/// The Service of a column. The policy Local is for internal and external traffic.
fn service(network: &PacketNetwork, column: &str, number: u8, policy: TrafficPolicy) -> PacketService {
    let cluster = &network.cluster;
    let (a, c) = (cluster.pod(0), cluster.pod(2));
    let name = format!("{column}-{}", format!("{policy:?}").to_lowercase());
    let service = PacketService::new(&name, number, policy);
    match column {
        "here" => service.with(a, "node-1"),
        "elsewhere" => service.with(c, "node-2"),
        "both" => service.with(a, "node-1").with(c, "node-2"),
        "host-here" => service.with(&cluster.nodes[0].host, "node-1"),
        "host-elsewhere" => service.with(&cluster.nodes[1].host, "node-2"),
        "terminating-here" => service.with_terminating(a, "node-1"),
        "moving" => service.with_terminating(a, "node-1").with(c, "node-2"),
        "none" => service,
        "unready" => service.with_unready(a, "node-1"),
        _ => panic!("matrix.txt: unknown column {column}"),
    }
}

pub fn check(fixture: &mut PacketFixture<'_>) {
    let rows = table(MATRIX);
    let columns = &rows[0][KEYS..];
    let policies = [TrafficPolicy::Cluster, TrafficPolicy::Local];
    let pairs = columns.iter().flat_map(|column| policies.map(|policy| (*column, policy)));
    let services: Vec<PacketService> = (FIRST..)
        .zip(pairs)
        .map(|(number, (column, policy))| service(fixture.network, column, number, policy))
        .collect();
    let _untouched: Vec<_> = services.iter().map(|service| fixture.serve_untouched(service)).collect();
    let _sockets: Vec<_> = services.iter().map(|service| fixture.serve_node_port(service)).collect();
    fixture.apply_all(&services);
    let flows: Vec<CheckedFlow> =
        rows[1..].iter().flat_map(|row| row_flows(fixture, row, columns, &services)).collect();
    check_flows(fixture, &flows);
}

fn row_flows(
    fixture: &PacketFixture<'_>,
    row: &[&str],
    columns: &[&str],
    services: &[PacketService],
) -> Vec<CheckedFlow> {
    let (from, dialled) = (Sender::parse(row[0]), Dialled::parse(row[1]).expect("a kind of address"));
    let mut flows = Vec::new();
    for (column, cell) in columns.iter().zip(&row[KEYS..]) {
        let name = format!("{column}-{}", row[2].to_lowercase());
        let service = services.iter().find(|service| service.name == name).expect("every column has both policies");
        let address = |family| service.address(dialled, family, fixture.network);
        let title = format!("{} {} {} {column}", row[0], row[1], row[2]);
        flows.extend(all_protocols(&title, from, cell, address));
    }
    flows
}

/// The flow over TCP and UDP, IPv4 and IPv6.
pub fn all_protocols(
    title: &str,
    from: Sender,
    expected: &str,
    address: impl Fn(IpFamily) -> SocketAddr,
) -> Vec<CheckedFlow> {
    let pairs = FlowProtocol::ALL.into_iter().flat_map(|protocol| IpFamily::ALL.map(|family| (protocol, family)));
    let flow = |(protocol, family)| CheckedFlow {
        title: title.to_owned(),
        from,
        protocol,
        to: address(family),
        expected: Expectation::parse(expected),
    };
    pairs.map(flow).collect()
}

/// Runs the flows and panics with a list of those that differ from their expectation.
pub fn check_flows(fixture: &PacketFixture<'_>, flows: &[CheckedFlow]) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let network = fixture.network;
    let work = || {
        while let Some(flow) = flows.get(next.fetch_add(1, Ordering::Relaxed)) {
            failures.lock().unwrap().extend(flow.difference(network));
        }
    };
    std::thread::scope(|scope| (0..CONCURRENCY).for_each(|_| drop(scope.spawn(work))));
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    println!("{} of {} flows as expected", flows.len() - failures.len(), flows.len());
    assert!(failures.is_empty(), "{} of {} flows differ:\n{}", failures.len(), flows.len(), failures.join("\n"));
}

impl CheckedFlow {
    /// Dials, and describes the first result that differs from the expectation.
    fn difference(&self, network: &PacketNetwork) -> Option<String> {
        let CheckedFlow { title, from, protocol, to, expected } = self;
        let (host, source, node) = (from.host(network), from.source(network, *to), network.node_addresses());
        let mut results =
            (0..expected.repetitions()).map(|_| Flow::dial(&host.namespace, *protocol, source, *to).unwrap());
        let wrong = results.find(|result| !expected.is_met(result, source, &node))?;
        Some(format!("{title} ({protocol:?} {to}): expected {expected}, got {wrong:?}"))
    }
}
