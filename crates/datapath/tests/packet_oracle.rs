//! Compares the packet program with `beeline_model::resolve_packet` on random tables and packets, and shows that malformed
//! frames create nothing. The frames are test runs in a network namespace of their own.

mod fixture;

use beeline_datapath::Program;
use beeline_datapath::packet::{AttachOrder, PacketProgram, REJECT_MARK, TestRun};
use beeline_harness::test_seed;
use beeline_model::bucket::TokenBuckets;
use beeline_model::op::{Maps, Op};
use beeline_model::resolve::Dial;
use beeline_model::resolve_packet::{PacketAction, PacketOrigin, resolve_packet};
use beeline_model::row::*;
use beeline_model::{Address, Protocol};
use beeline_netfilter::Conntrack;
use beeline_netfilter::conntrack::IpProtocol;
use fixture::Fixture;
use fixture::frame::Frame;
use fixture::random_rows::{Random, ops, random_rows, undo_ops};
use std::net::{IpAddr, SocketAddr};

/// Runs a test on a thread with a network namespace of its own.
fn in_namespace(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the thread has no other thread's descriptors to unshare, only a network namespace.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
                .expect("this test needs root");
            test();
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn packet_program(program: &Program) -> PacketProgram {
    program.packet_program(AttachOrder::First, 1).unwrap()
}

/// The address and port that the flow's packets are sent to, by its conntrack entry.
fn backend_of(conntrack: &mut Conntrack, dial: &Dial, source: SocketAddr) -> Option<SocketAddr> {
    let found = conntrack.list(IpProtocol(dial.protocol.number()), |entry| entry.original.source == source).unwrap();
    assert!(found.len() <= 1, "{found:?}");
    found.first().map(|entry| entry.reply.source)
}

/// Random tables also have rows for packets from outside. Limits and members are compared by the test of the resolver.
fn random_packet_rows(random: &mut Random) -> Rows {
    let mut rows = random_rows(random);
    rows.buckets.clear();
    rows.selected.clear();
    let outside: Vec<(FrontendKey, FrontendRow)> = rows
        .frontends
        .iter()
        .filter(|(key, _)| key.protocol.is_some())
        .map(|(key, row)| (FrontendKey { scope: Scope::Outside, ..*key }, *row))
        .collect();
    for (key, row) in outside.into_iter().filter(|_| random.bool()).collect::<Vec<_>>() {
        rows.frontends.insert(key, FrontendRow { set: SET_FIRST + random.below(10), ..row });
    }
    rows
}

fn random_packet(random: &mut Random, keys: &[FrontendKey]) -> Dial {
    let mut dial = Dial::to(random.address(), random.port(), random.protocol());
    if let Some(key) = keys.get(random.below(2 * keys.len() as u32 + 1) as usize) {
        dial = Dial::to(key.address, key.port, key.protocol.unwrap_or(dial.protocol));
    }
    let source = std::iter::repeat_with(|| random.address()).find(|source| source.family() == dial.address.family());
    Dial { source, ..dial }
}

#[test]
fn packet_program_and_model_agree() {
    let fixture = Fixture::new();
    in_namespace(|| {
        let program = Program::open(fixture.config()).unwrap();
        let (mut kernel, packets) = (program.kernel().unwrap(), packet_program(&program));
        let mut conntrack = Conntrack::open().unwrap();
        let mut random = Random(fastrand::Rng::with_seed(test_seed(1)));
        let (mut counts, mut port) = ([0u32; 4], 1024u16);
        for round in 0..150 {
            let rows = random_packet_rows(&mut random);
            assert_eq!(kernel.write_all(&ops(&rows)).1, None);
            let mut keys: Vec<FrontendKey> = rows.frontends.keys().filter(|k| k.protocol.is_some()).copied().collect();
            keys.sort();
            for _ in 0..40 {
                let dial = random_packet(&mut random, &keys);
                let expected = resolve_packet(&rows, &dial, PacketOrigin::Outside, &mut TokenBuckets::default());
                let backend = |id: &BackendId| rows.backends.get(*id).map(|row| (row.address, row.port));
                let backends: Vec<(Address, u16)> = expected.verdict.backends.iter().filter_map(backend).collect();
                // Complete tables never lead to a backend of the other family.
                if backends.iter().any(|(address, _)| address.family() != dial.address.family()) {
                    continue;
                }
                port = if port == u16::MAX { 1024 } else { port + 1 };
                let source: IpAddr = dial.source.unwrap().ip();
                let frame = Frame::new(dial.protocol, (source, port), (dial.address.ip(), dial.port));
                let run = packets.test_run(&frame.bytes).unwrap();
                let found = backend_of(&mut conntrack, &dial, SocketAddr::new(source, port));
                let context = format!("round {round} {dial:?}\n{expected:?}\n{run:?} {found:?}");
                let (dropped, mark) = match expected.action {
                    PacketAction::Drop => (true, 0),
                    PacketAction::Reject => (false, REJECT_MARK),
                    PacketAction::Pass | PacketAction::Translate => (false, 0),
                };
                assert_eq!(run, TestRun { dropped, mark }, "{context}");
                let is_expected = |at: SocketAddr| backends.contains(&(at.ip().into(), at.port()));
                match expected.action {
                    PacketAction::Translate => assert!(found.is_some_and(is_expected), "{context}"),
                    _ => assert_eq!(found, None, "{context}"),
                }
                counts[expected.action as usize] += 1;
            }
            assert_eq!(kernel.write_all(&undo_ops(&rows)).1, None);
        }
        let [passed, translated, rejected, dropped] = counts;
        let all: u32 = counts.iter().sum();
        println!("{all} packets: {passed} passed, {translated} translated, {rejected} rejected, {dropped} dropped");
        assert!(counts.iter().all(|count| *count > 100), "too few packets of a kind: {counts:?}");
    });
}

/// One frontend per family and protocol, and a backend for each.
fn simple_rows() -> (Rows, Vec<(Protocol, IpAddr)>) {
    let (mut rows, mut frontends) = (Rows::default(), Vec::new());
    for (id, (protocol, text)) in [
        (Protocol::Tcp, "192.0.2.1"),
        (Protocol::Udp, "192.0.2.1"),
        (Protocol::Tcp, "2001:db8::1"),
        (Protocol::Udp, "2001:db8::1"),
    ]
    .into_iter()
    .enumerate()
    {
        let (id, ip) = (id as u32 + SET_FIRST, text.parse::<IpAddr>().unwrap());
        let family = Address::from(ip).family();
        let target: IpAddr = if ip.is_ipv4() { "10.244.1.2" } else { "fd00:244::2" }.parse().unwrap();
        let state = BackendState { generation: 1, roles: Role::Cluster as u8 };
        let udp = protocol == Protocol::Udp;
        rows.backends.insert(id, BackendRow { address: target.into(), port: 8080, node: 0, owner: id, udp, state });
        let span = SlotSpan { base: Base::Inline, count: 1, generation: 1 };
        let inline = std::array::from_fn(|i| if i == 0 { id } else { 0 });
        let header = SetHeader::default();
        let set = SetRow { span, owner: id, family, role: Role::Cluster, node: 0, rule: Rule::Service, header, inline };
        rows.sets.insert(id, set);
        let key = FrontendKey::new(ip.into(), 80, protocol);
        rows.frontends.insert(key, FrontendRow { set: id, kind: FrontendKind::LoadBalancer });
        rows.ports.insert((protocol, 80), PortBits { frontend: true, node_port: false });
        frontends.push((protocol, ip));
    }
    (rows, frontends)
}

fn write(kernel: &mut impl Maps, rows: &Rows) {
    let mut all: Vec<Op> = ops(rows);
    all.retain(|op| !matches!(op, Op::FillBucket(_)));
    assert_eq!(kernel.write_all(&all).1, None);
}

#[test]
fn malformed_frames_create_no_flow() {
    let is_long = std::env::var_os("BEELINE_LONG").is_some_and(|value| value == "1");
    let frames = if is_long { 1_200_000 } else { 150_000 };
    let fixture = Fixture::new();
    in_namespace(|| {
        let program = Program::open(fixture.config()).unwrap();
        let (mut kernel, packets) = (program.kernel().unwrap(), packet_program(&program));
        let counters = program.counters().unwrap();
        let (rows, frontends) = simple_rows();
        write(&mut kernel, &rows);
        let client =
            |to: IpAddr| if to.is_ipv4() { "198.51.100.9" } else { "2001:db8:9::9" }.parse::<IpAddr>().unwrap();
        let frame = |(protocol, to): (Protocol, IpAddr), port| Frame::new(protocol, (client(to), port), (to, 80));
        // The frames are served before they are malformed.
        for (i, frontend) in frontends.iter().enumerate() {
            packets.test_run(&frame(*frontend, 2000 + i as u16).bytes).unwrap();
        }
        assert_eq!(counters.stat("packet_flows"), frontends.len() as u64);
        let mut random = Random(fastrand::Rng::with_seed(test_seed(2)));
        let mut accepted = 0;
        for i in 0..frames {
            let frontend = frontends[random.below(frontends.len() as u32) as usize];
            let malformed = frame(frontend, 3000 + (i % 60_000) as u16).malformed(&mut random);
            // The kernel itself refuses frames without a whole Ethernet header.
            let Ok(run) = packets.test_run(&malformed.bytes) else { continue };
            assert_eq!(run, TestRun { dropped: false, mark: 0 }, "{malformed:?}");
            accepted += 1;
        }
        assert_eq!(counters.stat("packet_flows"), frontends.len() as u64);
        let entries = Conntrack::open().unwrap().usage().unwrap().entries;
        println!(
            "{accepted} of {frames} malformed frames ran; {entries} flows, all of them from the frames that are whole"
        );
        assert_eq!(entries as usize, frontends.len());
        assert!(accepted > frames / 2, "{accepted}");
    });
}
