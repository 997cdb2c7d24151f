//! Compares the decision of the BPF programs with `beeline_model::resolve` on random tables and dials: same action, same
//! reason, and a backend that the model allows. Addresses, ports and ids come from small ranges, so that hits, misses and
//! inconsistent rows all occur often.

mod fixture;

use beeline_datapath::{Config, Program};
use beeline_harness::test_seed;
use beeline_model::bucket::TokenBuckets;
use beeline_model::event::Action;
use beeline_model::op::{Maps, Op};
use beeline_model::policy::Limit;
use beeline_model::resolve::{Dial, resolve_with};
use beeline_model::row::*;
use beeline_model::rules::NoLocalEndpointAction;
use beeline_model::{Address, Family, Protocol};
use fixture::Fixture;

struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0.u32(..end)
    }

    fn bool(&mut self) -> bool {
        self.0.bool()
    }

    fn address(&mut self) -> Address {
        let all = [
            "10.96.0.1",
            "10.96.0.2",
            "10.97.1.1",
            "172.31.0.11",
            "172.31.0.12",
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "fd00:96::1",
            "fd00:96::2",
            "fd00:31::11",
            "::1",
            "::",
            "192.0.2.7",
        ];
        let text = all[self.below(all.len() as u32) as usize];
        Address::from(text.parse::<std::net::IpAddr>().unwrap())
    }

    fn protocol(&mut self) -> Protocol {
        if self.bool() { Protocol::Tcp } else { Protocol::Udp }
    }

    fn port(&mut self) -> u16 {
        [53, 80, 30080, 65535][self.below(4) as usize]
    }
}

fn random_rows(random: &mut Random) -> Rows {
    let mut rows = Rows::default();
    for id in 1..20 {
        let state = BackendState { generation: random.below(3), roles: random.below(8) as u8 };
        let (address, port) = (random.address(), 1 + random.below(1000) as u16);
        if state.roles != 0 {
            rows.backends
                .insert(id, BackendRow { address, port, node: random.below(2), owner: 1 + random.below(3), state });
        }
    }
    rows.slots = vec![0; 13 * 16];
    for id in SET_FIRST..12 {
        let mut set = random_set(random);
        fill(&mut set, id, &mut rows, random);
        rows.sets.insert(id, set);
    }
    for _ in 0..12 {
        let (address, port, protocol) = (random.address(), random.port(), random.protocol());
        let key = if random.below(5) == 0 {
            FrontendKey::all_ports(address)
        } else {
            FrontendKey::new(address, port, protocol)
        };
        let kind = FrontendKind::ALL[random.below(FrontendKind::ALL.len() as u32) as usize];
        rows.frontends.insert(key, FrontendRow { set: 1 + random.below(11), kind });
        if let Some(protocol) = key.protocol {
            let bits = PortBits { frontend: random.below(8) != 0, node_port: random.below(3) != 0 };
            rows.ports.insert((protocol, port), bits);
        }
    }
    for _ in 0..3 {
        let row = NodeRow { cluster: 0, own: random.bool(), loopback: random.bool(), exact_loopback: random.bool() };
        rows.nodes.insert(random.address(), row);
    }
    // Some of these cover IPv4-mapped addresses, but no IPv4 address.
    let nets = ["192.0.2.0/24", "10.0.0.0/8", "fd00::/16", "::/1", "::/80", "::ffff:0:0/96", "::ffff:a00:0/104"];
    for owner in 1..4 {
        for _ in 0..random.below(3) {
            rows.sources.insert((owner, nets[random.below(nets.len() as u32) as usize].parse().unwrap()));
        }
    }
    // A policy without a bucket has no limit, even if its sets are flagged as limited.
    for policy in 1..4 {
        let limit = Limit { connects_per_second: random.below(3), burst: 1 + random.below(4) };
        if random.below(4) != 0 {
            rows.buckets.insert(policy, limit);
        }
    }
    for _ in 0..random.below(6) {
        rows.selected.insert((1 + random.below(3), 1 + u64::from(random.below(5))));
    }
    for text in ["10.96.0.1", "fd00:96::1"] {
        let address = Address::from(text.parse::<std::net::IpAddr>().unwrap());
        let words = if address.family() == Family::V4 { &mut rows.ranges_v4 } else { &mut rows.ranges_v6 };
        if random.below(4) != 0 {
            for (i, word) in beeline_model::range::cover(words, address) {
                words[i] = word;
            }
        }
    }
    rows
}

