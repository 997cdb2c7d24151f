//! Policies through random lives: redirects over balancings over services, with limits and the pods that they select,
//! come, change and go, on maps that fail. The plans are made here, so that every shape of them is met.

#[allow(dead_code)]
mod support;

use beeline_model::claim::Claim;
use beeline_model::diff::{Outcome, reconcile};
use beeline_model::event::Action;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::op::{Faulty, Maps, Memory, Op};
use beeline_model::plan::{BackendPlan, ServicePlan, SetPlan, SetPolicy};
use beeline_model::planner::Delta;
use beeline_model::policy::{Limit, PolicyKind, PolicyName};
use beeline_model::resolve::Dial;
use beeline_model::row::*;
use beeline_model::rules::EmptyLocal;
use beeline_model::table::Tables;
use beeline_model::{Address, Audience, Family, OwnerName, PortName, Protocol, SetName, SetRole};
use std::collections::{BTreeMap, BTreeSet};
use support::answer::Answer;
use support::watched::Watched;
use support::world::address;

const PODS: u8 = 6;
const PORTS: [(&str, Protocol); 2] = [("dns", Protocol::Udp), ("dns-tcp", Protocol::Tcp)];
const SERVED: &str = "10.96.0.10";
const VIRTUAL: &str = "169.254.20.10";

fn sizes() -> Sizes {
    Sizes { members: 40, ..Sizes::for_services(40) }
}

fn pod(number: u8) -> Address {
    address(&format!("10.244.1.{}", 10 + number))
}

fn cgroup(number: u8) -> u64 {
    1000 + u64::from(number)
}

fn policy(kind: PolicyKind, name: &str) -> OwnerName {
    OwnerName::of_policy(&PolicyName { kind, cluster: LOCAL_CLUSTER.into(), namespace: "a".into(), name: name.into() })
}

/// A redirect; those of its pods that are ready are backends.
#[derive(Clone, Debug, Default, PartialEq)]
struct Redirect {
    selected: BTreeSet<u8>,
    ready: BTreeSet<u8>,
    limit: Option<Limit>,
}

/// What there is: at the Service's address up to three levels, at the virtual one a redirect alone.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    service: Option<BTreeSet<u8>>,
    balancing: Option<BTreeSet<u8>>,
    redirect: Option<Redirect>,
    alone: Option<Redirect>,
}

impl State {
    fn change(&mut self, rng: &mut fastrand::Rng) {
        let pods = |rng: &mut fastrand::Rng| (0..PODS).filter(|_| rng.u8(..3) == 0).collect::<BTreeSet<u8>>();
        let flip = |redirect: &mut Option<Redirect>, rng: &mut fastrand::Rng| match rng.u8(..6) {
            0 => *redirect = if redirect.is_some() { None } else { Some(Redirect::default()) },
            1 => {
                let limit = Limit { connects_per_second: rng.u32(1..4), burst: rng.u32(1..4) };
                redirect.get_or_insert_default().limit = rng.bool().then_some(limit);
            }
            2 => redirect.get_or_insert_default().ready.clear(),
            _ => {
                let redirect = redirect.get_or_insert_default();
                redirect.selected = pods(rng);
                redirect.ready = redirect.selected.iter().copied().filter(|_| rng.u8(..3) != 0).collect();
            }
        };
        match rng.u8(..8) {
            0 => self.service = if self.service.is_some() && rng.bool() { None } else { Some(pods(rng)) },
            1 => self.service = Some(pods(rng)),
            2 => self.balancing = (rng.u8(..3) != 0).then(|| pods(rng)),
            3..6 => flip(&mut self.redirect, rng),
            _ => flip(&mut self.alone, rng),
        }
    }

    /// Without its Service, what goes before it is nowhere.
    fn levels(&self) -> Vec<(OwnerName, Rule, &BTreeSet<u8>, Option<&Redirect>)> {
        let Some(service) = &self.service else { return Vec::new() };
        let mut levels = Vec::new();
        if let Some(redirect) = &self.redirect {
            let name = policy(PolicyKind::LocalRedirect, "cache");
            levels.push((name, Rule::Redirect, &redirect.ready, Some(redirect)));
        }
        if let Some(pods) = &self.balancing {
            levels.push((policy(PolicyKind::Balancing, "api"), Rule::Balancing, pods, None));
        }
        levels.push((OwnerName::local("a", "kube-dns"), Rule::Service, service, None));
        levels
    }

    fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        plan.add(SERVED, Kind::ClusterIp, &self.levels());
        if let Some(redirect) = &self.alone {
            let name = policy(PolicyKind::LocalRedirect, "alone");
            plan.add(VIRTUAL, Kind::Virtual, &[(name, Rule::Redirect, &redirect.ready, Some(redirect))]);
        }
        plan
    }
}

#[derive(Clone, Debug, Default)]
struct Plan {
    services: BTreeMap<OwnerName, ServicePlan>,
    /// Who is asked, in order.
    frontends: BTreeMap<FrontendKey, Vec<Claim>>,
}

impl Plan {
    fn add(&mut self, at: &str, kind: Kind, levels: &[(OwnerName, Rule, &BTreeSet<u8>, Option<&Redirect>)]) {
        for (port, protocol) in PORTS {
            let (mut next, mut chain) = (None, Vec::new());
            for (owner, rule, pods, redirect) in levels.iter().rev() {
                let set = set(owner, port, protocol, *rule, pods, *redirect, next.take());
                next = Some(set.name.clone());
                chain.insert(0, Claim { kind, rank: 0, created: 0, service: owner.clone(), set: next.clone() });
                let plan = self.services.entry(owner.clone()).or_default();
                plan.sets.push(set);
                plan.members = redirect.iter().flat_map(|r| &r.selected).map(|pod| cgroup(*pod)).collect();
            }
            if !chain.is_empty() {
                self.frontends.insert(FrontendKey::new(address(at), 53, protocol), chain);
            }
        }
    }

    /// What differs from an earlier plan, who inherits a key, and what is to be tried again.
    fn delta(&self, old: &Plan, again: &BTreeSet<OwnerName>, full: bool) -> Delta {
        let names: BTreeSet<&OwnerName> = self.services.keys().chain(old.services.keys()).chain(again).collect();
        let inherited = self.frontends.iter().filter(|(key, chain)| old.frontends.get(key) != Some(chain));
        let heirs: BTreeSet<&OwnerName> = inherited.flat_map(|(_, chain)| chain).map(|claim| &claim.service).collect();
        let differs = |name: &&&OwnerName| {
            let asked = full || again.contains(**name) || heirs.contains(**name);
            asked || self.services.get(**name) != old.services.get(**name)
        };
        let services = names.iter().filter(differs).map(|name| ((*name).clone(), self.services.get(*name).cloned()));
        let keys: BTreeSet<&FrontendKey> = self.frontends.keys().chain(old.frontends.keys()).collect();
        let chain = |key: &FrontendKey| self.frontends.get(key).cloned().unwrap_or_default();
        let frontends = keys.iter().map(|key| (**key, chain(key).into_iter().next()));
        let below = keys.iter().map(|key| (**key, chain(key).into_iter().skip(1).collect()));
        Delta {
            services: services.collect(),
            frontends: frontends.collect(),
            below: below.collect(),
            ..Delta::default()
        }
    }
}

fn set(
    owner: &OwnerName,
    port: &str,
    protocol: Protocol,
    rule: Rule,
    pods: &BTreeSet<u8>,
    redirect: Option<&Redirect>,
    next: Option<SetName>,
) -> SetPlan {
    let role = if rule == Rule::Redirect { SetRole::Local } else { SetRole::Cluster };
    let owner = PortName::new(owner.clone(), port.into(), protocol);
    // Each level's backends have a port of their own, so that an answer tells the level.
    let number = 53 + 1000 * rule as u16;
    SetPlan {
        name: SetName { owner, family: Family::V4, role, audience: Audience::Everyone },
        backends: pods.iter().map(|n| BackendPlan { address: pod(*n), port: number, node: None }).collect(),
        rule,
        affinity: 0,
        when_empty: WhenEmpty::Refuse,
        any: !pods.is_empty(),
        next,
        policy: match rule {
            Rule::Service => None,
            _ => Some(SetPolicy { limit: redirect.and_then(|r| r.limit), self_next: redirect.is_some() }),
        },
    }
}

/// From everywhere, and from each pod.
fn dials() -> Vec<Dial> {
    let from: Vec<Vec<u64>> = (0..PODS).map(|n| vec![1, cgroup(n), 7]).chain([vec![], vec![1]]).collect();
    let mut dials = Vec::new();
    for (at, (_, protocol)) in [SERVED, VIRTUAL].iter().flat_map(|at| PORTS.iter().map(move |port| (at, port))) {
        let to = |cgroups: &Vec<u64>| Dial { cgroups: cgroups.clone(), ..Dial::to(address(at), 53, *protocol) };
        dials.extend(from.iter().map(to));
    }
    dials
}

