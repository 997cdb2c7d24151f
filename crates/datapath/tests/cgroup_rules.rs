//! Changes the rules of cgroups while dials look them up. A lookup must find the rule of its own cgroup before, during and
//! after each change: with another cgroup's rule, a process would dial in another cluster's view or be excluded. As a
//! control, the same changes with plain lookups must find rules of other cgroups.

mod fixture;

use beeline_datapath::control::{CgroupRule, Control};
use beeline_datapath::test_resolver::RuleLookups;
use beeline_datapath::{Program, TestResolver};
use fixture::Fixture;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Cgroups whose rules stay. Their lookups are checked.
const STEADY: Range<u64> = 1000..1032;
/// Cgroups whose rules are added and removed, so that the kernel recycles their elements.
const FLAPPING: Range<u64> = 2000..2064;
const LOOKUPS: u64 = 20_000_000;

fn rule(id: u64) -> CgroupRule {
    CgroupRule { excluded: false, view: id as u32 }
}

/// Replaces the rules of steady cgroups by `changed` and back, and adds and removes those of the others.
fn flap(control: &Control, stop: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        for (flapping, steady) in FLAPPING.zip(STEADY.cycle()) {
            control.write_rule(flapping, rule(flapping)).unwrap();
            // Removing and writing a steady rule would make its lookups miss; replacing it must not.
            control.replace_rule(steady, rule(steady)).unwrap();
            control.remove_rules([flapping].into_iter());
        }
        rounds += 1;
    }
    rounds
}

/// Looks up rules until `wanted` lookups were made or, with `until_wrong`, one found another cgroup's rule or none.
fn look_up(resolver: &TestResolver, wanted: u64, until_wrong: bool) -> RuleLookups {
    let mut sum = RuleLookups::default();
    let end = Instant::now() + Duration::from_secs(120);
    while sum.found < wanted && !(until_wrong && sum.wrong > 0) && Instant::now() < end {
        let counts = resolver.look_up_rules(STEADY, 100_000, until_wrong).unwrap();
        sum.found += counts.found;
        sum.missed += counts.missed;
        sum.wrong += counts.wrong;
    }
    sum
}

fn run(wanted: u64, until_wrong: bool) -> RuleLookups {
    let fixture = Fixture::new();
    let program = Program::open(fixture.config()).unwrap();
    let (control, resolver) = (program.control().unwrap(), program.test_resolver().unwrap());
    STEADY.for_each(|id| assert!(control.write_rule(id, rule(id)).unwrap()));
    let stop = AtomicBool::new(false);
    let (counts, rounds) = std::thread::scope(|scope| {
        let flapping = scope.spawn(|| flap(&control, &stop));
        let counts = look_up(&resolver, wanted, until_wrong);
        stop.store(true, Ordering::Relaxed);
        (counts, flapping.join().unwrap())
    });
    let RuleLookups { found, missed, wrong } = counts;
    println!("{rounds} rounds of changes: {wrong} wrong and {missed} missed of {} lookups", found + missed + wrong);
    assert!(rounds > 10, "only {rounds} rounds: too few to be meaningful");
    counts
}

#[test]
fn every_lookup_finds_the_rule_of_its_own_cgroup_while_rules_change() {
    let RuleLookups { found, missed, wrong } = run(LOOKUPS, false);
    assert!(found >= LOOKUPS, "only {found} lookups");
    assert_eq!((missed, wrong), (0, 0));
}

#[test]
fn plain_lookups_find_rules_of_other_cgroups_while_rules_change() {
    assert!(run(20 * LOOKUPS, true).wrong > 0, "no wrong rule was found, so the other test proves nothing");
}

#[test]
fn a_rule_that_does_not_change_is_not_written_again() {
    let fixture = Fixture::new();
    let program = Program::open(fixture.config()).unwrap();
    let control = program.control().unwrap();
    assert!(control.write_rule(1000, rule(1000)).unwrap(), "a new rule is written");
    assert!(!control.write_rule(1000, rule(1000)).unwrap(), "an equal rule is not");
    assert!(control.write_rule(1000, CgroupRule::EXCLUDED).unwrap());
    assert_eq!(control.rules()[&1000], CgroupRule::EXCLUDED);
}
