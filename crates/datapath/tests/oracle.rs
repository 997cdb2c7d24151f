//! The C decision against its Rust twin, on random tables and dials: same action, same reason, and a backend that the
//! twin allows. Small spaces of addresses, ports and ids, so that hits, misses and damage all happen often.

mod ground;

use beeline_datapath::{Config, Program};
use beeline_model::bucket::Buckets;
use beeline_model::event::Action;
use beeline_model::op::{Maps, Op};
use beeline_model::policy::Limit;
use beeline_model::resolve::{Dial, resolve_with};
use beeline_model::row::*;
use beeline_model::rules::EmptyLocal;
use beeline_model::{Address, Family, Protocol};
use ground::Ground;

/// A small generator of our own: the test needs nothing but repeatable numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) % u64::from(sides)) as u32
    }

    fn coin(&mut self) -> bool {
        self.roll(2) == 0
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
        let text = all[self.roll(all.len() as u32) as usize];
        Address::from(text.parse::<std::net::IpAddr>().unwrap())
    }

    fn protocol(&mut self) -> Protocol {
        if self.coin() { Protocol::Tcp } else { Protocol::Udp }
    }

    fn port(&mut self) -> u16 {
        [53, 80, 30080, 65535][self.roll(4) as usize]
    }
}

fn random_rows(dice: &mut Dice) -> Rows {
    let mut rows = Rows::default();
    for id in 1..20 {
        let state = State { generation: dice.roll(3), roles: dice.roll(8) as u8 };
        let (address, port) = (dice.address(), 1 + dice.roll(1000) as u16);
        if state.roles != 0 {
            rows.backends.insert(id, BackendRow { address, port, node: dice.roll(2), owner: 1 + dice.roll(3), state });
        }
    }
    rows.slots = vec![0; 13 * 16];
    for id in SET_FIRST..12 {
        let mut set = random_set(dice);
        fill(&mut set, id, &mut rows, dice);
        rows.sets.insert(id, set);
    }
    for _ in 0..12 {
        let (address, port, protocol) = (dice.address(), dice.port(), dice.protocol());
        let key =
            if dice.roll(5) == 0 { FrontendKey::known(address) } else { FrontendKey::new(address, port, protocol) };
        let kind = [Kind::ClusterIp, Kind::NodePort, Kind::LoadBalancer, Kind::ExternalIp][dice.roll(4) as usize];
        rows.frontends.insert(key, FrontendRow { set: 1 + dice.roll(11), kind });
        if let Some(protocol) = key.protocol {
            let bits = PortBits { frontend: dice.roll(8) != 0, node_port: dice.roll(3) != 0 };
            rows.ports.insert((protocol, port), bits);
        }
    }
    for _ in 0..3 {
        let row = NodeRow { cluster: 0, own: dice.coin(), loopback: dice.coin(), alone: dice.coin() };
        rows.nodes.insert(dice.address(), row);
    }
    // Some cover the form in which IPv4 addresses are kept, and no IPv4 address.
    let nets = ["192.0.2.0/24", "10.0.0.0/8", "fd00::/16", "::/1", "::/80", "::ffff:0:0/96", "::ffff:a00:0/104"];
    for owner in 1..4 {
        for _ in 0..dice.roll(3) {
            rows.sources.insert((owner, nets[dice.roll(nets.len() as u32) as usize].parse().unwrap()));
        }
    }
    // A policy without a bucket has no limit, whatever its sets say.
    for policy in 1..4 {
        let limit = Limit { connects_per_second: dice.roll(3), burst: 1 + dice.roll(4) };
        if dice.roll(4) != 0 {
            rows.buckets.insert(policy, limit);
        }
    }
    for _ in 0..dice.roll(6) {
        rows.selected.insert((1 + dice.roll(3), 1 + u64::from(dice.roll(5))));
    }
    for text in ["10.96.0.1", "fd00:96::1"] {
        let address = Address::from(text.parse::<std::net::IpAddr>().unwrap());
        let words = if address.family() == Family::V4 { &mut rows.ranges_v4 } else { &mut rows.ranges_v6 };
        if dice.roll(4) != 0 {
            for (i, word) in beeline_model::range::cover(words, address) {
                words[i] = word;
            }
        }
    }
    rows
}

/// Settled tables hold only members that are in use.
fn fill(set: &mut SetRow, id: SetId, rows: &mut Rows, dice: &mut Dice) {
    let is_member = |b: &BackendRow| {
        b.owner == set.owner && b.state.roles & set.role as u8 != 0 && (set.role != Role::Node || b.node == set.node)
    };
    let members: Vec<BackendId> = rows.backends.iter().filter(|(_, b)| is_member(b)).map(|(id, _)| id).collect();
    if members.is_empty() {
        return;
    }
    let inline = dice.coin();
    let count = dice.roll(if inline { 9 } else { 17 });
    for i in 0..count {
        let member = members[dice.roll(members.len() as u32) as usize];
        if inline { set.inline[i as usize] = member } else { rows.slots[(id * 16 + i) as usize] = member }
    }
    let base = if inline { Base::Inline } else { Base::Range(id * 16) };
    set.span = Span { base, count: count as u16, generation: 1 };
}

