//! Stand-points and several clusters through random lives: every dial, in every view, gets what the rules say, between any
//! two writes the old answer or the new one, and never another cluster's.

#[path = "stand/naive.rs"]
mod naive;
#[allow(dead_code)]
mod support;
#[path = "stand/world.rs"]
mod world;

use beeline_model::Name;
use beeline_model::diff::{Whole, reconcile};
use beeline_model::event::Action;
use beeline_model::op::{MapError, Maps, Memory, Op};
use beeline_model::planner::{Delta, Planner};
use beeline_model::resolve::{Dial, resolve};
use beeline_model::row::{Rows, Sizes};
use beeline_model::rules::EmptyLocal;
use beeline_model::stand::Pods;
use beeline_model::table::Tables;
use naive::{Naive, Weights};
use support::answer::Answer;
use support::watched::Watched;
use world::World;

fn sizes() -> Sizes {
    Sizes::for_services(200)
}

struct Life {
    world: World,
    planner: Planner,
    tables: Tables,
    memory: Memory,
}

impl Life {
    fn new(seed: u64) -> Life {
        let world = World::new(seed);
        let planner = Planner::new(world.rules.clone());
        let mut life = Life { world, planner, tables: Tables::new(sizes()), memory: Memory::new(sizes()) };
        life.world.populate(&mut life.planner);
        life.program();
        life
    }

    fn program(&mut self) {
        let outcome = reconcile(&mut self.tables, &mut self.memory, &self.planner.take(), false);
        assert!(outcome.is_clean(), "{outcome:?}");
        self.tables.audit(sizes()).unwrap();
    }

    /// Another agent takes over what the map holds; what it is told last may be whole, or all of it.
    fn restart(&mut self) {
        self.tables = Tables::restore(self.memory.dump().unwrap(), sizes());
        self.planner = Planner::new(self.world.rules.clone());
        self.planner.adopt(self.tables.holders());
        self.world.tell(&mut self.planner);
        let whole = self.world.whole();
        let outcome = reconcile(&mut self.tables, &mut self.memory, &self.planner.take_all(), whole);
        assert_eq!((outcome.ops, outcome.is_clean()), (0, true), "nothing changed: {outcome:?}");
    }

    /// Brings the tables to the plan, on a map that fails now and then where the seed is odd; every dial is made after
    /// every write.
    fn change_watched(&mut self, watched: &[(Dial, Met, Met)], seed: u64) -> u64 {
        let (world, mut looks) = (&self.world, 0);
        for round in 0..40 {
            // As in the agent: between a failure and the next try come rounds that are about something else.
            let delta = if round % 2 == 1 { Delta::default() } else { self.planner.take() };
            let seen = |rows: &Rows, op: &Op| {
                for (dial, old, new) in watched {
                    let now = Met::of(rows, dial, world.rules.empty_local);
                    assert!(
                        now.is_between(old, new, dial),
                        "{dial:?}\nold {old:?}\nnew {new:?}\nnow {now:?}\nafter {op:?}, seed {seed}\n{world:?}"
                    );
                    looks += 1;
                }
            };
            let mut coin = fastrand::Rng::with_seed(seed + round);
            let fails = move || seed % 2 == 1 && round < 9 && coin.u8(..8) == 0;
            let mut maps = Shaky { inner: Watched { inner: &mut self.memory, seen: Box::new(seen) }, fails };
            let outcome = reconcile(&mut self.tables, &mut maps, &delta, false);
            drop(maps);
            self.planner.retry(&outcome);
            if outcome.is_clean() && !self.planner.is_dirty() {
                return looks;
            }
        }
        panic!("never done, seed {seed}");
    }

    /// In every view in use, by the name of the cluster that it has first.
    fn views(&self) -> Vec<(u32, Option<Name>)> {
        let clusters = self.world.rules.clusters.iter().map(|cluster| &cluster.name);
        let named = clusters.filter_map(|name| Some((self.planner.view(name)?, Some(name.clone()))));
        [(0, None)].into_iter().chain(named).collect()
    }
}

