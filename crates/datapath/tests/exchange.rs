//! Replaces hash rows while dials look them up. Every dial has a backend before, during and after the replacement, so each
//! must be resolved. The hashes are small and full, so that rows share hash chains. As a control, the same replacement is
//! done without `KernelMaps`, which makes lookups repeat: some dials must then miss their row.

mod fixture;

use beeline_datapath::mapped::bytes_of;
use beeline_datapath::{Config, KernelMaps, Program, TestResolver, wire};
use beeline_model::op::{Maps, Op};
use beeline_model::resolve::Dial;
use beeline_model::row::*;
use beeline_model::{Address, Family, Protocol};
use fixture::Fixture;
use libbpf_rs::{MapCore, MapFlags};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ROWS: u32 = 64;
const PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
/// Two sets of one service with the same backends, as a change of policy creates them.
const SETS: [SetId; 2] = [SET_FIRST, SET_FIRST + 1];

fn address(number: u32) -> Address {
    Address::from(IpAddr::from(Ipv4Addr::from(0x0a60_0000 + number)))
}

fn backend() -> BackendRow {
    let state = BackendState { generation: 1, roles: Role::Cluster as u8 };
    BackendRow { address: address(1 << 16), port: BACKEND_PORT, node: 0, owner: 1, udp: false, state }
}

fn set() -> SetRow {
    let mut inline = [0; INLINE_SLOTS];
    inline[0] = 1;
    SetRow {
        span: SlotSpan { base: Base::Inline, count: 1, generation: 1 },
        owner: 1,
        family: Family::V4,
        role: Role::Cluster,
        node: 0,
        rule: Rule::Service,
        header: SetHeader::default(),
        inline,
    }
}

fn frontend(number: u32, round: usize) -> (FrontendKey, FrontendRow) {
    let row = FrontendRow { set: SETS[round % 2], kind: FrontendKind::ClusterIp };
    (FrontendKey::new(address(number), PORT, Protocol::Tcp), row)
}

fn node(number: u32, round: usize) -> (Address, NodeRow) {
    (address(number), NodeRow { cluster: 0, own: round.is_multiple_of(2), loopback: false, exact_loopback: false })
}

/// The rows that are replaced, and whether `exchange` announces the replacement.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Replacement {
    Frontends,
    FrontendsInBatches,
    FrontendsUnannounced,
    Nodes,
    NodesUnannounced,
}

struct Scenario {
    kernel: KernelMaps,
    program: Program,
    replacement: Replacement,
}

impl Scenario {
    fn new(fixture: &Fixture, replacement: Replacement) -> Scenario {
        // As many rows as the hash has chains, so that some rows share a chain.
        let sizes = Sizes { frontends: ROWS, nodes: ROWS, ..Sizes::for_services(16) };
        let program = Program::open(Config { sizes, ..fixture.config() }).unwrap();
        let nodes = matches!(replacement, Replacement::Nodes | Replacement::NodesUnannounced);
        let bits = PortBits { frontend: !nodes, node_port: nodes };
        let mut scenario = Scenario { kernel: program.kernel().unwrap(), program, replacement };
        let mut ops = vec![Op::Backend(1, backend()), Op::Port(Protocol::Tcp, PORT, bits)];
        ops.extend(SETS.map(|id| Op::Set(id, Box::new(set()))));
        if nodes {
            let row = FrontendRow { set: SETS[0], kind: FrontendKind::NodePort };
            ops.push(Op::Frontend(FrontendKey::new(Address::ANY_V4, PORT, Protocol::Tcp), Some(row)));
        }
        assert_eq!(scenario.kernel.write_all(&ops).1, None);
        scenario.replace_all(0);
        scenario
    }

    /// Replaces every row.
    fn replace_all(&mut self, round: usize) {
        let frontends = || (0..ROWS).map(|n| frontend(n, round)).map(|(key, row)| Op::Frontend(key, Some(row)));
        match self.replacement {
            Replacement::Frontends => frontends().for_each(|op| self.kernel.write(&op).unwrap()),
            Replacement::FrontendsInBatches => {
                assert_eq!(self.kernel.write_all(&frontends().collect::<Vec<_>>()).1, None);
            }
            Replacement::Nodes => (0..ROWS)
                .map(|n| node(n, round))
                .for_each(|(at, row)| self.kernel.write(&Op::Node(at, Some(row))).unwrap()),
            Replacement::FrontendsUnannounced => (0..ROWS).map(|n| frontend(n, round)).for_each(|(key, row)| {
                let key = wire::frontend_key(&key);
                self.put("frontend", bytes_of(&key), bytes_of(&wire::frontend(&key, &row)));
            }),
            Replacement::NodesUnannounced => (0..ROWS).map(|n| node(n, round)).for_each(|(at, row)| {
                let key = wire::address(at);
                self.put("node", bytes_of(&key), bytes_of(&wire::node(&key, &row)));
            }),
        }
    }

    fn put(&self, map: &str, key: &[u8], value: &[u8]) {
        self.program.maps().handle(map).unwrap().update(key, value, MapFlags::ANY).unwrap();
    }
}

/// Resolves until `dials` dials were made or, with `until_missed`, one dial missed its row. Returns dials and misses.
fn resolve_while_replacing(resolver: &TestResolver, dials: u64, until_missed: bool) -> (u64, u64) {
    let dial = Dial::to(address(0), PORT, Protocol::Tcp);
    let (mut made, mut missed) = (0, 0);
    let end = Instant::now() + Duration::from_secs(120);
    while made < dials && !(until_missed && missed > 0) && Instant::now() < end {
        let counts = resolver.resolve_many(&dial, 100_000, BACKEND_PORT, ROWS).unwrap();
        made += counts.resolved + counts.refused + counts.untouched;
        missed += counts.refused + counts.untouched + counts.wrong;
    }
    (made, missed)
}

fn run(replacement: Replacement, dials: u64, until_missed: bool) -> (u64, u64) {
    let fixture = Fixture::new();
    let mut scenario = Scenario::new(&fixture, replacement);
    let (resolver, stop) = (scenario.program.test_resolver().unwrap(), AtomicBool::new(false));
    let (counts, rounds) = std::thread::scope(|scope| {
        let resolving = scope.spawn(|| {
            let counts = resolve_while_replacing(&resolver, dials, until_missed);
            stop.store(true, Ordering::Relaxed);
            counts
        });
        let rounds = (1..).find(|round| {
            scenario.replace_all(*round);
            stop.load(Ordering::Relaxed) || resolving.is_finished()
        });
        (resolving.join().unwrap(), rounds.unwrap_or_default())
    });
    let (made, missed) = counts;
    println!("{replacement:?}: {rounds} x {ROWS} rows replaced, {missed} of {made} dials missed their row");
    assert!(rounds > 10, "only {rounds} rounds: too few to be meaningful");
    counts
}

const DIALS: u64 = 20_000_000;

#[test]
fn no_dial_misses_a_row_that_is_being_replaced() {
    for replacement in [Replacement::Frontends, Replacement::FrontendsInBatches, Replacement::Nodes] {
        let (made, missed) = run(replacement, DIALS, false);
        assert!(made >= DIALS, "{replacement:?}: only {made} dials");
        assert_eq!(missed, 0, "{replacement:?}");
    }
}

#[test]
fn without_announcement_some_dials_miss_their_row() {
    for replacement in [Replacement::FrontendsUnannounced, Replacement::NodesUnannounced] {
        assert!(
            run(replacement, 20 * DIALS, true).1 > 0,
            "{replacement:?}: no dial missed its row, so the other test proves nothing"
        );
    }
}