fn answer(rows: &Rows, dial: &Dial) -> Answer {
    Answer::of(rows, dial, EmptyLocal::Refuse)
}

/// Holds between any two writes, whatever failed: who is sent to a pod is not that pod, and who takes tokens has a bucket.
fn must_hold(rows: &Rows, op: &Op) {
    for id in rows.reachable_sets() {
        let Some(set) = rows.sets.get(id) else { continue };
        let header = set.header;
        assert!(!header.limited || rows.buckets.contains_key(&header.policy), "set {id} has no bucket after {op:?}");
        for member in rows.members(set).iter().filter(|_| set.rule == Rule::Redirect) {
            let number = rows.backends[*member].address.0[15] - 10;
            let known = header.self_next && rows.selected.contains(&(header.policy, cgroup(number)));
            assert!(known, "pod {number} is in set {id} and may be sent to itself after {op:?}");
        }
        if let Op::FillBucket(policy) = op {
            assert_ne!(header.policy, *policy, "a bucket in use was filled");
        }
    }
}

struct Life {
    rng: fastrand::Rng,
    state: State,
    plan: Plan,
    again: BTreeSet<OwnerName>,
    tables: Tables,
    memory: Memory,
}

impl Life {
    fn new(seed: u64) -> Life {
        let (rng, state, plan) = (fastrand::Rng::with_seed(seed), State::default(), Plan::default());
        let (tables, memory) = (Tables::new(sizes()), Memory::new(sizes()));
        Life { rng, state, plan, again: BTreeSet::new(), tables, memory }
    }

    fn next_delta(&mut self, full: bool) -> Delta {
        let plan = self.state.plan();
        let delta = plan.delta(&self.plan, &self.again, full);
        self.plan = plan;
        delta
    }

    fn round(&mut self, full: bool, one_in: u32) -> Outcome {
        let delta = self.next_delta(full);
        let mut coin = fastrand::Rng::with_seed(self.rng.u64(..));
        let mut memory = std::mem::replace(&mut self.memory, Memory::new(sizes()));
        let watched = Watched { inner: &mut memory, seen: Box::new(must_hold) };
        let mut maps = Faulty::new(watched, move |_| one_in > 0 && coin.u32(..one_in) == 0);
        let outcome = reconcile(&mut self.tables, &mut maps, &delta, full);
        drop(maps);
        self.memory = memory;
        self.note(&outcome);
        outcome
    }

    fn note(&mut self, outcome: &Outcome) {
        self.again = outcome.failed.keys().cloned().collect();
        if let Err(problem) = self.tables.audit(sizes()) {
            panic!("{problem}\nafter {outcome:?}");
        }
        // Beside what arrays cannot forget, sets that wait for one that will lead to them.
        let (mut mirror, mut map) = (self.tables.rows().clone(), self.memory.rows.clone());
        let reachable = map.reachable_sets();
        [&mut mirror, &mut map].iter_mut().for_each(|rows| rows.sets.retain(|id, _| reachable.contains(&id)));
        map.slots.clone_from(&mirror.slots);
        assert_eq!(map, mirror);
    }

    fn settle(&mut self) {
        let mut outcome = self.round(false, 0);
        for _ in 0..4 {
            if outcome.is_clean() {
                return;
            }
            outcome = self.round(false, 0);
        }
        panic!("still not clean: {outcome:?}");
    }

    fn restart(&mut self) {
        self.tables = Tables::restore(self.memory.dump().unwrap(), sizes());
    }
}

fn programmed(state: &State) -> Rows {
    let (mut tables, mut memory) = (Tables::new(sizes()), Memory::new(sizes()));
    let delta = state.plan().delta(&Plan::default(), &BTreeSet::new(), true);
    assert!(reconcile(&mut tables, &mut memory, &delta, true).is_clean());
    memory.rows
}

