//! The tables through random lives: changes, failing writes, restarts, tables that are too small. What they must be is
//! said by `Tables::audit`, by the map that they mirror, and by tables that were made from the same facts in one go.

#[allow(dead_code)]
mod support;

use beeline_model::diff::{Outcome, reconcile};
use beeline_model::op::{Faulty, Maps, Memory};
use beeline_model::planner::{Delta, Planner};
use beeline_model::resolve::Dial;
use beeline_model::row::{Rows, Sizes};
use beeline_model::table::Tables;
use support::answer::Answer;
use support::watched::Watched;
use support::world::{Facts, World, dials};

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

/// One agent: its planner, its tables, and the map that outlives it.
struct Life {
    world: World,
    planner: Planner,
    tables: Tables,
    memory: Memory,
}

impl Life {
    fn new(seed: u64, sizes: Sizes) -> Life {
        let world = World::new(seed);
        let mut planner = Planner::new(world.rules.clone());
        world.facts.tell(&mut planner);
        Life { world, planner, tables: Tables::new(sizes), memory: Memory::new(sizes) }
    }

    fn change(&mut self) {
        for _ in 0..self.world.rng.usize(1..4) {
            self.change_one();
        }
    }

    fn change_one(&mut self) {
        self.world.step(&mut self.planner);
    }

    /// Another agent takes over what the map holds.
    fn restart(&mut self) {
        self.tables = Tables::restore(self.memory.dump().unwrap(), self.memory.sizes);
        self.planner = Planner::new(self.world.rules.clone());
        self.world.facts.tell(&mut self.planner);
    }

    /// One round on a map on which one write in `one_in` fails (0: none).
    fn round(&mut self, full: bool, one_in: u32) -> Outcome {
        let delta = if full { self.planner.take_all() } else { self.planner.take() };
        let mut coin = fastrand::Rng::with_seed(self.world.rng.u64(..));
        let memory = std::mem::replace(&mut self.memory, Memory::new(sizes()));
        let mut maps = Faulty::new(memory, move |_| one_in > 0 && coin.u32(..one_in) == 0);
        let outcome = reconcile(&mut self.tables, &mut maps, &delta, full);
        self.memory = maps.inner;
        self.planner.retry(&outcome);
        self.check(&format!("{outcome:?}"));
        outcome
    }

    /// Holds at any time, also after failures.
    fn check(&self, context: &str) {
        if let Err(problem) = self.tables.audit(self.memory.sizes) {
            panic!("{problem}\nafter {context}");
        }
        same_rows(self.tables.rows(), &self.memory.rows);
    }

    fn settle(&mut self, full: bool) {
        let mut outcome = self.round(full, 0);
        for _ in 0..3 {
            if outcome.is_clean() {
                return;
            }
            outcome = self.round(false, 0);
        }
        panic!("still not clean: {outcome:?}");
    }

    /// As if the facts had been there from the start.
    fn compare(&self, dials: &[Dial]) {
        let fresh = programmed(&self.world.facts, &self.world);
        for dial in dials {
            let empty_local = self.world.rules.empty_local;
            let (got, wanted) =
                (Answer::of(&self.memory.rows, dial, empty_local), Answer::of(&fresh, dial, empty_local));
            assert_eq!(got, wanted, "{dial:?}\n{:#?}", self.world.facts);
        }
    }
}

fn programmed(facts: &Facts, world: &World) -> Rows {
    let mut planner = Planner::new(world.rules.clone());
    facts.tell(&mut planner);
    let (mut tables, mut memory) = (Tables::new(sizes()), Memory::new(sizes()));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_all(), true).is_clean());
    memory.rows
}

/// The map also holds what arrays cannot forget: sets that nothing leads to, and slots that no span covers. The mirror may
/// keep a set to which nothing leads yet: what waits for a write that failed.
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
fn the_mirror_is_the_map_through_changes_failures_and_restarts() {
    let dials = dials();
    let mut ops = 0;
    for seed in 0..150 {
        let mut life = Life::new(seed, sizes());
        let one_in = [0, 10, 4][seed as usize % 3];
        for step in 0..40 {
            life.change();
            let restarts = life.world.rng.u8(..12) == 0;
            if restarts {
                life.restart();
            }
            let full = restarts || life.world.rng.u8(..12) == 0;
            ops += life.round(full, one_in).ops;
            if life.world.rng.u8(..5) == 0 {
                life.tables.recycle(&mut life.memory).unwrap();
            }
            if step % 4 == 3 {
                life.settle(false);
                life.compare(&dials);
            }
        }
        let outcome = life.round(true, 0);
        assert_eq!((outcome.ops, outcome.is_clean()), (0, true), "nothing changed, nothing to write: {outcome:?}");
    }
    println!("{ops} writes");
}

#[test]
fn a_restart_that_finds_the_plan_writes_nothing() {
    for seed in 1000..1100 {
        let mut life = Life::new(seed, sizes());
        for _ in 0..20 {
            life.change();
            life.settle(false);
        }
        life.restart();
        life.check("restore");
        assert_eq!(life.round(true, 0).ops, 0);
    }
}