/// How often each backend stands in the set that decides.
fn slots(rows: &Rows, dial: &Dial, world: &World) -> Weights {
    let verdict = resolve(rows, dial, world.rules.empty_local);
    let mut slots = Weights::new();
    if let Some(set) = verdict.path.last().and_then(|id| rows.sets.get(*id)) {
        let members = rows.members(set).iter().map(|id| rows.backends[*id]);
        members.for_each(|backend| *slots.entry((backend.address, backend.port)).or_default() += 1);
    }
    slots
}

fn is_proportional(slots: &Weights, weights: &Weights) -> bool {
    slots.keys().eq(weights.keys())
        && slots.iter().all(|(a, n)| slots.iter().all(|(b, m)| n * weights[b] == m * weights[a]))
}

#[derive(Default)]
struct Compared {
    dials: u64,
    resolved: u64,
    refused: u64,
    weighed: u64,
    in_views: u64,
    kept: u64,
}

/// `before`: what the tables held. Who waits for an earlier cluster's ranges keeps what it has.
fn compare(life: &Life, before: &Rows, dials: &[Dial], compared: &mut Compared) {
    let Life { world, memory, .. } = life;
    assert_eq!(life.planner.groups(), naive::groups(world), "{world:?}");
    for (view, first) in life.views() {
        let naive = Naive { world, first: first.clone(), patient: false };
        for dial in dials {
            let dial = Dial { view, ..dial.clone() };
            let (mut said, mut weights) = naive.answer(&dial);
            let got = Answer::of(&memory.rows, &dial, world.rules.empty_local);
            if got != said && naive.waits() {
                compared.kept += 1;
                if got == Answer::of(before, &dial, world.rules.empty_local) {
                    continue;
                }
                (said, weights) = Naive { world, first: first.clone(), patient: true }.answer(&dial);
            }
            assert_eq!(got, said, "tables (left), rules (right): {dial:?} first {:?}\n{world:?}", naive.first);
            if got.action == Action::Resolved {
                let slots = slots(&memory.rows, &dial, world);
                assert!(is_proportional(&slots, &weights), "{slots:?} {weights:?} {dial:?}\n{world:?}");
                compared.weighed += u64::from(weights.values().any(|weight| *weight > 1));
            }
            compared.dials += 1;
            compared.in_views += u64::from(view != 0);
            compared.resolved += u64::from(got.action == Action::Resolved);
            compared.refused += u64::from(got.action == Action::Refused);
        }
    }
}

#[test]
fn every_dial_gets_what_the_rules_say() {
    let all = naive::dials();
    let mut compared = Compared::default();
    for seed in 0..400 {
        let mut life = Life::new(seed);
        for step in 0..12 {
            let before = life.memory.rows.clone();
            life.world.step(&mut life.planner);
            life.program();
            let sample: Vec<Dial> = all.iter().filter(|_| life.world.rng.u8(..4) == 0).cloned().collect();
            compare(&life, &before, &sample, &mut compared);
            if step % 6 == 5 {
                life.restart();
            }
        }
    }
    let Compared { dials, resolved, refused, weighed, in_views, kept } = compared;
    println!(
        "{dials} dials, {resolved} resolved, {refused} refused, {weighed} weighed, {in_views} in views, {kept} kept"
    );
    assert!(resolved > 5_000 && refused > 5_000 && weighed > 150 && in_views > dials / 10, "too tame");
}

/// What a dial gets, and of whom.
#[derive(Debug, PartialEq)]
struct Met(Answer, Option<String>);

impl Met {
    fn of(rows: &Rows, dial: &Dial, empty_local: EmptyLocal) -> Met {
        let verdict = resolve(rows, dial, empty_local);
        let set = verdict.path.last().and_then(|id| rows.sets.get(*id));
        let owner = set.map(|set| rows.names[set.owner].text.clone());
        Met(Answer::of(rows, dial, empty_local), owner)
    }

