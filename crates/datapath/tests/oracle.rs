//! Compares the decision of the BPF programs with `beeline_model::resolve` on random tables and dials: same action, same
//! reason, and a backend that the model allows.

mod fixture;

use beeline_datapath::{Config, Program};
use beeline_harness::test_seed;
use beeline_model::bucket::TokenBuckets;
use beeline_model::event::Action;
use beeline_model::op::Maps;
use beeline_model::resolve::{Dial, resolve_with};
use beeline_model::row::*;
use beeline_model::rules::NoLocalEndpointAction;
use fixture::Fixture;
use fixture::random_rows::{Random, ops, random_rows, undo_ops};

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
