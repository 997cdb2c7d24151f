//! Host roles and several clusters under random changes. Every dial in every view gets the result of the reference
//! model; between any two writes it gets the old or the new result, and never a backend of another cluster.

#[path = "clusters/random_clusters.rs"]
mod random_clusters;
#[path = "clusters/reference_model.rs"]
mod reference_model;
#[allow(dead_code)]
mod support;

use beeline_model::Name;
use beeline_model::cluster::PodAccess;
use beeline_model::diff::{SyncScope, reconcile};
use beeline_model::event::Action;
use beeline_model::op::{Maps, MemoryMaps, Op};
use beeline_model::planner::{Delta, Planner};
use beeline_model::resolve::{Dial, resolve};
use beeline_model::row::{Rows, Sizes};
use beeline_model::rules::NoLocalEndpointAction;
use beeline_model::table::Tables;
use random_clusters::RandomClusters;
use reference_model::{ReferenceModel, Weights};
use support::dial_result::DialResult;
use support::objects::address;
use support::observed_maps::failing_with_odd_seeds;
use support::seed::seeds;

fn sizes() -> Sizes {
    Sizes::for_services(200)
}

struct TestAgent {
    random: RandomClusters,
    planner: Planner,
    tables: Tables,
    memory: MemoryMaps,
}

impl TestAgent {
    fn new(seed: u64) -> TestAgent {
        let random = RandomClusters::new(seed);
        let planner = Planner::new(random.rules.clone());
        let mut agent = TestAgent { random, planner, tables: Tables::new(sizes()), memory: MemoryMaps::new(sizes()) };
        agent.random.populate(&mut agent.planner);
        agent.program();
        agent
    }

    fn program(&mut self) {
        let outcome = reconcile(&mut self.tables, &mut self.memory, &self.planner.take_delta(), false);
        assert!(outcome.is_clean(), "{outcome:?}");
        self.tables.audit(sizes()).unwrap();
    }

    /// A new agent takes over the rows in the maps.
    fn restart(&mut self) {
        self.tables = Tables::restore(self.memory.dump().unwrap(), sizes());
        self.planner = Planner::new(self.random.rules.clone());
        self.planner.adopt(self.tables.frontend_owners());
        self.random.apply_all(&mut self.planner);
        let scope = self.random.full_scope();
        let outcome = reconcile(&mut self.tables, &mut self.memory, &self.planner.take_full_delta(), scope);
        assert_eq!((outcome.ops, outcome.is_clean()), (0, true), "nothing changed: {outcome:?}");
    }

    /// Writes the plan to maps that sometimes fail (odd seeds only). Checks every dial after every write.
    fn change_watched(&mut self, watched: &[(Dial, OwnedResult, OwnedResult)], seed: u64) -> u64 {
        let (random, mut checked) = (&self.random, 0);
        for round in 0..40 {
            // As in the agent, rounds with other changes come between a failure and its retry.
            let delta = if round % 2 == 1 { Delta::default() } else { self.planner.take_delta() };
            let observe = |rows: &Rows, op: &Op| {
                for (dial, old, new) in watched {
                    let now = OwnedResult::of(rows, dial, random.rules.no_local_endpoint_action);
                    assert!(
                        now.is_between(old, new, dial),
                        "{dial:?}\nold {old:?}\nnew {new:?}\nnow {now:?}\nafter {op:?}, seed {seed}\n{random:?}"
                    );
                    checked += 1;
                }
            };
            let mut maps = failing_with_odd_seeds(&mut self.memory, Box::new(observe), seed, round);
            let outcome = reconcile(&mut self.tables, &mut maps, &delta, false);
            drop(maps);
            self.planner.retry(&outcome);
            if outcome.is_clean() && !self.planner.is_dirty() {
                return checked;
            }
        }
        panic!("not done after 40 rounds, seed {seed}");
    }