fn random_set(dice: &mut Dice) -> SetRow {
    SetRow {
        span: Span { base: Base::Inline, count: 0, generation: 1 },
        owner: 1 + dice.roll(3),
        family: Family::V4,
        role: [Role::Cluster, Role::Local, Role::Node][dice.roll(3) as usize],
        node: dice.roll(2),
        rule: Rule::Service,
        header: Header {
            next: if dice.roll(3) == 0 { SET_FIRST + dice.roll(10) } else { SET_NONE },
            affinity: 0,
            policy: dice.roll(4),
            limited: dice.coin(),
            self_next: dice.coin(),
            when_empty: if dice.coin() { WhenEmpty::Refuse } else { WhenEmpty::Fail },
            restricted: dice.roll(4) == 0,
            own_node: dice.roll(4) == 0,
        },
        inline: std::array::from_fn(|_| dice.roll(20)),
    }
}

/// Of anything, or of something that there is.
fn random_dial(dice: &mut Dice, keys: &[FrontendKey]) -> Dial {
    let mut dial = Dial::to(dice.address(), dice.port(), dice.protocol());
    if let Some(key) = keys.get(dice.roll(2 * keys.len() as u32 + 1) as usize) {
        dial = Dial::to(key.address, key.port, key.protocol.unwrap_or(dial.protocol));
    }
    dial.host = dice.coin();
    dial.source = dice.coin().then(|| dice.address());
    dial.cgroups = (0..dice.roll(5)).map(|_| u64::from(dice.roll(12))).collect();
    dial.prefer = (dice.roll(3) == 0).then(|| (1 + dice.roll(19), dice.roll(3)));
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

fn undo(rows: &Rows) -> Vec<Op> {
    let mut ops: Vec<Op> = rows.frontends.keys().map(|key| Op::Frontend(*key, None)).collect();
    ops.extend(rows.nodes.keys().map(|at| Op::Node(*at, None)));
    ops.extend(rows.ports.keys().map(|(protocol, port)| Op::Port(*protocol, *port, PortBits::default())));
    ops.extend(rows.sources.iter().map(|(owner, net)| Op::Source(*owner, *net, false)));
    ops.extend(rows.buckets.keys().map(|policy| Op::Bucket(*policy, None)));
    ops.extend(rows.selected.iter().map(|(policy, cgroup)| Op::Member(*policy, *cgroup, false)));
    let empty =
        BackendRow { address: Address::ANY_V6, port: 0, node: 0, owner: 0, state: State { generation: 0, roles: 0 } };
    ops.extend(rows.backends.ids().map(|id| Op::Backend(id, empty)));
    ops
}

#[test]
fn kernel_and_twin_agree() {
    let ground = Ground::new();
    let (mut compared, mut resolved, mut refused, mut limited, mut own) = (0u32, 0u32, 0u32, 0u32, 0u32);
    for (mode, empty_local) in [EmptyLocal::Refuse, EmptyLocal::Drop].into_iter().enumerate() {
        let program = Program::open(Config { empty_local, ..ground.config() }).unwrap();
        let (mut kernel, door) = (program.kernel().unwrap(), program.door().unwrap());
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 + mode as u64);
        for round in 0..500 {
            let rows = random_rows(&mut dice);
            assert_eq!(kernel.write_all(&ops(&rows)).1, None);
            let dump = kernel.rows().unwrap();
            assert_eq!(dump.sources, rows.sources, "round {round}");
            assert_eq!((dump.selected, dump.buckets), (rows.selected.clone(), rows.buckets.clone()), "round {round}");
            let mut keys: Vec<FrontendKey> = rows.frontends.keys().filter(|k| k.protocol.is_some()).copied().collect();
            keys.sort();
            let (mut buckets, mut now) = (Buckets::default(), 1);
            for _ in 0..50 {
                let mut dial = random_dial(&mut dice, &keys);
                // Clocks of different processors: mostly forward.
                now += u64::from(dice.roll(400_000_000));
                dial.now = now.saturating_sub(u64::from(dice.roll(100_000_000))).max(1);
                let twin = resolve_with(&rows, &dial, empty_local, &mut buckets);
                let answer = door.ask(&dial, dice.roll(u32::MAX), 1, dial.now).unwrap();
                let owner = twin.limited.map_or(0, |set| rows.sets[set].owner);
                assert_eq!(answer.limited, owner, "round {round} {dial:?}\n{twin:?}\n{answer:?}");
                limited += u32::from(owner != 0);
                own += u32::from(twin.path.len() > 1 && !dial.cgroups.is_empty());
                let said = (answer.action, answer.reason);
                assert_eq!(said, (twin.action, twin.reason), "round {round} {dial:?}\n{twin:?}\n{answer:?}");
                if answer.action == Action::Resolved {
                    assert!(twin.backends.contains(&answer.backend), "round {round} {dial:?}\n{twin:?}\n{answer:?}");
                    resolved += 1;
                }
                refused += u32::from(answer.action == Action::Refused);
                compared += 1;
            }
            assert_eq!(kernel.write_all(&undo(&rows)).1, None);
        }
        drop(program);
    }
    println!(
        "{compared} dials compared: {resolved} resolved, {refused} refused, {limited} over a limit, {own} further down alike"
    );
    assert!(limited > 500 && own > 500, "the policies were too tame: {limited} over a limit, {own} further down");
    assert!(resolved > 1000 && refused > 1000, "the tables were too tame: {resolved} resolved, {refused} refused");
}