#[test]
fn when_everything_is_gone_no_row_is_left_and_every_id_is_free() {
    for seed in 2000..2100 {
        let mut life = Life::new(seed, sizes());
        let one_in = [0, 6][seed as usize % 2];
        for _ in 0..20 {
            life.change();
            life.round(false, one_in);
        }
        for fact in life.world.facts.clone().all() {
            use beeline_model::fact::Fact;
            life.planner.apply(match fact {
                Fact::Service(s) => Fact::ServiceGone(s.name),
                Fact::Slice(s) => Fact::SliceGone(s.name),
                Fact::Node(n) => Fact::NodeGone { cluster: n.cluster, name: n.name },
                Fact::Pod(p) => Fact::PodGone(p.name),
                Fact::Policy(p) => Fact::PolicyGone(p.name),
                Fact::PolicySlice(s) => Fact::PolicySliceGone(s.name),
                other => other,
            });
        }
        life.planner.set_own_addresses(Vec::new());
        life.round(false, one_in);
        life.settle(false);
        let rows = life.tables.rows();
        let (ranges_v4, ranges_v6, slots) = (rows.ranges_v4, rows.ranges_v6, rows.slots.clone());
        let loopback = rows.nodes.clone().into_iter().filter(|(_, node)| node.loopback).collect();
        assert_eq!(*rows, Rows { ranges_v4, ranges_v6, slots, nodes: loopback, ..Rows::default() });
        life.tables.recycle(&mut life.memory).unwrap();
        assert_eq!(life.tables.quarantined(), 0);
        life.check("the end");
    }
}

#[test]
fn between_two_writes_a_dial_gets_the_old_answer_or_the_new_one() {
    let dials = dials();
    let mut checked = 0;
    for seed in 3000..3150 {
        let mut life = Life::new(seed, sizes());
        let mut old = life.memory.rows.clone();
        for _ in 0..25 {
            life.change_one();
            checked += watch_step(&mut life, &dials, &old, seed);
            old = life.memory.rows.clone();
        }
    }
    println!("{checked} dials between writes");
}

/// Rounds until the step is done, with failures on odd seeds; every dial whose answer is a service's is watched.
fn watch_step(life: &mut Life, dials: &[Dial], old: &Rows, seed: u64) -> usize {
    let empty_local = life.world.rules.empty_local;
    let new = programmed(&life.world.facts, &life.world);
    let both = |dial: &Dial| (Answer::of(old, dial, empty_local), Answer::of(&new, dial, empty_local));
    let mut watched: Vec<(&Dial, (Answer, Answer))> = dials.iter().map(|dial| (dial, both(dial))).collect();
    watched.retain(|(_, (old, new))| old != new || life.world.rng.u8(..20) == 0);
    let mut checked = 0;
    for round in 0.. {
        // As in the agent: between a failure and the next try come rounds that are about something else.
        let idle = round % 2 == 1;
        let delta = if idle { Delta::default() } else { life.planner.take() };
        let seen = |rows: &Rows, op: &beeline_model::op::Op| {
            for (dial, (old, new)) in &watched {
                let now = Answer::of(rows, dial, empty_local);
                let facts = &life.world.facts;
                assert!(
                    now.is_between(old, new),
                    "{dial:?}\nold {old:?}\nnew {new:?}\nnow {now:?}\nafter {op:?}\n{facts:?}"
                );
                checked += 1;
            }
        };
        let mut coin = fastrand::Rng::with_seed(seed + round);
        let fails = move |_| seed % 2 == 1 && round < 9 && coin.u8(..8) == 0;
        let mut maps = Shaky { inner: Watched { inner: &mut life.memory, seen: Box::new(seen) }, fails };
        let outcome = reconcile(&mut life.tables, &mut maps, &delta, false);
        drop(maps);
        life.planner.retry(&outcome);
        if outcome.is_clean() && !life.planner.is_dirty() {
            break;
        }
    }
    for (dial, (_, new)) in &watched {
        assert_eq!(&Answer::of(&life.memory.rows, dial, empty_local), new, "{dial:?}");
    }
    checked
}

/// `Faulty` owns what it breaks; this one borrows.
struct Shaky<'a, F> {
    inner: Watched<'a>,
    fails: F,
}

impl<F: FnMut(u64) -> bool> Maps for Shaky<'_, F> {
    fn write(&mut self, op: &beeline_model::op::Op) -> Result<(), beeline_model::op::MapError> {
        if (self.fails)(0) {
            return Err(beeline_model::op::MapError::Failed("made to fail".into()));
        }
        self.inner.write(op)
    }

    fn dump(&self) -> Result<Rows, beeline_model::op::MapError> {
        self.inner.dump()
    }

    fn grace(&mut self) -> Result<(), beeline_model::op::MapError> {
        self.inner.grace()
    }

    fn sizes(&self) -> Sizes {
        self.inner.sizes()
    }
}

/// What does not fit is refused with a reason, what was there keeps serving, and there is room again once it is made.
#[test]
fn small_tables_stay_whole() {
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
    for seed in 4000..4150 {
        let mut life = Life::new(seed, tiny);
        for _ in 0..40 {
            life.change();
            let outcome = life.round(false, [0, 8][seed as usize % 2]);
            full += usize::from(outcome.refusals().iter().any(|r| r.reason == "tableFull"));
        }
        for name in std::mem::take(&mut life.world.facts.services).into_keys() {
            life.planner.apply(beeline_model::fact::Fact::ServiceGone(name));
        }
        for name in std::mem::take(&mut life.world.facts.policies).into_keys() {
            life.planner.apply(beeline_model::fact::Fact::PolicyGone(name));
        }
        life.settle(false);
        assert!(life.tables.rows().frontends.is_empty());
    }
    assert!(full > 100, "only {full} rounds met a full table");
}