/// Adds backends to a set: like complete tables, only backends that are in use and belong to the set.
fn fill(set: &mut SetRow, id: SetId, rows: &mut Rows, random: &mut Random) {
    let is_member = |b: &BackendRow| {
        b.owner == set.owner && b.state.roles & set.role as u8 != 0 && (set.role != Role::Node || b.node == set.node)
    };
    let members: Vec<BackendId> = rows.backends.iter().filter(|(_, b)| is_member(b)).map(|(id, _)| id).collect();
    if members.is_empty() {
        return;
    }
    let inline = random.bool();
    let count = random.below(if inline { 9 } else { 17 });
    for i in 0..count {
        let member = members[random.below(members.len() as u32) as usize];
        if inline { set.inline[i as usize] = member } else { rows.slots[(id * 16 + i) as usize] = member }
    }
    let base = if inline { Base::Inline } else { Base::Range(id * 16) };
    set.span = SlotSpan { base, count: count as u16, generation: 1 };
}

fn random_set(random: &mut Random) -> SetRow {
    SetRow {
        span: SlotSpan { base: Base::Inline, count: 0, generation: 1 },
        owner: 1 + random.below(3),
        family: Family::V4,
        role: [Role::Cluster, Role::Local, Role::Node][random.below(3) as usize],
        node: random.below(2),
        rule: Rule::Service,
        header: SetHeader {
            next: if random.below(3) == 0 { SET_FIRST + random.below(10) } else { SET_NONE },
            affinity: 0,
            policy: random.below(4),
            limited: random.bool(),
            self_next: random.bool(),
            when_empty: if random.bool() { WhenEmpty::Refuse } else { WhenEmpty::Fail },
            restricted: random.below(4) == 0,
            own_node: random.below(4) == 0,
        },
        inline: std::array::from_fn(|_| random.below(20)),
    }
}

/// A dial to a random address, or to one of the frontends.
fn random_dial(random: &mut Random, keys: &[FrontendKey]) -> Dial {
    let mut dial = Dial::to(random.address(), random.port(), random.protocol());
    if let Some(key) = keys.get(random.below(2 * keys.len() as u32 + 1) as usize) {
        dial = Dial::to(key.address, key.port, key.protocol.unwrap_or(dial.protocol));
    }
    dial.host = random.bool();
    dial.source = random.bool().then(|| random.address());
    dial.cgroups = (0..random.below(5)).map(|_| u64::from(random.below(12))).collect();
    dial.prefer = (random.below(3) == 0).then(|| (1 + random.below(19), random.below(3)));
    dial
}

fn ops(rows: &Rows) -> Vec<Op> {
    let mut ops: Vec<Op> = rows.backends.iter().map(|(id, row)| Op::Backend(id, *row)).collect();
    ops.extend((1..4).map(Op::FillBucket));
    ops.extend(rows.buckets.iter().map(|(policy, limit)| Op::Bucket(*policy, Some(*limit))));
    ops.extend(rows.selected.iter().map(|(policy, cgroup)| Op::Member(*policy, *cgroup, true)));
    ops.push(Op::Slots(0, rows.slots.clone().into()));
    ops.extend(rows.sets.iter().map(|(id, row)| Op::Set(id, Box::new(*row))));
    ops.extend(rows.sources.iter().map(|(owner, net)| Op::Source(*owner, *net, true)));
    ops.extend(rows.ports.iter().map(|((protocol, port), bits)| Op::Port(*protocol, *port, *bits)));
    ops.extend(rows.ranges_v4.iter().enumerate().map(|(i, w)| Op::Range(Family::V4, i, *w)));
    ops.extend(rows.ranges_v6.iter().enumerate().map(|(i, w)| Op::Range(Family::V6, i, *w)));
    ops.extend(rows.nodes.iter().map(|(at, row)| Op::Node(*at, Some(*row))));
    ops.extend(rows.frontends.iter().map(|(key, row)| Op::Frontend(*key, Some(*row))));
    ops
}

