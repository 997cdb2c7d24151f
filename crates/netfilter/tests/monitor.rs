//! The monitor reports every change of the table by another program, and nothing else.

mod fixture;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use beeline_harness::{TestNetwork, wait_until};
use beeline_netfilter::{Ensured, TableChange, TableState};
use fixture::{monitor, nft, open};

const LIMIT: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_millis(200);

#[track_caller]
fn assert_changed_by(change: Option<TableChange>, name: &str) {
    match change {
        Some(TableChange::Changed { thread_id, command }) => {
            assert_eq!((command.as_str(), thread_id > 0), (name, true))
        }
        other => panic!("expected a change by {name}: {other:?}"),
    }
}

#[test]
fn a_flushed_ruleset_is_noticed_and_repaired() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let (mut monitor, mut table) = (monitor(node), open(node));
    table.ensure().unwrap();
    assert!(monitor.wait(LIMIT).unwrap().is_some(), "the table was created");
    nft(node, "flush ruleset");
    let started = Instant::now();
    assert_changed_by(monitor.wait(LIMIT).unwrap(), "nft");
    assert_eq!(table.ensure().unwrap(), Ensured::Created);
    println!("noticed and restored {:?} after nft ended", started.elapsed());
    assert_eq!(table.check().unwrap(), TableState::Complete);
}

#[test]
fn every_kind_of_change_is_noticed() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let (mut monitor, mut table) = (monitor(node), open(node));
    table.ensure().unwrap();
    for command in [
        "flush chain inet beeline nat_prerouting",
        "add rule inet beeline reject_prerouting drop",
        "add chain inet beeline other",
        "add set inet beeline other { type ipv4_addr; }",
        "add table inet beeline { flags dormant; }",
        "delete table inet beeline",
    ] {
        while monitor.wait(QUIET).unwrap().is_some() {}
        nft(node, command);
        assert_changed_by(monitor.wait(LIMIT).unwrap(), "nft");
        assert_ne!(table.ensure().unwrap(), Ensured::Unchanged, "{command}");
    }
}

#[test]
fn changes_of_other_tables_are_not_reported() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let mut monitor = monitor(node);
    nft(
        node,
        "add table ip beeline; add chain ip beeline reject_prerouting; add table inet beeline2; add table inet other",
    );
    nft(node, "flush ruleset");
    assert_eq!(monitor.wait(QUIET).unwrap(), None);
}

#[test]
fn lost_notifications_count_as_a_change() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let mut monitor = monitor(node);
    let chains: String = (0..5000).map(|number| format!("add chain inet other chain{number}\n")).collect();
    nft(node, &format!("add table inet other\n{chains}"));
    assert_eq!(monitor.wait(LIMIT).unwrap(), Some(TableChange::Unknown));
    while monitor.wait(QUIET).unwrap().is_some() {}
    open(node).ensure().unwrap();
    assert!(monitor.wait(LIMIT).unwrap().is_some(), "later changes are reported again");
}

/// The way in which the agent uses both: one thread that waits and repairs.
#[test]
fn a_thread_that_waits_and_repairs_restores_the_table_after_each_flush() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let (mut monitor, mut table) = (monitor(node), open(node));
    table.ensure().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                monitor.wait(QUIET).unwrap().map(|_| table.ensure().unwrap());
            }
        });
        let mut reader = open(node);
        for _ in 0..20 {
            nft(node, "flush ruleset");
            wait_until("the table is restored", LIMIT, || reader.check().unwrap() == TableState::Complete);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
