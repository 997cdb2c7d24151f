//! The tables under random changes, failing writes and restarts, and with too little capacity. They are compared with
//! `Tables::audit`, with the maps that they mirror, and with tables that were built from the same objects at once.

#[allow(dead_code)]
mod support;

use beeline_model::change::{Change, ObjectKey};
use beeline_model::diff::{ReconcileOutcome, reconcile};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::op::{FaultyMaps, Maps, MemoryMaps};
use beeline_model::planner::{Delta, Planner};
use beeline_model::resolve::Dial;
use beeline_model::row::{Rows, Sizes};
use beeline_model::table::Tables;
use support::dial_result::DialResult;
use support::observed_maps::failing_with_odd_seeds;
use support::random_cluster::{Objects, RandomCluster, dials};
use support::seed::seeds;

fn sizes() -> Sizes {
    Sizes {
        frontends: 400,
        sets: 200,
        slots: 2000,
        backends: 2000,
        nodes: 32,
        sources: 64,
        names: 100,
        members: 64,
        affinity: 16,
    }
}

/// One agent: its planner and tables, and the maps that outlive it.
struct TestAgent {
    cluster: RandomCluster,
    planner: Planner,
    tables: Tables,
    memory: MemoryMaps,
}

impl TestAgent {
    fn new(seed: u64, sizes: Sizes) -> TestAgent {
        let cluster = RandomCluster::new(seed);
        let mut planner = Planner::new(cluster.rules.clone());
        cluster.objects.apply_all(LOCAL_CLUSTER, &mut planner);
        TestAgent { cluster, planner, tables: Tables::new(sizes), memory: MemoryMaps::new(sizes) }
    }

    fn change(&mut self) {
        for _ in 0..self.cluster.rng.usize(1..4) {
            self.change_one();
        }
    }

    fn change_one(&mut self) {
        self.cluster.step(&mut self.planner);
    }

    /// A new agent takes over the rows in the maps.
    fn restart(&mut self) {
        self.tables = Tables::restore(self.memory.dump().unwrap(), self.memory.sizes);
        self.planner = Planner::new(self.cluster.rules.clone());
        self.cluster.objects.apply_all(LOCAL_CLUSTER, &mut self.planner);
    }

    /// One round on maps on which one write in `one_in` fails. 0 means that no write fails.
    fn round(&mut self, full: bool, one_in: u32) -> ReconcileOutcome {
        let delta = if full { self.planner.take_full_delta() } else { self.planner.take_delta() };
        let mut coin = fastrand::Rng::with_seed(self.cluster.rng.u64(..));
        let memory = std::mem::replace(&mut self.memory, MemoryMaps::new(sizes()));
        let mut maps = FaultyMaps::new(memory, move |_| one_in > 0 && coin.u32(..one_in) == 0);
        let outcome = reconcile(&mut self.tables, &mut maps, &delta, full);
        self.memory = maps.inner;
        self.planner.retry(&outcome);
        self.check(&format!("{outcome:?}"));
        outcome
    }

    /// These invariants hold at any time, also after failures.
    fn check(&self, context: &str) {
        if let Err(problem) = self.tables.audit(self.memory.sizes) {
            panic!("{problem}\nafter {context}");
        }
        same_rows(self.tables.rows(), &self.memory.rows);
    }

    fn reconcile_until_clean(&mut self, full: bool) {
        let mut outcome = self.round(full, 0);
        for _ in 0..3 {
            if outcome.is_clean() {
                return;
            }
            outcome = self.round(false, 0);
        }
        panic!("still not clean: {outcome:?}");
    }

    /// Compares with tables that were built from the current objects at once.
    fn compare(&self, dials: &[Dial]) {
        let fresh = programmed(&self.cluster.objects, &self.cluster);
        for dial in dials {
            let no_local_endpoint_action = self.cluster.rules.no_local_endpoint_action;
            let (got, wanted) = (
                DialResult::of(&self.memory.rows, dial, no_local_endpoint_action),
                DialResult::of(&fresh, dial, no_local_endpoint_action),
            );
            assert_eq!(got, wanted, "{dial:?}\n{:#?}", self.cluster.objects);
        }
    }
}

fn programmed(objects: &Objects, cluster: &RandomCluster) -> Rows {
    let mut planner = Planner::new(cluster.rules.clone());
    objects.apply_all(LOCAL_CLUSTER, &mut planner);
    let (mut tables, mut memory) = (Tables::new(sizes()), MemoryMaps::new(sizes()));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), true).is_clean());
    memory.rows
}

/// The maps also contain old rows that BPF arrays keep: unreachable sets and unused slots. The mirror may contain a set
/// that nothing leads to yet, for a write that failed.
fn same_rows(mirror: &Rows, map: &Rows) {
    let mut live = map.clone();
    let reachable = live.reachable_sets();
    live.sets.retain(|id, _| reachable.contains(&id) || mirror.sets.get(id).is_some());
    live.slots.clone_from(&mirror.slots);
    assert_eq!(&live, mirror);
    for set in mirror.sets.values() {
        assert_eq!(mirror.members(set), map.members(set));
    }
}

#[test]
fn the_mirror_equals_the_maps_after_changes_failures_and_restarts() {
    let dials = dials();
    let mut ops = 0;
    for seed in seeds(0..150) {
        let mut agent = TestAgent::new(seed, sizes());
        let one_in = [0, 10, 4][seed as usize % 3];
        for step in 0..40 {
            agent.change();
            let restarts = agent.cluster.rng.u8(..12) == 0;
            if restarts {
                agent.restart();
            }
            let full = restarts || agent.cluster.rng.u8(..12) == 0;
            ops += agent.round(full, one_in).ops;
            if agent.cluster.rng.u8(..5) == 0 {
                agent.tables.recycle(&mut agent.memory).unwrap();
            }
            if step % 4 == 3 {
                agent.reconcile_until_clean(false);
                agent.compare(&dials);
            }
        }
        let outcome = agent.round(true, 0);
        assert_eq!((outcome.ops, outcome.is_clean()), (0, true), "no changes, so no writes: {outcome:?}");
    }
    println!("{ops} writes");
}