fn undo_ops(rows: &Rows) -> Vec<Op> {
    let mut ops: Vec<Op> = rows.frontends.keys().map(|key| Op::Frontend(*key, None)).collect();
    ops.extend(rows.nodes.keys().map(|at| Op::Node(*at, None)));
    ops.extend(rows.ports.keys().map(|(protocol, port)| Op::Port(*protocol, *port, PortBits::default())));
    ops.extend(rows.sources.iter().map(|(owner, net)| Op::Source(*owner, *net, false)));
    ops.extend(rows.buckets.keys().map(|policy| Op::Bucket(*policy, None)));
    ops.extend(rows.selected.iter().map(|(policy, cgroup)| Op::Member(*policy, *cgroup, false)));
    let empty = BackendRow {
        address: Address::ANY_V6,
        port: 0,
        node: 0,
        owner: 0,
        state: BackendState { generation: 0, roles: 0 },
    };
    ops.extend(rows.backends.ids().map(|id| Op::Backend(id, empty)));
    ops
}

#[test]
fn bpf_programs_and_model_agree() {
    let fixture = Fixture::new();
    // Zero is the one state that a xorshift generator does not leave.
    let seed = test_seed(1);
    let (mut compared, mut resolved, mut refused, mut limited, mut below) = (0u32, 0u32, 0u32, 0u32, 0u32);
    for (mode, no_local_endpoint_action) in
        [NoLocalEndpointAction::Refuse, NoLocalEndpointAction::Drop].into_iter().enumerate()
    {
        let program = Program::open(Config { no_local_endpoint_action, ..fixture.config() }).unwrap();
        let (mut kernel, resolver) = (program.kernel().unwrap(), program.test_resolver().unwrap());
        let mut random = Random(fastrand::Rng::with_seed(seed.wrapping_add(mode as u64)));
        for round in 0..500 {
            let rows = random_rows(&mut random);
            assert_eq!(kernel.write_all(&ops(&rows)).1, None);
            let dump = kernel.rows().unwrap();
            assert_eq!(dump.sources, rows.sources, "round {round}");
            assert_eq!((dump.selected, dump.buckets), (rows.selected.clone(), rows.buckets.clone()), "round {round}");
            let mut keys: Vec<FrontendKey> = rows.frontends.keys().filter(|k| k.protocol.is_some()).copied().collect();
            keys.sort();
            let (mut buckets, mut now) = (TokenBuckets::default(), 1);
            for _ in 0..50 {
                let mut dial = random_dial(&mut random, &keys);
                // The clocks of different CPUs differ, so the time is not strictly increasing.
                now += u64::from(random.below(400_000_000));
                dial.now = now.saturating_sub(u64::from(random.below(100_000_000))).max(1);
                let expected = resolve_with(&rows, &dial, no_local_endpoint_action, &mut buckets);
                let verdict = resolver.resolve(&dial, random.below(u32::MAX), 1, dial.now).unwrap();
                let owner = expected.limited.map_or(0, |set| rows.sets[set].owner);
                assert_eq!(verdict.limited, owner, "round {round} {dial:?}\n{expected:?}\n{verdict:?}");
                limited += u32::from(owner != 0);
                below += u32::from(expected.path.len() > 1 && !dial.cgroups.is_empty());
                let decision = (verdict.action, verdict.reason);
                assert_eq!(
                    decision,
                    (expected.action, expected.reason),
                    "round {round} {dial:?}\n{expected:?}\n{verdict:?}"
                );
                if verdict.action == Action::Resolved {
                    assert!(
                        expected.backends.contains(&verdict.backend),
                        "round {round} {dial:?}\n{expected:?}\n{verdict:?}"
                    );
                    resolved += 1;
                }
                refused += u32::from(verdict.action == Action::Refused);
                compared += 1;
            }
            assert_eq!(kernel.write_all(&undo_ops(&rows)).1, None);
        }
        drop(program);
    }
    println!(
        "{compared} dials compared: {resolved} resolved, {refused} refused, {limited} over a limit, {below} resolved below the first set"
    );
    assert!(
        limited > 500 && below > 500,
        "too few dials for policies: {limited} over a limit, {below} below the first set"
    );
    assert!(resolved > 1000 && refused > 1000, "too few dials for the tables: {resolved} resolved, {refused} refused");
}
