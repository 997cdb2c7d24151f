//! Rows exchanged in place while dials look for them: every one of these dials has a backend before, during and after,
//! so none may go unanswered. The hashes are small and full, so that rows share their chains. Written past `Kernel`, which
//! tells the dials when to look again, the same rows must be missed now and then, or this would prove nothing.

mod ground;

use beeline_datapath::mapped::bytes_of;
use beeline_datapath::{Config, Door, Kernel, Program, wire};
use beeline_model::op::{Maps, Op};
use beeline_model::resolve::Dial;
use beeline_model::row::*;
use beeline_model::{Address, Family, Protocol};
use ground::Ground;
use libbpf_rs::{MapCore, MapFlags};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ROWS: u32 = 64;
const PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
/// One service in two sets of the same backends, as a change of policy makes them.
const SETS: [SetId; 2] = [SET_FIRST, SET_FIRST + 1];

fn address(number: u32) -> Address {
    Address::from(IpAddr::from(Ipv4Addr::from(0x0a60_0000 + number)))
}

fn backend() -> BackendRow {
    let state = State { generation: 1, roles: Role::Cluster as u8 };
    BackendRow { address: address(1 << 16), port: BACKEND_PORT, node: 0, owner: 1, state }
}

fn set() -> SetRow {
    let mut inline = [0; INLINE_SLOTS];
    inline[0] = 1;
    SetRow {
        span: Span { base: Base::Inline, count: 1, generation: 1 },
        owner: 1,
        family: Family::V4,
        role: Role::Cluster,
        node: 0,
        rule: Rule::Service,
        header: Header::default(),
        inline,
    }
}

fn frontend(number: u32, turn: usize) -> (FrontendKey, FrontendRow) {
    let row = FrontendRow { set: SETS[turn % 2], kind: Kind::ClusterIp };
    (FrontendKey::new(address(number), PORT, Protocol::Tcp), row)
}

fn node(number: u32, turn: usize) -> (Address, NodeRow) {
    (address(number), NodeRow { cluster: 0, own: turn.is_multiple_of(2), loopback: false, alone: false })
}

/// What is exchanged all the time, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Frontends,
    FrontendsInBatches,
    FrontendsUnannounced,
    Nodes,
    NodesUnannounced,
}

struct Scene {
    kernel: Kernel,
    program: Program,
    what: What,
}

impl Scene {
    fn new(ground: &Ground, what: What) -> Scene {
        // As many rows as the hash has chains: some share one.
        let sizes = Sizes { frontends: ROWS, nodes: ROWS, ..Sizes::for_services(16) };
        let program = Program::open(Config { sizes, ..ground.config() }).unwrap();
        let nodes = matches!(what, What::Nodes | What::NodesUnannounced);
        let bits = PortBits { frontend: !nodes, node_port: nodes };
        let mut scene = Scene { kernel: program.kernel().unwrap(), program, what };
        let mut ops = vec![Op::Backend(1, backend()), Op::Port(Protocol::Tcp, PORT, bits)];
        ops.extend(SETS.map(|id| Op::Set(id, Box::new(set()))));
        if nodes {
            let row = FrontendRow { set: SETS[0], kind: Kind::NodePort };
            ops.push(Op::Frontend(FrontendKey::new(Address::ANY_V4, PORT, Protocol::Tcp), Some(row)));
        }
        assert_eq!(scene.kernel.write_all(&ops).1, None);
        scene.exchange(0);
        scene
    }

    /// Every row for another one.
    fn exchange(&mut self, turn: usize) {
        let frontends = || (0..ROWS).map(|n| frontend(n, turn)).map(|(key, row)| Op::Frontend(key, Some(row)));
        match self.what {
            What::Frontends => frontends().for_each(|op| self.kernel.write(&op).unwrap()),
            What::FrontendsInBatches => {
                assert_eq!(self.kernel.write_all(&frontends().collect::<Vec<_>>()).1, None);
            }
            What::Nodes => (0..ROWS)
                .map(|n| node(n, turn))
                .for_each(|(at, row)| self.kernel.write(&Op::Node(at, Some(row))).unwrap()),
            What::FrontendsUnannounced => (0..ROWS).map(|n| frontend(n, turn)).for_each(|(key, row)| {
                let key = wire::frontend_key(&key);
                self.put("frontend", bytes_of(&key), bytes_of(&wire::frontend(&key, &row)));
            }),
            What::NodesUnannounced => (0..ROWS).map(|n| node(n, turn)).for_each(|(at, row)| {
                let key = wire::address(at);
                self.put("node", bytes_of(&key), bytes_of(&wire::node(&key, &row)));
            }),
        }
    }

    fn put(&self, map: &str, key: &[u8], value: &[u8]) {
        self.program.maps().handle(map).unwrap().update(key, value, MapFlags::ANY).unwrap();
    }
}

/// Dials until `dials` were made or, if any miss is enough, one was.
fn besiege(door: &Door, dials: u64, until_missed: bool) -> (u64, u64) {
    let dial = Dial::to(address(0), PORT, Protocol::Tcp);
    let (mut made, mut missed) = (0, 0);
    let end = Instant::now() + Duration::from_secs(120);
    while made < dials && !(until_missed && missed > 0) && Instant::now() < end {
        let toll = door.besiege(&dial, 100_000, BACKEND_PORT, ROWS).unwrap();
        made += toll.resolved + toll.refused + toll.untouched;
        missed += toll.refused + toll.untouched + toll.wrong;
    }
    (made, missed)
}

fn run(what: What, dials: u64, until_missed: bool) -> (u64, u64) {
    let ground = Ground::new();
    let mut scene = Scene::new(&ground, what);
    let (door, stop) = (scene.program.door().unwrap(), AtomicBool::new(false));
    let (toll, turns) = std::thread::scope(|scope| {
        let siege = scope.spawn(|| {
            let toll = besiege(&door, dials, until_missed);
            stop.store(true, Ordering::Relaxed);
            toll
        });
        let turns = (1..).find(|turn| {
            scene.exchange(*turn);
            stop.load(Ordering::Relaxed) || siege.is_finished()
        });
        (siege.join().unwrap(), turns.unwrap_or_default())
    });
    let (made, missed) = toll;
    println!("{what:?}: {turns} x {ROWS} rows exchanged, {missed} of {made} dials missed theirs");
    assert!(turns > 10, "too few exchanges to mean anything");
    toll
}

const DIALS: u64 = 20_000_000;

#[test]
fn no_dial_misses_a_row_that_is_exchanged() {
    for what in [What::Frontends, What::FrontendsInBatches, What::Nodes] {
        let (made, missed) = run(what, DIALS, false);
        assert!(made >= DIALS, "{what:?}: only {made} dials");
        assert_eq!(missed, 0, "{what:?}");
    }
}

#[test]
fn without_the_word_some_do() {
    for what in [What::FrontendsUnannounced, What::NodesUnannounced] {
        assert!(run(what, 20 * DIALS, true).1 > 0, "{what:?}: nothing was missed: the other test proves nothing");
    }
}