#[test]
fn a_restart_without_changes_writes_nothing() {
    for seed in seeds(1000..1100) {
        let mut agent = TestAgent::new(seed, sizes());
        for _ in 0..20 {
            agent.change();
            agent.reconcile_until_clean(false);
        }
        agent.restart();
        agent.check("restore");
        assert_eq!(agent.round(true, 0).ops, 0);
    }
}

#[test]
fn deleting_everything_leaves_no_row_and_frees_every_id() {
    for seed in seeds(2000..2100) {
        let mut agent = TestAgent::new(seed, sizes());
        let one_in = [0, 6][seed as usize % 2];
        for _ in 0..20 {
            agent.change();
            agent.round(false, one_in);
        }
        for change in agent.cluster.objects.upserts(LOCAL_CLUSTER) {
            agent.planner.apply(Change::Delete(change.key()));
        }
        agent.planner.set_own_addresses(Vec::new());
        agent.round(false, one_in);
        agent.reconcile_until_clean(false);
        let rows = agent.tables.rows();
        let (ranges_v4, ranges_v6, slots) = (rows.ranges_v4, rows.ranges_v6, rows.slots.clone());
        let loopback = rows.nodes.clone().into_iter().filter(|(_, node)| node.loopback).collect();
        assert_eq!(*rows, Rows { ranges_v4, ranges_v6, slots, nodes: loopback, ..Rows::default() });
        agent.tables.recycle(&mut agent.memory).unwrap();
        assert_eq!(agent.tables.quarantined(), 0);
        agent.check("the end");
    }
}

#[test]
fn between_two_writes_a_dial_gets_the_old_or_the_new_result() {
    let dials = dials();
    let mut checked = 0;
    for seed in seeds(3000..3150) {
        let mut agent = TestAgent::new(seed, sizes());
        let mut old = agent.memory.rows.clone();
        for _ in 0..25 {
            agent.change_one();
            checked += watch_step(&mut agent, &dials, &old, seed);
            old = agent.memory.rows.clone();
        }
    }
    println!("{checked} dials between writes");
}

/// Reconciles until the step is done, with failures on odd seeds, and checks the dials after every write.
fn watch_step(agent: &mut TestAgent, dials: &[Dial], old: &Rows, seed: u64) -> usize {
    let no_local_endpoint_action = agent.cluster.rules.no_local_endpoint_action;
    let new = programmed(&agent.cluster.objects, &agent.cluster);
    let both = |dial: &Dial| {
        (DialResult::of(old, dial, no_local_endpoint_action), DialResult::of(&new, dial, no_local_endpoint_action))
    };
    let mut watched: Vec<(&Dial, (DialResult, DialResult))> = dials.iter().map(|dial| (dial, both(dial))).collect();
    watched.retain(|(_, (old, new))| old != new || agent.cluster.rng.u8(..20) == 0);
    let mut checked = 0;
    for round in 0.. {
        // As in the agent, rounds with other changes come between a failure and its retry.
        let idle = round % 2 == 1;
        let delta = if idle { Delta::default() } else { agent.planner.take_delta() };
        let observe = |rows: &Rows, op: &beeline_model::op::Op| {
            for (dial, (old, new)) in &watched {
                let now = DialResult::of(rows, dial, no_local_endpoint_action);
                let objects = &agent.cluster.objects;
                assert!(
                    now.is_between(old, new),
                    "{dial:?}\nold {old:?}\nnew {new:?}\nnow {now:?}\nafter {op:?}\n{objects:?}"
                );
                checked += 1;
            }
        };
        let mut maps = failing_with_odd_seeds(&mut agent.memory, Box::new(observe), seed, round);
        let outcome = reconcile(&mut agent.tables, &mut maps, &delta, false);
        drop(maps);
        agent.planner.retry(&outcome);
        if outcome.is_clean() && !agent.planner.is_dirty() {
            break;
        }
    }
    for (dial, (_, new)) in &watched {
        assert_eq!(&DialResult::of(&agent.memory.rows, dial, no_local_endpoint_action), new, "{dial:?}");
    }
    checked
}

/// Services that do not fit are refused with a reason, existing ones keep serving, and deleted ones free their
/// capacity.
#[test]
fn full_tables_stay_consistent() {
    let tiny = Sizes {
        frontends: 12,
        sets: 8,
        slots: 24,
        backends: 14,
        nodes: 32,
        sources: 64,
        names: 12,
        members: 8,
        affinity: 16,
    };
    let mut full = 0;
    for seed in seeds(4000..4150) {
        let mut agent = TestAgent::new(seed, tiny);
        for _ in 0..40 {
            agent.change();
            let outcome = agent.round(false, [0, 8][seed as usize % 2]);
            full += usize::from(outcome.refusals().iter().any(|r| r.reason == "tableFull"));
        }
        for name in std::mem::take(&mut agent.cluster.objects.services).into_keys() {
            agent.planner.apply(Change::Delete(ObjectKey::Service(name)));
        }
        for name in std::mem::take(&mut agent.cluster.objects.policies).into_keys() {
            agent.planner.apply(Change::Delete(ObjectKey::Policy(name)));
        }
        agent.reconcile_until_clean(false);
        assert!(agent.tables.rows().frontends.is_empty());
    }
    assert!(full > 100, "only {full} rounds had a full table");
}