    /// A node that goes over to another cluster is nobody's for a moment, and an address that was, or will be, left alone may
    /// meet whom its Service leads to just then; so may one that goes over to a Service which loses its last backend at the
    /// same time, since that one goes last, or from one which gets its first. But nothing is ever another's.
    fn is_between(&self, old: &Met, new: &Met, dial: &Dial) -> bool {
        let known = self.1.is_none() || self.1 == old.1 || self.1 == new.1;
        let of_node = dial.port > 30_000 && self.0.action != Action::Refused;
        let alone = [old, new].iter().any(|met| met.0.action == Action::Untouched);
        let moves = old.1 != new.1 && [old, new].iter().any(|met| self.1 == met.1 && met.0.action == Action::Refused);
        let passing = self.0.action == Action::Resolved && (alone || moves);
        known && (of_node || passing || self.0.is_between(&old.0, &new.0))
    }
}

/// Fails writes as told.
struct Shaky<'a, F> {
    inner: Watched<'a>,
    fails: F,
}

impl<F: FnMut() -> bool> Maps for Shaky<'_, F> {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        if (self.fails)() { Err(MapError::Failed("made to fail".into())) } else { self.inner.write(op) }
    }

    fn dump(&self) -> Result<Rows, MapError> {
        self.inner.dump()
    }

    fn grace(&mut self) -> Result<(), MapError> {
        self.inner.grace()
    }

    fn sizes(&self) -> Sizes {
        self.inner.sizes()
    }
}

/// By somebody who takes over.
fn programmed(world: &World, held: &Tables) -> Rows {
    let mut planner = Planner::new(world.rules.clone());
    planner.adopt(held.holders());
    world.tell(&mut planner);
    let (mut tables, mut memory) = (Tables::new(sizes()), Memory::new(sizes()));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_all(), true).is_clean());
    memory.rows
}

#[test]
fn between_two_writes_a_dial_gets_the_old_answer_or_the_new_one() {
    let (all, mut looks) = (naive::dials(), 0u64);
    for seed in 1000..1150 {
        let mut life = Life::new(seed);
        for _ in 0..8 {
            let before = life.views();
            let old = life.memory.rows.clone();
            life.world.step(&mut life.planner);
            // Who is in a view that goes has nothing to compare with: its processes were told first.
            let views: Vec<_> = life.views().into_iter().filter(|view| before.contains(view)).collect();
            let empty_local = life.world.rules.empty_local;
            let fresh = programmed(&life.world, &life.tables);
            let mut watched: Vec<(Dial, Met, Met)> = Vec::new();
            for (view, _) in views {
                for dial in all.iter().map(|dial| Dial { view, ..dial.clone() }) {
                    let [old, new] = [&old, &fresh].map(|rows| Met::of(rows, &dial, empty_local));
                    if old != new {
                        watched.push((dial, old, new));
                    }
                }
            }
            looks += life.change_watched(&watched, seed);
        }
    }
    println!("{looks} dials between writes");
    assert!(looks > 10_000);
}