#[test]
fn whatever_happens_the_tables_come_to_the_plan() {
    let dials = dials();
    let mut ops = 0;
    for seed in 0..200 {
        let mut life = Life::new(seed);
        let one_in = [0, 10, 4][seed as usize % 3];
        for step in 0..40 {
            (0..life.rng.usize(1..4)).for_each(|_| life.state.change(&mut life.rng));
            let restarts = life.rng.u8(..10) == 0;
            if restarts {
                life.restart();
            }
            let full = restarts || life.rng.u8(..10) == 0;
            ops += life.round(full, one_in).ops;
            if life.rng.u8(..5) == 0 {
                life.tables.recycle(&mut life.memory).unwrap();
            }
            if step % 4 == 3 {
                life.settle();
                let fresh = programmed(&life.state);
                dials.iter().for_each(|d| assert_eq!(answer(&life.memory.rows, d), answer(&fresh, d), "{d:?}"));
            }
        }
        life.settle();
        life.restart();
        assert_eq!(life.round(true, 0).ops, 0, "nothing changed, nothing to write");
        life.state = State::default();
        life.round(false, one_in);
        life.settle();
        let rows = life.tables.rows();
        assert!(rows.names.is_empty() && rows.buckets.is_empty() && rows.selected.is_empty() && rows.sets.is_empty());
    }
    println!("{ops} writes");
}

/// With failures on odd seeds. Answers of several changes at once may be mixed; but who is served before and after is
/// served all the time.
#[test]
fn between_two_writes_a_dial_gets_the_old_answer_or_the_new_one() {
    let (dials, mut checked) = (dials(), 0u64);
    for seed in 1000..1150 {
        let mut life = Life::new(seed);
        for _ in 0..30 {
            let before = life.memory.rows.clone();
            let changes = life.rng.usize(1..4);
            (0..changes).for_each(|_| life.state.change(&mut life.rng));
            let after = programmed(&life.state);
            let watched: Vec<_> = dials.iter().map(|d| (d, answer(&before, d), answer(&after, d))).collect();
            for round in 0.. {
                let delta = life.next_delta(false);
                let mut memory = std::mem::replace(&mut life.memory, Memory::new(sizes()));
                let seen = |rows: &Rows, op: &Op| {
                    for (dial, old, new) in &watched {
                        let now = answer(rows, dial);
                        let served = [old, new, &now].map(|answer| answer.action == Action::Resolved);
                        let fits = if changes == 1 { now.is_between(old, new) } else { served != [true, true, false] };
                        assert!(fits, "{dial:?}\nold {old:?}\nnew {new:?}\nnow {now:?}\nafter {op:?}");
                        checked += 1;
                    }
                };
                let mut coin = fastrand::Rng::with_seed(seed + round);
                let fails = move |_| seed % 2 == 1 && round < 9 && coin.u8(..8) == 0;
                let mut maps = Faulty::new(Watched { inner: &mut memory, seen: Box::new(seen) }, fails);
                let outcome = reconcile(&mut life.tables, &mut maps, &delta, false);
                drop(maps);
                life.memory = memory;
                life.note(&outcome);
                if outcome.is_clean() {
                    break;
                }
                assert!(round < 30, "still not clean: {outcome:?}");
            }
            for (dial, _, new) in &watched {
                assert_eq!(&answer(&life.memory.rows, dial), new, "{dial:?}");
            }
        }
    }
    println!("{checked} dials between writes");
}

/// Of a policy that is deleted and made again: another number, or the same one with a full bucket.
#[test]
fn a_number_is_kept_while_the_policy_is_there() {
    let mut life = Life::new(1);
    let limit = Some(Limit { connects_per_second: 5, burst: 10 });
    let redirect = Redirect { selected: [1, 2].into(), ready: [1].into(), limit };
    life.state.service = Some([3].into());
    life.state.redirect = Some(redirect.clone());
    life.settle();
    let number = |life: &Life| *life.tables.rows().buckets.keys().next().expect("a bucket");
    let first = number(&life);
    let sets = life.tables.rows().sets.values().filter(|set| set.header.policy == first && set.header.limited);
    assert_eq!(sets.count(), PORTS.len(), "one number for all ports");
    for ready in [vec![], vec![1, 2], vec![2]] {
        life.state.redirect = Some(Redirect { ready: ready.into_iter().collect(), ..redirect.clone() });
        life.settle();
        life.restart();
        assert_eq!((number(&life), life.round(true, 0).ops), (first, 0));
    }
    life.state.redirect = None;
    life.settle();
    assert!(life.tables.rows().buckets.is_empty() && life.tables.rows().selected.is_empty());
    life.state.redirect = Some(redirect);
    let delta = life.next_delta(false);
    let mut filled = Vec::new();
    let seen = |_: &Rows, op: &Op| filled.extend(if let Op::FillBucket(id) = op { Some(*id) } else { None });
    let mut maps = Watched { inner: &mut life.memory, seen: Box::new(seen) };
    assert!(reconcile(&mut life.tables, &mut maps, &delta, false).is_clean());
    drop(maps);
    assert_eq!(filled, [number(&life)]);
}