    /// The views in use, with their first cluster.
    fn views(&self) -> Vec<(u32, Option<Name>)> {
        let clusters = self.random.rules.clusters.iter().map(|cluster| &cluster.name);
        let named = clusters.filter_map(|name| Some((self.planner.view(name)?, Some(name.clone()))));
        [(0, None)].into_iter().chain(named).collect()
    }
}

/// The number of slots of each backend in the set that decides.
fn slots(rows: &Rows, dial: &Dial, random: &RandomClusters) -> Weights {
    let verdict = resolve(rows, dial, random.rules.no_local_endpoint_action);
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

/// Compares the tables with the reference model. A Service that waits for the ranges of an earlier cluster keeps the
/// result that it had `before`.
fn compare(agent: &TestAgent, before: &Rows, dials: &[Dial], compared: &mut Compared) {
    let TestAgent { random, memory, .. } = agent;
    assert_eq!(agent.planner.reach_targets(), reference_model::reach_targets(random), "{random:?}");
    for (view, first) in agent.views() {
        let reference = ReferenceModel { random, first: first.clone(), assume_known: false };
        for dial in dials {
            let dial = Dial { view, ..dial.clone() };
            let (mut expected, mut weights) = reference.resolve(&dial);
            let got = DialResult::of(&memory.rows, &dial, random.rules.no_local_endpoint_action);
            if got != expected && reference.waits() {
                compared.kept += 1;
                if got == DialResult::of(before, &dial, random.rules.no_local_endpoint_action) {
                    continue;
                }
                (expected, weights) =
                    ReferenceModel { random, first: first.clone(), assume_known: true }.resolve(&dial);
            }
            assert_eq!(
                got, expected,
                "tables (left), reference model (right): {dial:?} first {:?}\n{random:?}",
                reference.first
            );
            if got.action == Action::Resolved {
                let slots = slots(&memory.rows, &dial, random);
                assert!(is_proportional(&slots, &weights), "{slots:?} {weights:?} {dial:?}\n{random:?}");
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
fn every_dial_agrees_with_the_reference_model() {
    let all = reference_model::dials();
    let mut compared = Compared::default();
    for seed in seeds(0..400) {
        let mut agent = TestAgent::new(seed);
        for step in 0..12 {
            let before = agent.memory.rows.clone();
            agent.random.step(&mut agent.planner);
            agent.program();
            let sample: Vec<Dial> = all.iter().filter(|_| agent.random.rng.u8(..4) == 0).cloned().collect();
            compare(&agent, &before, &sample, &mut compared);
            if step % 6 == 5 {
                agent.restart();
            }
        }
    }
    let Compared { dials, resolved, refused, weighed, in_views, kept } = compared;
    println!(
        "{dials} dials, {resolved} resolved, {refused} refused, {weighed} weighed, {in_views} in views, {kept} kept"
    );
    assert!(resolved > 5_000 && refused > 5_000 && weighed > 150 && in_views > dials / 10, "too few interesting cases");
}

/// The result of a dial and the owner of the set that decided.
#[derive(Debug, PartialEq)]
struct OwnedResult(DialResult, Option<String>);

impl OwnedResult {
    fn of(rows: &Rows, dial: &Dial, no_local_endpoint_action: NoLocalEndpointAction) -> OwnedResult {
        let verdict = resolve(rows, dial, no_local_endpoint_action);
        let set = verdict.path.last().and_then(|id| rows.sets.get(*id));
        let owner = set.map(|set| rows.names[set.owner].text.clone());
        OwnedResult(DialResult::of(rows, dial, no_local_endpoint_action), owner)
    }

    /// More is allowed than by `DialResult::is_between`: a node that moves to another cluster may belong to no cluster
    /// for a moment, an address that was or will be untouched may already or still be resolved, and so may an address
    /// that moves to a Service that loses its last backend, or from one that gets its first. But the owner is always
    /// the old or the new one.
    fn is_between(&self, old: &OwnedResult, new: &OwnedResult, dial: &Dial) -> bool {
        let known = self.1.is_none() || self.1 == old.1 || self.1 == new.1;
        let of_node = dial.port > 30_000 && self.0.action != Action::Refused;
        let alone = [old, new].iter().any(|result| result.0.action == Action::Untouched);
        let moves =
            old.1 != new.1 && [old, new].iter().any(|result| self.1 == result.1 && result.0.action == Action::Refused);
        let passing = self.0.action == Action::Resolved && (alone || moves);
        known && (of_node || passing || self.0.is_between(&old.0, &new.0))
    }
}

/// The rows that a new agent writes.
fn programmed(random: &RandomClusters, held: &Tables) -> Rows {
    let mut planner = Planner::new(random.rules.clone());
    planner.adopt(held.frontend_owners());
    random.apply_all(&mut planner);
    let (mut tables, mut memory) = (Tables::new(sizes()), MemoryMaps::new(sizes()));
    assert!(reconcile(&mut tables, &mut memory, &planner.take_full_delta(), true).is_clean());
    memory.rows
}

#[test]
fn between_two_writes_a_dial_gets_the_old_or_the_new_result() {
    let (all, mut checked) = (reference_model::dials(), 0u64);
    for seed in seeds(1000..1150) {
        let mut agent = TestAgent::new(seed);
        for _ in 0..8 {
            let before = agent.views();
            let old = agent.memory.rows.clone();
            agent.random.step(&mut agent.planner);
            // A view that is removed has nothing to compare with.
            let views: Vec<_> = agent.views().into_iter().filter(|view| before.contains(view)).collect();
            let no_local_endpoint_action = agent.random.rules.no_local_endpoint_action;
            let fresh = programmed(&agent.random, &agent.tables);
            let mut watched: Vec<(Dial, OwnedResult, OwnedResult)> = Vec::new();
            for (view, _) in views {
                for dial in all.iter().map(|dial| Dial { view, ..dial.clone() }) {
                    let [old, new] = [&old, &fresh].map(|rows| OwnedResult::of(rows, &dial, no_local_endpoint_action));
                    if old != new {
                        watched.push((dial, old, new));
                    }
                }
            }
            checked += agent.change_watched(&watched, seed);
        }
    }
    println!("{checked} dials between writes");
    assert!(checked > 10_000);
}

/// No object changed, so no dial may get another result, whichever cluster is received first.
#[test]
fn after_a_restart_clusters_may_be_received_in_any_order() {
    let (all, mut checked, mut pending) = (reference_model::dials(), 0u64, 0u64);
    for seed in seeds(3000..3600) {
        let mut agent = TestAgent::new(seed);
        let clusters = &agent.random.rules.clusters;
        // Shared pod prefixes are known only when both clusters are. The agent waits for that.
        if clusters.len() > 1 && clusters.iter().any(|cluster| cluster.pod_access == PodAccess::Auto) {
            continue;
        }
        let mut names: Vec<Name> = clusters.iter().map(|cluster| cluster.name.clone()).collect();
        agent.random.rng.shuffle(&mut names);
        let old = agent.memory.rows.clone();
        agent.tables = Tables::restore(agent.memory.dump().unwrap(), sizes());
        let mut planner = Planner::new(agent.random.rules.clone());
        planner.adopt(agent.tables.frontend_owners());
        agent.random.apply_host_state(&mut planner);
        let mut received = std::collections::BTreeSet::new();
        for name in &names {
            agent.random.apply_cluster(name, &mut planner);
            planner.note_synced(name);
            received.insert(name.clone());
            let scope = SyncScope::Clusters(received.clone());
            assert!(reconcile(&mut agent.tables, &mut agent.memory, &planner.take_full_delta(), scope).is_clean());
            agent.tables.audit(sizes()).unwrap();
            pending += (names.len() - received.len()) as u64;
            for (view, _) in agent.views() {
                // This node address serves no NodePorts, so it is unknown until the cluster is received.
                let all = all.iter().filter(|dial| dial.address != address(random_clusters::NODE_AND_BALANCER));
                for dial in all.map(|dial| Dial { view, ..dial.clone() }) {
                    let [was, is] = [&old, &agent.memory.rows]
                        .map(|rows| OwnedResult::of(rows, &dial, agent.random.rules.no_local_endpoint_action));
                    assert_eq!(
                        was, is,
                        "seed {seed}, of {names:?} received {received:?}: {dial:?}\n{:?}",
                        agent.random
                    );
                    checked += 1;
                }
            }
        }
    }
    println!("{checked} dials, {pending} pending clusters");
    assert!(checked > 70_000 && pending > 80, "too few interesting cases");
}

/// The rows of a cluster stay until its source has sent all objects.
#[test]
fn a_cluster_that_was_not_received_keeps_its_rows() {
    let (all, mut kept) = (reference_model::dials(), 0);
    for seed in seeds(2000..2800) {
        let mut agent = TestAgent::new(seed);
        let old = agent.memory.rows.clone();
        let clusters = agent.random.rules.clusters.clone();
        let pending_cluster = &clusters[agent.random.rng.usize(..clusters.len())];
        if !agent.random.objects.contains_key(&pending_cluster.name) {
            continue;
        }
        let mut planner = Planner::new(agent.random.rules.clone());
        planner.adopt(agent.tables.frontend_owners());
        let objects = agent.random.objects.remove(&pending_cluster.name).expect("a cluster with objects");
        agent.random.apply_all(&mut planner);
        let scope =
            clusters.iter().filter(|cluster| cluster.name != pending_cluster.name).map(|cluster| cluster.name.clone());
        agent.tables = Tables::restore(agent.memory.dump().unwrap(), sizes());
        let scope = SyncScope::Clusters(scope.collect());
        assert!(reconcile(&mut agent.tables, &mut agent.memory, &planner.take_full_delta(), scope).is_clean());
        agent.tables.audit(sizes()).unwrap();
        let of_pending_cluster = |rows: &Rows, dial: &Dial| {
            let verdict = resolve(rows, dial, agent.random.rules.no_local_endpoint_action);
            let set = verdict.path.last().and_then(|id| rows.sets.get(*id)).map(|set| set.owner);
            set.is_some_and(|owner| rows.names[owner].text.starts_with(&format!("{}/", pending_cluster.name)))
        };
        // An earlier cluster may take over addresses that it claims.
        let first = format!("{}/", clusters[0].name);
        let taken = |dial: &Dial| {
            let verdict = resolve(&agent.memory.rows, dial, agent.random.rules.no_local_endpoint_action);
            let set = verdict.path.last().and_then(|id| agent.memory.rows.sets.get(*id));
            set.is_some_and(|set| agent.memory.rows.names[set.owner].text.starts_with(&first))
        };
        let kept_by = |dial: &&Dial| dial.port < 30_000 && of_pending_cluster(&old, dial) && !taken(dial);
        for dial in all.iter().filter(kept_by) {
            let [was, is] = [&old, &agent.memory.rows]
                .map(|rows| DialResult::of(rows, dial, agent.random.rules.no_local_endpoint_action));
            assert_eq!(was, is, "{dial:?}");
            kept += 1;
        }
        // When the cluster is received, the result is as if it had been received at once.
        agent.random.objects.insert(pending_cluster.name.clone(), objects);
        agent.random.apply_all(&mut planner);
        assert!(reconcile(&mut agent.tables, &mut agent.memory, &planner.take_full_delta(), true).is_clean());
        agent.planner = planner;
        compare(&agent, &old, &all, &mut Compared::default());
    }
    println!("{kept} results kept");
    assert!(kept > 200, "only {kept}");
}