/// Whoever speaks first, while the others are silent, and for however long: nothing changed, so no dial may notice.
#[test]
fn after_a_restart_clusters_may_speak_in_any_order() {
    let (all, mut looks, mut silences) = (naive::dials(), 0u64, 0u64);
    for seed in 3000..3600 {
        let mut life = Life::new(seed);
        let clusters = &life.world.rules.clusters;
        // Whose pods stand where another's stand is known only when both are: the agent waits for that, for a while.
        if clusters.len() > 1 && clusters.iter().any(|cluster| cluster.pods == Pods::Auto) {
            continue;
        }
        let mut names: Vec<Name> = clusters.iter().map(|cluster| cluster.name.clone()).collect();
        life.world.rng.shuffle(&mut names);
        let old = life.memory.rows.clone();
        life.tables = Tables::restore(life.memory.dump().unwrap(), sizes());
        let mut planner = Planner::new(life.world.rules.clone());
        planner.adopt(life.tables.holders());
        life.world.tell_ground(&mut planner);
        let mut told = std::collections::BTreeSet::new();
        for name in &names {
            life.world.tell_cluster(name, &mut planner);
            planner.note_synced(name);
            told.insert(name.clone());
            let whole = Whole::Clusters(told.clone());
            assert!(reconcile(&mut life.tables, &mut life.memory, &planner.take_all(), whole).is_clean());
            life.tables.audit(sizes()).unwrap();
            silences += (names.len() - told.len()) as u64;
            for (view, _) in life.views() {
                // Which addresses its nodes have beside those that nodePorts answer at, nobody knows who has not heard it.
                let all = all.iter().filter(|dial| dial.address != world::address(world::NODE_AND_BALANCER));
                for dial in all.map(|dial| Dial { view, ..dial.clone() }) {
                    let [was, is] =
                        [&old, &life.memory.rows].map(|rows| Met::of(rows, &dial, life.world.rules.empty_local));
                    assert_eq!(was, is, "seed {seed}, of {names:?} spoke {told:?}: {dial:?}\n{:?}", life.world);
                    looks += 1;
                }
            }
        }
    }
    println!("{looks} dials, {silences} silences");
    assert!(looks > 70_000 && silences > 80, "too tame");
}

/// What was programmed of a cluster stays until its own source has told everything.
#[test]
fn a_cluster_that_was_not_heard_of_keeps_its_rows() {
    let (all, mut kept) = (naive::dials(), 0);
    for seed in 2000..2800 {
        let mut life = Life::new(seed);
        let old = life.memory.rows.clone();
        let clusters = life.world.rules.clusters.clone();
        let silent = &clusters[life.world.rng.usize(..clusters.len())];
        if !life.world.facts.contains_key(&silent.name) {
            continue;
        }
        let mut planner = Planner::new(life.world.rules.clone());
        planner.adopt(life.tables.holders());
        let said = life.world.facts.remove(&silent.name).expect("it was there");
        life.world.tell(&mut planner);
        let whole = clusters.iter().filter(|cluster| cluster.name != silent.name).map(|cluster| cluster.name.clone());
        life.tables = Tables::restore(life.memory.dump().unwrap(), sizes());
        let whole = Whole::Clusters(whole.collect());
        assert!(reconcile(&mut life.tables, &mut life.memory, &planner.take_all(), whole).is_clean());
        life.tables.audit(sizes()).unwrap();
        let of_silent = |rows: &Rows, dial: &Dial| {
            let verdict = resolve(rows, dial, life.world.rules.empty_local);
            let set = verdict.path.last().and_then(|id| rows.sets.get(*id)).map(|set| set.owner);
            set.is_some_and(|owner| rows.names[owner].text.starts_with(&format!("{}/", silent.name)))
        };
        // An earlier cluster may take what it claims: it comes first.
        let first = format!("{}/", clusters[0].name);
        let taken = |dial: &Dial| {
            let verdict = resolve(&life.memory.rows, dial, life.world.rules.empty_local);
            let set = verdict.path.last().and_then(|id| life.memory.rows.sets.get(*id));
            set.is_some_and(|set| life.memory.rows.names[set.owner].text.starts_with(&first))
        };
        let kept_by = |dial: &&Dial| dial.port < 30_000 && of_silent(&old, dial) && !taken(dial);
        for dial in all.iter().filter(kept_by) {
            let [was, is] = [&old, &life.memory.rows].map(|rows| Answer::of(rows, dial, life.world.rules.empty_local));
            assert_eq!(was, is, "{dial:?}");
            kept += 1;
        }
        // It speaks at last: all is as it was, or as if it had spoken at once.
        life.world.facts.insert(silent.name.clone(), said);
        life.world.tell(&mut planner);
        assert!(reconcile(&mut life.tables, &mut life.memory, &planner.take_all(), true).is_clean());
        life.planner = planner;
        compare(&life, &old, &all, &mut Compared::default());
    }
    println!("{kept} answers kept");
    assert!(kept > 200, "only {kept}");
}
